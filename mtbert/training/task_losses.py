"""The losses of a step's rows and the gradient of their weighted sum, in passes that fit into memory."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from mtbert.config import RunConfig
from mtbert.data import TASKS
from mtbert.multitask import MultitaskBert, divergence
from mtbert.parallel import Processes
from mtbert.training.batches import Losses, Rows
from mtbert.training.distillation import distillation_loss, teacher_weight
from mtbert.training.task_data import Tables, task_logits

PASS_TOKENS = 4096  # of a training pass on a CPU, counted as `weighted_tokens` does
PART_TOKENS = 2048  # of the parts of a step that has more: large blocks leave holes in the heap
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
    """The tokens that a step reads; one of a text of T tokens counts as 1 + T / HEAVY, for its attention weights."""
    r_drops = config.r_drops
    tokens = 0.0
    for task, (B, T) in shapes.items():
        times = 2 if r_drops[task] else 1
        sequences = times * B * config.encodings(task)
        tokens += sequences * T * (1 + T / HEAVY)
    return tokens


def step_parts(config: RunConfig, shapes: Shapes, cuda: bool) -> int:
    """Into how many parts the batches of a step are cut: `accumulation`, on a CPU more where texts are long.

    With MiniLM a part keeps at most 0.6 GiB.
    """
    tokens = weighted_tokens(config, shapes)
    if cuda or tokens <= PASS_TOKENS * config.accumulation:
        return config.accumulation
    return max(config.accumulation, math.ceil(tokens / PART_TOKENS))


class TaskLosses:
    """The losses of the tasks' rows in passes through the model, their weighted sum, and its gradient.

    tables: the rows of every training task. total_steps: over which the weight of teachers falls. processes: those that
    share the rows of a batch.
    """

    def __init__(self, model: MultitaskBert, tables: Tables, total_steps: int, processes: Processes) -> None:
        self.model = model
        self.config = model.run_config
        self.tables = tables
        self.total_steps = total_steps
        self.processes = processes
        self.first: Losses = {}  # of the first step that was noted
        self.last: Losses = {}  # of the last one

    def backward(self, step: int, rows: Rows) -> dict[str, Tensor]:
        """Add the gradient of the weighted sum of losses to `.grad`, in as many passes as `step_parts` says.

        Returns every task's mean loss, before weighting. Where several processes train together, the gradient is that
        of this one's part of the rows, and the losses are those of all rows.
        """
        own = {}
        shares = {}
        for task, batch in rows.items():
            own[task], shares[task] = self.processes.part(batch)
        totals = {}
        for part in self._parts(own):
            weighted = []
            for task, loss in self._losses(step, part).items():
                share = len(part[task]) / len(own[task]) * shares[task]
                totals[task] = totals.get(task, 0) + loss.detach() * share
                weighted.append(self.weighted(task, loss) * share)
            sum(weighted).backward()
        return {task: self.processes.sum(loss) for task, loss in totals.items()}

    def weighted(self, task: str, loss: Tensor) -> Tensor:
        """The loss of a task as it enters the sum, by `weighting` of the configuration.

        fixed: as configured. uncertainty, with a learned s_t = log sigma_t^2 (Kendall, Gal and Cipolla 2018): of a
        regression (STS, squared error) L_t / (2 sigma_t^2) + log sigma_t = exp(-s_t) L_t / 2 + s_t / 2, of a
        classification (SST, CFIMDB, Quora, cross-entropy) L_t / sigma_t^2 + log sigma_t = exp(-s_t) L_t + s_t / 2.
        loss_ratio: (L_t / L_t at the first step)^(1/2), from the step before, scaled to a mean of 1 (Liu et al. 2019).
        """
        config = self.config
        if config.weighting == "uncertainty":
            s = self.model.log_variances[task]
            factor = 0.5 if TASKS[task].is_number else 1.0
            return factor * torch.exp(-s) * loss + s / 2
        if config.weighting == "loss_ratio" and self.last:
            ratios = {}
            for name in config.tasks:
                ratios[name] = (self.last[name] / max(self.first[name], 1e-12)) ** 0.5
            total = max(sum(ratios.values()), 1e-12)
            return loss * (ratios[task] * len(ratios) / total)
        if config.task_weights:
            return loss * config.task_weights[config.tasks.index(task)]
        return loss

    def note(self, losses: Losses) -> None:
        """Remember a step's losses, on which later weights depend."""
        if not self.first:
            self.first.update(losses)
        self.last.update(losses)

    def state_dict(self) -> dict[str, Losses]:
        """The losses that were noted."""
        return {"first": self.first, "last": self.last}

    def load_state_dict(self, state: dict[str, Losses]) -> None:
        """Put back what `state_dict` gave."""
        self.first = state["first"]
        self.last = state["last"]

    def _parts(self, rows: Rows) -> Iterator[Rows]:
        """The rows of each pass, as many as `step_parts` says; a task without rows for a pass is left out of it."""
        lengths = {task: self.tables[task].tokens.lengths for task in rows}
        shapes = batch_shapes(rows, lengths)
        count = step_parts(self.config, shapes, self.model.device.type == "cuda")
        by_task = {task: np.array_split(batch, count) for task, batch in rows.items()}
        for i in range(count):
            part = {}
            for task, parts in by_task.items():
                if len(parts[i]):
                    part[task] = parts[i]
            if part:
                yield part

    def _losses(self, step: int, rows: Rows) -> dict[str, Tensor]:
        """Each task's mean loss of some rows in one pass; with R-Drop every row passes under two dropout masks."""
        r_drops = self.config.r_drops
        rows = {task: np.tile(part, 2) if r_drops[task] else part for task, part in rows.items()}
        losses = {}
        for task, logits in task_logits(self.model, self.tables, rows).items():
            loss = self._loss(step, task, logits, rows[task])
            if r_drops[task]:
                first, second = logits.chunk(2)
                loss = loss + r_drops[task] * divergence(TASKS[task], first, second)
            losses[task] = loss
        return losses

    def _loss(self, step: int, task: str, logits: Tensor, rows: ndarray) -> Tensor:
        """The mean loss of some rows of a task, against their labels and teachers."""
        table = self.tables[task]
        labels = table.labels[rows]
        teachers = None if table.teachers is None else table.teachers[rows]
        weight = teacher_weight(self.config, step, self.total_steps)
        return distillation_loss(TASKS[task], logits, labels, teachers, weight, self.config.temperature)
