"""Tables of grids of runs: scores, differences from a reference with p-values, forgetting, Pareto fronts.

`mtbert.statistics` has the rule for verdicts. The differences of one table are one family, corrected by Holm's method:
"better" or "worse" where the corrected p-value is below LEVEL, else "too close to call"; "not decided" where a run has
too few seeds and no stratum lends it a seed variance.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product, repeat
from pathlib import Path

import numpy as np
import pandas as pd

from mtbert.bert import MINILM
from mtbert.config import RunConfig
from mtbert.data import TASKS, DataError
from mtbert.paths import REPOSITORY, find_result
from mtbert.report.plots import TASK_LABELS
from mtbert.results import (
    BASELINES,
    MissingRun,
    Run,
    SweepRun,
    baseline_table,
    difference,
    lent_to,
    load_or_run,
    read_grid,
    training_key,
)
from mtbert.statistics import CLOSE, NOT_DECIDED, SEEDS, Difference, decide, welch
from mtbert.training import overall, turn_ends

FEW = f"fewer than {SEEDS} seeds, and no runs that are alike"
NAMED = 3  # differences of a summary that have numbers
WORDS = ["none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
SCORES = ("dev", "train", "best point")  # of a task in `Comparison.scores`
TOGETHER = ("sst", "quora", "sts")


@dataclass(frozen=True)
class Grid:
    """The runs of grid files by their names there: all configurations, and the stored runs of them."""

    paths: tuple[str, ...]  # such as params/cpu/hybrids.yaml; none where the profile has no such grid
    configs: dict[str, list[RunConfig]]
    runs: dict[str, list[Run]]  # only names with at least one stored seed
    among: tuple[Path, ...] = ()  # stores whose runs lend their seed variance; none: `stores()`

    def __or__(self, other: "Grid") -> "Grid":
        """The runs of both; of a name in both the one with more seeds in its file."""
        configs = dict(self.configs)
        runs = dict(self.runs)
        for name, group in other.configs.items():
            if len(group) > len(configs.get(name, ())):
                configs[name] = group
                runs.pop(name, None)
                if name in other.runs:
                    runs[name] = other.runs[name]
        return Grid(tuple(dict.fromkeys(self.paths + other.paths)), configs, runs, self.among)

    @property
    def missing(self) -> list[SweepRun]:
        """The runs that are not stored."""
        stored = {run.config for run in chain(*self.runs.values())}
        missing = []
        for name, group in self.configs.items():
            missing += [SweepRun(name, config, config.digest, False) for config in group if config not in stored]
        return missing

    def only(self, names: Iterable[str]) -> "Grid":
        """The part with these names, in their order."""
        wanted = list(names)
        configs = {name: self.configs[name] for name in wanted if name in self.configs}
        runs = {name: self.runs[name] for name in wanted if name in self.runs}
        return replace(self, configs=configs, runs=runs)

    def pick(self, where: Callable[[RunConfig], bool]) -> "Grid":
        """The part whose configurations meet a condition."""
        return self.only([name for name, group in self.configs.items() if where(group[0])])

    @property
    def stored(self) -> str:
        """One sentence: how many of the runs are stored, and the command that trains the others."""
        if not self.configs:
            return "There are no runs of this question here."
        there, wanted = (sum(map(len, groups.values())) for groups in (self.runs, self.configs))
        files = " and ".join(f"`{path}`" for path in self.paths)
        others = f"; `mtbert train {' '.join(self.paths)}` trains {'the others' if there else 'them'}"
        text = f"{there} of {wanted} runs of this question ({files}) are stored{others if there < wanted else ''}."
        return text if there else f"Not measured yet: {text}"


def read_runs(
    profile: str, name: str, seed: int = 0, params: Path = REPOSITORY / "params", only: str = "", **how
) -> Grid:
    """The stored runs of params/<profile>/<name>.yaml, an empty grid where there is no such file.

    name: or the absolute path of a grid file. seed: 0 for every seed of the file, another number for this seed alone.
    only: a part of the names of runs; the others are left out. how: arguments of `load_or_run`.
    """
    path = Path(name) if Path(name).is_absolute() else params / profile / f"{name}.yaml"
    if not path.exists() and path.is_relative_to(params):
        return Grid((), {}, {})
    grid = {run: configs for run, configs in read_grid(path).items() if only in run}
    runs = {}
    if seed:
        grid = {run: [configs[0].but(seed=seed)] for run, configs in grid.items()}
    for run, configs in grid.items():
        for config in configs:
            try:
                stored = load_or_run(config, **how)
            except MissingRun:
                continue
            runs.setdefault(run, []).append(stored)
    shown = f"params/{path.relative_to(params)}" if path.is_relative_to(params) else str(path)
    return Grid((shown,), grid, runs, (Path(how["store"]),) if how.get("store") else ())


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
        if any(group[0].config.keep != "last" for group in self.runs.values()):
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
        for name, group in self.runs.items():
            rows[name] = _score_row(group)
        trained = set(chain(*(group[0].config.tasks for group in self.runs.values())))
        columns = product([TASK_LABELS[task] for task in TASKS if task in trained], SCORES)
        columns = pd.MultiIndex.from_tuples([*columns, ("", "overall"), ("", "seeds")])
        return pd.DataFrame(list(rows.values()), index=list(rows), columns=columns).fillna("–")

    @cached_property
    def differences(self) -> pd.DataFrame:
        """A row per run and task, with run, reference, task, and the columns of `decide`."""
        rows, found = [], []
        for name, reference in self.references.items():
            if name not in self.runs or reference not in self.runs:
                continue
            pair = self.runs[name], self.runs[reference]
            for task in TASKS:
                if all(task in runs[0].config.tasks for runs in pair):
                    rows.append((name, reference, task))
                    found.append(difference(*pair, task, among=self.grid.among))
        return pd.DataFrame(rows, columns=["run", "reference", "task"]).join(decide(found))

    @cached_property
    def overall(self) -> pd.DataFrame:
        """A row per run: the difference of the overall score, with run, reference, and the columns of `decide`."""
        rows, found = [], []
        for name, reference in self.references.items():
            if name in self.runs and reference in self.runs:
                rows.append((name, reference))
                found.append(difference(self.runs[name], self.runs[reference], pearson=0.5, among=self.grid.among))
        return pd.DataFrame(rows, columns=["run", "reference"]).join(decide(found))

    def difference_table(self) -> pd.DataFrame | None:
        """`differences` for reading: a row per run, a column per task; None where there are none."""
        if self.differences.empty:
            return None
        rows = {}
        for row in self.differences.itertuples():
            seeds = f"{row.seeds}, variance lent" if row.is_lent else str(row.seeds)
            values = rows.setdefault(row.run, {"minus": row.reference, "seeds": seeds})
            cautious = f" (cautiously: {row.cautious})" if row.cautious != row.verdict else ""
            values[TASK_LABELS[row.task]] = f"{_signed(row.value, row.low, row.high)}, {row.verdict}{cautious}"
        return pd.DataFrame(rows).T.fillna("–")

    @cached_property
    def lent(self) -> str:
        """One sentence: which runs lend their seed variance to those of few seeds; empty where none does."""
        priors = {}
        for row in self.differences[self.differences["is_lent"]].itertuples():
            sides = [lent_to(self.runs[name], [row.task], among=self.grid.among) for name in (row.run, row.reference)]
            priors.setdefault(row.task, sides[0] or sides[1])
        if not priors:
            return ""
        lenders = sorted({prior.lenders for prior in priors.values()})
        shown = ", ".join(f"{prior.deviation:.4f} on {TASK_LABELS[task]}" for task, prior in priors.items())
        count = " to ".join(map(str, dict.fromkeys([lenders[0], lenders[-1]])))
        return f"{count} configurations of the same scheme lend their seed variance (standard deviation {shown})."

    @property
    def answer(self) -> str:
        """What the differences say, in sentences; empty where there are none."""
        return summary(self.differences)


def compare(grid: Grid, *fields: str, where: Callable[[RunConfig], bool] = lambda config: True) -> Comparison:
    """Every run of a grid beside the first run of its file that differs from it in nothing but these fields."""
    part = grid.pick(where)
    references = {}
    keys = {name: training_key(group[0], fields) for name, group in part.configs.items()}
    for name, key in keys.items():
        reference = next(other for other in keys if keys[other] == key)
        if training_key(part.configs[name][0]) != training_key(part.configs[reference][0]):
            references[name] = reference
    return Comparison(part, references)


def _signed(value: float, low: float, high: float) -> str:
    return f"{value:+.3f} ({low:+.3f} to {high:+.3f})"


def _count(n: int) -> str:
    return WORDS[n] if n < len(WORDS) else str(n)


def _by(row) -> str:
    """The size of a difference with its interval, without signs."""
    low, high = (row.low, row.high) if row.value > 0 else (-row.high, -row.low)
    return f"{abs(row.value):.3f} ({low:.3f} to {high:.3f})"


def _sentence(task: str, verdict: str, part: pd.DataFrame, with_size: bool) -> str:
    """What a task's differences with one verdict say; the first is named, and two others where there are no more."""
    first, *others = part.itertuples()
    text = f"On {TASK_LABELS[task]} *{first.run}* is {verdict} than *{first.reference}*"
    text += f" by {_by(first)}" if with_size else ""
    names = " and ".join(f"*{row.run}*" for row in others) if len(others) < 3 else f"{_count(len(others))} others"
    verb = "is" if len(others) == 1 else "are"
    if others and {row.reference for row in others} == {first.reference}:
        text += f", and so {verb} {names}"
    elif others:
        text += f", and {names} {verb} {verdict} than {'its reference' if verb == 'is' else 'their references'}"
    return f"{text}."


