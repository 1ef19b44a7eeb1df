"""A row of a file, checked against its task: the values that a table has, or the first fault."""

import difflib
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from reprlib import repr as shortened

from mtbert.data.tasks import COURSE, Task
from mtbert.names import composed

LISTED_CLASSES = 12  # in the reason of a reject
UNDECODED = re.compile("[\ud800-\udfff]")  # invalid UTF-8, as the error handler "surrogateescape" decodes it


class RowError(ValueError):
    """The first fault of a row: the field, and the reason.

    kind: what reasons that differ in their values have in common; default: the reason. example: the value, and what is
    near it. as_text: the fields of a row that cannot be split, or is no text, taken as text.
    """

    def __init__(
        self, field: str, reason: str, kind: str = "", example: str = "", as_text: Sequence[str] | None = None
    ) -> None:
        self.field = field
        self.reason = reason
        self.kind = kind or reason
        self.example = example
        self.as_text = as_text


def check_row(
    fields: Sequence[str], names: Sequence[str], wanted: Mapping[str, int], task: Task
) -> tuple[tuple, RowError | None]:
    """The values of the `wanted` columns (name -> index) and the row's first fault; None where it has none.

    names: of all fields. Texts are stripped, and the label is a number, None where it has a fault. Raises RowError for
    another number of fields than of names.
    """
    if len(fields) != len(names):
        number = str(len(fields))
        raise RowError("row", f"{number} columns, not {len(names)}", f"not {len(names)} columns", example=number)
    fault = None
    for name, value in zip(names, fields, strict=True):
        if not value.isascii() and UNDECODED.search(value):
            remedy = "" if task.name in COURSE else "; save the file as UTF-8"
            fault = RowError(name or "index", f"invalid UTF-8{remedy}")
            break
    values = []
    for name, index in wanted.items():
        value = fields[index].strip()
        if name == task.id_column:
            found = _fault_of_id(name, value, task)
        elif name == task.label_column:
            value, found = _label_and_fault(value, task)
        else:
            found = _fault_of_text(name, value, task)
        if isinstance(value, str) and not value.isascii():
            value = UNDECODED.sub("\ufffd", value)
        fault = fault or found
        values.append(value)
    return tuple(values), fault


def _fault_of_id(name: str, value: str, task: Task) -> RowError | None:
    if not value or value in task.missing:
        return RowError(name, "missing or empty")
    if " " in value or not value.isprintable():
        return RowError(name, "space or control character inside")
    return None


def _fault_of_text(name: str, value: str, task: Task) -> RowError | None:
    """What is wrong with a text, stripped; None where it is good."""
    if value in task.missing:
        return RowError(name, "missing or empty")
    if value.isprintable():
        return None
    if "\0" in value:
        return RowError(name, "NUL character")
    if not any(character.isprintable() and character != " " for character in value):
        return RowError(name, "no visible character")
    return None


def _label_and_fault(value: str, task: Task) -> tuple[int | float | None, RowError | None]:
    try:
        return _label(value, task), None
    except RowError as error:
        return None, error


def _label(value: str, task: Task) -> int | float:
    """The label as a number in its range; classes may be written as 1 or 1.0, or as names where the task has them."""
    is_missing = not value or value in task.missing
    if is_missing and value not in task.class_names:
        raise RowError(task.label_column, "missing or empty")
    if task.class_names:
        return _class_of(value, task)
    try:
        number = float(value)
    except ValueError:
        raise _no_number(value, task) from None
    if not math.isfinite(number) or "_" in value:  # float() accepts 1_000
        raise RowError(task.label_column, "not a finite number")
    low, high = task.label_range
    if not low <= number <= high:
        kind = f"outside {low:g}..{high:g}"
        raise RowError(task.label_column, f"{number:g} is {kind}", kind, example=f"{number:g}")
    if task.is_number:
        return number
    if number != int(number):
        kind = "not a class (a whole number)"
        raise RowError(task.label_column, f"{number:g} is {kind}", kind, example=f"{number:g}")
    return int(number)


def _class_of(name: str, task: Task) -> int:
    """The number of the class of this name, however Unicode composes its letters."""
    if name in task.class_names:
        return task.class_names.index(name)
    numbers = {composed(known): number for number, known in enumerate(task.class_names)}
    if composed(name) in numbers:
        return numbers[composed(name)]
    raise RowError(task.label_column, *_no_class(name, task.class_names))


@functools.lru_cache
def _no_class(value: str, class_names: tuple[str, ...]) -> tuple[str, str, str]:
    """That a label is none of the classes: reason, kind and example, with the nearest one, whatever their case."""
    names = {name.casefold(): name for name in class_names}
    near = difflib.get_close_matches(value.casefold(), names, n=1)
    if near:
        nearest = names[near[0]]
        reason = f"{shortened(value)} is no class; did you mean {nearest!r}?"
        example = f"{shortened(value)} (near {nearest!r})"
    else:
        known = ", ".join(class_names) if len(class_names) <= LISTED_CLASSES else f"the {len(class_names)} classes"
        reason = f"{shortened(value)} is none of {known}"
        example = shortened(value)
    return reason, f"none of the {len(class_names)} classes", example


def _no_number(value: str, task: Task) -> RowError:
    """That a label is not a number, and what to do; labels of the course's data are not printed."""
    column = task.label_column
    if value in ("true", "false") and task.num_classes == 2:
        remedy = "`class_names: ['false', 'true']` in the task's file takes it"
        return RowError(column, f"{value} is not a number; {remedy}", f"not a number; {remedy}", example=value)
    if re.fullmatch(r"[-+]?\d+,\d+", value):
        kind = "not a number, as its decimal point is a comma"
        return RowError(column, f"{value} is not a number; write {value.replace(',', '.')}", kind, example=value)
    if task.name in COURSE:
        return RowError(column, "not a number")
    remedy = "; `class_names` in the task's file lists labels that are words" if task.num_classes else ""
    kind = f"not a number{remedy}"
    return RowError(column, f"{shortened(value)} is {kind}", kind, example=shortened(value))


def row_test(names: Sequence[str], needed: Sequence[str], task: Task) -> Callable[[list[str], bool], bool]:
    """A function of fields that says whether they are a row without a fault.

    Its second argument: also in its label, where the file has one. names: of the file's columns.
    """
    without_label = {name: names.index(name) for name in needed if name != task.label_column}
    with_label = dict(without_label)
    if task.label_column in names:
        with_label[task.label_column] = names.index(task.label_column)

    def is_row(fields: list[str], has_label: bool) -> bool:
        try:
            _, fault = check_row(fields, names, with_label if has_label else without_label, task)
        except RowError:
            return False
        return fault is None

    return is_row
