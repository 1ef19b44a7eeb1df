"""From files to checked tables: a row is accepted, or rejected with file, line and field.

`records` splits a file into records, `rows` checks one of them, and `reports` says what was found. A table to train on
has the rows without a fault. Texts to predict have every row, as those who asked count on it: what training would
reject, such as an empty text, is predicted as it is and listed.
"""

import hashlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from mtbert.data.records import (
    Record,
    as_spelt,
    check_first_line,
    column_names,
    csv_records,
    decode,
    is_json,
    json_records,
    lacking,
    read_lines,
)
from mtbert.data.reports import LoadReport, Reject
from mtbert.data.rows import RowError, check_row, row_test
from mtbert.data.tasks import COURSE, SPLITS, TASKS, DataError, Task, unknown_task
from mtbert.paths import REPOSITORY, folder_of

STDIN = ("-", "/dev/stdin")
GET_DATA = (
    " Get the files with `mtbert.data.download.fetch(FOLDER)` and name that folder with data=FOLDER or MTBERT_DATA."
)
OF_TABLES = {".csv", ".tsv", ".tab", ".json", ".jsonl", ".ndjson"}  # endings of files that are no lines of text


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
        table, report = _read_table(about, split, path, read_lines(path), by_line=task in COURSE)
    except DataError as error:
        raise DataError(f"{error}{GET_DATA if task in COURSE else ''}") from error
    return (table, report) if about.dev_share is None else _share(about, split, table, report)


def load_texts(
    task: str, file: str | Path, is_table: bool | None = None, id_column: str | None = None
) -> tuple[pd.DataFrame, LoadReport]:
    """Read texts to predict, of a task: the columns id and those of its texts, a row for every text of the file.

    file: a path, or - for what is piped in. is_table: False: a line is a text, or two with a tab between, whatever
    they are; True: a table with the task's text columns, separated by commas, semicolons or tabs, or JSON Lines;
    default: a table where the file's name has one of OF_TABLES. id_column: of the table; default: the task's, and
    where there is none, ids are line numbers. Rows that training would reject are in the table, too, and in the
    report's `doubtful`. Raises DataError for a table without these columns.
    """
    about = TASKS[task]
    if is_table is None:
        is_table = Path(file).suffix.lower() in OF_TABLES
    path, lines = _lines_of_texts(file)
    separator = _separator_of_texts(lines[0], about)
    if not is_table:
        if id_column:
            raise DataError(f"id_column={id_column!r} is of a table; lines of text are none, is_table=True reads one")
        return _read_lines_of_text(about, path, lines, has_header=separator is not None)
    if separator:
        about = about.model_copy(update={"separator": separator})
    return _read_table_of_texts(about, path, lines, id_column)


def _read_table_of_texts(
    task: Task, path: Path, lines: list[str], id_column: str | None
) -> tuple[pd.DataFrame, LoadReport]:
    """`load_texts` of a table; the task has its separator, where the header has the task's first text column."""
    check_first_line(lines[0], path)
    texts = task.sentence_columns
    if not is_json(lines) and _separator_of_texts(lines[0], task) is None:
        separator = max("\t,;", key=lines[0].count)
        names = _names_in(lines[0], separator, task)
        raise DataError(lacking([name for name in texts if name not in names], names, path, task))
    if id_column in texts:
        raise DataError(f"id_column={id_column!r} is a column of texts; name another one")
    needed = [*texts, id_column] if id_column else texts
    names = column_names(lines, task, needed, path)
    ids = id_column or task.id_column
    has_ids = ids is not None and ids in as_spelt(names, [ids])
    read_as = task.model_copy(update={"id_column": ids if has_ids else None})
    table, report = _read_table(read_as, "test", path, lines, to_predict=True)
    others = {*names} - {*texts, task.label_column}
    if ids and not has_ids and others:
        report.notes.append(f"no column {ids}: ids are line numbers; id_column=NAME takes another column")
    return table, report


def _lines_of_texts(file: str | Path) -> tuple[Path, list[str]]:
    """The path and the lines of a file, or of what is piped in."""
    if str(file) not in STDIN:
        return Path(file), read_lines(Path(file))
    path = Path("stdin")
    content = sys.stdin.buffer.read()
    if not content.strip():
        raise DataError("nothing is piped in")
    return path, decode(content, path)


def load_split_texts(task: str, split: str, root: str | Path) -> tuple[pd.DataFrame, LoadReport]:
    """As `load_texts`, of the file of one split: a row for every id, also where a label or a text has a fault."""
    about = TASKS[task]
    path = about.path(split, root)
    table, report = _read_table(about, split, path, read_lines(path), by_line=task in COURSE, to_predict=True)
    return (table, report) if about.dev_share is None else _share(about, split, table, report)


