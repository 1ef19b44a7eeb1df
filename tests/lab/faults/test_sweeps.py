"""Sweeps whose processes are stopped or killed: every run is stored once, with the numbers of an undisturbed sweep."""

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from filelock import Timeout

from mtbert.paths import REPOSITORY
from mtbert_lab.paths import results_dir
from mtbert_lab.store.grids import read_grids
from mtbert_lab.store.loading import load_model
from mtbert_lab.store.models import run_lock
from mtbert_lab.store.runs import load_or_run
from mtbert_lab.sweep import SweepRun, look_up

slow = pytest.mark.slow
OPTIONS = ("--in-order", "--threads", "1", "--device", "cpu")


@pytest.fixture(autouse=True)
def ctrl_c(monkeypatch):
    """SIGINT is not ignored, as it is if these tests run in the background of a script; checkpoints come often."""
    monkeypatch.setenv("MTBERT_CHECKPOINT_STEPS", "20")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def grid(tiny_config, tmp_path) -> Path:
    """Two runs of some seconds, and two short ones after them."""
    path = tmp_path / "grid.yaml"
    base = f"{{corpus: course, encoder: {tiny_config.encoder}, batch_size: 8, epochs: 1, steps_per_epoch: 200}}"
    runs = "{one: {}, two: {pooling: cls}, three: {steps_per_epoch: 2}, four: {steps_per_epoch: 3}}"
    path.write_text(f"base: {base}\nruns: {runs}\n")
    return path


@pytest.fixture
def start():
    """Start a command of a module, `mtbert train` by default; what still runs at the end of the test is killed."""
    processes = []

    def start(*arguments, module: str = "mtbert", output: int = subprocess.PIPE, inside=()) -> subprocess.Popen:
        command = [*inside, sys.executable, "-m", module, *map(str, arguments)]
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=output, stderr=output, text=True, process_group=0)
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def runs_of(grid: Path) -> list[SweepRun]:
    return look_up(read_grids([grid]))


def step_of(run: SweepRun) -> int:
    """The step of a run's checkpoint; 0: it has none."""
    path = Path(os.environ["MTBERT_CACHE"], "models", run.run_id, "checkpoint.pt")
    return torch.load(path, weights_only=True)["progress"]["step"] if path.exists() else 0


