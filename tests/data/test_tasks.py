"""Tasks of users: read from YAML files, checked, and trained beside the course's without a change of the package."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mtbert.data.tables import load_table
from mtbert.data.tasks import COURSE, TASKS, DataError, Task, read_tasks

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
    assert str(report.rejects[0]) == "topics-dev.csv:2 topic: 'sports' is none of sport, weather, science"


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("kind: classes", "kind: grades", "kind: Input should be 'classes', 'binary' or 'similarity'"),
        ("kind: classes", "kind: similarity", "num_classes: is 3, and kind is 'similarity'"),
        ("kind: classes", "kind: binary", "num_classes: is 3, with kind 'binary'"),
        ("topics-{split}.csv", "topics.csv", "files: String should match pattern"),
        ("[headline]", "[a, b, c]", "sentence_columns: Tuple should have at most 2 items"),
        ("label_column", "label_colum", "label_colum: Extra inputs are not permitted"),
        ("name: topics", "name: sst", "there is a task 'sst' already"),
        ("name: topics", "name: my topics", "name: String should match pattern"),
        (TOPICS, "a line", "not a YAML mapping"),
    ],
)
def test_what_is_wrong_is_named(folder, old, new, message):
    (folder / "topics.yaml").write_text(TOPICS.replace(old, new))
    with pytest.raises(DataError, match=f"topics.yaml: .*{message}"):
        read_tasks(folder)


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
    command = [sys.executable, "-m", "mtbert", "predict", path.parent.name, "--data", course_folder, "--out", folder]
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert len((folder / "topics-test-output.csv").read_text().splitlines()) == 25
