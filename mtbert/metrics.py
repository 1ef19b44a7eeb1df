"""The metrics of predictions: one to add is a function here and its name in METRICS.

Symbols: N examples, S seeds, R samples of the examples. A sample is its weights, how often each example is in it. Every
metric is a function of sums over the examples, so that R samples are a product with their weights, (R, N). Samples that
each lack one example need no product: their sums are the sum over all examples minus one term, see `LeftOut`.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy import ndarray


@dataclass(frozen=True)
class LeftOut:
    """The R = N samples that each lack one example of one kind; N is here the number of kinds.

    counts: (N,), how many examples of each kind there are. As weights they are `counts - np.eye(N)`.
    """

    counts: ndarray


Weights = ndarray | LeftOut | None  # (R, N)
Metric = Callable[..., ndarray]  # (predicted (..., N), labels (..., N), weights=None) -> (...,), or (..., R)


def _total(terms: ndarray, weights: Weights) -> ndarray:
    """Sum over the examples, the last axis: (..., N) -> (...,), or with weights (..., R)."""
    if weights is None:
        return terms.sum(-1)
    if isinstance(weights, LeftOut):
        return (terms @ weights.counts)[..., None] - terms
    return terms @ weights.T


def _mean(terms: ndarray, weights: Weights) -> ndarray:
    """Mean over the examples, shapes as in `_total`."""
    n = terms.shape[-1]
    return _total(terms, weights) / _total(np.ones(n), weights)


def accuracy(predicted: ndarray, labels: ndarray, weights: Weights = None) -> ndarray:
    """Fraction of equal entries: (..., N) -> (...,), or with weights (..., R)."""
    return _mean(predicted == labels, weights)


def f1(predicted: ndarray, labels: ndarray, weights: Weights = None) -> ndarray:
    """F1 of class 1, 2 TP / (2 TP + FP + FN), shapes as in `accuracy`; 0 where it is neither there nor predicted."""
    hits, both = _hits_and_both(predicted, labels, weights, 1)
    return 2 * hits / np.maximum(both, 1)


def _hits_and_both(predicted: ndarray, labels: ndarray, weights: Weights, positive: int) -> tuple[ndarray, ndarray]:
    """TP and 2 TP + FP + FN of a class, shapes as in `accuracy`."""
    is_predicted = predicted == positive
    is_label = labels == positive
    hits = _total(is_predicted & is_label, weights)
    both = _total(is_predicted, weights) + _total(is_label, weights)
    return hits, both


def macro_f1(predicted: ndarray, labels: ndarray, weights: Weights = None, num_classes: int = 2) -> ndarray:
    """Mean of the F1 of the classes that are among the labels or the predictions, as in scikit-learn.

    A class that a split has no row of, and that is not predicted, is left out. Shapes as in `accuracy`.
    """
    by_class, is_there = [], []
    for c in range(num_classes):
        hits, both = _hits_and_both(predicted, labels, weights, c)
        by_class.append(2 * hits / np.maximum(both, 1))
        is_there.append(both > 0)
    return np.sum(by_class, axis=0) / np.maximum(np.sum(is_there, axis=0), 1)


def pearson(predicted: ndarray, labels: ndarray, weights: Weights = None) -> ndarray:
    """Pearson correlation, shapes as in `accuracy`; 0 for constant predictions, which know nothing of the labels.

    It is nan where the labels are constant, as nothing can be predicted then.
    """
    p = _centred(predicted)
    y = _centred(labels)
    covariance = _mean(p * y, weights) - _mean(p, weights) * _mean(y, weights)
    of_predicted, of_labels = _deviation(p, weights), _deviation(y, weights)
    deviations = of_predicted * of_labels
    correlation = covariance / np.where(deviations == 0, np.nan, deviations)
    knows_nothing = (of_predicted == 0) & (of_labels != 0)
    return np.where(knows_nothing, 0.0, correlation)[()]


def _centred(values: ndarray) -> ndarray:
    values = values.astype(float)
    return values - values.mean(-1, keepdims=True)


def _deviation(x: ndarray, weights: Weights) -> ndarray:
    """Standard deviation of centred values; 0 where they are constant, up to rounding."""
    mean = _mean(x, weights)
    variance = _mean(x * x, weights) - mean * mean
    has_samples = weights is not None
    is_constant = np.ptp(x, -1, keepdims=has_samples) == 0
    rounding = 1e-14 * np.square(x).max(-1, keepdims=has_samples)
    is_rounding = variance < rounding
    return np.sqrt(np.where(is_constant | is_rounding, 0.0, variance))


def r2(predicted: ndarray, labels: ndarray, weights: Weights = None) -> ndarray:
    """Share of the labels' variance that is predicted, 1 - MSE / variance, shapes as in `accuracy`."""
    variance = _deviation(_centred(labels), weights) ** 2
    error = _mean((predicted - labels) ** 2, weights)
    return 1 - error / np.where(variance > 0, variance, np.nan)


# Kind of task -> its metrics, name -> function(predicted, labels, weights=None). The first one selects models, unless
# the task names another one.
METRICS: dict[str, dict[str, Metric]] = {
    "classes": {"accuracy": accuracy, "macro_f1": macro_f1},
    "binary": {"accuracy": accuracy, "macro_f1": macro_f1},
    "similarity": {"pearson": pearson},
    "regression": {"pearson": pearson, "r2": r2},
}
# Metrics of users, by name, for tasks of any kind. The model with the largest value is kept, so that an error has to be
# returned as a negative number. Weights are always arrays, as not all of them take `LeftOut`: where labels are numbers,
# the time of an interval grows with the square of the rows.
OWN_METRICS: dict[str, Metric] = {}


def metrics_for(kind: str, num_classes: int | None) -> dict[str, Metric]:
    """The metrics of a kind of task with so many classes, as in METRICS; two classes have F1, too."""
    found = dict(METRICS[kind])
    if "macro_f1" in found:
        found["macro_f1"] = functools.partial(macro_f1, num_classes=num_classes)
    if num_classes == 2:
        found["f1"] = f1
    return found
