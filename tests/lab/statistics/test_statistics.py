"""The rule for verdicts: known tests as special cases, coverage by simulation, and a leave-out on the stored runs."""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from mtbert.config import RunConfig
from mtbert.data.tasks import TASKS
from mtbert.metrics import Metric, accuracy, f1, macro_f1, pearson, r2
from mtbert.training.metrics import metrics_of
from mtbert_lab.report.tables import read_runs
from mtbert_lab.statistics import (
    CONTRADICTED,
    NO_DIFFERENCE,
    REPRODUCED,
    TOO_FEW,
    Difference,
    Prior,
    Scored,
    benjamini_hochberg,
    decide,
    difference_of_scores,
    example_share,
    judge,
    paired,
    scores_and_covariance,
    seed_mean,
    verdict_text,
    welch,
)
from mtbert_lab.statistics.intervals import _count_columns, _jackknife, _one_by_one, takes_counts
from mtbert_lab.statistics.variances import CONFIGURATIONS, Side, draw_variances
from mtbert_lab.statistics.verdicts import Claim, holm, p_of_claim
from mtbert_lab.store.compare import Quantity, prior_of, scored, strata_of
from mtbert_lab.store.compare import difference as stored_difference


def drawn(n: int, right: float) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(n)
    labels = random.integers(0, 2, n)
    return np.where(random.random(n) < right, labels, 1 - labels), labels


def mean_of_numbers(predicted, labels):
    """A metric without any variance over the examples."""
    return predicted.mean(-1)


def parts_of(*scores: np.ndarray) -> list[np.ndarray]:
    return [np.tile(np.asarray(one)[:, None], 50) for one in scores]


def of_two(metric, first: np.ndarray, second: np.ndarray, labels: np.ndarray, priors=(None, None)) -> Difference:
    """The difference of the seeds (S, N) of two configurations."""
    part = Scored(metric, np.vstack([first, second]), labels)
    return difference_of_scores([part], (len(first), len(second)), priors)


def of_numbers(first: list[float], second: list[float], *priors) -> Difference:
    return of_two(mean_of_numbers, *parts_of(first, second), np.arange(50), *priors)


def normal(value: float, deviation: float, **changes) -> Difference:
    return Difference(value, np.array([deviation**2]), 3, **changes)


def test_the_mean_over_seeds_and_its_interval():
    predicted, labels = drawn(300, right=0.8)
    one = np.stack([predicted])
    mean, low, high = seed_mean([Scored(accuracy, one, labels)])
    assert mean == pytest.approx(accuracy(predicted, labels))
    worse = np.where(np.arange(300) < 60, 1 - predicted, predicted)
    seeds = np.stack([predicted, predicted, worse])
    mean, low_seeds, high_seeds = seed_mean([Scored(accuracy, seeds, labels)])
    assert mean == pytest.approx(np.mean([accuracy(row, labels) for row in seeds]))
    assert high_seeds - low_seeds > 1.2 * (high - low), "seeds that differ widen the interval"
    alike = seed_mean([Scored(accuracy, np.stack([predicted] * 3), labels)])
    assert alike[1:] == pytest.approx((low, high)), "equal seeds are as good as one"


def test_the_mean_of_several_tasks_takes_a_seed_for_all_of_them():
    """One seed is right on the first task alone, the other on the second: both have the same mean."""
    labels, wrong = np.zeros(50), np.ones((2, 50))
    first, second = wrong * [[0], [1]], wrong * [[1], [0]]
    tasks = [Scored(accuracy, part, labels) for part in (first, second)]
    value, low, high = seed_mean(tasks)
    assert value == 0.5 and np.isnan([low, high]).all(), "no seed or example changes it"
    _, low, high = seed_mean(tasks[:1])
    assert min(high, 1) == 1 and low == pytest.approx(0.5 - 12.706 / 2, rel=1e-3)  # t with one degree of freedom


def test_the_difference_of_two_methods_on_the_same_examples():
    predicted, labels = drawn(300, right=0.7)
    better = np.where(np.arange(300) < 60, labels, predicted)
    found = of_two(accuracy, better[None], predicted[None], labels)
    assert found.value == pytest.approx(accuracy(better, labels) - accuracy(predicted, labels))
    low, high = found.interval()
    assert 0 < low < found.value < high and found.p < 0.05 and not found.is_decided
    assert np.isnan(found.known_interval()).all() and found.text() == f"{found.value:+.3f}", (
        "it says nothing of other seeds"
    )
    _, low_one, high_one = seed_mean([Scored(accuracy, predicted[None], labels)])
    assert high - low < high_one - low_one, "the examples that both get right do not count"


