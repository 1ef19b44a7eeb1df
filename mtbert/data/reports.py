"""What is told of a file that was read: its rejects, why it is not one to train on, and what to know of it."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from mtbert.data.rows import LISTED_CLASSES, RowError
from mtbert.data.tasks import TASKS

LISTED_REJECTS = 20  # in a printed report
LISTED_REASONS = 8  # in an error
LISTED_EXAMPLES = 5  # of a kind of rejects
MOST_REJECTED = 0.05  # share of a file's rows, where its data are trained on
USED_RANGE = 0.05  # share of label_range that labels should fill


@dataclass(frozen=True)
class Reject:
    """A row with a fault; line: its number in the file, where the header is 1. Further fields: as in `RowError`."""

    file: str
    line: int
    field: str
    reason: str
    kind: str = dataclasses.field(default="", compare=False)
    example: str = dataclasses.field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.field}: {self.reason}"


@dataclass
class LoadReport:
    """How many rows of a file were accepted, and which were rejected; printed, it has no text of the dataset."""

    path: Path
    rows: int = 0  # in the file, without the header; of a part of it, those of the part and the rejects
    of_file: int = 0  # rows of the whole file, where `rows` are those of a part
    rejects: list[Reject] = dataclasses.field(default_factory=list)  # at most one for a row: its first fault
    doubtful: list[Reject] = dataclasses.field(default_factory=list)  # of texts to predict: rejects in training
    notes: list[str] = dataclasses.field(default_factory=list)  # on how the file was read

    def add(self, line: int, fault: RowError, is_kept: bool) -> None:
        """A row with a fault; is_kept: it is predicted even so."""
        listed = self.doubtful if is_kept else self.rejects
        listed.append(Reject(self.path.name, line, fault.field, fault.reason, fault.kind, fault.example))

    def __str__(self) -> str:
        listed = [*self.rejects, *self.doubtful]
        lines = [self.count, *self.notes, *map(str, listed[:LISTED_REJECTS])]
        if (more := len(listed) - LISTED_REJECTS) > 0:
            lines.append(f"and {more} more" + ("" if self.doubtful else " rejects"))
        return "\n  ".join(lines)

    @property
    def count(self) -> str:
        """The file, and its rows in numbers."""
        rejected, doubtful = len(self.rejects), len(self.doubtful)
        text = f"{self.path.name}: {self.rows} rows, {self.rows - rejected} accepted, {rejected} rejected"
        if doubtful:
            text += f"; {doubtful} of the accepted would be rejected in training, and are predicted as they are"
        return text

    @property
    def summary(self) -> str:
        """The rows in numbers, and a line for every kind of rejects."""
        return "\n  ".join([self.count, *self.notes, *self.first_reasons])

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to tell but the number of rows."""
        return not (self.rejects or self.doubtful or self.notes)

    @property
    def reasons(self) -> list[str]:
        """The kinds of rejects, each with the number of its rows, the most frequent first."""
        alike = {}
        for reject in self.rejects:
            alike.setdefault((reject.field, reject.kind), []).append(reject)
        return [_reason_of(rejects) for rejects in sorted(alike.values(), key=len, reverse=True)]

    @property
    def first_reasons(self) -> list[str]:
        """The first of the reasons, and how many more there are."""
        lines = self.reasons[:LISTED_REASONS]
        if (more := len(self.reasons) - LISTED_REASONS) > 0:
            lines.append(f"and {more} more reasons")
        return lines


def _reason_of(rejects: list[Reject]) -> str:
    """Why rows of one kind are rejected, with examples where they have other values."""
    first = rejects[0]
    rows = "1 row" if len(rejects) == 1 else f"{len(rejects)} rows"
    where = f"({rows}, the first in line {first.line})"
    if len({reject.reason for reject in rejects}) == 1:
        return f"{first.field}: {first.reason} {where}"
    examples = list(dict.fromkeys(reject.example for reject in rejects if reject.example))
    text = f"{first.field}: {first.kind} {where}"
    if examples:
        text += f": {', '.join(examples[:LISTED_EXAMPLES])}"
    if (more := len(examples) - LISTED_EXAMPLES) > 0:
        text += f" and {more} more"
    return text


def fault_of(task: str, split: str, table: pd.DataFrame, report: LoadReport) -> str:
    """Why a table is not one to train on, such as many rejects or a class without a row; nothing where it is one."""
    about = TASKS[task]
    faults = []
    rows = report.of_file or report.rows
    if len(report.rejects) > MOST_REJECTED * rows:
        faults.append(f"{len(report.rejects)} of {rows} rows are rejected, more than {MOST_REJECTED:.0%}")
    if split == "train" and not about.is_number and (empty := empty_classes(task, table)):
        faults.append(f"no row is left of class {empty}")
    if split != "test" and about.is_number and table["label"].nunique() == 1:
        faults.append("all labels are equal, and no correlation with them is defined")
    if not faults:
        return ""
    lines = [f"{report.path}: {'; '.join(faults)}", *report.first_reasons]
    return "\n  ".join(lines)


def remarks_on_range(task: str, table: pd.DataFrame) -> list[str]:
    """A remark that labels fill a small part of their range only, which is the scale of a model's outputs.

    A remark, or none, also where all labels are equal.
    """
    low, high = TASKS[task].label_range
    least, most = table["label"].min(), table["label"].max()
    if not least < most or most - least >= USED_RANGE * (high - low):
        return []
    how = f"write `label_range: [{least:g}, {most:g}]` in the task's file, or wider"
    return [
        f"labels are {least:g} to {most:g} in a label_range of {low:g} to {high:g}, to which outputs are scaled; {how}"
    ]


def empty_classes(task: str, table: pd.DataFrame) -> str:
    """The classes without a row in a checked table, not too many; nothing where each has one."""
    names = [name for name, count in class_counts(task, table).items() if not count]
    return ", ".join(names[:LISTED_CLASSES]) + (", ..." if len(names) > LISTED_CLASSES else "")


def class_counts(task: str, table: pd.DataFrame) -> dict[str, int]:
    """Class, by its name where it has one -> its number of rows in a checked table."""
    names = TASKS[task].names
    counts = np.bincount(table["label"], minlength=len(names))
    return dict(zip(names, counts.tolist(), strict=True))
