"""Tables of grids of runs: scores, differences from a reference that follow the seeds, forgetting, Pareto fronts.

The rule for words. A difference is decided where both sides have SEEDS seeds: "better" or "worse" where its p-value,
corrected by Holm's method for the decided differences of its table, is below 0.05, else "not distinguishable". With
fewer seeds it is "not decided yet": its interval does not hold the luck of the seed.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from mtbert.bert import MINILM
from mtbert.config import RunConfig
from mtbert.data import TASKS, DataError
from mtbert.paths import REPOSITORY, results_dir
from mtbert.report.claims import difference_together
from mtbert.report.plots import TASK_LABELS
from mtbert.results import (
    BASELINES,
    MissingRun,
    Run,
    baseline_table,
    difference,
    forgetting,
    load_or_run,
    read_grid,
    stack_predictions,
)
from mtbert.training import holm, metrics_of, overall, seed_p_value

SEEDS = 3
LEVEL = 0.05
NOT_DECIDED = "not decided yet"
MOST_TOLD = 4  # differences that a sentence names


@dataclass(frozen=True)
class Grid:
    """The runs of grid files by their names there: all configurations, and the stored runs of them."""

    paths: tuple[str, ...]  # such as params/cpu/hybrids.yaml; none where the profile has no such grid
    configs: dict[str, list[RunConfig]]
    runs: dict[str, list[Run]]  # only names with at least one stored seed

    def __or__(self, other: "Grid") -> "Grid":
        """The runs of both; of a name in both the one with more seeds in its file."""
        names = {**self.configs, **other.configs}
        taken = {name: max(self, other, key=lambda g, name=name: len(g.configs.get(name, ()))) for name in names}
        configs = {name: grid.configs[name] for name, grid in taken.items()}
        runs = {name: grid.runs[name] for name, grid in taken.items() if name in grid.runs}
        return Grid(tuple(dict.fromkeys(self.paths + other.paths)), configs, runs)

    def pick(self, where: Callable[[RunConfig], bool]) -> "Grid":
        """The part whose configurations meet a condition."""
        configs = {name: group for name, group in self.configs.items() if where(group[0])}
        return replace(self, configs=configs, runs={name: runs for name, runs in self.runs.items() if name in configs})

    @property
    def stored(self) -> str:
        """One sentence: how many of the runs are stored, and the command that trains the others."""
        if not self.configs:
            return "This profile has no runs of this question."
        there, wanted = (sum(map(len, groups.values())) for groups in (self.runs, self.configs))
        files, commands = (
            " and ".join(f"`{p}`" for p in self.paths),
            ", ".join(f"`mtbert train {p}`" for p in self.paths),
        )
        trains = "trains" if len(self.paths) == 1 else "train"
        if not there:
            return f"None of the {wanted} runs of this question is stored yet; {commands} {trains} them."
        rest = "" if there == wanted else f"; {commands} {trains} the others"
        return f"{there} of {wanted} runs of this question ({files}) are stored{rest}."


def read_runs(profile: str, name: str, seed: int = 0, params: Path = REPOSITORY / "params", **how) -> Grid:
    """The stored runs of params/<profile>/<name>.yaml, an empty grid where there is no such file.

    seed: 0 for every seed of the file, another number for this seed alone. how: arguments of `load_or_run`.
    """
    path = params / profile / f"{name}.yaml"
    if not path.exists():
        return Grid((), {}, {})
    grid, runs = read_grid(path), {}
    if seed:
        grid = {run: [configs[0].but(seed=seed)] for run, configs in grid.items()}
    for run, configs in grid.items():
        for config in configs:
            try:
                stored = load_or_run(config, **how)
            except MissingRun:
                continue
            runs.setdefault(run, []).append(stored)
    return Grid((f"params/{profile}/{path.name}",), grid, runs)


@dataclass(frozen=True)
class Comparison:
    """Runs, each beside its reference: a run of the same grid, on the same examples in the same order."""

    grid: Grid
    references: dict[str, str]  # run -> its reference

    @property
    def runs(self) -> dict[str, list[Run]]:
        """The stored runs, references first."""
        names = dict.fromkeys([*self.references.values(), *self.references])
        return {name: self.grid.runs[name] for name in names if name in self.grid.runs}

    @property
    def groups(self) -> dict[str, list[str]]:
        """Reference -> the names of its stored runs, itself first where it is stored."""
        names = {reference: [reference] for reference in self.references.values()}
        for name, reference in self.references.items():
            names[reference].append(name)
        stored = {reference: [name for name in group if name in self.runs] for reference, group in names.items()}
        return {reference: group for reference, group in stored.items() if group}

    @property
    def tasks(self) -> list[str]:
        return [task for task in TASKS if any(task in group[0].config.tasks for group in self.runs.values())]

    @property
    def stored(self) -> str:
        names = {*self.references, *self.references.values()}
        configs = {name: group for name, group in self.grid.configs.items() if name in names}
        text = replace(self.grid, configs=configs, runs=self.runs).stored
        if self.runs and any(group[0].config.keep != "last" for group in self.runs.values()):
            text += " Differences are those of the kept steps (field `keep`), not of the last one."
        return text

    def scores(self, constants: pd.DataFrame | None = None) -> pd.DataFrame | None:
        """`score_table` of these runs, None where none is stored."""
        return score_table(self.runs, self.tasks, constants) if self.runs else None

    @cached_property
    def differences(self) -> pd.DataFrame:
        """A row a run and task: run, reference, task, seeds, value, low, high (95 %), p (corrected), verdict."""
        rows = []
        for name, reference in self.references.items():
            if name not in self.runs or reference not in self.runs:
                continue
            first, second = self.runs[name], self.runs[reference]
            for task in TASKS:
                if all(task in group[0].config.tasks for group in (first, second)):
                    found = _difference(first, second, task)
                    rows.append({"run": name, "reference": reference, "task": task, **found})
        columns = ["run", "reference", "task", "seeds", "value", "low", "high", "p"]
        table = pd.DataFrame(rows, columns=columns)
        decided = table["p"].notna()
        table.loc[decided, "p"] = holm(table.loc[decided, "p"].to_numpy())
        return table.assign(verdict=[_word(row) for row in table.itertuples()])

    def difference_table(self) -> pd.DataFrame | None:
        """`differences` for reading: a row a run, a column a task; None where there are none."""
        if self.differences.empty:
            return None
        rows = {}
        for (name, reference), part in self.differences.groupby(["run", "reference"], sort=False):
            seeds = int(part["seeds"].iloc[0])
            rows[name] = {"minus": reference, "seeds": str(seeds) if seeds >= SEEDS else f"{seeds}: {NOT_DECIDED}"}
            for row in part.itertuples():
                word = "" if NOT_DECIDED in row.verdict else f", {row.verdict}"
                rows[name][TASK_LABELS[row.task]] = f"{_signed(row)}{word}"
        return pd.DataFrame(rows).T.fillna("–")

    @property
    def answer(self) -> str:
        """What the differences say, in a sentence; empty where there are none."""
        return told(self.differences)


def compare(grid: Grid, *fields: str, where: Callable[[RunConfig], bool] = lambda config: True) -> Comparison:
    """Every run of a grid beside the first run of its file that differs from it in nothing but these fields."""
    part, references = grid.pick(where), {}
    keys = {name: _key(group[0], fields) for name, group in part.configs.items()}
    for name, key in keys.items():
        reference = next(other for other in keys if keys[other] == key)
        if _key(part.configs[name][0]) != _key(part.configs[reference][0]):
            references[name] = reference
    return Comparison(part, references)


def _key(config: RunConfig, without: tuple[str, ...] = ()) -> str:
    """A configuration without these fields, and without those that leave the trained weights as they are."""
    fields = config.model_dump(mode="json", exclude={*without, "seed", "cosine_every"})
    return json.dumps(fields, sort_keys=True)


def _difference(first: list[Run], second: list[Run], task: str) -> dict:
    seeds = min(len(first), len(second))
    value, low, high = difference(first, second, task)
    p = np.nan
    if seeds >= SEEDS:
        metric = next(iter(metrics_of(TASKS[task]).values()))
        (one, labels), (other, _) = stack_predictions(first, task), stack_predictions(second, task)
        p = seed_p_value(metric, one, other, labels)
    return {"seeds": seeds, "value": value, "low": low, "high": high, "p": p}


def _word(row) -> str:
    if np.isnan(row.p):
        return f"{NOT_DECIDED} ({row.seeds} seed{'s' if row.seeds > 1 else ''})"
    if row.p >= LEVEL:
        return "not distinguishable"
    return "better" if row.value > 0 else "worse"


def _signed(row) -> str:
    return f"{row.value:+.3f} ({row.low:+.3f} to {row.high:+.3f})"


def told(differences: pd.DataFrame) -> str:
    """What a table of differences says, in a sentence or two; empty where it has no rows."""
    if differences.empty:
        return ""
    decided = differences[differences["p"].notna()]
    found = decided[decided["p"] < LEVEL].sort_values("value", key=abs, ascending=False)
    open_ones = len(differences) - len(decided)
    largest = (decided if len(decided) else differences).sort_values("value", key=abs).iloc[-1]
    if not len(decided):
        seeds = sorted(differences["seeds"].unique())
        return (
            f"{NOT_DECIDED.capitalize()} ({' or '.join(map(str, seeds))} seed{'s' if seeds[-1] > 1 else ''}): the "
            f"largest of the {len(differences)} differences is that of {_named(largest)}."
        )
    if not len(found):
        text = f"None of the {len(decided)} differences is distinguishable from 0; the largest is {_named(largest)}"
    else:
        named = "; ".join(
            f"{row.run} is {row.verdict} than {row.reference} on {TASK_LABELS[row.task]}, {_signed(row)}"
            for row in found.head(MOST_TOLD).itertuples()
        )
        more = "" if len(found) <= MOST_TOLD else f"; and {len(found) - MOST_TOLD} smaller ones"
        are = "is" if len(found) == 1 else "are"
        text = f"{len(found)} of {len(decided)} differences {are} distinguishable from 0: {named}{more}"
    more = f"; {open_ones} more are {NOT_DECIDED} (fewer than {SEEDS} seeds)" if open_ones else ""
    return f"{text}{more}."


def _named(row) -> str:
    return f"{row.run} minus {row.reference} on {TASK_LABELS[row.task]}, {_signed(row)}"


def score_points(run: Run) -> pd.DataFrame:
    """A row a training task: dev and train (scores of the last step), best and best_step (of its best point on dev).

    nan where the run has not stored them: runs of mtbert before 0.3 have no train scores.
    """
    rows = {}
    for task in run.config.tasks:
        if len(run.step_scores):
            table = _first_metric(run.step_scores, task).set_index(["at", "split"])
            last, train, best = (table.loc[place] for place in (("last", "dev"), ("last", "train"), ("best", "dev")))
            rows[task] = [last["value"], train["value"], best["value"], best["step"]]
        else:
            kept_last = run.config.keep == "last" or run.cost.get("best_step") == run.cost["steps"]
            rows[task] = [run.score(task) if kept_last else np.nan, np.nan, np.nan, np.nan]
    return pd.DataFrame.from_dict(rows, orient="index", columns=["dev", "train", "best", "best_step"], dtype=float)


def _first_metric(table: pd.DataFrame, task: str) -> pd.DataFrame:
    """The rows of a task's first metric, which selects models."""
    return table[(table["task"] == task) & (table["metric"] == next(iter(metrics_of(TASKS[task]))))]


