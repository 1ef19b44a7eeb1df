"""Estimates over seeds and examples, and the rule for verdicts: the only place for either.

The rule, stated before the runs that it judges.

*Difference.* Mean score of one configuration minus that of another, on the same dev examples, unpaired in the seeds.
Its variance is the jackknife's over the examples (Efron 1982) plus, for each of the two configurations,
max(0, sigma^2 - e) / S: S seeds, sigma^2 the variance of a score over seeds, e the part of it that the examples
explain.

*Moderated seed variance* (Smyth 2004). The sample variance s^2 of S seeds is taken for s0^2 F(S - 1, d0). s0^2 and d0
are estimated by maximum likelihood from the configurations of a stratum; d0 is averaged over its likelihood on a grid
from 0.5 to 1,000, capped at the stratum's degrees of freedom. Given them, sigma^2 is drawn from
(d0 s0^2 + (S - 1) s^2) / chi^2(d0 + S - 1), by quantiles and not at random. The p-value of a difference D is the mean
of 2 Phi(-|D| / sqrt V) over the draws, V the variance above. e is the configuration's own, or the stratum's mean for
one seed.

*Stratum.* Runs of the same scheme and number of steps with a pretrained encoder that is not frozen, the last step kept,
the sentences of a pair in one sequence, no pretraining after the training, no teachers; for each trained task, or mean
of tasks, by itself. Runs of single tasks borrow from all runs of their task and number of steps, of whatever scheme but
in turn. It lends from 10 configurations with two seeds or more and 20 degrees of freedom on, and not to tasks in turn,
nor to a configuration whose mean score is more than 2 s0 below the lowest of those configurations. Configurations that
differ in nothing that trains count once.

*Seeds.* One seed is enough where a stratum lends, else three are needed (d0 is then 0): with fewer, "not decided".

*Words.* A claimed order is "reproduced" or "contradicted" where the corrected p-value is below LEVEL. Of "no
difference", p is that of two one-sided tests against the margin (Schuirmann 1987) or of its opposite, whichever is
smaller: the difference is shown to be below the margin ("reproduced", or "different, but by less than the margin" where
0 is excluded, too) or above it ("contradicted"). "No improvement" is the same on one side. Else "too close to call".
An interval is printed at the level at which the correction judges its p-value, so that both always agree.

*Families.* Claims of the papers are corrected together by Benjamini and Hochberg's method (1995), a claim that repeats
a comparison counting once; the comparisons of one question of a notebook by Holm's (1979).

*Losses, gaps between train and dev, costs* are compared by Welch's t-test with two seeds or more on either side, costs
on logarithms and only between runs of one version on one machine.


Symbols: N examples, S seeds, T tasks, Q quantiles.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

MARGINS = {"sst": 0.02, "cfimdb": 0.02, "quora": 0.005, "sts": 0.015}  # scores that differ by less count as equal
MEAN_MARGIN = 0.01  # of a mean of tasks, and of tasks of one's own
LEVEL = 0.05
SEEDS = 3  # needed where no stratum lends its seed variance
LENDERS, FREEDOM = 10, 20  # configurations with two seeds or more, and degrees of freedom, from which a stratum lends
BELOW = 2.0  # standard deviations below the lowest of these configurations, from where it does not lend

REPRODUCED, CONTRADICTED, CLOSE = "reproduced", "contradicted", "too close to call"
SMALL, NOT_DECIDED = "different, but by less than the margin", "not decided"
QUANTILES = 100  # of a side's variance; a difference has the square of it as draws
BLOCK = 2**17  # weights at a time, so that they stay in the processor's cache
# (predicted (..., N), labels (..., N), weights (R, N) or None) -> (...,) or (..., R); see mtbert.training.metrics
Metric = Callable[..., np.ndarray]
# A task's metric, the predictions (S, N) of one or two parts, and the labels (N,)
Scored = tuple[Metric, list[np.ndarray], np.ndarray]


def _jackknife(metric: Metric, parts: list[np.ndarray], labels: np.ndarray) -> np.ndarray:
    """Covariance of the scores of all S seeds over the examples, from leaving out one example at a time: (S, S)."""
    columns, counts = _count_columns(np.vstack([*parts, labels]))  # kinds of examples
    left_out = []  # scores (S, B) without one example of each of B kinds
    for kinds in np.array_split(np.arange(len(counts)), len(counts) ** 2 // BLOCK + 1):
        weights = counts - (kinds[:, None] == np.arange(len(counts)))
        with np.errstate(divide="ignore", invalid="ignore"):  # nothing is left of a single example
            left_out.append(metric(columns[:-1], columns[-1], weights))
    return (len(labels) - 1) * np.atleast_2d(np.cov(np.hstack(left_out), fweights=counts, bias=True))


def _count_columns(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different columns of a table, (rows, K), and how often each occurs, (K,): np.unique, 30 times as fast."""
    table = table[:, np.lexsort(table[::-1])]
    is_new = (table[:, 1:] != table[:, :-1]).any(axis=0)
    starts = np.flatnonzero(np.append(True, is_new))
    return table[:, starts], np.diff(starts, append=table.shape[1])


