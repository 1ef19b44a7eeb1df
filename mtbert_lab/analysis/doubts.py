"""What makes the scores of some runs say nothing: to be told before any difference between them."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from mtbert.data import TASKS
from mtbert.metrics import pearson, r2
from mtbert_lab.analysis.baselines import LABELS
from mtbert_lab.store import Run

OFF = 0.25  # of the labels' variance: what numbers of the right order lose by their size
ORDERED = 0.4  # the correlation above which an order is called right


def doubts(runs: Mapping[str, Sequence[Run]], baselines: pd.DataFrame | None = None) -> pd.DataFrame:
    """A row for every doubt about a configuration's dev predictions of a training task: run, task, doubt.

    runs: name -> the seeds of a configuration. baselines: as in `baseline_table`. A doubt is the end of a sentence that
    begins with the run's name: that it predicts one answer for every example, that its mean score is below that of a
    baseline, or that its numbers have the wrong size, maybe in the right order.
    """
    rows = []
    for name, group in runs.items():
        for task in group[0].config.tasks:
            found = [*_constant(group, task), *_below(group, task, baselines), *_off(group, task)]
            rows += [(name, task, doubt) for doubt in found]
    return pd.DataFrame(rows, columns=["run", "task", "doubt"])


def _constant(group: Sequence[Run], task: str) -> list[str]:
    seeds = [str(run.config.seed) for run in group if run.predictions_of(task)["predicted"].nunique() == 1]
    if not seeds:
        return []
    which = "" if len(seeds) == len(group) else f" with seed {', '.join(seeds)}"
    return [f"predicts one answer for every example{which}"]


def _below(group: Sequence[Run], task: str, baselines: pd.DataFrame | None) -> list[str]:
    if baselines is None:
        return []
    score = float(np.mean([run.score(task) for run in group]))
    is_own = (baselines["task"] == task) & (baselines["metric"] == TASKS[task].metric)
    if group[0].config.weights != "pretrained":  # the stored cosine is not that of its encoder
        is_own &= baselines["baseline"] != "cosine"
    found = []
    for row in baselines[is_own].itertuples():
        if score < row.value:
            baseline = f"the {LABELS[row.baseline]}"
            digits = 3 if f"{score:.3f}" != f"{row.value:.3f}" else 5
            found.append(f"is below {baseline} ({score:.{digits}f} against {row.value:.{digits}f})")
    return found


def _off(group: Sequence[Run], task: str) -> list[str]:
    if not TASKS[task].is_number:
        return []
    correlations, shares = [], []
    for run in group:
        table = run.predictions_of(task)
        sides = table["predicted"].to_numpy(float), table["label"].to_numpy(float)
        correlations.append(pearson(*sides))
        shares.append(r2(*sides))
    correlation, share = float(np.mean(correlations)), float(np.mean(shares))
    if correlation <= 0 or correlation**2 - share <= OFF:
        return []
    order = "the right order and " if correlation > ORDERED else ""
    return [f"has {order}the wrong size of numbers (Pearson's correlation {correlation:.3f}, R² {share:.3f})"]
