"""A difference between two configurations, its p-values and its interval.

The rule is in `mtbert_lab.statistics`. S seeds, Q quantiles.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy import ndarray

from mtbert_lab.statistics.intervals import Scored, example_share, interval_text, scores_and_covariance
from mtbert_lab.statistics.variances import QUANTILES, SEEDS, Prior, Side, chi2_quantiles

LEVEL = 0.05
PAIRED_SEEDS = 6  # of a method and of none, for a verdict on forgetting
UNKNOWN = np.full(1, np.nan)  # the variance of one seed or one pair


def count_seeds(n: int) -> str:
    return "1 seed" if n == 1 else f"{n} seeds"


@dataclass(frozen=True, repr=False)
class Difference:
    """A difference between two configurations, and draws of its variance."""

    value: float
    variances: ndarray  # (D,)
    seeds: int  # the smaller number of the two
    is_decided: bool = True  # else there are too few seeds for a verdict
    of_examples: float = 0.0  # the part of the variance that comes from the examples
    sides: tuple[Side, ...] = ()  # of a difference of scores; none of `welch` and `paired`

    def __repr__(self) -> str:
        seeds = count_seeds(self.seeds)
        if not self.is_decided:
            seeds += ", too few for a verdict"
        return f"<Difference {interval_text(self.value, *self.known_interval(), '+.4f')}, p {self.p:.2g}, {seeds}>"

    def p_beyond(self, distance: float) -> float:
        """Probability of an estimate that is off by more than this in one direction."""
        from scipy.special import ndtr  # here, as it is slow to import

        with np.errstate(divide="ignore", invalid="ignore"):
            z = -distance / np.sqrt(self.variances)
        z = np.nan_to_num(z, nan=0.0)  # 0 / 0: neither distance nor variance
        return float(ndtr(z).mean())

    def _distance_of(self, p: float) -> float:
        """The distance with this probability: the inverse of `p_beyond`."""
        from scipy.optimize import brentq

        highest = 40 * float(np.sqrt(self.variances.max()))  # its probability is 0 in floats
        if not highest > 0:
            return highest  # 0, or nan where the variance is not defined
        return brentq(lambda distance: self.p_beyond(distance) - p, 0.0, highest)

    @cached_property
    def p(self) -> float:
        """Two-sided p-value of no difference; 1 where a metric is not defined."""
        if np.isnan(self.value):
            return 1.0
        return min(1.0, 2 * self.p_beyond(abs(self.value)))

    def p_within(self, margin: float) -> float:
        """p-value of two one-sided tests that the difference is smaller than the margin (Schuirmann 1987)."""
        return self.p_beyond(margin - abs(self.value))

    def p_under(self, margin: float) -> float:
        """p-value of a one-sided test that the difference is below the margin."""
        return self.p_beyond(margin - self.value)

    def interval(self, level: float = 1 - LEVEL) -> tuple[float, float]:
        """The ends of the interval outside of which are the values with a two-sided p-value below 1 - level.

        Where nothing says how much seeds vary, both are of these two models alone, over examples; see `is_known`.
        """
        if np.isnan(self.value):
            return np.nan, np.nan
        half = self._distance_of((1 - level) / 2)
        return self.value - half, self.value + half

    @property
    def is_known(self) -> bool:
        """Whether each side's seeds, or a prior, say how much seeds vary."""
        return all(side.is_known for side in self.sides)

    def known_interval(self) -> tuple[float, float]:
        """The 95 % interval over seeds and examples; nan where nothing says how much seeds vary."""
        return self.interval() if self.is_known else (np.nan, np.nan)

    @property
    def prior(self) -> Prior | None:
        """The prior of a side of fewer than SEEDS seeds, where the difference is decided by it."""
        few = [side.prior for side in self.sides if len(side.scores) < SEEDS]
        return few[0] if few and self.is_decided else None

    @property
    def cautious(self) -> "Difference":
        """The same with every d0 at its lower 95 % bound."""
        if not self.sides:
            return self
        sides = []
        for side in self.sides:
            prior = side.prior and side.prior.cautious
            sides.append(replace(side, prior=prior))
        return self._with(sides)

    def with_seeds(self, n: int) -> "Difference":
        """The same with n seeds on each side that has fewer, see `Side.with_seeds`."""
        sides = [side.with_seeds(n) for side in self.sides]
        return replace(self._with(sides), seeds=min(len(side.scores) for side in sides))

    def _with(self, sides: Sequence[Side]) -> "Difference":
        """The same difference with other sides, and so with another variance."""
        return replace(self, variances=_total(self.of_examples, sides), sides=tuple(sides))

    def text(self) -> str:
        """'+0.007 (+0.002 to +0.012)'."""
        return interval_text(self.value, *self.known_interval(), "+.3f")


