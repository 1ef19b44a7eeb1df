"""The demo corpus: the rows of its generator, and too hard for counts of words.

The last tests compare the counts with a fine-tuned encoder.
"""

import re
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from mtbert.config import RunConfig
from mtbert.data import demo
from mtbert.data.tables import SPLITS, load_table
from mtbert.data.tasks import TASKS
from mtbert.training.loop import Corpus, train
from tools.make_demo_corpus.__main__ import write


@pytest.fixture(scope="module")
def tables():
    """Every table by task and split, loaded without a reject."""
    loaded = {(task, split): load_table(task, split, demo.root()) for task in TASKS for split in SPLITS}
    assert not any(report.rejects for _, report in loaded.values())
    return {key: table for key, (table, _) in loaded.items()}


def texts(table: pd.DataFrame) -> pd.DataFrame:
    return table[[name for name in table if name.startswith("sentence")]]


def test_the_generator_makes_the_committed_files(tmp_path):
    write(tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(made) == 12
    assert made == {path.name: path.read_bytes() for path in demo.root().glob("*.csv")}


def test_ids_of_runs_rest_on_these_rows():
    assert Corpus.load(demo.root(), sorted(TASKS), sorted(TASKS)).fingerprint == "d824c6636cdc"


# A bag of words: ridge regression on counts, classes as one-hot vectors; for pairs also |a - b|, a * b and the overlap.


def counts(column: pd.Series, vocabulary: dict[str, int]) -> np.ndarray:
    matrix = np.zeros((len(column), len(vocabulary)))
    for row, text in zip(matrix, column, strict=True):
        for word, count in Counter(re.findall(r"\w+", text.lower())).items():
            if word in vocabulary:
                row[vocabulary[word]] = count
    return matrix


def features(table: pd.DataFrame, vocabulary: dict[str, int]) -> np.ndarray:
    first, *second = (counts(column, vocabulary) for _, column in texts(table).items())
    if not second:
        return first
    (second,) = second
    common = np.minimum(first, second).sum(1)
    sizes = first.sum(1), second.sum(1)
    overlap = np.stack([common / np.minimum(*sizes), common / (sum(sizes) - common), abs(sizes[0] - sizes[1])], 1)
    return np.hstack([first, second, abs(first - second), first * second, overlap])


def bag_of_words_score(tables: dict, task: str) -> float:
    """Accuracy or Pearson on dev, with the penalty that is best on dev, an advantage of the bag of words."""
    train, dev = tables[task, "train"], tables[task, "dev"]
    words = sorted({word for text in texts(train).to_numpy().ravel() for word in re.findall(r"\w+", text.lower())})
    vocabulary = {word: i for i, word in enumerate(words)}
    x, x_dev = features(train, vocabulary), features(dev, vocabulary)
    mean, scale = x.mean(0), x.std(0) + 1e-6
    x, x_dev = (x - mean) / scale, np.clip((x_dev - mean) / scale, -5, 5)
    y = train["label"].to_numpy()
    targets = y[:, None] if task == "sts" else np.eye(y.max() + 1)[y]
    values, vectors = np.linalg.eigh(x @ x.T)  # the dual problem: fewer examples than features
    scores = []
    for penalty in np.logspace(0, 5, 11):
        solution = vectors @ ((vectors.T @ (targets - targets.mean(0))) / (values + penalty)[:, None])
        outputs = x_dev @ (x.T @ solution) + targets.mean(0)
        if task == "sts":
            scores.append(np.corrcoef(outputs[:, 0], dev["label"])[0, 1])
        else:
            scores.append((outputs.argmax(1) == dev["label"]).mean())
    return max(scores)


@pytest.mark.parametrize(("task", "limit"), [("sst", 0.55), ("cfimdb", 0.7), ("quora", 0.7), ("sts", 0.7)])
def test_a_bag_of_words_is_not_enough(tables, task, limit):
    assert bag_of_words_score(tables, task) < limit


@pytest.mark.slow
def test_a_fine_tuned_encoder_does_clearly_better(tables):
    config = RunConfig(tasks=("sst",), plan="F4 S2", epochs=3, batch_size=16, learning_rate=4e-4)  # F4: run once
    corpus = Corpus({"sst": tables["sst", "train"][:600]}, {"sst": tables["sst", "dev"]})
    run = train(config, corpus, device="cpu", progress=False)
    assert run.curve["dev_score"].max() > bag_of_words_score(tables, "sst") + 0.15