def score_table(runs: dict[str, list[Run]], tasks: list[str], constants: pd.DataFrame | None = None) -> pd.DataFrame:
    """Scores for reading: a row a baseline of `constants` (see `mtbert.baselines`), then a row a run, means over seeds.

    Of every task the score of the last step on dev and on 2,000 training examples, and its best point with its step.
    """
    rows = {}
    if constants is not None:
        for name, part in constants.groupby("baseline", sort=False):
            values = {}
            for task in tasks:
                found = _first_metric(part, task)["value"]
                values[TASK_LABELS[task], "dev"] = _shown(found.iloc[0] if len(found) else np.nan)
            rows[BASELINE_NAMES.get(name, name)] = values
    for name, group in runs.items():
        points, values = [score_points(run) for run in group], {}
        means = pd.concat(points).groupby(level=0).mean()
        steps = pd.concat(points)["best_step"]
        for task in means.index:
            label, row = TASK_LABELS[task], means.loc[task]
            first, last = steps[[task]].min(), steps[[task]].max()
            at = "" if np.isnan(first) else f" at {first:.0f}" if first == last else f" at {first:.0f} to {last:.0f}"
            values[label, "dev"], values[label, "train"] = _shown(row["dev"]), _shown(row["train"])
            values[label, "best point"] = _shown(row["best"]) + at
        values["", "overall"] = _shown(overall(means["dev"].to_dict())) if len(means) > 1 else "–"
        values["", "seeds"] = str(len(group))
        rows[name] = values
    columns = [(TASK_LABELS[task], what) for task in tasks for what in ("dev", "train", "best point")]
    columns = pd.MultiIndex.from_tuples([*columns, ("", "overall"), ("", "seeds")])
    return (
        pd.DataFrame([pd.Series(row) for row in rows.values()], index=list(rows)).reindex(columns=columns).fillna("–")
    )


