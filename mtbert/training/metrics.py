"""The metrics of a task over a whole split, and one score for several tasks."""

from typing import Any

import numpy as np
from numpy import ndarray

from mtbert.data import TASKS, Task
from mtbert.metrics import CORRELATIONS, OWN_METRICS, Metric, metrics_for


def metrics_of(task: Task) -> dict[str, Metric]:
    """The metrics of a task, name -> function(predicted, labels); the first one selects models."""
    found = metrics_for(task.kind, task.num_classes)
    first = found.get(task.metric) or OWN_METRICS[task.metric]
    return {task.metric: first} | found


def overall(scores: dict[str, float]) -> float:
    """One score for several tasks: the mean of accuracies and of (1 + Pearson) / 2 (paper 002); of one task its own.

    Other metrics that a task of one's own names enter as they are.
    """
    if len(scores) == 1:
        return next(iter(scores.values()))
    parts = []
    for task, score in scores.items():
        is_correlation = TASKS[task].metric in CORRELATIONS
        parts.append((1 + score) / 2 if is_correlation else score)
    return float(np.mean(parts))


def score_rows(task: str, split: str, predicted: ndarray, labels: ndarray, **more: Any) -> list[dict[str, Any]]:
    """A row per metric: task, split, metric, value, n (examples), and what more is said of it."""
    predicted = predicted.astype(float)
    labels = labels.astype(float)
    rows = []
    for name, metric in metrics_of(TASKS[task]).items():
        value = float(metric(predicted, labels))
        rows.append({"task": task, "split": split, "metric": name, "value": value, "n": len(labels), **more})
    return rows
