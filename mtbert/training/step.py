"""One training step: the gradient, the update of the weights, and their moving average.

Sources of what is optional: layer-wise learning rates, Howard and Ruder 2018; moving average of the weights, Polyak and
Juditsky 1992, by torch's `swa_utils`.
"""

import math
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from mtbert.multitask import MultitaskBert
from mtbert.optim import AdamW, make_schedule
from mtbert.parallel import ALONE, Processes
from mtbert.training.batches import Losses, Rows
from mtbert.training.step_gradients import StepGradients, trained_parameters
from mtbert.training.task_data import Tables

UPSTREAM_RATE = 0.1  # factor of the learning rate of a slow upstream head


class Trainer:
    """A model with the optimizer, the schedule, the gradients and the averaged weights of its configuration.

    tables: the rows of every training task. total_steps: over which the schedule runs. processes: those that train
    this model together.
    """

    def __init__(self, model: MultitaskBert, tables: Tables, total_steps: int, processes: Processes = ALONE) -> None:
        config = model.run_config
        self.model = model
        self.config = config
        self.processes = processes
        self.offsets = model.heads.add_offsets()
        self.step_gradients = StepGradients(model, tables, total_steps, processes)
        self.optimizer = AdamW(parameter_groups(model), lr=config.learning_rate)
        by_group = [group["params"] for group in self.optimizer.param_groups]
        self.trained = list(chain(*by_group))
        self.schedule = make_schedule(self.optimizer, config.schedule, total_steps, config.warmup)
        self.weights = nn.ParameterList(p for p in model.parameters() if p.requires_grad)
        self.average = None
        if config.ema is not None:
            multi_avg_fn = get_ema_multi_avg_fn(config.ema)
            self.average = AveragedModel(self.weights, multi_avg_fn=multi_avg_fn)

    @property
    def is_sum(self) -> bool:
        """Whether a step takes the gradient of all tasks at once, and not one by one."""
        return self.step_gradients.is_sum

    @property
    def cosines(self) -> list[dict]:
        """The recorded cosines between tasks' gradients: step, layer, first, second, cosine."""
        return self.step_gradients.cosines

    @property
    def constraints(self) -> dict[str, int]:
        """Of GEM and A-GEM: the numbers of constrained steps, of projected ones, of constraints checked and broken."""
        return self.step_gradients.constraints

    def remember(self, rows: Rows) -> None:
        """Put a step's examples into the episodic memory, as the step did."""
        self.step_gradients.remember(rows)

    def step(self, number: int, rows: Rows) -> Losses:
        """Train on these rows; returns every task's mean loss.

        Where one is not finite, the weights stay as they are and the caller has to stop. number: counted from 1; the
        draws of a step depend on it.
        """
        losses = self.gradients(number, rows)
        if all(math.isfinite(loss) for loss in losses.values()):
            self.update(rows)
        return losses

    def gradients(self, number: int, rows: Rows) -> Losses:
        """The part of a step before the update; arguments and result as of `step`."""
        self.model.train()
        self.processes.seed_step(self.config.seed, number)
        return self.step_gradients.compute(number, rows)

    @torch.no_grad()
    def update(self, rows: Rows) -> None:
        """The part of a step after the gradient."""
        if self.config.max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.trained, self.config.max_grad_norm)
        with self.step_gradients.checked_constraints():
            self.optimizer.step()
        self.optimizer.zero_grad()
        for name, offset in self.offsets.items():
            self.model.heads.get_parameter(name).add_(offset)
            offset.zero_()
        self.schedule.step()
        if self.average is not None:
            self.average.update_parameters(self.weights)
        self.remember(rows)

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
            **self.step_gradients.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.step_gradients.load_state_dict(state)


def parameter_groups(model: MultitaskBert) -> list[dict]:
    """The trained parameters by learning rate and weight decay, for an optimizer.

    A layer's learning rate is `layer_decay` times that of the layer above it; heads, adapters, the pooler and the top
    layer have all of it. Offsets of slow upstream heads have UPSTREAM_RATE of it.
    """
    config = model.run_config
    layers = model.encoder.config.num_hidden_layers
    groups = {}
    for name, parameter in trained_parameters(model).items():
        if name in model.heads.offsets:
            rate = config.learning_rate * UPSTREAM_RATE
            decay = 0.0
        else:
            rate = config.learning_rate * config.layer_decay ** _layers_above(name, layers)
            decay = config.weight_decay
        group = groups.setdefault((rate, decay), {"params": [], "lr": rate, "weight_decay": decay})
        group["params"].append(parameter)
    return list(groups.values())


def _layers_above(name: str, layers: int) -> int:
    """How many of an encoder's layers lie above a parameter; 0 above heads, adapters and the pooler."""
    parts = name.split(".")
    if parts[:2] == ["encoder", "layers"]:
        return layers - 1 - int(parts[2])
    if parts[:2] == ["encoder", "embeddings"]:
        return layers
    return 0
