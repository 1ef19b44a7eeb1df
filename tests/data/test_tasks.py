"""Tasks of users: read from YAML files, checked, and trained beside the course's without a change of the package."""

import hashlib
import json
import os
from pathlib import Path

import pytest
import torch

from mtbert.data.corpus import Corpus
from mtbert.data.reports import Reject, fault_of, remarks_on_range
from mtbert.data.tables import load_split_texts, load_table, load_texts
from mtbert.data.tasks import TASKS, DataError, Task, read_tasks
from mtbert.multitask.losses import predict, task_loss
from mtbert.training.metrics import metrics_of

TOPICS = """
name: topics
files: topics-{split}.csv
sentence_columns: [headline]
label_column: topic
kind: classes
class_names: [sport, weather, science]
id_column: null
separator: ","
"""
HEADLINES = {
    "sport": "the {} wins the race by a length",
    "weather": "rain over the {} until the evening",
    "science": "a telescope finds a second {} beyond the moon",
}
THINGS = ("harbour", "lantern", "bicycle", "garden", "violin", "kitchen", "winter", "castle")


@pytest.fixture
def folder(tmp_path) -> Path:
    """A task of three classes, with 24 headlines of ours in each split."""
    (tmp_path / "topics.yaml").write_text(TOPICS)
    lines = [f'"{text.format(thing)}",{topic}' for thing in THINGS for topic, text in HEADLINES.items()]
    for split in ("train", "dev"):
        (tmp_path / f"topics-{split}.csv").write_text("\n".join(["headline,topic", *lines]) + "\n")
    (tmp_path / "topics-test.csv").write_text("headline\n" + "\n".join(line.split(",")[0] for line in lines) + "\n")
    return tmp_path


@pytest.fixture
def topics(folder, monkeypatch):
    """Writes topics-dev.csv and reads it, after these changes of the task's file."""

    def read(text: str, old: str = "", new: str = ""):
        (folder / "topics.yaml").write_text(TOPICS.replace(old, new) if old else TOPICS)
        monkeypatch.setitem(TASKS, "topics", read_tasks(folder)["topics"])
        (folder / "topics-dev.csv").write_text(text, newline="")
        return load_table("topics", "dev", "elsewhere")

    return read


def test_a_task_is_read(folder, monkeypatch):
    [task] = read_tasks(folder).values()
    assert (task.num_classes, task.label_range, task.is_pair) == (3, (0, 2), False)
    monkeypatch.setitem(TASKS, "topics", task)
    table, report = load_table("topics", "dev", "elsewhere")
    assert not report.rejects and list(table.columns) == ["id", "headline", "label"]
    assert table["label"].tolist() == [0, 1, 2] * 8 and table["id"].iloc[0] == "dev-2"
    (folder / "topics-dev.csv").write_text("headline,topic\nfine,sports\nrain,weather\n")
    _, report = load_table("topics", "dev", "elsewhere")
    assert str(report.rejects[0]) == "topics-dev.csv:2 topic: 'sports' is no class; did you mean 'sport'?"


def test_a_quoted_text_may_have_line_breaks(topics):
    rows = 'one,sport\r\n"two\r\nlines, and ""quotes""\r\n\r\n",weather\r\n"never closed,sport\r\nthree,science\r\n'
    table, report = topics(f"headline,topic\r\n{rows}")
    assert table["headline"].tolist() == ["one", 'two\nlines, and "quotes"', "three"]
    assert table["id"].tolist() == ["dev-2", "dev-3", "dev-8"] and report.rows == 4
    assert [(reject.line, reject.field) for reject in report.rejects] == [(7, "row")]


def test_a_line_behind_an_unbalanced_quote_is_no_half_record(topics):
    rows = '"they "won"\nthe race",sport\na 5" nail,science\nfour,weather\na 5" nail,science\n'
    table, report = topics(f"headline,topic\n{rows}")
    assert [reject.line for reject in report.rejects] == [2, 3, 4]
    assert table["headline"].tolist() == ["four", 'a 5" nail']


def test_json_lines_are_read(topics):
    rows = [{"headline": "one,\ntwo", "topic": "sport", "more": [1]}, {"topic": "weather", "headline": "rain"}]
    lines = [*map(json.dumps, rows), '{"headline": null, "topic": "sport"}', '{"topic": "sport"}', "[1]", "{"]
    table, report = topics("\n".join(lines))
    assert table["headline"].tolist() == ["one,\ntwo", "rain"] and table["label"].tolist() == [0, 1]
    assert [(reject.line, reject.field) for reject in report.rejects] == [
        (3, "headline"), (4, "headline"), (5, "row"), (6, "row"),
    ]  # fmt: skip
    message = r"topics-dev.csv, first object, lacks the column headline; it has 'text', 'topic'\. Rename or add it\.$"
    with pytest.raises(DataError, match=message):
        topics('{"text": "one", "topic": "sport"}\n')