def test_the_same_predictions_under_two_names_are_equal():
    predicted, labels = drawn(300, right=0.7)
    seeds = np.stack([predicted] * 3)
    found = of_two(accuracy, seeds, seeds.copy(), labels)
    assert (found.value, found.p, found.interval()) == (0, 1, (0, 0)) and found.is_decided
    [judged] = judge([Claim("equal", found, 0.01)], holm)
    assert (judged.verdict, judged.low, judged.high) == (REPRODUCED, 0, 0)


def test_equal_predictions_of_one_seed_each_tell_nothing_of_others():
    """Two models may collapse to one label: that says nothing of other seeds."""
    predicted, labels = drawn(300, right=0.7)
    found = of_two(accuracy, predicted[None], predicted[None].copy(), labels)
    assert found.value == 0 and not found.is_decided
    assert judge([Claim("equal", found, 0.01)], holm)[0].verdict == TOO_FEW


@pytest.mark.parametrize("gained", [6, 16, 40])
def test_with_one_seed_it_is_the_test_of_two_classifiers(gained):
    """Two classifiers differ on 40 examples; gained: those that the first one gets right."""
    labels = np.zeros(2000, dtype=int)
    first, second = labels.copy(), labels.copy()
    second[:gained] = 1
    first[gained:40] = 1
    first[100:300], second[100:300] = 1, 1
    found = of_two(accuracy, first[None], second[None], labels)
    z = (2 * gained - 40) / np.sqrt(40 - (2 * gained - 40) ** 2 / 2000)
    assert found.p == pytest.approx(2 * stats.norm.sf(abs(z)), rel=0.01, abs=1e-5)
    low, high = found.interval()
    assert (found.p < 0.05) == (low > 0 or high < 0)


def test_a_metric_that_is_not_defined_shows_no_difference():
    labels = np.ones(30)
    first, second = np.ones((3, 30)), np.stack([np.arange(30.0)] * 3)
    found = of_two(pearson, first, second, labels)
    assert np.isnan(found.value) and found.p == 1 and np.isnan(found.interval()).all()
    for claimed in ("greater", "equal", "not greater"):
        assert p_of_claim(Claim(claimed, found, 0.01)) == (1, TOO_FEW)
    one_apart = np.append(np.ones(29), 2.0)  # without it the labels are constant
    found = of_two(pearson, second + np.random.default_rng(0).normal(size=(3, 30)), second[:, ::-1], one_apart)
    assert not np.isnan(found.value) and np.isnan(found.interval()).all()


def test_without_a_prior_and_examples_a_side_has_the_distribution_of_student():
    scores = np.array([0.5, 0.51, 0.507])
    error = scores.std(ddof=1) / np.sqrt(3)
    one = Difference(0.0, draw_variances(scores, None) / 3, 3)
    for t in (1.0, 3.0, 6.0):
        assert replace(one, value=t * error).p == pytest.approx(2 * stats.t.sf(t, 2), rel=0.05)
    low, high = one.interval()
    assert high == pytest.approx(stats.t.ppf(0.975, 2) * error, rel=0.02) and low == -high


def test_a_difference_is_shown_in_a_line():
    assert repr(normal(0.02, 0.01)) == "<Difference +0.0200 (+0.0004 to +0.0396), p 0.046, 3 seeds>"
    few = replace(normal(0.02, 0.01, is_decided=False), seeds=1)
    assert repr(few).endswith("p 0.046, 1 seed, too few for a verdict>")
    assert "nan" in repr(normal(np.nan, 0.01))


def test_welchs_test():
    random = np.random.default_rng(0)
    first, second = random.normal(0.5, 0.01, 5), random.normal(0.52, 0.02, 3)
    expected, found = stats.ttest_ind(first, second, equal_var=False), welch(first, second)
    assert (found.value, found.p) == pytest.approx((first.mean() - second.mean(), expected.pvalue), rel=1e-3)
    assert found.interval() == pytest.approx(tuple(expected.confidence_interval(0.95)), rel=1e-3)
    assert found.is_decided and not welch(first[:1], second).is_decided
    assert welch([1.0, 1.0], [2.0, 2.0]).p == 0 and welch([1.0, 1.0], [1.0, 1.0]).p == 1


