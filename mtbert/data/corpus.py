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

    @classmethod
    def load(
        cls, root: Path, tasks: Sequence[str], scored: Sequence[str], train_rows: int | None = None, seed: int = 1
    ) -> "Corpus":
        """Read the tables in the folder `root`, with a warning for rejected rows; raises DataError.

        train_rows: size of a random subset of each train split, drawn with `seed`; None: all rows.
        """
        train, dev, faults = {}, {}, []
        for task in tasks:
            table, fault = _load(task, "train", root)
            if train_rows is not None and train_rows < len(table):
                chosen = np.random.default_rng(seed).permutation(len(table))[:train_rows]
                table = table.iloc[np.sort(chosen)].reset_index(drop=True)
            train[task] = table
            faults.append(fault)
        for task in scored:
            dev[task], fault = _load(task, "dev", root)
            faults.append(fault)
        return cls(train, dev, tuple(fault for fault in faults if fault))

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

    def check(self, remedy: str = "Repair the file, or train without this check.") -> None:
        """Raises DataError where many rows are rejected or a class has no row: scores would say little."""
        if self.faults:
            raise DataError("\n".join([*self.faults, remedy]))


def _load(task: str, split: str, root: Path) -> tuple[pd.DataFrame, str]:
    """The table, and its fault."""
    if task not in TASKS:
        raise DataError(unknown_task(task))
    path = TASKS[task].path(split, root)
    changed = path.stat().st_mtime_ns if path.exists() else 0  # else load_table says what is wrong
    table, fault = _load_once(task, split, root, changed, TASKS[task])
    return table.copy(deep=False), fault  # pandas copies what is written to


@functools.lru_cache(16)
def _load_once(task: str, split: str, root: Path, changed: int, about: Task) -> tuple[pd.DataFrame, str]:
    """changed: when the file was, in ns; about: the task, which may be registered again with another definition."""
    table, report = load_table(task, split, root)
    if report.rejects:
        log.warning("%s", report.summary)
    if about.is_number:
        for remark in remarks_on_range(task, table):
            log.warning("%s: %s", report.path.name, remark)
    return table, fault_of(task, split, table, report)
