"""Metrics against counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mtbert.data.tasks import TASKS
from mtbert.metrics import accuracy, f1, macro_f1, pearson, r2
from mtbert.training.metrics import metrics_of, overall

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
    there = {*predicted, *labels}
    assert macro_f1(p, y, num_classes=5) == pytest.approx(sum(by_class) / len(there)), "as scikit-learn"


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=3, max_size=40))
def test_pearson_equals_scipy(rows):
    p, y = np.array(rows, dtype=float).T / 10
    if np.ptp(y) == 0:
        assert np.isnan(pearson(p, y))
    elif np.ptp(p) == 0:
        assert pearson(p, y) == 0
    else:
        assert pearson(p, y) == pytest.approx(stats.pearsonr(p, y).statistic, abs=1e-9)
    assert pearson(p.astype(np.float32), y) == pytest.approx(float(pearson(p, y)), abs=1e-4, nan_ok=True)


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 4.9])  # sums of 0.1 and 1/3 are not exact
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_constant_predictions_score_nothing_and_constant_labels_are_not_scored(value, dtype):
    labels = np.linspace(0, 5, 37)
    constant = np.full(37, value, dtype=dtype)
    assert pearson(constant, labels) == 0 and np.isnan(pearson(labels, constant))
    assert np.isnan(pearson(constant, constant)) and np.isnan(pearson(np.full(37, np.nan), labels))
    both = pearson(np.stack([constant.astype(float), labels]), np.stack([labels, labels]))
    assert both[0] == 0 and both[1] == pytest.approx(1)


def test_a_class_that_dev_lacks_is_left_out_of_macro_f1():
    labels = np.array([0, 0, 2, 2])
    assert macro_f1(labels, labels, num_classes=4) == 1
    assert macro_f1(np.array([0, 1, 2, 2]), labels, num_classes=4) == pytest.approx((2 / 3 + 0 + 1) / 3), "predicted"


def test_metrics_of_several_predictions_and_without_one_example():
    """With counts of kinds of examples there is a value without one example of each kind."""
    random = np.random.default_rng(0)
    p, y = random.integers(0, 2, (2, 7, 12))
    counts = random.integers(1, 9, 12)
    for metric in (*metrics_of(TASKS["quora"]).values(), *metrics_of(TASKS["sst"]).values(), pearson):
        assert metric(p, y).tolist() == pytest.approx([float(metric(p[i], y[i])) for i in range(7)])
        without = metric(p, y[0], counts)
        assert without.shape == (7, 12) and metric(p[0], y[0], counts) == pytest.approx(without[0], abs=1e-12)
        for i in range(12):
            held = np.repeat(np.arange(12), counts - (np.arange(12) == i))
            assert without[:, i] == pytest.approx(metric(p[:, held], y[0, held]), abs=1e-12)


def test_a_constant_sample_has_no_correlation():
    predicted, labels = np.array([0.1, 0.1, 3.0]), np.array([1.0, 2.0, 2.0])
    found = pearson(predicted, labels, np.array([1, 1, 1]))
    assert np.isnan(found[0]) and found[1] > 0 and found[2] == 0


def test_the_metrics_of_each_task_and_the_first_selects():
    names = {task: list(metrics_of(TASKS[task])) for task in TASKS}
    assert names == {
        "sst": ["accuracy", "macro_f1"],
        "cfimdb": ["accuracy", "macro_f1", "f1"],
        "quora": ["accuracy", "macro_f1", "f1"],
        "sts": ["pearson"],
    }
    predicted, labels = np.array([0, 1, 2, 3, 3]), np.array([0, 1, 2, 3, 4])
    # F1 is 1 for classes 0 to 2; 2/3 for 3, with one of its two predictions right; 0 for 4, which is never predicted
    expected = (1 + 1 + 1 + 2 / 3 + 0) / 5
    assert metrics_of(TASKS["sst"])["macro_f1"](predicted, labels) == pytest.approx(expected), "over all five classes"


def test_r2_is_one_minus_the_squared_error_over_the_variance():
    predicted, labels = np.array([[1.0, 2.0, 4.0], [2.0, 2.0, 2.0]]), np.array([1.0, 2.0, 3.0])
    assert r2(predicted, labels).tolist() == pytest.approx([0.5, 0.0])
    assert r2(predicted[0], labels, np.array([1, 1, 1])).tolist() == pytest.approx([-1.0, 0.5, 1.0])


@pytest.mark.parametrize("value", [1.0, 0.1, 1 / 3])
def test_r2_of_constant_labels_is_not_defined(value):
    """Also where their mean is another number, by rounding."""
    predicted, labels = np.linspace(0, 1, 30), np.full(30, value)
    assert np.isnan(r2(predicted, labels))
    assert np.isnan(r2(predicted, labels, np.ones(30))).all()


def test_a_score_that_is_no_correlation_counts_as_it_is(monkeypatch):
    monkeypatch.setitem(TASKS, "sts", TASKS["sts"].model_copy(update={"kind": "regression", "metric": "r2"}))
    assert overall({"sst": 0.5, "sts": -0.2}) == pytest.approx(0.15)
