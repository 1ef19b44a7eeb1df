"""Memory of a training step: predicted by a dry run, next to the measured peak of torch's allocator.

On a GPU the allocator keeps count itself. On a CPU torch's profiler records every block that it allocates and frees.
Resident memory is more: it includes the interpreter, libraries, and freed pages that the C library keeps. Dropout
masks, which numpy draws on a CPU, are predicted but not measured.

Source: papers 000 (section 4: memory by plan), 001 (section 4.2: sizes), 002 (section 4: plans). Tables are in MiB.
"""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pandas as pd
import torch
from torch.autograd import profiler

from mtbert.config import RunConfig
from mtbert.cost.dry_run import PARTS, DryRun
from mtbert.cost.steps import Shapes, Steps
from mtbert.multitask import MultitaskBert
from mtbert.results import read_grid
from mtbert.runtime import MIB, pick_device


def step_timeline(config: RunConfig, shapes: Shapes) -> pd.DataFrame:
    """Predicted memory over one training step on a CPU, a row an operation; columns as of `DryRun.step`."""
    return DryRun(config).step(shapes)[0]


def at_peak(timeline: pd.DataFrame) -> pd.Series:
    """The moment of a timeline at which most memory is held."""
    return timeline.loc[timeline["total"].idxmax()]


def predicted_peak(config: RunConfig, shapes: Shapes, cuda: bool = False) -> pd.Series:
    """The moment of a step that takes most memory; of single-task steps, the most of any task's."""
    run = DryRun(config, cuda)
    return max((at_peak(run.step(*step)[0]) for step in _steps(config, shapes)), key=lambda moment: moment["total"])


def _steps(config: RunConfig, shapes: Shapes) -> list[tuple[Shapes, dict[str, int]]]:
    """The shapes of each kind of step, and the tokens of what GEM draws."""
    parts = [shapes] if config.scheme == "unified" else [{task: shape} for task, shape in shapes.items()]
    return [(part, {task: T for task, (_, T) in shapes.items()}) for part in parts]


def measured_peak(config: RunConfig, shapes: Shapes, device: str = "cpu") -> float:
    """MiB at the peak of torch's allocator over a step; of single-task steps, the most of any task's.

    Other tensors that live in the process count, too: call it in a fresh one.
    """
    place, steps, mark = pick_device(device), _steps(config, shapes), "mtbert: measured from here"
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own messages
    with profiler.profile(profile_memory=place.type == "cpu", enabled=place.type == "cpu") as record:
        run = Steps(MultitaskBert(config.but(weights="random")).to(place))
        run.step(*steps[0])  # what torch makes once
        if place.type == "cuda":
            torch.cuda.reset_peak_memory_stats(place)
        with profiler.record_function(mark):
            pass
        for step in steps:
            run.step(*step)
    if place.type == "cuda":
        return torch.cuda.max_memory_allocated(place) / MIB
    live = peak = 0
    for event in sorted(record.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == mark:
            peak = live
        elif event.name() == "[memory]" and event.device_type() == torch.profiler.DeviceType.CPU:
            live += event.nbytes()
            peak = max(peak, live)
    return peak / MIB


def measured_steps() -> dict[str, RunConfig]:
    """The configurations of step_memory.yaml next to this file; `step_shapes` gives the sizes of their steps."""
    return {name: configs[0] for name, configs in read_grid(Path(__file__).with_name("step_memory.yaml")).items()}


def step_shapes(config: RunConfig) -> Shapes:
    """batch_size examples of max_length tokens of each task."""
    return {task: (B, config.max_length) for task, B in config.batch_sizes.items()}


def measure_grid(configs: dict[str, RunConfig], device: str = "cpu") -> pd.DataFrame:
    """Predicted and measured peak of a step of each configuration, each in a process of its own.

    A row a configuration: name, device, measured and predicted (MiB), and PARTS of the prediction.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        return pd.DataFrame(list(pool.map(_measure_row, configs, configs.values(), [device] * len(configs))))


def _measure_row(name: str, config: RunConfig, device: str) -> dict:
    torch.set_num_threads(1)
    measured = measured_peak(config, step_shapes(config), device)
    moment = predicted_peak(config, step_shapes(config), pick_device(device).type == "cuda")
    return {"name": name, "device": device, "measured": measured, "predicted": moment["total"], **moment[PARTS]}
