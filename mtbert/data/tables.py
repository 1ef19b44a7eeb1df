"""From files to checked tables: a row is accepted, or rejected with file, line and field.

`records` reads the rows of a file as they are written, `rows` checks one of them, and `reports` says what was found. A
table to train on has the rows without a fault. Texts to predict have every row, as those who asked count on it: what
training would reject, such as an empty text, is predicted as it is and listed.
"""

import hashlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from mtbert.data.records import (
    SEPARATORS,
    Record,
    column_names,
    decode,
    is_json,
    read_lines,
    records_of,
    separator_of,
    text_records,
)
from mtbert.data.reports import LoadReport
from mtbert.data.rows import Columns, RowError
from mtbert.data.tasks import SPLITS, TASKS, DataError, Task, unknown_task

STDIN = ("-", "/dev/stdin")
GET_DATA = " Get the files with `mtbert data fetch FOLDER` and name that folder with data=FOLDER or MTBERT_DATA."
OF_TABLES = {".csv", ".tsv", ".tab", ".json", ".jsonl", ".ndjson"}  # endings of files that are no lines of text


def load_table(task: str, split: str, root: str | Path) -> tuple[pd.DataFrame, LoadReport]:
    """Read the file of one task and split in the folder `root`; return the accepted rows and a report.

    The table has the columns id, those of the sentences and, except in the test split, label: int64 classes, or
    float64 numbers in the task's label_range. Rows are in the order of the file, texts stripped. Where one file has
    train and dev, the report of train has the rejects. Raises DataError if the file cannot be used or no row is
    accepted.
    """
    return _load_split(task, split, root)


def load_split_texts(task: str, split: str, root: str | Path) -> tuple[pd.DataFrame, LoadReport]:
    """As `load_texts`, of the file of one split: a row for every id, also where a label or a text has a fault."""
    return _load_split(task, split, root, to_predict=True)


def _load_split(task: str, split: str, root: str | Path, to_predict: bool = False) -> tuple[pd.DataFrame, LoadReport]:
    if task not in TASKS:
        raise DataError(unknown_task(task))
    if split not in SPLITS:
        raise DataError(f"unknown split {split!r}; known are {', '.join(SPLITS)}")
    about = TASKS[task]
    if about.dev_share is not None and split == "test":
        raise DataError(f"{task} has no test split: its one file is shared between train and dev")
    path = about.path(split, root)
    wanted = [*about.sentence_columns]
    if about.id_column:
        wanted.insert(0, about.id_column)
    if split != "test" and not to_predict:
        wanted.append(about.label_column)
    try:
        lines = read_lines(path)
        columns = Columns(about, column_names(lines, about, wanted, path), wanted)
        records = records_of(lines, columns, by_line=not about.is_own)
        table, report = _table_of(records, columns, split, path, to_predict)
    except DataError as error:
        raise DataError(f"{error}{'' if about.is_own else GET_DATA}") from error
    if about.dev_share is not None:
        table = _share(about, split, table, report)
    return table.reset_index(drop=True), report


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
    if task not in TASKS:
        raise DataError(unknown_task(task))
    about = TASKS[task]
    if is_table is None:
        is_table = Path(file).suffix.lower() in OF_TABLES
    path, lines = _lines_of_texts(file)
    if is_table:
        return _load_table_of_texts(about, path, lines, id_column)
    if id_column:
        raise DataError(f"id_column={id_column!r} is of a table; lines of text are none, is_table=True reads one")
    texts = about.sentence_columns
    columns = Columns(about.model_copy(update={"id_column": None}), names=texts, wanted=texts)
    table, report = _table_of(text_records(lines, len(texts)), columns, "test", path, to_predict=True)
    if is_json(lines) or separator_of(lines[0], about):
        report.notes.append("a line is a text, also the first one; is_table=True reads a table")
    return table.reset_index(drop=True), report


def _lines_of_texts(file: str | Path) -> tuple[Path, list[str]]:
    """The path and the lines of a file, or of what is piped in."""
    path = Path(file)
    if str(file) not in STDIN:
        is_named_pipe = path.is_fifo()  # as the shell's <(...) is
        return path, decode(path.read_bytes(), path) if is_named_pipe else read_lines(path)
    path = Path("stdin")
    content = sys.stdin.buffer.read() if sys.stdin else b""  # None where it was closed
    if not content.strip():
        raise DataError("nothing is piped in")
    return path, decode(content, path)