def configurations(random, d0: float, s0: float, count: int = 60, seeds: int = 3) -> list[np.ndarray]:
    deviations = s0 * np.sqrt(d0 / random.chisquare(d0, count))
    return [random.normal(0.8, deviation, seeds) for deviation in deviations]


def test_a_run_that_scores_another_task_has_a_stratum():
    config = RunConfig(tasks=("sst",), score_tasks=("quora",), plan="S6(sst|quora)", keep="last")
    assert len(strata_of(config, 10)) == 1
    assert not strata_of(config.but(plan="F6"), 10)


def test_the_prior_is_that_of_the_configurations():
    random, found = np.random.default_rng(0), {}
    for d0 in (2.0, 200.0):
        priors = [Prior.fit(configurations(random, d0, 0.005), [0.0] * 60) for _ in range(20)]
        found[d0] = np.median([prior.weights @ np.log(prior.d0) for prior in priors])
        assert np.median([prior.deviation for prior in priors]) == pytest.approx(0.005, rel=0.1)
    assert found[2.0] < np.log(5) < np.log(20) < found[200.0]
    assert priors[0].freedom == 120 and priors[0].d0.max() == 120, "capped at the degrees of freedom"
    cautious = priors[0].cautious
    assert cautious.weights @ cautious.d0 < priors[0].weights @ priors[0].d0


def test_equal_scores_do_not_break_the_prior():
    scores = [np.array([0.8, 0.8]), np.array([0.81, 0.81]), *configurations(np.random.default_rng(0), 20, 0.005)]
    prior = Prior.fit(scores, [0.0] * len(scores))
    assert 0.003 < prior.deviation < 0.007 and np.isfinite(draw_variances(np.array([0.8, 0.8]), prior)).all()
    many = [np.array([0.8, 0.8])] * 8
    assert Prior.fit([*many, *scores[2:12]], [0.0] * 18) is None, "whose seeds do not vary?"
    assert Prior.fit(many, [0.0] * 8) is None


def test_who_has_a_prior():
    scores = configurations(np.random.default_rng(0), 20, 0.005)
    prior = Prior.fit(scores, [0.0] * 60)
    assert prior.fits(prior.lowest - 1.9 * prior.deviation)
    assert not prior.fits(prior.lowest - 2.1 * prior.deviation)
    assert not Prior.fit(scores[: CONFIGURATIONS - 1], [0.0] * (CONFIGURATIONS - 1)).is_enough
    assert not Prior.fit([one[:2] for one in scores[:15]], [0.0] * 15).is_enough, "15 degrees of freedom"


def test_a_prior_known_exactly_makes_one_seed_a_normal_test():
    prior = Prior(60, 10**6, np.array([1e6]), np.array([0.005**2]), np.ones(1), examples=0.0, lowest=0.0)
    found = of_numbers([0.81], [0.80], (prior, prior))
    assert found.is_decided and found.prior is not None
    assert found.p == pytest.approx(2 * stats.norm.sf(0.01 / (0.005 * np.sqrt(2))), rel=1e-3)
    alone = of_numbers([0.81], [0.80], (prior, None))
    assert not alone.is_decided and judge([Claim("greater", alone, 0.01)], holm)[0].verdict == TOO_FEW
    three = of_numbers([0.81], [0.80, 0.81, 0.79], (prior, None))
    assert three.is_decided, "a side without a stratum needs three seeds"


# seeds: one, whose variance is the prior's, or three; deviation: of seeds beyond the examples, on part of them
@pytest.mark.parametrize(
    ("metric", "seeds", "deviation"), [(accuracy, 1, 0.03), (accuracy, 3, 0.0), (pearson, 1, 0.0), (pearson, 3, 0.03)]
)
def test_95_percent_of_the_intervals_contain_the_true_difference(metric, seeds, deviation):
    """Two methods with the same true score; chance decides on a third of the examples. The stratum has 20 others."""
    random, repeats, N = np.random.default_rng(7), 300, 300
    labels = random.random(N) * 5 if metric is pearson else np.ones(N)

    def part(of_all: np.ndarray, by_chance: np.ndarray, count: int) -> np.ndarray:
        shift = random.normal(scale=deviation, size=(count, 1))
        if metric is pearson:
            noise = np.where(by_chance, random.normal(scale=1.5, size=(count, N)), of_all)
            return labels * (1 + 3 * shift) + noise
        return np.where(by_chance, random.random((count, N)) < 0.5 + shift / 0.36, of_all)

    def examples() -> tuple[np.ndarray, np.ndarray]:
        of_all = random.normal(scale=1.5, size=N) if metric is pearson else random.random(N) < 0.8
        return of_all, random.random(N) < 0.36

    held = 0
    shared = examples()
    stratum = [scores_and_covariance([Scored(metric, part(*shared, 3), labels)]) for _ in range(20)]
    prior = Prior.fit([scores for scores, _ in stratum], [example_share(one) for _, one in stratum])
    for _ in range(repeats):
        parts = [part(*shared, seeds) for _ in range(2)]
        low, high = of_two(metric, *parts, labels, (prior, prior)).interval()
        held += low <= 0 <= high
    assert 0.92 <= held / repeats <= 0.99


