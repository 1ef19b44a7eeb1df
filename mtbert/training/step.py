"""One training step: losses weighted, batches accumulated, conflicts between tasks resolved, the update.

Sources of what is optional: layer-wise learning rates, Howard and Ruder 2018; moving average of the weights, Polyak and
Juditsky 1992, by torch's `swa_utils`.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mtbert.config import RunConfig
from mtbert.data import TASKS
from mtbert.gradients import (
    PROJECTIONS,
    WEIGHTS,
    EpisodicMemory,
    FlatGradients,
    broken_constraints,
    combine,
    gram_matrix,
    layer_cosines,
)
from mtbert.multitask import MultitaskBert, divergence
from mtbert.optim import AdamW, make_schedule
from mtbert.parallel import ALONE, Processes
from mtbert.sharing import add_pull
from mtbert.training.distillation import distillation_loss, teacher_weight
from mtbert.training.task_data import TaskRows, task_logits

UPSTREAM_RATE = 0.1  # factor of the learning rate of a slow upstream head
PASS_TOKENS = 4096  # of a training pass on a CPU, counted as `step_parts` does
PART_TOKENS = 2048  # of the parts of a step that has more: large blocks leave holes in the heap
HEAVY = 128  # tokens of a text whose attention weights count as much as all else that a pass keeps of it


def batch_shapes(rows: dict[str, np.ndarray], lengths: dict[str, np.ndarray]) -> dict[str, tuple[int, int]]:
    """Task -> (examples, tokens of the longest) of a step's rows; lengths: task -> tokens of all its examples."""
    return {task: (len(part), int(lengths[task][part].max())) for task, part in rows.items()}


def step_parts(config: RunConfig, shapes: dict[str, tuple[int, int]], cuda: bool) -> int:
    """Into how many parts the batches of a step are cut: `accumulation`, on a CPU more where texts are long.

    shapes: as of `batch_shapes`. A token of a text of T tokens counts as 1 + T / HEAVY, as its
    attention weights grow with T. With MiniLM a part keeps at most 0.6 GiB.
    """
    times = 2 if config.r_drop else 1
    tokens = 0.0
    for task, (B, T) in shapes.items():
        sequences = times * B * config.encodings(task)
        tokens += sequences * T * (1 + T / HEAVY)
    if cuda or tokens <= PASS_TOKENS * config.accumulation:
        return config.accumulation
    return max(config.accumulation, math.ceil(tokens / PART_TOKENS))


@dataclass
class LossWeights:
    """The weights of the tasks' losses in a unified step.

    fixed: as configured. uncertainty, with a learned s_t = log sigma_t^2 (Kendall, Gal and Cipolla 2018): of a
    regression (STS, squared error) L_t / (2 sigma_t^2) + log sigma_t = exp(-s_t) L_t / 2 + s_t / 2, of a classification
    (SST, CFIMDB, Quora, cross-entropy) L_t / sigma_t^2 + log sigma_t = exp(-s_t) L_t + s_t / 2.
    loss_ratio: (L_t / L_t at the first step)^(1/2), from the step before, scaled to a mean of 1 (Liu et al. 2019).
    """

    first: dict[str, float] = field(default_factory=dict)
    last: dict[str, float] = field(default_factory=dict)

    def weighted(self, task: str, loss: Tensor, config: RunConfig, model: MultitaskBert) -> Tensor:
        """The loss of a task as it enters the sum."""
        if config.weighting == "uncertainty":
            s = model.log_variances[task]
            factor = 0.5 if TASKS[task].is_number else 1.0
            return factor * torch.exp(-s) * loss + s / 2
        if config.weighting == "loss_ratio" and self.last:
            ratios = {t: (self.last[t] / max(self.first[t], 1e-12)) ** 0.5 for t in config.tasks}
            return loss * (ratios[task] * len(ratios) / max(sum(ratios.values()), 1e-12))
        return loss * config.task_weights[config.tasks.index(task)] if config.task_weights else loss

    def note(self, losses: dict[str, float]) -> None:
        """Remember a step's losses."""
        if not self.first:
            self.first.update(losses)
        self.last.update(losses)


