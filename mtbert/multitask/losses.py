"""The loss of each task, and predictions from logits.

Source: papers 001 (equation 5) and 002 (section 4.1: mean squared error for similarity). B batch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from mtbert.data import Task


def task_loss(task: Task, logits: Tensor, labels: Tensor) -> Tensor:
    """Mean loss of a batch: cross-entropy (classes), binary cross-entropy, or squared error on the 0-1 scale.

    The logit of a number is on that scale.
    """
    logits = logits.float()
    if task.kind == "classes":
        return F.cross_entropy(logits, labels.long())
    if task.kind == "binary":
        return F.binary_cross_entropy_with_logits(logits, labels.float())
    low, high = task.label_range
    targets = (labels.float() - low) / (high - low)
    return F.mse_loss(logits, targets)


def divergence(task: Task, first: Tensor, second: Tensor) -> Tensor:
    """How far two passes over the same batch disagree, from the logits of each: R-Drop (Liang et al. 2021, equation 2).

    For classes it is the mean of both Kullback-Leibler divergences between the predicted distributions, for a number
    the mean squared difference of the scores on the 0-1 scale. `r_drop` times this is added to the mean loss of the
    passes, where their equation 4 has the sum: their alpha is 2 r_drop.
    """
    if task.is_number:
        return F.mse_loss(first, second)
    if task.kind == "binary":
        first = _two_logits(first)
        second = _two_logits(second)
    log_p = first.float().log_softmax(-1)  # (B, classes)
    log_q = second.float().log_softmax(-1)
    both = (log_p.exp() - log_q.exp()) * (log_p - log_q)  # p log(p / q) + q log(q / p)
    return both.sum(-1).mean() / 2


def _two_logits(logits: Tensor) -> Tensor:
    """A binary task's logits (B,) -> (B, 2), which softmax makes the same probabilities of."""
    return torch.stack((torch.zeros_like(logits), logits), dim=-1)


def class_probabilities(task: Task, logits: Tensor) -> Tensor:
    """Probabilities (B, classes), of a task whose labels are classes."""
    logits = logits.float()
    if task.kind == "classes":
        return logits.softmax(-1)
    probability = logits.sigmoid()  # of class 1
    return torch.stack((1 - probability, probability), dim=-1)


def predict(task: Task, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Predicted label (B,) and the model's confidence in it (B,), which is nan for a number.

    A number is low + (high - low) times the logit, cut off at the ends of its range.
    """
    if task.is_number:
        low, high = task.label_range
        score = low + (high - low) * logits.float()
        score = score.clamp(low, high)
        return score, torch.full_like(score, torch.nan)
    confidence, label = class_probabilities(task, logits).max(-1)
    return label, confidence
