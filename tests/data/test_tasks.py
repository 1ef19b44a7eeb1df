"""Tasks of users: read from YAML files, checked, and trained beside the course's without a change of the package."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mtbert.config import RunConfig
from mtbert.data.corpus import Corpus
from mtbert.data.tables import load_table
from mtbert.data.tasks import COURSE, TASKS, DataError, Task, read_tasks
from mtbert.multitask.losses import predict, task_loss
from mtbert.results.runs import data_root
from mtbert.training.metrics import metrics_of
from mtbert.training.task_data import load_corpus

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


def test_a_task_is_read(folder, monkeypatch):
    [task] = read_tasks(folder).values()
    assert (task.num_classes, task.label_range, task.is_pair) == (3, (0, 2), False)
    monkeypatch.setitem(TASKS, "topics", task)
    table, report = load_table("topics", "dev", "elsewhere")
    assert not report.rejects and list(table.columns) == ["id", "headline", "label"]
    assert table["label"].tolist() == [0, 1, 2] * 8 and table["id"].iloc[0] == "dev-2"
    (folder / "topics-dev.csv").write_text("headline,topic\nfine,sports\nrain,weather\n")
    _, report = load_table("topics", "dev", "elsewhere")
    assert str(report.rejects[0]) == (
        "topics-dev.csv:2 topic: 'sports' is none of sport, weather, science; did you mean 'sport'?"
    )


def test_a_quoted_text_may_have_line_breaks(folder, monkeypatch):
    monkeypatch.setitem(TASKS, "topics", read_tasks(folder)["topics"])
    rows = 'one,sport\r\n"two\r\nlines, and ""quotes""\r\n\r\n",weather\r\n"never closed,sport\r\nthree,science\r\n'
    (folder / "topics-dev.csv").write_text(f"headline,topic\r\n{rows}", newline="")
    table, report = load_table("topics", "dev", "elsewhere")
    assert table["headline"].tolist() == ["one", 'two\nlines, and "quotes"', "three"]
    assert table["id"].tolist() == ["dev-2", "dev-3", "dev-8"] and report.rows == 4
    assert [(reject.line, reject.field) for reject in report.rejects] == [(7, "row")]


def test_a_line_behind_an_unbalanced_quote_is_no_half_record(folder, monkeypatch):
    monkeypatch.setitem(TASKS, "topics", read_tasks(folder)["topics"])
    rows = 'headline,topic\n"they "won"\nthe race",sport\na 5" nail,science\nfour,weather\na 5" nail,science\n'
    (folder / "topics-dev.csv").write_text(rows)
    table, report = load_table("topics", "dev", "elsewhere")
    assert [reject.line for reject in report.rejects] == [2, 3, 4]
    assert table["headline"].tolist() == ["four", 'a 5" nail']


def test_json_lines_are_read(folder, monkeypatch):
    monkeypatch.setitem(TASKS, "topics", read_tasks(folder)["topics"])
    rows = [{"headline": "one,\ntwo", "topic": "sport", "more": [1]}, {"topic": "weather", "headline": "rain"}]
    lines = [*map(json.dumps, rows), '{"headline": null, "topic": "sport"}', '{"topic": "sport"}', "[1]", "{"]
    (folder / "topics-dev.csv").write_text("\n".join(lines))
    table, report = load_table("topics", "dev", "elsewhere")
    assert table["headline"].tolist() == ["one,\ntwo", "rain"] and table["label"].tolist() == [0, 1]
    assert [(reject.line, reject.field) for reject in report.rejects] == [
        (3, "headline"), (4, "headline"), (5, "row"), (6, "row"),
    ]  # fmt: skip
    (folder / "topics-dev.csv").write_text('{"text": "one", "topic": "sport"}\n')
    with pytest.raises(DataError, match=r"topics-dev.csv lacks the column headline; it has 'text', 'topic'"):
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
    assert not {*train["headline"]} & {*dev["headline"]} and 150 < len(dev) < 250
    assert (report.rows + of_dev.rows, len(report.rejects), len(of_dev.rejects)) == (1001, 1, 0)
    assert dev.equals(load_table("topics", "dev", folder)[0])
    with pytest.raises(DataError, match="topics has no test split"):
        load_table("topics", "test", folder)


def test_rejects_are_grouped_with_the_nearest_label(folder, monkeypatch):
    text = (folder / "topics-train.csv").read_text()
    (folder / "topics-train.csv").write_text(text.replace(",sport", ",Sport").replace(",science", ",science "))
    monkeypatch.setitem(TASKS, "topics", read_tasks(folder)["topics"])
    message = (
        r"topics-train.csv: 8 of 24 rows are rejected; no row is left of class sport\n  topic: 'Sport' is none of "
        r"sport, weather, science; did you mean 'sport'\? \(8 rows, the first in line 2\)\n.*--accept-rejects"
    )
    with pytest.raises(DataError, match=message):
        Corpus.load(folder, ["topics"], ["topics"]).check()


def test_a_class_may_be_named_none(folder, monkeypatch):
    (folder / "topics.yaml").write_text(TOPICS.replace("weather", "None"))
    monkeypatch.setitem(TASKS, "topics", read_tasks(folder)["topics"])
    (folder / "topics-dev.csv").write_text("headline,topic\nfine,sport\nrain,None\nNone,sport\nsun,NA\n")
    table, report = load_table("topics", "dev", "elsewhere")
    assert table["label"].tolist() == [0, 1]
    assert [str(reject).split(" ", 1)[1] for reject in report.rejects] == [
        "headline: missing or empty",
        "topic: missing or empty",
    ]


def test_a_folder_of_tasks_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MTBERT_TASKS", str(tmp_path / "none"))
    with pytest.raises(DataError, match="MTBERT_TASKS: there is no folder"):
        read_tasks(tmp_path / "none")


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("[headline]", "[label]", "sentence_columns: label has a meaning in mtbert"),
        ("[sport, weather, science]", "3", "class_names: 3 is not a list of the labels in the files"),
        ("kind: classes", "kind: classes\nlabel_range: [1, 3]", r"label_range: is \(1.0, 3.0\); classes are 0 to 2"),
        ("kind: classes", "kind: grades", "kind: 'grades' is not one of classes, binary"),
        ("kind: classes", "kind: similarity", "num_classes: is 3, and kind is 'similarity'"),
        ("kind: classes", "kind: classes\nmetric: r2", "metric: is 'r2'; kind 'classes' has accuracy, macro_f1"),
        (
            "kind: classes\nclass_names: [sport, weather, science]",
            "kind: similarity",
            "kind: similarity is that of a pair",
        ),
        ("kind: classes", "kind: binary", "num_classes: is 3, with kind 'binary'"),
        ("topics-{split}.csv", "topics.csv", "files: is 'topics.csv', dev_share None; either"),
        ("[headline]", "[a, b, c]", r"sentence_columns: \['a', 'b', 'c'\] is not a list of one"),
        ("label_column", "label_colum", "label_colum: there is no such field; did you mean label_column"),
        ("name: topics", "name: sst", "there is a task 'sst' already"),
        ("name: topics", "name: my topics", "name: 'my topics' is not a name of at most 64 lower-case"),
        *(
            ("name: topics", f"name: {name}", f"name: '{name}' means something else")
            for name in ("overall", "type", "training")
        ),
        ("name: topics", f"name: {'a' * 250}", "name: 'aaa.* is not a name of at most 64"),
        *(
            ("[headline]", f"[{name}]", f"sentence_columns: {name} has a meaning")
            for name in ("id", "predicted", "confidence")
        ),
        ("[headline]", "[headline, headline]", "columns: headline is given twice"),
        ("[headline]", "[topic]", "columns: topic is given twice"),
        ("id_column: null", "id_column: topic", "columns: topic is given twice"),
        ("id_column: null", "id_column: headline", "columns: headline is given twice"),
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


@pytest.mark.parametrize("name", ["topics.yaml", "topics-dev.csv"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_not_waited_for(folder, monkeypatch, name, make):
    monkeypatch.setitem(TASKS, "topics", read_tasks(folder)["topics"])
    (folder / name).unlink()
    make(folder / name)
    with pytest.raises(DataError, match=f"{name}: not a regular file"):
        _ = read_tasks(folder), load_table("topics", "dev", folder)


def test_a_fault_of_a_users_file_does_not_send_to_the_courses_data(folder, monkeypatch, course_folder):
    monkeypatch.setitem(TASKS, "topics", read_tasks(folder)["topics"])
    (folder / "topics-dev.csv").unlink()
    with pytest.raises(DataError, match=r"topics-dev.csv: No such file or directory\.$"):
        load_table("topics", "dev", course_folder)
    with pytest.raises(
        DataError, match=r"ids-sst-dev.csv: No such file or directory\. Get the files with `mtbert data"
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


def test_tasks_with_files_of_their_own_need_no_folder_of_datasets(folder, monkeypatch):
    monkeypatch.setitem(TASKS, "topics", read_tasks(folder)["topics"])
    monkeypatch.setattr("mtbert.results.runs.find_data", lambda path=None: None)
    config = RunConfig(corpus="course").model_copy(update={"tasks": ("topics",)})
    assert len(load_corpus(config, data_root(config)).train["topics"]) == 24
    with pytest.raises(DataError, match="its files are not here"):
        data_root(config.model_copy(update={"tasks": ("topics", "sst")}))


def test_the_courses_tasks():
    assert {name: task.num_classes for name, task in COURSE.items()} == {"sst": 5, "cfimdb": 2, "quora": 2, "sts": None}
    assert COURSE["sts"].label_range == Task(**COURSE["sts"].model_dump()).label_range == (0, 5)


def test_a_task_trains_beside_one_of_the_course(folder, course_folder, tiny_encoder, isolated):
    """In a process of its own: nothing but the YAML file and the data are added."""
    grid = isolated / "grid.yaml"
    grid.write_text(
        f"base: {{corpus: course, encoder: {tiny_encoder}, tasks: [sst, topics], plan: S1 I1, epochs: 1}}\n"
        "runs: {unified: {scheme: unified, gradients: pcgrad}}\n"
    )
    command = [sys.executable, "-m", "mtbert", "train", grid, "--in-order", "--data", course_folder]
    environment = {**os.environ, "MTBERT_TASKS": str(folder), "OMP_NUM_THREADS": "1"}
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    [path] = (isolated / "results").rglob("run.json")
    scores = {(s["task"], s["metric"]): s["n"] for s in json.loads(path.read_text())["scores"]}
    assert scores[("topics", "accuracy")] == 24 and scores[("sst", "accuracy")] == 20
    (folder / "topics-test.csv").unlink()  # users need not have one
    command = [sys.executable, "-m", "mtbert", "predict", path.parent.name, "--data", course_folder, "--out", folder]
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    _, *rows = (folder / "topics-dev-output.csv").read_text().splitlines()
    assert len(rows) == 24 and {row.split(",")[1] for row in rows} <= set(HEADLINES), "words, as in the file"
    assert not (folder / "topics-test-output.csv").exists() and (folder / "sst-test-output.csv").exists()


def test_a_bad_file_is_an_error_of_the_call_that_needs_it(tmp_path):
    """Importing the library reads no file of a user's; the command line says which one is wrong."""
    (tmp_path / "bad.yaml").write_text("name: 3\n")
    environment = {**os.environ, "MTBERT_TASKS": str(tmp_path)}

    def python(*arguments):
        return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)

    imported = python("-c", "import mtbert.training, mtbert.results, mtbert.cli")
    assert imported.returncode == 0, imported.stderr
    asked = python("-m", "mtbert", "train", "params/cpu/hybrids.yaml", "--dry-run")
    assert asked.returncode == 1 and len(asked.stderr.splitlines()) == 1
    assert asked.stderr.startswith(f"error: {tmp_path / 'bad.yaml'}: name: 3 is not a name")
