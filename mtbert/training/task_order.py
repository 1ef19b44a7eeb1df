"""The steps of a run: how many there are, the task or tasks of each, and the examples.

Source: paper 002, section 4 (tasks in turn, then 3-tuples of batches).
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy import ndarray
from torch import Tensor

from mtbert.batches import train_batches
from mtbert.config import RunConfig
from mtbert.samplers import task_probabilities

Rows = dict[str, ndarray | Tensor]  # task -> numbers of some rows of its table; a tensor: on a GPU
Losses = dict[str, float | Tensor]  # task -> mean loss, before weighting; on a GPU tensors, until they are read


def pass_steps(config: RunConfig, sizes: Sequence[int]) -> list[int]:
    """Batches of one pass over each task, for tasks of these sizes (examples)."""
    batch_sizes = config.batch_sizes.values()
    return [math.ceil(size / batch_size) for size, batch_size in zip(sizes, batch_sizes, strict=True)]


def steps_per_epoch(config: RunConfig, sizes: Sequence[int]) -> int:
    """Optimizer steps of an epoch over tasks of these sizes (examples).

    By default an epoch has as many batches as all datasets together.
    """
    if config.steps_per_epoch is not None:
        return config.steps_per_epoch
    batches = sum(pass_steps(config, sizes))
    if config.scheme == "unified":
        return math.ceil(batches / len(sizes))
    return batches


def turn_ends(config: RunConfig, sizes: Sequence[int]) -> dict[int, str]:
    """For tasks in turn, the last step of each task's pass and the task; empty in other schemes."""
    if config.scheme != "in_turn" or len(config.tasks) == 1:
        return {}
    ends = np.cumsum(pass_steps(config, sizes) * config.epochs)
    return dict(zip(ends.tolist(), config.tasks * config.epochs, strict=True))


def expected_passes(config: RunConfig, sizes: Sequence[int]) -> ndarray:
    """How often a run trains on each example, by task (T,); the expectation where tasks are drawn."""
    sizes = np.asarray(sizes)
    epochs = config.epochs
    if config.scheme == "in_turn" and len(sizes) > 1:
        return np.full(len(sizes), float(epochs))
    steps = epochs * steps_per_epoch(config, sizes)
    batches = np.array(pass_steps(config, sizes))
    if config.scheme == "unified":
        return steps / batches
    shares = []
    for epoch in range(1, epochs + 1):
        shares.append(task_probabilities(sizes, config.sampling, epoch, epochs))
    return steps * np.mean(shares, axis=0) / batches


def training_steps(config: RunConfig, lengths: dict[str, ndarray]) -> Iterator[Rows]:
    """The rows of every step of a run, by task: one task, or all of them in a unified step.

    lengths: task -> tokens of its training examples. A function of these and the configuration alone, so that an
    interrupted run finds its place by counting. A task's examples come in passes: every one once, then reshuffled. The
    order depends on lengths and seed alone: two tasks on the same texts have the same examples in each unified step.
    """
    tasks = tuple(lengths)
    sizes = [len(lengths[task]) for task in tasks]
    passes = {}
    for task in tasks:
        passes[task] = _passes(lengths[task], config.batch_sizes[task], config.seed)
    for epoch in range(config.epochs):
        if config.scheme == "unified":
            for _ in range(steps_per_epoch(config, sizes)):
                yield {task: next(passes[task]) for task in tasks}
            continue
        for i in _task_order(config, sizes, epoch):
            task = tasks[i]
            yield {task: next(passes[task])}


def _task_order(config: RunConfig, sizes: Sequence[int], epoch: int) -> ndarray:
    """The index of the task that each step of an epoch trains. epoch: from 0."""
    steps = steps_per_epoch(config, sizes)
    tasks = np.arange(len(sizes))
    if len(tasks) == 1:
        return np.zeros(steps, dtype=int)
    if config.scheme == "in_turn":
        return np.repeat(tasks, pass_steps(config, sizes))
    if config.sampling == "round_robin":  # p = 1 / T without variance
        first_step = epoch * steps
        return np.arange(first_step, first_step + steps) % len(tasks)
    p = task_probabilities(sizes, config.sampling, epoch + 1, config.epochs)
    random = np.random.default_rng([config.seed, epoch])
    return random.choice(len(tasks), size=steps, p=p)


def _passes(lengths: ndarray, batch_size: int, seed: int) -> Iterator[ndarray]:
    """Batches of one task without end: every pass has every example once, in an order of its own."""
    for number in itertools.count():
        yield from train_batches(lengths, batch_size, seed, number)
