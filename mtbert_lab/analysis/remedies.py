"""Remedies for errors that need no training, each compared with the predictions as they are.

Methods with something to fit are cross-fitted: fitted on one half of dev, applied to the other half.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from numpy import ndarray

from mtbert_lab.analysis import calibration
from mtbert_lab.analysis.systems import Systems
from mtbert_lab.statistics import (
    LEVEL,
    NO_DIFFERENCE,
    NOT_SHOWN,
    Estimate,
    holm,
    judge_estimates,
    margin_of,
    p_within,
)

SCORES = ("accuracy", "Pearson")  # metrics that are the score of a task, which has a margin


@dataclass(frozen=True, eq=False)
class Trial:
    """A remedy on a task: a metric before and after it, statistics (R + 1,)."""

    remedy: str
    task: str
    metric: str
    before: ndarray
    after: ndarray
    is_cost: bool = False  # whether a lower value of the metric is better

    @property
    def change(self) -> Estimate:
        return Estimate.of(self.after - self.before)

    @property
    def gain(self) -> Estimate:
        """The change, positive where it is for the better."""
        if self.is_cost:
            return Estimate.of(self.before - self.after)
        return self.change

    @property
    def p_equal(self) -> float:
        """The p-value of no difference that matters; 1 for a metric without a margin."""
        if self.metric not in SCORES:
            return 1.0
        return p_within(self.after - self.before, margin_of(self.task))


def scaled(p: ndarray, labels: ndarray, other: ndarray) -> ndarray:
    """Probabilities `other` (M, C) at the temperature that fits p (N, C), for `cross_fitted`."""
    T = calibration.temperature(p, labels)
    return calibration.sharpened(other, T)


def mean_class(p: ndarray) -> ndarray:
    """The class nearest to the expected class: (..., C) -> (...)."""
    classes = np.arange(p.shape[-1])
    return np.rint(p @ classes)


def temperature_scaling(on: Systems, system: str) -> Trial:
    p = on.probabilities[system]
    after = calibration.cross_fitted(scaled, p, on.labels)
    losses = []
    for one in (p, after):
        loss = calibration.log_loss(one, on.labels)
        losses.append(on.mean(system, loss))
    return Trial("temperature scaling", on.task, "log loss (nats)", *losses, is_cost=True)


def expected_class(on: Systems, system: str) -> list[Trial]:
    """Ordered classes: predict the expected class instead of the most probable one."""
    p = on.probabilities[system]
    distances = []
    hits = []
    for predicted in (p.argmax(-1), mean_class(p)):
        distance = np.abs(predicted - on.labels)
        distances.append(on.mean(system, distance))
        hits.append(on.mean(system, distance == 0))
    return [
        Trial("expected class", on.task, "mean absolute error (classes)", *distances, is_cost=True),
        Trial("expected class", on.task, "accuracy", *hits),
    ]


def threshold(on: Systems, system: str) -> Trial:
    """Two classes: the threshold with the highest accuracy on the other half, instead of 0.5."""
    second = on.probabilities[system][..., 1]
    decided = calibration.cross_fitted(calibration.thresholded, second, on.labels)
    before = on.mean(system, (second > 0.5) == on.labels)
    after = on.mean(system, decided == on.labels)
    return Trial("threshold", on.task, "accuracy", before, after)


def isotonic_scale(on: Systems, system: str) -> list[Trial]:
    """Numbers: scores mapped by isotonic regression."""
    scores = on.predicted[system]
    mapped = calibration.cross_fitted(calibration.recalibrated, scores, on.labels)
    correlations = []
    errors = []
    for x in (scores, mapped):
        correlation = on.resamples.correlation(x, on.labels)
        correlations.append(on.resamples.over_seeds(system, correlation))
        square = on.mean(system, (x - on.labels) ** 2)
        errors.append(np.sqrt(square))
    return [
        Trial("isotonic scale", on.task, "Pearson", *correlations),
        Trial("isotonic scale", on.task, "root mean square (points)", *errors, is_cost=True),
    ]


def averages(on: Systems, system: str, one: str, other: str) -> list[Trial]:
    """The mean of a system's seeds against single seeds; the mean of two plans against two seeds of `other`.

    The interval of the mean of seeds is over examples alone: these runs are the ones that are averaged.
    """
    seeds = on.values[system]
    single = on.score(seeds).mean(0)
    whole = on.score(seeds.mean(0))
    two_seeds = on.resamples.over_pairs(other, other, on.score(on.mixed(other, other)))
    two_plans = on.resamples.over_pairs(one, other, on.score(on.mixed(one, other)))
    return [
        Trial("mean of seeds", on.task, on.metric, single, whole),
        Trial("mean of two plans", on.task, on.metric, two_seeds, two_plans),
    ]


def three_in_one(on: Systems, one: str, other: str) -> list[Trial]:
    """The mean of every three seeds of plan `one` against its single seeds, and against the single seeds of `other`.

    Against `one` the interval is over examples alone, as these runs are the ones that are averaged; against `other` it
    is over the seeds of both, too. With fewer than three seeds there are no trials.
    """
    seeds = on.values[one]
    if len(seeds) < 3:
        return []
    threes = np.array(list(combinations(range(len(seeds)), 3)))
    means = seeds[threes].mean(axis=1)  # (sets of three, N, C) or (sets of three, N)
    of_means = on.score(means)
    of_one = on.score(seeds).mean(0)
    of_other = on.score(on.values[other])
    resampled = on.resamples.over_sets(one, threes, of_means)
    remedy = f"mean of three {one} against one"
    return [
        Trial(f"{remedy} {one}", on.task, on.metric, of_one, of_means.mean(0)),
        Trial(f"{remedy} {other}", on.task, on.metric, on.resamples.over_seeds(other, of_other), resampled),
    ]


def try_all(
    on: Mapping[str, Systems],
    system: str,
    one: str,
    other: str,
    with_averages: bool,
) -> list[Trial]:
    """Every remedy on SST, Quora and STS.

    one, other: the two plans of `averages` and `three_in_one`, left out without with_averages: they need several seeds.
    """
    sst = on["sst"]
    quora = on["quora"]
    sts = on["sts"]
    trials = [
        temperature_scaling(sst, system),
        temperature_scaling(quora, system),
        *expected_class(sst, system),
        threshold(quora, system),
        *isotonic_scale(sts, system),
    ]
    if with_averages:
        for part in on.values():
            trials += averages(part, system, one, other)
            trials += three_in_one(part, one, other)
    return trials


def judge_trials(trials: list[Trial]) -> pd.DataFrame:
    """A row per trial: remedy, task, metric, value, low, high, p (Holm, for all of them), verdict, is_small.

    Gains are positive. verdict: "better", "worse", of a task's score also "no difference that matters", else "not
    shown". is_small: a verdict on a task's score is an order, and the difference is smaller than the margin.
    """
    table = judge_estimates({trial: trial.gain for trial in trials})
    judged = table.pop("what")  # those trials whose gain is defined
    table = table.assign(**{name: [getattr(trial, name) for trial in judged] for name in ("remedy", "task", "metric")})
    is_score = table["metric"].isin(SCORES)
    is_order = table["verdict"] != NOT_SHOWN
    is_equal = ~is_order & (holm([trial.p_equal for trial in judged]) < LEVEL)
    table["verdict"] = table["verdict"].replace({"higher": "better", "lower": "worse"}).mask(is_equal, NO_DIFFERENCE)
    table["is_small"] = is_order & is_score & (table["value"].abs() < table["task"].map(margin_of))
    return table
