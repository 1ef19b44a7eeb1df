"""Metrics over a whole split, and their intervals.

Symbols: N examples, S seeds, R samples of the examples. A sample is its weights, how often each example is in it. Every
metric is a function of sums over the examples, so that R samples are a product with their weights, (R, N).
"""

import functools

import numpy as np
import pandas as pd

from mtbert.data import OWN_METRICS, TASKS, Task
from mtbert.statistics import Metric, seed_mean


def _total(terms: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Sum over the examples, the last axis: (..., N) -> (...,), or with weights (R, N) -> (..., R)."""
    return terms.sum(-1) if weights is None else terms @ weights.T


def accuracy(predicted: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Fraction of equal entries: (..., N) -> (...,), or with weights (R, N) -> (..., R)."""
    hit = predicted == labels
    return _total(hit, weights) / _total(np.ones(hit.shape[-1]), weights)


def f1(predicted: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None, positive: int = 1) -> np.ndarray:
    """F1 of one class, 2 TP / (2 TP + FP + FN), shapes as of `accuracy`; 0 where it is neither there nor predicted."""
    is_predicted = predicted == positive
    is_label = labels == positive
    hits = _total(is_predicted & is_label, weights)
    both = _total(is_predicted, weights) + _total(is_label, weights)
    return 2 * hits / np.maximum(both, 1)


def macro_f1(
    predicted: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None, num_classes: int = 2
) -> np.ndarray:
    """Mean of the F1 of every class, shapes as of `accuracy`."""
    return np.mean([f1(predicted, labels, weights, positive=c) for c in range(num_classes)], axis=0)


def pearson(predicted: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Pearson correlation, shapes as of `accuracy`; nan where one side is constant."""
    p = _centred(predicted)
    y = _centred(labels)
    n = _total(np.ones(p.shape[-1]), weights)
    mean_p = _total(p, weights) / n
    mean_y = _total(y, weights) / n

    def deviation(x: np.ndarray, mean: np.ndarray, raw: np.ndarray) -> np.ndarray:
        variance = _total(x * x, weights) / n - mean * mean
        is_constant = np.ptp(raw, -1, keepdims=weights is not None) == 0
        rounding = 1e-14 * np.square(x).max(-1, keepdims=weights is not None)
        return np.sqrt(np.where(is_constant | (variance < rounding), np.nan, variance))

    covariance = _total(p * y, weights) / n - mean_p * mean_y
    return covariance / (deviation(p, mean_p, predicted) * deviation(y, mean_y, labels))


def _centred(values: np.ndarray) -> np.ndarray:
    values = values.astype(float)
    return values - values.mean(-1, keepdims=True)


def r2(predicted: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Share of the labels' variance that is predicted, 1 - MSE / variance, shapes as of `accuracy`."""
    y = labels - labels.mean(-1, keepdims=True)
    n = _total(np.ones(y.shape[-1]), weights)
    variance = _total(y**2, weights) / n - (_total(y, weights) / n) ** 2
    error = _total((predicted - labels) ** 2, weights) / n
    return 1 - error / np.where(variance > 0, variance, np.nan)


def metrics_of(task: Task) -> dict[str, Metric]:
    """The metrics of a task, name -> function(predicted, labels, weights=None); the first one selects models."""
    found: dict[str, Metric] = {}
    if task.is_number:
        found["pearson"] = pearson
        if task.kind == "regression":
            found["r2"] = r2
    else:
        found["accuracy"] = accuracy
        found["macro_f1"] = functools.partial(macro_f1, num_classes=task.num_classes)
        if task.num_classes == 2:
            found["f1"] = f1
    return {task.metric: found.get(task.metric) or OWN_METRICS[task.metric]} | found


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


def score_table(task: str, split: str, predicted: np.ndarray, labels: np.ndarray) -> pd.DataFrame:
    """One row per metric: task, split, metric, value, low, high (95 %, of one seed), n (examples)."""
    predicted = predicted.astype(float)
    labels = labels.astype(float)
    rows = []
    for name, metric in metrics_of(TASKS[task]).items():
        _, low, high = seed_mean([(metric, [predicted[None]], labels)])
        value = float(metric(predicted, labels))
        rows.append((task, split, name, value, low, high, len(labels)))
    return pd.DataFrame(rows, columns=["task", "split", "metric", "value", "low", "high", "n"])
