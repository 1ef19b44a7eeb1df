"""Scores of runs, their learning curves, and the scores that need no training."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy import ndarray

from mtbert.bert import MINILM
from mtbert.config import RunConfig
from mtbert.data import TASKS, DataError
from mtbert.training import overall
from mtbert_lab.analysis.baselines import BASELINES, LABELS, baseline_table
from mtbert_lab.paths import find_result
from mtbert_lab.report.tables.grids import Grid
from mtbert_lab.report.words import METHOD_LABELS, TASK_LABELS
from mtbert_lab.store import Run

NO_BASELINES = pd.DataFrame(columns=["baseline", "task", "metric", "value"])


def score_points(run: Run) -> pd.DataFrame:
    """A row per training task: dev and train (scores of the last step), best and best_step (of its best point on dev).

    dev is that of the kept model where this is the last one; pretraining after the training has changed it, and not the
    other columns. nan where the run has not stored them: runs of mtbert before 0.3 have no train scores.
    """
    stored = {(row.task, row.metric, row.at, row.split): row for row in run.step_scores.itertuples()}
    is_last_kept = run.config.keep == "last"
    if run.config.keep == "best":
        is_last_kept = run.cost.get("best_step") == run.cost["steps"]
    points = pd.DataFrame(index=run.config.tasks, columns=["dev", "train", "best", "best_step"], dtype=float)
    for task in run.config.tasks:
        metric = TASKS[task].metric
        if (task, metric, "last", "dev") in stored:  # the task may have had another metric
            last = stored[task, metric, "last", "dev"]
            train = stored[task, metric, "last", "train"]
            best = stored[task, metric, "best", "dev"]
            points.loc[task] = last.value, train.value, best.value, best.step
        if is_last_kept:
            points.loc[task, "dev"] = run.score(task)
    return points


def train_gap(run: Run, task: str) -> float:
    """Score on training rows minus that on dev, at the last step; far above 0 where the run overfits."""
    points = score_points(run).loc[task]
    return points["train"] - points["dev"]


def score_table(runs: Mapping[str, list[Run]], constants: pd.DataFrame | None = None) -> pd.DataFrame:
    """Scores for reading: a row per baseline of `constants`, then a row per run; empty where none is stored.

    constants: see `read_baselines`. A task has the mean over seeds of the last step's score on dev and on at most 2,000
    training examples, and of the best point on dev, with its step where that is not the last one.
    """
    if not runs:
        return pd.DataFrame()
    rows = {} if constants is None else _baseline_rows(constants)
    trained = set()
    for name, group in runs.items():
        rows[name] = _score_row(group)
        trained.update(group[0].config.tasks)
    columns = []
    for task in TASKS:
        if task in trained:
            label = TASK_LABELS[task]
            columns += [f"{label} dev", f"{label} train", f"{label} best point"]
    columns += ["overall", "seeds"]
    table = pd.DataFrame(list(rows.values()), index=list(rows), columns=columns)
    return table.fillna("–").rename_axis("run").reset_index()


def _score_row(runs: list[Run]) -> dict[str, str]:
    """The row of `score_table` of a configuration's seeds."""
    points = pd.concat([score_points(run) for run in runs])
    means = points.groupby(level=0, sort=False).mean()
    row = {}
    for task, mean in means.iterrows():
        label = TASK_LABELS[task]
        steps = points.loc[[task], "best_step"]
        row[f"{label} dev"] = shown(mean["dev"])
        row[f"{label} train"] = shown(mean["train"])
        row[f"{label} best point"] = shown(mean["best"]) + _at_steps(steps.min(), steps.max(), runs[0].cost["steps"])
    row["overall"] = shown(overall(means["dev"].to_dict())) if len(means) > 1 else "–"
    row["seeds"] = str(len(runs))
    return row


def _baseline_rows(constants: pd.DataFrame) -> dict[str, dict[str, str]]:
    """Baseline -> its row of `score_table`, from the table of `read_baselines`."""
    rows = {}
    for row in constants.itertuples():
        if row.metric == TASKS[row.task].metric:
            name = LABELS[row.baseline]
            rows.setdefault(name, {})[f"{TASK_LABELS[row.task]} dev"] = shown(row.value)
    return rows


def _at_steps(first: float, last: float, end: int) -> str:
    """At which steps the best points lie, where this is known and not the end of the run."""
    if np.isnan(first) or first == end:
        return ""
    return f" at {first:.0f}" if first == last else f" at {first:.0f} to {last:.0f}"


