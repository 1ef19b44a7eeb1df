"""From CSV and JSON Lines files to checked tables: a row is accepted, or rejected with file, line and field.

A CSV file has one header line; fields may be quoted with `"`, doubled inside. In tasks of one's own a quoted field may
have line breaks, unless a line of it is a row by itself: then the quote is a stray one. In the course's files (CS224N
default project, tab-separated) none has: such a record is rejected as a whole, and an unbalanced quote affects its own
line only. In JSON Lines every line is an object, which names columns.

A table to train on has the rows without a fault. Texts to predict have every row, as those who asked count on it: what
training would reject, such as an empty text, is predicted as it is and listed.
"""

import csv
import difflib
import functools
import hashlib
import json
import math
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

import numpy as np
import pandas as pd

from mtbert.data.tasks import COURSE, SPLITS, TASKS, DataError, Task, unknown_task
from mtbert.paths import REPOSITORY, folder_of

LISTED_REJECTS = 20  # in a printed report
LISTED_REASONS = 8  # in an error
LISTED_CLASSES = 12  # in the reason of a reject
MANY_NUMBERS = 5000  # rows of dev from which on intervals of a correlation take a second
MOST_REJECTED = 0.05  # share of a file's rows, where its data are trained on
MOST_LINES = 1000  # lines of one record, whose quoted field has line breaks
STDIN = ("-", "/dev/stdin")
GET_DATA = (
    " Get the files with `mtbert.data.download.fetch(FOLDER)` and name that folder with data=FOLDER or MTBERT_DATA."
)
OF_TABLES = {".csv", ".tsv", ".tab", ".json", ".jsonl", ".ndjson"}  # endings of files that are no lines of text
UNDECODED = re.compile("[\ud800-\udfff]")  # invalid UTF-8, as the error handler "surrogateescape" decodes it

csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # the default refuses quoted fields over 128 KiB


@dataclass(frozen=True)
class Reject:
    """A rejected row; line: its number in the file, where the header is 1; field: a column, or "row"."""

    file: str
    line: int
    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.field}: {self.reason}"


