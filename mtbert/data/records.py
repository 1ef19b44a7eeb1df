"""From the bytes of a CSV or JSON Lines file to records: a record is its fields, or what is wrong with it.

A CSV file has one header line; fields may be quoted with `"`, doubled inside. In tasks of one's own a quoted field may
have line breaks, unless a line of it is a row by itself: then the quote is a stray one. In the course's files (CS224N
default project, tab-separated) none has: such a record is rejected as a whole, and an unbalanced quote affects its own
line only. In JSON Lines every line is an object, which names columns.
"""

import csv
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

from mtbert.data.rows import UNDECODED, RowError
from mtbert.data.tasks import COURSE, DataError, Task
from mtbert.names import composed

MOST_LINES = 1000  # lines of one record, whose quoted field has line breaks
Record = tuple[int, list[str] | RowError]  # the number of its first line in the file, where the header is 1

csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # the default refuses quoted fields over 128 KiB


def read_lines(path: Path) -> list[str]:
    """The file's lines, the last one empty if the file ends with a line end; invalid UTF-8 as `UNDECODED`."""
    if path.exists() and not (path.is_file() or path.is_dir()):  # a device or a pipe, which may never end
        raise DataError(f"{path}: not a regular file.")
    try:
        return decode(path.read_bytes(), path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}.") from error


def decode(content: bytes, path: Path) -> list[str]:
    """The lines of a file's content, as of `read_lines`."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path} is UTF-16. Save it as UTF-8.")
    text = content.decode("utf-8-sig", errors="surrogateescape")
    if not text.strip():
        raise DataError(f"{path} is empty.")
    lines = text.split("\n")  # splitlines() would also split at U+0085 and the like, which texts contain
    return [line.removesuffix("\r") for line in lines]


def is_json(lines: Sequence[str]) -> bool:
    """Whether these lines are JSON Lines, by the first one."""
    return lines[0].lstrip().startswith("{")


def check_first_line(line: str, path: Path) -> None:
    """Raises DataError for a JSON array, which many programs write, and for what Excel reads before a header."""
    if line.lstrip().startswith("["):
        raise DataError(f"{path} is a JSON array, not JSON Lines. Write each object on a line of its own.")
    if line.lower().startswith("sep="):
        raise DataError(f"{path}: its first line, {shortened(line)}, is for Excel alone. Remove it.")


def column_names(lines: Sequence[str], task: Task, needed: Sequence[str], path: Path) -> list[str]:
    """The columns of a file, by its first line; raises DataError unless each of `needed` is among them once."""
    check_first_line(lines[0], path)
    names = _names_of_json(lines[0], path) if is_json(lines) else _header(lines[0], task, needed, path)
    names = as_spelt(names, needed)
    if missing := [name for name in needed if name not in names]:
        raise DataError(lacking(missing, names, path, task))
    if twice := [name for name, count in Counter(names).items() if name and count > 1]:
        raise DataError(f"{path} has two columns {', '.join(map(repr, twice))}. Remove or rename one.")
    return names


def as_spelt(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Names of columns, those that Unicode composes in another way than a known one as that one."""
    spelt = {composed(name): name for name in known}
    return [spelt.get(composed(name), name) for name in names]


def lacking(missing: Sequence[str], names: Sequence[str], path: Path, task: Task) -> str:
    """That a file lacks columns, what it has, and what to do."""
    found = ", ".join(map(shortened, names))
    is_own = task.name not in COURSE  # the user can change what it asks for
    instead = ", or write `id_column: null` in the task's file" if is_own and missing == ["id"] else ""
    case = "; capital letters count" if in_other_case(missing, names) else ""
    return f"{path} lacks the column {', '.join(missing)}; it has {found}{case}. Rename or add it{instead}."


def in_other_case(columns: Sequence[str], names: Sequence[str]) -> list[str]:
    """The names of a header that differ from one of these columns by capital letters alone."""
    folded = {name.casefold() for name in columns}
    return [name for name in names if name.casefold() in folded and name not in columns]


