"""Tables of grids of runs: scores, differences from a reference with p-values, forgetting, Pareto fronts.

`mtbert_lab.statistics` has the rule for verdicts, and its words. The differences of one table are one family, corrected
by Holm's method.
"""

import logging
import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import chain, pairwise
from operator import or_
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mtbert.bert import MINILM
from mtbert.config import RunConfig
from mtbert.data import TASKS, DataError, corpus
from mtbert.multitask import encoder_config
from mtbert.paths import REPOSITORY
from mtbert.sharing import SharingPlan
from mtbert.training import overall, turn_ends
from mtbert_lab.analysis.baselines import BASELINES, baseline_table
from mtbert_lab.escapes import code
from mtbert_lab.paths import find_result
from mtbert_lab.report.plots import METHOD_LABELS, TASK_LABELS
from mtbert_lab.statistics import (
    MEAN_MARGIN,
    Difference,
    decide,
    interval_text,
    margin_of,
    paired,
    verdict_text,
    welch,
)
from mtbert_lab.store import (
    Run,
    difference,
    load_or_run,
    read_grid,
    stored_seeds,
    training_key,
)

ADAPTER = ("adapter", "adapter_size", "adapter_heads")  # the fields of an adapter
GRADIENTS = ("gradients", "gradient_options", "memory_batch")  # the fields of a gradient method
TOGETHER = ("sst", "quora", "sts")
NO_BASELINES = pd.DataFrame(columns=["baseline", "task", "metric", "value"])


@dataclass(frozen=True)
class Grid:
    """The runs of grid files by their names there: all configurations, and the stored runs of them."""

    paths: tuple[str, ...]  # such as params/cpu/hybrids.yaml; none where the profile has no such grid
    configs: dict[str, list[RunConfig]]
    runs: dict[str, list[Run]]  # only names with at least one stored seed
    among: tuple[Path, ...] = ()  # stores whose runs give the priors; none: `stores()`

    def __or__(self, other: "Grid") -> "Grid":
        """The runs of both; of a name in both the one with more seeds in its file."""
        more = [name for name, group in other.configs.items() if len(group) > len(self.configs.get(name, ()))]
        added = other.only(more)
        runs = {name: some for name, some in self.runs.items() if name not in more}
        paths = dict.fromkeys(self.paths + other.paths)  # each once
        return Grid(tuple(paths), self.configs | added.configs, runs | added.runs, self.among)

    @property
    def missing(self) -> set[RunConfig]:
        """The configurations that are not stored."""
        stored = {run.config for run in chain(*self.runs.values())}
        return set(chain(*self.configs.values())) - stored

    def only(self, names: Iterable[str]) -> "Grid":
        """The part with these names, in their order."""
        wanted = list(names)
        configs = {name: self.configs[name] for name in wanted if name in self.configs}
        runs = {name: self.runs[name] for name in wanted if name in self.runs}
        return replace(self, configs=configs, runs=runs)

    def pick(self, where: Callable[[RunConfig], bool]) -> "Grid":
        """The part whose configurations meet a condition."""
        names = [name for name, configs in self.configs.items() if where(configs[0])]
        return self.only(names)

    @property
    def stored(self) -> str:
        """One sentence: how many of the runs are stored, and the command that trains the others."""
        if not self.configs:
            return "There are no runs of this question here."
        there = sum(map(len, self.runs.values()))
        wanted = sum(map(len, self.configs.values()))
        files = ", ".join(map(code, self.paths))
        text = f"{there} of {wanted} runs of this question ({files}) are stored"
        if there < wanted:
            others = "the others" if there else "them"
            command = f"mtbert train {shlex.join(map(str, self.paths))}"
            text += f"; {code(command)} trains {others}"
        return f"{text}." if there else f"Not measured yet: {text}."