def summary(differences: pd.DataFrame) -> str:
    """What a table of differences says, in sentences; empty where it has no rows.

    A sentence per task and verdict, those with the largest differences first, NAMED of them with numbers.
    """
    if differences.empty:
        return ""
    differences = differences.sort_values("value", key=abs, ascending=False)
    decided = differences[differences["verdict"] != NOT_DECIDED]
    found = decided[decided["verdict"] != CLOSE]
    judged = differences if decided.empty else decided
    row = judged.iloc[0]
    which = "largest" if len(judged) > 1 else "only one"
    shown = _signed(row.value, row.low, row.high)
    largest = f"The {which} is *{row.run}* minus *{row.reference}* on {TASK_LABELS[row.task]}, {shown}."
    several = f"None of the {len(judged)} differences" if len(judged) > 1 else "No difference"
    if decided.empty:
        return f"{several} can be judged ({FEW}). {largest}"
    if found.empty:
        sentences = [f"{several} is measurable. {largest}"]
    else:
        groups = found.groupby(["task", "verdict"], sort=False)
        sentences = [_sentence(*key, part, with_size=i < NAMED) for i, (key, part) in enumerate(groups)]
        same = [TASK_LABELS[task] for task in TASKS if task in {*decided["task"]} - {*found["task"]}]
        sentences += [f"On {' and '.join(same)} there is no measurable difference."] if same else []
    if undecided := len(differences) - len(decided):
        more = f"{_count(undecided)} more {'difference' if undecided == 1 else 'differences'} cannot be judged ({FEW})."
        sentences.append(more[0].upper() + more[1:])
    return " ".join(sentences)