def scores_and_covariance(tasks: Sequence[Scored]) -> tuple[np.ndarray, np.ndarray]:
    """The mean of the tasks' metrics of every seed, (S,), and its covariance over the examples, (S, S)."""
    scores = np.mean([metric(np.vstack(parts), labels) for metric, parts, labels in tasks], axis=0)
    return scores, sum(_jackknife(*task) for task in tasks) / len(tasks) ** 2


def example_share(covariance: np.ndarray) -> float:
    """The part e of the variance of S > 1 scores over seeds that the examples explain; covariance: (S, S)."""
    S = len(covariance)
    return float((np.trace(covariance) - covariance.sum() / S) / (S - 1))


def _chi2_quantiles(freedom: np.ndarray, count: int) -> np.ndarray:
    """Mid-quantiles of chi^2 with these degrees of freedom: (G,) -> (G, count)."""
    from scipy.special import gammaincinv  # here, as it is slow to import

    levels = (np.arange(count) + 0.5) / count
    return 2 * gammaincinv(np.asarray(freedom)[:, None] / 2, levels)


@dataclass(frozen=True)
class Prior:
    """The seed variance that a stratum lends (Smyth 2004)."""

    lenders: int  # configurations with two seeds or more
    freedom: int  # their degrees of freedom
    d0: np.ndarray  # (G,) prior degrees of freedom
    variances: np.ndarray  # (G,) s0^2 of each d0
    weights: np.ndarray  # (G,) likelihood of each d0
    examples: float  # mean part of the seed variance that the examples explain
    lowest: float  # lowest mean score of a lender

    @classmethod
    def fit(cls, scores: Sequence[np.ndarray], shares: Sequence[float]) -> "Prior":
        """scores: of every lender its seeds' scores (S,), S > 1; shares: its `example_share`."""
        freedoms = np.array([len(one) - 1 for one in scores], dtype=float)
        variances = np.array([one.var(ddof=1) for one in scores])
        d0 = np.geomspace(0.5, 1000, 60)
        s0 = _likeliest_variances(d0, variances, freedoms)
        likelihood = _log_likelihood(d0, s0, variances, freedoms)
        weights = np.exp(likelihood - likelihood.max())
        total = int(freedoms.sum())
        return cls(
            lenders=len(scores),
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
        return self.lenders >= LENDERS and self.freedom >= FREEDOM

    def lends_to(self, score: float) -> bool:
        """Whether a configuration with this mean score is like the lenders."""
        return self.is_enough and score >= self.lowest - BELOW * self.deviation

    @property
    def cautious(self) -> "Prior":
        """The same with d0 at its lower 95 % bound, for a second look at a verdict."""
        bound = int(np.argmax(self.weights.cumsum() >= 0.05))
        return replace(self, weights=np.eye(len(self.weights))[bound])


def _log_likelihood(d0: np.ndarray, s0: np.ndarray, variances: np.ndarray, freedoms: np.ndarray) -> np.ndarray:
    """Of variances (K,) that are s0^2 F(freedoms, d0), for each d0 and s0^2 (G,): (G,). Terms of neither are left out,
    which are infinite for a variance of 0."""
    from scipy.special import betaln

    d = d0[:, None]
    v = freedoms
    ratio = v / d
    terms = v / 2 * np.log(ratio / s0[:, None]) - (v + d) / 2 * np.log1p(ratio * variances / s0[:, None])
    return (terms - betaln(v / 2, d / 2)).sum(1)


def _likeliest_variances(d0: np.ndarray, variances: np.ndarray, freedoms: np.ndarray) -> np.ndarray:
    """s0^2 with the highest likelihood at each d0 (G,): the root of the derivative, which falls, by bisection."""
    low = np.full(len(d0), np.log(max(variances.max(), 1e-300)) - 40)
    high = np.full(len(d0), np.log(max(variances.max(), 1e-300)) + 5)
    for _ in range(60):
        middle = (low + high) / 2
        x = freedoms / d0[:, None] * variances / np.exp(middle)[:, None]
        slope = ((freedoms + d0[:, None]) * x / (1 + x) - freedoms).sum(1)
        low, high = np.where(slope > 0, middle, low), np.where(slope > 0, high, middle)
    return np.exp((low + high) / 2)


def draw_variances(scores: np.ndarray, prior: Prior | None) -> np.ndarray:
    """Quantiles (Q,) of sigma^2, the variance over seeds, given the scores (S,) of some; S > 1 without a prior."""
    S = len(scores)
    own = (S - 1) * scores.var(ddof=1) if S > 1 else 0.0
    if prior is None:
        return own / _chi2_quantiles(np.array([S - 1.0]), QUANTILES)[0]
    freedom = prior.d0 + S - 1
    drawn = (prior.d0 * prior.variances + own)[:, None] / _chi2_quantiles(freedom, QUANTILES)
    order = np.argsort(drawn, axis=None)
    weight = np.repeat(prior.weights / QUANTILES, QUANTILES)[order]
    levels = (np.arange(QUANTILES) + 0.5) / QUANTILES
    return np.interp(levels, weight.cumsum() - weight / 2, drawn.ravel()[order])


@dataclass(frozen=True)
class Side:
    """The seeds of one configuration of a difference."""

    scores: np.ndarray  # (S,)
    explained: float  # the part of their variance that the examples explain
    prior: Prior | None  # of a stratum that lends to it

    @property
    def is_enough(self) -> bool:
        return self.prior is not None or len(self.scores) >= SEEDS

    @property
    def variances(self) -> np.ndarray:
        """Draws (Q,) of what its seeds add to the variance; of one seed that borrows nothing 0."""
        if self.prior is None and len(self.scores) == 1:
            return np.zeros(1)
        return np.maximum(0, draw_variances(self.scores, self.prior) - self.explained) / len(self.scores)


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
    for seeds, prior in zip(np.split(np.arange(len(scores)), sizes[:1]), priors, strict=True):
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
    drawn = parts.sum() * freedom / _chi2_quantiles(np.array([freedom]), QUANTILES**2)[0]
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


def holm(p_values: np.ndarray) -> np.ndarray:
    """p-values of m comparisons (m,), corrected for their number: at most 5 % risk of any false one below 0.05.

    Holm 1979: the k-th smallest times m + 1 - k, at least the one before it and at most 1.
    """
    p_values = np.asarray(p_values, dtype=float)
    order = np.argsort(p_values)
    m = len(p_values)
    corrected = np.empty(m)
    corrected[order] = np.minimum(1, np.maximum.accumulate(p_values[order] * np.arange(m, 0, -1)))
    return corrected


def benjamini_hochberg(p_values: np.ndarray) -> np.ndarray:
    """p-values of m comparisons (m,), corrected so that at most 5 % of those below 0.05 are false on average.

    Benjamini and Hochberg 1995: the k-th smallest times m / k, at most the one behind it.
    """
    p_values = np.asarray(p_values, dtype=float)
    order = np.argsort(p_values)[::-1]
    m = len(p_values)
    corrected = np.empty(m)
    corrected[order] = np.minimum.accumulate(np.append(1.0, p_values[order] * m / np.arange(m, 0, -1)))[1:]
    return corrected


def p_of_claim(claimed: str, found: Difference, margin: float) -> tuple[float, str]:
    """The p-value of a claim, and what it says if it is small enough.

    claimed: "greater" or "smaller", "equal" (by less than the margin), "not greater" (by the margin or more).
    """
    if np.isnan(found.value):
        return 1.0, CLOSE
    if claimed in ("greater", "smaller"):
        is_as_claimed = (found.value > 0) == (claimed == "greater")
        return found.p, REPRODUCED if is_as_claimed else CONTRADICTED
    p = found.p_within(margin) if claimed == "equal" else found.p_under(margin)
    return (p, REPRODUCED) if p < 0.5 else (1 - p, CONTRADICTED)


def judge(claimed: str, found: Difference, margin: float, corrected: float) -> tuple[str, float, float]:
    """The verdict on a claim, given its corrected p-value, and the interval at the level at which it was judged."""
    if not found.is_decided:
        return (NOT_DECIDED, *found.interval())
    p, says = p_of_claim(claimed, found, margin)
    alpha = LEVEL * (p / corrected if corrected else 1.0)
    is_order = claimed in ("greater", "smaller")
    low, high = found.interval(1 - alpha if is_order else 1 - 2 * alpha)  # margins are tested on one side each
    if corrected >= LEVEL:
        return CLOSE, low, high
    if claimed == "equal" and says == REPRODUCED and (low > 0 or high < 0):
        says = SMALL
    return says, low, high


def decide(found: Sequence[Difference]) -> pd.DataFrame:
    """Verdicts on the differences of one question, corrected for their number by Holm's method, a row each.

    Columns: seeds; value, low, high (the interval at the corrected level); p (corrected); verdict ("better", "worse",
    "too close to call", "not decided"); cautious (the verdict with d0 at its lower bound); is_lent.
    """
    words = {REPRODUCED: "better", CONTRADICTED: "worse"}

    def verdicts(differences: Sequence[Difference]) -> pd.DataFrame:
        p = np.full(len(differences), np.nan)
        is_decided = np.array([one.is_decided for one in differences], dtype=bool)
        p[is_decided] = holm(np.array([one.p for one in differences if one.is_decided]))
        judged = [judge("greater", one, 0.0, at) for one, at in zip(differences, p, strict=True)]
        table = pd.DataFrame(judged, columns=["verdict", "low", "high"])
        return table.assign(p=p, verdict=table["verdict"].replace(words))

    table = verdicts(found)
    about = {"seeds": [one.seeds for one in found], "value": [one.value for one in found]}
    about |= {name: table[name] for name in ("low", "high", "p", "verdict")}
    about |= {"cautious": verdicts([one.cautious for one in found])["verdict"]}
    return pd.DataFrame(about | {"is_lent": [one.is_lent for one in found]})
