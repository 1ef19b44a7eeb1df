"""The tables that a run reads."""

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from mtbert.data.tables import fingerprint, load_table
from mtbert.data.tasks import TASKS

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Corpus:
    """The checked tables of a run: every training task's train split, every scored task's dev split."""

    train: dict[str, pd.DataFrame]
    dev: dict[str, pd.DataFrame]

    @classmethod
    def load(
        cls, root: Path, tasks: Sequence[str], scored: Sequence[str], train_rows: int | None = None, seed: int = 1
    ) -> "Corpus":
        """Read the tables in the folder `root`, with a warning for rejected rows; raises DataError.

        train_rows: size of a random subset of each train split, drawn with `seed`; None: all rows.
        """
        train = {}
        for task in tasks:
            table = _load(task, "train", root)
            if train_rows is not None and train_rows < len(table):
                chosen = np.random.default_rng(seed).permutation(len(table))[:train_rows]
                table = table.iloc[np.sort(chosen)].reset_index(drop=True)
            train[task] = table
        return cls(train, {task: _load(task, "dev", root) for task in scored})

    @property
    def fingerprint(self) -> str:
        """Hex digits that name the content of the tables."""
        return fingerprint(*self.train.values(), *self.dev.values())


def _load(task: str, split: str, root: Path) -> pd.DataFrame:
    path = TASKS[task].path(split, root)
    changed = path.stat().st_mtime_ns if path.exists() else 0  # else load_table says what is wrong
    return _load_once(task, split, root, changed).copy(deep=False)  # pandas copies what is written to


@functools.lru_cache(16)
def _load_once(task: str, split: str, root: Path, changed: int) -> pd.DataFrame:
    table, report = load_table(task, split, root)
    if report.rejects:
        log.warning("%s", report)
    return table