@cache
def replicated(grid: str):
    return [runs for runs in read_runs("cpu", grid).runs.values()]


@pytest.mark.parametrize("task", ["sst", "quora", "sts"])
@pytest.mark.parametrize("kept", [1, 2])
def test_few_stored_seeds_tell_where_the_mean_of_all_lies(committed, task, kept):
    """Leave-out: one or two of three to five stored seeds; the full mean is covered in at least 95 % of the cases."""
    inside, cases = 0, 0
    for runs in (runs for grid in ("hybrids", "progressive", "gradients") for runs in replicated(grid)):
        if len(runs) < 3 or (prior := prior_of(runs, Quantity((task,)))) is None:
            continue
        scores, covariance = scores_and_covariance([scored(runs, task)])
        for start in range(len(runs)):
            chosen = [(start + i) % len(runs) for i in range(kept)]
            explained = example_share(covariance[np.ix_(chosen, chosen)]) if kept > 1 else prior.examples
            of_examples = covariance[np.ix_(chosen, chosen)].mean()
            variances = of_examples + Side(scores[chosen], explained, prior).variances
            low, high = Difference(scores[chosen].mean(), variances, kept).interval()
            inside += low <= scores.mean() <= high
            cases += 1
    assert cases >= 30 and inside / cases >= 0.95


@pytest.mark.parametrize(
    ("task", "part", "held"),
    [("quora", (0.4, 0.7), (0.87, 0.94)), ("sts", (0.95, 1), (0.77, 0.85))],
)
def test_pairs_of_seeds_would_ignore_the_examples(committed, task, part, held):
    """How much of a difference they are, and how often Student's interval over pairs would hold on other examples."""
    runs = read_runs("cpu", "hybrids").runs
    sides = runs["3-bert"], runs["1-bert"]
    found = stored_difference(*sides, task)
    S = found.seeds
    assert S == 5
    variance = np.median(found.variances)
    assert part[0] < found.of_examples / variance < part[1]

    _, covariance = scores_and_covariance([scored([*sides[0], *sides[1]], task)])
    gaps = np.hstack([np.eye(S), -np.eye(S)])
    of_gaps = gaps @ covariance @ gaps.T  # (S, S), over the examples
    common = of_gaps.mean() - example_share(of_gaps) / S  # what all pairs have in common, and do not show
    reach = stats.t.ppf(0.975, S - 1) * np.sqrt(1 - common / variance)
    assert held[0] < 1 - 2 * stats.t.sf(reach, S - 1) < held[1]


