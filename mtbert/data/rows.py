"""A row of a file, checked against its task: the values that a table has, or the first fault."""

import dataclasses
import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from reprlib import repr as shortened

from mtbert.data.tasks import Task
from mtbert.names import composed, nearest

LISTED_CLASSES = 12  # in the reason of a reject
UNDECODED = re.compile("[\ud800-\udfff]")  # invalid UTF-8, as the error handler "surrogateescape" decodes it


class RowError(ValueError):
    """The first fault of a row.

    field: a column, or "row". kind: what is wrong. example: the value, and what is near it, where faults of this kind
    differ in them. reason: the kind with the value; default: "EXAMPLE is KIND".
    """

    def __init__(self, field: str, kind: str, example: str = "", reason: str = "") -> None:
        self.field = field
        self.kind = kind
        self.example = example
        self.reason = reason or (f"{example} is {kind}" if example else kind)


@dataclass(frozen=True)
class Columns:
    """The columns of a file, and those of a table that is made of it."""

    task: Task
    names: Sequence[str]  # of all columns of the file, in its order
    wanted: Sequence[str]  # of the table's

    def texts(self, fields: Sequence[str]) -> list[str]:
        """The wanted fields as they are: stripped, invalid UTF-8 replaced."""
        texts = [fields[self.names.index(name)] for name in self.wanted]
        return [UNDECODED.sub("\ufffd", text.strip()) for text in texts]

    def checked(self, fields: Sequence[str]) -> list[str | int | float]:
        """The wanted values: texts stripped, the label a number. Raises RowError for the first fault."""
        if len(fields) != len(self.names):
            found, expected = len(fields), len(self.names)
            raise RowError("row", f"not {expected} columns", str(found), f"{found} columns, not {expected}")
        for name, value in zip(self.names, fields, strict=True):
            if not value.isascii() and UNDECODED.search(value):
                remedy = "; save the file as UTF-8" if self.task.is_own else ""
                raise RowError(name or "index", f"invalid UTF-8{remedy}")
        return [_checked(name, fields[self.names.index(name)].strip(), self.task) for name in self.wanted]

    def is_row(self, fields: Sequence[str], has_label: bool = True) -> bool:
        """Whether these fields are a row without a fault; has_label: also in its label, where the file has one."""
        label = self.task.label_column
        columns = [name for name in self.wanted if name != label]
        if has_label and label in self.names:
            columns.append(label)
        try:
            dataclasses.replace(self, wanted=columns).checked(fields)
        except RowError:
            return False
        return True


def _checked(name: str, value: str, task: Task) -> str | int | float:
    """The value of a column; raises RowError."""
    if name == task.id_column:
        _check_id(name, value, task)
    elif name == task.label_column:
        return _label(value, task)
    else:
        _check_text(name, value, task)
    return value


def _check_id(name: str, value: str, task: Task) -> None:
    if not value or value in task.missing:
        raise RowError(name, "missing or empty")
    if " " in value or not value.isprintable():
        raise RowError(name, "space or control character inside")


def _check_text(name: str, value: str, task: Task) -> None:
    if value in task.missing:
        raise RowError(name, "missing or empty")
    if value.isprintable():
        return
    if "\0" in value:
        raise RowError(name, "NUL character")
    if not any(character.isprintable() and character != " " for character in value):
        raise RowError(name, "no visible character")


def _label(value: str, task: Task) -> int | float:
    """The label as a number in its range; classes may be written as 1 or 1.0, or as names where the task has them."""
    column = task.label_column
    is_missing = not value or value in task.missing
    if is_missing and value not in task.class_names:
        raise RowError(column, "missing or empty")
    if task.class_names:
        numbers = _numbers(task.class_names)
        if composed(value) not in numbers:
            raise RowError(column, *_no_class(value, task.class_names))
        return numbers[composed(value)]
    try:
        number = float(value)
    except ValueError:
        raise _no_number(value, task) from None
    if not math.isfinite(number) or "_" in value:  # float() accepts 1_000
        raise RowError(column, "not a finite number")
    low, high = task.label_range
    if not low <= number <= high:
        raise RowError(column, f"outside {low:g}..{high:g}{_range_remedy(task)}", f"{number:g}")
    if task.is_number:
        return number
    if number != int(number):
        raise RowError(column, "not a class (a whole number)", f"{number:g}")
    return int(number)


def _range_remedy(task: Task) -> str:
    """What to do about a label outside of the range of a task of one's own."""
    if not task.is_own:
        return ""
    if task.is_number:
        return "; `label_range` in the task's file says the range"
    return "; classes are 0, 1, ..., and `class_names` in the task's file lists other labels"


@functools.lru_cache
def _numbers(class_names: tuple[str, ...]) -> dict[str, int]:
    """The number of a class by its name, as Unicode composes it."""
    return {composed(name): number for number, name in enumerate(class_names)}


@functools.lru_cache
def _no_class(value: str, class_names: tuple[str, ...]) -> tuple[str, str, str]:
    """A message that a label is none of the classes, with kind, example, reason, and the nearest class in any case."""
    names = {name.casefold(): name for name in class_names}
    if near := nearest(value.casefold(), names):
        reason = f"{shortened(value)} is no class; did you mean {names[near]!r}?"
        example = f"{shortened(value)} (near {names[near]!r})"
    else:
        known = ", ".join(class_names) if len(class_names) <= LISTED_CLASSES else f"the {len(class_names)} classes"
        reason = f"{shortened(value)} is none of {known}"
        example = shortened(value)
    return f"none of the {len(class_names)} classes", example, reason


def _no_number(value: str, task: Task) -> RowError:
    """A message that a label is not a number, and what to do; labels of the course's data are not printed."""
    column = task.label_column
    if value in ("true", "false") and task.num_classes == 2:
        remedy = "`class_names: ['false', 'true']` in the task's file takes it"
        return RowError(column, f"not a number; {remedy}", value)
    if re.fullmatch(r"[-+]?\d{1,3}(,\d{3})+", value):  # 1,000 may be 1000 or 1.0
        kind = "not a number, as it has a comma; write 1000 or 1.0"
        return RowError(column, kind, value, f"{value} is not a number; write it without the comma, or with a point")
    if re.fullmatch(r"[-+]?\d+,\d+", value):
        kind = "not a number, as its decimal point is a comma"
        return RowError(column, kind, value, f"{value} is not a number; write {value.replace(',', '.')}")
    if not task.is_own:
        return RowError(column, "not a number")
    remedy = "; `class_names` in the task's file lists labels that are words" if task.num_classes else ""
    return RowError(column, f"not a number{remedy}", shortened(value))
