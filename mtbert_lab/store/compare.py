"""Scores over the seeds of a configuration, and differences between configurations, by the rule of `statistics`.

The seed variance of a configuration is pooled with the prior of its stratum, the stored runs that are like it.
"""

import functools
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from mtbert.config import RunConfig
from mtbert.data import TASKS, warn_once
from mtbert.metrics import CORRELATIONS
from mtbert.training import metrics_of
from mtbert_lab.paths import stores
from mtbert_lab.statistics import (
    Difference,
    Interval,
    Prior,
    Scored,
    difference_of_scores,
    example_share,
    scores_and_covariance,
    seed_mean,
)
from mtbert_lab.store.corpora import is_of_code_here
from mtbert_lab.store.folders import read_run, stored_runs
from mtbert_lab.store.run import Run, StoreError

NOT_IN_KEY = ("seed", "cosine_every")  # fields in which runs of one configuration may differ
AVERAGES = {"overall": 0.5, "average": 1.0}  # mean of tasks -> factor of Pearson's correlation: paper 002; 001 and 003


class Quantity(NamedTuple):
    """What is compared: the score of a task, or the mean over some."""

    tasks: tuple[str, ...]
    correlation_factor: float = 1.0  # of Pearson's correlation; with 0.5 it counts as (1 + correlation) / 2

    @classmethod
    def mean(cls, tasks: Sequence[str], average: str) -> "Quantity":
        """One of AVERAGES; of a single task it is its score."""
        return cls(tuple(tasks), AVERAGES[average] if len(tasks) > 1 else 1.0)

    def scored(self, runs: list[Run]) -> list[Scored]:
        """What `statistics` takes of some runs, a part per task."""
        return [scored(runs, task, correlation_factor=self.correlation_factor) for task in self.tasks]


Stratum = tuple[str, str, int, str]  # corpus, encoder, steps, scheme
Stores = tuple[Path, ...]
Names = tuple[tuple[str, ...], ...]


def stack_predictions(runs: list[Run], task: str) -> tuple[ndarray, ndarray]:
    """Dev predictions of runs, (S, N), and the labels, (N,); StoreError unless all were scored on the same examples."""
    first = runs[0].predictions_of(task)
    predicted = []
    for run in runs:
        part = run.predictions_of(task)
        if not all(part[column].equals(first[column]) for column in ("id", "label")):
            both = f"{runs[0].run_id} and {run.run_id}"
            raise StoreError(f"{both} were scored on different dev splits of {task}; train both on one")
        predicted.append(part["predicted"].to_numpy())
    return np.stack(predicted), first["label"].to_numpy()


def scored(runs: list[Run], task: str, metric: str | None = None, correlation_factor: float = 1.0) -> Scored:
    """What `statistics` takes of some runs and a task; metric: default: the first.

    correlation_factor: the factor of a correlation r; with 0.5 it becomes (1 + r) / 2.
    """
    predicted, labels = stack_predictions(runs, task)
    metric = metric or TASKS[task].metric
    factor = correlation_factor if metric in CORRELATIONS else 1.0
    return Scored(metrics_of(TASKS[task])[metric], predicted, labels, factor)


def summarize(runs: list[Run], task: str | None = None, metric: str | None = None) -> dict:
    """One dev score over the seeds of a configuration: metric, value (mean), low, high (95 %, as in `seed_mean`),
    lowest seed, highest seed, seeds, n (examples). By default the first metric of the first training task."""
    task = task or runs[0].config.tasks[0]
    part = scored(runs, task, metric)
    mean = seed_mean([part])
    by_seed = part.scores()
    return {
        "metric": metric or TASKS[task].metric,
        **mean._asdict(),
        "lowest seed": float(min(by_seed)),
        "highest seed": float(max(by_seed)),
        "seeds": len(runs),
        "n": len(part.labels),
    }


def overall_interval(runs: list[Run]) -> Interval:
    """The mean over seeds of the score of the training tasks (`overall`), and its 95 % interval."""
    return seed_mean(Quantity.mean(runs[0].config.tasks, "overall").scored(runs))


def difference(first: list[Run], second: list[Run], what: str = "overall") -> Difference:
    """Mean dev score of one configuration minus that of another on the same examples.

    what: a task, or one of AVERAGES: of the tasks that both train, or where these differ, of those that both are scored
    on. The runs of `stores()` give the priors.
    """
    quantity = Quantity((what,))
    if what in AVERAGES:
        one, other = first[0].config, second[0].config
        tasks = one.tasks
        if set(one.tasks) != set(other.tasks):
            tasks = [task for task in one.scored if task in other.scored]
        quantity = Quantity.mean(tasks, what)
    parts = quantity.scored([*first, *second])
    _warn_of_versions([*first, *second])
    priors = (prior_of(first, quantity), prior_of(second, quantity))
    return difference_of_scores(parts, (len(first), len(second)), priors)


