"""Each fault that a file can have, in small invented files; and the real files, if they are there."""

import io
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from mtbert.data.reports import Reject, fault_of
from mtbert.data.tables import fingerprint, load_split_texts, load_table, load_texts
from mtbert.data.tasks import SPLITS, TASKS, DataError
from mtbert.paths import REPOSITORY

SST, STS, QUORA = "ids-sst-dev.csv", "sts-dev.csv", "quora-dev.csv"
SST_HEADER = b"\tid\tsentence\tsentiment\n"
GOOD = b"0\ta1\t a warm and witty film\t3\n"
PAIR_HEADERS = {
    QUORA: b"\tid\tsentence1\tsentence2\tis_duplicate\n",
    STS: b"\tid\tsentence1\tsentence2\tsimilarity\n",
}


def load_sst(folder: Path, *lines: bytes, header: bytes = SST_HEADER):
    (folder / SST).write_bytes(header + b"".join(lines))
    return load_table("sst", "dev", folder)


def load_pairs(folder: Path, name: str, *lines: bytes):
    (folder / name).write_bytes(PAIR_HEADERS[name] + b"".join(lines))
    return load_table(name.split("-")[0], "dev", folder)


def test_a_good_file(tmp_path):
    table, report = load_sst(tmp_path, GOOD, b"1\ta2\t dull \t0\n")
    expected = pd.DataFrame({"id": ["a1", "a2"], "sentence": ["a warm and witty film", "dull"], "label": [3, 0]})
    pd.testing.assert_frame_equal(table, expected)
    assert (report.rows, report.rejects) == (2, [])
    assert report.path == tmp_path / SST
    assert str(report) == f"{SST}: 2 rows, 2 accepted, 0 rejected"


def test_pairs_quotes_and_float_labels(tmp_path):
    rows = b'0\tp1\t"say ""hello"" twice"\tgreet\t2.5\n', b"1\tp2\tone\ttwo\t5\n"
    table, report = load_pairs(tmp_path, STS, *rows)
    assert table.sentence1.tolist() == ['say "hello" twice', "one"]
    assert table.sentence2.tolist() == ["greet", "two"]
    assert table.label.dtype == np.float64 and table.label.tolist() == [2.5, 5.0]
    assert report.rejects == []
    table, _ = load_pairs(tmp_path, QUORA, b"0\tq1\twhy?\thow?\t0.0\n", b"1\tq2\twhy?\twhy so?\t1.0\n")
    assert table.label.dtype == np.int64 and table.label.tolist() == [0, 1]


def test_the_test_split_has_no_label_and_two_index_columns(tmp_path):
    (tmp_path / "ids-sst-test-student.csv").write_bytes(b"0\t\tid\tsentence\n0\t7\ta1\t fine work\n")
    table, _ = load_table("sst", "test", tmp_path)
    assert table.to_dict("list") == {"id": ["a1"], "sentence": ["fine work"]}


