"""Metrics over a whole split, and their intervals.

Symbols: N examples, S seeds, R samples of the examples. A sample is its weights, how often each example is in it. Every
metric is a function of sums over the examples, so that R samples are a product with their weights, (R, N).
"""

import functools

import numpy as np
import pandas as pd
from numpy import ndarray

from mtbert.data import OWN_METRICS, TASKS, Task
from mtbert.statistics import Metric, seed_mean

Array = ndarray
Weights = ndarray | None  # (R, N)


def _total(terms: Array, weights: Weights) -> Array:
    """Sum over the examples, the last axis: (..., N) -> (...,), or with weights (..., R)."""
    return terms.sum(-1) if weights is None else terms @ weights.T


def _mean(terms: Array, weights: Weights) -> Array:
    """Mean over the examples, shapes as of `_total`."""
    n = terms.shape[-1]
    return _total(terms, weights) / _total(np.ones(n), weights)


def accuracy(predicted: Array, labels: Array, weights: Weights = None) -> Array:
    """Fraction of equal entries: (..., N) -> (...,), or with weights (..., R)."""
    return _mean(predicted == labels, weights)


def f1(predicted: Array, labels: Array, weights: Weights = None, positive: int = 1) -> Array:
    """F1 of one class, 2 TP / (2 TP + FP + FN), shapes as of `accuracy`; 0 where it is neither there nor predicted."""
    is_predicted = predicted == positive
    is_label = labels == positive
    hits = _total(is_predicted & is_label, weights)
    both = _total(is_predicted, weights) + _total(is_label, weights)  # 2 TP + FP + FN
    return 2 * hits / np.maximum(both, 1)


def macro_f1(predicted: Array, labels: Array, weights: Weights = None, num_classes: int = 2) -> Array:
    """Mean of the F1 of every class, shapes as of `accuracy`."""
    by_class = [f1(predicted, labels, weights, positive=c) for c in range(num_classes)]
    return np.mean(by_class, axis=0)


def pearson(predicted: Array, labels: Array, weights: Weights = None) -> Array:
    """Pearson correlation, shapes as of `accuracy`; nan where one side is constant."""
    p = _centred(predicted)
    y = _centred(labels)
    covariance = _mean(p * y, weights) - _mean(p, weights) * _mean(y, weights)
    deviations = _deviation(p, weights) * _deviation(y, weights)
    return covariance / deviations


def _centred(values: Array) -> Array:
    values = values.astype(float)
    return values - values.mean(-1, keepdims=True)


def _deviation(x: Array, weights: Weights) -> Array:
    """Standard deviation of centred values; nan where they are constant, up to rounding."""
    mean = _mean(x, weights)
    variance = _mean(x * x, weights) - mean * mean
    has_samples = weights is not None
    is_constant = np.ptp(x, -1, keepdims=has_samples) == 0
    rounding = 1e-14 * np.square(x).max(-1, keepdims=has_samples)
    is_rounding = variance < rounding
    return np.sqrt(np.where(is_constant | is_rounding, np.nan, variance))


def r2(predicted: Array, labels: Array, weights: Weights = None) -> Array:
    """Share of the labels' variance that is predicted, 1 - MSE / variance, shapes as of `accuracy`."""
    y = labels - labels.mean(-1, keepdims=True)
    variance = _mean(y**2, weights) - _mean(y, weights) ** 2
    error = _mean((predicted - labels) ** 2, weights)
    return 1 - error / np.where(variance > 0, variance, np.nan)


def metrics_of(task: Task) -> dict[str, Metric]:
    """The metrics of a task, name -> function(predicted, labels, weights=None); the first one selects models."""
    found = {}
    if task.is_number:
        found["pearson"] = pearson
        if task.kind == "regression":
            found["r2"] = r2
    else:
        found["accuracy"] = accuracy
        found["macro_f1"] = functools.partial(macro_f1, num_classes=task.num_classes)
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


def score_table(task: str, split: str, predicted: Array, labels: Array) -> pd.DataFrame:
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