def _warn_of_versions(runs: list[Run]) -> None:
    """Log where runs of the same training tables were trained on different versions of them."""
    known: dict[tuple, Run] = {}
    for run in runs:
        config = run.config
        if config.train_rows is not None:  # every seed draws rows of its own
            continue
        other = known.setdefault((config.corpus, config.tasks, config.scored, config.augment), run)
        if other.run_id.partition("-")[2] != run.run_id.partition("-")[2]:
            both = f"{other.run_id} and {run.run_id}"
            warn_once(f"{both} were trained on different versions of the data; train both on one")


def training_key(config: RunConfig, without: Sequence[str] = ()) -> str:
    """The fields of a configuration but for those of NOT_IN_KEY and, if given, some others; as text."""
    fields = config.model_dump(mode="json", exclude={*NOT_IN_KEY, *without})
    return json.dumps(fields, sort_keys=True)


def prior_of(runs: list[Run], quantity: Quantity) -> Prior | None:
    """The prior of a configuration's seed variance, from its stratum of the runs of `stores()`; None without one."""
    config = runs[0].config
    strata = strata_of(config, runs[0].cost["steps"])
    if not strata or not set(quantity.tasks) <= set(config.tasks):
        return None
    among = tuple(stores())
    prior = _fitted_prior(among, _names_of_runs(among), strata[0], quantity)
    if prior is None:
        return None
    scores = [part.scores() for part in quantity.scored(runs)]
    return prior if prior.fits(float(np.mean(scores))) else None


def _names_of_runs(among: Stores) -> Names:
    """The names of the run folders of some stores; a part of the caches' keys, since a new run changes them."""
    listed = []
    for store in among:
        with suppress(FileNotFoundError):
            listed.append(tuple(sorted(os.listdir(store / "runs"))))
    return tuple(listed)


def strata_of(config: RunConfig, steps: int) -> list[Stratum]:
    """The strata that runs of this number of steps belong to; the first one gives their prior.

    That of a run of a single task has runs of any scheme, which include its task. Runs with teachers are in none.
    """
    is_unlike = (
        config.weights != "pretrained"
        or config.encoder_is_frozen
        or config.keep != "last"
        or config.pairs != "joint"
        or config.pretrain in ("after", "both")
        or config.scheme == "in_turn"
        or config.teachers
    )
    if is_unlike:
        return []
    schemes = ["any"] if len(config.tasks) == 1 else [config.scheme, "any"]
    return [(config.corpus, config.encoder, steps, scheme) for scheme in schemes]


def seeds_of_configurations(
    among: Sequence[Path], without: Sequence[str] = ()
) -> dict[tuple[str, str], dict[int, tuple[Path, dict]]]:
    """Configuration and data -> seed -> folder and run.json of its stored run.

    A configuration is its `training_key`, `without` some fields. Runs on other versions of the data are apart; where
    seeds draw training rows of their own, those with another dev split. A run whose cosines are recorded, too, counts
    once. Runs of code or encoders that have changed since, or are not here, are left out.
    """
    found: dict[tuple[str, str], dict[int, tuple[Path, dict]]] = {}
    for folder, content in stored_runs(among):
        config = content["config"]
        if not is_of_code_here(folder.name, config):
            continue
        data = json.dumps(content["examples"], sort_keys=True)  # names what it was scored on
        if config.train_rows is None:  # else every seed draws rows of its own
            data += folder.name.partition("-")[2]
        seeds = found.setdefault((training_key(config, without), data), {})
        seeds.setdefault(config.seed, (folder, content))
    return found


@functools.lru_cache(maxsize=2)
def _configurations(among: Stores, names: Names) -> dict[tuple[Stratum, str], dict[str, list[Path]]]:
    """(stratum, task) -> training key and data -> folders of the seeds, for configurations with two seeds or more.

    names: `_names_of_runs`, for the cache.
    """
    found: dict[tuple[Stratum, str], dict[str, list[Path]]] = {}
    for (key, data), seeds in seeds_of_configurations(among).items():
        if len(seeds) < 2:
            continue
        (_, content), *_ = seeds.values()
        config = content["config"]
        for place in product(strata_of(config, content["cost"]["steps"]), config.tasks):
            found.setdefault(place, {})[key + data] = [folder for folder, _ in seeds.values()]
    return found


@functools.lru_cache
def _fitted_prior(among: Stores, names: Names, stratum: Stratum, quantity: Quantity) -> Prior | None:
    """The prior of a stratum for a task, or for the mean of all tasks of some runs; None without several seeds."""
    configurations = _configurations(among, names).get((stratum, quantity.tasks[0]), {})
    all_scores, shares = [], []
    for _, folders in sorted(configurations.items()):
        runs = [_read(folder) for folder in folders]
        if len(quantity.tasks) > 1 and set(runs[0].config.tasks) != set(quantity.tasks):
            continue
        scores, covariance = scores_and_covariance(quantity.scored(runs))
        all_scores.append(scores)
        shares.append(example_share(covariance))
    return Prior.fit(all_scores, shares) if shares else None


_read = functools.lru_cache(maxsize=None)(read_run)
