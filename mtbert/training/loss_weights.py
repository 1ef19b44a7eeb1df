"""The weights of the tasks' losses in the sum that a step trains on.

Source: paper 002, section 7, asks for dynamic weights; Kendall, Gal and Cipolla 2018; Liu, Liang and Gitter 2019.
"""

import torch
from torch import Tensor

from mtbert.data import TASKS
from mtbert.multitask import MultitaskBert
from mtbert.training.task_order import Losses


class LossWeights:
    """The loss L_t of a task as it enters the sum, by `weighting` of the configuration.

    fixed: as configured. uncertainty, with a learned s_t = log sigma_t^2 (Kendall, Gal and Cipolla 2018): of a
    regression (STS, squared error) L_t / (2 sigma_t^2) + log sigma_t = exp(-s_t) L_t / 2 + s_t / 2, of a
    classification (SST, CFIMDB, Quora, cross-entropy) L_t / sigma_t^2 + log sigma_t = exp(-s_t) L_t + s_t / 2.
    loss_ratio: (L_t / L_t at the first step)^(1/2), scaled to a mean of 1 (Liu, Liang and Gitter 2019, whose code takes
    the first step of each epoch), here with the L_t of the step before.
    """

    def __init__(self, model: MultitaskBert) -> None:
        self.model = model
        self.config = model.run_config
        self.first: Losses = {}  # of the first step that was noted
        self.last: Losses = {}  # of the last one

    def __call__(self, task: str, loss: Tensor) -> Tensor:
        """The weighted loss of a task."""
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