class Updates:
    """Computes the gradient of every step as the configuration says and leaves it in the parameters' `.grad`.

    Parameters that a step does not use keep no gradient, so that the optimizer leaves them alone. Of several processes
    each computes its part of every batch, and all get the sum.
    """

    def __init__(self, model: MultitaskBert, tables: dict[str, TaskRows], processes: Processes = ALONE) -> None:
        self.model = model
        self.tables = tables
        self.config = model.run_config
        self.processes = processes
        self.weights = LossWeights()
        self.teacher_weight = 0.0  # of this step
        self.cosines: list[dict] = []  # recorded: step, layer, first, second, cosine
        self.constraints: Tensor | None = None  # (K, P), the memories' gradients in this step
        self.projected = False  # whether a constraint changed this step's gradient
        self.shared = FlatGradients(model.shared_parameters())
        self.is_sum = self.config.gradients == "sum" or not self.shared.spans
        flat = set() if self.is_sum else {id(parameter) for parameter in self.shared.parameters.values()}
        others = [p for p in trained_parameters(model).values() if id(p) not in flat]
        self.others = FlatGradients({str(i): parameter for i, parameter in enumerate(others)})
        self.memory = EpisodicMemory(self.config.memory_size, self.config.memory, self.config.seed)

    def remember(self, rows: dict[str, np.ndarray]) -> None:
        """Put a step's examples into the episodic memory."""
        if self.config.gradients in PROJECTIONS:
            for task, part in rows.items():
                self.memory.add(task, part)

    def gradients(self, step: int, rows: dict[str, np.ndarray]) -> dict[str, float]:
        """Leave the gradient of these rows in `.grad`; returns every task's mean loss, before weighting."""
        config = self.config
        record = config.cosine_every is not None and step % config.cosine_every == 0 and bool(self.shared.spans)
        if self.is_sum:
            if record:
                self._record_extra_passes(step, rows)
            losses = self._backward(rows)
        else:
            losses = self._task_by_task(step, rows, record)
        if self.processes.count > 1:
            flat, used = self.others.take()
            self.others.put(self.processes.sum(flat), used)
        if config.soft_sharing != "none":
            add_pull(self.model.individual_copies(), config.soft_sharing, config.soft_strength)
        losses = {task: loss.item() for task, loss in losses.items()}
        self.weights.note(losses)
        return losses

    def _backward(self, rows: dict[str, np.ndarray]) -> dict[str, Tensor]:
        """Add the gradient of the weighted sum of losses to `.grad`, in as many passes as `step_parts` says.

        Of several processes, the gradient of this one's part, and the losses of all.
        """
        totals: dict[str, Tensor] = {}
        own, shares = {}, {}
        for task, batch in rows.items():
            own[task], shares[task] = self.processes.part(batch)
        for part in self._parts(own):
            weighted = []
            for task, loss in self._losses(part).items():
                share = len(part[task]) / len(own[task]) * shares[task]
                totals[task] = totals.get(task, 0) + loss.detach() * share
                weighted.append(self.weights.weighted(task, loss, self.config, self.model) * share)
            sum(weighted[1:], weighted[0]).backward()
        return {task: self.processes.sum(loss) for task, loss in totals.items()}

    def _parts(self, rows: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
        """The rows of each pass, as many as `step_parts` says; a task without rows for a pass is left out of it."""
        shapes = batch_shapes(rows, {task: self.tables[task].tokens.lengths for task in rows})
        count = step_parts(self.config, shapes, self.model.device.type == "cuda")
        by_task = {task: np.array_split(batch, count) for task, batch in rows.items()}
        for i in range(count):
            part = {task: parts[i] for task, parts in by_task.items() if len(parts[i])}
            if part:
                yield part

    def _losses(self, rows: dict[str, np.ndarray]) -> dict[str, Tensor]:
        """Each task's mean loss of some rows in one pass; with R-Drop every row passes under two dropout masks."""
        r_drop = self.config.r_drop
        passed = {task: np.tile(part, 2) for task, part in rows.items()} if r_drop else rows
        losses = {}
        for task, logits in task_logits(self.model, self.tables, passed).items():
            losses[task] = self._loss(task, logits, passed[task])
            if r_drop:
                losses[task] = losses[task] + r_drop * divergence(TASKS[task], *logits.chunk(2))
        return losses

    def _loss(self, task: str, logits: Tensor, rows: np.ndarray) -> Tensor:
        """The mean loss of some rows of a task, against their labels and teachers."""
        table = self.tables[task]
        teachers = None if table.teachers is None else table.teachers[rows]
        return distillation_loss(
            TASKS[task], logits, table.labels[rows], teachers, self.teacher_weight, self.config.temperature
        )

    def _task_by_task(self, step: int, rows: dict[str, np.ndarray], record: bool) -> dict[str, Tensor]:
        """A gradient per task, of the parameters that tasks share; their own parameters keep their own gradient."""
        config = self.config
        memories = self._memory_gradients(step, rows) if config.gradients in PROJECTIONS else None
        losses, G, uses = self._one_by_one(rows)
        if not all(torch.isfinite(loss) for loss in losses.values()):
            return losses  # nothing can be projected; the caller stops
        used = uses.any(0)
        if record:
            self._record(step, G, list(rows))
        if config.gradients in WEIGHTS:
            generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
            weights = WEIGHTS[config.gradients](gram_matrix(G), generator, **config.gradient_options)
            self.shared.put(combine(weights.numpy(), G), used)
            return losses
        g = G.sum(0) if len(G) > 1 else G[0]
        if memories is not None:
            M, memory_used = memories
            g, v = PROJECTIONS[config.gradients](g, M, config.gem_margin, **config.gradient_options)
            active = v != 0
            used = used | memory_used[active].any(0)
            self.constraints = M
            self.projected = bool(active.any())
        self.shared.put(g, used)
        return losses

    def _memory_gradients(self, step: int, rows: dict[str, np.ndarray]) -> tuple[Tensor, Tensor] | None:
        """Gradients on the memories (K, P) and which parameters each used: of every task but the one that trains alone.

        In a unified step every task's memory is a constraint. None where there is no memory yet.
        """
        tasks = [task for task in self.memory.tasks if set(rows) != {task}]
        if not tasks:
            return None
        return self._extra_gradients({task: self.memory.sample(task, self.config.memory_batch, step) for task in tasks})

    def _record(self, step: int, G: Tensor, tasks: list[str]) -> None:
        """Record the cosines of the tasks' gradients G (T, P)."""
        self.cosines += [{"step": step, **row} for row in layer_cosines(G, _by_level(self.shared.spans), tasks)]

    def _record_extra_passes(self, step: int, rows: dict[str, np.ndarray]) -> None:
        """Record the cosines from passes of their own, whose draws of dropout the step does not see."""
        device = self.model.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            G, _ = self._extra_gradients(rows)
        self._record(step, G, list(rows))

    def _extra_gradients(self, rows: dict[str, np.ndarray]) -> tuple[Tensor, Tensor]:
        """G and uses of `_one_by_one` for examples that the step does not train on: no `.grad` is left."""
        _, G, uses = self._one_by_one(rows)
        for parameter in self.others.parameters.values():
            parameter.grad = None
        return G, uses

    def state_dict(self) -> dict[str, Any]:
        """The losses that later weights depend on, and the cosines so far; the memory of examples is made again."""
        return {"loss_weights": vars(self.weights), "cosines": self.cosines}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        self.weights = LossWeights(**state["loss_weights"])
        self.cosines = state["cosines"]

    def _one_by_one(self, rows: dict[str, np.ndarray]) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Each task's loss, its gradient of the shared parameters (T, P), and which of these it used, bool."""
        losses = {}
        uses = []
        flats = self.shared.empty(len(rows))
        for flat, (task, part) in zip(flats, rows.items(), strict=True):
            losses |= self._backward({task: part})
            uses.append(self.shared.take(flat)[1])
        return losses, self.processes.sum(flats), torch.stack(uses)


def _by_level(spans: dict[str, slice]) -> dict[str, list[slice]]:
    """Spans of parameters -> spans of levels: embeddings, layer 1, ..., pooler, heads."""
    levels: dict[str, list[slice]] = {}
    for name, span in spans.items():
        module, part, number = name.split(".")[:3]  # encoder.layers.0.1.query.weight is of layer 1
        if module == "encoder":
            module = {"layers": f"layer {int(number) + 1}", "poolers": "pooler"}.get(part, part)
        levels.setdefault(module, []).append(span)
    return levels


class Trainer:
    """A model with the optimizer, the schedule, the updates and the averaged weights of its configuration.

    tables: the rows of every training task. total_steps: over which the schedule runs. processes: those that train
    this model together.
    """

    def __init__(
        self, model: MultitaskBert, tables: dict[str, TaskRows], total_steps: int, processes: Processes = ALONE
    ) -> None:
        config = model.run_config
        self.model = model
        self.max_grad_norm = config.max_grad_norm
        self.total_steps = total_steps
        self.offsets = model.heads.add_offsets()
        self.optimizer = AdamW(parameter_groups(model), lr=config.learning_rate)
        self.trained = list(chain(*(group["params"] for group in self.optimizer.param_groups)))
        self.schedule = make_schedule(self.optimizer, config.schedule, total_steps, config.warmup)
        self.updates = Updates(model, tables, processes)
        self.constraints: dict[str, int] = {}  # of GEM and A-GEM: steps, projected ones, constraints checked, broken
        self.weights = nn.ParameterList(p for p in model.parameters() if p.requires_grad)
        self.average = None
        if config.ema is not None:
            self.average = AveragedModel(self.weights, multi_avg_fn=get_ema_multi_avg_fn(config.ema))

    @property
    def is_sum(self) -> bool:
        """Whether a step takes the gradient of all tasks at once, and not one by one."""
        return self.updates.is_sum

    @property
    def cosines(self) -> list[dict]:
        """The recorded cosines between tasks' gradients: step, layer, first, second, cosine."""
        return self.updates.cosines

    def remember(self, rows: dict[str, np.ndarray]) -> None:
        """Put a step's examples into the episodic memory, as the step did."""
        self.updates.remember(rows)

    def step(self, number: int, rows: dict[str, np.ndarray]) -> dict[str, float]:
        """Train on these rows; returns every task's mean loss.

        Where one is not finite, the weights stay as they are and the caller has to stop. number: counted from 1; the
        draws of a step depend on it.
        """
        losses = self.gradients(number, rows)
        if all(math.isfinite(loss) for loss in losses.values()):
            self.update(rows)
        return losses

    def gradients(self, number: int, rows: dict[str, np.ndarray]) -> dict[str, float]:
        """The part of a step before the update; arguments and result as of `step`."""
        self.model.train()
        self.updates.processes.seed_step(self.model.run_config.seed, number)
        self.updates.teacher_weight = teacher_weight(self.model.run_config, number, self.total_steps)
        return self.updates.gradients(number, rows)

    @torch.no_grad()
    def update(self, rows: dict[str, np.ndarray]) -> None:
        """The part of a step after the gradient."""
        if self.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.trained, self.max_grad_norm)
        with self._checked_constraints():
            self.optimizer.step()
        self.optimizer.zero_grad()
        for name, offset in self.offsets.items():
            self.model.heads.get_parameter(name).add_(offset)
            offset.zero_()
        self.schedule.step()
        if self.average is not None:
            self.average.update_parameters(self.weights)
        self.updates.remember(rows)

    @contextmanager
    def _checked_constraints(self) -> Iterator[None]:
        """Count the memories whose loss the update raises, to first order: GEM bounds the gradient, not Adam's step."""
        M, shared = self.updates.constraints, self.updates.shared
        before = None if M is None else shared.values()
        yield
        if M is not None:
            broken = broken_constraints(shared.values().sub_(before), M)
            counts = dict(steps=1, projected=int(self.updates.projected), checked=len(M), broken=broken)
            for name, count in counts.items():
                self.constraints[name] = self.constraints.get(name, 0) + count
            self.updates.constraints = None

    def swap_average(self) -> None:
        """Exchange the weights and their moving average, where there is one."""
        if self.average is not None:
            for weight, mean in zip(self.weights, self.average.module, strict=True):
                weight.data, mean.data = mean.data, weight.data

    def state_dict(self) -> dict[str, Any]:
        """All that a later step depends on beside the model and the episodic memory, and what was recorded so far."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "constraints": self.constraints,
            **self.updates.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.updates.load_state_dict(state)
        self.constraints = state["constraints"]


def trained_parameters(model: MultitaskBert) -> dict[str, Tensor]:
    """The parameters that are trained by name, and the offsets of slow upstream heads."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad} | model.heads.offsets


def _layers_above(name: str, layers: int) -> int:
    """How many of an encoder's layers lie above a parameter; 0 above heads, adapters and the pooler."""
    parts = name.split(".")
    if parts[:2] == ["encoder", "layers"]:
        return layers - 1 - int(parts[2])
    return layers if parts[:2] == ["encoder", "embeddings"] else 0


def parameter_groups(model: MultitaskBert) -> list[dict]:
    """The trained parameters by learning rate and weight decay, for an optimizer.

    A layer's learning rate is `layer_decay` times that of the layer above it; heads, adapters, the pooler and the top
    layer have all of it. Offsets of slow upstream heads have UPSTREAM_RATE of it.
    """
    config = model.run_config
    layers = model.encoder.config.num_hidden_layers
    groups: dict[tuple[float, float], list[Tensor]] = {}
    for name, parameter in trained_parameters(model).items():
        if name in model.heads.offsets:
            key = config.learning_rate * UPSTREAM_RATE, 0.0
        else:
            rate = config.learning_rate * config.layer_decay ** _layers_above(name, layers)
            key = rate, config.weight_decay
        groups.setdefault(key, []).append(parameter)
    return [{"params": params, "lr": lr, "weight_decay": decay} for (lr, decay), params in groups.items()]
