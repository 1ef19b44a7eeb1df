"""Systems that were scored on the same dev examples: the errors of all their seeds, and resamples of both.

A system is a configuration, such as a sharing plan. S seeds, N examples, C classes, R resamples. A statistic is an
array (R + 1,), as in `resamples`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
from numpy import ndarray

from mtbert.data import TASKS
from mtbert_lab.analysis.errors import errors_of
from mtbert_lab.analysis.probabilities import probabilities
from mtbert_lab.statistics import Resamples
from mtbert_lab.store import MissingRun, Run, stack_predictions

Pairs = dict[tuple[str, str], ndarray]  # two systems -> a statistic


@dataclass(frozen=True)
class Systems:
    """What some systems predict on one task's dev examples, by system."""

    task: str
    labels: ndarray  # (N,)
    errors: dict[str, ndarray]  # (S, N), as in `errors_of`
    predicted: dict[str, ndarray]  # (S, N)
    probabilities: dict[str, ndarray]  # (S, N, C); none where labels are numbers

    @classmethod
    def read(
        cls,
        task: str,
        runs: Mapping[str, list[Run]],
        data: str | Path | None = None,
        device: str = "auto",
    ) -> "Systems":
        """From the stored runs of each system.

        Raises StoreError where two were scored on different examples, MissingRun where a run's `probabilities` of
        classes are unknown.
        """
        stacked, labels = stack_predictions(list(chain(*runs.values())), task)
        ends = np.cumsum([len(group) for group in runs.values()])
        predicted = dict(zip(runs, np.split(stacked, ends[:-1]), strict=True))
        errors = {name: errors_of(task, part, labels) for name, part in predicted.items()}
        p = {}
        if not TASKS[task].is_number:
            for name, group in runs.items():
                known = [probabilities(run, task, data, device) for run in group]
                if any(of_run is None for of_run in known):
                    raise MissingRun(f"{name}: no probabilities of {task}'s classes are stored, and no models are here")
                p[name] = np.stack(known)
        return cls(task, labels, errors, predicted, p)

    @cached_property
    def resamples(self) -> Resamples:
        seeds = {name: len(errors) for name, errors in self.errors.items()}
        return Resamples(len(self.labels), seeds)

    @property
    def gap(self) -> dict[str, ndarray]:
        """Predicted minus true label (S, N), by system."""
        return {name: predicted - self.labels for name, predicted in self.predicted.items()}

    def mean(self, system: str, values: ndarray, among: ndarray | None = None) -> ndarray:
        """The statistic of a mean of values (S, N) over seeds and examples; among: (N,) bool, those that count."""
        return self.resamples.mean(system, values, among)

    def share_of_errors(self, system: str, kind: ndarray) -> ndarray:
        """The statistic of the share of one kind of errors, (S, N) bool, among all errors."""
        part = self.resamples.sums(kind)
        whole = self.resamples.sums(self.errors[system] > 0)
        shares = part / np.maximum(whole, 1)
        return self.resamples.over_seeds(system, shares)

    def correlation(self, system: str) -> ndarray:
        """The statistic of Pearson's correlation of predictions and labels."""
        correlations = self.resamples.correlation(self.predicted[system], self.labels)
        return self.resamples.over_seeds(system, correlations)

    def slope(self, system: str) -> ndarray:
        """The statistic of the slope of the label on the prediction: below 1 where predictions are spread too wide."""
        slopes = self.resamples.slope(self.predicted[system], self.labels)
        return self.resamples.over_seeds(system, slopes)

    def rates(self, system: str) -> dict[str, ndarray]:
        """The statistics precision, recall and F1 of class 1 of two."""
        draws = self.resamples
        predicted = self.predicted[system] == 1
        label = self.labels == 1
        hits = draws.sums(predicted & label)
        found = draws.sums(predicted)
        there = draws.sums(label)
        precision = hits / np.maximum(found, 1)
        recall = hits / np.maximum(there, 1)
        f1 = 2 * hits / np.maximum(found + there, 1)
        return {
            "precision": draws.over_seeds(system, precision),
            "recall": draws.over_seeds(system, recall),
            "F1": draws.over_seeds(system, f1),
        }

    def wrong_in_all(self) -> ndarray:
        """Which examples (N,) every seed of every system gets wrong."""
        errors = np.vstack(list(self.errors.values()))
        return (errors > 0).all(0)

    def disagreement(self, one: str, other: str) -> ndarray:
        """Whether every two runs of two systems differ in a prediction, or by how much if numbers: (S, S', N)."""
        first, second = _crossed(self.predicted, one, other)
        if TASKS[self.task].is_number:
            return np.abs(first - second)
        return (first != second).astype(np.float32)

    def oracle_error(self, one: str, other: str) -> ndarray:
        """The error of the better of every two runs of two systems, example by example: (S, S', N)."""
        first, second = _crossed(self.errors, one, other)
        return np.minimum(first, second)

    def against_seeds(
        self,
        measure: Callable[[str, str], ndarray],
        one: str,
        other: str,
    ) -> tuple[Pairs, ndarray]:
        """A measure of two runs: between two seeds of each system, and between the systems.

        measure: `disagreement` or `oracle_error`. The second result is the statistic of the excess of two systems over
        two seeds. Statistics are nan where a system has one seed.
        """
        found = {}
        for first, second in [(one, one), (other, other), (one, other)]:
            values = measure(first, second)
            found[first, second] = self.resamples.pairs(first, second, values)
        of_seeds = (found[one, one] + found[other, other]) / 2
        return found, found[one, other] - of_seeds

    @property
    def values(self) -> dict[str, ndarray]:
        """What is averaged: the probabilities of classes (S, N, C), else the numbers (S, N), by system."""
        return self.probabilities or self.predicted

    @property
    def metric(self) -> str:
        """What `score` is."""
        return "accuracy" if self.probabilities else "Pearson"

    def score(self, values: ndarray) -> ndarray:
        """The statistics of accuracy or of Pearson's correlation: `values` (..., N, C) or (..., N) -> (..., R + 1)."""
        if not self.probabilities:
            return self.resamples.correlation(values, self.labels)
        hits = values.argmax(-1) == self.labels
        return self.resamples.sums(hits) / len(self.labels)

    def mixed(self, one: str, other: str) -> ndarray:
        """The mean of the `values` of every two runs of two systems: (S, S', N, C) or (S, S', N)."""
        first, second = _crossed(self.values, one, other)
        return (first + second) / 2


def _crossed(values: dict[str, ndarray], one: str, other: str) -> tuple[ndarray, ndarray]:
    """Values (S, 1, N, ...) and (1, S', N, ...) of two systems, so that an operation on both is of every two runs."""
    return values[one][:, None], values[other][None]
