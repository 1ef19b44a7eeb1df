"""Bootstrap resamples of examples and of seeds, drawn once and shared by every estimate of a task.

A statistic is an array (R + 1,): its value on all examples and seeds, then on R resamples. The difference of two
statistics is the difference of their arrays, on the same resampled examples and, for one system, the same seeds.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from mtbert_lab.statistics.intervals import interval_text


class Estimate(NamedTuple):
    """A value, its 95 % interval (percentiles 2.5 and 97.5), and the two-sided p-value of being 0."""

    value: float
    low: float
    high: float
    p: float

    @classmethod
    def of(cls, draws: ndarray) -> "Estimate":
        """From a statistic (R + 1,); resamples on which it is not defined (nan) are left out."""
        value = float(draws[0])
        drawn = _resampled(draws)
        if not len(drawn):
            return cls(value, np.nan, np.nan, np.nan)
        low, high = np.percentile(drawn, [2.5, 97.5])
        below = (drawn < 0).sum()
        above = (drawn > 0).sum()
        rarer = min(below, above) + (drawn == 0).sum() / 2
        p = min(1.0, 2 * (rarer + 1) / (len(drawn) + 1))
        return cls(value, float(low), float(high), p)

    def text(self, digits: int = 3, sign: str = "") -> str:
        """Value and interval; sign: "+" for a difference."""
        return interval_text(self.value, self.low, self.high, f"{sign}.{digits}f")

    def percent(self, digits: int = 0) -> str:
        """A share and its interval, as in "79% (75 to 82%)"."""
        low = f"{100 * self.low:.{digits}f}"
        return f"{self.value:.{digits}%} ({low} to {self.high:.{digits}%})"


def p_within(draws: ndarray, margin: float) -> float:
    """p-value of two one-sided tests that a statistic (R + 1,) lies within the margin; nan where it is undefined."""
    drawn = _resampled(draws)
    if not len(drawn):
        return np.nan
    beyond = max((drawn >= margin).sum(), (drawn <= -margin).sum())
    return (beyond + 1) / (len(drawn) + 1)


def _resampled(draws: ndarray) -> ndarray:
    """The values of a statistic (R + 1,) on the resamples on which it is defined, without rounding errors."""
    drawn = np.round(draws[1:], 10)
    return drawn[~np.isnan(drawn)]


class Resamples:
    """Resamples of N examples and of the seeds of some systems, name -> number of seeds S."""

    def __init__(self, N: int, seeds: Mapping[str, int], count: int = 2000) -> None:
        random = np.random.default_rng(0)
        self.weights = np.ones((count + 1, N), dtype=np.float32)  # how often each example is in a resample
        for row in self.weights[1:]:
            drawn = random.integers(N, size=N)
            row[:] = np.bincount(drawn, minlength=N)
        self.seeds = {}  # system -> (S, R + 1), the weights of its seeds
        for name, S in seeds.items():
            uniform = np.full(S, 1 / S)
            drawn = random.multinomial(S, uniform, size=count) / S  # (R, S)
            self.seeds[name] = np.vstack([uniform, drawn]).T

    def sums(self, values: ndarray) -> ndarray:
        """(..., N) -> (..., R + 1)."""
        values = np.asarray(values, dtype=np.float32)
        return (values @ self.weights.T).astype(float)

    def over_seeds(self, system: str, statistics: ndarray) -> ndarray:
        """The statistic of every seed (S, R + 1) -> its mean over the resampled seeds (R + 1,)."""
        return (statistics * self.seeds[system]).sum(0)

    def mean(self, system: str, values: ndarray, among: ndarray | None = None) -> ndarray:
        """Mean of values (S, N) over seeds and examples; among: (N,) bool, the examples that count."""
        if among is None:
            among = np.ones(values.shape[-1])
        means = _ratio(self.sums(values * among), self.sums(among))
        return self.over_seeds(system, means)

    def pairs(self, first: str, second: str, values: ndarray) -> ndarray:
        """Mean over examples of values (S, S', N) of pairs of runs, as `over_pairs`."""
        return self.over_pairs(first, second, self.sums(values) / values.shape[-1])

    def over_pairs(self, first: str, second: str, statistics: ndarray) -> ndarray:
        """The statistic of every two runs (S, S', R + 1) -> its mean over the resampled seeds (R + 1,).

        Within one system it is over pairs of different seeds, and nan where a resample contains a single seed.
        """
        weights = self.seeds[first][:, None] * self.seeds[second][None]  # (S, S', R + 1)
        if first == second:
            weights[np.diag_indices(len(weights))] = 0
        return _ratio((statistics * weights).sum((0, 1)), weights.sum((0, 1)))

    def over_sets(self, system: str, sets: ndarray, statistics: ndarray) -> ndarray:
        """The statistic of sets of seeds, indices (K, k), (K, R + 1) -> its mean over the resampled seeds (R + 1,).

        nan where a resample contains no whole set.
        """
        weights = self.seeds[system][sets].prod(1)  # (K, R + 1)
        return _ratio((statistics * weights).sum(0), weights.sum(0))

    def correlation(self, first: ndarray, second: ndarray) -> ndarray:
        """Pearson correlation of first and second, both (..., N) -> (..., R + 1); of ranks it is Spearman's."""
        x = first - first.mean(-1, keepdims=True)
        y = second - second.mean(-1, keepdims=True)
        variances = self._covariance(x, x) * self._covariance(y, y)
        return self._covariance(x, y) / np.sqrt(variances)

    def slope(self, x: ndarray, y: ndarray) -> ndarray:
        """Slope of the line of least squares of y on x, both (..., N) -> (..., R + 1)."""
        return self._covariance(x, y) / self._covariance(x, x)

    def _covariance(self, x: ndarray, y: ndarray) -> ndarray:
        """n times the covariance: (..., N) -> (..., R + 1)."""
        return self.sums(x * y) - self.sums(x) * self.sums(y) / x.shape[-1]


def _ratio(part: ndarray, whole: ndarray) -> ndarray:
    """nan where the whole is 0."""
    return part / np.where(whole, whole, np.nan)
