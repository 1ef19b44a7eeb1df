"""The metrics of predictions: one to add is a function here and its name in METRICS.

Symbols: N examples. `counts` (K,) asks for leave-one-out scores, as a jackknife needs them: the examples given are the
K different ones, `counts` says how often each occurs, and the result (..., K) has the score without one of each. Every
metric here is a function of sums over the examples, and a sum without one example is the sum minus its term.
"""

import functools
from collections.abc import Callable

import numpy as np
from numpy import ndarray

Metric = Callable[..., ndarray]  # (predicted (..., N), labels (..., N)) -> (...,)
Counts = ndarray | None  # (K,), how many examples of each kind there are


def _total(terms: ndarray, counts: Counts) -> ndarray:
    """Sum over the examples, the last axis: (..., N) -> (...,), or with counts (..., K) -> (..., K)."""
    if counts is None:
        return terms.sum(-1)
    return (terms @ counts)[..., None] - terms


def _mean(terms: ndarray, counts: Counts) -> ndarray:
    """Mean over the examples, shapes as in `_total`."""
    n = terms.shape[-1]
    return _total(terms, counts) / _total(np.ones(n), counts)


def accuracy(predicted: ndarray, labels: ndarray, counts: Counts = None) -> ndarray:
    """Fraction of equal entries: (..., N) -> (...,), or with counts (..., K) -> (..., K)."""
    return _mean(predicted == labels, counts)


def f1(predicted: ndarray, labels: ndarray, counts: Counts = None) -> ndarray:
    """F1 of class 1, 2 TP / (2 TP + FP + FN), shapes as in `accuracy`; 0 where it is neither there nor predicted."""
    hits, both = _hits_and_both(predicted, labels, counts, 1)
    return 2 * hits / np.maximum(both, 1)


def _hits_and_both(predicted: ndarray, labels: ndarray, counts: Counts, positive: int) -> tuple[ndarray, ndarray]:
    """TP and 2 TP + FP + FN of a class, shapes as in `accuracy`."""
    is_predicted = predicted == positive
    is_label = labels == positive
    hits = _total(is_predicted & is_label, counts)
    both = _total(is_predicted, counts) + _total(is_label, counts)
    return hits, both


def macro_f1(predicted: ndarray, labels: ndarray, counts: Counts = None, num_classes: int = 2) -> ndarray:
    """Mean of the F1 of the classes that are among the labels or the predictions, as in scikit-learn.

    A class that a split has no row of, and that is not predicted, is left out. Shapes as in `accuracy`.
    """
    by_class, is_there = [], []
    for c in range(num_classes):
        hits, both = _hits_and_both(predicted, labels, counts, c)
        by_class.append(2 * hits / np.maximum(both, 1))
        is_there.append(both > 0)
    return np.sum(by_class, axis=0) / np.maximum(np.sum(is_there, axis=0), 1)


def pearson(predicted: ndarray, labels: ndarray, counts: Counts = None) -> ndarray:
    """Pearson correlation, shapes as in `accuracy`; 0 for constant predictions, which know nothing of the labels.

    It is nan where the labels are constant, as nothing can be predicted then.
    """
    p = _centred(predicted)
    y = _centred(labels)
    covariance = _mean(p * y, counts) - _mean(p, counts) * _mean(y, counts)
    of_predicted, of_labels = _deviation(p, counts), _deviation(y, counts)
    deviations = of_predicted * of_labels
    correlation = covariance / np.where(deviations == 0, np.nan, deviations)
    knows_nothing = (of_predicted == 0) & (of_labels != 0)
    return np.where(knows_nothing, 0.0, correlation)[()]


def _centred(values: ndarray) -> ndarray:
    values = values.astype(float)
    return values - values.mean(-1, keepdims=True)


def _deviation(x: ndarray, counts: Counts) -> ndarray:
    """Standard deviation of centred values; 0 where they are constant, up to rounding."""
    mean = _mean(x, counts)
    variance = _mean(x * x, counts) - mean * mean
    has_samples = counts is not None
    is_constant = np.ptp(x, -1, keepdims=has_samples) == 0
    rounding = 1e-14 * np.square(x).max(-1, keepdims=has_samples)
    is_rounding = variance < rounding
    return np.sqrt(np.where(is_constant | is_rounding, 0.0, variance))


def r2(predicted: ndarray, labels: ndarray, counts: Counts = None) -> ndarray:
    """Share of the labels' variance that is predicted, 1 - MSE / variance, shapes as in `accuracy`."""
    variance = _deviation(_centred(labels), counts) ** 2
    error = _mean((predicted - labels) ** 2, counts)
    return 1 - error / np.where(variance > 0, variance, np.nan)


# Kind of task -> its metrics, name -> function(predicted, labels). The first one selects models, unless the task names
# another one.
METRICS: dict[str, dict[str, Metric]] = {
    "classes": {"accuracy": accuracy, "macro_f1": macro_f1},
    "binary": {"accuracy": accuracy, "macro_f1": macro_f1},
    "similarity": {"pearson": pearson},
    "regression": {"pearson": pearson, "r2": r2},
}
CORRELATIONS = {"pearson"}  # metrics from -1 to 1; in a mean of tasks one counts as (1 + r) / 2 (paper 002)
VARYING = {"pearson", "r2"}  # metrics that are not defined where all labels are equal
# Metrics of users, by name, for tasks of any kind. The model with the largest value is kept, so that an error has to be
# returned as a negative number. Where labels are numbers, the time of an interval grows with the square of the rows.
OWN_METRICS: dict[str, Metric] = {}


def metrics_for(kind: str, num_classes: int | None) -> dict[str, Metric]:
    """The metrics of a kind of task with so many classes, as in METRICS; two classes have F1, too."""
    found = dict(METRICS[kind])
    if "macro_f1" in found:
        found["macro_f1"] = functools.partial(macro_f1, num_classes=num_classes)
    if num_classes == 2:
        found["f1"] = f1
    return found
