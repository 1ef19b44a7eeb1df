"""Remedies for errors that need no training, each compared with the predictions as they are.

Methods with something to fit are cross-fitted: fitted on one half of dev, applied to the other half.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from mtbert.analysis import calibration
from mtbert.analysis.systems import Systems
from mtbert.statistics import CLOSE, Estimate, judge_estimates

ABOUT = ["remedy", "task", "metric"]


@dataclass(frozen=True)
class Trial:
    """A remedy on a task: a metric before and after it, statistics (R + 1,)."""

    remedy: str
    task: str
    metric: str
    before: np.ndarray
    after: np.ndarray
    is_cost: bool = False  # whether a lower value of the metric is better

    @property
    def change(self) -> Estimate:
        return Estimate.of(self.after - self.before)


def scaled(p: np.ndarray, labels: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Probabilities `other` (M, C) at the temperature that fits p (N, C), for `cross_fitted`."""
    return calibration.sharpened(other, calibration.temperature(p, labels))


def mean_class(p: np.ndarray) -> np.ndarray:
    """The class nearest to the expected class: (..., C) -> (...)."""
    return np.rint(p @ np.arange(p.shape[-1]))


def temperature_scaling(on: Systems, system: str) -> Trial:
    before = on.probabilities[system]
    after = calibration.cross_fitted(scaled, before, on.labels)

    def loss(p: np.ndarray) -> np.ndarray:
        return on.mean(system, calibration.log_loss(p, on.labels))

    return Trial("temperature scaling", on.task, "log loss (nats)", loss(before), loss(after), is_cost=True)


def expected_class(on: Systems, system: str) -> list[Trial]:
    """Ordered classes: predict the expected class instead of the most probable one."""
    p = on.probabilities[system]
    before = np.abs(p.argmax(-1) - on.labels)
    after = np.abs(mean_class(p) - on.labels)
    far = on.mean(system, before), on.mean(system, after)
    right = on.mean(system, before == 0), on.mean(system, after == 0)
    return [
        Trial("expected class", on.task, "mean absolute error (classes)", *far, is_cost=True),
        Trial("expected class", on.task, "accuracy", *right),
    ]


def threshold(on: Systems, system: str) -> Trial:
    """Two classes: the threshold with the highest accuracy on the other half, instead of 0.5."""
    second = on.probabilities[system][..., 1]
    before = on.mean(system, (second > 0.5) == on.labels)
    decided = calibration.cross_fitted(calibration.thresholded, second, on.labels)
    after = on.mean(system, decided == on.labels)
    return Trial("threshold", on.task, "accuracy", before, after)


def isotonic_scale(on: Systems, system: str) -> list[Trial]:
    """Numbers: scores mapped by isotonic regression."""
    scores = on.predicted[system]
    draws = on.resamples
    correlations, squares = [], []
    for x in (scores, calibration.cross_fitted(calibration.recalibrated, scores, on.labels)):
        correlations.append(draws.over_seeds(system, draws.correlation(x, on.labels)))
        squares.append(np.sqrt(on.mean(system, (x - on.labels) ** 2)))
    return [
        Trial("isotonic scale", on.task, "Pearson", *correlations),
        Trial("isotonic scale", on.task, "root mean square (points)", *squares, is_cost=True),
    ]


def averages(on: Systems, system: str, one: str, other: str) -> list[Trial]:
    """The mean of a system's seeds against single seeds; the mean of two plans against two seeds of `other`.

    The intervals are over examples alone: these runs are the ones that are averaged.
    """
    score = _score(on)
    if on.probabilities:
        single = on.probabilities[system].argmax(-1)
        whole = on.probabilities[system].mean(0).argmax(-1)[None]
    else:
        single = on.predicted[system]
        whole = single.mean(0)[None]
    metric = "accuracy" if on.probabilities else "Pearson"
    two = score(on.mixed(other, other)), score(on.mixed(one, other))
    return [
        Trial("mean of seeds", on.task, metric, score(single), score(whole)),
        Trial("mean of two plans", on.task, metric, *two),
    ]


def _score(on: Systems) -> Callable[[np.ndarray], np.ndarray]:
    """Accuracy or Pearson's correlation, mean over predictions (K, N): a statistic."""
    draws = on.resamples
    if on.probabilities:
        n = draws.sums(np.ones(len(on.labels)))
        return lambda predicted: (draws.sums(predicted == on.labels) / n).mean(0)
    return lambda scores: draws.correlation(scores, on.labels).mean(0)


def try_all(on: Mapping[str, Systems], system: str, one: str, other: str, with_averages: bool = True) -> list[Trial]:
    """Every remedy on SST, Quora and STS.

    one, other: the two plans of `averages`, left out without with_averages, since they need several seeds.
    """
    trials = [temperature_scaling(on[task], system) for task in ("sst", "quora")]
    trials += expected_class(on["sst"], system)
    trials.append(threshold(on["quora"], system))
    trials += isotonic_scale(on["sts"], system)
    if with_averages:
        for part in on.values():
            trials += averages(part, system, one, other)
    return trials


def judge_trials(trials: list[Trial]) -> pd.DataFrame:
    """A row per trial: remedy, task, metric, value, low, high, p (Holm, for all of them), verdict; gains are positive.

    verdict: "better", "worse", or "too close to call".
    """
    by_name = {(trial.remedy, trial.task, trial.metric): trial for trial in trials}
    table = judge_estimates({name: trial.change for name, trial in by_name.items()})
    table[ABOUT] = table["what"].tolist()
    is_cost = np.array([by_name[name].is_cost for name in table["what"]], dtype=bool)
    gain = np.where(is_cost, -1, 1)
    value = gain * table["value"]
    ends = np.sort([gain * table["low"], gain * table["high"]], axis=0)
    words = np.where(value > 0, "better", "worse")
    verdict = np.where(table["verdict"] == CLOSE, CLOSE, words)
    return table.assign(value=value, low=ends[0], high=ends[1], verdict=verdict).drop(columns="what")