@dataclass
class LoadReport:
    """How many rows of a file were accepted, and which were rejected; printed, it has no text of the dataset."""

    path: Path
    rows: int  # in the file, without the header
    rejects: list[Reject] = field(default_factory=list)  # at most one for a row: its first fault
    doubtful: list[Reject] = field(default_factory=list)  # of texts to predict: accepted, and rejects in training
    notes: list[str] = field(default_factory=list)  # on how the file was read

    def __str__(self) -> str:
        rejected, doubtful = len(self.rejects), len(self.doubtful)
        first = f"{self.path.name}: {self.rows} rows, {self.rows - rejected} accepted, {rejected} rejected"
        if doubtful:
            first += f"; {doubtful} of the accepted would be rejected in training, and are predicted as they are"
        listed = [*self.rejects, *self.doubtful]
        lines = [first, *self.notes, *map(str, listed[:LISTED_REJECTS])]
        if (more := len(listed) - LISTED_REJECTS) > 0:
            lines.append(f"and {more} more" + ("" if doubtful else " rejects"))
        return "\n  ".join(lines)

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to tell but the number of rows."""
        return not (self.rejects or self.doubtful or self.notes)

    @property
    def reasons(self) -> list[str]:
        """The reasons of the rejects, each with the number of its rows, the most frequent first."""
        lines_of = {}
        for reject in self.rejects:
            lines_of.setdefault(f"{reject.field}: {reject.reason}", []).append(reject.line)
        texts = []
        for reason in sorted(lines_of, key=lambda reason: -len(lines_of[reason])):
            lines = lines_of[reason]
            rows = "1 row" if len(lines) == 1 else f"{len(lines)} rows"
            texts.append(f"{reason} ({rows}, the first in line {lines[0]})")
        return texts


class RowError(ValueError):
    """The first fault of a row: the field and the reason; as_text: its fields where quotes are taken for text."""

    def __init__(self, field: str, reason: str, as_text: list[str] | None = None):
        self.field = field
        self.reason = reason
        self.as_text = as_text


def find_data(path: str | Path | None = None) -> Path | None:
    """The datasets' folder: `path`, else MTBERT_DATA, else ../shared/data next to the repository, else None.

    Raises DataError if `path` or MTBERT_DATA names a folder that does not exist.
    """
    for folder, source in ((path, "the data folder"), (folder_of("MTBERT_DATA"), "MTBERT_DATA")):
        if folder:
            if not Path(folder).is_dir():
                raise DataError(f"{source} is {str(folder)!r}, which is no folder.{GET_DATA}")
            return Path(folder)
    shared = REPOSITORY.parent / "shared" / "data"
    return shared if shared.is_dir() else None


def load_table(task: str, split: str, root: str | Path) -> tuple[pd.DataFrame, LoadReport]:
    """Read the file of one task and split in the folder `root`; return the accepted rows and a report.

    The table has the columns id, those of the sentences and, except in the test split, label: int64 classes, or
    float64 numbers in the task's label_range. Rows are in the order of the file, texts stripped. Where one file has
    train and dev, the report of train has the rejects. Raises DataError if the file cannot be used or no row is
    accepted.
    """
    if task not in TASKS:
        raise DataError(unknown_task(task))
    if split not in SPLITS:
        raise DataError(f"unknown split {split!r}; known are {', '.join(SPLITS)}")
    about = TASKS[task]
    if about.dev_share is not None and split == "test":
        raise DataError(f"{task} has no test split: its one file is shared between train and dev")
    path = about.path(split, root)
    try:
        table, report = _read_table(about, split, path, _read_lines(path), by_line=task in COURSE)
    except DataError as error:
        raise DataError(f"{error}{GET_DATA if task in COURSE else ''}") from error
    return (table, report) if about.dev_share is None else _share(about, split, table, report)


def load_texts(task: str, file: str | Path, is_table: bool | None = None) -> tuple[pd.DataFrame, LoadReport]:
    """Read texts to predict, of a task: the columns id and those of its texts, a row for every text of the file.

    file: a path, or - for what is piped in. is_table: False: a line is a text, or two with a tab between, whatever
    they are; True: a table with the task's text columns, separated by commas, semicolons or tabs, or JSON Lines;
    default: a table where the file's name has one of OF_TABLES. Where there is no id, ids are line numbers. Rows
    that training would reject are in the table, too, and in the report's `doubtful`. Raises DataError for a table
    without these columns.
    """
    about = TASKS[task]
    if is_table is None:
        is_table = Path(file).suffix.lower() in OF_TABLES
    if str(file) in STDIN:
        path = Path("stdin")
        content = sys.stdin.buffer.read()
        if not content.strip():
            raise DataError("nothing is piped in")
        lines = _decode(content, path)
    else:
        path = Path(file)
        lines = _read_lines(path)
    separator = _separator_of_texts(lines[0], about)
    if not is_table:
        return _read_lines_of_text(about, path, lines, has_header=separator is not None)
    if separator is None and not _is_json(lines):  # the error names what is there
        _checked_columns(_names_in(lines[0], max("\t,;", key=lines[0].count)), list(about.sentence_columns), path)
    separator = separator or about.separator
    names = _json_names(lines[0], path) if _is_json(lines) else _names_in(lines[0], separator)
    id_column = about.id_column if about.id_column in names else None
    about = about.model_copy(update={"separator": separator, "id_column": id_column})
    return _read_table(about, "test", path, lines, to_predict=True)


def load_split_texts(task: str, split: str, root: str | Path) -> tuple[pd.DataFrame, LoadReport]:
    """As `load_texts`, of the file of one split: a row for every id, also where a label or a text has a fault."""
    about = TASKS[task]
    path = about.path(split, root)
    table, report = _read_table(about, split, path, _read_lines(path), by_line=task in COURSE, to_predict=True)
    return (table, report) if about.dev_share is None else _share(about, split, table, report)


def _separator_of_texts(header: str, task: Task) -> str | None:
    """The separator of a header that has the task's first text column; None where it has no such column."""
    for separator in (task.separator, *",;\t"):
        if task.sentence_columns[0] in _names_in(header, separator):
            return separator
    return None


