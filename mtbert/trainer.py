"""One training step: the gradient, its norm bounded, the update, the memory of examples."""

import math

import numpy as np
import torch

from mtbert.multitask import MultitaskBert
from mtbert.optim import AdamW, make_schedule
from mtbert.rows import TaskRows
from mtbert.updates import LossWeights, Updates


class Trainer:
    """A model with the optimizer, the schedule and the updates of its configuration.

    tables: the rows of every training task. total_steps: over which the schedule runs.
    """

    def __init__(self, model: MultitaskBert, tables: dict[str, TaskRows], total_steps: int) -> None:
        config = model.run_config
        self.model, self.max_grad_norm = model, config.max_grad_norm
        self.trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = AdamW(self.trained, lr=config.learning_rate, weight_decay=config.weight_decay)
        self.schedule = make_schedule(self.optimizer, config.schedule, total_steps, config.warmup)
        self.updates = Updates(model, tables, LossWeights(), [])

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

    def update(self, rows: dict[str, np.ndarray]) -> None:
        """The part of a step behind the gradient."""
        if self.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.trained, self.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        self.updates.remember(rows)