def score_points(run: Run) -> pd.DataFrame:
    """A row per training task: dev and train (scores of the last step), best and best_step (of its best point on dev).

    dev is that of the kept model where this is the last one; pretraining after the training has changed it, and not the
    other columns. nan where the run has not stored them: runs of mtbert before 0.3 have no train scores.
    """
    rows = {}
    points = {(row.task, row.metric, row.at, row.split): row for row in run.step_scores.itertuples()}
    kept_last = run.config.keep == "last" or run.cost.get("best_step") == run.cost["steps"]
    for task in run.config.tasks:
        rows[task] = [np.nan] * 4
        if points:
            places = ("last", "dev"), ("last", "train"), ("best", "dev")
            last, train, best = (points[task, TASKS[task].metric, *place] for place in places)
            rows[task] = [last.value, train.value, best.value, best.step]
        if kept_last:
            rows[task][0] = run.score(task)
    return pd.DataFrame.from_dict(rows, orient="index", columns=["dev", "train", "best", "best_step"], dtype=float)


def _baseline_rows(constants: pd.DataFrame) -> dict[str, dict[tuple[str, str], str]]:
    """Baseline -> its row of `Comparison.scores`, from the table of `read_baselines`."""
    names = {"most frequent": "most frequent label", "cosine": "cosine, untrained encoder"}
    rows: dict[str, dict[tuple[str, str], str]] = {}
    for row in constants.itertuples():
        if row.metric == TASKS[row.task].metric:
            name = names.get(row.baseline, row.baseline)
            rows.setdefault(name, {})[TASK_LABELS[row.task], "dev"] = _shown(row.value)
    return rows