def wait_for(condition, seconds: float = 200.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "this took too long"
        time.sleep(0.05)


def processes_of(parent: int, name: str) -> list[int]:
    """The processes below `parent` that run, whose command line contains the name."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            above = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if above == parent:
                found += processes_of(int(folder.name), name)
                found += [int(folder.name)] if name in (folder / "cmdline").read_text() else []
        except OSError:
            pass  # it has ended
    return found


def check_all(runs: list[SweepRun], tmp_path: Path) -> None:
    """Every run is stored once, is in the tables once, and has the numbers of one that nobody disturbed."""
    folders = [path.name for path in (results_dir() / "runs").iterdir()]
    assert sorted(folders) == sorted(run.run_id for run in runs)
    assert sorted(pd.read_csv(results_dir() / "scores.csv")["run_id"].unique()) == sorted(folders)
    for run in runs:
        stored = load_or_run(run.config, train_missing=False)
        model = load_model(run.run_id).state_dict()
        whole = load_or_run(run.config, store=tmp_path / "undisturbed", device="cpu", progress=False)
        pd.testing.assert_frame_equal(stored.predictions, whole.predictions, check_exact=True)
        assert stored.curve["train_loss"].tolist() == whole.curve["train_loss"].tolist()
        assert all(torch.equal(tensor, model[name]) for name, tensor in load_model(run.run_id).state_dict().items())


def test_a_killed_worker_loses_no_run(grid, course_data, start, tmp_path):
    runs = runs_of(grid)
    sweep = start("train", grid, *OPTIONS, "--workers", 2)
    wait_for(lambda: step_of(runs[0]) and step_of(runs[1]))
    os.kill(processes_of(sweep.pid, "spawn_main")[0], signal.SIGKILL)
    output, errors = sweep.communicate(timeout=300)
    assert sweep.returncode == 0 and output.count(": dev ") == 4, errors
    assert errors.count("goes on from its checkpoint, on another worker") == 1
    check_all(runs, tmp_path)


@slow
def test_a_sweep_goes_on_after_the_death_of_itself(grid, course_data, start, tmp_path):
    runs = runs_of(grid)
    sweep = start("train", grid, *OPTIONS, "--workers", 2)
    wait_for(lambda: step_of(runs[0]) and step_of(runs[1]))
    workers = processes_of(sweep.pid, "spawn_main")
    sweep.kill()
    wait_for(lambda: not any("spawn_main" in command_of(worker) for worker in workers), 10.0)
    step = step_of(runs[0])
    sweep = start("train", grid, *OPTIONS, "--workers", 2)
    wait_for(lambda: step_of(runs[0]) > step)
    sweep.terminate()
    _, errors = sweep.communicate(timeout=60)
    assert sweep.returncode == 143 and errors == "stopped; the same command goes on from the checkpoints\n"
    assert not any("spawn_main" in command_of(worker) for worker in workers)
    assert start("train", grid, *OPTIONS).wait(300) == 0
    check_all(runs, tmp_path)


def command_of(process: int) -> str:
    path = Path(f"/proc/{process}/cmdline")
    return path.read_text() if path.exists() else ""


def test_two_sweeps_at_once_train_every_run_once(grid, course_data, start, tmp_path):
    sweeps = [start("train", grid, *OPTIONS, "--workers", 1) for _ in range(2)]
    outputs = [sweep.communicate(timeout=300) for sweep in sweeps]
    assert [sweep.returncode for sweep in sweeps] == [0, 0], outputs
    trained = [line for output, _ in outputs for line in output.splitlines() if " min)" in line]
    assert sorted(line.split("] ")[1].split(",")[0] for line in trained) == ["four", "one", "three", "two"], outputs
    check_all(runs_of(grid), tmp_path)


class OnATerminal:
    """`mtbert train` in a process whose stderr is a terminal; text: what was written there."""

    def __init__(self, *arguments):
        self.terminal, stderr = pty.openpty()
        termios.tcsetwinsize(stderr, (30, 120))
        command = [sys.executable, "-m", "mtbert_lab", "train", *map(str, arguments)]
        self.process = subprocess.Popen(
            command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True
        )
        os.close(stderr)
        self.text = ""

    def read_until(self, *texts: str, seconds: float = 60.0) -> None:
        """Read until all of these texts have been written, or, without any, until no process can write any more."""
        end = time.monotonic() + seconds
        while not texts or not all(text in self.text for text in texts):
            ready, _, _ = select.select([self.terminal], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"nothing more came after {self.text[-2000:]!r}"
            try:
                read = os.read(self.terminal, 4096)
            except OSError:  # Linux: all processes with this terminal have ended
                read = b""
            if not read:
                break
            self.text += read.decode(errors="replace")

    def end(self) -> tuple[int, str]:
        """Wait for this process and its workers; exit code and stdout."""
        self.read_until(seconds=60.0)
        os.close(self.terminal)
        output, _ = self.process.communicate(timeout=30)
        return self.process.returncode, output


@slow
def test_ctrl_c_on_a_terminal(grid, course_data, tmp_path):
    runs = runs_of(grid)
    stopped = OnATerminal(grid, *OPTIONS, "--workers", 2)
    stopped.read_until(f"one, seed 1 ({runs[0].run_id})", "two, seed 1 (", "/200", "runs:")
    wait_for(lambda: step_of(runs[0]) and step_of(runs[1]))
    os.killpg(stopped.process.pid, signal.SIGINT)  # as a terminal does
    assert stopped.end() == (130, "0 of 4 are stored already\n")
    assert "the same command goes on from the checkpoints" in stopped.text
    assert "three" not in stopped.text and "Traceback" not in stopped.text and "WARNING" not in stopped.text
    step = step_of(runs[0])
    assert 0 < step < 200 and not any(run.is_stored for run in runs_of(grid))
    again = OnATerminal(grid, *OPTIONS, "--only", "one")
    again.read_until(f"one, seed 1 ({runs[0].run_id})", "/200")
    code, output = again.end()
    assert code == 0 and output.count(": dev ") == 1
    check_all(runs[:1], tmp_path)


@pytest.fixture
def cluster(start, tmp_path, monkeypatch):
    """Start a scheduler on a port, and two workers, as a user does by hand."""
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "3")

    def cluster(port: int) -> list[subprocess.Popen]:
        quiet = {"output": subprocess.DEVNULL}
        address = f"tcp://127.0.0.1:{port}"
        scheduler = start(
            "--host", "127.0.0.1", "--port", port, "--no-dashboard", module="distributed.cli.dask_scheduler", **quiet
        )
        options = ("--nthreads", 1, "--no-dashboard", "--local-directory", tmp_path / "dask")
        return [scheduler] + [start(address, *options, module="distributed.cli.dask_worker", **quiet) for _ in range(2)]

    return cluster


@slow
def test_a_cluster_of_the_users_own(grid, course_data, start, cluster, tmp_path):
    """A worker is killed, then the scheduler; another cluster gets the same command."""
    runs = runs_of(grid)
    scheduler, *workers = cluster(23456)
    sweep = start("train", grid, *OPTIONS, "--scheduler", "tcp://127.0.0.1:23456")
    wait_for(lambda: step_of(runs[0]) and step_of(runs[1]))
    workers[0].kill()
    wait_for(lambda: any(run.is_stored for run in runs_of(grid)))
    scheduler.kill()
    output, errors = sweep.communicate(timeout=60)
    assert sweep.returncode == 1 and errors.endswith(
        "error: the scheduler was lost; the same command goes on from the checkpoints\n"
    )
    assert output.count(": dev ") < 4
    cluster(23457)
    sweep = start("train", grid, *OPTIONS, "--scheduler", "tcp://127.0.0.1:23457")
    output, errors = sweep.communicate(timeout=300)
    assert sweep.returncode == 0 and output.endswith(" min)\n"), errors
    check_all(runs, tmp_path)


CLOCKS = {
    "forward by an hour a second": "now() + 360 * int(10 * time.monotonic())",
    "back and forward by 20 seconds": "now() - 20 * (int(time.monotonic() / 3) % 2)",
}


@slow
@pytest.mark.parametrize("clock", CLOCKS)
def test_a_clock_that_jumps_loses_no_run(grid, course_data, start, tmp_path, monkeypatch, clock):
    """The clock of all processes. Farther back, dask may wait until the clock is again where it was."""
    (tmp_path / "sitecustomize.py").write_text(f"import time\nnow = time.time\ntime.time = lambda: {CLOCKS[clock]}\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(REPOSITORY)]))
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL", "2s")  # how often dask looks, by default 5 minutes
    sweep = start("train", grid, *OPTIONS, "--workers", 2)
    output, errors = sweep.communicate(timeout=300)
    assert sweep.returncode == 0 and " is lost" not in errors, errors
    minutes = [float(text) for text in re.findall(r", (\S+) min\)", output)]
    assert len(minutes) == 4 and all(0 <= spent < 5 for spent in minutes), output
    assert "about" not in output, "what is left is less than a minute"
    check_all(runs_of(grid), tmp_path)


@pytest.fixture
def two_hosts():
    """How to start a process on each of two hosts, 10.77.0.1 and 10.77.0.2, and what sets their link."""
    names, links = ("mtbert-one", "mtbert-two"), ("mtbert-v1", "mtbert-v2")

    def ip(*arguments: str) -> int:
        return subprocess.run(["ip", *arguments], stderr=subprocess.DEVNULL).returncode

    if not shutil.which("ip") or any(ip("netns", "add", name) for name in names):
        pytest.skip("network namespaces need root and iproute2")
    ip("link", "add", links[0], "type", "veth", "peer", "name", links[1])
    for number, (name, link) in enumerate(zip(names, links, strict=True), start=1):
        ip("link", "set", link, "netns", name)
        ip("-n", name, "address", "add", f"10.77.0.{number}/24", "dev", link)
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", name, "link", "set", link, "up")
    yield *(("ip", "netns", "exec", name) for name in names), lambda to: ip("-n", names[0], "link", "set", links[0], to)
    for name in names:
        ip("netns", "delete", name)


def is_free(run: SweepRun) -> bool:
    """Whether no process trains a run."""
    try:
        with run_lock(run.run_id, blocking=False):
            return True
    except Timeout:
        return False


@slow
def test_a_link_that_is_cut_and_restored_loses_no_run(grid, course_data, start, two_hosts, tmp_path, monkeypatch):
    """A worker that misses its scheduler saves its run and ends; the loop that README names starts it again."""
    monkeypatch.setenv("DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP", "11s")  # by default 30; dask refuses fewer
    here, there, set_link = two_hosts
    grid.write_text(
        grid.read_text().replace("steps_per_epoch: 200", "steps_per_epoch: 3000").replace("two: {pooling: cls}, ", "")
    )
    address, quiet = "tcp://10.77.0.1:8786", {"output": subprocess.DEVNULL}
    start("--host", "10.77.0.1", "--no-dashboard", module="distributed.cli.dask_scheduler", inside=here, **quiet)
    options = ("--nthreads", 1, "--no-dashboard", "--local-directory", tmp_path / "dask")
    loop = (*there, "sh", "-c", 'while sleep 1; do "$@"; done', "loop")
    start(address, *options, module="distributed.cli.dask_worker", inside=loop, **quiet)
    runs = runs_of(grid)
    sweep = start("train", grid, *OPTIONS, "--scheduler", address, inside=here)
    wait_for(lambda: step_of(runs[0]))
    set_link("down")
    wait_for(lambda: is_free(runs[0]))
    step = step_of(runs[0])
    assert 0 < step < 3000
    set_link("up")
    output, errors = sweep.communicate(timeout=400)
    assert sweep.returncode == 0 and output.count(": dev ") == 3, errors
    assert errors.count(" is lost; its run waits for a free one") == 1
    assert errors.count("goes on from its checkpoint, on another worker") == 1
    assert sorted(path.name for path in (results_dir() / "runs").iterdir()) == sorted(run.run_id for run in runs)


@slow
def test_two_hundred_tiny_runs_are_stored_once_and_looked_up(grid, course_data, start):
    text = grid.read_text().replace("steps_per_epoch: 200", "steps_per_epoch: 2, frozen: true")
    grid.write_text(f"{text.partition('runs:')[0]}seeds: {list(range(1, 201))}\nruns: {{one: {{}}}}\n")
    output, errors = start("train", grid, *OPTIONS, "--workers", 2).communicate(timeout=400)
    assert output.count(": dev ") == 200, errors
    assert len(list((results_dir() / "runs").iterdir())) == 200
    assert pd.read_csv(results_dir() / "scores.csv")["run_id"].nunique() == 200
    output, _ = start("train", grid, *OPTIONS, "--workers", 2).communicate(timeout=60)
    assert output == "200 of 200 are stored already\n"
