"""Bootstrap resamples of examples and of seeds, drawn once and shared by every estimate of a task.

A statistic is an array (R + 1,): its value on all examples and seeds, then on R resamples. The difference of two
statistics is the difference of their arrays, on the same resampled examples and, for one system, the same seeds.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class Estimate(NamedTuple):
    """A value, its 95 % interval (percentiles 2.5 and 97.5), and the two-sided p-value of being 0."""

    value: float
    low: float
    high: float
    p: float

    @classmethod
    def of(cls, draws: np.ndarray) -> "Estimate":
        """From a statistic (R + 1,); resamples on which it is not defined (nan) are left out."""
        value, *drawn = draws.tolist()
        drawn = np.round(drawn, 10)
        drawn = drawn[~np.isnan(drawn)]
        if not len(drawn):
            return cls(value, np.nan, np.nan, np.nan)
        rarer = min((drawn < 0).sum(), (drawn > 0).sum()) + (drawn == 0).sum() / 2
        low, high = np.percentile(drawn, [2.5, 97.5]).tolist()
        return cls(value, low, high, p=min(1.0, 2 * (rarer + 1) / (len(drawn) + 1)))

    def text(self, digits: int = 3, sign: str = "") -> str:
        """Value and interval; sign: "+" for a difference."""
        value, low, high = (f"{x:{sign}.{digits}f}" for x in self[:3])
        return f"{value} ({low} to {high})"

    def percent(self, digits: int = 0) -> str:
        """A share and its interval, as in "79% (75 to 82%)"."""
        return f"{self.value:.{digits}%} ({100 * self.low:.{digits}f} to {self.high:.{digits}%})"


class Resamples:
    """Resamples of N examples and of the seeds of some systems, name -> number of seeds S."""

    def __init__(self, N: int, seeds: Mapping[str, int], count: int = 2000) -> None:
        random = np.random.default_rng(0)
        self.weights = np.ones((count + 1, N), dtype=np.float32)  # how often each example is in a resample
        for row in self.weights[1:]:
            row[:] = np.bincount(random.integers(N, size=N), minlength=N)
        self.seeds = {}  # system -> (S, R + 1), the weights of its seeds
        for name, S in seeds.items():
            drawn = random.multinomial(S, np.full(S, 1 / S), size=count).T / S
            self.seeds[name] = np.hstack([np.full((S, 1), 1 / S), drawn])

    def sums(self, values: np.ndarray) -> np.ndarray:
        """(..., N) -> (..., R + 1)."""
        return (np.asarray(values, dtype=np.float32) @ self.weights.T).astype(float)

    def over_seeds(self, system: str, statistics: np.ndarray) -> np.ndarray:
        """The statistic of every seed (S, R + 1) -> its mean over the resampled seeds (R + 1,)."""
        return (statistics * self.seeds[system]).sum(0)

    def mean(self, system: str, values: np.ndarray, among: np.ndarray | None = None) -> np.ndarray:
        """Mean of values (S, N) over seeds and examples; among: (N,) bool, the examples that count."""
        among = np.ones(values.shape[-1]) if among is None else among
        return self.over_seeds(system, _ratio(self.sums(values * among), self.sums(among)))

    def pairs(self, first: str, second: str, values: np.ndarray) -> np.ndarray:
        """Mean of values (S, S', N) of pairs of runs; within one system over pairs of different seeds.

        nan where a resample contains a single seed of the system.
        """
        weights = self.seeds[first][:, None] * self.seeds[second][None]  # (S, S', R + 1)
        if first == second:
            weights[np.diag_indices(len(weights))] = 0
        means = self.sums(values) / self.sums(np.ones(values.shape[-1]))
        return _ratio((means * weights).sum((0, 1)), weights.sum((0, 1)))

    def correlation(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Pearson correlation of first and second, both (..., N) -> (..., R + 1); of ranks it is Spearman's."""
        x = first - first.mean(-1, keepdims=True)
        y = second - second.mean(-1, keepdims=True)
        return self._covariance(x, y) / np.sqrt(self._covariance(x, x) * self._covariance(y, y))

    def slope(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Slope of the line of least squares of y on x, both (..., N) -> (..., R + 1)."""
        return self._covariance(x, y) / self._covariance(x, x)

    def _covariance(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """n times the covariance: (..., N) -> (..., R + 1)."""
        n = self.sums(np.ones(x.shape[-1]))
        return self.sums(x * y) - self.sums(x) * self.sums(y) / n


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """nan where the whole is 0."""
    return part / np.where(whole, whole, np.nan)
