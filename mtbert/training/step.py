"""One training step, read downward: losses, gradients, what is done about their conflicts, the update.

The gradient is that of the weighted sum of the tasks' losses; where a method asks for it, every task has a gradient of
its own of the parameters that tasks share, as a row of G (T, P). T tasks, K memories, P shared weights.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mtbert.bert import side_by_side
from mtbert.data import TASKS
from mtbert.gradients import (
    PROJECTIONS,
    WEIGHTS,
    EpisodicMemory,
    FlatGradients,
    GradientError,
    broken_constraints,
    check_finite,
    combine,
    gram_matrix,
)
from mtbert.multitask import MultitaskBert, divergence
from mtbert.optim import AdamW, make_schedule
from mtbert.sharing import add_pull
from mtbert.training.cosines import by_level, layer_cosines
from mtbert.training.distillation import distillation_loss, teacher_weight
from mtbert.training.graphs import Compute, StepGraphs, can_be_captured, graphs_are_on
from mtbert.training.loss_weights import LossWeights
from mtbert.training.micro_batches import batch_shapes, in_micro_batches, micro_batch_count
from mtbert.training.parameters import parameter_groups
from mtbert.training.task_data import TaskData, task_logits
from mtbert.training.task_order import Losses, Rows

Gradients = tuple[dict[str, Tensor], Tensor, Tensor]  # losses by task, G (T, P), used (T, shared parameters), bool


@dataclass(frozen=True)
class _Projection:
    """What constrained a step: the memories' gradients M (K, P), and whether they changed its gradient."""

    M: Tensor
    is_active: bool


