"""Tasks of users at the command line: trained beside the course's without a change of the package."""

import json
import os
import subprocess
import sys

import pandas as pd

from mtbert.data.tasks import TASKS, read_tasks
from mtbert_lab.remarks import remarks_of


def test_what_a_table_says_little_of_is_remarked():
    assert remarks_of("sst", pd.DataFrame({"label": [1]})) == [
        "one row says nothing of a model",
        "no row is of class 0, 2, 3, 4; macro F1 is the mean over classes with a row or a prediction",
    ]


def test_a_task_trains_beside_one_of_the_course(
    mtbert, topics_folder, course_folder, tiny_encoder, isolated, monkeypatch
):
    """In processes of their own, to which nothing but the YAML file and the data are added."""
    grid = isolated / "grid.yaml"
    grid.write_text(
        f"base: {{corpus: course, encoder: {tiny_encoder}, tasks: [sst, topics], plan: S1 I1, epochs: 1}}\n"
        "runs: {unified: {scheme: unified, gradients: pcgrad}}\n"
    )
    command = [sys.executable, "-m", "mtbert_lab", "train", grid, "--in-order", "--data", course_folder]
    environment = {**os.environ, "MTBERT_TASKS": str(topics_folder), "OMP_NUM_THREADS": "1"}
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    [path] = (isolated / "results").rglob("run.json")
    scores = {(s["task"], s["metric"]): s["n"] for s in json.loads(path.read_text())["scores"]}
    assert scores[("topics", "accuracy")] == 24 and scores[("sst", "accuracy")] == 20
    monkeypatch.setitem(TASKS, "topics", read_tasks(topics_folder)["topics"])
    predicted = mtbert("predict", path.parent.name, "--data", course_folder, "--out", topics_folder)
    assert predicted.exit_code == 0, predicted.stderr
    _, *rows = (topics_folder / "topics-dev-output.csv").read_text().splitlines()
    assert len(rows) == 24 and {row.split(",")[1] for row in rows} <= {"sport", "weather"}, "words, as in the file"
    assert not (topics_folder / "topics-test-output.csv").exists() and (topics_folder / "sst-test-output.csv").exists()


def test_a_bad_file_is_an_error_of_the_call_that_needs_it(tmp_path):
    """Importing the library reads no file of a user's; the command line says which one is wrong."""
    (tmp_path / "bad.yaml").write_text("name: 3\n")
    environment = {**os.environ, "MTBERT_TASKS": str(tmp_path)}

    script = (
        "import sys, mtbert.training, mtbert_lab.store\nfrom mtbert_lab.cli import main\n"
        "print('imported', flush=True)\n"
        "sys.argv = ['mtbert', 'train', 'params/cpu/hybrids.yaml', '--dry-run']\nmain()"
    )
    asked = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert asked.stdout == "imported\n"
    assert asked.returncode == 1 and len(asked.stderr.splitlines()) == 1
    assert asked.stderr.startswith(f"error: {tmp_path / 'bad.yaml'}: name: 3 is not read as text")