BASELINE_NAMES = {"most frequent": "most frequent label", "cosine": "cosine, untrained encoder"}


def _shown(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.3f}"


def read_baselines(config: RunConfig, data: str | Path | None = None) -> pd.DataFrame:
    """The baselines of a run's tasks: of the demo corpus computed, else those of the results store.

    The stored cosines are the packaged encoder's, and are left out for another. Without a stored table they are
    computed, and the table is empty where the data are not here either.
    """
    path = results_dir() / BASELINES
    if config.corpus == "demo" or not path.exists():
        try:
            return baseline_table(config, data)
        except DataError:
            return pd.DataFrame(columns=["baseline", "task", "metric", "value"])
    table = pd.read_csv(path)
    return table if config.encoder == MINILM else table[table["baseline"] != "cosine"]


def forgotten(runs: dict[str, list[Run]]) -> pd.DataFrame:
    """Of runs with tasks in turn, a row a run, seed, task and pass: run, seed, task, after, score. See `forgetting`."""
    rows = []
    for name, group in runs.items():
        for run in group:
            for after, scores in forgetting(run).iterrows():
                rows += [
                    {"run": name, "seed": run.config.seed, "task": task, "after": after, "score": score}
                    for task, score in scores.items()
                ]
    return pd.DataFrame(rows, columns=["run", "seed", "task", "after", "score"])


