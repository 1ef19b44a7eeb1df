"""The metrics of a task over a whole split, with their intervals, and one score for several tasks."""

import functools

import numpy as np
import pandas as pd
from numpy import ndarray

from mtbert.data import TASKS, Task
from mtbert.intervals import Metric, seed_mean
from mtbert.metrics import METRICS, OWN_METRICS, f1


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


def score_table(task: str, split: str, predicted: ndarray, labels: ndarray) -> pd.DataFrame:
    """One row per metric: task, split, metric, value, low, high (95 %, of one seed), n (examples)."""
    predicted = predicted.astype(float)
    labels = labels.astype(float)
    rows = []
    for name, metric in metrics_of(TASKS[task]).items():
        _, low, high = seed_mean([(metric, [predicted[None]], labels)])
        value = float(metric(predicted, labels))
        row = {
            "task": task,
            "split": split,
            "metric": name,
            "value": value,
            "low": low,
            "high": high,
            "n": len(labels),
        }
        rows.append(row)
    return pd.DataFrame(rows)
