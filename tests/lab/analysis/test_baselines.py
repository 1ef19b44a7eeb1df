"""Baselines without training, and their threshold."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mtbert.bert import BertModel
from mtbert.config import RunConfig
from mtbert.data import TASKS
from mtbert.data.tables import load_table
from mtbert.data.tokens import load_tokenizer
from mtbert_lab.analysis.baselines import baseline_table, best_threshold


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 1)), min_size=1, max_size=12))
def test_no_threshold_is_better(pairs):
    """Also with equal scores, which no threshold separates."""
    scores, labels = np.array(pairs).T
    right = (scores > best_threshold(scores, labels)) == labels
    others = [((scores > t) == labels).mean() for t in (-1.0, *scores)]
    assert right.mean() == max(others)


def cosines_one_by_one(encoder: str, table: pd.DataFrame) -> np.ndarray:
    """Of the pairs' mean states; each sentence is read alone, without padding."""
    model, tokenizer = BertModel.from_pretrained(encoder).eval(), load_tokenizer(encoder)

    def embedding(text: str) -> np.ndarray:
        with torch.no_grad():
            return model(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0].mean(0).numpy()

    first, second = (np.stack([embedding(text) for text in table[name]]) for name in ("sentence1", "sentence2"))
    return (first * second).sum(1) / (np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1))


def test_baselines_of_the_tiny_data(tiny_encoder, course_data):
    config = RunConfig(corpus="course", encoder=tiny_encoder, tasks=("sst", "quora", "sts"))
    table = baseline_table(config)
    assert list(table.columns[:4]) == ["baseline", "task", "split", "metric"] and table.index.is_unique
    table = table.set_index(["task", "baseline", "metric"])["value"]
    train, dev = (load_table("sst", split, course_data)[0]["label"] for split in ("train", "dev"))
    assert table["sst", "most frequent", "accuracy"] == (dev == train.mode()[0]).mean()
    assert table["sts", "most frequent", "pearson"] == 0, "a constant knows nothing of the labels"
    assert ("sst", "cosine", "accuracy") not in table.index
    dev = load_table("sts", "dev", course_data)[0]
    expected = np.corrcoef(cosines_one_by_one(tiny_encoder, dev), dev["label"])[0, 1]
    assert table["sts", "cosine", "pearson"] == pytest.approx(expected, abs=1e-5)
    train, dev = (load_table("quora", split, course_data)[0] for split in ("train", "dev"))
    threshold = best_threshold(cosines_one_by_one(tiny_encoder, train), train["label"].to_numpy())
    right = (cosines_one_by_one(tiny_encoder, dev) > threshold) == dev["label"]
    assert table["quora", "cosine", "accuracy"] == right.mean()


def test_a_cosine_is_no_class(tiny_encoder, course_data, monkeypatch):
    monkeypatch.setitem(TASKS, "quora", TASKS["quora"].model_copy(update={"kind": "classes"}))
    config = RunConfig(corpus="course", encoder=tiny_encoder, tasks=("quora",))
    assert set(baseline_table(config)["baseline"]) == {"most frequent"}