def _score_row(group: list[Run]) -> dict[tuple[str, str], str]:
    """The row of `Comparison.scores` of a configuration's seeds."""
    points = pd.concat([score_points(run) for run in group])
    means = points.groupby(level=0, sort=False).mean()
    row = {}
    for task, mean in means.iterrows():
        steps = points.loc[[task], "best_step"]
        best = _shown(mean["best"]) + _at_steps(steps.min(), steps.max(), group[0].cost["steps"])
        shown = _shown(mean["dev"]), _shown(mean["train"]), best
        row |= {(TASK_LABELS[task], what): text for what, text in zip(SCORES, shown, strict=True)}
    row["", "overall"] = _shown(overall(means["dev"].to_dict()) if len(means) > 1 else np.nan)
    row["", "seeds"] = str(len(group))
    return row


def _at_steps(first: float, last: float, end: int) -> str:
    """At which steps the best points lie, where this is known and not the end of the run."""
    if np.isnan(first) or first == end:
        return ""
    return f" at {first:.0f}" if first == last else f" at {first:.0f} to {last:.0f}"


def _shown(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.3f}"


def read_baselines(config: RunConfig, data: str | Path | None = None) -> pd.DataFrame:
    """The baselines of a run's tasks: of the demo corpus computed, else those of the results store.

    The stored cosines are the packaged encoder's, and are left out for another. Without a stored table they are
    computed, and the table is empty where the data are not here either.
    """
    path = find_result(BASELINES)
    if config.corpus == "demo" or not path.exists():
        try:
            return baseline_table(config, data)
        except DataError:
            return pd.DataFrame(columns=["baseline", "task", "metric", "value"])
    table = pd.read_csv(path)
    return table if config.encoder == MINILM else table[table["baseline"] != "cosine"]


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
                    rows.append((name, run.config.seed, task, after, points.at[step, f"dev_{task}"]))
    return pd.DataFrame(rows, columns=["run", "seed", "task", "after", "score"])


def costs(runs: dict[str, list[Run]]) -> pd.DataFrame:
    """A row per run: name, seeds, overall (last step, mean over seeds), parameters (M), state (MiB).

    state: in float32 the weights, and of the trained ones a gradient and AdamW's two moments. Runs without a score of
    the last step are left out.
    """
    rows = []
    for name, group in runs.items():
        scores = pd.concat([score_points(run)["dev"] for run in group], axis=1).mean(axis=1)
        cost = pd.DataFrame([run.cost for run in group]).mean(numeric_only=True)
        state = 4 * (cost["parameters"] + 3 * cost["trained_parameters"]) / 2**20
        rows.append((name, len(group), overall(scores.to_dict()), cost["parameters"] / 1e6, state))
    columns = ["name", "seeds", "overall", "parameters (M)", "state (MiB)"]
    return pd.DataFrame(rows, columns=columns).dropna(subset="overall").reset_index(drop=True)


def log_cost_ratio(first: list[Run], second: list[Run], quantity: str) -> Difference:
    """Logarithm of the ratio of the costs of two configurations, means over seeds, by Welch's t-test."""

    def costs(runs: list[Run]) -> np.ndarray:
        return np.log([run.cost[quantity] for run in runs])

    return welch(costs(first), costs(second))


def cost_ratio(first: list[Run], second: list[Run], quantity: str) -> tuple[float, float, float]:
    """Ratio of the costs of two configurations and its 95 % interval, which one seed on a side does not have."""
    found = log_cost_ratio(first, second, quantity)
    low, high = found.interval() if found.is_decided else (np.nan, np.nan)
    return float(np.exp(found.value)), float(np.exp(low)), float(np.exp(high))


def pareto(table: pd.DataFrame, cost: str) -> list[str]:
    """Names of the rows, from the cheapest up, whose `overall` is above that of every row which costs no more."""
    table = table.sort_values([cost, "overall"], ascending=[True, False])
    before = table["overall"].cummax().shift(fill_value=-np.inf)
    return table.loc[table["overall"] > before, "name"].tolist()


def front_gains(table: pd.DataFrame, runs: dict[str, list[Run]], cost: str) -> pd.DataFrame:
    """The front from the cheapest up: cost, overall, seeds, gains over the one before and the first, with intervals."""
    front = table.set_index("name").loc[pareto(table, cost), [cost, "overall", "seeds"]].rename_axis(None)
    for column, before in {"gain on the one before": front.index, "gain on the first": repeat(front.index[0])}.items():
        pairs = zip(front.index[1:], before, strict=False)
        front[column] = ["–", *(difference(runs[a], runs[b], pearson=0.5).text() for a, b in pairs)]
    return front.round({cost: 1, "overall": 3})
