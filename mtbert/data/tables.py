"""From the course's CSV files to checked tables: a row is accepted, or rejected with file, line and field.

The files (CS224N default project) are tab-separated with one header line; fields may be quoted with `"`, doubled
inside. No field has a line break, so each line is parsed by itself: an unbalanced quote affects its own row only.
"""

import csv
import hashlib
import math
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from mtbert.data.tasks import COURSE, SPLITS, TASKS, DataError, Task
from mtbert.paths import REPOSITORY, folder_of

LISTED_REJECTS = 20  # in a printed report
GET_DATA = " Get the files with `mtbert data fetch FOLDER` and name that folder with --data or MTBERT_DATA."
# A field with one of these values is missing, as pandas writes or reads them.
MISSING = frozenset({"", "n/a", "N/A", "NA", "#N/A", "nan", "NaN", "null", "NULL", "None", "<NA>"})
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

    def __str__(self) -> str:
        rejected = len(self.rejects)
        lines = [f"{self.path.name}: {self.rows} rows, {self.rows - rejected} accepted, {rejected} rejected"]
        lines += [str(reject) for reject in self.rejects[:LISTED_REJECTS]]
        if (more := rejected - LISTED_REJECTS) > 0:
            lines.append(f"and {more} more rejects")
        return "\n  ".join(lines)


class RowError(ValueError):
    """The first fault of a row: the field and the reason."""

    def __init__(self, field: str, reason: str):
        self.field, self.reason = field, reason


def find_data(path: str | Path | None = None) -> Path | None:
    """The datasets' folder: `path`, else MTBERT_DATA, else ../shared/data next to the repository, else None.

    Raises DataError if `path` or MTBERT_DATA names a folder that does not exist.
    """
    for folder, source in ((path, "the data folder"), (folder_of("MTBERT_DATA"), "MTBERT_DATA")):
        if folder:
            if not Path(folder).is_dir():
                raise DataError(f"{source} is {str(folder)!r}, which is no folder.{GET_DATA}")
            return Path(folder)
    beside = REPOSITORY.parent / "shared" / "data"
    return beside if beside.is_dir() else None


def load_table(task: str, split: str, root: str | Path) -> tuple[pd.DataFrame, LoadReport]:
    """Read the file of one task and split in the folder `root`; return the accepted rows and a report.

    The table has the columns id, those of the sentences and, except in the test split, label: int64 classes, or
    float64 numbers in the task's label_range. Rows are in the order of the file, texts stripped. Raises DataError if
    the file cannot be used or no row is accepted.
    """
    if task not in TASKS:
        raise DataError(f"unknown task {task!r}; known are {', '.join(TASKS)}")
    if split not in SPLITS:
        raise DataError(f"unknown split {split!r}; known are {', '.join(SPLITS)}")
    try:
        return _read_table(TASKS[task], split, TASKS[task].path(split, root))
    except DataError as error:
        raise DataError(f"{error}{GET_DATA if task in COURSE else ''}") from error


def load_texts(task: str, path: Path) -> tuple[pd.DataFrame, LoadReport]:
    """Read a file of texts without labels, with the text columns of a task; otherwise as `load_table` with its test
    split. Columns may be separated by commas, semicolons or tabs; where there is no id, ids are line numbers.
    """
    about, header = TASKS[task], _read_lines(path)[0].replace('"', "")

    def names(separator: str) -> list[str]:
        return [name.strip() for name in header.split(separator)]

    separator = next((s for s in (about.separator, *",;\t") if about.sentence_columns[0] in names(s)), about.separator)
    id_column = about.id_column if about.id_column in names(separator) else None
    return _read_table(about.model_copy(update={"separator": separator, "id_column": id_column}), "test", path)


