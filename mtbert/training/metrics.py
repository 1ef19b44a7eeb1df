"""The metrics of a task over a whole split, and one score for several tasks."""

import functools
from typing import Any

import numpy as np
from numpy import ndarray

from mtbert.data import TASKS, Task
from mtbert.metrics import METRICS, OWN_METRICS, Metric, f1


def metrics_of(task: Task) -> dict[str, Metric]:
    """The metrics of a task, name -> function(predicted, labels, weights=None); the first one selects models."""
    found = dict(METRICS[task.kind])
    if "macro_f1" in found:
        found["macro_f1"] = functools.partial(found["macro_f1"], num_classes=task.num_classes)
    if task.num_classes == 2:
        found["f1"] = f1
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
        is_correlation = TASKS[task].metric == "pearson"  # from -1 to 1
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
