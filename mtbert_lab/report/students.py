"""What notebook 11 shows: students beside their references, their costs, the best model, and labels of its runs.

A student is a run with teachers. Tables read stored runs; the sentences stand in the notebook.
"""

from collections.abc import Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from mtbert.config import RunConfig
from mtbert.sharing import SharingPlan
from mtbert_lab.paths import find_result
from mtbert_lab.report import notebook, plots_sweeps, tables, words
from mtbert_lab.report.tables import Comparison, Grid
from mtbert_lab.report.words import TASK_LABELS
from mtbert_lab.statistics import MEAN_MARGIN, SEEDS, count_seeds
from mtbert_lab.store import Run, overall_interval

TEACHERS = ("teachers", "distil", "temperature")  # the fields of teaching
SCORED_WHEN = ("evals_per_epoch", "eval_spacing", "curve_rows")  # the fields that say when and on how much of dev
BEST = "each task's best step, R-Drop"
HYBRID_TEST = 0.782  # overall on test of hybrid-bert, in paper 002
MOST_PARAMETERS = 45e6  # of the best model
STEPS = "training steps, with those of the teachers"
COST_LABELS = {"parameters (M)": "parameters (millions)", STEPS: STEPS}
PREDICTIONS = {  # run -> the folder, in results/, of the predictions that were scored, named by the run's id
    BEST: "predictions/4b7647f197",
    "44.3 M from the best": "predictions/9874f86083",
    "22.7 M from the best": "predictions/45eda782ca",
}
LABELS = words.STUDENTS  # where the names of runs in the grids are short for what they are
LONG_LABELS = {name: label.removesuffix(", 4,800 steps") for name, label in LABELS.items()}  # where all are as long


def against(comparison: Comparison, reference: str) -> pd.DataFrame:
    """The overall scores of a comparison's runs minus that of one reference, as in `Comparison.overall`."""
    return Comparison(comparison.grid, dict.fromkeys(comparison.references, reference)).overall


def beside(comparison: Comparison, *references: str) -> pd.DataFrame:
    """The table of `against` for several references, a panel of a figure each: task has the reference's name."""
    panels = [against(comparison, name).assign(task=f"overall minus {name}") for name in references]
    return pd.concat(panels, ignore_index=True).assign(margin=MEAN_MARGIN)


def best(grid: Grid) -> str | None:
    """The run with the highest mean overall score, with at most MOST_PARAMETERS; None where there is none."""
    means = {}
    for name, runs in grid.runs.items():
        if runs[0].cost["parameters"] <= MOST_PARAMETERS:
            means[name] = sum(run.score() for run in runs) / len(runs)
    return max(means, key=means.get, default=None)


def beside_best(models: Grid, part: Grid) -> Comparison:
    """Every run of a part beside the best model."""
    return Comparison(models | part, dict.fromkeys(part.configs, BEST))


def stored_by_config(grids: Iterable[Grid]) -> dict[RunConfig, Run]:
    """Every stored run of some grids by its configuration."""
    return {run.config: run for grid in grids for runs in grid.runs.values() for run in runs}


def teachers_of(runs: Sequence[Run], stored: Mapping[RunConfig, Run]) -> list[Run]:
    """The stored runs from which a configuration learns."""
    return [stored[config] for config in runs[0].config.teachers if config in stored]


def steps_in_all(runs: Sequence[Run], stored: Mapping[RunConfig, Run]) -> int:
    """The training steps of a configuration and of its teachers."""
    return sum(run.cost["steps"] for run in [runs[0], *teachers_of(runs, stored)])


def hours(run: Run) -> float:
    """The processor hours of a run; nan on a GPU, whose hours are of another kind."""
    return run.cost["train_cpu_seconds"] / 3600 if run.is_on_cpu else np.nan


def _two_digits(number: float) -> str:
    return f"{number:.2f}" if number > 0 else "–"


def costs_table(comparison: Comparison, references: Sequence[str], stored: Mapping[RunConfig, Run]) -> pd.DataFrame:
    """What references and students score overall and cost, and each student minus each reference; as text.

    Processor hours are the mean of a run, and of its teachers the sum.
    """
    rows = {}
    for name in [*references, *comparison.references]:
        if not (runs := comparison.grid.runs.get(name)):
            continue
        rows[name] = {
            "overall": overall_interval(runs).text(),
            "parameters (M)": _millions(runs),
            "processor hours": _two_digits(pd.Series([hours(run) for run in runs]).mean()),
            "of its teachers": _two_digits(sum(hours(run) for run in teachers_of(runs, stored))),
            "seeds": str(len(runs)),
        }
    for reference in references:
        for row in against(comparison, reference).itertuples():
            rows[row.run][f"minus {reference}"] = f"{tables.signed(row)}, {tables.said(row)}"
    return pd.DataFrame(rows).T.fillna("–").rename_axis("run").reset_index()


