"""From the bytes of a CSV or JSON Lines file to records: the fields of a row, and what is wrong with their writing.

A CSV file has one header line; fields may be quoted with `"`, doubled inside. In tasks of one's own a quoted field may
have line breaks, unless a line of it is a row by itself: then the quote is a stray one. In the course's files (CS224N
default project, tab-separated) none has: such a record is a fault as a whole, and an unbalanced quote affects its own
line only. In JSON Lines every line is an object, which names columns.
"""

import csv
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from reprlib import repr as shortened
from typing import Any, NamedTuple

from mtbert.data.rows import UNDECODED, Columns, RowError
from mtbert.data.tasks import DataError, Task
from mtbert.names import composed

SEPARATORS = "\t,;"  # that files of texts may have
JSON_TYPES = {list: "a list", dict: "an object", bool: "true or false"}
MOST_LINES = 1000  # lines of one record, whose quoted field has line breaks

csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # the default refuses quoted fields over 128 KiB


class Record(NamedTuple):
    """A row of a file as it is written."""

    line: int  # the number of its first line in the file, where the header is 1
    fields: list[str] | None  # read as text where they have a fault; None where nothing can be read
    fault: RowError | None = None


def read_lines(path: Path) -> list[str]:
    r"""The file's lines with their ends, which are "\n"; invalid UTF-8 as `UNDECODED`."""
    if path.exists() and not (path.is_file() or path.is_dir()):  # a device or a pipe, which may never end
        raise DataError(f"{path}: not a regular file.")
    try:
        return decode(path.read_bytes(), path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}.") from error


def decode(content: bytes, path: Path) -> list[str]:
    """The lines of a file's content, as in `read_lines`."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path} is UTF-16. Save it as UTF-8.")
    text = content.decode("utf-8-sig", errors="surrogateescape")
    if not text.strip():
        raise DataError(f"{path} is empty.")
    text = text.replace("\r\n", "\n").removesuffix("\r")
    return list(io.StringIO(text, newline="\n"))  # splitlines() would also split at U+0085 and the like


def is_json(lines: Sequence[str]) -> bool:
    """Whether these lines are JSON Lines, by the first one."""
    return lines[0].lstrip().startswith("{")


def column_names(lines: Sequence[str], task: Task, needed: Sequence[str], path: Path) -> list[str]:
    """The columns of a file, by its first line; raises DataError unless each of `needed` is among them once."""
    first = lines[0].strip("\n")
    if first.lstrip().startswith("["):  # many programs write it
        raise DataError(f"{path} is a JSON array, not JSON Lines. Write each object on a line of its own.")
    if first.lower().startswith("sep="):  # Excel reads it before a header
        raise DataError(f"{path}: its first line, {shortened(first)}, is for Excel alone. Remove it.")
    names = _keys(first, path) if is_json(lines) else _header(first, task, path)
    known = [*needed, *task.columns]
    names = _as_spelt(names, known)
    if missing := [name for name in needed if name not in names]:
        if not is_json(lines) and not _any_is_known(names, known):  # not printed, as it may be text of the dataset
            raise DataError(f"{path} has no header line with the columns {', '.join(needed)}.")
        where = f"{path}, first object," if is_json(lines) else path
        raise DataError(_lacking(missing, names, where, task))
    if twice := [name for name, count in Counter(names).items() if name and count > 1]:
        raise DataError(f"{path} has two columns {', '.join(map(repr, twice))}. Remove or rename one.")
    return names


def _keys(line: str, path: Path) -> list[str]:
    """The columns that the first object of JSON Lines has."""
    try:
        return list(json.loads(line))
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path}, line 1: begins with {{ and is no JSON object ({error}). Write each object on one line."
        ) from error


def _header(header: str, task: Task, path: Path) -> list[str]:
    """The columns that a CSV file's first line names, if it is a header."""
    if UNDECODED.search(header):
        raise DataError(f"{path}, header line: invalid UTF-8.")
    try:
        fields, _ = _parsed([header], task)
    except RowError as error:
        raise DataError(f"{path}, header line: {error.reason}. Repair the file.") from error
    if len(fields) == 1 and (other := re.search(f"[{SEPARATORS}]", header)):
        expected = "tabs" if task.separator == "\t" else repr(task.separator)
        remedy = f", or write `separator: {json.dumps(other[0])}` in the task's file" if task.is_own else ""
        raise DataError(f"{path}: columns are separated by {other[0]!r}. Save it with {expected}{remedy}.")
    return [name.strip() for name in fields]