def state_mib(parameters: float, trained: float) -> float:
    """MiB in float32: the weights, and of the trained ones a gradient and AdamW's two moments."""
    return 4 * (parameters + 3 * trained) / 2**20


def worth(runs: dict[str, list[Run]]) -> pd.DataFrame:
    """A row a run: name, seeds, overall (last step, mean over seeds), parameters (M), trained (M), state (MiB), speed.

    speed: tokens a second of processor time, the mean over seeds. Runs without a score of the last step are left out.
    """
    rows = []
    for name, group in runs.items():
        scores = pd.concat([score_points(run)["dev"] for run in group], axis=1).mean(axis=1)
        parameters, trained = group[0].cost["parameters"], group[0].cost["trained_parameters"]
        rows.append(
            {
                "name": name,
                "seeds": len(group),
                "overall": overall(scores.to_dict()),
                "parameters (M)": parameters / 1e6,
                "trained (M)": trained / 1e6,
                "state (MiB)": state_mib(parameters, trained),
                "speed": float(np.mean([run.cost.get("tokens_per_cpu_second", np.nan) for run in group])),
            }
        )
    return pd.DataFrame(rows).dropna(subset="overall").reset_index(drop=True) if rows else pd.DataFrame(rows)


def pareto(table: pd.DataFrame, cost: str, value: str = "overall") -> list[str]:
    """Names of the rows, from the cheapest up, that score more than every row which costs no more."""
    names, best = [], -np.inf
    for row in table.sort_values([cost, value], ascending=[True, False])[["name", value]].itertuples(index=False):
        if row[1] > best:
            names.append(row[0])
            best = row[1]
    return names


def front_gains(table: pd.DataFrame, runs: dict[str, list[Run]], cost: str) -> pd.DataFrame:
    """The front from the cheapest up: cost, overall, seeds, and what each gains on the one before it, with interval."""
    rows, before = {}, None
    for name in pareto(table, cost):
        row = table.set_index("name").loc[name]
        gain = "–"
        if before:
            value, low, high = difference_together(runs[name], runs[before], "overall")
            gain = f"{value:+.3f} ({low:+.3f} to {high:+.3f})"
        rows[name] = {cost: f"{row[cost]:.1f}", "overall": f"{row['overall']:.3f}", "seeds": int(row["seeds"])}
        rows[name] |= {"gain on the one before": gain}
        before = name
    return pd.DataFrame(rows).T
