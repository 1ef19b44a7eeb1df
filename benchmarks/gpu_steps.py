"""Training steps as a GPU runs them, of ours and of its peers, and how long such a step takes.

A GPU works behind the program that gives it work, so that a step is timed in a block of many, with one wait at its end:
nobody reads a loss before that. Ours makes its batches anew in every step, from token ids; a peer's lie on the device
before the clock starts, which is the best that a loader beside it could do. All contenders begin at the same weights.
"""

import copy
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks import peers
from benchmarks.ours import MANY_STEPS
from benchmarks.peers import TransformersModel
from mtbert.data import TASKS
from mtbert.multitask import MultitaskBert, task_loss
from mtbert.training import TaskData, Trainer, prepare_task

WARM_UP = 5  # steps, in which graphs are captured
BLOCK = 20  # steps of a measurement
LEAST = 5  # where so many take longer than BLOCK_SECONDS
BLOCK_SECONDS = 0.25

Step = Callable[[], Iterable[float | Tensor]]  # one optimizer step -> every task's mean loss
Interval = tuple[float, float]


class Start(NamedTuple):
    """What contenders begin with: a model that stays untrained, and a table of each task, of which a step takes all."""

    model: MultitaskBert
    tables: dict[str, pd.DataFrame]

    def rows(self, model: MultitaskBert) -> dict[str, TaskData]:
        """The tables for a model, on its device."""
        return {task: prepare_task(model, task, table, model.device) for task, table in self.tables.items()}

    def indices(self) -> dict[str, np.ndarray]:
        """Task -> all of its rows."""
        return {task: np.arange(len(table)) for task, table in self.tables.items()}


def ours(start: Start, graphs: bool = True) -> Step:
    """A step of ours. graphs: as a graph on a GPU."""
    model = copy.deepcopy(start.model)
    trainer = Trainer(model, start.rows(model), MANY_STEPS, graphs=graphs)
    indices = start.indices()
    numbers = count(1)

    def step() -> list[float | Tensor]:
        return [*trainer.step(next(numbers), indices).values()]

    return step


class ReadyModel(TransformersModel):
    """transformers' model with the batch of every task on its device, all rows of a table in one."""

    def __init__(self, start: Start) -> None:
        tables = start.rows(start.model)
        super().__init__(start.model, tables)
        indices = start.indices()
        self.batches = {task: self.batch(task, rows) for task, rows in indices.items()}
        self.labels = {task: table.labels for task, table in tables.items()}
        self.merged = self.merged_batch(indices)
        self.optimizer = peers.adamw(self, fused=True)

    def update(self) -> None:
        """The part of a step after the gradient."""
        self.optimizer.step()
        self.optimizer.zero_grad()


def one_pass(start: Start) -> Step:
    """A step of transformers' model: one pass over the examples of all tasks, padded to the longest."""
    model = ReadyModel(start)

    def step() -> list[Tensor]:
        _, losses = model.losses_of(model.merged, model.labels)
        sum(losses).backward()
        model.update()
        return losses

    return step


def pass_per_task(start: Start) -> Step:
    """A step of transformers' model as it is usually written: a forward and a backward pass for every task."""
    model = ReadyModel(start)

    def step() -> list[Tensor]:
        losses = []
        for task, batch in model.batches.items():
            losses.append(task_loss(TASKS[task], model(task, batch), model.labels[task]))
            losses[-1].backward()
        model.update()
        return losses

    return step


def torchjd(start: Start) -> Step:
    """A step with PCGrad by TorchJD, on a single pass. The step raises ImportError without torchjd."""
    model = ReadyModel(start)

    def step() -> list[Tensor]:
        features, losses = model.losses_of(model.merged, model.labels)
        peers.torchjd_gradients(model, features, losses, list(model.labels))
        model.update()
        return losses

    return step


class Contender:
    """A step and the time it takes. The first steps are taken here, with all that is done once."""

    def __init__(self, build: Callable[[Start], Step], start: Start) -> None:
        self.device = start.model.device
        self.is_gpu = self.device.type == "cuda"
        self.step = build(start)
        self.block(WARM_UP)
        a_step = self.block(LEAST) / LEAST
        self.steps = min(BLOCK, max(LEAST, round(BLOCK_SECONDS / a_step)))

    def _wait(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize(self.device)

    def block(self, steps: int) -> float:
        """Seconds of so many steps. Raises FloatingPointError if a loss of the last one is not finite."""
        losses: Iterable[float | Tensor] = ()
        self._wait()
        started = time.perf_counter()
        for _ in range(steps):
            losses = self.step()
        self._wait()
        seconds = time.perf_counter() - started
        values = [loss.item() if isinstance(loss, Tensor) else loss for loss in losses]
        if not all(map(math.isfinite, values)):
            raise FloatingPointError(f"a loss is not finite: {values}")
        return seconds

    def run(self, repeat: int) -> float:
        """Milliseconds of a step."""
        return 1000 * self.block(self.steps) / self.steps

    def busy(self, milliseconds: float) -> float | None:
        """The share of a step's time in which a kernel runs; None on a CPU, or where the profiler sees no kernel.

        milliseconds: of a step without the profiler, which slows the program down but not its kernels.
        """
        if not self.is_gpu:
            return None
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            self.block(self.steps)
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder, "trace.json")
            profiler.export_chrome_trace(str(trace))
            kernels = kernel_intervals(trace)
        in_kernels = covered(kernels) / 1000 / self.steps
        return min(1.0, in_kernels / milliseconds) if kernels else None


def kernel_intervals(trace: Path) -> list[Interval]:
    """Start and end of every kernel of a trace in Chrome's format, in microseconds; copies and annotations are none."""
    events = json.loads(trace.read_text(encoding="utf8"))["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    return [(event["ts"], event["ts"] + event["dur"]) for event in kernels]


def covered(intervals: Iterable[Interval]) -> float:
    """The length of the union of intervals."""
    total = 0.0
    reached = -math.inf
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
