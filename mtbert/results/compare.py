"""Scores over the seeds of a configuration, and differences between configurations, with intervals."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from mtbert.data import TASKS
from mtbert.results.store import Run, StoreError
from mtbert.training import metrics_of, seed_mean


def stack_predictions(runs: list[Run], task: str) -> tuple[np.ndarray, np.ndarray]:
    """Dev predictions of runs, (S, N), and the labels, (N,); StoreError unless all were scored on the same examples."""
    parts = [run.predictions[run.predictions["task"] == task] for run in runs]
    examples = [part[["id", "label"]].reset_index(drop=True) for part in parts]
    for run, own in zip(runs, examples, strict=True):
        if not own.equals(examples[0]):
            both = f"{runs[0].run_id} and {run.run_id}"
            raise StoreError(f"{both} were scored on different dev splits of {task}; train both on one")
    return np.stack([part["predicted"].to_numpy() for part in parts]), parts[0]["label"].to_numpy()


def scored(
    groups: Sequence[list[Run]], task: str, metric: str | None = None, pearson: float = 1.0
) -> tuple[Callable, list[np.ndarray], np.ndarray]:
    """What `seed_mean` takes of a task: a metric (default: the first), predictions (S, N) of each group, labels (N,).

    pearson: the factor of Pearson's correlation; with 0.5 it becomes (1 + correlation) / 2.
    """
    predicted, labels = stack_predictions([run for runs in groups for run in runs], task)
    parts = np.split(predicted, np.cumsum([len(runs) for runs in groups])[:-1])
    metric = metric or TASKS[task].metric
    function = metrics_of(TASKS[task])[metric]
    if metric == "pearson" and pearson != 1:
        function = partial(_scaled, function, pearson)
    return function, parts, labels


def _scaled(metric: Callable, factor: float, *sides: np.ndarray) -> np.ndarray:
    return factor * metric(*sides) + 1 - factor


def summarize(runs: list[Run], task: str | None = None, metric: str | None = None) -> dict:
    """One dev score over the seeds of a configuration: metric, value (mean), low, high (95 %, as in `seed_mean`),
    lowest seed, highest seed, seeds, n (examples). By default the first metric of the first training task."""
    task = task or runs[0].config.tasks[0]
    function, [predicted], labels = scored([runs], task, metric)
    value, low, high, _ = seed_mean([(function, [predicted], labels)])
    by_seed = function(predicted, labels)
    about = {"metric": metric or TASKS[task].metric, "value": value, "low": low, "high": high}
    spread = {"lowest seed": float(min(by_seed)), "highest seed": float(max(by_seed))}
    return {**about, **spread, "seeds": len(runs), "n": len(labels)}


def difference(first: list[Run], second: list[Run], task: str | None = None, pearson: float = 1.0) -> tuple[float, ...]:
    """Mean dev score of one configuration minus that of another on the same examples: value, low, high (95 %), p.

    task: default: the mean of the tasks that both have. pearson: the factor of Pearson's correlation in it, 0.5 in
    `overall` (paper 002), 1 in a plain mean.
    """
    both = [name for name in first[0].config.scored if name in second[0].config.scored]
    return seed_mean([scored([first, second], name, pearson=pearson) for name in ([task] if task else both)])


def overall_interval(runs: list[Run]) -> tuple[float, float, float]:
    """The mean over seeds of the score of the training tasks (`overall`), and its 95 % interval."""
    tasks = runs[0].config.tasks
    return seed_mean([scored([runs], task, pearson=0.5 if len(tasks) > 1 else 1.0) for task in tasks])[:3]