class Trainer:
    """Trains a model step by step, as its configuration says.

    data: of every training task. total_steps: over which the schedule runs, and the weight of teachers
    falls. graphs: whether steps run as CUDA graphs (`StepGraphs`); None: on a GPU, where they can.
    The exponential moving average of the weights (`ema`), by torch's `swa_utils`, begins with the weights after the
    first step, which keep a share of ema^(steps - 1).
    """

    def __init__(
        self, model: MultitaskBert, data: dict[str, TaskData], total_steps: int, graphs: bool | None = None
    ) -> None:
        config = model.run_config
        self.model = model
        self.config = config
        self.data = data
        self.total_steps = total_steps
        self.loss_weights = LossWeights(model)
        model.heads.add_offsets()

        self.shared = FlatGradients(model.shared_parameters())
        self.is_sum = config.gradients == "sum" or not self.shared.spans  # one gradient of all tasks, not one of each
        self.memory = EpisodicMemory(config.memory_size, config.seed)
        self.projection: _Projection | None = None  # of this step, by GEM or A-GEM
        self.constraint_counts: Counter[str] = Counter()  # steps, projected ones, constraints checked, broken ones
        self.cosines: list[dict] = []  # recorded: step, layer, first, second, cosine

        self.optimizer = AdamW(parameter_groups(model), lr=config.learning_rate)
        self.trained = list(chain(*(group["params"] for group in self.optimizer.param_groups)))
        self.schedule = make_schedule(self.optimizer, config.schedule, total_steps, config.warmup)
        if graphs is None:
            graphs = graphs_are_on(model.device) and can_be_captured(model, data)
        self.graphs = StepGraphs(self.trained, data, config.max_length) if graphs else None
        self.current = nn.ParameterList(p for p in model.parameters() if p.requires_grad)
        self.average = None
        if config.ema is not None:
            self.average = AveragedModel(self.current, multi_avg_fn=get_ema_multi_avg_fn(config.ema))

    @property
    def is_on_gpu(self) -> bool:
        """Whether the model is on a GPU, where the host does not wait for a step unless it reads a number."""
        return self.model.device.type == "cuda"

    @property
    def learning_rate(self) -> float:
        """The learning rate of the step to come, the highest where layers have rates of their own."""
        return max(self.schedule.get_last_lr())

    def step(self, number: int, rows: Rows) -> Losses:
        """Train on these rows; returns every task's mean loss.

        Where one is not finite the caller has to stop; on a CPU the weights stay as they are. number: counted from 1;
        the draws of a step depend on it. On a GPU the losses are tensors, as to read one would wait for the step.
        """
        losses = self.compute_gradients(number, rows)
        if self.is_on_gpu or _are_finite(losses):
            self.update(rows)
        return losses

    def compute_gradients(self, number: int, rows: Rows) -> Losses:
        """Leave the gradient of these rows in `.grad`; returns every task's mean loss, before weighting.

        Parameters that a step does not use keep no gradient, so that the optimizer leaves them alone.
        """
        config = self.config
        if self.is_sum:
            if self._is_recorded(number):
                self._record_sum(number, rows)
            losses = self._compute("sum", self._backward, number, rows)
        else:
            losses = self._resolve_conflicts(number, rows)
        if config.soft_sharing != "none":
            add_pull(self.model.individual_copies(), config.soft_sharing, config.soft_strength)
        return self._noted(losses)

    def _noted(self, losses: dict[str, Tensor]) -> Losses:
        """The losses, noted where the weights of the next step depend on them.

        They are numbers; on a GPU, where nothing depends on them, copies that no later step overwrites.
        """
        if self.is_on_gpu and self.config.weighting != "loss_ratio":
            copies = torch.stack(list(losses.values()))
            return dict(zip(losses, copies, strict=True))
        values = {task: loss.item() for task, loss in losses.items()}
        self.loss_weights.note(values)
        return values

    def _compute(self, name: str, compute: Compute, number: int, rows: Rows) -> Any:
        """compute(number, rows), as a graph where steps run as graphs; name: one for each memory of graphs."""
        if self.graphs is None:
            return compute(number, rows, None)
        return self.graphs(name, compute, number, rows)

    def _backward(self, number: int, rows: Rows, length: int | None) -> dict[str, Tensor]:
        """Add the gradient of the weighted sum of losses to `.grad`, one micro-batch after the other.

        Returns every task's mean loss. length: None, or the tokens to which rows on a GPU are padded.
        """
        self.model.train()  # an encoder that was just read is in evaluation mode, and frozen levels stay in it
        totals = {}
        for part in self._micro_batches(rows, length):
            weighted = []
            for task, loss in self._losses(number, part, length).items():
                share = len(part[task]) / len(rows[task])
                totals[task] = totals.get(task, 0) + loss.detach() * share
                weighted.append(self.loss_weights(task, loss) * share)
            sum(weighted).backward()
        return totals

    def _micro_batches(self, rows: Rows, length: int | None) -> Iterator[Rows]:
        if length is not None:
            return in_micro_batches(rows, self.config.accumulation)
        lengths = {task: self.data[task].tokens.lengths for task in rows}
        count = micro_batch_count(self.config, batch_shapes(rows, lengths), self.is_on_gpu)
        return in_micro_batches(rows, count)

    def _losses(self, number: int, rows: Rows, length: int | None) -> dict[str, Tensor]:
        """Each task's mean loss of some rows in one pass; with R-Drop every row passes under two dropout masks."""
        config = self.config
        r_drops = config.r_drops
        rows = {task: _twice(part) if r_drops[task] else part for task, part in rows.items()}
        weight = teacher_weight(config, number, self.total_steps)
        losses = {}
        for task, logits in task_logits(self.model, self.data, rows, length).items():
            data = self.data[task]
            part = rows[task]
            teachers = None if data.teachers is None else data.teachers[part]
            loss = distillation_loss(TASKS[task], logits, data.labels[part], teachers, weight, config.temperature)
            if r_drops[task]:
                first, second = logits.chunk(2)
                loss = loss + r_drops[task] * divergence(TASKS[task], first, second)
            losses[task] = loss
        return losses

    def _resolve_conflicts(self, number: int, rows: Rows) -> dict[str, Tensor]:
        """A gradient per task, and from these one of the parameters that tasks share; returns the losses.

        The tasks' own parameters keep their own gradient.
        """
        remembered = self._remembered(number, rows)
        memories = self._extra_gradients(number, remembered) if remembered else None
        losses, G, uses = self._compute("by task", self._by_task, number, rows)
        if self._host_reads and not _are_finite(losses):
            return losses  # nothing can be projected; the caller stops
        if self._is_recorded(number):
            self._record(number, G, list(rows))
        g = self._combined(number, G, list(rows))
        used = uses.any(0)
        if memories is not None:
            g, used = self._projected(g, used, list(remembered), *memories)
        self.shared.put(g, used)
        return losses

    @property
    def _host_reads(self) -> bool:
        """Whether the host reads numbers within a step: on a GPU it would wait for them, and PCGrad needs none."""
        return not self.is_on_gpu or self.config.gradients != "pcgrad"

    def _combined(self, number: int, G: Tensor, tasks: list[str]) -> Tensor:
        """The gradient (P,) of a step from its tasks' G (T, P): PCGrad and CAGrad weight them, others add them up."""
        config = self.config
        if config.gradients not in WEIGHTS:
            return G.sum(0) if len(G) > 1 else G[0]
        generator = torch.Generator().manual_seed(config.seed * 1_000_003 + number)
        gram = gram_matrix(G)
        if self._host_reads:
            check_finite(gram, tasks)
        weights = WEIGHTS[config.gradients](gram, generator, **config.gradient_options)
        return combine(weights, G)

    def _by_task(self, number: int, rows: Rows, length: int | None) -> Gradients:
        """Each task's loss, its gradient of the shared parameters, and which of these it used."""
        G = self.shared.empty(len(rows))
        jobs = []
        for flat, (task, part) in zip(G, rows.items(), strict=True):
            jobs.append(partial(self._of_task, number, {task: part}, length, flat))
        losses = {}
        uses = []
        for own_losses, used in side_by_side(jobs):  # rows and G outlive the graph
            losses |= own_losses
            uses.append(used)
        return losses, G, torch.stack(uses)

    def _of_task(self, number: int, rows: Rows, length: int | None, flat: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """A task's loss, and which shared parameters it used; their gradient goes into flat (P,)."""
        losses = self._backward(number, rows, length)
        return losses, self.shared.take(flat)

    def _projected(
        self, g: Tensor, used: Tensor, remembered: list[str], M: Tensor, memory_used: Tensor
    ) -> tuple[Tensor, Tensor]:
        """GEM, A-GEM: the gradient g (P,) under the constraints M (K, P), and the parameters that either used, bool.

        remembered: the tasks of M. Notes the projection, for `update` to count what the step breaks.
        """
        config = self.config
        try:
            g, v = PROJECTIONS[config.gradients](g, M, **config.gradient_options)
        except GradientError:
            check_finite(gram_matrix(g[None], M), ["this step", *(f"the memory of {task}" for task in remembered)])
            raise
        is_active = v.cpu() != 0
        self.projection = _Projection(M, is_active=bool(is_active.any()))
        return g, used | memory_used[is_active].any(0)

    def _remembered(self, number: int, rows: Rows) -> Rows:
        """Rows of the memories that constrain a step: of every task but the one that trains alone.

        In a unified step every task's memory is a constraint. Empty where there is no memory yet.
        """
        remembered = {}
        for task in self.memory.tasks:
            if set(rows) != {task}:
                remembered[task] = self.memory.sample(task, self.config.memory_batch, number)
        return remembered

    def _extra_gradients(self, number: int, rows: Rows) -> tuple[Tensor, Tensor]:
        """The tasks' gradients (T, P) and uses, as `_by_task` gives them, without a trace in `.grad`."""
        _, G, uses = self._compute("extra", self._by_task, number, rows)
        for parameter in self.trained:
            parameter.grad = None
        return G, uses

    def _is_recorded(self, number: int) -> bool:
        every = self.config.cosine_every
        return bool(self.shared.spans) and every is not None and number % every == 0

    def _record(self, number: int, G: Tensor, tasks: list[str]) -> None:
        """Record the cosines of the tasks' gradients G (T, P)."""
        for row in layer_cosines(G, by_level(self.shared.spans), tasks):
            self.cosines.append({"step": number, **row})

    def _record_sum(self, number: int, rows: Rows) -> None:
        """Record the cosines of a step that sums its losses: extra passes, which leave the step's dropout as it is."""
        with torch.random.fork_rng([self.model.device] if self.is_on_gpu else []):
            G, _ = self._extra_gradients(number, rows)
        self._record(number, G, list(rows))

    @torch.no_grad()
    def update(self, rows: Rows) -> None:
        """The part of a step after the gradient; the examples go into the episodic memory."""
        if self.config.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.trained, self.config.max_grad_norm)
        projection, self.projection = self.projection, None
        before = None if projection is None else parameters_to_vector(self.shared.parameters.values())
        self.optimizer.step()
        if projection is not None:
            self._count_broken(parameters_to_vector(self.shared.parameters.values()) - before, projection)
        self.optimizer.zero_grad()
        self.model.heads.apply_offsets()
        self.schedule.step()
        if self.average is not None:
            self.average.update_parameters(self.current)
        self.remember(rows)

    def _count_broken(self, moved: Tensor, projection: _Projection) -> None:
        """Count the memories whose loss a step of the shared weights (P,) raises, to first order.

        GEM bounds the gradient, not Adam's step.
        """
        M = projection.M
        broken = broken_constraints(moved, M)
        self.constraint_counts.update(steps=1, projected=int(projection.is_active), checked=len(M), broken=broken)

    def remember(self, rows: Rows) -> None:
        """Put a step's examples into the episodic memory, where there is one."""
        if self.config.gradients in PROJECTIONS:
            for task, part in rows.items():
                self.memory.add(task, part)

    def finish(self) -> None:
        """After the last step: the moving average becomes the model's weights, where there is one.

        The offsets of upstream heads go, zeros by now, which would not move with the model to another device.
        """
        self.swap_average()
        self.model.heads.offsets.clear()

    def swap_average(self) -> None:
        """Exchange the weights and their moving average, where there is one."""
        if self.average is not None:
            for weight, mean in zip(self.current, self.average.module, strict=True):
                weight.data, mean.data = mean.data, weight.data

    def state_dict(self) -> dict[str, Any]:
        """The state that later steps depend on, without the model and the episodic memory; and the records so far."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "loss_weights": self.loss_weights.state_dict(),
            "cosines": self.cosines,
            "constraints": dict(self.constraint_counts),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.loss_weights.load_state_dict(state["loss_weights"])
        self.cosines = state["cosines"]
        self.constraint_counts = Counter(state["constraints"])


def _are_finite(losses: Losses | dict[str, Tensor]) -> bool:
    """Whether every loss is finite; waits for a GPU."""
    return all(math.isfinite(loss) for loss in losses.values())


def _twice(rows: ndarray | Tensor) -> ndarray | Tensor:
    """The rows, and again the rows."""
    return rows.repeat(2) if isinstance(rows, Tensor) else np.tile(rows, 2)