def read_runs(
    profile: str,
    name: str,
    seed: int = 0,
    params: Path = REPOSITORY / "params",
    only: str = "",
    store: Path | None = None,
    data: str | Path | None = None,
    train_missing: bool = True,
    **how,
) -> Grid:
    """The stored runs of params/<profile>/<name>.yaml, an empty grid where there is no such file.

    name: or the absolute path of a grid file. seed: 0 for every seed of the file, another number for this seed alone.
    only: a part of the names of runs; the others are left out. store: default `stores()`. data, train_missing: as in
    `load_or_run`; how: its other arguments.
    """
    path = Path(name)
    if not path.is_absolute():
        path = params / profile / f"{name}.yaml"
    shown = str(path)
    if path.is_relative_to(params):
        if not path.exists():
            return Grid((), {}, {})
        shown = f"params/{path.relative_to(params)}"

    configs, runs = {}, {}
    for run, group in read_grid(path).items():
        if only not in run:
            continue
        configs[run] = [group[0].but(seed=seed)] if seed else group
        if train_missing:
            runs[run] = [load_or_run(config, data, store, **how) for config in configs[run]]
        elif stored := stored_seeds(configs[run], data, store):
            runs[run] = stored
    return Grid((shown,), configs, runs, (store,) if store else ())


@dataclass(frozen=True)
class Comparison:
    """Runs, each beside its reference: a run of the same grid, on the same examples in the same order."""

    grid: Grid
    references: dict[str, str]  # run -> its reference

    @cached_property
    def part(self) -> Grid:
        """The references, then the other runs."""
        return self.grid.only([*self.references.values(), *self.references])

    @property
    def runs(self) -> dict[str, list[Run]]:
        """The stored runs, references first."""
        return self.part.runs

    @property
    def stored(self) -> str:
        text = self.part.stored
        if any(runs[0].config.keep != "last" for runs in self.runs.values()):
            text += " Differences are those of the kept steps (field `keep`), not of the last one."
        return text

    def scores(self, constants: pd.DataFrame | None = None) -> pd.DataFrame | None:
        """Scores for reading: a row per baseline of `constants`, then a row per run; None where none is stored.

        constants: see `read_baselines`. Of every task the mean over seeds of the last step's score on dev and on 2,000
        training examples, and of the best point on dev, with its step where that is not the last one.
        """
        if not self.runs:
            return None
        rows = {} if constants is None else _baseline_rows(constants)
        trained = set()
        for name, runs in self.runs.items():
            rows[name] = _score_row(runs)
            trained.update(runs[0].config.tasks)
        columns = []
        for task in TASKS:
            if task in trained:
                label = TASK_LABELS[task]
                columns += [f"{label} dev", f"{label} train", f"{label} best point"]
        columns += ["overall", "seeds"]
        return pd.DataFrame(list(rows.values()), index=list(rows), columns=columns).fillna("–")

    @property
    def both_stored(self) -> dict[str, str]:
        """The references of which both runs are stored."""
        return {run: other for run, other in self.references.items() if self.runs.keys() >= {run, other}}

    @cached_property
    def differences(self) -> pd.DataFrame:
        """A row per run and task: run, reference, task, the columns of `decide`, and the prior it was decided by."""
        rows, found = [], []
        for name, reference in self.both_stored.items():
            first, second = self.runs[name], self.runs[reference]
            for task in TASKS:
                if task in first[0].config.tasks and task in second[0].config.tasks:
                    rows.append((name, reference, task))
                    found.append(difference(first, second, task, among=self.grid.among))
        table = pd.DataFrame(rows, columns=["run", "reference", "task"])
        table = table.join(decide(found, table["task"].map(margin_of)))
        return table.assign(prior=[one.prior for one in found])

    @cached_property
    def overall(self) -> pd.DataFrame:
        """A row per run: the difference of the overall score, with run, reference, and the columns of `decide`."""
        found = []
        for name, reference in self.both_stored.items():
            found.append(difference(self.runs[name], self.runs[reference], among=self.grid.among))
        rows = list(self.both_stored.items())
        return pd.DataFrame(rows, columns=["run", "reference"]).join(decide(found, [MEAN_MARGIN] * len(found)))

    def difference_table(self) -> pd.DataFrame | None:
        """`differences` for reading: a row per run, a column per task; None where there are none.

        A reference that all runs share is named once, above their names.
        """
        if self.differences.empty:
            return None
        rows = {}
        for row in self.differences.itertuples():
            seeds = f"{row.seeds}, variance of similar runs" if row.uses_prior else str(row.seeds)
            columns = rows.setdefault(row.run, {"minus": row.reference, "seeds": seeds})
            text = f"{signed(row)}, {said(row)}"
            if row.cautious != row.verdict:
                text += f" (cautiously: {row.cautious})"
            columns[TASK_LABELS[row.task]] = text
        table = pd.DataFrame(rows).T.fillna("–")
        references = table["minus"].unique()
        return table if len(references) > 1 else table.drop(columns="minus").rename_axis(f"minus {references[0]}")

    @property
    def prior(self) -> str:
        """One sentence: where runs of few seeds have their seed variance from; empty where none needs another's."""
        pooled = self.differences.dropna(subset="prior").drop_duplicates("task")
        if pooled.empty:
            return ""
        deviations = [f"{row.prior.deviation:.4f} on {TASK_LABELS[row.task]}" for row in pooled.itertuples()]
        counts = [prior.configurations for prior in pooled["prior"]]
        fewest, most = min(counts), max(counts)
        count = f"{fewest} to {most}" if fewest < most else str(most)
        shown = ", ".join(deviations)
        return (
            f"Runs of few seeds take the variance between seeds from {count} configurations that are alike "
            f"(standard deviation {shown})."
        )