@pytest.mark.parametrize(
    ("claimed", "value", "deviation", "expected"),
    [
        ("greater", 0.02, 0.005, REPRODUCED),
        ("greater", -0.02, 0.005, CONTRADICTED),
        ("greater", 0.005, 0.005, TOO_FEW),
        ("greater", 0.001, 0.002, NO_DIFFERENCE),
        ("smaller", -0.02, 0.005, REPRODUCED),
        ("smaller", 0.02, 0.005, CONTRADICTED),
        ("equal", 0.0, 0.005, REPRODUCED),
        ("equal", 0.005, 0.001, REPRODUCED),
        ("equal", 0.03, 0.005, CONTRADICTED),
        ("equal", 0.008, 0.005, TOO_FEW),
        ("not greater", -0.05, 0.02, REPRODUCED),
        ("not greater", 0.03, 0.005, CONTRADICTED),
        ("not greater", 0.01, 0.005, TOO_FEW),
    ],
)
@pytest.mark.parametrize("others", [1.0, 1.5])  # how much the correction raises the p-values
def test_verdicts_agree_with_their_intervals(claimed, value, deviation, expected, others):
    margin, found = 0.01, normal(value, deviation)
    [judged] = judge([Claim(claimed, found, margin)], lambda p: np.minimum(1, p * others))
    verdict, low, high = judged.verdict, judged.low, judged.high
    if others == 1:
        assert verdict == expected
    if claimed in ("greater", "smaller"):
        sign = 1 if claimed == "greater" else -1
        assert (verdict == REPRODUCED) == (min(sign * low, sign * high) > 0)
        assert (verdict == CONTRADICTED) == (max(sign * low, sign * high) < 0)
        assert verdict != NO_DIFFERENCE or (-margin < low and high < margin)
        assert judged.is_small == (verdict in (REPRODUCED, CONTRADICTED) and abs(value) < margin)
    elif claimed == "equal":
        assert (verdict == REPRODUCED) == (-margin < low and high < margin)
        assert (verdict == CONTRADICTED) == (low > margin or high < -margin)
    else:
        assert (verdict == REPRODUCED) == (high < margin) and (verdict == CONTRADICTED) == (low > margin)


def test_a_family_is_corrected_and_its_intervals_with_it():
    alone = decide([normal(0.011, 0.005)], [0.01])
    assert alone["verdict"].tolist() == ["better"] and alone["low"][0] > 0
    several = decide(
        [normal(0.011, 0.005), normal(-0.03, 0.005), normal(0.0, 0.005), normal(0.1, 0.005, is_decided=False)],
        [0.01] * 4,
    )
    assert several["verdict"].tolist() == [TOO_FEW, "worse", TOO_FEW, TOO_FEW]
    assert several["low"][0] < 0 < several["high"][0], "wider than alone"
    raw = [normal(value, 0.005).p for value in (0.011, -0.03, 0.0)]
    assert several["p"][:3].tolist() == holm(np.array(raw)).tolist() and np.isnan(several["p"][3])
    assert decide([], []).empty
    equal = [normal(0.0, 0.005), normal(0.0, 0.005), normal(0.03, 0.005)]
    assert decide(equal, [0.01] * 3)["verdict"].tolist() == [TOO_FEW, TOO_FEW, "better"], "corrected for three"
    assert decide(equal[:1], [0.01])["verdict"].tolist() == [NO_DIFFERENCE], "alone it is shown not to matter"


def test_an_undecided_difference_has_the_interval_of_holms_level():
    """Of 40 differences four are decided: the others are judged at LEVEL / 36, also where 36 p-values exceed 1."""
    found = decide([normal(value, 0.005) for value in [0.1] * 4 + [0.003] * 36], [0.01] * 40)
    half = stats.norm.isf(0.05 / 36 / 2) * 0.005
    assert found["verdict"][4:].eq(TOO_FEW).all() and found["p"][4:].eq(1).all()
    assert (found["high"] - found["low"])[4:].to_numpy() == pytest.approx(2 * half)


def test_too_few_runs_say_how_many_would_tell():
    """Two configurations of three seeds, no variance from the examples."""
    scores = np.array([0.80, 0.81, 0.79])
    variance = float(np.median(draw_variances(scores, None)))

    def needed(gap: float) -> float:
        found = of_numbers(scores + gap, scores)
        [judged] = judge([Claim("greater", found, 0.002)], holm)
        assert judged.verdict == TOO_FEW
        return judged.seeds_needed

    seeds = needed(0.01)
    p_values = []
    for n in (seeds - 1, seeds):
        then = np.linspace(-1, 1, n)
        then = then * np.sqrt(variance) / then.std(ddof=1)
        p_values.append(of_numbers(then + 0.01, then).p)
    assert p_values[1] < 0.05 < p_values[0], "n seeds have their own degrees of freedom"
    more = np.array([0.80, 0.81, 0.79] * 4)
    few = of_numbers(scores + 0.01, more)
    [judged] = judge([Claim("greater", few, 0.002)], holm)
    assert 3 < judged.seeds_needed < seeds, "the side with twelve seeds needs no more"
    [unknown] = judge([Claim("greater", of_numbers([0.81], scores), 0.002)], holm)
    assert unknown.verdict == TOO_FEW and np.isnan(unknown.seeds_needed), "one seed does not say how much it varies"
    assert needed(0.0021) == np.inf, "neither 0 nor the margin is far enough away"
    assert verdict_text(TOO_FEW, seeds_needed=seeds) == f"too few runs to tell ({seeds} seeds would tell)"
    assert verdict_text(TOO_FEW, seeds_needed=np.inf) == "too few runs to tell (not even 30 seeds would)"
    assert verdict_text("better", is_small=True) == "better, by less than the margin"


