"""A tiny form of every benchmark runs."""

import contextlib
import io
import math
from types import SimpleNamespace

import pytest
import torch

from benchmarks import catalogue, harness, steps
from benchmarks.harness import Setting
from benchmarks.ours import words_table
from benchmarks.steps import violating_gradients
from mtbert.data.tokens import tokenize

GRID = """
base: {tasks: [sst, quora, sts], scheme: unified}
runs: {1-bert: {}, 3-bert: {plan: 3-bert}, batch 1: {batch_size: 1}}
"""
TINY = {
    "step": dict(B=4, T=8),
    "busy": dict(B=2, T=8, programs=False),
    "epoch": dict(task="sst"),
    "plans": dict(B=2, T=8, precision="bf16"),
    "pal": dict(B=2, T=8, s=12, heads=3),
    "pcgrad": dict(B=2, T=8),
    "distillation": dict(B=2, T=8),
    "gem": dict(parameters=4096, memories=3),
    "sweep": dict(count=2, workers=1),
}


def called_once(call, work: float = 1.0):
    """As `timed`, without a clock."""

    def run(repeat: int) -> float:
        call()
        return 1.0 / work

    return run


def run_here(command, **options):
    """As `subprocess.run` of a script for Python, in this process."""
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        exec(command[-1], {})
    return SimpleNamespace(stdout=shown.getvalue())


@pytest.mark.parametrize("name", catalogue.BENCHMARKS)
def test_every_benchmark_runs(name, tiny_encoder, course_data, tmp_path, monkeypatch, request):
    if name == "sweep":
        request.getfixturevalue("threads_as_workers")
    if name == "busy":
        monkeypatch.setattr(steps.subprocess, "run", run_here)
    monkeypatch.setattr(steps, "timed", called_once)
    monkeypatch.setattr(torch.nn.Module, "compile", lambda model, **options: None)  # a minute
    size = dict(TINY[name])
    if name == "plans":
        size["grid"] = tmp_path / "grid.yaml"
        size["grid"].write_text(GRID)
    benchmarks = {name: (catalogue.BENCHMARKS[name][0], (size,))}
    setting = Setting(encoder=tiny_encoder, repeats=1)
    outcomes = list(harness.run_benchmarks(benchmarks, setting, tmp_path / "bench.csv"))
    skipped = [outcome.text for outcome in outcomes if ": skipped, " in outcome.text]
    assert not [outcome for outcome in outcomes if outcome.failed], outcomes
    assert all("torchjd" in text or "quadprog" in text for text in skipped), skipped
    rows = harness.read_rows(tmp_path / "bench.csv") if len(outcomes) > len(skipped) else []
    assert len(rows) == len(outcomes) - len(skipped)
    for row in rows:
        assert 0 < float(row["ratio"]) < math.inf


def test_another_process_takes_the_same_number_of_threads(tiny_encoder, monkeypatch):
    found = []
    answer = SimpleNamespace(stdout="7.5")
    monkeypatch.setattr(steps.subprocess, "run", lambda command, env, **options: found.append(env) or answer)
    torch.set_num_threads(2)  # not what the environment of tests says
    steps.busy_cores(Setting(encoder=tiny_encoder), B=1, T=4, programs=False).ours(0)
    assert found[0]["OMP_NUM_THREADS"] == "2"


@pytest.mark.parametrize("task", ["sst", "quora"])
def test_random_words_have_the_given_length(task):
    table = words_table(task, 20, 30, "minilm")
    lengths = tokenize(task, table, "minilm").lengths
    assert lengths[0] == 30 and lengths.min() >= 24 and lengths.max() == 30
    assert set(table["label"]) <= set(range(5)) and len(set(table["label"])) > 1


def test_every_constraint_is_violated():
    g, M = violating_gradients(4096, 3)
    assert (M @ g < 0).all()
