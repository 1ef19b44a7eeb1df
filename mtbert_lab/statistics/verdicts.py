"""Verdicts on claims and differences, corrected for their number.

The rule is in `mtbert_lab.statistics`. m comparisons of one family.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy import ndarray

from mtbert_lab.statistics.differences import LEVEL, Difference
from mtbert_lab.statistics.resamples import Estimate
from mtbert_lab.statistics.variances import SEEDS

MARGINS = {"sst": 0.02, "cfimdb": 0.02, "quora": 0.005, "sts": 0.015}  # scores that differ by less count as equal
MEAN_MARGIN = 0.01  # of a mean of tasks, and of tasks of one's own
MOST_SEEDS = 30  # of a configuration; a difference that needs more is not worth them
REPRODUCED = "reproduced"
CONTRADICTED = "contradicted"
NO_DIFFERENCE = "no difference that matters"
TOO_FEW = "too few runs to tell"
NOT_SHOWN = "not shown"  # of an estimate, which has no margin
OF_DIFFERENCES = {REPRODUCED: "better", CONTRADICTED: "worse"}
ORDERS = ("greater", "smaller")
Correction = Callable[[ndarray], ndarray]


def holm(p_values: ndarray) -> ndarray:
    """p-values of m comparisons (m,), corrected for their number: at most 5 % risk of any false one below 0.05.

    Holm 1979: the k-th smallest times m + 1 - k, at least the one before it and at most 1.
    """
    return np.minimum(1, holm_unbounded(p_values))


def holm_unbounded(p_values: ndarray) -> ndarray:
    """As `holm`, but above 1 too: LEVEL times a p-value divided by it is the level at which Holm's method judges it."""
    p_values = np.asarray(p_values, dtype=float)
    m = len(p_values)
    order = np.argsort(p_values)
    raised = p_values[order] * np.arange(m, 0, -1)
    corrected = np.empty(m)
    corrected[order] = np.maximum.accumulate(raised)
    return corrected


def benjamini_hochberg(p_values: ndarray) -> ndarray:
    """p-values of m comparisons (m,), corrected so that at most 5 % of those below 0.05 are false on average.

    Benjamini and Hochberg 1995: the k-th smallest times m / k, at most the one behind it.
    """
    from scipy.stats import false_discovery_control  # here, as it is slow to import

    return false_discovery_control(p_values)


def margin_of(what: str | None) -> float:
    """The margin of a task, or of a mean of tasks."""
    return MARGINS.get(what or "", MEAN_MARGIN)


class Claim(NamedTuple):
    """A comparison that is judged."""

    claimed: str  # "greater" or "smaller", "equal" (by less than the margin), "not greater" (by the margin or more)
    found: Difference
    margin: float


class Judged(NamedTuple):
    """A verdict, and the interval at the level at which the correction judged it."""

    verdict: str  # REPRODUCED, CONTRADICTED, NO_DIFFERENCE or TOO_FEW
    low: float
    high: float
    p: float  # of the claim alone; nan where there are too few seeds for a verdict
    corrected: float
    is_small: bool = False  # an order is shown, and the difference is smaller than the margin
    seeds_needed: float = math.nan  # too few runs: seeds of either side that would tell; inf: more than MOST_SEEDS
    cautious: str = ""  # the verdict with d0 at its lower bound


class Tested(NamedTuple):
    """A p-value, and what it is raised to where it is corrected for the size of its family, maybe above 1."""

    p: float
    raised: float

    @property
    def corrected(self) -> float:
        return min(1.0, self.raised)

    @property
    def level(self) -> float:
        """The level at which the correction judges it."""
        return LEVEL * (self.p / self.raised if self.raised else 1.0)


def p_of_claim(claim: Claim) -> tuple[float, str]:
    """The p-value of a claim, and what it says if it is small enough."""
    claimed, found, margin = claim
    if np.isnan(found.value):
        return 1.0, TOO_FEW
    if claimed in ORDERS:
        is_as_claimed = (found.value > 0) == (claimed == "greater")
        return found.p, REPRODUCED if is_as_claimed else CONTRADICTED
    p = found.p_within(margin) if claimed == "equal" else found.p_under(margin)
    if p < 0.5:
        return p, REPRODUCED
    return 1 - p, CONTRADICTED


def p_of_equality(claim: Claim) -> float:
    """The p-value of "no difference that matters", which an order has; 1 for other claims."""
    if claim.claimed not in ORDERS or np.isnan(claim.found.value):
        return 1.0
    return claim.found.p_within(claim.margin)


def judge(claims: Sequence[Claim], correct: Correction) -> list[Judged]:
    """The verdicts on one family of comparisons.

    correct: `holm_unbounded` or `benjamini_hochberg`. The p-values of the claims are corrected together, and so are
    those of "no difference that matters", where claims that have no such test count with a p-value of 1. Comparisons
    with too few seeds for a verdict are not in the family.
    """
    careful = [claim._replace(found=claim.found.cautious) for claim in claims]
    pairs = zip(_judge(claims, correct), _judge(careful, correct), strict=True)
    return [one._replace(cautious=other.verdict) for one, other in pairs]


