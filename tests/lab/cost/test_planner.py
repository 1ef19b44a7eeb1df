"""What fits into a budget, in which order, with which expected score."""

import math
import shutil

import pytest

from mtbert_lab.cost.planner import BudgetError, describe, parse_memory, plan_table, read_candidates
from mtbert_lab.cost.time import Speed


@pytest.mark.parametrize(
    "text, mib", [("2GB", 2e9 / 2**20), ("512MiB", 512), ("1.5 GiB", 1536), ("800mb", 8e8 / 2**20), ("2097152 B", 2)]
)
def test_memory_is_read(text, mib):
    assert parse_memory(text) == pytest.approx(mib)


@pytest.mark.parametrize("text", ["2XB", "GB", "", "2", "-2GB", "2GB3", "1e3MB", "nan GB", "0GB"])
def test_memory_that_cannot_be_read(text):
    with pytest.raises(BudgetError, match="memory is"):
        parse_memory(text)


@pytest.mark.parametrize("minutes", [0.0, -1.0, math.nan])
def test_minutes_that_cannot_be(minutes):
    with pytest.raises(BudgetError, match="minutes is"):
        plan_table({}, minutes=minutes)


def test_candidates_of_a_profile(tmp_path, tiny_encoder):
    assert {"1-bert", "3-bert", "hybrid-3", "frozen", "F3 S3", "2 layers", "PAL 48", "batch 8"} <= set(
        read_candidates(None)
    )
    base = f"{{encoder: {tiny_encoder}, tasks: [sst, quora], scheme: unified}}"
    path = tmp_path / "grid.yaml"
    path.write_text(f"base: {base}\nseeds: [3, 4]\nruns: {{all: {{}}, frozen: {{plan: frozen}}}}\n")
    found = read_candidates(path)
    assert [(name, config.plan_text, config.seed) for name, config in found.items()] == [
        ("all", "1-bert", 3), ("frozen", "frozen", 3),
    ]  # fmt: skip


def test_the_plans_that_fit_come_first(one_epoch, speeds, course_data, run_of):
    run = run_of(one_epoch)
    configs = {
        "1-bert": one_epoch.but(seed=7),
        "3-bert": one_epoch.but(plan="3-bert"),
        "frozen": one_epoch.but(plan="frozen"),
    }
    everything = plan_table(configs, data=course_data)
    assert everything["fits"].all() and everything["name"][0] == "1-bert"
    one = everything.iloc[0]
    assert one["score"] == pytest.approx(run.score()) and one["low"] < one["score"] < one["high"]
    assert one["steps"] == 5
    assert everything.loc[1:, "minutes"].is_monotonic_increasing  # no scores: the fastest first
    need = everything.set_index("name")["mib"]
    small = plan_table(configs, need["1-bert"], data=course_data)
    assert small.set_index("name")["fits"].to_dict() == {"1-bert": True, "frozen": True, "3-bert": False}
    assert small["name"].iloc[-1] == "3-bert"


def test_each_run_has_the_speed_of_its_own_steps(one_epoch, speeds, course_data, monkeypatch):
    monkeypatch.setattr(speeds, "by_precision", {"fp32": Speed(2e-6, 1e-6), "bf16": Speed(1e-6, 5e-7)})
    configs = {precision: one_epoch.but(precision=precision) for precision in ("fp32", "bf16")}
    minutes = plan_table(configs, data=course_data).set_index("name")["minutes"]
    assert minutes["fp32"] == pytest.approx(2 * minutes["bf16"])


def test_the_score_is_that_of_all_seeds_of_a_run(one_epoch, speeds, course_data, run_of):
    runs = [run_of(one_epoch.but(seed=seed)) for seed in (1, 2)]
    run_of(one_epoch.but(seed=2, cosine_every=1))  # the same training
    like = {"alike": one_epoch.but(seed=3, accumulation=2), "unlike": one_epoch.but(epochs=2)}
    table = plan_table(like, data=course_data).set_index("name")
    assert table["score"]["alike"] == pytest.approx((runs[0].score() + runs[1].score()) / 2)
    assert math.isnan(table["score"]["unlike"])


def test_the_score_is_that_of_the_data_that_are_here(one_epoch, speeds, course_data, tmp_path, run_of, cut):
    run_of(one_epoch)
    other = shutil.copytree(course_data, tmp_path / "other")
    cut(other / "ids-sst-dev.csv", 3)
    for folder in (course_data, other):
        run = run_of(one_epoch, data=folder)
        [score] = plan_table({"one": one_epoch}, data=folder)["score"]
        assert score == pytest.approx(run.score())


def test_the_list_says_what_fits_and_why_others_do_not(one_epoch, speeds, course_data, run_of):
    run_of(one_epoch)
    configs = {
        "fits": one_epoch,
        "no layer 9": one_epoch.but(layers=9),
        "3-bert": one_epoch.but(plan="3-bert"),
    }
    table = plan_table(configs, data=course_data)
    need = table.set_index("name")["mib"]
    table = plan_table(configs, (need["fits"] + need["3-bert"]) / 2, 30.0, data=course_data)
    first, _, fits, *others = describe(table, "4GB", 30.0).splitlines()
    assert first == "1 of 3 plans fit into 4GB and 30 minutes"
    assert fits.split()[0] == "fits" and " to " in fits and " 5 " in fits
    assert sorted(others)[0].startswith(f"3-bert does not fit: needs {need['3-bert'] * 2**20 / 1e9:.2f} GB of memory, ")
    assert sorted(others)[1] == (
        f"no layer 9 does not fit: cannot be predicted: layers: 9, but the encoder {one_epoch.encoder!r} has 2"
    )
    late = plan_table({"slow": one_epoch}, minutes=1e-9, data=course_data)
    assert "slow does not fit: needs 0.0 minutes, 1e-09 are allowed" in describe(late, "4GB", 1e-9)
    nothing = plan_table({"no layer 9": configs["no layer 9"]}, data=course_data)
    assert describe(nothing, "4GB", 30.0).count("does not fit") == 1