@pytest.mark.parametrize(
    "bad, field, reason",
    [
        (b"1\ta2\tonly three\n", "row", "3 columns, not 4"),
        (b"1\ta2\tone\ttoo many\t2\n", "row", "5 columns, not 4"),
        (b"\n", "row", "1 columns, not 4"),
        (b"1\t\tno id\t2\n", "id", "missing or empty"),
        (b"1\ta 2\tspaced id\t2\n", "id", "space or control character inside"),
        (b"1\ta\x012\tid with a control byte\t2\n", "id", "space or control character inside"),
        (b"1\ta1\tanother text\t2\n", "id", "same id as line 2"),
        (b"1\ta2\t\t2\n", "sentence", "missing or empty"),
        (b"1\ta2\t  \xc2\xa0 \t2\n", "sentence", "missing or empty"),
        (b"1\ta2\tnan\t2\n", "sentence", "missing or empty"),
        (b"1\ta2\t\x01\x02\t2\n", "sentence", "no visible character"),
        (b"1\ta2\t\xe2\x80\x8b\t2\n", "sentence", "no visible character"),
        (b"1\ta2\ta NUL \x00 byte\t2\n", "sentence", "NUL character"),
        (b"1\ta2\ta caf\xe9\t2\n", "sentence", "invalid UTF-8"),
        (b"1\ta2\tan encoded surrogate \xed\xa0\x80\t2\n", "sentence", "invalid UTF-8"),
        (b"\xff\ta2\tfine\t2\n", "index", "invalid UTF-8"),
        (b'1\ta2\t"never closed\t2\n', "row", "unbalanced quote (unexpected end of data)"),
        (b'1\ta2\t"closed" too early\t2\n', "row", "unbalanced quote ('\t' expected after '\"')"),
        (b"1\ta2\tfirst\rsecond\t2\n", "row", "carriage return inside the line"),
        (b"1\ta2\tfine\t\n", "sentiment", "missing or empty"),
        (b"1\ta2\tfine\tNaN\n", "sentiment", "missing or empty"),
        (b"1\ta2\tfine\tgood\n", "sentiment", "not a number"),
        (b"1\ta2\tfine\tinf\n", "sentiment", "not a finite number"),
        (b"1\ta2\tfine\t0_1\n", "sentiment", "not a finite number"),
        (b"1\ta2\tfine\t5\n", "sentiment", "5 is outside 0..4"),
        (b"1\ta2\tfine\t-1\n", "sentiment", "-1 is outside 0..4"),
        (b"1\ta2\tfine\t1.5\n", "sentiment", "1.5 is not a class (a whole number)"),
    ],
)
def test_a_bad_row_is_reported_and_the_others_stay(tmp_path, bad, field, reason):
    rows = GOOD, bad, b"2\ta3\ta row after it\t1\n"
    table, report = load_sst(tmp_path, *rows)
    assert report.rejects == [Reject(SST, 3, field, reason)]
    assert str(report) == f"{SST}: 3 rows, 2 accepted, 1 rejected\n  {SST}:3 {field}: {reason}"
    assert table.id.tolist() == ["a1", "a3"] and table.index.tolist() == [0, 1]


@pytest.mark.parametrize(
    "name, bad, field, reason",
    [
        (STS, b"1\tp2\tone\ttwo\t5.1\n", "similarity", "5.1 is outside 0..5"),
        (STS, b"1\tp2\tone\t\t3\n", "sentence2", "missing or empty"),
        (QUORA, b"1\tp2\tn/a\ttwo\t0.0\n", "sentence1", "missing or empty"),
        (QUORA, b"1\tp2\tone\ttwo\t\n", "is_duplicate", "missing or empty"),
        (QUORA, b"1\tp2\tone\ttwo\t2.0\n", "is_duplicate", "2 is outside 0..1"),
    ],
)
def test_a_bad_pair(tmp_path, name, bad, field, reason):
    table, report = load_pairs(tmp_path, name, b"0\tp1\tleft\tright\t1.0\n", bad)
    assert report.rejects == [Reject(name, 3, field, reason)] and table.id.tolist() == ["p1"]


@pytest.mark.parametrize("text", ["nan bread", "None of it works", "?", 'a 5" nail', "naïve\ufffd\x85", "x" * 200_000])
def test_odd_texts_that_are_good(tmp_path, text):
    table, report = load_sst(tmp_path, f"0\ta1\t{text}\t1\n".encode())
    assert report.rejects == [] and table.sentence.tolist() == [text.strip()]


def test_a_long_quoted_text_is_read(tmp_path):
    table, _ = load_sst(tmp_path, b'0\ta1\t"""' + b"long " * 100_000 + b'"""\t1\n')
    assert len(table.sentence[0]) == 500_002


def test_a_byte_order_mark_and_windows_line_ends(tmp_path):
    lines = SST_HEADER, GOOD, b'1\ta2\t"a ""fine"" one"\t4\n'
    plain, _ = load_sst(tmp_path, *lines[1:])
    header, *rows = (line.replace(b"\n", b"\r\n") for line in lines)
    table, report = load_sst(tmp_path, *rows, header=b"\xef\xbb\xbf" + header)
    pd.testing.assert_frame_equal(table, plain)
    assert report.rejects == []


def test_a_truncated_file_loses_its_last_row(tmp_path):
    _, report = load_sst(tmp_path, GOOD, b"1\ta2\tlooks whole, but it was 10.0 here\t1")
    assert report.rejects == [Reject(SST, 3, "row", "the file ends inside this line: it is truncated")]


def test_a_record_with_a_line_break_is_one_reject_of_the_courses_files(tmp_path):
    rows = GOOD, b'1\ta2\t"half a text', b'\n\nand the rest"\t2\n', b"2\ta3\ta row after it\t1\n"
    table, report = load_sst(tmp_path, *rows)
    assert report.rejects == [Reject(SST, 3, "row", "line break inside a quoted field")]
    assert report.rows == 3 and table.id.tolist() == ["a1", "a3"]


