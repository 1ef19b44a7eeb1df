"""Predictions as files."""

import pandas as pd
import pytest

from mtbert.data import TASKS
from mtbert_lab.leaderboard import write_predictions


@pytest.mark.parametrize("task", ["sst", "cfimdb", "quora", "sts"])
def test_leaderboard_file(tmp_path, task):
    value = 2.34567 if task == "sts" else 1
    table = pd.DataFrame({"id": ["c", "a", "b"], "label": 0, "predicted": [value, value, value], "confidence": 0.5})
    path = write_predictions(table, task, "dev", tmp_path / "out")
    assert path == tmp_path / "out" / f"{task}-dev-output.csv"
    written = "2.3457" if task == "sts" else "1"
    assert path.read_text() == f"id,predicted\nc,{written}\na,{written}\nb,{written}\n"


@pytest.mark.parametrize(
    "label_range, value, written",
    [((0, 1e-3), 2.95e-4, "0.0002950"), ((0, 5), 2.34567, "2.3457"), ((0, 1e6), 70000.0, "70000.0000")],
)
def test_a_number_is_written_with_the_digits_of_its_range(tmp_path, monkeypatch, label_range, value, written):
    monkeypatch.setitem(TASKS, "sts", TASKS["sts"].model_copy(update={"label_range": label_range}))
    path = write_predictions(pd.DataFrame({"id": ["a"], "predicted": [value]}), "sts", "dev", tmp_path)
    assert path.read_text() == f"id,predicted\na,{written}\n"
