"""tools/offline_gpu: what is packed trains there, and comes back into a store; a run that finds no memory waits."""

import json
import multiprocessing
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from mtbert.paths import REPOSITORY
from mtbert_lab.store import read_run, run_folder
from tools.offline_gpu import driver, pack_up

TOOLS = REPOSITORY / "tools" / "offline_gpu"
BASE = """
base: {{corpus: demo, tasks: [sts], encoder: {}, steps_per_epoch: 4, train_rows: 40, learning_rate: 1.0e-3, epochs: 1}}
runs:
"""
RATES = """
  fast: {learning_rate: 5.0e-2}
  slow: {learning_rate: 1.0e-5}
"""
RUNS = """
  plain: {batch_size: 8}
  own rate: {batch_size: 8, learning_rate: 1.0e-4}
"""


@pytest.fixture
def grid(tiny_encoder, tmp_path) -> Path:
    """Two tiny runs; for one of them the runs of another grid of the folder choose the learning rate."""
    folder = tmp_path / "grids"
    folder.mkdir()
    (folder / pack_up.RATES).write_text(BASE.format(tiny_encoder) + RATES)
    (folder / "two.yaml").write_text(BASE.format(tiny_encoder) + RUNS)
    return folder / "two.yaml"


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


def test_runs_have_ids_and_follow_the_learning_rate_of_their_folder(grid, corpora):
    fast, slow, plain, own = pack_up.list_runs([str(grid.with_name(pack_up.RATES)), str(grid)], corpora)
    assert [run["name"] for run in (fast, own)] == ["learning_rate: fast, seed 1", "two: own rate, seed 1"]
    assert len({run["run_id"] for run in (fast, slow, plain, own)}) == 4
    assert plain["gib"] == pack_up.LARGE_GIB  # an encoder of unknown size
    assert [rate["config"]["learning_rate"] for rate in plain["rates"]] == [5e-2, 1e-5]
    assert [rate["after"] for rate in plain["rates"]] == [fast["run_id"], slow["run_id"]]
    assert "rates" not in own
    with pytest.raises(SystemExit, match="name it among the grids"):
        pack_up.list_runs([str(grid)], corpora)


@pytest.mark.slow
def test_packed_runs_train_there_and_come_back(grid, corpora, tmp_path, monkeypatch):
    carried, root, out, store = (tmp_path / name for name in ("carried", "root", "out", "store"))
    runs = pack_up.list_runs([str(grid.with_name(pack_up.RATES)), f"{grid}:plain"], corpora)
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
    fast, slow, plain = json.loads((root / "runs.json").read_text())
    scores = [read_run(run_folder(run["run_id"], [store])).score() for run in (fast, slow)]
    best = plain["rates"][scores.index(max(scores))]
    assert read_run(run_folder(best["run_id"], [store])).cost["steps"] == 4
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


def test_a_run_waits_for_its_encoder_and_for_the_choice_of_its_learning_rate(tmp_path):
    first, second = some_runs(2)
    second["rates"] = [{"after": "a", "run_id": "c"}]
    shared = board([first, second], tmp_path)
    arrived = tmp_path / "arrived" / "minilm"
    arrived.unlink()
    assert shared.take(0) == driver.WAIT
    arrived.touch()
    assert shared.take(0) == 0
    assert shared.take(1) == driver.WAIT
    shared.lose(0)  # its process died
    assert shared.take(0) == 0
    shared.lose(0)
    assert shared.states[0] == driver.FAILED
    assert shared.take(1) == 1


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
