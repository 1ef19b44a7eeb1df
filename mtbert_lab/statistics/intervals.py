"""The 95 % interval of a score, over examples and seeds. N examples, S seeds, T tasks."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from mtbert.metrics import Metric
from mtbert.sources import is_own


class Scored(NamedTuple):
    """What some seeds predict on a task's examples, and how it is scored."""

    metric: Metric
    predicted: ndarray  # (S, N)
    labels: ndarray  # (N,)
    factor: float = 1.0  # f of the metric r, which counts as f r + 1 - f in a mean of tasks

    def scores(self) -> ndarray:
        """The score of each seed, (S,)."""
        return self.factor * _by_seed(self.metric, self.predicted, self.labels) + (1 - self.factor)


def interval_text(value: float, low: float, high: float, form: str = ".3f") -> str:
    """'0.489 (0.472 to 0.506)'; the value alone where its interval is not known."""
    if np.isnan(low):
        return f"{value:{form}}"
    return f"{value:{form}} ({low:{form}} to {high:{form}})"


class Interval(NamedTuple):
    """A value and the ends of its 95 % interval, nan where these are not known."""

    value: float
    low: float
    high: float

    def text(self, form: str = ".3f") -> str:
        """As `interval_text`."""
        return interval_text(*self, form)


def takes_counts(metric: Metric) -> bool:
    """Whether a metric is one of mtbert's, maybe with some of its arguments given by functools.partial."""
    function = metric.func if isinstance(metric, functools.partial) else metric
    return not is_own(function)


def _by_seed(metric: Metric, predicted: ndarray, labels: ndarray) -> ndarray:
    """The metric of each of S seeds: (S, N), (N,) -> (S,). One of a user's own may take a single seed alone."""
    if takes_counts(metric):
        return metric(predicted, labels)
    return np.array([metric(one, labels) for one in predicted], dtype=float)


def _jackknife(metric: Metric, predicted: ndarray, labels: ndarray) -> ndarray:
    """Covariance of the scores of all S seeds over the examples, from leaving out one example at a time: (S, S).

    It is nan for a single example.
    """
    S, N = predicted.shape
    if N == 1:
        return np.full((S, S), np.nan)
    examples = np.vstack([predicted, labels])
    kinds, counts = _count_columns(examples)  # K kinds of examples
    predicted, label = kinds[:-1], kinds[-1]
    if takes_counts(metric):
        scores = metric(predicted, label, counts)
    else:
        scores = _one_by_one(metric, predicted, label, counts)
    covariance = np.cov(scores, fweights=counts, bias=True)
    return (N - 1) * np.atleast_2d(covariance)


def _one_by_one(metric: Metric, predicted: ndarray, label: ndarray, counts: ndarray) -> ndarray:
    """Scores (S, K) without one example of each of K kinds, of any metric."""
    scores = []
    kinds = np.arange(len(counts))
    for kind in kinds:
        examples = np.repeat(kinds, counts - (kinds == kind))
        scores.append(_by_seed(metric, predicted[:, examples], label[examples]))
    return np.stack(scores, axis=-1)


def _count_columns(table: ndarray) -> tuple[ndarray, ndarray]:
    """The different columns of a table, (rows, K), and how often each occurs, (K,): np.unique, 30 times as fast."""
    order = np.lexsort(table[::-1])
    table = table[:, order]
    is_new = (table[:, 1:] != table[:, :-1]).any(axis=0)
    starts = np.flatnonzero(np.append(True, is_new))
    counts = np.diff(starts, append=table.shape[1])
    return table[:, starts], counts


def scores_and_covariance(tasks: Sequence[Scored]) -> tuple[ndarray, ndarray]:
    """The mean of the tasks' metrics of every seed, (S,), and its covariance over the examples, (S, S)."""
    scores, covariances = [], []
    for task in tasks:
        scores.append(task.scores())
        covariances.append(task.factor**2 * _jackknife(task.metric, task.predicted, task.labels))
    covariance = sum(covariances) / len(tasks) ** 2
    return np.mean(scores, axis=0), covariance


def example_share(covariance: ndarray) -> float:
    """The part e of the variance of S > 1 scores over seeds that the examples explain; covariance: (S, S)."""
    S = len(covariance)
    beyond_mean = np.trace(covariance) - covariance.sum() / S
    return float(beyond_mean / (S - 1))


def seed_mean(tasks: Sequence[Scored]) -> Interval:
    """Mean of the tasks' metrics over the seeds, and the ends of its 95 % interval.

    Seeds and examples are crossed random effects: the variance of the examples is the jackknife's, S > 1 seeds add 1/S
    of the variance of their scores that the examples do not explain, and t has the degrees of freedom of Satterthwaite
    (1946). It borrows nothing, and is conservative; with one seed it is an interval of the examples alone. Where no
    example or seed changes the score, as where all predictions are right, there is no variance to estimate and the ends
    are nan.
    """
    from scipy.special import stdtrit

    scores, covariance = scores_and_covariance(tasks)
    value = round(float(scores.mean()), 10)
    if np.isnan(value):
        return Interval(np.nan, np.nan, np.nan)

    S = len(scores)
    variance = covariance.mean()
    freedom = np.inf
    if S > 1:
        between = scores.var(ddof=1)
        variance += max(0.0, between - example_share(covariance)) / S
        squares = (between / S) ** 2 / (S - 1)
        if squares:
            freedom = max(variance**2 / squares, S - 1)
    error = np.sqrt(max(variance, 0.0)).round(10)
    if error == 0:
        return Interval(value, np.nan, np.nan)
    half = float(error * stdtrit(freedom, 0.975))
    are_ours = all(takes_counts(task.metric) for task in tasks)
    highest = 1.0 if are_ours else np.inf  # of mtbert's metrics none is higher than 1
    return Interval(value, value - half, min(value + half, highest))