def _names_in(header: str, separator: str) -> list[str]:
    return [name.strip() for name in header.replace('"', "").split(separator)]


def _read_lines_of_text(task: Task, path: Path, lines: list[str], has_header: bool) -> tuple[pd.DataFrame, LoadReport]:
    """A row for each line: a text, or two with a tab between."""
    names = task.sentence_columns
    records = []
    for line_number, line in enumerate(lines if lines[-1] else lines[:-1], start=1):
        parts = line.split("\t", len(names) - 1)
        parts += [""] * (len(names) - len(parts))
        records.append((line_number, parts))
    report = LoadReport(path, 0)
    if has_header or _is_json(lines):
        report.notes.append("a line is a text, also the first one; is_table=True reads a table")
    about = task.model_copy(update={"id_column": None})
    return _check_rows(about, "test", records, list(names), report, to_predict=True)


def fault_of(task: str, split: str, table: pd.DataFrame, report: LoadReport) -> str:
    """Why a table is not one to train on, such as many rejects or a class without a row; nothing where it is one."""
    about = TASKS[task]
    faults = []
    if len(report.rejects) > MOST_REJECTED * report.rows:
        faults.append(f"{len(report.rejects)} of {report.rows} rows are rejected, more than {MOST_REJECTED:.0%}")
    if split == "train" and not about.is_number:
        counts = class_counts(task, table)
        if empty := [name for name, count in counts.items() if not count]:
            faults.append(f"no row is left of class {', '.join(empty)}")
    if split != "test" and about.is_number and table["label"].nunique() == 1:
        faults.append("all labels are equal, and no correlation with them is defined")
    if not faults:
        return ""
    lines = [f"{report.path}: {'; '.join(faults)}", *report.reasons[:LISTED_REASONS]]
    if (more := len(report.reasons) - LISTED_REASONS) > 0:
        lines.append(f"and {more} more reasons")
    how = "Repair the file, or train on the rows that are left with accept_rejects=True."
    return "\n  ".join(lines) + f"\n{how}"


def remarks_of(task: str, split: str, table: pd.DataFrame) -> list[str]:
    """What to know of a table that is trained on or scored, a sentence each."""
    about = TASKS[task]
    remarks = []
    if len(table) == 1:
        remarks.append("one row says nothing of a model")
    if not about.is_number and (empty := [name for name, count in class_counts(task, table).items() if not count]):
        shown = ", ".join(empty[:LISTED_CLASSES]) + (", ..." if len(empty) > LISTED_CLASSES else "")
        remarks.append(f"no row is of class {shown}; macro F1 is the mean over classes with a row or a prediction")
    if about.is_number and split == "dev" and len(table) > MANY_NUMBERS:
        seconds = 0.8 * (len(table) / MANY_NUMBERS) ** 2
        remarks.append(f"the intervals of each table of scores take about {seconds:.0f} s, with the square of the rows")
    return remarks


def class_counts(task: str, table: pd.DataFrame) -> dict[str, int]:
    """Class, by its name where it has one -> its number of rows in a checked table."""
    names = TASKS[task].names
    counts = np.bincount(table["label"], minlength=len(names))
    return dict(zip(names, counts.tolist(), strict=True))


def _share(task: Task, split: str, table: pd.DataFrame, report: LoadReport) -> tuple[pd.DataFrame, LoadReport]:
    """The train or the dev part of a table, by a hash of the texts: equal texts are in the same part."""
    texts = table[list(task.sentence_columns)].agg("\0".join, axis=1)
    is_dev = texts.map(_place) < task.dev_share
    part = table[is_dev if split == "dev" else ~is_dev].reset_index(drop=True)
    if part.empty:
        raise DataError(f"{report.path}: dev_share {task.dev_share} of {len(table)} rows leaves none for {split}")
    is_told = split == "train"
    rejects = report.rejects if is_told else []
    notes = report.notes if is_told else []
    return part, LoadReport(report.path, len(part) + len(rejects), rejects, report.doubtful, notes)


