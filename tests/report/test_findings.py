"""The sentences of the box: what they say when differences are measurable, when they are not, and without runs."""

import re
from collections.abc import Sequence

import pandas as pd
import pytest

from mtbert.config import RunConfig
from mtbert.paths import REPOSITORY
from mtbert.report import findings
from mtbert.report.findings import box
from mtbert.report.tables import Grid, compare, read_runs
from mtbert.results import Run

COLUMNS = ["run", "reference", "task", "value", "low", "high", "verdict"]


@pytest.fixture(scope="module")
def plans():
    return compare(read_runs("cpu", "hybrids", store=REPOSITORY / "results", train_missing=False), "plan")


def with_differences(comparison, *rows):
    """The comparison with other differences."""
    comparison.__dict__["differences"] = pd.DataFrame(rows, columns=COLUMNS)
    return comparison


def test_without_runs_there_are_no_sentences(tmp_path):
    assert box(tmp_path) == ""


def test_a_sentence_names_the_measurable_differences_alone(plans):
    quora = ("3-bert", "1-bert", "quora", 0.02, 0.01, 0.03, "better")
    sst = ("3-bert", "1-bert", "sst", 0.5, -0.2, 1.2, "too close to call")
    text = findings._cost_of_sharing(with_differences(plans, quora, sst))
    assert text.endswith(
        "One encoder for three tasks loses 0.020 on Quora (0.010 to 0.030) against an encoder for each task. "
        "On SST and STS the difference is not measurable."
    )
    text = findings._cost_of_sharing(with_differences(plans, sst))
    assert text.endswith("loses nothing measurable against an encoder for each task.")
    sts = ("3-bert", "1-bert", "sts", -0.04, -0.06, -0.02, "worse")
    text = findings._cost_of_sharing(with_differences(plans, quora, sts))
    assert "loses 0.020 on Quora (0.010 to 0.030) and gains 0.040 on STS (0.020 to 0.060) against" in text


def test_what_gains_is_not_among_what_gains_nothing(plans):
    close = with_differences(plans, ("a", "b", "sst", 0.01, -0.1, 0.1, "too close to call"))
    assert "PALs: none of 1 differences" in findings._no_gain({"PALs": close})
    assert "PALs" in findings._no_gain({"PALs": close})
    better = with_differences(plans, ("a", "b", "sst", 0.2, 0.1, 0.3, "better"))
    assert findings._no_gain({"PALs": better}) == ""


@pytest.mark.parametrize("line", box(REPOSITORY / "results").splitlines())
def test_a_sentence_has_few_numbers(line):
    assert 1 <= len(pd.Series([line]).str.findall(r"\b\d+\.\d+|\b\d+\b(?!-)")[0]) <= 6


@pytest.fixture
def runs(synthetic):
    """Makes the seeds of a configuration of three tasks, right on a given part of the examples."""

    def make(right: float, seeds: Sequence[int] = (1, 2, 3), **fields) -> list[Run]:
        params = dict(corpus="demo", tasks=["sst", "quora", "sts"], pairs="joint", **fields)
        return [synthetic(RunConfig.from_params(params | {"seed": seed}), right) for seed in seeds]

    return make


@pytest.mark.parametrize(
    ("right", "seeds", "gain", "gap"),
    [
        (0.9, (1, 2, 3), "more overall than one that learns", "less overall than three"),
        (
            0.8,
            (4, 5, 6),
            "labels alone, -0.000 (-0.019 to +0.018), is not measurable",
            "less overall than three",
        ),  # as often right, on other examples
        (0.98, (1, 2, 3), "more overall than one that learns", "differs from three encoders by less than 0.01 (+0.000"),
    ],
)
def test_a_student_is_judged_against_one_encoder_and_three(runs, right, seeds, gain, gap):
    separate = runs(0.98, plan="3-bert")
    teachers = [run.config for run in separate]
    students = runs(right, seeds, teachers=teachers, distil="annealed")
    groups = {"1-bert": runs(0.8), "3-bert": separate, "student": students}
    configs = {name: [run.config for run in group] for name, group in groups.items()}
    grid = Grid((), configs, groups)
    about, first, second, cost = findings.students(grid).split(". ")
    assert about.endswith("then the labels (*student*)") and gain in first and gap in second
    assert cost == "Its teachers have to be trained first."
    assert findings.students(grid.only(["1-bert", "student"])) == ""
    few = {name: group[:2] for name, group in groups.items()}
    assert findings.students(Grid((), configs, few)) == ""


@pytest.mark.parametrize(("plan", "learned"), [("1-bert", "others of its plan"), ("3-bert", "separate ones")])
def test_the_teachers_of_a_student_are_named_by_their_plan(runs, plan, learned):
    groups = {"1-bert": runs(0.8), "3-bert": runs(0.9, plan="3-bert")}
    groups["student"] = runs(0.9, teachers=[run.config for run in groups[plan]])
    grid = Grid((), {name: [run.config for run in group] for name, group in groups.items()}, groups)
    assert findings.students(grid).startswith(f"One encoder can learn what {learned} predict (*student*).")


def test_claims_are_counted_by_fact_and_verdict():
    rows = [
        ("finding", "reproduced", "a b", "one fact"),
        ("finding", "contradicted", "a b", "one fact"),  # a fact has the less favourable verdict of its claims
        ("finding", "reproduced", "a c", None),
        ("question", "too close to call", "a d", None),
        ("slip", "contradicted", None, None),
        ("finding", "not comparable", None, None),
    ]
    claims = pd.DataFrame(rows, columns=["kind", "verdict", "run_ids", "fact"])
    counts = findings.claim_counts(claims)
    assert counts["all"].tolist() == [2, 1, 1]
    assert counts["reproduced"].tolist() == [1, 0, 0] and counts["contradicted"].tolist() == [1, 0, 1]
    assert findings.unchecked(claims) == "Claims that could not be compared: 1 not comparable."
    assert findings.unchecked(claims.head(5)) == ""


def test_the_order_after_longer_training_has_a_verdict_or_too_few_seeds(plans):
    long = read_runs("cpu", "distil_long", store=REPOSITORY / "results", train_missing=False)
    long = long.only(["1-bert, long", "3-bert, long"])
    assert re.fullmatch(
        r"Overall, 3-bert minus 1-bert is \+0.007 after 1,200 steps \(.* to .*; better\)\. "
        r"It is \+0.006 after 4,800 steps \(.* to .*; too close to call\)\.",
        findings.longer_training(plans.grid | long),
    )
    one_seed = Grid(long.paths, long.configs, {name: runs[:1] for name, runs in long.runs.items()})
    assert findings.longer_training(one_seed) == (
        "Overall, 3-bert minus 1-bert is +0.003 after 4,800 steps (1 seed; not decided)."
    )
    assert findings.longer_training(one_seed.only(["1-bert, long"])) == ""
