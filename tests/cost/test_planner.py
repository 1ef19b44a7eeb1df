"""What fits into a budget, in which order, with which expected score."""

import math

import pandas as pd
import pytest

from mtbert.config import RunConfig
from mtbert.cost import planner
from mtbert.cost.forecast import read_lengths
from mtbert.cost.planner import (
    BudgetError,
    candidates,
    check_minutes,
    describe,
    expected_score,
    overall_interval,
    parse_memory,
    plan_table,
    read_candidates,
)
from mtbert.cost.time import Calibration
from mtbert.paths import REPOSITORY, results_dir
from mtbert.results.compare import summarize
from mtbert.results.runs import load_or_run

THREE = ("sst", "quora", "sts")


@pytest.fixture
def calibration(calibration_at) -> Calibration:
    return calibration_at(1e-9)


@pytest.fixture
def config(tiny_config) -> RunConfig:
    return tiny_config.but(tasks=THREE, scheme="unified", epochs=1)


@pytest.mark.parametrize(
    "text, mib", [("2GB", 2e9 / 2**20), ("512MiB", 512), ("1.5 GiB", 1536), ("800mb", 8e8 / 2**20), ("2097152 B", 2)]
)
def test_memory_is_read(text, mib):
    assert parse_memory(text) == pytest.approx(mib)


@pytest.mark.parametrize("text", ["2XB", "GB", "", "2", "-2GB", "2GB3", "1e3MB", "nan GB", "0GB"])
def test_memory_that_cannot_be_read(text):
    with pytest.raises(BudgetError, match="memory is"):
        parse_memory(text)


@pytest.mark.parametrize("minutes", [0.0, -1.0, math.inf, math.nan])
def test_minutes_that_cannot_be(minutes):
    with pytest.raises(BudgetError, match="minutes is"):
        check_minutes(minutes)


def test_candidates_cover_the_ways_of_sharing(config):
    found = candidates(config)
    assert {"1-bert", "3-bert", "hybrid-1", "frozen", "F1 S1", "1 layer", "PAL 48", "PAL 192", "batch 4", "batch 2",
            "accumulation 4"} == set(found)  # fmt: skip
    assert len(set(map(str, found.values()))) == len(found)
    assert found["batch 4"].batch_size == 4 and found["F1 S1"].plan == "F1 S1"
    assert "hybrid-1" not in candidates(config.but(tasks=("sst",), scheme="sampled"))


def test_what_does_not_go_with_a_plan_is_left_out(config):
    found = candidates(config.but(gradients="pcgrad", feeds=("sst>quora",)))
    assert found["1-bert"].gradients == "pcgrad" and found["frozen"].gradients == "sum"
    assert "PAL 48" in found


def test_candidates_of_a_profile(tmp_path, tiny_encoder):
    runs = read_candidates(REPOSITORY / "params" / "demo" / "sharing.yaml")
    assert "hybrid-3" in runs and "frozen" in runs and runs["frozen"].corpus == "demo"
    base = f"{{encoder: {tiny_encoder}, tasks: [sst, quora], scheme: unified}}"
    path = tmp_path / "grid.yaml"
    own = "all: {}, fed: {feeds: [sst>quora]}, frozen: {plan: frozen, learning_rate: 0.01}"
    path.write_text(f"base: {base}\nruns: {{{own}}}\n")
    found = read_candidates(path)
    assert {"all", "fed", "F1 S1"} <= set(found) and "1-bert" not in found  # which is "all"
    assert found["frozen"].learning_rate == 0.01  # the file's own
    alone = read_candidates(path, ("sts",))
    assert "fed" not in alone and {config.tasks for config in alone.values()} == {("sts",)}


def test_the_plans_that_fit_come_first(config, calibration, course_data):
    run = load_or_run(config, device="cpu", progress=False)
    configs = {"1-bert": config.but(seed=7), "3-bert": config.but(plan="3-bert"), "frozen": config.but(plan="frozen")}
    everything = plan_table(configs, calibration, data=course_data, store=results_dir())
    assert everything["fits"].all() and everything["name"][0] == "1-bert"
    one = everything.iloc[0]
    assert one["score"] == pytest.approx(run.score()) and one["low"] < one["score"] < one["high"]
    assert one["seeds"] == 1 and one["score_step"] == one["steps"] == 5
    assert everything.loc[1:, "minutes"].is_monotonic_increasing  # no scores: the fastest first
    need = everything.set_index("name")["process_mib"]
    small = plan_table(configs, calibration, need["1-bert"], data=course_data, store=results_dir())
    assert small.set_index("name")["fits"].to_dict() == {"1-bert": True, "frozen": True, "3-bert": False}
    assert small["name"].iloc[-1] == "3-bert"


