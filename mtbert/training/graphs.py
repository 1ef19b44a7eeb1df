"""A training step on a GPU as a CUDA graph: captured once for each shape, then replayed with one call.

A step of a small encoder is some 500 short kernels, and the GPU waits for Python between them. A graph has them all,
and those that need not wait for each other are on branches of it (`mtbert.bert.side_by_side`).

What a graph computes is fixed but for the content of its tensors: the rows of a step are therefore numbers on the GPU,
their batches are made there (`FlatSequences`), and all tasks are padded to one length, a multiple of LENGTH_STEP. The
update is not part of the graph: it is a few kernels, and its learning rate and step counts are numbers of the host.

Not captured are steps with teacher annealing or loss-ratio weights, which depend on numbers of the host, and steps
above frozen layers, which read from disk.

Source: NVIDIA, "Getting Started with CUDA Graphs"; torch.cuda.graph.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtbert.multitask import MultitaskBert
from mtbert.training.task_data import TaskData
from mtbert.training.task_order import Rows

LENGTH_STEP = 16  # sequences are padded to a multiple of it; attention's kernels need 8
MOST_GRAPHS = 48  # kept; where one more is needed, all go
GRADIENTS_SHARE = 0.25  # of the GPU's memory, at most, is of graphs' gradients: each graph has gradients of its own
Compute = Callable[[int, Rows, int | None], Any]  # the number of the step, its rows, the length that they are padded to
Key = tuple[str, int, tuple[tuple[str, int], ...]]  # what is computed, the padded length, examples of each task


def graphs_are_on(device: torch.device) -> bool:
    """Whether steps on this device are captured: on a GPU, unless MTBERT_GRAPHS is 0."""
    return device.type == "cuda" and os.environ.get("MTBERT_GRAPHS", "1") != "0"


def can_be_captured(model: MultitaskBert, data: dict[str, TaskData]) -> bool:
    """Whether the steps of a run depend on nothing that the host computes or reads from disk for each of them."""
    config = model.run_config
    if config.weighting == "loss_ratio":  # weights that depend on the losses of the step before
        return False
    if config.teachers and config.distil == "annealed":  # the teachers' weight changes from step to step
        return False
    return not any(of_task.needs_host(model) for of_task in data.values())


@dataclass
class _Captured:
    """A graph with the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    rows: Tensor  # numbers of the rows of all tasks
    result: Any
    gradients: list[tuple[Tensor, Tensor]]  # of the parameters that the step uses


class StepGraphs:
    """Computes losses and gradients of a step from graphs; as `compute` itself does, to the last bit.

    The first step of a shape runs without a graph, on the same tensors: a shape that never comes again costs no
    capture. On a CPU all steps do, which shows what padding alone changes.
    """

    def __init__(self, trained: list[Tensor], data: dict[str, TaskData], max_length: int) -> None:
        self.trained = trained
        self.data = data
        self.max_length = max_length
        self.seen: set[Key] = set()
        self.graphs: dict[Key, _Captured] = {}
        self.pools: dict[str, Any] = {}  # what is computed -> the memory that its graphs share

    def __call__(self, name: str, compute: Compute, number: int, rows: Rows) -> Any:
        """The result of compute(number, rows, length), with the gradients that it leaves in `.grad`.

        The tensors of the result, and the gradients, are those of the graph: its next replay overwrites them.
        """
        length = self._padded_length(rows)
        key = (name, length, tuple((task, len(part)) for task, part in rows.items()))
        numbers = torch.from_numpy(np.concatenate(list(rows.values())))
        device = next(iter(self.data.values())).device
        if key not in self.seen or device.type != "cuda":
            self.seen.add(key)
            return compute(number, _rows_by_task(numbers.to(device), key), length)
        if key not in self.graphs:
            self._make_room(device)
            self.graphs[key] = self._capture(compute, number, numbers.to(device), key)
        captured = self.graphs[key]
        captured.rows.copy_(numbers.pin_memory(), non_blocking=True)
        captured.graph.replay()
        for parameter, gradient in captured.gradients:
            parameter.grad = gradient
        return captured.result

    def _make_room(self, device: torch.device) -> None:
        """Drop all graphs and their memory where one more would be too many.

        Not the oldest alone: with it torch frees the workspace of the stream that all were captured on.
        """
        if not self.graphs:
            return
        latest = next(reversed(self.graphs.values()))
        if len(self.graphs) < self._most_graphs(latest, device):
            return
        torch.cuda.synchronize(device)
        self.graphs.clear()
        self.pools.clear()

    def _most_graphs(self, captured: _Captured, device: torch.device) -> int:
        """How many graphs like this one are kept."""
        held = [gradient for _, gradient in captured.gradients]
        if isinstance(captured.result, tuple):  # losses, G (T, P), uses
            held.append(captured.result[1])
        size = sum(tensor.numel() * tensor.element_size() for tensor in held)
        room = GRADIENTS_SHARE * torch.cuda.get_device_properties(device).total_memory
        return max(2, min(MOST_GRAPHS, int(room / max(size, 1))))

    def _padded_length(self, rows: Rows) -> int:
        """The longest sequence of these rows in tokens, rounded up."""
        longest = max(self.data[task].tokens.lengths[part].max() for task, part in rows.items())
        steps = -(-int(longest) // LENGTH_STEP)
        return min(steps * LENGTH_STEP, self.max_length)

    def _capture(self, compute: Compute, number: int, numbers: Tensor, key: Key) -> _Captured:
        name, length, _ = key
        if name not in self.pools:
            self.pools[name] = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pools[name]):
            result = compute(number, _rows_by_task(numbers, key), length)
        gradients = [(parameter, parameter.grad) for parameter in self.trained if parameter.grad is not None]
        return _Captured(graph, numbers, result, gradients)


def _rows_by_task(numbers: Tensor, key: Key) -> Rows:
    """The numbers of all rows -> those of each task."""
    _, _, sizes = key
    parts = numbers.split([size for _, size in sizes])
    return {task: part for (task, _), part in zip(sizes, parts, strict=True)}