@pytest.mark.parametrize("name", ["topics-dev.csv", "topics-dev.jsonl"])
def test_a_file_without_a_column_of_ids_is_told_the_field(folder, monkeypatch, name):
    """The column is asked for by default, which nobody knows who has none."""
    about = TOPICS.replace("id_column: null\n", "").replace("topics-{split}.csv", name.replace("dev", "{split}"))
    (folder / "topics.yaml").write_text(about)
    (folder / "topics-dev.jsonl").write_text('{"headline": "one", "topic": "sport"}\n')
    monkeypatch.setitem(TASKS, "topics", read_tasks(folder)["topics"])
    with pytest.raises(DataError, match=r"lacks the column id; .* or write `id_column: null` in the task's file"):
        load_table("topics", "dev", "elsewhere")


def test_one_file_has_train_and_a_share_for_dev(folder, monkeypatch):
    texts = [f"headline {i // 2}" for i in range(1000)]  # each twice: equal texts are in the same part
    rows = [f"{text},{list(HEADLINES)[i % 3]}" for i, text in enumerate(texts)]
    (folder / "topics.csv").write_text("\n".join(["headline,topic", *rows, "bad,none", ""]))
    (folder / "topics.yaml").write_text(TOPICS.replace("-{split}", "") + "dev_share: 0.2\n")
    monkeypatch.setitem(TASKS, "topics", read_tasks(folder)["topics"])
    assert TASKS["topics"].splits(folder) == ("train", "dev")
    (train, report), (dev, of_dev) = (load_table("topics", split, folder) for split in ("train", "dev"))
    assert sorted([*train["headline"], *dev["headline"]]) == sorted(texts)
    digests = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
    assert list(dev["headline"]) == [
        text for text, digest in zip(texts, digests, strict=True) if int(digest[:12], 16) / 16**12 < 0.2
    ]
    assert (report.rows + of_dev.rows, len(report.rejects), len(of_dev.rejects)) == (1001, 1, 0)
    assert dev.equals(load_table("topics", "dev", folder)[0])
    (folder / "topics.csv").write_text('headline,topic\n"two\nlines",sport\n' + "\n".join([*rows, ",sport", ""]))
    assert "texts with line breaks: 1" in str(load_table("topics", "train", folder)[1])
    for split in ("train", "dev"):  # the empty text of line 1004 is in the part for training
        predicted, report = load_split_texts("topics", split, folder)
        is_here = "" in set(predicted["headline"])
        assert is_here == (split == "train")
        assert is_here == ("topics.csv:1004 headline: missing or empty" in str(report))
    with pytest.raises(DataError, match="topics has no test split"):
        load_table("topics", "test", folder)


