"""Memory of a training step: predicted by a dry run, and measured as the peak of torch's allocator.

On a GPU the allocator keeps count itself. On a CPU torch's profiler records every block that it allocates and frees.
Resident memory is larger: it includes the interpreter, libraries, and freed pages that the C library keeps. Dropout
masks, which numpy draws on a CPU, are predicted but not measured.

Source: papers 000 (section 4: memory by plan), 001 (section 4.2: sizes), 002 (section 4: plans). Tables are in MiB.
"""

import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch.autograd import profiler

from mtbert.config import RunConfig
from mtbert.multitask import MultitaskBert
from mtbert.runtime import MIB, pick_device
from mtbert.training import Shapes
from mtbert_lab.cost.dry_run import PARTS, DryRun, at_peak
from mtbert_lab.cost.steps import Steps
from mtbert_lab.store import read_grid

MARK = "mtbert: measured from here"


def step_timeline(config: RunConfig, shapes: Shapes) -> pd.DataFrame:
    """Predicted memory over one training step on a CPU, a row per allocation; columns: see `DryRun.step`."""
    return DryRun(config, _longest(shapes)).step(shapes)


def predicted_peak(config: RunConfig, shapes: Shapes, cuda: bool = False) -> pd.Series:
    """The moment of a step with the most memory. Of steps of one task each, that of the task with the most."""
    run = DryRun(config, _longest(shapes), cuda=cuda)
    moments = [at_peak(run.step(step)) for step in _kinds_of_steps(config, shapes)]
    totals = [moment["total"] for moment in moments]
    return moments[np.argmax(totals)]


def _longest(shapes: Shapes) -> dict[str, int]:
    """The tokens of the longest example of each task."""
    return {task: T for task, (_, T) in shapes.items()}


def _kinds_of_steps(config: RunConfig, shapes: Shapes) -> list[Shapes]:
    """The shapes of a step: of all tasks, or of each task alone."""
    if config.scheme == "unified":
        return [shapes]
    return [{task: shape} for task, shape in shapes.items()]


def measured_peak(config: RunConfig, shapes: Shapes, device: str = "cpu") -> float:
    """MiB at the peak of torch's allocator over a step. Of steps of one task each, that of the task with the most.

    Call it in a fresh process, as all tensors of the process count.
    """
    place = pick_device(device)
    kinds = _kinds_of_steps(config, shapes)
    on_cpu = place.type == "cpu"
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own messages
    with profiler.profile(profile_memory=on_cpu, enabled=on_cpu) as record:
        run = Steps(MultitaskBert(config.but(weights="random")).to(place), _longest(shapes))
        run.gradients(kinds[0])  # what torch makes once
        run.update()
        if not on_cpu:
            torch.cuda.reset_peak_memory_stats(place)
        with profiler.record_function(MARK):
            pass
        for step in kinds:
            run.gradients(step)
            run.update()
    if on_cpu:
        return _peak_bytes(record.kineto_results.events()) / MIB
    return torch.cuda.max_memory_allocated(place) / MIB


def _peak_bytes(events: Iterable) -> int:
    """The most bytes that the CPU's allocator had given out at one time after MARK, from the profiler's events."""
    live = peak = 0
    on_cpu = torch.profiler.DeviceType.CPU
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == MARK:
            peak = live
        elif event.name() == "[memory]" and event.device_type() == on_cpu:
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def measured_steps() -> dict[str, RunConfig]:
    """The configurations of step_memory.yaml next to this file; `step_shapes` gives the sizes of their steps."""
    grid = read_grid(Path(__file__).with_name("step_memory.yaml"))
    return {name: configs[0] for name, configs in grid.items()}


def step_shapes(config: RunConfig) -> Shapes:
    """batch_size examples of max_length tokens of each task."""
    return {task: (B, config.max_length) for task, B in config.batch_sizes.items()}


def measure_grid(configs: dict[str, RunConfig], device: str = "cpu") -> pd.DataFrame:
    """Predicted and measured peak of a step of each configuration, each in a process of its own.

    A row per configuration: name, device, measured and predicted (MiB), and PARTS of the prediction.
    """
    context = multiprocessing.get_context("spawn")
    rows = []
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        for name, config in configs.items():
            row = pool.submit(_measure_row, config, device).result()
            rows.append({"name": name, "device": device, **row})
    return pd.DataFrame(rows)


def _measure_row(config: RunConfig, device: str) -> dict[str, float]:
    torch.set_num_threads(1)
    shapes = step_shapes(config)
    on_gpu = pick_device(device).type == "cuda"
    measured = measured_peak(config, shapes, device)
    predicted = predicted_peak(config, shapes, on_gpu)
    return {"measured": measured, "predicted": predicted["total"], **predicted[PARTS]}