def compare(grid: Grid, *fields: str, where: Callable[[RunConfig], bool] = lambda config: True) -> Comparison:
    """Every run of a grid beside the first run of its file that differs from it in nothing but these fields."""
    part = grid.pick(where)
    firsts = {}  # training key without these fields -> the first run that has it
    references = {}
    for name, group in part.configs.items():
        config = group[0]
        reference = firsts.setdefault(training_key(config, fields), name)
        if training_key(config) != training_key(part.configs[reference][0]):
            references[name] = reference
    return Comparison(part, references)


def is_unified(config: RunConfig) -> bool:
    """Whether every step of a run has all tasks."""
    return config.scheme == "unified"


def is_in_turn(config: RunConfig) -> bool:
    """Whether a run trains one task after the other."""
    return config.scheme == "in_turn"


def is_plain(config: RunConfig) -> bool:
    """Whether every step of a run has all tasks, and sums their losses."""
    return is_unified(config) and config.gradients == "sum"


def compare_varied(grid: Grid) -> Comparison:
    """Every run of a grid beside the first run of its file on the same tasks, whatever else the file varies."""
    kept = {"corpus", "tasks", "score_tasks"}  # else the examples differ
    return compare(grid, *(RunConfig.model_fields.keys() - kept))


def one_family(comparisons: Sequence[Comparison], runs: Iterable[str]) -> Comparison:
    """Some runs of several comparisons, corrected together for their number; the others are left out."""
    grid = reduce(or_, (comparison.grid for comparison in comparisons))
    references = {}
    for comparison in comparisons:
        references |= comparison.references
    return Comparison(grid, {run: references[run] for run in runs if run in references})


def varied(grid: Grid) -> pd.DataFrame:
    """A row per run, with the fields in which runs of the grid differ, and its seeds."""
    rows = {}
    for name, group in grid.configs.items():
        rows[name] = group[0].model_dump(mode="json", exclude={"seed"})
    table = pd.DataFrame(rows).T.map(str)
    table = table.loc[:, table.nunique() > 1] if len(table) else table
    seeds = [", ".join(str(config.seed) for config in group) for group in grid.configs.values()]
    return table.assign(seeds=seeds).rename_axis("run").reset_index()


def verdicts(differences: pd.DataFrame) -> pd.DataFrame:
    """A row per verdict of a table of differences: verdict, differences (their number), the largest, by (its size)."""
    rows = []
    is_larger_first = differences["value"].abs().sort_values(ascending=False, kind="stable").index
    for verdict, part in differences.loc[is_larger_first].groupby("verdict", sort=False):
        first = next(part.itertuples())
        largest = f"{first.run} minus {first.reference}, {TASK_LABELS[first.task]}"
        rows.append((verdict, len(part), largest, signed(first)))
    return pd.DataFrame(rows, columns=["verdict", "differences", "the largest", "by"])