def _place(text: str) -> float:
    """A number from 0 to 1 for a text, as if drawn at random."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:12], 16) / 16**12


def _read_table(
    task: Task, split: str, path: Path, lines: list[str], by_line: bool = False, to_predict: bool = False
) -> tuple[pd.DataFrame, LoadReport]:
    """by_line: of the course's files, see above; their last line is rejected where it lacks its line end.

    to_predict: every row that has an id, without labels.
    """
    needed = list(task.sentence_columns)
    if task.id_column:
        needed.insert(0, task.id_column)
    if split != "test" and not to_predict:
        needed.append(task.label_column)
    is_own = task.name not in COURSE
    is_cut = lines[-1] != ""
    lines = lines if is_cut else lines[:-1]
    if lines[0].lstrip().startswith("["):
        raise DataError(f"{path} is a JSON array, not JSON Lines. Write each object on a line of its own.")
    if _is_json(lines):
        names = _checked_columns(_json_names(lines[0], path), needed, path, is_own)
        records = _json_records(lines, names, task)
    else:
        names = _checked_columns(_header(lines[0], task, needed, path), needed, path, is_own)
        is_row = functools.partial(_is_row, names=names, needed=needed, task=task)
        cut_line = len(lines) if by_line and is_cut else None
        records = _csv_records(lines, len(names), task, by_line, is_row, cut_line)
    return _check_rows(task, split, records, names, LoadReport(path, 0), needed, to_predict)


def _check_rows(
    task: Task,
    split: str,
    records: Iterable[tuple[int, list[str] | RowError]],
    names: list[str],
    report: LoadReport,
    needed: list[str] | None = None,
    to_predict: bool = False,
) -> tuple[pd.DataFrame, LoadReport]:
    """The table of the accepted records, whose fields are in the order of `names`, and the completed report.

    needed: the columns of the table, default: all.
    """
    needed = needed or names
    wanted = {name: names.index(name) for name in needed}
    columns = needed if task.id_column else ["id", *needed]
    rows = []
    line_of_id = {}
    many_lines = {}  # line number -> lines of a row that has line breaks
    for line_number, fields in records:
        report.rows += 1
        try:
            quote = None
            if isinstance(fields, RowError):
                if not to_predict or not fields.as_text:
                    raise fields
                quote, fields = fields, fields.as_text
            row, fault = _check_row(fields, names, wanted, task)
            fault = quote or fault
            if task.id_column is None:
                row = (f"{split}-{line_number}", *row)
            if row[0] in line_of_id:
                fault = fault or RowError("id", f"same id as line {line_of_id[row[0]]}")
            if fault and not to_predict:
                raise fault
        except RowError as error:
            report.rejects.append(Reject(report.path.name, line_number, error.field, error.reason))
            continue
        if fault:
            report.doubtful.append(Reject(report.path.name, line_number, fault.field, fault.reason))
        if (count := 1 + sum(value.count("\n") for value in row if isinstance(value, str))) > 1:
            many_lines[line_number] = count
        line_of_id.setdefault(row[0], line_number)
        rows.append(row)
    if not report.rows:
        raise DataError(f"{report.path} has a header line and no rows.")
    if not rows:
        reasons = "\n  ".join(report.reasons[:LISTED_REASONS])
        raise DataError(f"{report.path}: no row is accepted.\n  {reasons}")
    if many_lines:
        longest = max(many_lines, key=many_lines.get)
        report.notes.append(
            f"texts with line breaks: {len(many_lines)}, the longest of {many_lines[longest]} lines, in line {longest}"
        )
    table = pd.DataFrame(rows, columns=columns)
    return table.rename(columns={columns[0]: "id", task.label_column: "label"}), report


def fingerprint(*tables: pd.DataFrame) -> str:
    """12 hexadecimal digits of a SHA-256 over the columns and values of the tables."""
    digest = hashlib.sha256()
    for table in tables:
        digest.update(f"{len(table)} {list(table.columns)}".encode())
        for name in table.columns:
            if pd.api.types.is_numeric_dtype(table[name]):
                digest.update(table[name].to_numpy().tobytes())
            else:
                digest.update("".join(f"{text}\0" for text in table[name]).encode())  # no text contains a NUL
    return digest.hexdigest()[:12]


def _read_lines(path: Path) -> list[str]:
    """The file's lines, the last one empty if the file ends with a line end; invalid UTF-8 as `UNDECODED`."""
    if path.exists() and not (path.is_file() or path.is_dir()):  # a device or a pipe, which may never end
        raise DataError(f"{path}: not a regular file.")
    try:
        return _decode(path.read_bytes(), path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}.") from error


