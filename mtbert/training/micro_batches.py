"""A step's batches in micro-batches that fit into memory, each with a forward and a backward pass of its own."""

import math
from collections.abc import Iterator

import numpy as np
from numpy import ndarray
from torch import Tensor

from mtbert.config import RunConfig
from mtbert.training.task_order import Rows

UNCUT_TOKENS = 4096  # of a micro-batch that a CPU cuts no further, counted as `weighted_tokens` does
MICRO_BATCH_TOKENS = 2048  # of those of a step that has more: large blocks leave holes in the heap
HEAVY = 128  # tokens of a text whose attention weights count as much as all else that a pass keeps of it
Shapes = dict[str, tuple[int, int]]  # task -> (examples, tokens of the longest)


def batch_shapes(rows: Rows, lengths: dict[str, ndarray]) -> Shapes:
    """The shapes of a step's batches; lengths: task -> tokens of all its examples."""
    shapes = {}
    for task, part in rows.items():
        longest = lengths[task][part].max()
        shapes[task] = len(part), int(longest)
    return shapes


def weighted_tokens(config: RunConfig, shapes: Shapes) -> float:
    """The tokens that a step reads, each counted as 1 + T / HEAVY in a text of T tokens, for its attention weights."""
    r_drops = config.r_drops
    tokens = 0.0
    for task, (B, T) in shapes.items():
        times = 2 if r_drops[task] else 1
        sequences = times * B * config.encodings(task)
        tokens += sequences * T * (1 + T / HEAVY)
    return tokens


def micro_batch_count(config: RunConfig, shapes: Shapes, cuda: bool) -> int:
    """Into how many micro-batches a step is cut: `accumulation`, on a CPU more where texts are long.

    A micro-batch of MiniLM keeps at most 0.6 GiB.
    """
    tokens = weighted_tokens(config, shapes)
    if cuda or tokens <= UNCUT_TOKENS * config.accumulation:
        return config.accumulation
    return max(config.accumulation, math.ceil(tokens / MICRO_BATCH_TOKENS))


def in_micro_batches(rows: Rows, count: int) -> Iterator[Rows]:
    """The rows in `count` micro-batches; a task without rows for one is left out of it."""
    by_task = {}
    for task, batch in rows.items():
        is_tensor = isinstance(batch, Tensor)
        by_task[task] = batch.tensor_split(count) if is_tensor else np.array_split(batch, count)
    for i in range(count):
        part = {task: parts[i] for task, parts in by_task.items() if len(parts[i])}
        if part:
            yield part
