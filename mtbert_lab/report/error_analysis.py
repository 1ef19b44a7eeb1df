"""What notebook 08 shows: the runs that it looks at, and statistics of their errors as texts and places of sentences.

A system is a way of sharing, under the name of its run, or `ALONE`: a model for each task.
"""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
from numpy import ndarray

from mtbert_lab.analysis.probabilities import probabilities
from mtbert_lab.report import notebook
from mtbert_lab.report.sentences import Fact, Place, place_in
from mtbert_lab.report.tables import TOGETHER as TASKS
from mtbert_lab.report.tables import Grid
from mtbert_lab.report.words import TASK_LABELS
from mtbert_lab.statistics import NOT_SHOWN, Estimate
from mtbert_lab.store import MissingRun, Run

ALONE = "alone"
Runs = dict[str, dict[str, list[Run]]]  # system -> task -> its seeds


def systems_of(shared: Grid, alone: Grid, data: str | Path | None, device: str) -> Runs:
    """The runs of 1-bert, a hybrid and 3-bert in one grid, and those of single tasks in another.

    Of all systems SST's probabilities are known. The hybrid is the one with the highest score of these. Where a task
    has no run of its own, the single tasks are left out, and the notebook says so. Raises MissingRun for a plan without
    runs or probabilities.
    """

    def are_known(runs: list[Run]) -> bool:  # stored, or the models are here
        return all(probabilities(run, "sst", data, device) is not None for run in runs)

    plans = _plans(shared)
    hybrids = [name for name in plans if name not in ("1-bert", "3-bert")]
    hybrids.sort(key=lambda name: mean_score(plans[name]), reverse=True)
    lacking = [plan for plan in ("1-bert", "3-bert") if plan not in plans]
    if not hybrids:
        lacking.append("hybrid-K")
    if lacking:
        raise MissingRun(
            f"no stored run of SST, Quora and STS with plan {notebook.joined(lacking)}. {shared.stored_text}"
        )
    hybrid = next((name for name in hybrids if are_known(plans[name])), None)
    if hybrid is None or not are_known(plans["1-bert"] + plans["3-bert"]):
        raise MissingRun("the probabilities of SST's classes are not stored, and the models are not here")
    systems = {name: dict.fromkeys(TASKS, plans[name]) for name in ("1-bert", hybrid, "3-bert")}

    singles = _singles(alone)
    missing = [TASK_LABELS[task] for task in TASKS if task not in singles]
    if missing:
        notebook.display_markdown(f"*{ALONE}* is left out: no run of {notebook.joined(missing)} alone is stored.")
    elif are_known(singles["sst"]):
        systems[ALONE] = {task: singles[task] for task in TASKS}
    return systems


def _plans(grid: Grid) -> dict[str, list[Run]]:
    """The runs of all three tasks: the first of 1-bert and of 3-bert, and the hybrids by their names."""
    plans: dict[str, list[Run]] = {}
    for name, runs in grid.runs.items():
        config = runs[0].config
        if set(config.tasks) != set(TASKS):
            continue
        if config.plan_text in ("1-bert", "3-bert"):
            plans.setdefault(config.plan_text, runs)
        elif config.plan_text.startswith("hybrid"):
            plans[name] = runs
    return plans


def _singles(grid: Grid) -> dict[str, list[Run]]:
    """Task -> the first runs of it alone whose encoder is trained."""
    singles: dict[str, list[Run]] = {}
    for runs in grid.runs.values():
        config = runs[0].config
        if len(config.tasks) == 1 and config.plan_text != "frozen":
            singles.setdefault(config.tasks[0], runs)
    return singles


def mean_score(runs: list[Run]) -> float:
    """The mean over seeds of the score of all tasks."""
    return float(np.mean([run.score() for run in runs]))


def text(draws: ndarray, digits: int = 3, sign: str = "") -> str:
    """Value and 95 % interval of a statistic, from its draws (1 + resamples,)."""
    return Estimate.of(draws).text(digits, sign)


def percent(draws: ndarray) -> str:
    """A share and its 95 % interval."""
    return Estimate.of(draws).percent()


def share(draws: ndarray) -> str:
    """A share without its interval, for a second number in a sentence."""
    return f"{draws[0]:.0%}"


def is_true(condition: bool) -> Fact:
    """What a sentence rests on, where this is no difference."""
    return Fact(bool(condition), True)


def beside(draws: ndarray, side: str, of: float = 0.0) -> Place:
    """A statistic whose interval lies "above" or "below" a number; the sentence rests on it."""
    estimate = Estimate.of(draws)
    found = NOT_SHOWN
    if estimate.low > of:
        found = "above"
    elif estimate.high < of:
        found = "below"
    return Place(SimpleNamespace(**estimate._asdict(), verdict=found), side)


def judged(table: pd.DataFrame, what: object, verdict: str) -> Place:
    """The place of a row of `judge_estimates`."""
    return place_in(table, verdict, what=what)