def last_overall(runs: Sequence[Run]) -> float:
    """`overall` of the last step, mean over seeds; nan where its scores are not stored."""
    scores = pd.concat([score_points(run)["dev"] for run in runs], axis=1)
    return overall(scores.mean(axis=1).to_dict())


def share_at_ends(predicted: ndarray) -> float:
    """Share of predictions of STS within half a point of 0 or 5, the ends of its scale."""
    is_at_end = (predicted < 0.5) | (predicted > 4.5)
    return float(is_at_end.mean())


def shown(value: float) -> str:
    """A score for reading; a dash where there is none."""
    return "–" if np.isnan(value) else f"{value:.3f}"


def mean_scores(runs: dict[str, list[Run]]) -> pd.DataFrame:
    """A row per run: mean dev scores of the kept step over the seeds, as text; overall where it has several tasks."""
    rows = []
    for name, group in runs.items():
        row = {"run": name}
        scored = group[0].config.scored
        for task in TASKS:
            if task in scored:
                row[TASK_LABELS[task]] = f"{np.mean([run.score(task) for run in group]):.3f}"
        if len(group[0].config.tasks) > 1:
            row["overall"] = f"{np.mean([run.score() for run in group]):.3f}"
        rows.append(row | {"seeds": str(len(group))})
    table = pd.DataFrame(rows)
    columns = ["run", *(TASK_LABELS[task] for task in TASKS), "overall", "seeds"]
    return table[[column for column in columns if column in table]].fillna("–")


def curves(grid: Grid, quantity: str) -> pd.DataFrame:
    """Learning curves, means over seeds: columns task, plan, steps (of the whole run), step, value.

    plan: with the gradient method behind it, where that is not the sum. quantity: "dev" or "train_loss". Runs of which
    it is not stored for each task are left out.
    """
    parts = []
    for runs in grid.runs.values():
        points = pd.concat([run.curve for run in runs]).groupby("step").mean(numeric_only=True)
        config = runs[0].config
        plan = config.plan_text
        if config.gradients != "sum":
            plan += f", {METHOD_LABELS[config.gradients]}"
        about = {"plan": plan, "steps": runs[0].cost["steps"]}
        for task in config.tasks:
            if (column := f"{quantity}_{task}") in points:
                values = points[column].dropna().rename("value").reset_index()
                parts.append(values.assign(task=task, **about))
    columns = ["task", "plan", "steps", "step", "value"]
    return pd.concat(parts)[columns] if parts else pd.DataFrame(columns=columns)


def read_baselines(config: RunConfig, data: str | Path | None = None) -> pd.DataFrame:
    """The baselines of a run's tasks: of the course's data those of the results store, else computed.

    The stored cosines are the packaged encoder's, and are left out for another. What is not stored is computed, and the
    table is empty where the data are not here either.
    """
    path = find_result(BASELINES)
    stored = pd.read_csv(path) if path.exists() else NO_BASELINES
    if config.corpus == "demo" or not set(config.tasks) <= set(stored["task"]):
        try:
            return baseline_table(config, data)
        except DataError:
            return NO_BASELINES
    table = stored[stored["task"].isin(config.tasks)]
    return table if config.encoder == MINILM else table[table["baseline"] != "cosine"]


def baselines(grids: Iterable[Grid], data: str | Path | None = None) -> pd.DataFrame:
    """The scores that need no training, of all tasks of the runs (`read_baselines`); none without runs.

    Where the runs differ in corpus or encoder, a task has only those that are the same for all of them.
    """
    configs: dict[tuple, RunConfig] = {}
    for grid in grids:
        for config, *_ in grid.configs.values():
            configs.setdefault((config.corpus, config.encoder, frozenset(config.tasks)), config)
    tables = [read_baselines(config, data) for config in configs.values()]
    if not tables:
        return NO_BASELINES
    found = pd.concat(tables, keys=range(len(tables)), names=["table", None]).reset_index("table")
    by_score = found.groupby(["baseline", "task", "metric"])
    is_one_value = by_score["value"].transform(np.ptp) < 1e-5  # the stored ones are rounded
    is_of_all = by_score["table"].transform("nunique") == found.groupby("task")["table"].transform("nunique")
    common = found[is_one_value & is_of_all].drop(columns="table")
    return common.drop_duplicates(["baseline", "task", "metric"], ignore_index=True)
