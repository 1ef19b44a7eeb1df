"""Runs beside their references: differences with p-values, and their verdicts.

`mtbert_lab.statistics` has the rule for verdicts, and its words. The differences of one table are one family, corrected
by Holm's method.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_
from typing import Any

import numpy as np
import pandas as pd

from mtbert.config import RunConfig
from mtbert.data import TASKS
from mtbert_lab.report.tables.grids import Grid
from mtbert_lab.report.words import TASK_LABELS
from mtbert_lab.statistics import decide, interval_text, margin_of, verdict_text
from mtbert_lab.store import Run, difference, training_key


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
    def stored_text(self) -> str:
        text = self.part.stored_text
        if any(runs[0].config.keep != "last" for runs in self.runs.values()):
            text += " Differences are those of the kept steps (field `keep`), not of the last one."
        return text

    @property
    def both_stored(self) -> dict[str, str]:
        """The references of which both runs are stored."""
        return {run: other for run, other in self.references.items() if self.runs.keys() >= {run, other}}

    @cached_property
    def differences(self) -> pd.DataFrame:
        """A row per run and task that it and its reference train: run, reference, task, and the columns of `decide`."""
        rows = []
        for name, reference in self.both_stored.items():
            both = set(self.runs[name][0].config.tasks) & set(self.runs[reference][0].config.tasks)
            rows += [(name, reference, task) for task in TASKS if task in both]
        return self._decided(rows)

    @cached_property
    def overall(self) -> pd.DataFrame:
        """A row per run, the difference of the overall score, as in `differences`; task: "overall"."""
        return self._decided([(name, reference, "overall") for name, reference in self.both_stored.items()])

    def _decided(self, rows: list[tuple[str, str, str]]) -> pd.DataFrame:
        """Verdicts on these differences, one family. rows: run, reference, and a task or "overall"."""
        found = [difference(self.runs[name], self.runs[reference], what) for name, reference, what in rows]
        table = pd.DataFrame(rows, columns=["run", "reference", "task"])
        return table.join(decide(found, table["task"].map(margin_of)))

    def difference_table(self) -> pd.DataFrame:
        """`differences` for reading: a row per run and what it is compared with, a column per task.

        `seeds` says whether the differences of a row rest on the variance of similar runs, and on which tasks where not
        all do.
        """
        rows = {}
        borrows = {run: _borrows(part) for run, part in self.differences.groupby("run")}
        for row in self.differences.itertuples():
            about = {"run": row.run, "minus": row.reference, "seeds": f"{row.seeds}{borrows[row.run]}"}
            columns = rows.setdefault(row.run, about)
            text = f"{signed(row)}, {said(row)}"
            if row.cautious != row.verdict:
                text += f" (cautiously: {row.cautious})"
            columns[TASK_LABELS[row.task]] = text
        return pd.DataFrame(list(rows.values())).fillna("–")

    @property
    def prior_text(self) -> str:
        """One sentence: where runs of few seeds have their seed variance from; empty where none needs another's."""
        kinds: dict[int, dict[str, None]] = {}  # number of configurations -> texts of their deviations, in order
        for row in self.differences.dropna(subset="prior").itertuples():
            text = f"{row.prior.deviation:.4f} on {TASK_LABELS[row.task]}"
            kinds.setdefault(row.prior.configurations, {})[text] = None
        sources = [
            f"{number} similar configurations (standard deviation {', '.join(texts)})"
            for number, texts in kinds.items()
        ]
        return f"Runs of few seeds take the seed variance of {' or '.join(sources)}." if sources else ""


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


def verdicts(differences: pd.DataFrame) -> pd.DataFrame:
    """A row per verdict of a table of differences: verdict, differences (their number), the largest, by (its size)."""
    rows = []
    by_size = differences["value"].abs().sort_values(ascending=False, kind="stable").index
    for verdict, part in differences.loc[by_size].groupby("verdict", sort=False):
        first = next(part.itertuples())
        largest = f"{first.run} minus {first.reference}, {TASK_LABELS[first.task]}"
        rows.append((verdict, len(part), largest, signed(first)))
    return pd.DataFrame(rows, columns=["verdict", "differences", "the largest", "by"])


def _borrows(differences: pd.DataFrame) -> str:
    """On which tasks the differences of a run rest on the variance of similar runs, to follow its seeds."""
    borrowed = differences.loc[differences["prior"].notna(), "task"]
    if borrowed.empty:
        return ""
    where = "" if len(borrowed) == len(differences) else f" on {', '.join(borrowed.map(TASK_LABELS))}"
    return f", variance of similar runs{where}"


def said(row: Any) -> str:
    """The verdict of a row of `decide` or `judge_estimates`, with what belongs to it."""
    return verdict_text(row.verdict, getattr(row, "is_small", False), getattr(row, "seeds_needed", np.nan))


def signed(row: Any) -> str:
    """A difference with its interval."""
    return interval_text(row.value, row.low, row.high, "+.3f")


def unsigned(row: Any, digits: int = 3) -> str:
    """The size of a difference with its interval, without signs."""
    low, high = (row.low, row.high) if row.value > 0 else (-row.high, -row.low)
    return interval_text(abs(row.value), low, high, f".{digits}f")