def test_pairs_are_judged_by_students_t_once_there_are_enough():
    gaps = [0.07, 0.04, 0.11, 0.05, 0.09, 0.02]
    found = paired(gaps)
    assert found.value == pytest.approx(np.mean(gaps))
    assert found.p == pytest.approx(stats.ttest_1samp(gaps, 0).pvalue, rel=0.01), "by quantiles"
    assert found.is_decided and not paired(gaps[:5]).is_decided
    for one in (paired(gaps[:1]), welch(gaps[:1], gaps[1:])):
        assert not one.is_decided and one.p == 1
        assert np.isnan(one.interval()).all(), "one number does not say how much it varies"
    none = paired([])
    assert np.isnan(none.value) and not none.is_decided


def test_a_cautious_verdict_takes_the_lower_bound_of_d0():
    scores = configurations(np.random.default_rng(3), 4, 0.005, count=25)
    prior = Prior.fit(scores, [0.0] * 25)
    found = of_numbers([0.81], [0.80], (prior, prior))
    assert found.cautious.p > found.p and found.cautious.value == found.value
    assert welch([1.0, 2.0], [2.0, 3.0]).cautious.p == welch([1.0, 2.0], [2.0, 3.0]).p


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]).tolist() == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]).tolist() == [1, 1] and holm([0.02]).tolist() == [0.02] and len(holm([])) == 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_rejects_as_its_algorithm(p_values):
    """From the smallest on, against 0.05 / m, 0.05 / (m - 1), ..., until one is not below."""
    m, rejected = len(p_values), set()
    for k, i in enumerate(sorted(range(m), key=p_values.__getitem__)):
        if not p_values[i] * (m - k) < 0.05:
            break
        rejected.add(i)
    assert set(np.flatnonzero(holm(p_values) < 0.05).tolist()) == rejected


def test_benjamini_and_hochberg_by_hand():
    assert benjamini_hochberg([0.01, 0.04, 0.03, 0.005]).tolist() == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert benjamini_hochberg([0.6, 0.7]).tolist() == [0.7, 0.7] and benjamini_hochberg([0.02]).tolist() == [0.02]
    assert len(benjamini_hochberg([])) == 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_benjamini_and_hochberg_reject_as_their_algorithm(p_values):
    """All up to the largest k for which the k-th smallest is below 0.05 k / m."""
    m, rejected = len(p_values), set()
    order = sorted(range(m), key=p_values.__getitem__)
    for k, i in enumerate(order, start=1):
        if p_values[i] * (m / k) < 0.05:
            rejected = set(order[:k])
    assert set(np.flatnonzero(benjamini_hochberg(p_values) < 0.05).tolist()) == rejected


def test_columns_are_counted_as_numpy_does():
    table = np.random.default_rng(0).integers(0, 3, (4, 500)).astype(float)
    for part in (table, table[:, :1], np.zeros((2, 7))):
        ours, theirs = _count_columns(part), np.unique(part, axis=1, return_counts=True)
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


METRICS = (accuracy, f1, macro_f1, partial(macro_f1, num_classes=5), pearson, r2)