def test_a_line_that_is_a_row_belongs_to_no_other_one(tmp_path):
    rows = b'0\ta1\t"an open quote\t1\n', b'1\ta2\ta nail of 3"\t2\n', b"2\ta3\tfine\t1\n"
    table, report = load_sst(tmp_path, *rows)
    assert [(reject.line, reject.field) for reject in report.rejects] == [(2, "row")]
    assert table.id.tolist() == ["a2", "a3"] and table.sentence[0] == 'a nail of 3"'


def test_what_cannot_be_trained_on_is_predicted_as_it_is_written(tmp_path):
    """A leaderboard counts every id."""
    rows = GOOD, b'1\ta2\t"half a text\nand the rest"\t2\n', b"2\ta3\tone\rtwo\t1\n", b"3\ta4\tcut off\t1"
    (tmp_path / SST).write_bytes(SST_HEADER + b"".join(rows))
    table, report = load_split_texts("sst", "dev", tmp_path)
    assert table["id"].tolist() == ["a1", "a2", "a3", "a4"] and not report.rejects
    assert table["sentence"].tolist()[1:] == ["half a text\nand the rest", "one\rtwo", "cut off"]
    assert [(row.line, row.reason) for row in report.doubtful] == [
        (3, "line break inside a quoted field"),
        (5, "carriage return inside the line"),
        (6, "the file ends inside this line: it is truncated"),
    ]


def test_the_id_of_a_rejected_row_is_free(tmp_path):
    table, report = load_sst(tmp_path, b"0\ta1\tfine\t9\n", b"1\ta1\tfine\t3\n")
    assert [reject.line for reject in report.rejects] == [2] and table.label.tolist() == [3]


def test_the_printed_report_is_short_and_shows_no_text(tmp_path):
    bad = [b"%d\tb%d\tsecret words\tsecret words\n" % (i, i) for i in range(50)]
    _, report = load_sst(tmp_path, GOOD, *bad)
    assert len(report.rejects) == 50
    lines = str(report).splitlines()
    assert len(lines) == 22 and lines[-1].strip() == "and 30 more rejects" and "secret" not in str(report)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "is empty"),
        (b"\xef\xbb\xbf\n \n", "is empty"),
        (SST_HEADER, "has a header line and no rows"),
        (SST_HEADER.rstrip(b"\n"), "has a header line and no rows"),
        (b",id,sentence,sentiment\n0,a1,fine,3\n", "columns are separated by ','. Save it with tabs"),
        (b";id;sentence;sentiment\n0;a1;fine;3\n", "columns are separated by ';'. Save it with tabs"),
        (
            b"\tid\ttext\tsentiment\n" + GOOD,
            "lacks the column sentence; it has '', 'id', 'text', 'sentiment'",
        ),
        (b"\tid\tsentence\n0\ta1\tfine\n", "lacks the column sentiment; it has '', 'id', 'sentence'"),
        (b"id\tid\tsentence\tsentiment\n" + GOOD, "has two columns 'id'"),
        (b"\tid\tsentence\tsentiment\r" + GOOD, "header line: carriage return"),
        (b'\tid\t"sentence\tsentiment\n' + GOOD, "header line: unbalanced quote"),
        (b"\xff\tid\tsentence\tsentiment\n" + GOOD, "header line: invalid UTF-8"),
        ((SST_HEADER + GOOD).decode().encode("utf-16"), "is UTF-16. Save it as UTF-8"),
        (
            SST_HEADER + b"0\ta1\tfine\t9\n",
            "no row is accepted.*sentiment: 9 is outside 0..4 .1 row, the first in line 2",
        ),
    ],
)
def test_an_unusable_file(tmp_path, content, message):
    with pytest.raises(DataError, match=f"(?s){tmp_path / SST}.*{message}"):
        load_sst(tmp_path, content, header=b"")


def test_a_first_line_that_is_no_header_is_not_printed(tmp_path):
    with pytest.raises(DataError, match="no header line with the columns id, sentence, sentiment") as caught:
        load_sst(tmp_path, GOOD, GOOD, header=b"")
    assert "witty" not in str(caught.value)


