"""The tables that a run reads."""

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from mtbert.data.reports import fault_of, remarks_on_range
from mtbert.data.tables import fingerprint, load_table
from mtbert.data.tasks import TASKS, DataError, Task, unknown_task

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Corpus:
    """The checked tables of a run: every training task's train split, every scored task's dev split."""

    train: dict[str, pd.DataFrame]
    dev: dict[str, pd.DataFrame]
    faults: tuple[str, ...] = ()  # why these are no tables to train on, see `check`
    warnings: tuple[str, ...] = ()  # on rejected rows and unusual numbers, see `warn`

    @classmethod
    def load(
        cls, root: Path, tasks: Sequence[str], scored: Sequence[str], train_rows: int | None = None, seed: int = 1
    ) -> "Corpus":
        """Read the tables in the folder `root`; raises DataError. Rejected rows are left out: `warn` tells of them.

        train_rows: size of a random subset of each train split, drawn with `seed`; None: all rows.
        """
        train, dev = {}, {}
        faults, warnings = [], []
        for task in tasks:
            table, fault, remarks = _load(task, "train", root)
            if train_rows is not None and train_rows < len(table):
                chosen = np.random.default_rng(seed).permutation(len(table))[:train_rows]
                table = table.iloc[np.sort(chosen)].reset_index(drop=True)
            train[task] = table
            faults.append(fault)
            warnings += remarks
        for task in scored:
            dev[task], fault, remarks = _load(task, "dev", root)
            faults.append(fault)
            warnings += remarks
        return cls(train, dev, tuple(filter(None, faults)), tuple(warnings))

    def with_swapped_pairs(self) -> "Corpus":
        """Every training pair (a, b) also as (b, a), behind all others; the tables of single sentences stay."""
        train = {}
        for task, table in self.train.items():
            if TASKS[task].is_pair:
                first, second = TASKS[task].sentence_columns
                swapped = table.assign(**{first: table[second], second: table[first]})
                table = pd.concat([table, swapped], ignore_index=True)
            train[task] = table
        return replace(self, train=train)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hex digits that name the content of the tables."""
        return fingerprint(*self.train.values(), *self.dev.values())

    def warn(self) -> None:
        """Log what files had that was left out or is unusual, each warning once in a process."""
        for warning in self.warnings:
            warn_once(warning)

    def check(self, remedy: str = "Repair the file, or train without this check.") -> None:
        """Raises DataError where many rows are rejected or a class has no row: scores would say little."""
        if self.faults:
            raise DataError("\n".join([*self.faults, remedy]))


def _load(task: str, split: str, root: Path) -> tuple[pd.DataFrame, str, list[str]]:
    """The table, its fault, and warnings."""
    if task not in TASKS:
        raise DataError(unknown_task(task))
    path = TASKS[task].path(split, root)
    changed = path.stat().st_mtime_ns if path.exists() else 0  # else load_table says what is wrong
    table, fault, warnings = _load_once(task, split, root, changed, TASKS[task])
    return table.copy(deep=False), fault, warnings  # pandas copies what is written to


@functools.lru_cache(16)
def _load_once(task: str, split: str, root: Path, changed: int, about: Task) -> tuple[pd.DataFrame, str, list[str]]:
    """changed: when the file was, in ns; about: the task, which may be registered again with another definition."""
    table, report = load_table(task, split, root)
    warnings = []
    if report.rejects:
        warnings.append(report.summary)
    if about.is_number:
        warnings += [f"{report.path.name}: {remark}" for remark in remarks_on_range(task, table)]
    return table, fault_of(task, split, table, report), warnings


@functools.cache
def warn_once(warning: str) -> None:
    """Log a warning about data, the first time that a process has it."""
    log.warning("%s", warning)