def _read_table(task: Task, split: str, path: Path) -> tuple[pd.DataFrame, LoadReport]:
    header, *lines = _read_lines(path)
    columns = [task.id_column or "id", *task.sentence_columns] + ([] if split == "test" else [task.label_column])
    needed = columns if task.id_column else columns[1:]
    names = _column_names(header, needed, path, task.separator)
    wanted = {name: names.index(name) for name in needed}
    is_cut = lines and lines[-1] != ""  # else the last line of the file has its line end
    if not is_cut:
        lines = lines[:-1]
    if not lines:
        raise DataError(f"{path} has a header line and no rows.")
    report, rows, line_of_id = LoadReport(path, len(lines)), [], {}
    for line_number, line in enumerate(lines, start=2):
        try:
            if is_cut and line_number == len(lines) + 1:
                raise RowError("row", "the file ends inside this line: it is truncated")
            row = _check_row(_split_line(line, task.separator), names, wanted, task)
            if task.id_column is None:
                row = (f"{split}-{line_number}", *row)
            if row[0] in line_of_id:
                raise RowError("id", f"same id as line {line_of_id[row[0]]}")
        except RowError as error:
            report.rejects.append(Reject(path.name, line_number, error.field, error.reason))
        else:
            line_of_id[row[0]] = line_number
            rows.append(row)
    if not rows:
        raise DataError(f"{path}: no row is accepted.\n  {report}")
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
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}.") from error
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path} is UTF-16. Save it as UTF-8.")
    text = content.decode("utf-8-sig", errors="surrogateescape")
    if not text.strip():
        raise DataError(f"{path} is empty.")
    return text.split("\n")  # splitlines() would also split at U+0085 and the like, which texts contain


def _split_line(line: str, separator: str) -> list[str]:
    line = line.removesuffix("\r")
    if "\r" in line:
        raise RowError("row", "carriage return inside the line")
    if '"' not in line:
        return line.split(separator)  # faster, and right for nearly all lines
    try:
        return next(csv.reader([line], delimiter=separator, strict=True))
    except csv.Error as error:
        raise RowError("row", f"unbalanced quote ({error})") from error


def _column_names(header: str, columns: list[str], path: Path, separator: str) -> list[str]:
    """The columns of the file; raises DataError unless each of `columns` is among them once."""
    if UNDECODED.search(header):
        raise DataError(f"{path}, header line: invalid UTF-8.")
    try:
        names = [name.strip() for name in _split_line(header, separator)]
    except RowError as error:
        raise DataError(f"{path}, header line: {error.reason}. Repair the file.") from error
    if len(names) == 1 and (other := re.search("[,;\t]", header)):
        expected = "tabs" if separator == "\t" else repr(separator)
        raise DataError(f"{path}: columns are separated by {other[0]!r}. Save it with {expected}.")
    if not set(columns) & set(names):  # not printed, as the first line may be text of the dataset
        raise DataError(f"{path} has no header line with the columns {', '.join(columns)}.")
    if missing := [name for name in columns if name not in names]:
        found = ", ".join(map(repr, names))
        raise DataError(f"{path} lacks the column {', '.join(missing)}; it has {found}. Rename or add it.")
    if twice := [name for name, count in Counter(names).items() if name and count > 1]:
        raise DataError(f"{path} has two columns {', '.join(map(repr, twice))}. Remove or rename one.")
    return names


def _check_row(fields: list[str], names: list[str], wanted: dict[str, int], task: Task) -> tuple:
    """The values of the `wanted` columns (name -> index), texts stripped and the label a number; raises RowError."""
    if len(fields) != len(names):
        raise RowError("row", f"{len(fields)} columns, not {len(names)}")
    for name, value in zip(names, fields, strict=True):
        if not value.isascii() and UNDECODED.search(value):
            raise RowError(name or "index", "invalid UTF-8")
    values = []
    for name, index in wanted.items():
        value = fields[index].strip()
        if value in MISSING and not (name == task.label_column and value in task.class_names):
            raise RowError(name, "missing or empty")
        if name == task.label_column:
            value = _label(value, task)
        elif not value.isprintable():
            if "\0" in value:
                raise RowError(name, "NUL character")
            if not any(character.isprintable() and character != " " for character in value):
                raise RowError(name, "no visible character")
        values.append(value)
    if task.id_column and (" " in values[0] or not values[0].isprintable()):
        raise RowError("id", "space or control character inside")
    return tuple(values)


def _label(value: str, task: Task) -> int | float:
    """The label as a number in its range; classes may be written as 1 or 1.0, or as names where the task has them."""
    if task.class_names:
        if value not in task.class_names:
            raise RowError(task.label_column, f"{value!r} is none of {', '.join(task.class_names)}")
        return task.class_names.index(value)
    try:
        number = float(value)
    except ValueError:
        raise RowError(task.label_column, "not a number") from None
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