def test_a_folder_is_relative_to_the_file_of_the_task(folder, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.chdir(elsewhere)
    text = (folder / "topics.yaml").read_text()
    (folder / "topics.yaml").write_text(f"{text}\nfolder: files\n")
    assert read_tasks(folder)["topics"].folder == folder / "files"
    (folder / "topics.yaml").write_text(f"{text}\nfolder: {elsewhere}\n")
    assert read_tasks(folder)["topics"].folder == elsewhere


def test_rejects_are_grouped_with_the_nearest_label(folder, monkeypatch):
    text = (folder / "topics-train.csv").read_text()
    (folder / "topics-train.csv").write_text(text.replace(",sport", ",Sport").replace(",science", ",science "))
    monkeypatch.setitem(TASKS, "topics", read_tasks(folder)["topics"])
    message = (
        r"topics-train.csv: 8 of 24 rows are rejected, more than 5%; no row is left of class sport\n"
        r"  topic: 'Sport' is no class; did you mean 'sport'\? "
        r"\(8 rows, the first in line 2\)\n.*train without this check"
    )
    with pytest.raises(DataError, match=message):
        Corpus.load(folder, ["topics"], ["topics"]).check()


def test_a_class_may_be_named_none(topics):
    text = "headline,topic\nfine,sport\nrain,None\nNone,sport\nsun,NA\n"
    table, report = topics(text, "weather", "None")
    assert table["label"].tolist() == [0, 1, 0]
    assert [str(reject).split(" ", 1)[1] for reject in report.rejects] == [
        "topic: 'NA' is none of sport, None, science"
    ]


def test_words_that_pandas_takes_for_missing_are_texts_unless_the_task_says_so(topics):
    """The same in CSV and JSON Lines, where null is the empty text."""
    words = ["NA", "null", "nan", "None", "n/a"]
    table, _ = topics("headline,topic\n" + "".join(f"{word},sport\n" for word in words))
    assert table["headline"].tolist() == words
    lines = [json.dumps({"headline": word, "topic": "sport"}) for word in (*words, "", None)]
    table, report = topics("\n".join(lines))
    assert table["headline"].tolist() == words and [reject.line for reject in report.rejects] == [6, 7]
    text = 'headline,topic\nNA,sport\nrain,"n/a"\n,sport\nhail,weather\n'
    table, report = topics(text, "id_column: null", 'id_column: null\nmissing: ["", NA, n/a]')
    assert table["headline"].tolist() == ["hail"]
    assert {(reject.line, reject.reason) for reject in report.rejects} == {(i, "missing or empty") for i in (2, 3, 4)}


def test_a_stray_quote_swallows_no_row(topics):
    """What lies between it and the next quote is read, as it is a row by itself."""
    rows = [f"text {i}\tsport" for i in range(2, 42)]
    rows[3], rows[14] = '"Lovely thing\tsport', 'a dull screen of 27"\tweather'
    table, report = topics("headline\ttopic\n" + "\n".join(rows) + "\n", 'separator: ","', 'separator: "\\t"')
    assert (report.rows, len(table)) == (40, 39) and table["headline"][13] == 'a dull screen of 27"'
    assert [(reject.line, reject.field) for reject in report.rejects] == [(5, "row")]
    assert "unbalanced quote" in report.rejects[0].reason and "`quoting: none`" in report.rejects[0].reason
    _, report = topics('headline,topic\n"Lovely thing,sport\na dull screen of 27",weather\nfine,sport\n')
    assert [reject.line for reject in report.rejects] == [2, 3], "neighbours"


def test_a_text_with_line_breaks_may_be_the_last_column(topics):
    """Its first line looks like a row by itself."""
    table, report = topics('topic,headline\nsport,"win now\nand call"\nweather,rain\n')
    assert table["headline"].tolist() == ["win now\nand call", "rain"] and not report.rejects


def test_a_text_with_line_breaks_may_have_separators_and_is_told(topics):
    table, report = topics('headline,topic\n"well,\nrain, sun\nand hail",weather\n"a\nb",sport\n')
    assert table["headline"].tolist() == ["well,\nrain, sun\nand hail", "a\nb"] and not report.rejects
    assert "texts with line breaks: 2, the longest of 3 lines, in line 2" in str(report)


def test_without_quoting_quotes_are_text(topics):
    text = 'headline\ttopic\n"Lovely thing\tsport\n27" of "rain"\tweather\n'
    table, report = topics(text, 'separator: ","', 'separator: "\\t"\nquoting: none')
    assert table["headline"].tolist() == ['"Lovely thing', '27" of "rain"'] and not report.rejects


@pytest.mark.parametrize(
    "value, reason",
    [
        (["a", "list"], "not a text, but a list"),
        ({"a": 1}, "not a text, but an object"),
        (1.10, "not a text, but a number"),
        (True, "not a text, but true or false"),
    ],
)
def test_what_is_no_text_in_json_lines_is_rejected_with_its_line(topics, value, reason):
    rows = [{"headline": "rain", "topic": "weather"}, {"headline": value, "topic": "sport"}]
    table, report = topics("\n".join(map(json.dumps, rows)))
    assert table["headline"].tolist() == ["rain"]
    assert report.rejects == [Reject("topics-dev.csv", 2, "headline", reason)]


def test_a_json_array_and_columns_in_other_letters_are_named(topics):
    with pytest.raises(DataError, match=r"topics-dev\.csv is a JSON array, not JSON Lines"):
        topics('[{"headline": "rain", "topic": "weather"}]')
    with pytest.raises(DataError, match="column headline, topic; it has 'Headline', 'TOPIC'; capital letters"):
        topics("Headline,TOPIC\nrain,weather\n")


@pytest.mark.parametrize("text", ['[{"headline": "rain"}]', '[\n {"headline": "rain"}\n]', " [\n"])
def test_a_json_array_of_texts_to_predict_is_named(topics, folder, text):
    topics("headline,topic\nrain,weather\n")
    (folder / "texts.json").write_text(text)
    with pytest.raises(DataError, match=r"texts\.json is a JSON array, not JSON Lines\. Write each object on a line"):
        load_texts("topics", folder / "texts.json")


def test_a_json_object_over_several_lines_is_named(topics, folder):
    text = json.dumps({"headline": "rain", "topic": "weather"}, indent=1)
    with pytest.raises(DataError, match=r"is no JSON object .*\. Write each object on one line"):
        topics(text)
    (folder / "texts.json").write_text(text)
    with pytest.raises(DataError, match="Write each object on one line"):
        load_texts("topics", folder / "texts.json")
    table, _ = topics('  {"headline": "rain", "topic": "weather"}\n')
    assert table["headline"].tolist() == ["rain"], "spaces before the first object"


def test_what_is_no_text_in_json_lines_is_predicted_as_it_is_written(topics, folder):
    topics("headline,topic\nrain,weather\n")
    lines = [{"headline": "rain"}, {"headline": ["a", "b"]}, {"headline": 3}, {"headline": None}]
    (folder / "texts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    table, report = load_texts("topics", folder / "texts.jsonl")
    assert table["headline"].tolist() == ["rain", '["a", "b"]', "3", ""], "a row for every text"
    assert [row.line for row in report.doubtful] == [2, 3, 4] and not report.rejects


def test_ids_of_texts_may_stand_in_another_column(topics, folder):
    topics("headline,topic,id\nfine,sport,1\n", "id_column: null", "id_column: id")
    file = folder / "texts.csv"
    file.write_text("ticket,headline,note\nT 1,rain,x\n,sun,x\nT3,hail,x\nT3,snow,x\n")
    table, report = load_texts("topics", file)
    assert table["id"].tolist() == ["test-2", "test-3", "test-4", "test-5"]
    assert report.notes == ["no column id: ids are line numbers; id_column=NAME takes another column"]
    table, report = load_texts("topics", file, id_column="ticket")
    assert table["id"].tolist() == ["T 1", "", "T3", "T3"] and list(table.columns) == ["id", "headline"]
    assert [(row.line, row.field) for row in report.doubtful] == [(2, "ticket"), (3, "ticket"), (5, "ticket")]
    file.write_text("topic,headline\nA,rain\n")
    assert load_texts("topics", file, id_column="topic")[0]["id"].tolist() == ["A"], "that of the labels, too"
    file.write_text("ticket,headline,note\nT 1,rain,x\n")
    with pytest.raises(DataError, match="lacks the column Ticket; it has 'ticket', 'headline', 'note'; capital"):
        load_texts("topics", file, id_column="Ticket")
    with pytest.raises(DataError, match="id_column='headline' is a column of texts"):
        load_texts("topics", file, id_column="headline")
    with pytest.raises(DataError, match="lines of text are none, is_table=True reads one"):
        load_texts("topics", file, is_table=False, id_column="ticket")
    file.write_text('{"ticket": 7, "headline": "rain"}\n')
    assert load_texts("topics", file, id_column="ticket")[0]["id"].tolist() == ["7"], "JSON Lines"


def test_a_file_of_texts_has_a_row_for_every_row_and_lists_what_training_would_reject(topics, folder):
    topics("headline,topic\nfine,sport\n")
    file = folder / "texts.csv"
    file.write_text('id,headline\na,rain\nb,\nc,NA\na,"Lovely\nd,a dull screen of 27"\ne,sun\n')
    table, report = load_texts("topics", file)
    assert table["headline"].tolist() == ["rain", "", "NA", '"Lovely', 'a dull screen of 27"', "sun"]
    assert table["id"].tolist() == [f"test-{line}" for line in range(2, 8)], "this task has no ids"
    assert [row.line for row in report.doubtful] == [3, 5, 6] and not report.rejects, "a missing text, a stray quote"
    text = "texts.csv: 6 rows, 6 accepted, 0 rejected; 3 of the accepted would be rejected in training"
    assert str(report).startswith(text)
    file.write_text("id,Headline\na,rain\n")
    message = "texts.csv lacks the column headline; it has 'id', 'Headline'; capital letters count"
    with pytest.raises(DataError, match=message):
        load_texts("topics", file)


def test_lines_are_texts_whatever_is_in_the_first_one(topics, folder):
    topics("headline,topic\nfine,sport\n")
    lines = ["headline, text, mail: all of it warm", '{"a": 1}', "", "NA", '"fine', "sun"]
    file = folder / "texts.txt"
    file.write_text("\n".join(lines) + "\n")
    table, report = load_texts("topics", file)
    assert table["headline"].tolist() == lines and [row.line for row in report.doubtful] == [3]
    assert "a line is a text, also the first one; is_table=True" in str(report)
    file.write_text("headline,topic\nrain,\n")
    assert load_texts("topics", file, is_table=True)[0]["headline"].tolist() == ["rain"]


def test_a_split_to_predict_has_a_row_for_every_id_whatever_its_label(topics, folder):
    topics("headline,topic\nrain,weather\n,sport\nsun,none of them\n")
    table, report = load_split_texts("topics", "dev", folder)
    assert table["id"].tolist() == ["dev-2", "dev-3", "dev-4"] and list(table.columns) == ["id", "headline"]
    assert [row.line for row in report.doubtful] == [3]


def test_a_wrong_label_of_many_classes_is_a_short_line_with_the_nearest_name(topics):
    names = ", ".join(f"class {i}" for i in range(150))
    text = "headline,topic\nrain,class 7\n" + "".join(f"rain,Class {i}a\n" for i in range(60))
    _, report = topics(text, "sport, weather, science", names)
    assert report.rejects[0].reason == "'Class 0a' is no class; did you mean 'class 0'?"
    assert len(report.rejects) == 60 and len(str(report)) < 3000
    near = [f"'Class {i}a' (near 'class {i}')" for i in range(5)]
    assert report.reasons == [
        f"topic: none of the 150 classes (60 rows, the first in line 3): {', '.join(near)} and 55 more"
    ]
    _, report = topics("headline,topic\nrain,class 7\nrain,zzz\n", "sport, weather, science", names)
    assert report.reasons == ["topic: 'zzz' is none of the 150 classes (1 row, the first in line 3)"]


@pytest.mark.parametrize(
    "kind, labels, reason",
    [
        ("regression", ["7,5", "0,25", "1,0"], "topic: not a number, as its decimal point is a comma"),
        ("regression", ["high", "low", "mid"], "topic: not a number"),
        ("regression", ["6", "-1", "99.5"], "topic: outside 0..5; `label_range` in the task's file says the range"),
        ("classes\nnum_classes: 3", ["0.5", "1.5", "0.25"], "topic: not a class (a whole number)"),
    ],
)
def test_rejects_that_differ_in_their_values_alone_are_a_line(topics, kind, labels, reason):
    rows = "".join(f'rain,"{label}"\n' for label in (*labels, *labels, "1"))
    old = "kind: classes\nclass_names: [sport, weather, science]"
    _, report = topics(f"headline,topic\n{rows}", old, f"kind: {kind}")
    [line] = report.reasons
    assert line.startswith(f"{reason} (6 rows, the first in line 2): ")
    shown = labels if "," in labels[0] or "high" not in labels else list(map(repr, labels))
    assert line.endswith(", ".join(shown))


def test_rows_with_the_same_id_are_a_line_under_the_name_of_the_column(topics):
    text = "headline,topic,sku\nrain,weather,a\nrain,weather,a\nsun,weather,b\nsun,weather,b\n"
    _, report = topics(text, "id_column: null", "id_column: sku")
    assert [str(reject) for reject in report.rejects] == [
        "topics-dev.csv:3 sku: same id as line 2",
        "topics-dev.csv:5 sku: same id as line 4",
    ]
    assert report.reasons == ["sku: same id as an earlier line (2 rows, the first in line 3)"]


def test_a_corpus_of_an_unknown_task_is_an_error_that_names_the_known_ones(tmp_path):
    with pytest.raises(DataError, match="unknown task 'topic'; known are sst, "):
        Corpus.load(tmp_path, ["topic"], ["topic"])


def test_a_warning_of_rejects_has_a_line_for_every_kind(topics, caplog):
    text = "headline,topic\n" + "".join(f"rain,weather{i}\n" for i in range(30)) + "sun,weather\nsun,sport\n"
    topics(text)
    with caplog.at_level("WARNING"):
        corpus = Corpus.load("elsewhere", [], ["topics"])
        assert not caplog.records, "who reads for another reason than to train is told nothing"
        corpus.warn()
        Corpus.load("elsewhere", [], ["topics"]).warn()
    [record] = caplog.records
    assert len(record.getMessage().splitlines()) == 2 and "30 rejected" in record.getMessage()


def test_names_in_another_form_of_unicode_are_the_same(topics, folder):
    """Some programs write an accented letter as two characters; nobody sees a difference."""
    composed, apart = "caf\u00e9", "cafe\u0301"
    table, report = topics(f"headline,topic\nrain,{apart}\nsun,{composed}\nsun,sport\n", "weather", composed)
    assert table["label"].tolist() == [1, 1, 0] and not report.rejects
    for text in (f"{apart},topic\nrain,weather\n", json.dumps({apart: "rain", "topic": "weather"}) + "\n"):
        table, _ = topics(text, "headline", composed)
        assert table[composed].tolist() == ["rain"], "a column"
        (folder / "texts.csv").write_text(text)
        assert load_texts("topics", folder / "texts.csv")[0][composed].tolist() == ["rain"]
    with pytest.raises(DataError, match="class_names: caf\u00e9 is given twice"):
        topics("headline,topic\nrain,sport\n", "sport, weather", f"{composed}, {apart}")


def test_empty_lines_are_no_rows(topics, folder):
    """Spreadsheets and editors leave them at the end; in a file of one column they are empty texts."""
    table, report = topics("headline,topic\nrain,weather\n\n  \nsun,sport\n\n\n")
    assert table["id"].tolist() == ["dev-2", "dev-5"] and (report.rows, report.rejects) == (2, [])
    table, report = topics('{"headline": "rain", "topic": "weather"}\n\n{"headline": "sun", "topic": "sport"}\n\n')
    assert table["id"].tolist() == ["dev-1", "dev-3"] and (report.rows, report.rejects) == (2, [])
    table, report = topics('headline,topic\n"rain\n\nand sun",weather\n')
    assert table["headline"].tolist() == ["rain\n\nand sun"], "inside a text"
    _, report = topics("headline\ttopic\nrain\tweather\n\t\n", 'separator: ","', 'separator: "\\t"')
    assert [reject.line for reject in report.rejects] == [3], "a row of empty fields"
    (folder / "texts.csv").write_text("headline\nrain\n\nsun\n")
    table, report = load_texts("topics", folder / "texts.csv")
    assert table["headline"].tolist() == ["rain", "", "sun"] and [row.line for row in report.doubtful] == [3]


def test_habits_of_spreadsheets_are_named(topics, folder):
    for separator in ",;":
        text = f"sep={separator}\nheadline,topic\nrain,weather\n"
        with pytest.raises(DataError, match=rf"its first line, 'sep={separator}', is for Excel alone\. Remove it"):
            topics(text)
    topics("headline,topic\nrain,weather\n")
    (folder / "texts.csv").write_text(text)
    with pytest.raises(DataError, match="is for Excel alone"):
        load_texts("topics", folder / "texts.csv")
    (folder / "topics-dev.csv").write_bytes("headline,topic\ncafé,sport\nrain,weather\n".encode("cp1252"))
    _, report = load_table("topics", "dev", "elsewhere")
    assert [str(reject) for reject in report.rejects] == [
        "topics-dev.csv:2 headline: invalid UTF-8; save the file as UTF-8"
    ]
    _, report = topics("headline,topic\nrain, hail,weather\nrain\na,b,c,weather\nsun,sport\n")
    assert report.reasons == ["row: not 2 columns (3 rows, the first in line 2): 3, 1, 4"]


@pytest.mark.parametrize(
    "kind, label, reason",
    [
        ("binary", True, "true is not a number; `class_names: ['false', 'true']` in the task's file takes it"),
        ("binary", "spam", "'spam' is not a number; `class_names` in the task's file lists labels that are words"),
        ("regression", "7,5", "7,5 is not a number; write 7.5"),
        ("regression", "high", "'high' is not a number"),
        ("regression", [1], "not a text or a number, but a list"),
    ],
)
def test_a_label_that_is_no_number_is_shown_with_what_to_do(topics, kind, label, reason):
    lines = [json.dumps({"headline": "rain", "topic": label}), '{"headline": "sun", "topic": 1}']
    old = "kind: classes\nclass_names: [sport, weather, science]"
    _, report = topics("\n".join(lines), old, f"kind: {kind}")
    assert [reject.reason for reject in report.rejects] == [reason]


def test_a_task_file_may_end_in_yml(folder):
    (folder / "topics.yaml").rename(folder / "topics.yml")
    assert list(read_tasks(folder)) == ["topics"]


def test_equal_numbers_are_a_fault(topics):
    old = "kind: classes\nclass_names: [sport, weather, science]"
    for text in ("headline,topic\nrain,3\n", "headline,topic\nrain,3\nsun,3\n"):
        table, report = topics(text, old, "kind: regression")
        assert "all labels are equal" in fault_of("topics", "dev", table, report)
    table, report = topics("headline,topic\nrain,weather\n")
    assert fault_of("topics", "dev", table, report) == "", "a class is none"


def test_labels_in_a_small_part_of_their_range_are_told_before_training(topics, caplog):
    """The range is 0 to 5 where nobody says so; predictions between 0 and 0.001 would all print alike."""
    old = "kind: classes\nclass_names: [sport, weather, science]"
    text = "headline,topic\nrain,0.000295\nsun,0.001\n"
    table, _ = topics(text, old, "kind: regression")
    remark = (
        "labels are 0.000295 to 0.001 in a label_range of 0 to 5, to which outputs are scaled; "
        "write `label_range: [0.000295, 0.001]` in the task's file, or wider"
    )
    assert remarks_on_range("topics", table) == [remark]
    with caplog.at_level("WARNING"):
        Corpus.load("elsewhere", [], ["topics"]).warn()
    assert f"topics-dev.csv: {remark}" in caplog.text
    table, _ = topics(text, old, "kind: regression\nlabel_range: [0, 0.001]")
    assert remarks_on_range("topics", table) == []
    table, _ = topics("headline,topic\nrain,3\nsun,3\n", old, "kind: regression")
    assert remarks_on_range("topics", table) == [], "equal labels are a fault of their own"


def test_a_task_that_is_defined_again_is_read_again(folder, monkeypatch):
    labels = []
    for names in (("sport", "weather", "science"), ("weather", "sport", "science")):
        monkeypatch.setitem(TASKS, "topics", read_tasks(folder)["topics"].model_copy(update={"class_names": names}))
        labels.append(Corpus.load(Path("elsewhere"), [], ["topics"]).dev["topics"]["label"].head(3).tolist())
    assert labels == [[0, 1, 2], [1, 0, 2]]


@pytest.mark.parametrize(
    ("line", "message"),
    [("1: two", "1: there is no such field"), ("label_range: [0, .inf]", r"label_range: .* is not")],
)
def test_fields_that_are_no_names_and_numbers_without_end_are_named(folder, line, message):
    (folder / "topics.yaml").write_text(f"{TOPICS}{line}\n")
    with pytest.raises(DataError, match=message):
        read_tasks(folder)


@pytest.mark.parametrize(("share", "split"), [("0.001", "dev"), ("0.999", "train")])
def test_a_share_that_leaves_a_part_empty_is_named(folder, monkeypatch, share, split):
    (folder / "topics.csv").write_text("headline,topic\nrain,weather\nthe race,sport\na new moon,science\n")
    (folder / "topics.yaml").write_text(TOPICS.replace("-{split}", "") + f"dev_share: {share}\n")
    monkeypatch.setitem(TASKS, "topics", read_tasks(folder)["topics"])
    with pytest.raises(DataError, match=rf"topics\.csv: dev_share {share} of 3 rows leaves none for {split}$"):
        load_table("topics", split, folder)
    assert len(load_table("topics", "train" if split == "dev" else "dev", folder)[0]) == 3


def test_rejects_of_a_file_are_a_share_of_the_file(folder, monkeypatch):
    """30 of 1,000 rows, of which half are for dev."""
    rows = [f"headline {i},{list(HEADLINES)[i % 3]}" for i in range(970)]
    (folder / "topics.csv").write_text("\n".join(["headline,topic", *rows, *["bad,none"] * 30, ""]))
    (folder / "topics.yaml").write_text(TOPICS.replace("-{split}", "") + "dev_share: 0.5\n")
    monkeypatch.setitem(TASKS, "topics", read_tasks(folder)["topics"])
    Corpus.load(folder, ["topics"], ["topics"]).check()


def test_a_folder_of_tasks_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MTBERT_TASKS", str(tmp_path / "none"))
    with pytest.raises(DataError, match="MTBERT_TASKS: there is no folder"):
        len(type(TASKS)())


def test_a_checkout_has_a_folder_for_tasks(folder, monkeypatch):
    (folder / "params" / "tasks").mkdir(parents=True)
    (folder / "topics.yaml").rename(folder / "params" / "tasks" / "topics.yaml")
    monkeypatch.setattr("mtbert.data.tasks.CHECKOUT", folder)
    assert type(TASKS)()["topics"].class_names == ("sport", "weather", "science")


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("[headline]", "[label]", "sentence_columns: label has a meaning in mtbert"),
        ("[sport, weather, science]", "3", "class_names: 3 is not a list of the labels in the files"),
        ("kind: classes", "kind: classes\nlabel_range: [1, 3]", r"label_range: is \(1.0, 3.0\); classes are 0 to 2"),
        ("kind: classes", "kind: classes\nnum_classes: 2", "num_classes: is 2, and there are 3 class_names"),
        (
            "kind: classes\nclass_names: [sport, weather, science]",
            "kind: regression\nlabel_range: [5, 0]",
            r"label_range: \(5.0, 0.0\) is empty",
        ),
        ("kind: classes", "kind: grades", "kind: 'grades' is not one of classes, binary"),
        ("kind: classes", "kind: similarity", "class_names: labels of kind 'similarity' are numbers"),
        (
            "kind: classes",
            "kind: classes\nmetric: r2",
            "metric: is 'r2'; kind 'classes' has accuracy, macro_f1; for one of your own",
        ),
        (
            "kind: classes\nclass_names: [sport, weather, science]",
            "kind: similarity",
            "kind: similarity is that of a pair",
        ),
        ("kind: classes", "kind: binary", "class_names: 3 are given; kind 'binary' has two"),
        ("class_names: [sport, weather, science]\n", "", "class_names: is missing; kind 'classes' needs the list"),
        ("[sport, weather, science]", "[no, yes]", "class_names: .* but as true or false; write it in quotes$"),
        ("[sport, weather, science]", "[1, 2]", "class_names: .* but as a number; write it in quotes$"),
        ("label_column: topic", "label_column: 2026-01-01", "label_column: .* but as a date; write it in quotes$"),
        ("topics-{split}.csv", "topics.csv", "files: is 'topics.csv', dev_share None; either"),
        ("[headline]", "[a, b, c]", r"sentence_columns: \['a', 'b', 'c'\] is not a list of one"),
        ("label_column", "label_colum", "label_colum: there is no such field; did you mean label_column"),
        ("name: topics", "name: sst", "there is a task 'sst' already"),
        ("name: topics", "name: my topics", "name: 'my topics' is not a name of at most 64 lower-case"),
        *(
            ("name: topics", f"name: {name}", f"name: '{name}' means something else")
            for name in ("overall", "type", "get")
        ),
        ("name: topics", f"name: {'a' * 250}", "name: 'aaa.* is not a name of at most 64"),
        (
            "kind: classes\nclass_names: [sport, weather, science]",
            "kind: regression\nlabel_range: [-1.0e308, 1.0e308]",
            "label_range: .* is empty or endless",
        ),
        ("[sport, weather, science]", "[sport, ' weather']", "class_names: ' weather' begins or ends with a space"),
        ("[headline]", "[p_sport]", "sentence_columns: p_sport is the column of a class's probability"),
        ("[headline]", "[topic]", "columns: topic is given twice"),
        ("id_column: null", "id_column: topic", "columns: topic is given twice"),
        ("label_column: topic", "label_column: id", "columns: the label's is named id"),
        ("id_column: null", "id_column: label", "columns: the label's is named id, or the id's label"),
        ("topics-{split}.csv", '"a\\0{split}"', "files: .* is not a path"),
        ("topics-{split}.csv", '"{split}\\0"', "files: .* is not a path"),
        ("id_column: null", 'test_split: "\\0"', "test_split: .* is not the name of the test split"),
        ("class_names: [sport, weather, science]", "num_classes: 1000000000000", "num_classes: 1000000000000 is not a"),
        ("[sport, weather, science]", "[sport, weather, sport]", "class_names: sport is given twice"),
        ("[sport,", r'["\e[31msport",', r"class_names: '\\x1b\[31msport' has a control character"),
        ("label_column: topic\n", "", "label_column: is missing; it is the name of a column"),
        ("id_column: null", "dev_share: 0.1", "files: is 'topics-{split}.csv', dev_share 0.1; either"),
        ("id_column: null", "dev_share: 10", "dev_share: 10 is not a number between 0 and 1"),
        (TOPICS, "a line", "not a YAML mapping"),
    ],
)
def test_what_is_wrong_is_named(folder, old, new, message):
    (folder / "topics.yaml").write_text(TOPICS.replace(old, new))
    with pytest.raises(DataError, match=f"topics.yaml: .*{message}"):
        read_tasks(folder)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_not_waited_for(folder, monkeypatch, make):
    monkeypatch.setitem(TASKS, "topics", read_tasks(folder)["topics"])
    (folder / "topics-dev.csv").unlink()
    make(folder / "topics-dev.csv")
    with pytest.raises(DataError, match=r"topics-dev\.csv: not a regular file"):
        load_table("topics", "dev", folder)