def _judge(claims: Sequence[Claim], correct: Correction) -> list[Judged]:
    family = [claim for claim in claims if claim.found.is_decided]
    of_claims = _tested([p_of_claim(claim)[0] for claim in family], correct)
    of_equality = _tested([p_of_equality(claim) for claim in family], correct)
    decided = map(_judge_one, family, of_claims, of_equality)  # in the order of the claims
    return [next(decided) if claim.found.is_decided else _undecided(claim) for claim in claims]


def _tested(p_values: Sequence[float], correct: Correction) -> list[Tested]:
    p = np.array(p_values, dtype=float)
    return list(map(Tested, p.tolist(), correct(p).tolist()))


def _undecided(claim: Claim) -> Judged:
    """The verdict where there are too few seeds for any."""
    low, high = claim.found.known_interval()
    needed = _seeds_needed(claim, LEVEL, LEVEL)
    return Judged(TOO_FEW, low, high, p=math.nan, corrected=math.nan, seeds_needed=needed)


def _judge_one(claim: Claim, claimed_test: Tested, equality: Tested) -> Judged:
    """claimed_test: the test of what is claimed; equality: that of "no difference that matters"."""
    claimed, found, margin = claim
    is_order = claimed in ORDERS
    sides = 1 if is_order else 2  # margins are tested on one side each
    low, high = found.interval(1 - sides * claimed_test.level)
    if claimed_test.corrected < LEVEL:
        is_small = is_order and abs(found.value) < margin
        return Judged(p_of_claim(claim)[1], low, high, claimed_test.p, claimed_test.corrected, is_small)
    if equality.corrected < LEVEL:
        low, high = found.interval(1 - 2 * equality.level)
        return Judged(NO_DIFFERENCE, low, high, claimed_test.p, claimed_test.corrected)
    needed = _seeds_needed(claim, claimed_test.level, equality.level)
    return Judged(TOO_FEW, low, high, claimed_test.p, claimed_test.corrected, seeds_needed=needed)


def _seeds_needed(claim: Claim, level: float, equal_level: float) -> float:
    """The fewest seeds of either side with which a difference of this size would have a verdict.

    nan where this is not known: without a value, or where nothing says how much seeds vary. The seeds to come are
    taken to vary by the median of what today's say.
    """
    claimed, found, margin = claim
    if np.isnan(found.value) or not found.sides or not found.is_known:
        return math.nan
    size = abs(found.value)
    if claimed in ORDERS:
        distances = [(size, level / 2), (margin - size, equal_level)]  # from what the interval must exclude
    elif claimed == "equal":
        distances = [(abs(margin - size), level)]
    else:
        distances = [(abs(margin - found.value), level)]
    fewest = 1 + min(len(side.scores) for side in found.sides)
    for seeds in range(max(SEEDS, fewest), MOST_SEEDS + 1):
        then = found.with_seeds(seeds)
        if any(then.p_beyond(distance) < alpha for distance, alpha in distances):
            return seeds
    return math.inf


def decide(found: Sequence[Difference], margins: Sequence[float]) -> pd.DataFrame:
    """Verdicts on the differences of one table, corrected for their number by Holm's method, a row each.

    margins: below which a difference does not matter, one for each. Columns: seeds; value, low, high (the interval at
    the level at which it was judged); p (corrected); verdict ("better", "worse", NO_DIFFERENCE, TOO_FEW); is_small
    ("better" or "worse" by less than the margin); seeds_needed; cautious (the verdict with d0 at its lower bound);
    prior (`Difference.prior`).
    """
    claims = [Claim("greater", one, margin) for one, margin in zip(found, margins, strict=True)]
    table = pd.DataFrame(judge(claims, holm_unbounded), columns=Judged._fields)
    words = table[["verdict", "cautious"]].replace(OF_DIFFERENCES)
    table = table.assign(**words, p=table["corrected"]).drop(columns="corrected")
    for name in ("seeds", "value", "prior"):
        table[name] = [getattr(one, name) for one in found]
    return table


def verdict_text(verdict: str, is_small: bool = False, seeds_needed: float = math.nan) -> str:
    """A verdict with what belongs to it, such as "better, by less than the margin"."""
    if is_small:
        return f"{verdict}, by less than the margin"
    return verdict if math.isnan(seeds_needed) else f"{verdict} ({seeds_text(seeds_needed)})"


def seeds_text(seeds_needed: float) -> str:
    """How many seeds of either side would tell: "7 seeds would tell", "not even 30 seeds would"."""
    if math.isinf(seeds_needed):
        return f"not even {MOST_SEEDS} seeds would"
    return f"{seeds_needed:.0f} seeds would tell"


def judge_estimates(estimates: Mapping[Hashable, Estimate]) -> pd.DataFrame:
    """A row per difference from 0: what, value, low, high, p (corrected by Holm's method for their number), verdict.

    verdict: "higher" or "lower" where the corrected p is below LEVEL, else NOT_SHOWN, as an estimate has no margin.
    Differences that are not defined are left out.
    """
    table = pd.DataFrame(list(estimates.values()), columns=Estimate._fields)
    table.insert(0, "what", list(estimates))
    table = table.dropna(subset="p").reset_index(drop=True)
    table["p"] = holm(table["p"])
    words = np.where(table["value"] > 0, "higher", "lower")
    table["verdict"] = np.where(table["p"] < LEVEL, words, NOT_SHOWN)
    return table
