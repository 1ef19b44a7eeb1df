"""A difference between two configurations, its p-values and its interval, and the interval of a single score.

The rule is in `mtbert.statistics`. S seeds, Q quantiles.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from mtbert.statistics.variances import (
    QUANTILES,
    SEEDS,
    Prior,
    Scored,
    Side,
    chi2_quantiles,
    example_share,
    scores_and_covariance,
)

LEVEL = 0.05


def count_seeds(n: int) -> str:
    return "1 seed" if n == 1 else f"{n} seeds"


@dataclass(frozen=True, repr=False)
class Difference:
    """A difference between two configurations, and draws of its variance; see the rule above."""

    value: float
    variances: np.ndarray
    seeds: int  # the smaller number of the two
    is_decided: bool = True  # else there are too few seeds for a verdict
    of_examples: float = 0.0  # the part of the variance that comes from the examples
    sides: tuple[Side, ...] = ()

    def __repr__(self) -> str:
        low, high = self.interval()
        few = "" if self.is_decided else ", too few for a verdict"
        about = f"p {self.p:.2g}, {count_seeds(self.seeds)}{few}"
        return f"<Difference {self.value:+.4f} ({low:+.4f} to {high:+.4f}), {about}>"

    def _p_of(self, distance: float) -> float:
        """Probability of an estimate that is off by more than this in one direction."""
        from scipy.special import ndtr  # here, as it is slow to import

        with np.errstate(divide="ignore", invalid="ignore"):
            z = np.nan_to_num(-distance / np.sqrt(self.variances), nan=0.0)  # 0 / 0: neither distance nor variance
        return float(ndtr(z).mean())

    @cached_property
    def p(self) -> float:
        """Two-sided p-value of no difference; 1 where a metric is not defined."""
        return 1.0 if np.isnan(self.value) else min(1.0, 2 * self._p_of(abs(self.value)))

    def p_within(self, margin: float) -> float:
        """p-value of two one-sided tests that the difference is smaller than the margin (Schuirmann 1987)."""
        return self._p_of(margin - abs(self.value))

    def p_under(self, margin: float) -> float:
        """p-value of a one-sided test that the difference is below the margin."""
        return self._p_of(margin - self.value)

    def interval(self, level: float = 1 - LEVEL) -> tuple[float, float]:
        """The ends of the interval outside of which are the values with a two-sided p-value below 1 - level."""
        from scipy.special import ndtr

        if np.isnan(self.value):
            return np.nan, np.nan
        deviations = np.sqrt(self.variances)
        deviations = deviations[deviations > 0]
        half = 0.0
        share = (1 - level) / 2 * len(self.variances)
        for _ in range(50 if len(deviations) > share else 0):  # Newton's method, from below
            z = half / deviations
            slope = (np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) / deviations).sum()
            step = (ndtr(-z).sum() - share) / slope
            half += step
            if step <= 1e-9 * half:
                break
        return self.value - half, self.value + half

    @property
    def is_lent(self) -> bool:
        """Whether it is decided by a side of fewer than SEEDS seeds, whose seed variance is borrowed."""
        return self.is_decided and any(len(side.scores) < SEEDS for side in self.sides)

    @property
    def cautious(self) -> "Difference":
        """The same with every d0 at its lower 95 % bound."""
        sides = tuple(replace(side, prior=side.prior and side.prior.cautious) for side in self.sides)
        return replace(self, variances=_total(self.of_examples, sides), sides=sides) if sides else self

    def text(self, level: float = 1 - LEVEL) -> str:
        """'+0.007 (+0.002 to +0.012)'."""
        return "{:+.3f} ({:+.3f} to {:+.3f})".format(self.value, *self.interval(level))


def _total(of_examples: float, sides: Sequence[Side]) -> np.ndarray:
    """Draws (Q^2,) of the variance of a difference."""
    return of_examples + np.add.outer(*(side.variances for side in sides)).ravel()


def difference(tasks: Sequence[Scored], priors: tuple[Prior | None, Prior | None] = (None, None)) -> Difference:
    """Mean of the tasks' metrics, of the first part minus of the second; priors: what a stratum lends to each part."""
    sizes = [len(part) for part in tasks[0][1]]
    scores, covariance = scores_and_covariance(tasks)
    weights = np.repeat([1 / sizes[0], -1 / sizes[1]], sizes)
    value = round(float(weights @ scores), 10)  # equal scores are equal numbers
    if sizes[0] == sizes[1] and all(np.array_equal(*parts) for _, parts, _ in tasks):
        return Difference(value, np.zeros(1), min(sizes))  # the same predictions under two names
    sides = []
    parts = np.split(np.arange(len(scores)), sizes[:1])
    for seeds, prior in zip(parts, priors, strict=True):
        if len(seeds) > 1:
            explained = example_share(covariance[np.ix_(seeds, seeds)])
        else:
            explained = prior.examples if prior else 0.0
        sides.append(Side(scores[seeds], explained, prior))
    of_examples = max(0.0, float(weights @ covariance @ weights))
    is_decided = all(side.is_enough for side in sides)
    return Difference(value, _total(of_examples, sides), min(sizes), is_decided, of_examples, tuple(sides))


def welch(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Difference of the means of two samples of numbers by Welch's t-test; decided from two of each on."""
    one, other = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    value = round(float(one.mean() - other.mean()), 10)
    seeds = min(len(one), len(other))
    if seeds < 2:
        return Difference(value, np.zeros(1), seeds, is_decided=False)
    parts = np.array([side.var(ddof=1) / len(side) for side in (one, other)])
    squares = (parts**2 / [len(one) - 1, len(other) - 1]).sum()
    if not squares:
        return Difference(value, np.zeros(1), seeds)
    freedom = parts.sum() ** 2 / squares
    drawn = parts.sum() * freedom / chi2_quantiles(np.array([freedom]), QUANTILES**2)[0]
    return Difference(value, drawn, seeds)


def seed_mean(tasks: Sequence[Scored]) -> tuple[float, float, float]:
    """Mean of the tasks' metrics over the seeds of one part, and the ends of its 95 % interval.

    Seeds and examples are crossed random effects: the variance of the examples is the jackknife's, S > 1 seeds add 1/S
    of the variance of their scores that the examples do not explain, and t has the degrees of freedom of Satterthwaite
    (1946). It borrows nothing, and is conservative; with one seed it is an interval of the examples alone.
    """
    from scipy.special import stdtrit

    scores, covariance = scores_and_covariance(tasks)
    S = len(scores)
    variance = covariance.mean()
    freedom = np.inf
    if S > 1:
        between = scores.var(ddof=1)
        variance += max(0.0, between - example_share(covariance)) / S
        squares = (between / S) ** 2 / (S - 1)
        freedom = max(variance**2 / squares, S - 1) if squares else np.inf
    value = round(float(scores.mean()), 10)
    half = float(np.sqrt(max(variance, 0.0)).round(10) * stdtrit(freedom, 0.975))
    return value, value - half, min(value + half, 1.0) if not np.isnan(value) else np.nan  # no score is higher