def test_a_fault_of_a_users_file_does_not_send_to_the_courses_data(folder, monkeypatch, course_folder):
    monkeypatch.setitem(TASKS, "topics", read_tasks(folder)["topics"])
    (folder / "topics-dev.csv").unlink()
    with pytest.raises(DataError, match=r"topics-dev.csv: No such file or directory\.$"):
        load_table("topics", "dev", course_folder)
    with pytest.raises(
        DataError, match=r"ids-sst-dev.csv: No such file or directory\. Get the files with `mtbert data fetch"
    ):
        load_table("sst", "dev", folder)


def test_a_number_as_label_and_the_metric_that_selects_models():
    fields = dict(files="{split}", sentence_columns=("text",), label_column="age", kind="regression")
    task = Task(name="age", label_range=(10, 90), **fields)
    assert (task.metric, task.num_classes, task.is_number) == ("pearson", None, True)
    assert list(metrics_of(task)) == ["pearson", "r2"]
    assert list(metrics_of(task.model_copy(update={"metric": "r2"}))) == ["r2", "pearson"]
    logits = torch.tensor([0.5, 2.0])
    assert predict(task, logits)[0].tolist() == [50, 90], "the range is its scale, and cuts"
    assert task_loss(task, logits, torch.tensor([10.0, 90.0])).item() == pytest.approx((0.25 + 1) / 2)
    classes = Task(name="a", metric="macro_f1", **fields | {"kind": "classes", "num_classes": 3})
    assert list(metrics_of(classes)) == ["macro_f1", "accuracy"]


def test_tasks_are_joined_as_dicts_are(folder):
    [task] = read_tasks(folder).values()
    joined = TASKS | {"mine": task}
    assert joined["mine"] is task and joined["sst"] is TASKS["sst"] and "mine" not in TASKS
