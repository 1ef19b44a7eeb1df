"""The sentences of the box: their numbers, and what they say when the runs no longer say it."""

import math
import re
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from mtbert.config import RunConfig
from mtbert.paths import REPOSITORY
from mtbert_lab.report import findings
from mtbert_lab.report.findings import agem_keeps, box, gem_is_for, gem_keeps, nothing_gained
from mtbert_lab.report.sentences import told
from mtbert_lab.report.tables import Comparison, Grid, compare, read_runs, times_as_long
from mtbert_lab.statistics import NO_DIFFERENCE, TOO_FEW, paired
from mtbert_lab.store import MissingRun, Run

# What README.md says, and notebook 00, which nbval executes again.
README = (REPOSITORY / "README.md").read_text("utf8")
BLOCKS = dict(re.findall(r"<!-- ([a-z ]+) -->\n(.*?)\n<!-- end -->", README, re.DOTALL))


@cache
def compared() -> Comparison:
    return compare(read_runs("cpu", "hybrids"), "plan")


@pytest.fixture
def plans(committed) -> Comparison:
    return compared()


def test_without_runs_there_are_no_sentences():
    assert box() == ""


def test_a_gain_above_the_margin_is_told_where_the_sentence_denies_it(plans, decided):
    rows = pd.DataFrame([vars(decided(0.01, TOO_FEW)), vars(decided(0.001, NO_DIFFERENCE))])
    comparison = SimpleNamespace(differences=rows, overall=rows.iloc[1:])
    told = nothing_gained(comparison, comparison)
    assert "None of 4 differences" in told and "2 have too few runs to tell" in told and "no longer" not in told
    comparison.overall = rows
    told = nothing_gained(comparison, comparison)
    assert "no longer say this: overall is too few runs to tell or no difference" in told
    comparison.differences = pd.DataFrame([vars(decided(0.2, "better"))])
    assert "gain 1 is better, not better, by less than the margin" in nothing_gained(comparison, comparison)


def test_gem_has_no_verdict_before_six_pairs(synthetic_sequences):
    told = gem_is_for(synthetic_sequences(3))
    assert "3 seeds so far; a verdict needs 6" in told and "no longer" not in told
    assert "so far" not in gem_is_for(synthetic_sequences(6))
    assert "6,000 examples each" in told and "On CPUs it takes about 6 times as long" in told
    assert "It keeps 64 examples of each earlier task, and reads 32 of each a step." in told


def test_sequences_without_a_seed_that_all_have_are_left_out(synthetic_sequences):
    with pytest.raises(MissingRun, match="no seed"):
        gem_is_for(synthetic_sequences(0))
    with pytest.raises(MissingRun, match="A-GEM"):
        agem_keeps(synthetic_sequences(6))


def test_another_profile_has_no_such_sequences():
    assert told(gem_keeps, Grid((), {}, {})) == told(gem_is_for, Grid((), {}, {})) == ""


def test_agem_stands_beside_gem(synthetic_sequences):
    grid = synthetic_sequences(6)
    grid.runs["sequence, A-GEM"] = []
    assert agem_keeps(grid).endswith("fall by 0.075 less with A-GEM and by 0.075 less with GEM.")
    grid = synthetic_sequences(0)
    grid.runs["sequence, A-GEM"] = []
    with pytest.raises(MissingRun, match="no seed"):
        agem_keeps(grid)


def test_processor_times_are_compared_on_cpus_of_one_kind_by_one_version(synthetic):
    def run(seed: int, seconds: float, device: str = "cpu (A)", version: str = "1") -> Run:
        run = synthetic(RunConfig(seed=seed), 0.8)
        where = {"device": device, "mtbert": version}
        cost = run.cost | {"train_cpu_seconds": seconds}
        return replace(run, cost=cost, provenance=run.provenance | where)

    plain = [run(1, 10.0), run(2, 10.0), run(3, 10.0, "NVIDIA H100"), run(4, 10.0, "cpu (B)"), run(5, 10.0)]
    method = [run(1, 40.0), run(2, 90.0), run(3, 20.0, "NVIDIA H100"), run(4, 990.0), run(5, 990.0, version="2")]
    assert times_as_long([(plain, method)]) == pytest.approx(6)
    assert np.isnan(times_as_long([(plain[2:], method[2:])]))


@pytest.fixture
def synthetic_sequences(monkeypatch):
    """A grid of runs in sequence with so many seeds, of which GEM forgets .05 to .10 less."""

    def make(seeds: int) -> Grid:
        gaps = np.linspace(0.05, 0.10, seeds)
        monkeypatch.setattr(findings, "less_forgotten", lambda orders: paired(gaps))
        names = [f"{name}{method}" for name in findings.SEQUENCES for method in ("", ", GEM")]
        configs = {name: [RunConfig(memory_size=64, train_rows=6000)] for name in names}
        monkeypatch.setattr(findings, "times_as_long", lambda orders: 5.6)
        return Grid((), configs, {name: [] for name in names})

    return make


@pytest.mark.parametrize("sentence", [findings.recommendation, findings.limits])
def test_a_sentence_without_its_runs_is_left_out(sentence):
    assert findings.told(sentence) == ""


def test_readme_and_start_have_the_sizes_that_stored_runs_read(committed):
    start = (REPOSITORY / "notebooks" / "00_start.ipynb").read_text("utf8")
    rows = {}
    for name in ("hybrids", "singles"):
        grid = read_runs("cpu", name)
        for runs in grid.runs.values():
            rows |= runs[0].provenance["rows"]
    for task in ("sst", "quora", "sts", "cfimdb"):
        sizes = f"{rows[f'train {task}']:,} / {rows[f'dev {task}']:,}"
        assert sizes in README and sizes in start


def test_a_difference_is_marked_with_its_verdict(plans):
    lines = findings.plan_differences(plans).splitlines()[2:]
    assert [line.split(" | ")[0].strip("| ") for line in lines] == list(findings.PLANS)
    marks = {"better": r"\*\*\+", NO_DIFFERENCE: r"= \|", TOO_FEW: r"\? \|"}
    of_quora = re.compile(r"(?:[^|]*\|){5}([^|]*)\|")
    for row in plans.differences[plans.differences["task"] == "quora"].itertuples():
        [cell] = [of_quora.match(line)[1] for line in lines if line.startswith(f"| {row.run} ")]
        mark = r"\*\+" if row.is_small else marks[row.verdict]
        assert re.search(mark, cell) and f"{row.value:+.3f}" in cell


def test_the_points_of_the_figure_are_the_differences(plans):
    points = findings.plan_points(plans, "quora").set_index("name")
    assert list(points.index) == list(findings.PLANS)
    assert points.loc["1-bert", "value"] == 0 and math.isnan(points.loc["1-bert", "low"])
    rows = plans.differences[plans.differences["task"] == "quora"].set_index("run")
    assert points.loc[rows.index, "value"].tolist() == rows["value"].tolist()


@pytest.mark.parametrize("line", BLOCKS["findings"].splitlines())
def test_a_sentence_has_few_numbers(line):
    assert 1 <= len(re.findall(r"\b\d+\.\d+|\b\d+(?:,\d+)?\b(?!-)", line)) <= 7