def _as_spelt(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Names of columns, those that Unicode composes in another way than a known one as that one."""
    spelt = {composed(name): name for name in known}
    return [spelt.get(composed(name), name) for name in names]


def _any_is_known(names: Iterable[str], columns: Iterable[str]) -> bool:
    """Whether one of the names is that of a column, but for capital letters."""
    return not {name.casefold() for name in names}.isdisjoint(name.casefold() for name in columns)


def _lacking(missing: Sequence[str], names: Sequence[str], where: Path | str, task: Task) -> str:
    """A message that a file lacks columns, what it has, and what to do."""
    found = ", ".join(map(shortened, names))
    case = "; capital letters count" if _any_is_known(names, missing) else ""
    remedy = ", or write `id_column: null` in the task's file" if task.is_own and missing == ["id"] else ""
    return f"{where} lacks the column {', '.join(missing)}; it has {found}{case}. Rename or add it{remedy}."


def separator_of(header: str, task: Task) -> str | None:
    """The separator of a header that has the task's first text column; None where it has no such column."""
    for separator in (task.separator, *SEPARATORS):
        names = [name.strip() for name in header.replace('"', "").split(separator)]
        if task.sentence_columns[0] in _as_spelt(names, task.sentence_columns):
            return separator
    return None


def records_of(lines: Sequence[str], columns: Columns, by_line: bool = False) -> Iterator[Record]:
    """The records of a CSV or JSON Lines file; by_line: each is one line, as in the course's files."""
    if is_json(lines):
        return _json_records(lines, columns)
    return _course_records(lines, columns) if by_line else _csv_records(lines, columns)


def text_records(lines: Sequence[str], width: int) -> Iterator[Record]:
    """Lines that are a text each, or two (width) with a tab between."""
    for line_number, line in enumerate(lines, start=1):
        fields = line.split("\t", width - 1)
        fields += [""] * (width - len(fields))
        yield Record(line_number, fields)


def _json_records(lines: Sequence[str], columns: Columns) -> Iterator[Record]:
    """Values as text: null, as a key that is not there, is the empty one. Empty lines are no records."""
    for line_number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line.strip("\n"))
        except (ValueError, RecursionError) as error:
            yield Record(line_number, None, RowError("row", f"no JSON ({error})"))
            continue
        if not isinstance(record, dict):
            yield Record(line_number, None, RowError("row", "no JSON object"))
            continue
        spelt = dict(zip(_as_spelt(record, columns.names), record.values(), strict=True))
        values = {name: "" if spelt.get(name) is None else spelt[name] for name in columns.names}
        texts = [value if isinstance(value, str) else json.dumps(value) for value in values.values()]
        yield Record(line_number, texts, _fault_of_json(values, columns.task))


def _fault_of_json(values: dict[str, Any], task: Task) -> RowError | None:
    """A message that a text is something else, such as a list of words; ids and labels may be numbers."""
    for name in task.columns:
        value = values.get(name, "")
        if isinstance(value, str):
            continue
        found = JSON_TYPES.get(type(value), "a number")
        if name in task.sentence_columns:
            return RowError(name, f"not a text, but {found}")
        if isinstance(value, list | dict):
            return RowError(name, f"not a text or a number, but {found}")
    return None


def _course_records(lines: Sequence[str], columns: Columns) -> Iterator[Record]:
    """The records behind the header of a CSV file of the course: each is one line with its end."""
    start = 1
    while start < len(lines):
        fields, count, fault = _read(lines, start, columns)
        if fault is None and (count > 1 or "\r" in lines[start]):
            fault = RowError("row", "line break inside a quoted field")
        if start == len(lines) - 1 and not lines[start].endswith("\n"):
            fault = RowError("row", "the file ends inside this line: it is truncated")
        yield Record(start + 1, fields, fault)
        start += count


def _csv_records(lines: Sequence[str], columns: Columns) -> Iterator[Record]:
    """The records behind the header of a CSV file of a user's own, whose quoted fields may have line breaks.

    A line behind an unbalanced quote, which may close it, is not taken for a record; nor is an empty one, unless it may
    be an empty text.
    """
    task = columns.task
    width = len(columns.names)
    start = 1
    is_open = False  # a quote may be open where this line begins
    while start < len(lines):
        line = lines[start]
        if width > 1 and not line.strip(" \n"):
            start += 1
            continue
        if is_open and line.count('"') % 2:
            fault = RowError("row", "may belong to the unbalanced quote of the line before")
            fields, count = line.split(task.separator), 1
        else:
            fields, count, fault = _read(lines, start, columns)
        is_odd = fault is not None or (is_open and len(fields) != width)
        is_open = is_odd and task.quoting == "double"
        yield Record(start + 1, fields, fault)
        start += count


def _read(lines: Sequence[str], start: int, columns: Columns) -> tuple[list[str], int, RowError | None]:
    """The fields of the record that begins in a line, its number of lines, and its fault; with a fault, the line's."""
    try:
        fields, count = _record(lines, start, columns)
    except RowError as fault:
        return lines[start].split(columns.task.separator), 1, fault
    return fields, count, None


def _record(lines: Sequence[str], start: int, columns: Columns) -> tuple[list[str], int]:
    """The fields of the record that begins in a line, and its number of lines; raises RowError for a stray quote.

    Some lines of a quoted text that has line breaks may be rows by themselves: the first where it is the last column.
    """
    try:
        return _parsed([lines[start]], columns.task)
    except RowError as error:
        fault = error
    ahead = lines[start : start + MOST_LINES]
    try:
        fields, count = _parsed(ahead, columns.task)
    except RowError:
        raise fault from None
    has_label = columns.is_row(fields)
    are_rows = [columns.is_row(line.split(columns.task.separator), has_label) for line in ahead[:count]]
    is_stray = any(are_rows[1:-1]) or (are_rows[0] and are_rows[-1])
    if len(columns.names) > 1 and is_stray:
        raise fault
    return fields, count


def _parsed(lines: Sequence[str], task: Task) -> tuple[list[str], int]:
    """The fields up to the first line end that is not quoted, and the number of lines; raises RowError."""
    line = lines[0]
    has_quotes = '"' in line and task.quoting == "double"
    if not has_quotes and "\r" not in line:
        return line.split(task.separator), 1  # faster, and right for nearly all lines
    quoting = csv.QUOTE_MINIMAL if has_quotes else csv.QUOTE_NONE
    reader = csv.reader(lines, delimiter=task.separator, quoting=quoting, strict=True)
    try:
        return next(reader), reader.line_num
    except csv.Error as error:
        if "\r" in line:
            raise RowError("row", "carriage return inside the line") from error
        remedy = "; `quoting: none` in the task's file reads quotes as text" if task.is_own else ""
        raise RowError("row", f"unbalanced quote ({error}){remedy}") from error
