"""Metrics against counts, intervals, and the course's leaderboard files."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mtbert.data import TASKS
from mtbert.evaluate import (
    accuracy,
    f1,
    interval,
    macro_f1,
    metrics_of,
    pearson,
    score_table,
    seed_difference,
    seed_mean,
    verdict,
    write_leaderboard,
)

LABELLED = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40)


def counted_f1(predicted: list[int], labels: list[int], positive: int) -> float:
    both = list(zip(predicted, labels, strict=True))
    tp = sum(p == positive and y == positive for p, y in both)
    fp = sum(p == positive and y != positive for p, y in both)
    fn = sum(p != positive and y == positive for p, y in both)
    if tp == 0:
        return 0.0
    precision, recall = tp / (tp + fp), tp / (tp + fn)
    return 2 * precision * recall / (precision + recall)


@given(LABELLED)
def test_class_metrics_equal_counts(rows):
    predicted, labels = [p for p, _ in rows], [y for _, y in rows]
    p, y = np.array(predicted), np.array(labels)
    assert accuracy(p, y) == pytest.approx(sum(a == b for a, b in rows) / len(rows))
    by_class = [counted_f1(predicted, labels, c) for c in range(5)]
    assert f1(p, y) == pytest.approx(by_class[1])
    assert macro_f1(p, y, num_classes=5) == pytest.approx(sum(by_class) / 5)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=3, max_size=40))
def test_pearson_equals_scipy(rows):
    p, y = np.array(rows, dtype=float).T / 10
    if np.ptp(p) == 0 or np.ptp(y) == 0:
        assert np.isnan(pearson(p, y))
    else:
        assert pearson(p, y) == pytest.approx(stats.pearsonr(p, y).statistic, abs=1e-9)
    assert pearson(p.astype(np.float32), y) == pytest.approx(float(pearson(p, y)), abs=1e-4, nan_ok=True)


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 4.9])  # sums of 0.1 and 1/3 are not exact
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_constant_predictions_have_no_correlation(value, dtype):
    labels = np.linspace(0, 5, 37)
    constant = np.full(37, value, dtype=dtype)
    assert np.isnan(pearson(constant, labels)) and np.isnan(pearson(labels, constant))
    both = pearson(np.stack([constant.astype(float), labels]), np.stack([labels, labels]))
    assert np.isnan(both[0]) and both[1] == pytest.approx(1)


def test_metrics_work_along_an_axis():
    random = np.random.default_rng(0)
    p, y = random.integers(0, 2, (2, 7, 30))
    for metric in (*metrics_of(TASKS["quora"]).values(), pearson):
        expected = [float(metric(p[i], y[i])) for i in range(7)]
        assert metric(p, y, axis=-1).tolist() == pytest.approx(expected)
        assert metric(p.T, y.T, axis=0).tolist() == pytest.approx(expected)


def test_the_metrics_of_each_task_and_the_first_selects():
    names = {task: list(metrics_of(TASKS[task])) for task in TASKS}
    assert names == {
        "sst": ["accuracy", "macro_f1"],
        "cfimdb": ["accuracy", "macro_f1", "f1"],
        "quora": ["accuracy", "macro_f1", "f1"],
        "sts": ["pearson"],
    }
    labels = np.array([0, 1, 2, 3, 4])
    assert metrics_of(TASKS["sst"])["macro_f1"](labels, labels) == 1, "the mean is over all five classes"


def drawn(n: int, right: float) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(n)
    labels = random.integers(0, 2, n)
    return np.where(random.random(n) < right, labels, 1 - labels), labels


def test_an_interval_covers_the_value_narrows_and_repeats():
    widths = []
    for n in (50, 800):
        predicted, labels = drawn(n, right=0.8)
        low, high = interval(accuracy, predicted, labels)
        assert low < accuracy(predicted, labels) < high
        assert (low, high) == interval(accuracy, predicted, labels)
        normal = 1.96 * np.sqrt(0.8 * 0.2 / n)
        assert high - low == pytest.approx(2 * normal, rel=0.25)
        widths.append(high - low)
    assert widths[1] < widths[0] / 3


def test_an_interval_covers_the_truth_about_95_times_in_100():
    truth, covered = 0.7, 0
    for trial in range(100):
        random = np.random.default_rng(trial)
        labels = np.zeros(150, dtype=int)
        low, high = interval(accuracy, (random.random(150) > truth).astype(int), labels)
        covered += low <= truth <= high
    assert 88 <= covered <= 99


def test_examples_stay_with_their_labels():
    labels = np.arange(60) % 2
    assert interval(accuracy, labels, labels) == (1.0, 1.0)
    assert np.isnan(interval(accuracy, labels[:1], labels[:1])).all()


def test_score_table():
    predicted, labels = drawn(100, right=0.9)
    table = score_table("quora", "dev", predicted, labels)
    assert list(table.columns) == ["task", "split", "metric", "value", "low", "high", "n"]
    assert table["metric"].tolist() == ["accuracy", "macro_f1", "f1"]
    assert (table["low"] < table["value"]).all() and (table["value"] < table["high"]).all()
    assert set(table["n"]) == {100} and set(table["task"]) == {"quora"} and set(table["split"]) == {"dev"}
    assert table["value"][0] == accuracy(predicted, labels)


def test_the_mean_over_seeds_and_its_interval():
    predicted, labels = drawn(300, right=0.8)
    one = np.stack([predicted])
    mean, low, high = seed_mean(accuracy, one, labels)
    assert mean == accuracy(predicted, labels)
    assert (low, high) == pytest.approx(interval(accuracy, predicted, labels), abs=0.01)

    worse = np.where(np.arange(300) < 60, 1 - predicted, predicted)
    seeds = np.stack([predicted, predicted, worse])
    mean, low_seeds, high_seeds = seed_mean(accuracy, seeds, labels)
    assert mean == pytest.approx(np.mean([accuracy(row, labels) for row in seeds]))
    assert low_seeds < mean < high_seeds
    assert high_seeds - low_seeds > 1.2 * (high - low), "seeds that differ widen the interval"
    assert seed_mean(accuracy, seeds, labels) == (mean, low_seeds, high_seeds)


def test_the_difference_of_two_methods_on_the_same_examples():
    predicted, labels = drawn(300, right=0.7)
    better = np.where(np.arange(300) < 60, labels, predicted)
    difference, low, high = seed_difference(accuracy, np.stack([better]), np.stack([predicted]), labels)
    assert difference == pytest.approx(accuracy(better, labels) - accuracy(predicted, labels))
    assert 0 < low < difference < high
    paired = high - low
    _, low, high = seed_mean(accuracy, np.stack([predicted]), labels)
    assert paired < high - low, "the examples that both get right do not count"
    assert seed_difference(accuracy, np.stack([better]), np.stack([better]), labels) == (0, 0, 0)


@pytest.mark.parametrize("task, name", [("sst", "sst"), ("cfimdb", "cfimdb"), ("quora", "para"), ("sts", "sts")])
def test_leaderboard_file(tmp_path, task, name):
    value = 2.34567 if task == "sts" else 1
    table = pd.DataFrame({"id": ["c", "a", "b"], "label": 0, "predicted": [value, value, value], "confidence": 0.5})
    path = write_leaderboard(table, task, "dev", tmp_path / "out")
    assert path == tmp_path / "out" / f"{name}-dev-output.csv"
    written = "2.3457" if task == "sts" else "1"
    assert path.read_text() == f"id,predicted\nc,{written}\na,{written}\nb,{written}\n"


@pytest.mark.parametrize(
    "low, high, said", [(0.001, 0.02, "better"), (-0.02, -0.001, "worse"), (-0.01, 0.01, "not told")]
)
def test_verdict_of_an_interval(low, high, said):
    assert verdict(low, high).startswith(said)