@given(
    st.sampled_from(METRICS),
    st.integers(1, 4),
    st.lists(st.integers(0, 4), min_size=2, max_size=30),
    st.floats(1e-4, 1e4),
    st.integers(0, 99),
)
def test_the_jackknife_by_counts_is_that_by_one_example_after_the_other(metric, S, labels, scale, seed):
    """Examples of one kind and constant predictions are among these."""
    random = np.random.default_rng(seed)
    labels = np.array(labels, dtype=float)
    predicted = random.integers(0, random.integers(1, 6), (S, len(labels))).astype(float)
    if metric in (pearson, r2):
        # Without one example the labels may be equal; then rounding alone decides what R² is.
        counts = np.unique(labels, return_counts=True)[1]
        assume(metric is pearson or len(counts) != 2 or counts.min() > 1)
        labels, predicted = labels * scale, (predicted + random.normal(size=S)[:, None]) * scale
    assert takes_counts(metric)
    kinds, counts = _count_columns(np.vstack([predicted, labels]))
    scores = _one_by_one(metric, kinds[:-1], kinds[-1], counts)
    expected = (len(labels) - 1) * np.atleast_2d(np.cov(scores, fweights=counts, bias=True))
    found = _jackknife(metric, predicted, labels)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_the_interval_of_a_correlation_goes_by_counts(monkeypatch, factor):
    """One example after the other the time would grow with the square of the rows."""
    random = np.random.default_rng(0)
    labels = random.random(1_000)
    tasks = [Scored(pearson, labels + random.normal(size=(3, 1_000)), labels, factor)]
    with monkeypatch.context() as patch:
        patch.setattr("mtbert_lab.statistics.intervals.takes_counts", lambda metric: False)
        expected = seed_mean(tasks)
    monkeypatch.setattr("mtbert_lab.statistics.intervals._one_by_one", None)
    assert seed_mean(tasks) == pytest.approx(expected, abs=1e-9)


def test_a_metric_of_ones_own_has_two_arguments():
    assert not takes_counts(mean_of_numbers)
    value, low, high = seed_mean([Scored(mean_of_numbers, *parts_of([0.5, 0.5]), np.zeros(50))])
    assert value == 0.5 and np.isnan([low, high]).all(), "no seed or example changes it"
    value, low, high = seed_mean([Scored(mean_of_numbers, *parts_of([39.0, 41.0]), np.zeros(50))])
    assert low < value == 40 < high, "it may be above 1"


def interval(metric: Metric, predicted: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    return seed_mean([Scored(metric, predicted[None], labels)])[1:]


def test_one_example_has_no_interval():
    assert np.isnan(interval(accuracy, np.ones(1), np.ones(1))).all()


def naive_draws(metric, parts: list[np.ndarray], labels: np.ndarray, resamples: int) -> np.ndarray:
    """Of one seed or a pair of them: examples are drawn as indices, one resample after the other."""
    random, draws = np.random.default_rng(1), []
    for _ in range(resamples):
        examples = random.integers(len(labels), size=len(labels))
        first, *second = (metric(part[0][examples], labels[examples]) for part in parts)
        draws.append(first - sum(second))
    return np.array(draws)


@pytest.mark.parametrize("task", ["cfimdb", "sst", "sts"])  # few kinds of examples, many, as many as examples
def test_intervals_are_those_of_drawn_indices(task):
    random, metric = np.random.default_rng(2), list(metrics_of(TASKS[task]).values())[-1]
    if task == "sts":
        labels = random.random(120) * 5
        first, second = (labels + random.normal(scale=scale, size=(1, 120)) for scale in (1, 2))
    else:
        classes, n = TASKS[task].num_classes, 400
        labels = random.integers(classes, size=n)
        first, second = (
            np.where(random.random((1, n)) < p, labels, random.integers(classes, size=n)) for p in (0.7, 0.6)
        )
    both = [Scored(metric, np.vstack([first, second]), labels)]
    for found, parts in (
        (seed_mean([Scored(metric, first, labels)])[1:], [first]),
        (difference_of_scores(both, (len(first), len(second))).interval(), [first, second]),
    ):
        draws = naive_draws(metric, parts, labels, 2000)
        expected = np.quantile(draws, [0.025, 0.975])
        assert found == pytest.approx(expected, abs=0.25 * draws.std())


def test_an_interval_of_an_accuracy_is_that_of_a_binomial_count():
    predicted, labels = drawn(5000, right=0.8)
    share = accuracy(predicted, labels)
    expected = stats.binom(5000, share).ppf([0.025, 0.975]) / 5000
    assert interval(accuracy, predicted, labels) == pytest.approx(expected, abs=0.0008)
    assert interval(accuracy, np.arange(20) > 0, np.ones(20))[1] == 1, "no score is higher"


@pytest.mark.parametrize(
    "fields",
    [
        dict(weights="random"), dict(frozen=True), dict(keep="best"), dict(pairs="sum"), dict(pretrain="after"),
        dict(scheme="in_turn"), dict(teachers=[dict(tasks=["sst", "sts"])]),
    ],
    ids=str,
)  # fmt: skip
def test_runs_of_another_kind_have_no_stratum(fields):
    like = RunConfig(tasks=("sst", "sts"), keep="last")
    assert len(strata_of(like, 10)) == 2
    assert strata_of(like.but(**fields), 10) == []
