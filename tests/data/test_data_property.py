"""Malformed files: the loader raises nothing but DataError and accepts no wrong row.

A valid file is written, then damaged line by line. Undamaged lines must be read as they were written.
"""

import csv
import io
import math
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mtbert.data.tables import DataError, load_table
from mtbert.data.tasks import MISSING, TASKS, Task

FILES = [("sst", "train"), ("quora", "train"), ("sts", "dev"), ("sts", "test")]
one_line = st.characters(codec="utf-8", exclude_characters="\0\r\n")
texts = st.text(one_line, max_size=6).map(lambda text: f" w{text}w")
pieces = [b"\t", b'"', b'""', b"\n", b"\r", b"\0", b"\xff", b"\xed\xa0\x80", b" ", b"w", b"7"]
fields = [b"", b" ", b"nan", b"inf", b"-1", b"0.5", b"2", b"5.5"]
fields += [b"a b", b"a\0b", b"a\1b", b"\x01", b'"a', b'"a"b', b"\xe9"]
operations = ["overwrite", "insert", "drop", "cut", "drop tab", "repeat", "insert line", *["replace field"] * 7]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("malformed")


@st.composite
def valid_rows(draw, task: Task, split: str):
    """Rows of the file, without the index: [id, texts, label as written]."""
    low, high = task.label_range
    labels = st.floats(low, high).map(repr) if task.kind == "similarity" else st.integers(low, high).map(str)
    columns = [texts] * len(task.sentence_columns) + ([] if split == "test" else [labels])
    ids = draw(st.lists(st.text("abc0", min_size=1, max_size=3), unique=True, min_size=1, max_size=6))
    return [[identifier, *(draw(column) for column in columns)] for identifier in ids]


def write_line(fields) -> bytes:
    line = io.StringIO()
    csv.writer(line, delimiter="\t", lineterminator="").writerow(fields)
    return line.getvalue().encode()


def damage(lines: list[tuple[bytes, list | None]], random: Random) -> None:
    """Damage one to three lines. A line is its bytes and the row it holds, or None once it is touched."""
    for _ in range(random.randint(1, 3)):
        number = random.randrange(1, len(lines)) if random.random() < 0.95 else 0  # rarely the header
        content = lines[number][0]
        place = random.randint(0, len(content))
        before, after = content[:place], content[place:]
        piece = random.choice([*pieces, random.randbytes(3)])
        values = content.split(b"\t")
        values[random.randrange(len(values))] = random.choice(fields)
        operation = random.choice(operations)
        if operation == "repeat":
            lines.insert(number + 1, (content, None))
        elif operation == "insert line":
            lines.insert(number + 1, (piece, None))
        else:
            changed = {
                "overwrite": before + piece + after[len(piece) :],
                "insert": before + piece + after,
                "drop": before + after[1:],
                "cut": before,
                "drop tab": before + after.replace(b"\t", b"", 1),
                "replace field": b"\t".join(values),
            }[operation]
            if changed != content:
                lines[number] = (changed, None)


def load(folder, task: str, split: str, content: bytes):
    (folder / TASKS[task].path(split, "").name).write_bytes(content)
    return load_table(task, split, folder)


def check_table(table, report, task: Task, split: str, content: bytes) -> dict[int, tuple]:
    """Every row is valid, and rows and rejects make up the file. Returns line number -> row."""
    has_label = split != "test"
    assert list(table.columns) == ["id", *task.sentence_columns] + ["label"] * has_label
    for row in table.itertuples(index=False):
        assert row.id.strip() == row.id and row.id.isprintable() and " " not in row.id
        for text in row[: len(task.sentence_columns) + 1]:
            assert text == text.strip() and text not in MISSING and "\0" not in text
            assert any(character.isprintable() and character != " " for character in text)
            text.encode("utf-8")  # no lone surrogates
        if has_label:
            low, high = task.label_range
            assert math.isfinite(row.label) and low <= row.label <= high
    if has_label:
        assert table.label.dtype == ("float64" if task.kind == "similarity" else "int64")
    assert table.id.is_unique and table.index.tolist() == list(range(len(table))) and len(table) > 0

    *physical, after_last = content.removesuffix(b"\r").split(b"\n")[1:]  # a carriage return ends no line
    physical += [after_last] if after_last else []
    rejected = [reject.line for reject in report.rejects]
    # Such a record is one reject of several lines; test_data_tables.py has it.
    assume(all(reject.kind != "line break inside a quoted field" for reject in report.rejects))
    assert rejected == sorted(set(rejected)) and report.rows == len(physical)
    kept = [line for line in range(2, len(physical) + 2) if line not in set(rejected)]
    assert len(kept) == len(table)
    rows = dict(zip(kept, table.itertuples(index=False, name=None), strict=True))
    assert not after_last or len(physical) + 1 in rejected  # it was truncated
    for line, row in rows.items():  # a row has the values of its line
        source = physical[line - 2].decode(errors="replace")
        for text in row[: len(task.sentence_columns) + 1]:
            assert text in source or text in source.replace('""', '"')
        if has_label:
            assert row[-1] == float(source.split("\t")[-1].strip(' "\r'))
    str(report).encode("utf-8")  # can be printed
    return rows


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_a_damaged_file_loses_its_damaged_lines_alone(folder, data):
    name, split = data.draw(st.sampled_from(FILES))
    task = TASKS[name]
    rows = data.draw(valid_rows(task, split))
    columns = ["id", *task.sentence_columns] + ([] if split == "test" else [task.label_column])
    lines = [(write_line(["", *columns]), columns)]
    lines += [(write_line([index, *row]), row) for index, row in enumerate(rows)]
    random = Random(data.draw(st.integers(0, 2**32)))  # as hypothesis's own draws repeat themselves too often
    damage(lines, random)
    end = b"\n" if random.random() < 0.7 else random.choice([b"", *pieces])
    whole = len(lines) if end == b"\n" else len(lines) - 1
    content = b"\n".join(line for line, _ in lines) + end
    if random.random() < 0.1:
        content = b"\xef\xbb\xbf" + content
    header_is_whole = lines[0][1] is not None
    try:
        table, report = load(folder, name, split, content)
    except DataError as error:
        str(error).encode("utf-8")
        untouched = [row for _, row in lines[1:whole] if row is not None]
        assert not header_is_whole or not untouched
        return
    found = check_table(table, report, task, split, content)
    if not header_is_whole:
        return
    physical_line = 1
    for place, (line, row) in enumerate(lines):
        if 0 < place < whole and row is not None:
            if physical_line in found:
                expected = [value.strip() for value in row]
                if split != "test":
                    expected[-1] = float(expected[-1])
                assert list(found[physical_line]) == expected
            else:
                assert row[0] in [earlier[0] for number, earlier in found.items() if number < physical_line]
        physical_line += 1 + line.count(b"\n")


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(FILES), st.booleans(), st.binary(max_size=40))
def test_arbitrary_bytes(folder, file, with_header, content):
    name, split = file
    task = TASKS[name]
    if with_header:
        columns = ["id", *task.sentence_columns] + ([] if split == "test" else [task.label_column])
        content = write_line(columns) + b"\n" + content
    try:
        table, report = load(folder, name, split, content)
    except DataError as error:
        str(error).encode("utf-8")
    else:
        check_table(table, report, task, split, content)
