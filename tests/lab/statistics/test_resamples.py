"""Bootstrap estimates against closed forms and counts by hand."""

import numpy as np
import pytest

from mtbert_lab.statistics import Estimate, Resamples, judge_estimates


@pytest.fixture(scope="module")
def resamples():
    return Resamples(400, {"one": 3, "other": 2, "single": 1})


def test_the_interval_of_a_mean_is_that_of_its_standard_error(resamples):
    values = np.random.default_rng(1).normal(size=(1, 400))
    estimate = Estimate.of(resamples.mean("single", values))
    assert estimate.value == pytest.approx(values.mean(), abs=1e-6)
    assert estimate.high - estimate.low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.1)


def test_seeds_that_differ_widen_an_interval(resamples):
    values = np.random.default_rng(1).normal(size=(1, 400)).repeat(3, axis=0)
    same, apart = (Estimate.of(resamples.mean("one", v)) for v in (values, values + [[-1], [0], [1]]))
    assert apart.value == pytest.approx(same.value, abs=1e-6) and apart.high - apart.low > 3 * (same.high - same.low)


def test_differences_are_paired_over_examples(resamples):
    values = np.random.default_rng(1).normal(size=(2, 400))
    shifted = Estimate.of(resamples.mean("other", values + 0.1) - resamples.mean("other", values))
    assert shifted.low == pytest.approx(0.1, abs=1e-5) and shifted.high == pytest.approx(0.1, abs=1e-5)
    assert shifted.p == pytest.approx(2 / 2001)


def test_a_mean_among_some_examples_leaves_the_others_out(resamples):
    among = np.arange(400) < 100
    values = np.where(among, 2.0, 7.0)[None]
    assert Estimate.of(resamples.mean("single", values, among))[:3] == (2, 2, 2)


def test_pairs_of_one_system_are_of_different_seeds(resamples):
    run = np.random.default_rng(1).integers(2, size=(3, 400))
    unequal = (run[:, None] != run[None]).astype(float)
    by_hand = np.mean([unequal[i, j].mean() for i, j in ((0, 1), (0, 2), (1, 2))])
    assert Estimate.of(resamples.pairs("one", "one", unequal)).value == pytest.approx(by_hand, abs=1e-6)
    crossed = Estimate.of(resamples.pairs("one", "other", unequal[:, :2]))
    assert crossed.value == pytest.approx(unequal[:, :2].mean(), abs=1e-6)
    assert np.isnan(Estimate.of(resamples.pairs("single", "single", np.ones((1, 1, 400)))).value)


def test_correlation_is_numpys(resamples):
    x, y = np.random.default_rng(1).normal(size=(2, 400))
    estimate = Estimate.of(resamples.correlation(x + 50, y + x))
    assert estimate.value == pytest.approx(np.corrcoef(x, y + x)[0, 1], abs=1e-4)
    assert estimate.low < estimate.value < estimate.high


def test_judged_differences_are_corrected_for_their_number():
    one = Estimate(0.1, 0.01, 0.2, 0.02)
    assert judge_estimates({"only": one})["verdict"].tolist() == ["higher"]
    table = judge_estimates(
        {"a": one, "b": Estimate(-0.2, -0.3, -0.1, 0.03), "c": Estimate(np.nan, np.nan, np.nan, np.nan)}
    )
    assert table["what"].tolist() == ["a", "b"] and table["p"].tolist() == [0.04, 0.04]
    assert table["verdict"].tolist() == ["higher", "lower"]
    assert judge_estimates({"a": one, "b": one, "c": one})["verdict"].tolist() == ["not shown"] * 3