def _decode(content: bytes, path: Path) -> list[str]:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path} is UTF-16. Save it as UTF-8.")
    text = content.decode("utf-8-sig", errors="surrogateescape")
    if not text.strip():
        raise DataError(f"{path} is empty.")
    lines = text.split("\n")  # splitlines() would also split at U+0085 and the like, which texts contain
    return [line.removesuffix("\r") for line in lines]


def _is_json(lines: list[str]) -> bool:
    return lines[0].startswith("{")


def _json_names(line: str, path: Path) -> list[str]:
    """The columns of a JSON Lines file, from its first line."""
    try:
        return list(json.loads(line))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}, line 1: begins with {{ and is no JSON object ({error}).") from error


def _json_records(lines: list[str], names: list[str], task: Task) -> Iterator[tuple[int, list[str] | RowError]]:
    """The line number of every record, and its values as text in the order of `names`, or what is wrong with it.

    null, as a key that is not there, is the empty text. Ids and labels may be numbers.
    """
    for line_number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield line_number, RowError("row", f"no JSON ({error})")
            continue
        if not isinstance(record, dict):
            yield line_number, RowError("row", "no JSON object")
            continue
        values = {name: "" if record.get(name) is None else record[name] for name in names}
        yield (
            line_number,
            _json_fault(values, task)
            or [value if isinstance(value, str) else json.dumps(value) for value in values.values()],
        )


def _json_fault(values: dict[str, Any], task: Task) -> RowError | None:
    """That a text is something else, such as a list of words, which is no way to write a text; None where all are."""
    for name in task.sentence_columns:
        if not isinstance(values[name], str):
            return RowError(name, f"not a text, but {_json_type(values[name])}")
    for name in (task.label_column, task.id_column):
        if isinstance(values.get(name), list | dict):
            return RowError(name, f"not a text or a number, but {_json_type(values[name])}")
    return None


def _json_type(value: Any) -> str:
    kinds = {list: "a list", dict: "an object", bool: "true or false"}
    return kinds.get(type(value), "a number")


def _csv_records(
    lines: list[str],
    width: int,
    task: Task,
    by_line: bool,
    is_row: Callable[[list[str], bool], bool],
    cut_line: int | None,
) -> Iterator[tuple[int, list[str] | RowError]]:
    """The line number of every record behind the header, and its fields, or what is wrong with it.

    width: columns of a record; by_line: a line that is a record by itself is not part of another one; otherwise a line
    that is a good row by itself is not. A line behind an unbalanced quote, which may close it, is not taken for a
    record. cut_line: number of a line that the end of the file cuts.
    """
    separator = task.separator
    start, is_open = 1, False
    while start < len(lines):
        count = 1  # lines of this record
        try:
            fields = _split_line(lines[start], task)
        except RowError as error:
            fields = error
            if joined := _joined(lines[start : start + MOST_LINES], separator):
                whole, whole_count = joined
                begin, *others = lines[start : start + whole_count]
                if by_line:
                    if not any(_is_record(line, width, task) for line in others):
                        fields = RowError("row", "line break inside a quoted field")
                        count = whole_count
                else:
                    has_label = is_row(whole, True)
                    inside = [line.split(separator) for line in (begin, *others[:-1])]
                    if width == 1 or not any(is_row(line, has_label) for line in inside):
                        fields, count = whole, whole_count
        if is_open and not by_line and lines[start].count('"') % 2:
            as_text = lines[start].split(separator)
            fields = RowError("row", "may belong to the unbalanced quote of the line before", as_text)
        is_open = task.quoting == "double" and (isinstance(fields, RowError) or (is_open and len(fields) != width))
        if cut_line == start + 1:
            fields = RowError("row", "the file ends inside this line: it is truncated")
        yield start + 1, fields
        start += count


def _joined(lines: list[str], separator: str) -> tuple[list[str], int] | None:
    """The fields of the record that begins these lines, and its number of lines; None where its quotes do not close."""
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=separator, strict=True)
    try:
        fields = next(reader)
    except csv.Error:
        return None
    return fields, reader.line_num


def _is_record(line: str, width: int, task: Task) -> bool:
    try:
        return len(_split_line(line, task)) == width
    except RowError:
        return False


def _is_row(fields: list[str], with_label: bool, names: list[str], needed: list[str], task: Task) -> bool:
    """Whether fields are a row without a fault; with_label: in its label, too, where the file has one."""
    columns = set(needed) - {task.label_column}
    if with_label and task.label_column in names:
        columns.add(task.label_column)
    try:
        _, fault = _check_row(fields, names, {name: names.index(name) for name in columns}, task)
    except RowError:
        return False
    return fault is None


def _split_line(line: str, task: Task) -> list[str]:
    if "\r" in line:
        raise RowError("row", "carriage return inside the line")
    if '"' not in line or task.quoting == "none":
        return line.split(task.separator)  # faster, and right for nearly all lines
    try:
        return next(csv.reader([line], delimiter=task.separator, strict=True))
    except csv.Error as error:
        remedy = "" if task.name in COURSE else "; `quoting: none` in the task's file reads quotes as text"
        reason = f"unbalanced quote ({error}){remedy}"
        raise RowError("row", reason, line.split(task.separator)) from error


def _header(header: str, task: Task, columns: list[str], path: Path) -> list[str]:
    """The columns that a CSV file's first line names; raises DataError if it cannot be read or is none."""
    if UNDECODED.search(header):
        raise DataError(f"{path}, header line: invalid UTF-8.")
    try:
        names = [name.strip() for name in _split_line(header, task)]
    except RowError as error:
        raise DataError(f"{path}, header line: {error.reason}. Repair the file.") from error
    if len(names) == 1 and (other := re.search("[,;\t]", header)):
        expected = "tabs" if task.separator == "\t" else repr(task.separator)
        own = "" if task.name in COURSE else f", or write `separator: {json.dumps(other[0])}` in the task's file"
        raise DataError(f"{path}: columns are separated by {other[0]!r}. Save it with {expected}{own}.")
    if not set(columns) & set(names):  # not printed, as the first line may be text of the dataset
        found = ", ".join(map(repr, _in_other_case(columns, names)))
        case = f"; it has {found}, and capital letters count" if found else ""
        raise DataError(f"{path} has no header line with the columns {', '.join(columns)}{case}.")
    return names


def _in_other_case(columns: list[str], names: list[str]) -> list[str]:
    """The names of a header that differ from one of these columns by capital letters alone."""
    folded = {name.casefold() for name in columns}
    return [name for name in names if name.casefold() in folded and name not in columns]


def _checked_columns(names: list[str], columns: list[str], path: Path, is_own: bool = False) -> list[str]:
    """The columns of a file; raises DataError unless each of `columns` is among them once.

    is_own: the file is of a task of the user, who can change what it asks for.
    """
    if missing := [name for name in columns if name not in names]:
        found = ", ".join(map(shortened, names))
        instead = ", or write `id_column: null` in the task's file" if is_own and missing == ["id"] else ""
        case = "; capital letters count" if _in_other_case(missing, names) else ""
        raise DataError(
            f"{path} lacks the column {', '.join(missing)}; it has {found}{case}. Rename or add it{instead}."
        )
    if twice := [name for name, count in Counter(names).items() if name and count > 1]:
        raise DataError(f"{path} has two columns {', '.join(map(repr, twice))}. Remove or rename one.")
    return names


def _check_row(
    fields: list[str], names: list[str], wanted: dict[str, int], task: Task
) -> tuple[tuple, RowError | None]:
    """The values of the `wanted` columns (name -> index), texts stripped and the label a number, and a text's fault.

    Raises RowError for a fault without which there is no such row: of its columns, its id or its label.
    """
    if len(fields) != len(names):
        raise RowError("row", f"{len(fields)} columns, not {len(names)}")
    fault = None
    for name, value in zip(names, fields, strict=True):
        if not value.isascii() and UNDECODED.search(value):
            fault = RowError(name or "index", "invalid UTF-8")
            break
    values = []
    for name, index in wanted.items():
        value = fields[index].strip()
        if name == task.id_column:
            _check_id(name, value, task)
        elif name == task.label_column:
            if fault:
                raise fault
            value = _label(value, task)
        else:
            fault = fault or _fault_of_text(name, value, task)
            value = UNDECODED.sub("\ufffd", value)
        values.append(value)
    return tuple(values), fault


def _check_id(name: str, value: str, task: Task) -> None:
    if not value or value in task.missing:
        raise RowError(name, "missing or empty")
    if UNDECODED.search(value):
        raise RowError(name, "invalid UTF-8")
    if " " in value or not value.isprintable():
        raise RowError(name, "space or control character inside")


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


def _label(value: str, task: Task) -> int | float:
    """The label as a number in its range; classes may be written as 1 or 1.0, or as names where the task has them."""
    if (not value or value in task.missing) and value not in task.class_names:
        raise RowError(task.label_column, "missing or empty")
    if task.class_names:
        if value not in task.class_names:
            raise RowError(task.label_column, _no_class(value, task.class_names))
        return task.class_names.index(value)
    try:
        number = float(value)
    except ValueError:
        raise RowError(task.label_column, _no_number(value, task)) from None
    if not math.isfinite(number) or "_" in value:  # float() accepts 1_000
        raise RowError(task.label_column, "not a finite number")
    low, high = task.label_range
    if not low <= number <= high:
        raise RowError(task.label_column, f"{number:g} is outside {low:g}..{high:g}")
    if task.is_number:
        return number
    if number != int(number):
        raise RowError(task.label_column, f"{number:g} is not a class (a whole number)")
    return int(number)


def _no_number(value: str, task: Task) -> str:
    """That a label is not a number, and what to do; labels of the course's data are not printed."""
    if value in ("true", "false") and task.num_classes == 2:
        return f"{value} is not a number; `class_names: ['false', 'true']` in the task's file takes it"
    if re.fullmatch(r"[-+]?\d+,\d+", value):
        return f"{value} is not a number; write {value.replace(',', '.')}"
    if task.name in COURSE:
        return "not a number"
    remedy = "; `class_names` in the task's file lists labels that are words" if task.num_classes else ""
    return f"{shortened(value)} is not a number{remedy}"


@functools.lru_cache
def _no_class(value: str, class_names: tuple[str, ...]) -> str:
    """That a label is none of the classes, with the nearest one, whatever their case."""
    for name in class_names:
        if unicodedata.normalize("NFC", name) == unicodedata.normalize("NFC", value):
            return f"{value!r} is written with other characters than the class: {value!a}, not {name!a}"
    names = {name.casefold(): name for name in class_names}
    near = difflib.get_close_matches(value.casefold(), names, n=1)
    hint = f"; did you mean {names[near[0]]!r}?" if near else ""
    known = ", ".join(class_names) if len(class_names) <= LISTED_CLASSES else f"the {len(class_names)} classes"
    return f"{shortened(value)} is none of {known}{hint}"
