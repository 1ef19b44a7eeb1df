"""One training step: the gradient, its norm bounded, the update, the memory of examples.

Sources of what is optional: layer-wise learning rates, Howard and Ruder 2018; moving average of the weights, Polyak and
Juditsky 1992, by torch's `swa_utils`.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mtbert.gradients import broken_constraints
from mtbert.multitask import MultitaskBert
from mtbert.optim import AdamW, make_schedule
from mtbert.rows import TaskRows
from mtbert.updates import LossWeights, Updates


class Trainer:
    """A model with the optimizer, the schedule, the updates and the averaged weights of its configuration.

    tables: the rows of every training task. total_steps: over which the schedule runs.
    """

    def __init__(self, model: MultitaskBert, tables: dict[str, TaskRows], total_steps: int) -> None:
        config = model.run_config
        self.model, self.max_grad_norm = model, config.max_grad_norm
        self.offsets = model.heads.add_offsets()
        self.optimizer = AdamW(parameter_groups(model), lr=config.learning_rate)
        self.trained = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self.schedule = make_schedule(self.optimizer, config.schedule, total_steps, config.warmup)
        self.updates = Updates(model, tables, LossWeights(), [])
        self.constraints: dict[str, int] = {}  # of GEM and A-GEM: steps, of them projected; constraints checked, broken
        self.weights = nn.ParameterList(p for p in model.parameters() if p.requires_grad)
        self.average = None
        if config.ema is not None:
            self.average = AveragedModel(self.weights, multi_avg_fn=get_ema_multi_avg_fn(config.ema))

    def step(self, number: int, rows: dict[str, np.ndarray]) -> dict[str, float]:
        """Train on these rows; returns every task's mean loss.

        Where one is not finite, the weights stay as they are and the caller has to stop. number: counted from 1; the
        draws of a step depend on it.
        """
        self.model.train()
        losses = self.updates.gradients(number, rows)
        if all(math.isfinite(loss) for loss in losses.values()):
            self.update(rows)
        return losses

    @torch.no_grad()
    def update(self, rows: dict[str, np.ndarray]) -> None:
        """The part of a step behind the gradient."""
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

    def use_average(self) -> None:
        """Put the averaged weights into the model for good, where there are any."""
        self._swap()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """The averaged weights stand in the model meanwhile, where there are any."""
        self._swap()
        yield
        self._swap()

    def _swap(self) -> None:
        if self.average is not None:
            for weight, mean in zip(self.weights, self.average.module, strict=True):
                weight.data, mean.data = mean.data, weight.data


def parameter_groups(model: MultitaskBert) -> list[dict]:
    """The trained parameters by learning rate and weight decay, for an optimizer.

    A layer's learning rate is `layer_decay` times that of the layer above it; heads, adapters, the pooler and the top
    layer have all of it. Offsets of slow upstream heads have `upstream_rate` of it.
    """
    config, L = model.run_config, model.encoder.config.num_hidden_layers
    groups: dict[tuple[float, float], list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            part = name.split(".")  # encoder, layers, depth, ... or encoder, embeddings, ...
            below = L - 1 - int(part[2]) if part[:2] == ["encoder", "layers"] else L * (part[1] == "embeddings")
            decays = config.weight_decay_on == "all" or parameter.ndim > 1
            key = config.learning_rate * config.layer_decay**below, config.weight_decay * decays
            groups.setdefault(key, []).append(parameter)
    if model.heads.offsets:  # a layer may have the same learning rate
        groups.setdefault((config.learning_rate * config.upstream_rate, 0.0), []).extend(model.heads.offsets.values())
    return [{"params": params, "lr": lr, "weight_decay": decay} for (lr, decay), params in groups.items()]
