"""Baselines without training, and their threshold."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtbert.config import RunConfig
from mtbert.data import TASKS
from mtbert.data.tables import load_table
from mtbert_lab.store.baselines import _cosines, baseline_table, best_threshold


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 1)), min_size=1, max_size=12))
def test_no_threshold_is_better(pairs):
    """Also with equal scores, which no threshold separates."""
    scores, labels = np.array(pairs).T
    right = (scores > best_threshold(scores, labels)) == labels
    others = [((scores > t) == labels).mean() for t in (-1.0, *scores)]
    assert right.mean() == max(others)


def test_baselines_of_the_tiny_data(tiny_encoder, course_data):
    config = RunConfig(corpus="course", encoder=tiny_encoder, tasks=("sst", "quora", "sts"))
    table = baseline_table(config)
    assert list(table.columns[:4]) == ["baseline", "task", "split", "metric"] and table.index.is_unique
    table = table.set_index(["task", "baseline", "metric"])["value"]
    train, dev = (load_table("sst", split, course_data)[0]["label"] for split in ("train", "dev"))
    assert table["sst", "most frequent", "accuracy"] == (dev == train.mode()[0]).mean()
    assert table["sts", "most frequent", "pearson"] == 0, "a constant knows nothing of the labels"
    assert -1 <= table["sts", "cosine", "pearson"] <= 1
    assert 0 <= table["quora", "cosine", "accuracy"] <= 1
    assert ("sst", "cosine", "accuracy") not in table.index


def test_a_cosine_is_no_class(tiny_encoder, course_data, monkeypatch):
    monkeypatch.setitem(TASKS, "quora", TASKS["quora"].model_copy(update={"kind": "classes"}))
    config = RunConfig(corpus="course", encoder=tiny_encoder, tasks=("quora",))
    assert set(baseline_table(config)["baseline"]) == {"most frequent"}


def test_a_pair_that_is_one_sentence_twice_has_cosine_one(tiny_encoder, course_data):
    config = RunConfig(corpus="course", encoder=tiny_encoder, tasks=("sts",))
    table = load_table("sts", "dev", course_data)[0]
    cosines = _cosines(config, "sts", table.assign(sentence2=table["sentence1"]), "cpu")
    assert cosines == pytest.approx(np.ones(len(table)), abs=1e-5)