def _load_table_of_texts(
    task: Task, path: Path, lines: Sequence[str], id_column: str | None
) -> tuple[pd.DataFrame, LoadReport]:
    texts = task.sentence_columns
    if id_column in texts:
        raise DataError(f"id_column={id_column!r} is a column of texts; name another one")
    separator = separator_of(lines[0], task) or max(SEPARATORS, key=lines[0].count)
    task = task.model_copy(update={"separator": separator, "id_column": id_column or task.id_column})
    names = column_names(lines, task, [id_column, *texts] if id_column else texts, path)
    if task.id_column in names:
        columns = Columns(task, names, wanted=[task.id_column, *texts])
    else:
        columns = Columns(task.model_copy(update={"id_column": None}), names, wanted=texts)
    table, report = _table_of(records_of(lines, columns), columns, "test", path, to_predict=True)
    others = {*names} - {*task.columns}
    if task.id_column and task.id_column not in names and others:
        report.notes.append(f"no column {task.id_column}: ids are line numbers; id_column=NAME takes another column")
    return table.reset_index(drop=True), report


def _table_of(
    records: Iterable[Record], columns: Columns, split: str, path: Path, to_predict: bool
) -> tuple[pd.DataFrame, LoadReport]:
    """The table of a file's records, with the numbers of their lines as index, and what is told of them.

    to_predict: records with a fault have a row, too, if they have a field for every column.
    """
    report = LoadReport(path)
    id_column = columns.task.id_column
    rows = {}  # line number -> values, the id first
    line_of_id = {}
    for line, fields, fault in records:
        report.rows += 1
        line_as_id = [] if id_column else [f"{split}-{line}"]
        try:
            if fault:
                raise fault
            row = [*line_as_id, *columns.checked(fields)]
            if row[0] in line_of_id:
                reason = f"same id as line {line_of_id[row[0]]}"
                raise RowError(id_column, "same id as an earlier line", reason=reason)
        except RowError as error:
            is_kept = to_predict and fields is not None and len(fields) == len(columns.names)
            report.add(line, error, is_kept)
            if not is_kept:
                continue
            row = [*line_as_id, *columns.texts(fields)]
        line_of_id.setdefault(row[0], line)
        rows[line] = row
    if not report.rows:
        raise DataError(f"{path} has a header line and no rows.")
    if not rows:
        raise DataError("\n  ".join([f"{path}: no row is accepted.", *report.first_reasons]))
    names = columns.wanted if id_column else ["id", *columns.wanted]
    table = pd.DataFrame(rows.values(), index=list(rows), columns=names)
    table = table.rename(columns={columns.task.label_column: "label", id_column: "id"})
    report.notes += _notes_on_line_breaks(rows)
    return table, report


def _notes_on_line_breaks(rows: dict[int, list]) -> list[str]:
    """A note that texts have line breaks, or none; rows: line number -> values."""
    breaks = {line: "".join(map(str, row)).count("\n") for line, row in rows.items()}
    broken = [line for line, count in breaks.items() if count]
    if not broken:
        return []
    line = max(broken, key=breaks.get)
    return [f"texts with line breaks: {len(broken)}, the longest of {breaks[line] + 1} lines, in line {line}"]


def _share(task: Task, split: str, table: pd.DataFrame, report: LoadReport) -> pd.DataFrame:
    """The train or the dev part of a table, by a hash of the texts: equal texts are in the same part.

    The report becomes that of the part.
    """
    texts = table[list(task.sentence_columns)].agg("\0".join, axis=1)
    is_dev = texts.map(_place) < task.dev_share
    part = table[is_dev if split == "dev" else ~is_dev]
    if part.empty:
        raise DataError(f"{report.path}: dev_share {task.dev_share} of {len(table)} rows leaves none for {split}")
    if split == "dev":  # those of train are told
        report.rejects, report.notes = [], []
    report.doubtful = [reject for reject in report.doubtful if reject.line in part.index]
    report.of_file = report.rows
    report.rows = len(part) + len(report.rejects)
    return part


def _place(text: str) -> float:
    """A number from 0 to 1 for a text, as if drawn at random."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:12], 16) / 16**12


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
