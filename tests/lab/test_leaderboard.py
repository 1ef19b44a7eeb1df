"""Predictions as files."""

import pandas as pd
import pytest

from mtbert.data import TASKS
from mtbert_lab.leaderboard import write_predictions


def test_leaderboard_file(tmp_path):
    table = pd.DataFrame({"id": ["c", "a", "b"], "label": 0, "predicted": [1, 0, 1], "confidence": 0.5})
    path = write_predictions(table, "sst", "dev", tmp_path / "out")
    assert path == tmp_path / "out" / "sst-dev-output.csv"
    assert path.read_text() == "id,predicted\nc,1\na,0\nb,1\n"


@pytest.mark.parametrize(
    "label_range, value, written",
    [((0, 1e-3), 2.95e-4, "0.0002950"), ((0, 5), 2.34567, "2.3457"), ((0, 1e6), 70000.0, "70000.0000")],
)
def test_a_number_is_written_with_the_digits_of_its_range(tmp_path, monkeypatch, label_range, value, written):
    monkeypatch.setitem(TASKS, "sts", TASKS["sts"].model_copy(update={"label_range": label_range}))
    path = write_predictions(pd.DataFrame({"id": ["a"], "predicted": [value]}), "sts", "dev", tmp_path)
    assert path.read_text() == f"id,predicted\na,{written}\n"