def show_costs(
    comparison: Comparison,
    references: Sequence[str],
    stored: Mapping[RunConfig, Run],
    labels: Mapping[str, str] = LABELS,
) -> None:
    """The table of `costs_table`, folded, with labels of the runs."""
    table = costs_table(comparison, references, stored)
    table = notebook.labelled(table, labels).rename(
        columns={f"minus {name}": f"minus {labels.get(name, name)}" for name in references}
    )
    notebook.collapsible(table, "What they score and cost")


def front_points(runs: Mapping[str, list[Run]], reference: str, stored: Mapping[RunConfig, Run]) -> pd.DataFrame:
    """Columns name, seeds, the costs of COST_LABELS, overall minus that of a reference with low and high.

    Only of configurations with SEEDS seeds or more; no rows without the reference.
    """
    judged = {name: group for name, group in runs.items() if len(group) >= SEEDS}
    if reference not in judged:
        return pd.DataFrame(columns=["name", "seeds", *COST_LABELS, "overall", "low", "high"])
    points = tables.costs(judged).drop(columns="overall").merge(tables.gaps(judged, reference), on="name")
    points[STEPS] = [steps_in_all(judged[name], stored) for name in points["name"]]
    return points


def front_figure(points: pd.DataFrame, named: Iterable[str]) -> plt.Figure:
    """The overall score against each cost; the runs on a front have names, and those in `named`."""
    fronts = {cost: tables.pareto(points, cost) for cost in COST_LABELS}
    shown = {*named, *(name for names in fronts.values() for name in names)}
    labels = points["name"].replace(LABELS)
    points = points.assign(name=labels.where(points["name"].isin(shown), ""))
    figure, axes = plt.subplots(2, 1, figsize=(9, 9), layout="constrained")
    for ax, (cost, names) in zip(axes, fronts.items(), strict=True):
        plots_sweeps.front(points, [LABELS.get(name, name) for name in names], cost, ax)
        ax.set(xlabel=COST_LABELS[cost], ylabel="dev overall minus that of 1-bert")
    return figure


def dev_places(runs: Sequence[Run]) -> dict[str, object]:
    """Places of a sentence on a model: score (overall on dev, the kept step) with low and high, last (step), seeds."""
    score, low, high = overall_interval(runs)
    last = tables.last_overall(runs)
    return {"score": score, "low": low, "high": high, "last": last, "seeds": count_seeds(len(runs))}


def tried_table(grid: Grid) -> pd.DataFrame:
    """A row per stored run: what differs from the first run of its tasks, and its scores; as text.

    How often a run was scored on dev is left out.
    """
    scores = tables.mean_scores(grid.runs)
    if scores.empty:
        return scores
    changes, bases, last, sizes = [], {}, [], []
    for runs in grid.runs.values():
        fields = runs[0].config.model_dump(mode="json", exclude={"seed", *SCORED_WHEN})
        base = bases.setdefault(runs[0].config.tasks, fields)
        changed = [f"{key} {value}" for key, value in fields.items() if value != base[key]]
        changes.append(", ".join(changed).replace("'", "") or "–")
        last.append(tables.shown(tables.last_overall(runs)) if len(runs[0].config.tasks) > 1 else "–")
        sizes.append(_millions(runs))
    scores.insert(1, "changed", changes)
    return scores.assign(**{"overall, last step": last, "parameters (M)": sizes})


def _millions(runs: Sequence[Run]) -> str:
    return f"{runs[0].cost['parameters'] / 1e6:.1f}"


def sizes_table(runs: Mapping[str, list[Run]]) -> pd.DataFrame:
    """Mean dev scores of some runs, and their parameters; as text."""
    return tables.mean_scores(dict(runs)).assign(**{"parameters (M)": [_millions(group) for group in runs.values()]})


def scores_on_test(runs: Mapping[str, list[Run]]) -> pd.DataFrame:
    """What the holder of the test labels found for the files of PREDICTIONS; a row per run of these, as text.

    Columns run, the tasks, overall, parameters (M), seed, files, and the command that writes them.
    """
    path = find_result("predictions/test-scores.csv")
    scores = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=["run", "task", "score"])
    columns = {task: TASK_LABELS[task] for task in tables.TOGETHER} | {"overall": "overall"}
    rows = []
    for name, folder in PREDICTIONS.items():
        for run in runs.get(name, [])[:1]:
            found = scores[scores["run"] == run.run_id.partition("-")[0]].set_index("task")["score"]
            row = {"run": name} | {label: tables.shown(found.get(task, np.nan)) for task, label in columns.items()}
            row |= {"parameters (M)": _millions([run]), "seed": str(run.config.seed), "files": f"results/{folder}"}
            rows.append(row | {"command": f"mtbert predict {run.run_id} --train --out results/{folder}"})
    return pd.DataFrame(rows, columns=["run", *columns.values(), "parameters (M)", "seed", "files", "command"])


def paper_millions() -> float:
    """The parameters of paper 002's hybrid-bert, in millions."""
    plan = SharingPlan.parse("hybrid-6", tables.TOGETHER, 12)
    return plan.table()["parameters"].sum() / 1e6