def said(row: Any) -> str:
    """The verdict of a row of `decide` or `judge_estimates`, with what belongs to it."""
    return verdict_text(row.verdict, getattr(row, "is_small", False), getattr(row, "seeds_needed", np.nan))


def signed(row: Any) -> str:
    """A difference with its interval."""
    return interval_text(row.value, row.low, row.high, "+.3f")


def unsigned(row: Any) -> str:
    """The size of a difference with its interval, without signs."""
    low, high = (row.low, row.high) if row.value > 0 else (-row.high, -row.low)
    return interval_text(abs(row.value), low, high)


def score_points(run: Run) -> pd.DataFrame:
    """A row per training task: dev and train (scores of the last step), best and best_step (of its best point on dev).

    dev is that of the kept model where this is the last one; pretraining after the training has changed it, and not the
    other columns. nan where the run has not stored them: runs of mtbert before 0.3 have no train scores.
    """
    stored = {(row.task, row.metric, row.at, row.split): row for row in run.step_scores.itertuples()}
    is_last_kept = run.config.keep == "last" or run.cost.get("best_step") == run.cost["steps"]
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


def _baseline_rows(constants: pd.DataFrame) -> dict[str, dict[str, str]]:
    """Baseline -> its row of `Comparison.scores`, from the table of `read_baselines`."""
    names = {"most frequent": "most frequent label", "cosine": "cosine, encoder before our training"}
    rows = {}
    for row in constants.itertuples():
        if row.metric == TASKS[row.task].metric:
            name = names.get(row.baseline, row.baseline)
            rows.setdefault(name, {})[f"{TASK_LABELS[row.task]} dev"] = shown(row.value)
    return rows


def _score_row(runs: list[Run]) -> dict[str, str]:
    """The row of `Comparison.scores` of a configuration's seeds."""
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


def _at_steps(first: float, last: float, end: int) -> str:
    """At which steps the best points lie, where this is known and not the end of the run."""
    if np.isnan(first) or first == end:
        return ""
    return f" at {first:.0f}" if first == last else f" at {first:.0f} to {last:.0f}"


def shown(value: float) -> str:
    """A score for reading; a dash where there is none."""
    return "–" if np.isnan(value) else f"{value:.3f}"


@contextmanager
def rejects_in_one_line() -> Iterator[None]:
    """Of a file with rejected rows only their number is told, as a report is no place to list them."""
    log = logging.getLogger(corpus.__name__)
    log.addFilter(_first_line)
    try:
        yield
    finally:
        log.removeFilter(_first_line)


def _first_line(record: logging.LogRecord) -> bool:
    first, *others = record.getMessage().splitlines() or [""]
    if others:
        record.msg, record.args = f"{first}; `mtbert data check` lists them", None
    return True


def read_baselines(config: RunConfig, data: str | Path | None = None) -> pd.DataFrame:
    """The baselines of a run's tasks: of the course's data those of the results store, else computed.

    The stored cosines are the packaged encoder's, and are left out for another. What is not stored is computed, and the
    table is empty where the data are not here either.
    """
    path = find_result(BASELINES)
    stored = pd.read_csv(path) if path.exists() else NO_BASELINES
    if config.corpus == "demo" or not set(config.tasks) <= set(stored["task"]):
        try:
            with rejects_in_one_line():
                return baseline_table(config, data)
        except DataError:
            return NO_BASELINES
    table = stored[stored["task"].isin(config.tasks)]
    return table if config.encoder == MINILM else table[table["baseline"] != "cosine"]


def baselines(grids: Iterable[Grid], data: str | Path | None = None) -> pd.DataFrame:
    """The scores that need no training, of the run with the most tasks (`read_baselines`); none without runs."""
    configs = [group[0] for grid in grids for group in grid.configs.values()]
    if not configs:
        return NO_BASELINES
    return read_baselines(max(configs, key=lambda config: len(config.tasks)), data)


