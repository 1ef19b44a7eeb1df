"""tools/offline_gpu: what is packed trains there, and comes back into a store; a run that finds no memory waits."""

import multiprocessing
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from mtbert_lab.store import read_run, run_folder
from tools.offline_gpu import driver, pack_up

BASE = """
base: {{corpus: demo, tasks: [sts], encoder: {}, steps_per_epoch: 4, train_rows: 40, learning_rate: 1.0e-3, epochs: 1}}
runs:
"""
RUNS = """
  fast: {learning_rate: 5.0e-2}
  slow: {learning_rate: 1.0e-5, seeds: [2, 1]}
"""


@pytest.fixture
def grid(tiny_encoder, tmp_path) -> Path:
    """Three tiny runs, of two seeds."""
    path = tmp_path / "tiny.yaml"
    path.write_text(BASE.format(tiny_encoder) + RUNS)
    return path


@pytest.fixture
def corpora() -> pack_up.Corpora:
    """The demo corpus."""
    return pack_up.Corpora(None)


def board(runs: list[dict], root: Path, memory: float = 20.0) -> driver.Board:
    """A board for two workers, with all encoders there, and a minute left."""
    (root / "arrived").mkdir()
    for run in runs:
        (root / "arrived" / run["encoder"]).touch()
    context = multiprocessing.get_context("spawn")
    return driver.Board(runs, root, 2, memory, time.monotonic() + 60, context)


def some_runs(number: int) -> list[dict]:
    """Runs of 8 GiB, named a, b, c, ..."""
    names = "abcdef"[:number]
    return [{"name": name, "run_id": name, "encoder": "minilm", "cost": 1, "gib": 8.0} for name in names]


def without_memory() -> str:
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")


def test_the_end_of_a_capture_does_not_hide_that_memory_ran_out():
    with pytest.raises(RuntimeError, match="unjoined") as caught:
        try:
            without_memory()
        finally:
            raise RuntimeError("CUDA error: capturing stream has unjoined work")
    assert driver.is_out_of_memory(caught.value)
    assert not driver.is_out_of_memory(RuntimeError("CUDA error: capturing stream has unjoined work"))


def test_runs_are_listed_in_the_order_of_their_seeds(grid, corpora):
    runs = pack_up.list_runs([str(grid), f"{grid}:slow"], corpora)
    assert [run["name"] for run in runs] == ["tiny: fast, seed 1", "tiny: slow, seed 1", "tiny: slow, seed 2"]
    assert len({run["run_id"] for run in runs}) == 3
    assert runs[0]["gib"] == pack_up.LARGE_GIB  # an encoder of unknown size
    assert [run["config"]["learning_rate"] for run in runs] == [5e-2, 1e-5, 1e-5]
    assert [run["name"] for run in pack_up.list_runs([f"{grid}:fast"], corpora)] == ["tiny: fast, seed 1"]


@pytest.mark.slow
def test_packed_runs_train_there_and_come_back(grid, corpora, tmp_path, monkeypatch):
    carried, root, out, store = (tmp_path / name for name in ("carried", "root", "out", "store"))
    runs = pack_up.list_runs([str(grid)], corpora)
    pack_up.pack(runs, carried, corpora, {}, 400_000)
    assert len(list(carried.glob("*-0*"))) > 1  # parts
    subprocess.run(["bash", carried / "tools" / "setup.sh", carried, root], check=True)
    monkeypatch.delenv("MTBERT_CACHE")
    command = [sys.executable, root / "tools" / "driver.py", root, "--device", "cpu", "--processes", "2"]
    done = subprocess.run([*command, "--check", "300"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "they agree" in done.stdout
    assert "end: 3 done, 0 failed, 0 not trained" in done.stdout

    subprocess.run([sys.executable, root / "tools" / "bring_back.py", root, out], check=True)
    assert sorted(path.name for path in out.iterdir()) == ["dev.tar.xz", "logs.tar.xz", "runs.tar.xz"]
    for name in ("runs", "dev"):
        with tarfile.open(out / f"{name}.tar.xz") as tar:
            tar.extractall(store, filter="data")
    for run in runs:
        assert read_run(run_folder(run["run_id"], [store])).cost["steps"] == 4
    assert len(list((store / "runs").iterdir())) == 3


def test_a_run_without_memory_is_offered_again_when_less_is_running(tmp_path):
    shared = board(some_runs(2), tmp_path)
    assert [shared.take(0), shared.take(1)] == [0, 1]
    assert not driver.attempt(shared, 0, without_memory)
    assert shared.states[0] == driver.WAITING
    assert shared.take(0) == 0  # 16 GiB, guessed anew as 20, still fit
    assert not driver.attempt(shared, 0, without_memory)
    assert shared.take(0) == driver.WAIT
    assert driver.attempt(shared, 1, lambda: "a score")
    assert shared.take(0) == 0
    assert not driver.attempt(shared, 0, without_memory)  # alone
    assert list(shared.states) == [driver.FAILED, driver.DONE]
    assert shared.take(0) == driver.OVER


def test_a_run_waits_for_its_encoder_and_is_not_offered_for_ever(tmp_path):
    shared = board(some_runs(1), tmp_path)
    arrived = tmp_path / "arrived" / "minilm"
    arrived.unlink()
    assert shared.take(0) == driver.WAIT
    arrived.touch()
    for state in (driver.WAITING, driver.FAILED):
        assert shared.take(0) == 0
        shared.lose(0)  # its process died
        assert shared.states[0] == state
    assert shared.take(0) == driver.OVER


def test_other_errors_fail_at_once_and_a_stop_is_none(tmp_path):
    shared = board(some_runs(2), tmp_path)
    for train, state, goes_on in ((lambda: 1 // 0, driver.FAILED, True), (sys.exit, driver.WAITING, False)):
        taken = shared.take(0)
        assert driver.attempt(shared, 0, train) == goes_on
        assert shared.states[taken] == state
    assert "ZeroDivisionError" in (tmp_path / "log.txt").read_text()


def test_losses_agree_where_they_are_close():
    ours = [9.0] * 40 + [2.0] * 20
    assert driver.agreement({"cuda": ours, "cpu": [2.3] * 60})[0]
    assert not driver.agreement({"cuda": ours, "cpu": [2.8] * 60})[0]
