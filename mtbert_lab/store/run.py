"""A finished run as a record, and the errors of the store."""

import functools
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from mtbert.config import RunConfig
from mtbert.data import TASKS
from mtbert.training import metrics_of, overall


class StoreError(ValueError):
    """A damaged file of the store; the message names it and says what to do."""


class MissingRun(LookupError):
    """A run, or what is needed of it, that is not in the store, and that was not to be trained."""


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run, as stored."""

    run_id: str
    config: RunConfig
    scores: pd.DataFrame  # of the kept model: task, split, metric, value, low, high, n
    # step, epoch, tokens, seconds, cpu_seconds, train_loss, metric, dev_score; for several tasks also by task
    curve: pd.DataFrame
    predictions: pd.DataFrame  # task, split, id, label, predicted, confidence
    # train_seconds by the clock, train_cpu_seconds, feature_* of frozen layers, tokens, steps, best_step,
    # peak_memory_mib, parameters, ...; where a method has them: constraints_* of GEM, pretrain_<when>_*
    cost: dict[str, float]
    provenance: dict  # device, threads, mtbert, torch, python, data (their fingerprint), rows (of "train sst", ...)
    step_scores: pd.DataFrame = field(default_factory=pd.DataFrame)  # scores of the last step, each task's best point
    cosines: pd.DataFrame = field(default_factory=pd.DataFrame)  # step, layer, first, second, cosine, if recorded

    def __repr__(self) -> str:
        config = self.config
        about = f"{'+'.join(config.tasks)}, plan {config.plan_text}, seed {config.seed}"
        return f"<Run {self.run_id}: {about}, dev {self.score():.4f}>"

    @property
    def is_on_cpu(self) -> bool:
        """Whether it was trained on a CPU: times on a GPU are of another kind."""
        return self.provenance["device"].startswith("cpu")

    def score(self, task: str | None = None) -> float:
        """The dev score of a task in the metric that it has today; by default the training tasks' overall score.

        A metric that is not stored, because it was registered after the run, is computed from the predictions.
        """
        if task is None:
            return overall({name: self.score(name) for name in self.config.tasks})
        metric = TASKS[task].metric
        stored = self.scores[(self.scores["task"] == task) & (self.scores["metric"] == metric)]
        if len(stored) and not np.isnan(value := float(stored["value"].iloc[0])):
            return value
        table = self.predictions_of(task)
        return float(
            metrics_of(TASKS[task])[metric](table["predicted"].to_numpy(float), table["label"].to_numpy(float))
        )

    def predictions_of(self, task: str) -> pd.DataFrame:
        """The rows of `predictions` of one task, numbered from 0."""
        return self._by_task.get(task, self.predictions[:0]).copy(deep=False)

    @functools.cached_property  # comparisons ask for the same task many times
    def _by_task(self) -> dict[str, pd.DataFrame]:
        groups = self.predictions.groupby("task", sort=False)
        return {task: part.reset_index(drop=True) for task, part in groups}
