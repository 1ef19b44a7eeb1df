"""The variance of scores over seeds: that of the seeds at hand, pooled with the prior of a stratum of similar runs.

The rule is in `mtbert_lab.statistics`. N examples, S seeds, T tasks, Q quantiles.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy import ndarray

SEEDS = 3  # needed without a prior
CONFIGURATIONS, FREEDOM = 10, 20  # with two seeds or more, and their degrees of freedom: the least for a prior
BELOW = 2.0  # standard deviations below the lowest of these configurations: the lowest score that a prior is for
QUANTILES = 100  # of a side's variance; a difference has the square of it as draws


def _levels(count: int) -> ndarray:
    """The probabilities of mid-quantiles."""
    return (np.arange(count) + 0.5) / count


def chi2_quantiles(freedom: ndarray | float, count: int) -> ndarray:
    """Mid-quantiles of chi^2 with these degrees of freedom: (...) -> (..., count)."""
    from scipy.special import gammaincinv  # here, as it is slow to import

    half = np.asarray(freedom)[..., None] / 2
    return 2 * gammaincinv(half, _levels(count))


@functools.lru_cache
def _cached_quantiles(freedom: tuple[float, ...]) -> ndarray:
    """`chi2_quantiles`, (G, QUANTILES): many differences have one prior and as many seeds."""
    return chi2_quantiles(np.array(freedom), QUANTILES)


@dataclass(frozen=True)
class Prior:
    """The prior of the variance over seeds in a stratum (Smyth 2004)."""

    configurations: int  # with two seeds or more, that it was estimated from
    freedom: int  # their degrees of freedom
    d0: ndarray  # (G,) prior degrees of freedom
    variances: ndarray  # (G,) s0^2 of each d0
    weights: ndarray  # (G,) likelihood of each d0
    examples: float  # mean part of the seed variance that the examples explain
    lowest: float  # lowest mean score of these configurations

    @classmethod
    def fit(cls, scores: Sequence[ndarray], shares: Sequence[float]) -> "Prior | None":
        """scores: the seeds' scores (S,) of every configuration, S > 1; shares: its `example_share`.

        None where the seeds of so many configurations have equal scores that the likeliest variance is 0.
        """
        freedoms = np.array([len(one) - 1 for one in scores], dtype=float)
        variances = np.array([one.var(ddof=1) for one in scores])
        total = int(freedoms.sum())
        d0 = np.geomspace(0.5, 1000, 60)
        s0 = _likeliest_variances(d0, variances, freedoms)
        if np.isnan(s0).any():
            return None
        likelihood = _log_likelihood(d0, s0, variances, freedoms)
        weights = np.exp(likelihood - likelihood.max())
        return cls(
            configurations=len(scores),
            freedom=total,
            d0=np.minimum(d0, total),
            variances=s0,
            weights=weights / weights.sum(),
            examples=float(np.mean(shares)),
            lowest=float(min(one.mean() for one in scores)),
        )

    @property
    def deviation(self) -> float:
        """s0, the standard deviation over seeds, averaged over d0."""
        return float(np.sqrt(self.weights @ self.variances))

    @property
    def is_enough(self) -> bool:
        return self.configurations >= CONFIGURATIONS and self.freedom >= FREEDOM

    def fits(self, score: float) -> bool:
        """Whether it is the prior of a configuration with this mean score."""
        lowest = self.lowest - BELOW * self.deviation
        return self.is_enough and score >= lowest

    @property
    def cautious(self) -> "Prior":
        """The same with d0 at its lower 95 % bound, for a second look at a verdict."""
        bound = np.argmax(self.weights.cumsum() >= 0.05)
        weights = np.zeros_like(self.weights)
        weights[bound] = 1
        return replace(self, weights=weights)


def _log_likelihood(
    d0: ndarray,
    s0: ndarray,
    variances: ndarray,
    freedoms: ndarray,
) -> ndarray:
    """Log-likelihood (G,) of each d0 and s0^2 (G,), where the variances (K,) are s0^2 F(freedoms, d0).

    Terms of neither d0 nor s0^2 are left out: they are infinite for a variance of 0.
    """
    from scipy.special import betaln

    d = d0[:, None]
    v = freedoms
    ratio = v / d
    scale = s0[:, None]
    scale_terms = v / 2 * np.log(ratio / scale)
    variance_terms = (v + d) / 2 * np.log1p(ratio * variances / scale)
    terms = scale_terms - variance_terms - betaln(v / 2, d / 2)  # (G, K)
    return terms.sum(1)


def _likeliest_variances(d0: ndarray, variances: ndarray, freedoms: ndarray) -> ndarray:
    """s0^2 with the highest likelihood at each d0 (G,): the root of the derivative, which falls; nan where it is 0."""
    from scipy.optimize.elementwise import find_root

    def slope(log_s0: ndarray, d: ndarray) -> ndarray:
        x = freedoms / d[:, None] * variances / np.exp(log_s0)[:, None]
        terms = (freedoms + d[:, None]) * x / (1 + x) - freedoms
        return terms.sum(1)

    largest = np.log(max(variances.max(), 1e-300))
    return np.exp(find_root(slope, (largest - 40, largest + 5), args=(d0,)).x)


def draw_variances(scores: ndarray, prior: Prior | None) -> ndarray:
    """Quantiles (Q,) of sigma^2, the variance over seeds, given the scores (S,) of some; S > 1 without a prior."""
    S = len(scores)
    own = (S - 1) * scores.var(ddof=1) if S > 1 else 0.0
    if prior is None:
        return own / chi2_quantiles(S - 1.0, QUANTILES)

    # Q quantiles for each d0, each weighted by the likelihood of its d0
    squares = prior.d0 * prior.variances + own
    freedom = prior.d0 + S - 1
    drawn = squares[:, None] / _cached_quantiles(tuple(freedom))  # (G, Q)
    drawn = drawn.ravel()
    weights = np.repeat(prior.weights / QUANTILES, QUANTILES)
    order = np.argsort(drawn)
    drawn = drawn[order]
    weights = weights[order]
    middles = weights.cumsum() - weights / 2
    return np.interp(_levels(QUANTILES), middles, drawn)


@dataclass(frozen=True)
class Side:
    """The seeds of one configuration of a difference."""

    scores: ndarray  # (S,)
    explained: float  # the part of their variance that the examples explain
    prior: Prior | None  # of its stratum

    @property
    def is_enough(self) -> bool:
        return self.prior is not None or len(self.scores) >= SEEDS

    @property
    def is_known(self) -> bool:
        """Whether anything says how much its seeds vary: several of them, or a prior."""
        return self.prior is not None or len(self.scores) > 1

    @property
    def variances(self) -> ndarray:
        """Draws (Q,) of what its seeds add to the variance; 0 where that is not known."""
        S = len(self.scores)
        if not self.is_known:
            return np.zeros(1)
        unexplained = draw_variances(self.scores, self.prior) - self.explained
        return np.maximum(0, unexplained) / S

    def with_seeds(self, n: int) -> "Side":
        """The side with n seeds, if it has fewer: scores whose variance is the median of what today's say it is."""
        if n <= len(self.scores):
            return self
        deviation = np.sqrt(np.median(draw_variances(self.scores, self.prior)))
        scores = np.linspace(-1, 1, n)
        return replace(self, scores=scores * deviation / scores.std(ddof=1))
