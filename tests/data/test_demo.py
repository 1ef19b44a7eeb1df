"""The demo corpus: the course's layout, the rows of its generator, and too hard for counts of words.

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
from mtbert.data.tokens import load_tokenizer
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


@pytest.mark.parametrize(
    ("name", "header", "first_row"),
    [
        ("ids-sst-train.csv", "\tid\tsentence\tsentiment", r"0\t[0-9a-f]{25}\t[^\t]+\t[0-4]"),
        ("ids-cfimdb-dev.csv", "\tid\tsentence\tsentiment", r"0\t[0-9a-f]{25}\t[^\t]+\t[01]"),
        ("ids-sst-test-student.csv", "0\t\tid\tsentence", r"1\t0\.0\t[0-9a-f]{25}\t[^\t]+"),
        ("ids-cfimdb-test-student.csv", "0\t\tid\tsentence", r"1\t0\.0\t[0-9a-f]{25}\t[^\t]+"),
        ("quora-train.csv", "\tid\tsentence1\tsentence2\tis_duplicate", r"0\t\w{25}\t[^\t]+\t[^\t]+\t[01]\.0"),
        ("sts-dev.csv", "\tid\tsentence1\tsentence2\tsimilarity", r"0\t\w{25}\t[^\t]+\t[^\t]+\t[0-5]\.[02468]"),
        ("sts-test-student.csv", "\tid\tsentence1\tsentence2", r"0\t\w{25}\t[^\t]+\t[^\t]+"),
    ],
)
def test_the_layout_is_the_course_s(name, header, first_row):
    lines = (demo.root() / name).read_text(encoding="utf-8").split("\n")
    assert lines[0] == header
    assert re.fullmatch(first_row, lines[1])
    assert lines[-1] == ""


def test_quotes_are_written_as_pandas_writes_them(tmp_path):
    path = demo.root() / "ids-cfimdb-train.csv"
    assert '""' in path.read_text(encoding="utf-8")
    pd.read_csv(path, sep="\t", index_col=0).to_csv(tmp_path / "again.csv", sep="\t", index_label="")
    assert (tmp_path / "again.csv").read_bytes() == path.read_bytes()


def test_sizes_and_ids(tables):
    for (task, split), table in tables.items():
        assert len(table) >= (600 if split == "train" else 200), (task, split)
    ids = pd.concat([table["id"] for table in tables.values()])
    assert ids.is_unique


def test_no_text_of_a_split_occurs_in_another(tables):
    for task in TASKS:
        keys = [tuple(sorted(row)) for split in SPLITS for row in texts(tables[task, split]).to_numpy()]
        assert len(set(keys)) == len(keys)


def test_dev_has_words_of_judgement_that_train_never_shows(tables):
    def vocabulary(split):
        return set(re.findall(r"\w+", " ".join(tables["sst", split]["sentence"]).lower()))

    unseen = vocabulary("dev") - vocabulary("train")
    assert {"abysmal", "sublime", "dreary", "delightful", "scarcely"} <= unseen


def test_sentences_are_written_as_sentences(tables):
    for table in tables.values():
        for sentence in texts(table).to_numpy().ravel():
            assert re.fullmatch(r"[A-Z].*[.?]", sentence), sentence
            assert not re.search(r"  |[{}|/]|\ba [aeiou]|\ban [^aeiou]", sentence), sentence


def test_labels_are_balanced(tables):
    shares = {task: tables[task, "train"]["label"].value_counts(normalize=True) for task in ("sst", "cfimdb", "quora")}
    assert shares["sst"].between(0.15, 0.25).all() and len(shares["sst"]) == 5
    assert shares["cfimdb"].between(0.45, 0.55).all()
    assert 0.36 <= shares["quora"][1] <= 0.41
    similarity = tables["sts", "train"]["label"]
    assert similarity.min() == 0 and similarity.max() == 5
    assert similarity.nunique() >= 15
    assert similarity.std() > 1.2


def test_reviews_have_the_length_of_cfimdb(tables):
    reviews = pd.concat([tables["cfimdb", split]["sentence"] for split in SPLITS])
    words = reviews.str.split().str.len()
    assert 150 <= words.mean() <= 230
    assert words.max() <= 420
    tokenizer = load_tokenizer("minilm")
    assert max(len(encoding.ids) for encoding in tokenizer.encode_batch(list(reviews))) <= 512


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


def test_a_fine_tuned_encoder_does_clearly_better(tables):
    config = RunConfig(tasks=("sst",), plan="F4 S2", epochs=3, batch_size=16, learning_rate=4e-4)  # F4: run once
    corpus = Corpus({"sst": tables["sst", "train"][:600]}, {"sst": tables["sst", "dev"]})
    run = train(config, corpus, device="cpu", progress=False)
    assert run.curve["dev_score"].max() > bag_of_words_score(tables, "sst") + 0.15
