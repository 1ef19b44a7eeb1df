"""Memory of one training step: predicted by a dry run, and measured as the peak of torch's allocator.

On a GPU the allocator counts for itself. On a CPU torch's allocator does not, but tells a running profiler of every
block it gives and takes back; their sum is exact from the first block on. Resident memory is another thing: pages that
the C library keeps after they were freed, holes between blocks, libraries and the interpreter are in it, and it differs
from run to run. Measured is the dry run's step with numbers, each configuration in a fresh process. Dropout masks,
which numpy draws on a CPU, are predicted but not measured.

Source: papers 000 (section 4: memory by plan), 001 (section 4.2: sizes), 002 (section 4: plans). Tables are in MiB.
"""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pandas as pd
import torch
from torch.autograd import profiler

from mtbert.config import RunConfig
from mtbert.cost.dry_run import PARTS, DryRun, Shapes, Steps
from mtbert.runtime import MIB, pick_device


def step_timeline(config: RunConfig, shapes: Shapes, *, cuda: bool = False) -> pd.DataFrame:
    """Predicted memory over one training step, a row an operation; shapes and columns as of `DryRun.step`."""
    return DryRun(config, cuda).step(shapes)[0]


def at_peak(timeline: pd.DataFrame) -> pd.Series:
    """The moment of a timeline at which most memory is held."""
    return timeline.loc[timeline["total"].idxmax()]


def predicted_peak(config: RunConfig, shapes: Shapes, cuda: bool = False) -> pd.Series:
    """The moment of a step that takes most memory; of single-task steps, the most of any task's."""
    run = DryRun(config, cuda)
    return max((at_peak(run.step(*step)[0]) for step in _steps(config, shapes)), key=lambda moment: moment["total"])


def _steps(config: RunConfig, shapes: Shapes) -> list[tuple[Shapes, Shapes]]:
    """The shapes of each kind of step, and of the memories that GEM draws."""
    memory = {task: (min(B, config.memory_batch), T) for task, (B, T) in shapes.items()}
    parts = [shapes] if config.scheme == "unified" else [{task: shape} for task, shape in shapes.items()]
    return [(part, memory) for part in parts]


