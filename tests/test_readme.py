"""The README's numbers are those of the results store."""

import re

import pytest

from mtbert.paths import REPOSITORY
from mtbert.results import load_or_run, summarize
from mtbert.sweep import read_grid

README = (REPOSITORY / "README.md").read_text(encoding="utf8")
ROW = re.compile(
    r"^\| (?P<run>[^|]+?) \| (?P<value>[\d.]+) \((?P<low>[\d.]+) to (?P<high>[\d.]+)\) \| (?P<seeds>\d+) \|", re.M
)
ROWS = [match.groupdict() for match in ROW.finditer(README)]


def test_the_table_is_there():
    assert len(ROWS) >= 6


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["run"])
def test_a_row_is_what_the_store_holds(row):
    configs = read_grid(REPOSITORY / "params" / "cpu" / "single_task.yaml")[row["run"]]
    runs = [load_or_run(config, store=REPOSITORY / "results", train_missing=False) for config in configs]
    score = summarize(runs)
    assert [row["value"], row["low"], row["high"]] == [f"{score[name]:.3f}" for name in ("value", "low", "high")]
    assert int(row["seeds"]) == score["seeds"]


PLANS = read_grid(REPOSITORY / "params" / "cpu" / "sharing.yaml")
PLAN_ROW = re.compile(
    r"^\| (?P<run>[^|]+?) \|(?P<cells>(?: [\d.]+ \([\d.]+ to [\d.]+\) \|){3} [\d.]+ \| [\d.]+ M \|)", re.M
)
PLAN_ROWS = {match["run"]: match["cells"] for match in PLAN_ROW.finditer(README)}


def test_every_plan_has_a_row():
    assert set(PLAN_ROWS) == set(PLANS)


@pytest.mark.parametrize("name", PLAN_ROWS)
def test_a_plans_row_is_what_the_store_holds(name):
    runs = [load_or_run(config, store=REPOSITORY / "results", train_missing=False) for config in PLANS[name]]
    scores = [summarize(runs, task) for task in runs[0].config.tasks]
    cells = [f" {s['value']:.3f} ({s['low']:.3f} to {s['high']:.3f}) |" for s in scores]
    overall = sum(run.score() for run in runs) / len(runs)
    cells += [f" {overall:.3f} |", f" {runs[0].cost['parameters'] / 1e6:.1f} M |"]
    assert PLAN_ROWS[name] == "".join(cells)