def mean_scores(runs: dict[str, list[Run]]) -> pd.DataFrame:
    """A row per run: mean dev scores of the kept step over the seeds, as text; overall where it has several tasks."""
    rows = []
    for name, group in runs.items():
        row = {"run": name}
        scored = group[0].config.scored
        for task in TASKS:
            if task in scored:
                row[TASK_LABELS[task]] = f"{np.mean([run.score(task) for run in group]):.3f}"
        if len(scored) > 1:
            row["overall"] = f"{np.mean([run.score() for run in group]):.3f}"
        rows.append(row | {"seeds": str(len(group))})
    table = pd.DataFrame(rows)
    last = [column for column in ("overall", "seeds") if column in table]  # a first run of one task has no overall
    return table[[*table.columns.drop(last), *last]].fillna("–")


def forgotten(runs: dict[str, list[Run]]) -> pd.DataFrame:
    """Dev scores of runs with tasks in turn, a row per run, seed, task and pass: run, seed, task, after, score.

    after: the task of the pass. Forgetting is what a task loses of its score after its last pass (Lopez-Paz and Ranzato
    2017, section 3, whose backward transfer is the last pass minus each task's own, without the last task).
    """
    rows = []
    for name, group in runs.items():
        for run in group:
            sizes = [run.provenance["rows"][f"train {task}"] for task in run.config.tasks]
            points = run.curve.set_index("step")
            for step, after in turn_ends(run.config, sizes).items():
                for task in run.config.tasks:
                    score = points.at[step, f"dev_{task}"]
                    rows.append((name, run.config.seed, task, after, score))
    return pd.DataFrame(rows, columns=["run", "seed", "task", "after", "score"])


def forgetting(run: Run) -> float:
    """How much of its dev score a task loses from its own last pass to the end, the mean over all tasks but the last.

    Of a run with tasks in turn; `forgotten` has the scores.
    """
    last = forgotten({"": [run]}).drop_duplicates(["task", "after"], keep="last")
    scores = last.set_index(["task", "after"])["score"]
    *earlier, end = run.config.tasks
    losses = [scores[task, task] - scores[task, end] for task in earlier]
    return float(np.mean(losses))


def less_forgotten(orders: Sequence[tuple[list[Run], list[Run]]]) -> Difference:
    """Forgetting without a method minus that with it, the mean over orders of the tasks, paired by seed.

    orders: the runs without and with the method, in each order of the tasks. A seed counts that all of them have.
    """
    by_seed = []
    for plain, method in orders:
        by_seed += [{run.config.seed: forgetting(run) for run in runs} for runs in (plain, method)]
    seeds = sorted(set(by_seed[0]).intersection(*by_seed[1:]))
    losses = np.array([[one[seed] for one in by_seed] for seed in seeds])
    losses = losses.reshape(len(seeds), len(orders), 2)  # (S, orders, without and with)
    gaps = (losses[..., 0] - losses[..., 1]).mean(axis=1)
    return paired(gaps)


def trained_by(run: Run) -> str:
    """The version and the machine of a run; costs are compared on one machine with one version."""
    return f"mtbert {run.provenance['mtbert']} on {run.provenance['device']}"


def times_as_long(orders: Sequence[tuple[list[Run], list[Run]]]) -> float:
    """Processor time of the training with a method divided by that without it; orders: as in `less_forgotten`.

    The geometric mean over pairs of one seed, on CPUs of one kind and by one version; nan where there is none.
    """
    ratios = []
    for plain, method in orders:
        on_cpus = {(run.config.seed, trained_by(run)): run for run in plain if run.is_on_cpu}
        for run in method:
            if other := on_cpus.get((run.config.seed, trained_by(run))):
                ratios.append(run.cost["train_cpu_seconds"] / other.cost["train_cpu_seconds"])
    return float(np.exp(np.mean(np.log(ratios)))) if ratios else math.nan


def plan_tables(grid: Grid) -> dict[str, pd.DataFrame]:
    """Stored run -> the table of its sharing plan, `SharingPlan.table`, the plans with the fewest copies first."""
    found = {}
    for name, runs in grid.runs.items():
        config = runs[0].config
        encoder = encoder_config(config)
        plan = SharingPlan.parse(config.plan_text, config.scored, encoder.num_hidden_layers)
        found[name] = plan.table(encoder)
    return dict(sorted(found.items(), key=lambda item: item[1]["copies"].sum()))