def measure_step(config: RunConfig, shapes: Shapes, device: str = "cpu") -> int:
    """Bytes at the peak of torch's allocator over a step; of single-task steps, the most of any task's.

    Call it in a fresh process where other tensors could be alive, or use `measure_grid`.
    """
    steps = _steps(config, shapes)
    if pick_device(device).type == "cuda":
        run = Steps(config, device)
        run.step(*steps[0])
        torch.cuda.reset_peak_memory_stats(run.device)
        for step in steps:
            run.step(*step)
        return torch.cuda.max_memory_allocated(run.device)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own messages
    with profiler.profile(profile_memory=True) as record:
        run = Steps(config, device)
        run.step(*steps[0])  # what torch makes once
        with profiler.record_function(_STEP):
            pass
        for step in steps:
            run.step(*step)
    live = peak = 0
    for event in sorted(record.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == _STEP:
            peak = live
        elif event.name() == "[memory]" and event.device_type() == torch.profiler.DeviceType.CPU:
            live += event.nbytes()
            peak = max(peak, live)
    return peak


_STEP = "mtbert: measured from here"


# --- predicted against measured --------------------------------------------------------------------------------------

_THREE, _LONG = ("sst", "quora", "sts"), ("cfimdb",)
# name -> fields of the configuration, (examples, tokens) of each task
GRID: dict[str, tuple[dict, tuple[int, int]]] = {
    "1-bert": ({}, (16, 64)),
    "1-bert, bf16": ({"precision": "bf16"}, (16, 64)),
    "1-bert, few tokens": ({}, (8, 16)),
    "1-bert, many examples": ({"precision": "bf16"}, (64, 32)),
    "2 layers": ({"layers": 2}, (16, 64)),
    "3-bert": ({"plan": "3-bert"}, (8, 16)),
    "3-bert, bf16": ({"plan": "3-bert", "precision": "bf16"}, (32, 48)),
    "hybrid-3, bf16": ({"plan": "hybrid-3", "precision": "bf16"}, (32, 48)),
    "S6(quora,sts|sst)": ({"plan": "S6(quora,sts|sst)"}, (16, 32)),
    "F3 S3": ({"plan": "F3 S3"}, (32, 64)),
    "F3 S3, bf16": ({"plan": "F3 S3", "precision": "bf16"}, (32, 64)),
    "frozen": ({"plan": "frozen"}, (64, 128)),
    "frozen + PAL, bf16": ({"plan": "frozen", "adapter": "pal", "adapter_size": 96, "precision": "bf16"}, (16, 64)),
    "1-bert + PAL 204": ({"adapter": "pal"}, (16, 32)),
    "1-bert + PAL 96, bf16": ({"adapter": "pal", "adapter_size": 96, "precision": "bf16"}, (32, 48)),
    "1-bert + Houlsby 64": ({"adapter": "houlsby", "adapter_size": 64}, (16, 32)),
    "hybrid-3 + LHUC": ({"plan": "hybrid-3", "adapter": "lhuc"}, (16, 32)),
    "PCGrad": ({"gradients": "pcgrad"}, (8, 32)),
    "PCGrad, hybrid-3, bf16": ({"gradients": "pcgrad", "plan": "hybrid-3", "precision": "bf16"}, (16, 48)),
    "GEM": ({"gradients": "gem"}, (8, 32)),
    "A-GEM, sampled": ({"gradients": "agem", "scheme": "sampled"}, (8, 32)),
    "accumulation 4": ({"accumulation": 4}, (32, 64)),
    "accumulation 4, 3-bert": ({"accumulation": 4, "plan": "3-bert"}, (16, 32)),
    "sentences apart": ({"pairs": "concat"}, (16, 32)),
    "long texts": ({"tasks": _LONG}, (8, 256)),
    "long texts, bf16": ({"tasks": _LONG, "precision": "bf16"}, (8, 256)),
    "long texts, no attention dropout": ({"tasks": _LONG, "attention_dropout": 0.0}, (8, 256)),
}


def grid_config(name: str) -> tuple[RunConfig, Shapes]:
    """A configuration of GRID, and the shapes of its step."""
    fields, shape = GRID[name]
    fields = {"tasks": _THREE, "max_length": 512, **fields}
    if len(fields["tasks"]) > 1:
        fields = {"scheme": "unified", **fields}
    return RunConfig.from_params(fields), dict.fromkeys(fields["tasks"], shape)


def measure_grid(names: list[str] | None = None, device: str = "cpu", workers: int = 1) -> pd.DataFrame:
    """Predicted and measured peak of the steps of GRID, a row a configuration, each measured in a process of its own.

    Columns: name, plan, adapter, method (of gradients), precision, examples, tokens (of each task), device; in MiB
    measured, predicted, and the prediction's weights, moments, gradients, task gradients, activations, temporary; ratio
    (predicted / measured).
    """
    names = list(GRID) if names is None else names
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=1) as pool:
        return pd.DataFrame(list(pool.map(_measure_row, names, [device] * len(names))))


def _measure_row(name: str, device: str) -> dict:
    torch.set_num_threads(1)
    config, shapes = grid_config(name)
    cuda = pick_device(device).type == "cuda"
    measured = measure_step(config, shapes, device)
    moment = predicted_peak(config, shapes, cuda)
    examples, tokens = GRID[name][1]
    return {
        "name": name,
        "plan": config.plan_text,
        "adapter": config.adapter if config.adapter == "none" else f"{config.adapter} {config.adapter_size}",
        "method": config.gradients,
        "precision": config.precision,
        "examples": examples,
        "tokens": tokens,
        "device": device,
        "measured": measured / MIB,
        "predicted": moment["total"],
        "ratio": moment["total"] * MIB / measured,
        **{part: moment[part] for part in PARTS},
    }
