"""The README's numbers are those of the results store."""

import re

import pytest

from mtbert.bench.harness import read_rows
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


BENCH = [row for row in read_rows(REPOSITORY / "results" / "bench.csv") if row["device"].startswith("cpu")]
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


SPEEDS = {
    "a training step, 32 texts of 26 tokens": ("step", "32x26"),
    "a training step, 8 texts of 512 tokens": ("step", "8x512"),
    "an epoch of SST, against random batches and AdamW's defaults": ("epoch", "sst, 8544 rows"),
    "an epoch of 20,000 Quora pairs, likewise": ("epoch", "quora, 20000 rows"),
}


@pytest.mark.parametrize("label", SPEEDS)
def test_a_speed_is_what_was_measured(label):
    [row] = [row for row in BENCH if (row["benchmark"], row["size"]) == SPEEDS[label]]
    ratio, low, high = (float(row[name]) for name in ("ratio", "low", "high"))
    assert f"| {label} | {ratio:.2f} ({low:.2f} to {high:.2f}) |" in README


def test_the_memory_of_training_on_quora_was_measured():
    peaks = {row["precision"]: float(row["ours"]) for row in BENCH if row["benchmark"] == "memory"}
    assert set(peaks) == {"fp32", "bf16"} and max(peaks.values()) < 2048
