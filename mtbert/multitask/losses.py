"""The loss of each task, and predictions from logits.

Source: papers 001 (equation 5) and 002 (section 4.2: mean squared error for similarity). B batch.
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
    return F.mse_loss(logits, (labels.float() - low) / (high - low))


def divergence(task: Task, first: Tensor, second: Tensor) -> Tensor:
    """How far two passes over the same batch disagree, from the logits of each: R-Drop (Liang et al. 2021, equation 2).

    The mean of both Kullback-Leibler divergences between the predicted distributions; of a number the mean squared
    difference of the scores on the 0-1 scale. `r_drop` times this is added to the mean loss of the passes, where their
    equation 4 has the sum: their alpha is 2 r_drop.
    """
    if task.is_number:
        return F.mse_loss(first, second)
    if task.kind == "binary":
        first, second = (torch.stack((torch.zeros_like(z), z), dim=-1) for z in (first, second))
    p, q = first.float().log_softmax(-1), second.float().log_softmax(-1)  # (B, classes)
    return ((p.exp() - q.exp()) * (p - q)).sum(-1).mean() / 2


def class_probabilities(task: Task, logits: Tensor) -> Tensor:
    """Probabilities (B, classes), of a task whose labels are classes."""
    logits = logits.float()
    if task.kind == "classes":
        return logits.softmax(-1)
    second = logits.sigmoid()
    return torch.stack((1 - second, second), dim=-1)


def predict(task: Task, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Predicted label (B,) and the model's confidence in it (B,); of a number both are the score.

    The score of STS is 5 times the logit, clamped to 0..5.
    """
    logits = logits.float()
    if task.kind == "classes":
        confidence, label = logits.softmax(-1).max(-1)
        return label, confidence
    if task.kind == "binary":
        probability = logits.sigmoid()
        label = (probability > 0.5).long()
        return label, torch.where(label == 1, probability, 1 - probability)
    low, high = task.label_range
    score = (low + (high - low) * logits).clamp(low, high)
    return score, score