def _separator_of_texts(header: str, task: Task) -> str | None:
    """The separator of a header that has the task's first text column; None where it has no such column."""
    for separator in (task.separator, *",;\t"):
        if task.sentence_columns[0] in _names_in(header, separator, task):
            return separator
    return None


def _names_in(header: str, separator: str, task: Task) -> list[str]:
    names = [name.strip() for name in header.replace('"', "").split(separator)]
    return as_spelt(names, task.sentence_columns)


def _read_lines_of_text(task: Task, path: Path, lines: list[str], has_header: bool) -> tuple[pd.DataFrame, LoadReport]:
    """A row for each line: a text, or two with a tab between."""
    names = task.sentence_columns
    records = []
    for line_number, line in enumerate(lines if lines[-1] else lines[:-1], start=1):
        parts = line.split("\t", len(names) - 1)
        parts += [""] * (len(names) - len(parts))
        records.append((line_number, parts))
    report = LoadReport(path, 0)
    if has_header or is_json(lines):
        report.notes.append("a line is a text, also the first one; is_table=True reads a table")
    about = task.model_copy(update={"id_column": None})
    return _check_rows(about, "test", records, names, names, report, to_predict=True)


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
    """by_line: of the course's files, see `records`; their last line is rejected where it lacks its line end.

    to_predict: every row, without labels.
    """
    needed = list(task.sentence_columns)
    if task.id_column:
        needed.insert(0, task.id_column)
    if split != "test" and not to_predict:
        needed.append(task.label_column)
    is_cut = lines[-1] != ""
    lines = lines if is_cut else lines[:-1]
    names = column_names(lines, task, needed, path)
    if is_json(lines):
        records = json_records(lines, names, task)
    else:
        is_row = row_test(names, needed, task)
        records = csv_records(lines, len(names), task, is_row, by_line, is_cut=by_line and is_cut)
    return _check_rows(task, split, records, names, needed, LoadReport(path, 0), to_predict)


def _check_rows(
    task: Task,
    split: str,
    records: Iterable[Record],
    names: Sequence[str],
    needed: Sequence[str],
    report: LoadReport,
    to_predict: bool = False,
) -> tuple[pd.DataFrame, LoadReport]:
    """The table of the accepted records, whose fields are in the order of `names`, and the completed report.

    needed: the columns of the table.
    """
    wanted = {name: names.index(name) for name in needed}
    ids = task.id_column or "id"
    rows = []
    line_of_id = {}
    breaks = {}  # line number -> line breaks in the texts of a row
    for line_number, record in records:
        report.rows += 1
        try:
            row, fault = _values_of(record, names, wanted, task, to_predict)
        except RowError as error:
            report.rejects.append(Reject.of(report.path, line_number, error))
            continue
        if task.id_column is None:
            row = (f"{split}-{line_number}", *row)
        if row[0] in line_of_id:
            same = RowError(ids, f"same id as line {line_of_id[row[0]]}", "same id as an earlier line")
            fault = fault or same
        if fault:
            listed = report.doubtful if to_predict else report.rejects
            listed.append(Reject.of(report.path, line_number, fault))
            if not to_predict:
                continue
        if count := sum(value.count("\n") for value in row if isinstance(value, str)):
            breaks[line_number] = count
        line_of_id.setdefault(row[0], line_number)
        rows.append(row)
    if not report.rows:
        raise DataError(f"{report.path} has a header line and no rows.")
    if not rows:
        raise DataError("\n  ".join([f"{report.path}: no row is accepted.", *report.first_reasons]))
    if breaks:
        line = max(breaks, key=breaks.get)
        report.notes.append(
            f"texts with line breaks: {len(breaks)}, the longest of {breaks[line] + 1} lines, in line {line}"
        )
    columns = needed if task.id_column else ["id", *needed]
    table = pd.DataFrame(rows, columns=columns)
    return table.rename(columns={task.label_column: "label", ids: "id"}), report


def _values_of(
    record: list[str] | RowError, names: Sequence[str], wanted: dict[str, int], task: Task, to_predict: bool
) -> tuple[tuple, RowError | None]:
    """`check_row` of a record; of one that cannot be read, its fields as text, if it is to be predicted."""
    if not isinstance(record, RowError):
        return check_row(record, names, wanted, task)
    if not to_predict or record.as_text is None:
        raise record
    values, _ = check_row(record.as_text, names, wanted, task)
    return values, record


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
