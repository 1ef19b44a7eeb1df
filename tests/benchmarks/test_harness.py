"""What is measured in which order, what the table says, and that a row that cannot run stops no other."""

import os
import threading
from functools import partial

import pandas as pd
import pytest
import torch
from torch._inductor.runtime import cache_dir_utils

from benchmarks import catalogue, harness
from benchmarks.__main__ import main
from benchmarks.harness import Contest, Peer, Setting
from mtbert.data.tables import DataError


def costs(*values: float):
    """A run that costs these, repeat by repeat."""
    return lambda repeat: values[repeat]


def failing(error: Exception):
    def run(repeat: int) -> float:
        raise error

    return run


def test_contenders_take_turns_in_their_setting(monkeypatch):
    calls = []
    for name in ("keep_freed_memory", "free_by_default"):
        monkeypatch.setattr(harness, name, lambda name=name: calls.append(name))

    def counted(name: str):
        return lambda repeat: calls.append((name, repeat)) or 1.0

    harness.interleave(Contest("s", counted("ours"), {"p": Peer(counted("other"), "torch")}), 2)
    keep, free = "keep_freed_memory", "free_by_default"
    assert calls == [keep, ("ours", 0), free, ("other", 0), free, ("other", 1), keep, ("ours", 1), keep]


def test_the_medians_their_ratio_and_the_range_of_the_pairs():
    contest = Contest("s", costs(1, 2, 6), {"p": Peer(costs(4, 4, 6))})
    [row], _ = harness.compare(contest, 3)
    assert (row["ours"], row["theirs"], row["ratio"], row["low"], row["high"]) == (2, 4, 2, 1, 4)
    assert (row["peer"], row["size"], row["unit"], row["repeats"]) == ("p", "s", "ms", 3)


def test_the_time_of_a_call_is_per_unit_of_work(monkeypatch):
    calls = []  # each takes 20 ms of the clock
    monkeypatch.setattr(harness, "Timer", partial(harness.Timer, timer=lambda: 0.02 * len(calls)))
    assert harness.timed(lambda: calls.append(1), work=4)(0) == pytest.approx(5)
    assert 0.02 * len(calls) >= harness.LEAST_SECONDS


def row(benchmark="b", size="s", peer="p", ratio=1.5, device="cpu (A)", **more) -> dict:
    return (
        dict(benchmark=benchmark, size=size, peer=peer, ratio=ratio, device=device, encoder="e", precision="fp32")
        | more
    )


def test_a_row_replaces_the_one_of_its_name_and_leaves_the_others_as_they_are(tmp_path):
    path = tmp_path / "folder" / "bench.csv"
    for size in ("1", "2", "3"):
        harness.write_row(path, row(size=size, ratio=1 / 3))
    lines = path.read_text().splitlines()
    harness.write_row(path, row(size="2", ratio=2.0, device="cpu (B)"))
    renewed = path.read_text().splitlines()
    assert [lines[i] == renewed[i] for i in range(4)] == [True, True, False, True] and len(renewed) == 4
    assert pd.read_csv(path)["ratio"].tolist() == [0.333333, 2, 0.333333]


def test_two_writers_lose_no_row(tmp_path):
    def write(peer: str) -> None:
        for size in range(8):
            harness.write_row(tmp_path / "bench.csv", row(peer=peer, size=str(size)))

    writers = [threading.Thread(target=write, args=(peer,)) for peer in ("p", "q")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(harness.read_rows(tmp_path / "bench.csv")) == 16


@pytest.mark.parametrize(
    "other", [dict(peer="q"), dict(precision="bf16"), dict(encoder="f"), dict(device="NVIDIA H100"), dict(size="t")]
)
def test_what_was_measured_otherwise_is_another_row(tmp_path, other):
    harness.write_row(tmp_path / "bench.csv", row())
    harness.write_row(tmp_path / "bench.csv", row(**other))
    assert len(harness.read_rows(tmp_path / "bench.csv")) == 2


def build(setting: Setting, problem: Exception | None = None, peer: Exception | None = None) -> Contest:
    if problem is not None:
        raise problem
    peers = {"gone": Peer(failing(peer), "torch")} if peer else {}
    return Contest("n", lambda repeat: 1.0, peers | {"p": Peer(lambda repeat: 2.0)})


def outcomes(path, *sizes: dict) -> list[str]:
    return [o.text for o in harness.run_benchmarks({"a": (build, sizes)}, Setting(), path / "bench.csv")]


@pytest.mark.parametrize(
    "size, text",
    [
        (dict(problem=DataError("fetch them")), "a: skipped, fetch them"),
        (dict(problem=ZeroDivisionError("by nought")), "a: failed, ZeroDivisionError: by nought"),
        (dict(peer=ImportError("no quadprog\nand more")), "a n / gone: skipped, ImportError: no quadprog"),
    ],
)
def test_a_benchmark_that_fails_is_reported_and_stops_no_other(tmp_path, size, text):
    texts = outcomes(tmp_path, size, {})
    assert texts[0] == text
    assert texts[1:] == ["a n / p: ours 1 ms, peer 2, ratio 2 (2 to 2)"] * (2 if "peer" in size else 1)
    assert [row["peer"] for row in harness.read_rows(tmp_path / "bench.csv")] == ["p"]


def test_ours_must_not_fail(tmp_path):
    contest = Contest("n", failing(ValueError("no")), {"p": Peer(costs(1), "torch")})
    [outcome] = harness.run_benchmarks({"a": (lambda setting: contest, ({},))}, Setting(), tmp_path / "bench.csv")
    assert outcome.failed and outcome.text == "a: failed, ValueError: no"


def test_the_command_prints_and_writes_the_rows(tmp_path, monkeypatch, capsys):
    fakes = {"a": (build, ({},)), "b": (build, (dict(problem=ValueError("no")),))}
    monkeypatch.setattr(catalogue, "BENCHMARKS", fakes)
    out = tmp_path / "bench.csv"
    arguments = ["--repeats", "2", "--threads", "1", "--out", str(out)]
    assert main([*arguments, "--only", "a"]) == 0
    assert "a n / p: ours 1 ms, peer 2, ratio 2 (2 to 2)" in capsys.readouterr().out
    [row] = harness.read_rows(out)
    assert row["repeats"] == "2" and row["threads"] == "1" and row["encoder"] == "minilm"
    assert row["torch"] == torch.__version__ and row["transformers"] and row["device"].startswith("cpu")
    assert main(arguments) == 1
    output, errors = capsys.readouterr()
    assert errors.splitlines()[0] == "[1 of 2] a " and "[2 of 2] b problem " in errors
    assert "b: failed, ValueError: no" in output


def test_torch_compiles_in_the_cache_and_not_where_another_user_may_have_put_code(monkeypatch, isolated):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "as it was")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.setattr(harness, "run_benchmarks", lambda *arguments: iter(()))
    assert main(["--only", "step"]) == 0
    assert cache_dir_utils.cache_dir() == os.environ["TORCHINDUCTOR_CACHE_DIR"] == f"{isolated}/cache/compiled"