def _names_of_json(line: str, path: Path) -> list[str]:
    try:
        return list(json.loads(line))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path}, line 1: begins with {{ and is no JSON object ({error}). Write each object on one line."
        ) from error


def _header(header: str, task: Task, needed: Sequence[str], path: Path) -> list[str]:
    """The columns that a CSV file's first line names; raises DataError if it cannot be read or is none."""
    if UNDECODED.search(header):
        raise DataError(f"{path}, header line: invalid UTF-8.")
    try:
        names = [name.strip() for name in _split(header, task)]
    except RowError as error:
        raise DataError(f"{path}, header line: {error.reason}. Repair the file.") from error
    if len(names) == 1 and (other := re.search("[,;\t]", header)):
        expected = "tabs" if task.separator == "\t" else repr(task.separator)
        own = "" if task.name in COURSE else f", or write `separator: {json.dumps(other[0])}` in the task's file"
        raise DataError(f"{path}: columns are separated by {other[0]!r}. Save it with {expected}{own}.")
    if not {*needed} & {*as_spelt(names, needed)}:  # not printed, as the first line may be text of the dataset
        found = ", ".join(map(repr, in_other_case(needed, names)))
        case = f"; it has {found}, and capital letters count" if found else ""
        raise DataError(f"{path} has no header line with the columns {', '.join(needed)}{case}.")
    return names


def json_records(lines: Sequence[str], names: Sequence[str], task: Task) -> Iterator[Record]:
    """The records of JSON Lines: the values as text in the order of `names`.

    null, as a key that is not there, is the empty text. Ids and labels may be numbers. Empty lines are none.
    """
    for line_number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield line_number, RowError("row", f"no JSON ({error})")
            continue
        if not isinstance(record, dict):
            yield line_number, RowError("row", "no JSON object")
            continue
        spelt = dict(zip(as_spelt(list(record), names), record.values(), strict=True))
        values = {name: "" if spelt.get(name) is None else spelt[name] for name in names}
        texts = [value if isinstance(value, str) else json.dumps(value) for value in values.values()]
        yield line_number, _fault_of_json(values, texts, task) or texts


def _fault_of_json(values: dict[str, Any], texts: list[str], task: Task) -> RowError | None:
    """That a text is something else, such as a list of words, which is no way to write a text; None where all are."""
    for name in task.sentence_columns:
        if not isinstance(values[name], str):
            return RowError(name, f"not a text, but {_json_type(values[name])}", as_text=texts)
    for name in (task.label_column, task.id_column):
        if isinstance(values.get(name), list | dict):
            return RowError(name, f"not a text or a number, but {_json_type(values[name])}", as_text=texts)
    return None


def _json_type(value: Any) -> str:
    kinds = {list: "a list", dict: "an object", bool: "true or false"}
    return kinds.get(type(value), "a number")


def csv_records(
    lines: Sequence[str],
    width: int,
    task: Task,
    is_row: Callable[[list[str], bool], bool],
    by_line: bool = False,
    is_cut: bool = False,
) -> Iterator[Record]:
    """The records behind the header of a CSV file.

    width: columns of a record; is_row: as of `row_test`; by_line: a record is one line, as in the course's files;
    is_cut: the end of the file cuts its last line. A line behind an unbalanced quote, which may close it, is not taken
    for a record, unless records are lines; nor is an empty one, unless it may be an empty text.
    """
    start, is_open = 1, False  # is_open: a quote may be open where this line begins
    while start < len(lines):
        if not by_line and width > 1 and not lines[start].strip(" "):
            start += 1
            continue
        fields, count = _record(lines[start : start + MOST_LINES], width, task, is_row, by_line)
        if is_open and not by_line and lines[start].count('"') % 2:
            as_text = lines[start].split(task.separator)
            fields = RowError("row", "may belong to the unbalanced quote of the line before", as_text=as_text)
        is_odd = isinstance(fields, RowError) or (is_open and len(fields) != width)
        is_open = is_odd and task.quoting == "double"
        if is_cut and start == len(lines) - 1:
            fields = RowError("row", "the file ends inside this line: it is truncated")
        yield start + 1, fields
        start += count


def _record(
    lines: Sequence[str], width: int, task: Task, is_row: Callable[[list[str], bool], bool], by_line: bool
) -> tuple[list[str] | RowError, int]:
    """The record that begins these lines, or what is wrong with it, and its number of lines."""
    try:
        return _split(lines[0], task), 1
    except RowError as error:
        fault = error
    joined = _joined(lines, task.separator)
    if joined is None:
        return fault, 1
    fields, count = joined
    if by_line:  # a line that is a record by itself is not part of another one
        if any(_is_record(line, width, task) for line in lines[1:count]):
            return fault, 1
        return RowError("row", "line break inside a quoted field"), count
    has_label = is_row(fields, True)
    inside = [line.split(task.separator) for line in lines[: count - 1]]
    if width > 1 and any(is_row(line, has_label) for line in inside):  # its quote is a stray one
        return fault, 1
    return fields, count


def _joined(lines: Sequence[str], separator: str) -> tuple[list[str], int] | None:
    """The fields of the record that begins these lines, and its number of lines; None where its quotes do not close."""
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=separator, strict=True)
    try:
        fields = next(reader)
    except csv.Error:
        return None
    return fields, reader.line_num


def _is_record(line: str, width: int, task: Task) -> bool:
    try:
        return len(_split(line, task)) == width
    except RowError:
        return False


def _split(line: str, task: Task) -> list[str]:
    """The fields of a line; raises RowError where it has no balanced quotes."""
    if "\r" in line:
        raise RowError("row", "carriage return inside the line")
    if '"' not in line or task.quoting == "none":
        return line.split(task.separator)  # faster, and right for nearly all lines
    try:
        return next(csv.reader([line], delimiter=task.separator, strict=True))
    except csv.Error as error:
        remedy = "" if task.name in COURSE else "; `quoting: none` in the task's file reads quotes as text"
        reason = f"unbalanced quote ({error}){remedy}"
        raise RowError("row", reason, as_text=line.split(task.separator)) from error