def _total(of_examples: float, sides: Sequence[Side]) -> ndarray:
    """Draws (Q^2,) of the variance of a difference."""
    first, second = sides
    return of_examples + np.add.outer(first.variances, second.variances).ravel()


def difference_of_scores(
    tasks: Sequence[Scored],
    sizes: tuple[int, int],
    priors: tuple[Prior | None, Prior | None] = (None, None),
) -> Difference:
    """Mean of the tasks' metrics, of the first seeds minus of the others; sizes: how many both are; priors: of both."""
    scores, covariance = scores_and_covariance(tasks)
    weights = np.repeat([1 / sizes[0], -1 / sizes[1]], sizes)
    value = _rounded(weights @ scores)  # equal scores are equal numbers
    seeds = np.split(np.arange(len(scores)), sizes[:1])  # of either side
    first, second = seeds
    sides = []
    for own, prior in zip(seeds, priors, strict=True):
        if len(own) > 1:
            explained = example_share(covariance[np.ix_(own, own)])
        else:
            explained = prior.examples if prior else 0.0
        sides.append(Side(scores[own], explained, prior))
    is_decided = all(side.is_enough for side in sides)
    if all(np.array_equal(one.predicted[first], one.predicted[second]) for one in tasks):  # equal under two names
        return Difference(value, np.zeros(1), min(sizes), is_decided)

    of_examples = max(float(weights @ covariance @ weights), 0.0)  # in this order nan stays nan
    return Difference(
        value,
        variances=_total(of_examples, sides),
        seeds=min(sizes),
        is_decided=is_decided,
        of_examples=of_examples,
        sides=tuple(sides),
    )


def _rounded(value: float) -> float:
    """Ten decimals; what rounds to -0.0 is 0.0, as the sign of a sum of rounding errors differs between machines."""
    return round(float(value), 10) + 0.0


def welch(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Difference of the means of two samples of numbers by Welch's t-test; decided from two of each on."""
    samples = [np.asarray(sample, dtype=float) for sample in (first, second)]
    sizes = np.array([len(sample) for sample in samples])
    seeds = int(sizes.min())
    first_mean, second_mean = (sample.mean() for sample in samples)
    value = _rounded(first_mean - second_mean)
    if seeds < 2:
        return Difference(value, UNKNOWN, seeds, is_decided=False)

    variances = np.array([sample.var(ddof=1) for sample in samples])
    variances = variances / sizes  # of the means
    squares = (variances**2 / (sizes - 1)).sum()
    if not squares:
        return Difference(value, np.zeros(1), seeds)
    variance = variances.sum()
    freedom = variance**2 / squares
    drawn = variance * freedom / chi2_quantiles(freedom, QUANTILES**2)
    return Difference(value, drawn, seeds)


def paired(gaps: Sequence[float]) -> Difference:
    """Mean of what pairs of the same seed differ by, by Student's t-test; decided from PAIRED_SEEDS pairs on."""
    values = np.asarray(gaps, dtype=float)
    S = len(values)
    value = _rounded(values.mean()) if S else np.nan
    if S < 2:
        return Difference(value, UNKNOWN, S, is_decided=False)
    drawn = values.var(ddof=1) / S * (S - 1) / chi2_quantiles(S - 1.0, QUANTILES**2)
    return Difference(value, drawn, S, is_decided=S >= PAIRED_SEEDS)