def test_no_such_task_split_file_or_folder(tmp_path):
    with pytest.raises(DataError, match="unknown task 'snli'; known are sst, cfimdb, quora, sts"):
        load_table("snli", "dev", tmp_path)
    with pytest.raises(DataError, match="unknown split 'valid'; known are train, dev, test"):
        load_table("sst", "valid", tmp_path)
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match=f"{folder / SST}: No such file.*fetch.*MTBERT_DATA"):
            load_table("sst", "dev", folder)
    (tmp_path / SST).mkdir()
    with pytest.raises(DataError, match=f"{tmp_path / SST}: Is a directory"):
        load_table("sst", "dev", tmp_path)


def test_a_pipe_named_dev_stdin_is_what_is_piped_in(monkeypatch):
    monkeypatch.setattr(Path, "is_fifo", lambda path: True)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b" \n")))
    with pytest.raises(DataError, match="nothing is piped in"):
        load_texts("sst", "/dev/stdin")


def test_texts_of_a_pipe_that_is_named_are_read():
    """As the shell's <(...) names it."""
    read, write = os.pipe()
    os.write(write, b"a dull day\na bright day\n")
    os.close(write)
    table, _ = load_texts("sst", f"/dev/fd/{read}")
    os.close(read)
    assert table["sentence"].tolist() == ["a dull day", "a bright day"]


@pytest.mark.parametrize(
    "text, ids",
    [
        ("id, sentence\na1, fine\n", ["a1"]),  # a space behind the comma
        ("sentence\nfine, and short\n", ["test-2"]),  # one column: the comma belongs to the text
        ("id\tsentence\na1\tfine, and short\n", ["a1"]),
    ],
)
def test_a_file_of_texts_without_labels(tmp_path, text, ids):
    (tmp_path / "texts.csv").write_text(text)
    table, report = load_texts("sst", tmp_path / "texts.csv")
    assert table["id"].tolist() == ids and not report.rejects
    assert table["sentence"][0] == ("fine" if ", fine" in text else "fine, and short")


def test_fingerprint_is_of_the_content_alone(tmp_path):
    rows = GOOD, b"1\ta2\tdull\t0\n"
    table, _ = load_sst(tmp_path, *rows)
    digest = fingerprint(table)
    assert re.fullmatch("[0-9a-f]{12}", digest)
    quoted = b'5\t"a1"\t"a warm and witty film" \t3.0\r\n'.replace(b'" \t', b'"\t'), rows[1]
    assert fingerprint(load_sst(tmp_path, *quoted, header=b"\xef\xbb\xbf" + SST_HEADER)[0]) == digest
    others = [
        table.assign(label=[3, 1]),
        table.assign(sentence=["a warm and witty film", "Dull"]),
        table.assign(id=["a1a", "2"]),  # the same characters in other fields
        table.rename(columns={"sentence": "sentence1"}),
        table[::-1],
        table[:1],
        table.drop(columns="label"),
    ]
    digests = [fingerprint(other) for other in others] + [fingerprint(table, table), fingerprint()]
    assert len({digest, *digests}) == len(digests) + 1
    assert fingerprint(table.set_index(pd.Index([8, 9]))) == digest


SHARED_DATA = REPOSITORY.parent / "shared" / "data"  # and not MTBERT_DATA: the course has another file of Quora
REAL_ROWS = {
    "sst": (8544, 1101, 2210),
    "cfimdb": (1707, 245, 488),
    "quora": (141506, 20214, 40431),
    "sts": (6040, 863, 1725),
}
REAL_REJECTS = {
    ("quora", "train"): [(95564, "sentence1")],
    ("quora", "dev"): [(2577, "is_duplicate"), (14222, "sentence2")],
}


@pytest.mark.skipif(not SHARED_DATA.is_dir(), reason=f"no datasets in {SHARED_DATA}")
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("split", SPLITS)
def test_the_real_files(task, split):
    table, report = load_table(task, split, SHARED_DATA)
    assert report.rows == REAL_ROWS[task][SPLITS.index(split)]
    assert [(reject.line, reject.field) for reject in report.rejects] == REAL_REJECTS.get((task, split), [])
    assert len(table) == report.rows - len(report.rejects)
    if split != "test":
        low, high = TASKS[task].label_range
        assert (table.label.min(), table.label.max()) == (low, high)
        assert fault_of(task, split, table, report) == "", "they are trained on"
