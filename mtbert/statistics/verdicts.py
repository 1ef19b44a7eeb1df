"""Verdicts on claims and differences, corrected for their number.

The rule is in `mtbert.statistics`. m comparisons of one family.
"""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import pandas as pd
from numpy import ndarray

from mtbert.statistics.differences import LEVEL, Difference
from mtbert.statistics.resamples import Estimate

MARGINS = {"sst": 0.02, "cfimdb": 0.02, "quora": 0.005, "sts": 0.015}  # scores that differ by less count as equal
MEAN_MARGIN = 0.01  # of a mean of tasks, and of tasks of one's own
REPRODUCED = "reproduced"
CONTRADICTED = "contradicted"
CLOSE = "too close to call"
SMALL = "different, but by less than the margin"
NOT_DECIDED = "not decided"
OF_DIFFERENCES = {REPRODUCED: "better", CONTRADICTED: "worse"}


def holm(p_values: ndarray) -> ndarray:
    """p-values of m comparisons (m,), corrected for their number: at most 5 % risk of any false one below 0.05.

    Holm 1979: the k-th smallest times m + 1 - k, at least the one before it and at most 1.
    """
    p_values = np.asarray(p_values, dtype=float)
    m = len(p_values)
    order = np.argsort(p_values)
    raised = p_values[order] * np.arange(m, 0, -1)
    corrected = np.empty(m)
    corrected[order] = np.minimum(1, np.maximum.accumulate(raised))
    return corrected


def benjamini_hochberg(p_values: ndarray) -> ndarray:
    """p-values of m comparisons (m,), corrected so that at most 5 % of those below 0.05 are false on average.

    Benjamini and Hochberg 1995: the k-th smallest times m / k, at most the one behind it.
    """
    from scipy.stats import false_discovery_control  # here, as it is slow to import

    return false_discovery_control(p_values)


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
    if p < 0.5:
        return p, REPRODUCED
    return 1 - p, CONTRADICTED


def judge(claimed: str, found: Difference, margin: float, corrected: float) -> tuple[str, float, float]:
    """The verdict on a claim, given its corrected p-value, and the interval at the level at which it was judged."""
    if not found.is_decided:
        return NOT_DECIDED, *found.interval()
    p, says = p_of_claim(claimed, found, margin)
    alpha = LEVEL * (p / corrected if corrected else 1.0)
    is_order = claimed in ("greater", "smaller")
    level = 1 - alpha if is_order else 1 - 2 * alpha  # margins are tested on one side each
    low, high = found.interval(level)
    if corrected >= LEVEL:
        return CLOSE, low, high
    excludes_zero = low > 0 or high < 0
    if claimed == "equal" and says == REPRODUCED and excludes_zero:
        says = SMALL
    return says, low, high


def decide(found: Sequence[Difference]) -> pd.DataFrame:
    """Verdicts on the differences of one question, corrected for their number by Holm's method, a row each.

    Columns: seeds; value, low, high (the interval at the corrected level); p (corrected); verdict ("better", "worse",
    "too close to call", "not decided"); cautious (the verdict with d0 at its lower bound); is_lent.
    """
    judged = _judge_together(found)
    cautious = _judge_together([one.cautious for one in found])
    about = {
        "seeds": [one.seeds for one in found],
        "value": [one.value for one in found],
        "low": judged["low"],
        "high": judged["high"],
        "p": judged["p"],
        "verdict": judged["verdict"],
        "cautious": cautious["verdict"],
        "is_lent": [one.is_lent for one in found],
    }
    return pd.DataFrame(about)


def _judge_together(found: Sequence[Difference]) -> pd.DataFrame:
    """Corrected p-values, nan where a difference is not decided, verdicts and intervals."""
    is_decided = np.array([one.is_decided for one in found], dtype=bool)
    p = np.array([one.p for one in found])
    p[~is_decided] = np.nan
    p[is_decided] = holm(p[is_decided])
    judged = []
    for one, corrected in zip(found, p, strict=True):
        judged.append(judge("greater", one, 0.0, corrected))
    table = pd.DataFrame(judged, columns=["verdict", "low", "high"])
    return table.assign(p=p, verdict=table["verdict"].replace(OF_DIFFERENCES))


def judge_estimates(estimates: Mapping[Hashable, Estimate]) -> pd.DataFrame:
    """A row per difference from 0: what, value, low, high, p (corrected by Holm's method for their number), verdict.

    verdict: "higher" or "lower" where the corrected p is below LEVEL, else "too close to call". Differences that are
    not defined are left out.
    """
    table = pd.DataFrame(list(estimates.values()), columns=Estimate._fields)
    table.insert(0, "what", list(estimates))
    table = table.dropna(subset="p").reset_index(drop=True)
    table["p"] = holm(table["p"])
    words = np.where(table["value"] > 0, "higher", "lower")
    table["verdict"] = np.where(table["p"] < LEVEL, words, CLOSE)
    return table
