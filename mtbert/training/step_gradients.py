"""The gradient of one step: of the sum of losses, or of every task, with their conflicts resolved."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

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
from mtbert.multitask import MultitaskBert
from mtbert.parallel import ALONE, Processes
from mtbert.sharing import add_pull
from mtbert.training.batches import Losses, Rows
from mtbert.training.task_data import Tables
from mtbert.training.task_losses import TaskLosses


class StepGradients:
    """Leaves the gradient of every step in the parameters' `.grad`, computed as the configuration says.

    Parameters that a step does not use keep no gradient, so that the optimizer leaves them alone. Where several
    processes train together, all get the sum of their gradients. P: the number of weights that tasks share.
    """

    def __init__(self, model: MultitaskBert, tables: Tables, total_steps: int, processes: Processes = ALONE) -> None:
        config = model.run_config
        self.model = model
        self.config = config
        self.processes = processes
        self.losses = TaskLosses(model, tables, total_steps, processes)
        self.memory = EpisodicMemory(config.memory_size, config.memory, config.seed)
        self.M: Tensor | None = None  # (K, P), the memories' gradients that constrain this step
        self.is_projected = False  # whether they changed its gradient
        self.constraints: Counter[str] = Counter()  # steps, projected ones, constraints checked, broken ones
        self.cosines: list[dict] = []  # recorded: step, layer, first, second, cosine

        self.shared = FlatGradients(model.shared_parameters())
        self.is_sum = config.gradients == "sum" or not self.shared.spans
        others = trained_parameters(model)
        if not self.is_sum:
            shared = set(self.shared.parameters.values())
            others = {name: p for name, p in others.items() if p not in shared}
        self.others = FlatGradients(others)

    def compute(self, step: int, rows: Rows) -> Losses:
        """Leave the gradient of these rows in `.grad`; returns every task's mean loss, before weighting."""
        config = self.config
        every = config.cosine_every
        is_recorded = bool(self.shared.spans) and every is not None and step % every == 0
        if self.is_sum:
            if is_recorded:
                self._record_extra_passes(step, rows)
            losses = self.losses.backward(step, rows)
        else:
            losses = self._compute_by_task(step, rows, is_recorded)
        if self.processes.count > 1:
            flat, used = self.others.take()
            self.others.put(self.processes.sum(flat), used)
        if config.soft_sharing != "none":
            add_pull(self.model.individual_copies(), config.soft_sharing, config.soft_strength)
        values = {task: loss.item() for task, loss in losses.items()}
        self.losses.note(values)
        return values

    def _compute_by_task(self, step: int, rows: Rows, is_recorded: bool) -> dict[str, Tensor]:
        """A gradient per task, of the parameters that tasks share; their own parameters keep their own gradient."""
        method = self.config.gradients
        memories = self._memory_gradients(step, rows) if method in PROJECTIONS else None
        losses, G, uses = self._gradients_by_task(step, rows)
        if not all(torch.isfinite(loss) for loss in losses.values()):
            return losses  # nothing can be projected; the caller stops
        if is_recorded:
            self._record(step, G, list(rows))
        used = uses.any(0)
        if method in WEIGHTS:
            g = self._combined(step, G)
        else:
            g = G.sum(0) if len(G) > 1 else G[0]
            if memories is not None:
                g, used = self._projected(g, used, *memories)
        self.shared.put(g, used)
        return losses

    def _combined(self, step: int, G: Tensor) -> Tensor:
        """The tasks' gradients G (T, P), weighted by the method -> (P,)."""
        config = self.config
        generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
        weights = WEIGHTS[config.gradients](gram_matrix(G), generator, **config.gradient_options)
        return combine(weights.numpy(), G)

    def _projected(self, g: Tensor, used: Tensor, M: Tensor, memory_used: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient g (P,) under the constraints M (K, P), and the parameters that either of them used, bool."""
        config = self.config
        g, v = PROJECTIONS[config.gradients](g, M, config.gem_margin, **config.gradient_options)
        is_active = v != 0
        self.M = M
        self.is_projected = bool(is_active.any())
        return g, used | memory_used[is_active].any(0)

    def _memory_gradients(self, step: int, rows: Rows) -> tuple[Tensor, Tensor] | None:
        """Gradients on the memories (K, P) and which parameters each used: of every task but the one that trains alone.

        In a unified step every task's memory is a constraint. None where there is no memory yet.
        """
        remembered = {}
        for task in self.memory.tasks:
            if set(rows) != {task}:
                remembered[task] = self.memory.sample(task, self.config.memory_batch, step)
        return self._extra_gradients(step, remembered) if remembered else None

    def _gradients_by_task(self, step: int, rows: Rows) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Each task's loss, its gradient of the shared parameters (T, P), and which of these it used, bool."""
        losses = {}
        uses = []
        G = self.shared.empty(len(rows))
        for flat, (task, part) in zip(G, rows.items(), strict=True):
            losses |= self.losses.backward(step, {task: part})
            _, used = self.shared.take(flat)
            uses.append(used)
        return losses, self.processes.sum(G), torch.stack(uses)

    def _extra_gradients(self, step: int, rows: Rows) -> tuple[Tensor, Tensor]:
        """The gradients and uses of `_gradients_by_task` beside those of the step: no `.grad` is left."""
        _, G, uses = self._gradients_by_task(step, rows)
        for parameter in self.others.parameters.values():
            parameter.grad = None
        return G, uses

    def _record(self, step: int, G: Tensor, tasks: list[str]) -> None:
        """Record the cosines of the tasks' gradients G (T, P)."""
        for row in layer_cosines(G, _by_level(self.shared.spans), tasks):
            self.cosines.append({"step": step, **row})

    def _record_extra_passes(self, step: int, rows: Rows) -> None:
        """Record the cosines from passes of their own, whose draws of dropout the step does not see."""
        device = self.model.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            G, _ = self._extra_gradients(step, rows)
        self._record(step, G, list(rows))

    @contextmanager
    def checked_constraints(self) -> Iterator[None]:
        """Around the update of the weights: count the memories whose loss it raises, to first order.

        GEM bounds the gradient, not Adam's step.
        """
        if self.M is None:
            yield
            return
        before = self.shared.values()
        yield
        moved = self.shared.values().sub_(before)
        broken = broken_constraints(moved, self.M)
        self.constraints.update(steps=1, projected=int(self.is_projected), checked=len(self.M), broken=broken)
        self.M = None

    def remember(self, rows: Rows) -> None:
        """Put a step's examples into the episodic memory."""
        if self.config.gradients in PROJECTIONS:
            for task, part in rows.items():
                self.memory.add(task, part)

    def state_dict(self) -> dict[str, Any]:
        """What later steps depend on and what was recorded; the memory of examples is made again."""
        return {
            "loss_weights": self.losses.state_dict(),
            "cosines": self.cosines,
            "constraints": dict(self.constraints),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        self.losses.load_state_dict(state["loss_weights"])
        self.cosines = state["cosines"]
        self.constraints = Counter(state["constraints"])


def trained_parameters(model: MultitaskBert) -> dict[str, Tensor]:
    """The parameters that are trained by name, and the offsets of slow upstream heads."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return parameters | model.heads.offsets


def _by_level(spans: dict[str, slice]) -> dict[str, list[slice]]:
    """Spans of parameters -> spans of levels: embeddings, layer 1, ..., pooler, heads."""
    levels = {}
    for name, span in spans.items():
        level, part, number = name.split(".")[:3]  # encoder.layers.0.1.query.weight is of layer 1
        if part == "layers":
            level = f"layer {int(number) + 1}"
        elif level == "encoder":
            level = "pooler" if part == "poolers" else part
        levels.setdefault(level, []).append(span)
    return levels