def plan_words(plans: dict[str, pd.DataFrame], runs: dict[str, list[Run]]) -> dict[str, str]:
    """Run -> its name with the layers that it shares and its parameters: "hybrid-3: 3 of 6 shared, 33.7 M"."""
    words = {}
    for name, plan in plans.items():
        copies = plan["copies"].filter(like="layer")
        millions = runs[name][0].cost["parameters"] / 1e6
        words[name] = f"{name}: {(copies == 1).sum()} of {len(copies)} shared, {millions:.1f} M"
    return words


def costs(runs: dict[str, list[Run]]) -> pd.DataFrame:
    """A row per run: name, seeds, overall (last step, mean over seeds), parameters (M), state (MiB).

    state: in float32 the weights, and of the trained ones a gradient and AdamW's two moments. Runs without a score of
    the last step are left out.
    """
    rows = []
    for name, group in runs.items():
        scores = pd.concat([score_points(run)["dev"] for run in group], axis=1)
        score = overall(scores.mean(axis=1).to_dict())
        cost = group[0].cost
        numbers = cost["parameters"] + 3 * cost["trained_parameters"]
        rows.append((name, len(group), score, cost["parameters"] / 1e6, 4 * numbers / 2**20))
    columns = ["name", "seeds", "overall", "parameters (M)", "state (MiB)"]
    table = pd.DataFrame(rows, columns=columns)
    return table.dropna(subset="overall").reset_index(drop=True)


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


def log_cost_ratio(first: list[Run], second: list[Run], quantity: str) -> Difference:
    """Logarithm of the ratio of the costs of two configurations, means over seeds, by Welch's t-test."""
    first_costs = [run.cost[quantity] for run in first]
    second_costs = [run.cost[quantity] for run in second]
    return welch(np.log(first_costs), np.log(second_costs))


def cost_ratio(first: list[Run], second: list[Run], quantity: str) -> tuple[float, float, float]:
    """Ratio of the costs of two configurations and its 95 % interval.

    One seed on a side has none, nor have runs of several versions or machines, which differ by more than chance.
    """
    found = log_cost_ratio(first, second, quantity)
    low = high = np.nan
    is_of_one_place = len(set(map(trained_by, [*first, *second]))) == 1
    if found.is_decided and is_of_one_place:
        low, high = found.interval()
    return tuple(np.exp([found.value, low, high]).tolist())


def pareto(table: pd.DataFrame, cost: str) -> list[str]:
    """Names of the rows, from the cheapest up, whose `overall` is above that of every row which costs no more."""
    table = table.sort_values([cost, "overall"], ascending=[True, False])
    best_before = table["overall"].cummax().shift(fill_value=-np.inf)
    is_ahead = table["overall"] > best_before
    return table.loc[is_ahead, "name"].tolist()


def gaps(runs: dict[str, list[Run]], reference: str) -> pd.DataFrame:
    """Overall score of each run minus that of the reference, with 95 % intervals: columns name, overall, low, high."""
    rows = []
    for name, some in runs.items():
        gap = difference(some, runs[reference])
        rows.append((name, gap.value, *gap.interval()))
    return pd.DataFrame(rows, columns=["name", "overall", "low", "high"])


def front_gains(table: pd.DataFrame, runs: dict[str, list[Run]], cost: str) -> pd.DataFrame:
    """The front from the cheapest up: cost, overall, seeds, gains over the one before and the first, with intervals."""
    names = pareto(table, cost)
    front = table.set_index("name").loc[names, [cost, "overall", "seeds"]].rename_axis(None)
    on_before, on_first = ["–"], ["–"]
    for before, name in pairwise(names):
        on_before.append(difference(runs[name], runs[before]).text())
        on_first.append(difference(runs[name], runs[names[0]]).text())
    front = front.round({cost: 1, "overall": 3})
    return front.assign(**{"gain on the one before": on_before, "gain on the first": on_first})
