"""Scores over the seeds of a configuration, and differences between configurations, with intervals."""

import numpy as np

from mtbert.data import TASKS
from mtbert.results.store import Run
from mtbert.training import metrics_of, seed_mean


def stack_predictions(runs: list[Run], task: str) -> tuple[np.ndarray, np.ndarray]:
    """Dev predictions of several seeds of one configuration, (S, N), and the labels, (N,)."""
    parts = [run.predictions[run.predictions["task"] == task] for run in runs]
    return np.stack([part["predicted"].to_numpy() for part in parts]), parts[0]["label"].to_numpy()


def summarize(runs: list[Run], task: str | None = None, metric: str | None = None) -> dict:
    """One dev score over the seeds of a configuration: metric, value (mean), low, high (95 %, as in `seed_mean`),
    lowest seed, highest seed, seeds, n (examples). By default the first metric of the first training task."""
    task = task or runs[0].config.tasks[0]
    metric = metric or TASKS[task].metric
    function = metrics_of(TASKS[task])[metric]
    predicted, labels = stack_predictions(runs, task)
    value, low, high, _ = seed_mean([(function, [predicted], labels)])
    by_seed = function(predicted, labels)
    spread = {"lowest seed": float(min(by_seed)), "highest seed": float(max(by_seed))}
    return {"metric": metric, "value": value, "low": low, "high": high, **spread, "seeds": len(runs), "n": len(labels)}


def difference(first: list[Run], second: list[Run], task: str | None = None) -> tuple[float, float, float]:
    """Mean dev score of one configuration minus that of another, and its 95 % interval, on the same examples."""
    task = task or first[0].config.tasks[0]
    (one, labels), (other, _) = stack_predictions(first, task), stack_predictions(second, task)
    return seed_mean([(metrics_of(TASKS[task])[TASKS[task].metric], [one, other], labels)])[:3]