def test_lengths_may_be_given(config, calibration, course_data, monkeypatch):
    lengths = read_lengths(config)
    monkeypatch.delenv("MTBERT_DATA")
    table = plan_table({"1-bert": config}, calibration, lengths=lengths)
    assert table["steps"].tolist() == [5] and math.isnan(table["score"][0])


def test_a_part_of_a_run_has_the_score_of_its_curve(config, calibration, course_data):
    run = load_or_run(config.but(evals_per_epoch=5), device="cpu", progress=False)
    runs = planner._stored_runs(results_dir())
    like = config.but(evals_per_epoch=5, seed=3, accumulation=2)
    part = expected_score(like, runs, steps=3)
    assert part["score"] == run.curve["dev_score"][2] and part["score_step"] == 3 and math.isnan(part["low"])
    assert math.isnan(expected_score(like, runs, steps=0)["score"])
    assert expected_score(config, runs, steps=5)["seeds"] == 0
    minutes = plan_table({"1-bert": like}, calibration, minutes=1e-3, data=course_data, store=results_dir())
    assert minutes["steps_that_fit"][0] < 5 and not minutes["fits_minutes"][0]


def test_the_interval_of_several_tasks(config, course_data):
    runs = [load_or_run(config.but(seed=seed), device="cpu", progress=False) for seed in (1, 2)]
    found, parts = overall_interval(runs), {task: summarize(runs, task) for task in THREE}
    weights = {"sst": 1 / 3, "quora": 1 / 3, "sts": 1 / 6}
    assert found["score"] == pytest.approx((runs[0].score() + runs[1].score()) / 2)
    below = sum((weights[task] * (part["value"] - part["low"])) ** 2 for task, part in parts.items()) ** 0.5
    assert found["score"] - found["low"] == pytest.approx(below)
    alone = load_or_run(config.but(tasks=("sst",), scheme="sampled"), device="cpu", progress=False)
    expected = summarize([alone])
    assert overall_interval([alone]) == {"score": expected["value"], "low": expected["low"], "high": expected["high"]}


def test_the_list_says_what_fits(config, calibration, course_data):
    configs = {"1-bert": config, "frozen": config.but(plan="frozen")}
    load_or_run(config, device="cpu", progress=False)
    table = plan_table(configs, calibration, 4000.0, 30.0, data=course_data, store=results_dir())
    lines = describe(table, "4GB", 30.0).splitlines()
    assert lines[0] == "2 of 2 plans fit into 4GB and 30 minutes"
    assert lines[2].split()[0] == "1-bert" and " to " in lines[2] and "5 of 5" in lines[2]
    nothing = describe(table.assign(fits=False), "1MB", 30.0)
    assert nothing == "0 of 2 plans fit into 1MB and 30 minutes"


def test_measurements_are_written(config, calibration, course_data, tmp_path, monkeypatch):
    steps = pd.DataFrame({"step": ["one"], "seconds": [1.0]})
    made = Calibration(calibration.prices, steps, calibration.about | {"device": "cpu", "threads": 1})
    monkeypatch.setattr(planner, "measure_grid", lambda device: pd.DataFrame({"name": ["one"], "measured": [1 / 3]}))
    monkeypatch.setattr(planner, "load_or_calibrate", lambda config, device, threads, again: made)
    monkeypatch.setattr(planner, "count_lengths", lambda config, data: pd.DataFrame({"task": list(config.tasks)}))
    paths = list(planner.renew_measurements(tmp_path, "cpu", 1, course_data))
    assert [path.name for path in paths] == ["memory.csv", "speed.csv", "lengths.csv", "runs_predicted.csv"]
    assert (tmp_path / "memory.csv").read_text() == "name,measured\none,0.333333\n"
    assert pd.read_csv(tmp_path / "speed.csv")["threads"].tolist() == [1, 1]
    assert not list(tmp_path.glob(".*"))
