"""A run that learns what other runs, its teachers, predict for its training examples.

Sources: Hinton, Vinyals and Dean 2015, "Distilling the Knowledge in a Neural Network" (arXiv:1503.02531), section 2;
Clark et al. 2019, "BAM! Born-Again Multi-Task Networks" (arXiv:1907.04829), section 3 (teacher annealing).

Symbols: l label, q the student's class probabilities, p the mean of the teachers' class probabilities, T temperature,
w weight of the teachers. With q_T = softmax(z / T) and p_T proportional to p^(1/T), the loss of an example is

    classes, binary:    (1 - w) H(l, q) + w T^2 H(p_T, q_T)       with H(p, q) = - sum_c p_c log q_c
    number:             (y - (w t + (1 - w) l))^2                 y of the student, t the mean of the teachers

T^2 keeps the size of the gradient when T changes (Hinton et al., section 2). In teacher annealing w falls linearly
from 1 to 0 over training, as 1 - lambda of Clark et al. At T = 1 the loss of classes is theirs, the cross-entropy
against the target lambda l + (1 - lambda) p, since H is linear in its first argument.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mtbert.config import RunConfig
from mtbert.data import Task
from mtbert.multitask import task_loss


def teacher_weight(config: RunConfig, step: int, total_steps: int) -> float:
    """w at a step, counted from 1; 0 without teachers."""
    if not config.teachers:
        return 0.0
    if config.distil == "annealed":
        return 1 - (step - 1) / total_steps
    if config.distil == "teacher":
        return 1.0
    return config.distil


def distillation_loss(
    task: Task, logits: Tensor, labels: Tensor, teachers: Tensor | None, weight: float, temperature: float = 1.0
) -> Tensor:
    """Mean loss of a batch; without teachers, or with weight 0, that of the labels alone.

    logits, teachers: (B, classes), or (B,) for binary tasks and numbers; teachers: as in `mean_logits`.
    """
    if teachers is None or weight == 0:
        return task_loss(task, logits, labels)
    logits = logits.float()
    teachers = teachers.float()
    if task.is_number:
        low, high = task.label_range
        predicted = low + (high - low) * teachers  # on the scale of the labels
        targets = weight * predicted + (1 - weight) * labels.float()
        return task_loss(task, logits, targets)
    student = logits / temperature
    teacher = teachers / temperature
    if task.kind == "binary":
        softened = F.binary_cross_entropy_with_logits(student, teacher.sigmoid())
    else:
        softened = F.cross_entropy(student, teacher.softmax(-1))
    loss = weight * temperature**2 * softened
    if weight < 1:
        loss = loss + (1 - weight) * task_loss(task, logits, labels)
    return loss


def mean_logits(task: Task, logits: Sequence[Tensor]) -> Tensor:
    """The mean of several models' probabilities, or of their numbers, as logits: (N, classes) or (N,).

    For classes these are the logarithms of the mean probabilities, for a binary task the logit of its mean probability.
    """
    stacked = torch.stack([part.float() for part in logits])
    if task.is_number:
        return stacked.mean(0)
    if task.kind == "binary":
        log_positive = F.logsigmoid(stacked).logsumexp(0)
        log_negative = F.logsigmoid(-stacked).logsumexp(0)
        return log_positive - log_negative
    return stacked.log_softmax(-1).logsumexp(0) - math.log(len(stacked))
