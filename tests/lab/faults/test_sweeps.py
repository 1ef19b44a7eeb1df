"""Sweeps whose processes are stopped or killed: every run is stored once, with the numbers of an undisturbed sweep."""

import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
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
from mtbert_lab.store.run import Run
from mtbert_lab.store.runs import load_or_run
from mtbert_lab.sweep import SweepRun, look_up

slow = pytest.mark.slow
OPTIONS = ("--in-order", "--threads", "1", "--device", "cpu")


@pytest.fixture(autouse=True)
def often_saved(monkeypatch, ctrl_c):
    """Checkpoints come often, on one thread, and SIGINT is not ignored."""
    monkeypatch.setenv("MTBERT_CHECKPOINT_SECONDS", "0")
    torch.set_num_threads(1)


def write_grid(path: Path, encoder: str, steps: int) -> Path:
    """Two runs of this many steps, and four short ones after them."""
    base = f"{{corpus: course, encoder: {encoder}, batch_size: 8, epochs: 1, steps_per_epoch: {steps}}}"
    runs = "{one: {}, two: {pooling: cls}, short: {steps_per_epoch: 9, seeds: [1, 2, 3, 4]}}"
    path.write_text(f"base: {base}\nruns: {runs}\n")
    return path


@pytest.fixture
def grid(tiny_config, tmp_path) -> Path:
    """Two runs of some seconds, and four short ones after them."""
    return write_grid(tmp_path / "grid.yaml", tiny_config.encoder, 200)


@pytest.fixture
def quick_grid(tiny_config, tmp_path) -> Path:
    """Two runs of a second, and four short ones after them."""
    return write_grid(tmp_path / "grid.yaml", tiny_config.encoder, 30)


HELD = """
import time
from pathlib import Path
from mtbert.training.step import Trainer

step = Trainer.step

def held(self, number, drawn):
    while number > 20 and not Path({go_on!r}).exists():
        time.sleep(0.05)
    return step(self, number, drawn)

Trainer.step = held
"""


@pytest.fixture
def start():
    """Start a command of a module, `mtbert train` by default; what still runs at the end of the test is killed."""
    processes = []

    def start(*arguments, module: str = "mtbert_lab", output: int = subprocess.PIPE, inside=()) -> subprocess.Popen:
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


def checkpoint_of(run: SweepRun) -> Path:
    return Path(os.environ["MTBERT_CACHE"], "models", run.run_id, "checkpoint.pt")


def step_of(run: SweepRun) -> int:
    """The step of a run's checkpoint; 0: it has none."""
    path = checkpoint_of(run)
    return torch.load(path, weights_only=True)["progress"]["step"] if path.exists() else 0


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


@pytest.fixture(scope="module")
def undisturbed(
    tmp_path_factory, course_folder, isolated_in, run_of
) -> Callable[[SweepRun], tuple[Run, dict[str, torch.Tensor]]]:
    """A run that nobody disturbs, and the weights of its model; each is trained once for all tests of this file."""
    folder = tmp_path_factory.mktemp("undisturbed")
    known: dict[str, tuple[Run, dict[str, torch.Tensor]]] = {}

    def train(run: SweepRun) -> tuple[Run, dict[str, torch.Tensor]]:
        if run.run_id not in known:
            with isolated_in(folder):
                stored = run_of(run.config, course_folder)
                known[run.run_id] = stored, load_model(run.run_id).state_dict()
        return known[run.run_id]

    return train


def check_all(runs: list[SweepRun], undisturbed: Callable[[SweepRun], tuple[Run, dict[str, torch.Tensor]]]) -> None:
    """Every run is stored once, is in the tables once, and has the numbers and the weights of an undisturbed one."""
    folders = [path.name for path in (results_dir() / "runs").iterdir()]
    assert sorted(folders) == sorted(run.run_id for run in runs)
    assert sorted(pd.read_csv(results_dir() / "scores.csv")["run_id"].unique()) == sorted(folders)
    for run in runs:
        stored = load_or_run(run.config, train_missing=False)
        whole, weights = undisturbed(run)
        pd.testing.assert_frame_equal(stored.predictions, whole.predictions, check_exact=True)
        assert stored.curve["train_loss"].tolist() == whole.curve["train_loss"].tolist()
        model = load_model(run.run_id).state_dict()
        assert model.keys() == weights.keys() and all(torch.equal(model[name], weights[name]) for name in weights)


def test_two_sweeps_at_once_train_every_run_once_though_a_worker_is_killed(
    quick_grid, course_data, start, undisturbed, tmp_path, wait_for
):
    """Both long runs wait behind their first checkpoint until the worker of one sweep has been killed."""
    code, go_on = tmp_path / "held.py", tmp_path / "go_on"
    code.write_text(HELD.format(go_on=str(go_on)))
    runs = runs_of(quick_grid)
    sweeps = [start("train", quick_grid, *OPTIONS, "--workers", 1, "--import", code) for _ in range(2)]
    wait_for(lambda: all(checkpoint_of(run).exists() for run in runs[:2]))
    os.kill(processes_of(sweeps[0].pid, "spawn_main")[0], signal.SIGKILL)
    go_on.touch()
    outputs = [sweep.communicate(timeout=300) for sweep in sweeps]
    assert [sweep.returncode for sweep in sweeps] == [0, 0], outputs
    trained = [line for output, _ in outputs for line in output.splitlines() if " min)" in line]
    names = sorted(line.split("] ")[1].split(": dev")[0] for line in trained)
    assert names == sorted(map(str, runs)), outputs
    lost = "is lost; its run goes on elsewhere from its checkpoint"
    assert [errors.count(lost) for _, errors in outputs] == [1, 0]
    check_all(runs, undisturbed)


EXIT_CODES = {signal.SIGKILL: (-9,), signal.SIGTERM: (143, -15), signal.SIGINT: (130,)}  # -15: while the workers start


@slow
def test_a_sweep_ends_with_its_workers_at_any_moment_and_the_same_command_goes_on(
    grid, course_data, start, undisturbed, wait_for
):
    runs = runs_of(grid)

    def stop(number: signal.Signals, moment: Callable[[], bool]) -> None:
        sweep = start("train", grid, *OPTIONS, "--workers", 2)
        wait_for(lambda: len(processes_of(sweep.pid, "spawn_main")) == 2)
        workers = processes_of(sweep.pid, "spawn_main")
        wait_for(moment)
        sweep.send_signal(number)
        assert sweep.wait(60) in EXIT_CODES[number]
        wait_for(lambda: not any("spawn_main" in command_of(worker) for worker in workers), 10.0)

    for number in EXIT_CODES:
        stop(number, lambda: True)  # the workers start
    for number in EXIT_CODES:
        step = step_of(runs[0])
        stop(number, lambda before=step: step_of(runs[0]) > before)
    stop(signal.SIGTERM, lambda: sum(run.is_stored for run in runs_of(grid)) >= 2)
    output, errors = start("train", grid, *OPTIONS, "--workers", 2).communicate(timeout=300)
    assert output.splitlines()[-1].startswith("[") and not errors
    check_all(runs, undisturbed)


def test_workers_end_with_the_sweep_while_a_step_takes_long(quick_grid, course_data, start, tmp_path, wait_for):
    code = tmp_path / "endless.py"
    code.write_text(
        "import time\nfrom mtbert_lab import sweep\nfrom mtbert_lab.store import runs\n"
        "sweep.GRACE = 1.0\nruns.train = lambda *a, **k: time.sleep(600)\n"
    )
    [run, *_] = runs_of(quick_grid)
    sweep = start("train", quick_grid, *OPTIONS, "--workers", 1, "--import", code)
    wait_for(lambda: not is_free(run))
    workers = processes_of(sweep.pid, "spawn_main")
    sweep.terminate()
    assert sweep.wait(60) == 143
    assert len(workers) == 1 and not any("spawn_main" in command_of(worker) for worker in workers)


def command_of(process: int) -> str:
    path = Path(f"/proc/{process}/cmdline")
    return path.read_text() if path.exists() else ""


def is_free(run: SweepRun) -> bool:
    """Whether no process trains a run."""
    try:
        with run_lock(run.run_id, blocking=False):
            return True
    except Timeout:
        return False


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
def test_ctrl_c_on_a_terminal(grid, course_data, undisturbed, wait_for):
    runs = runs_of(grid)
    stopped = OnATerminal(grid, *OPTIONS, "--workers", 2)
    stopped.read_until(f"one, seed 1 ({runs[0].run_id})", "two, seed 1 (", "/200", "runs:")
    wait_for(lambda: step_of(runs[0]) and step_of(runs[1]))
    os.killpg(stopped.process.pid, signal.SIGINT)  # as a terminal does
    assert stopped.end() == (130, "0 of 6 are stored already\n")
    assert "the same command goes on from the checkpoints" in stopped.text
    assert "short" not in stopped.text and "Traceback" not in stopped.text and "WARNING" not in stopped.text
    step = step_of(runs[0])
    assert 0 < step < 200 and not any(run.is_stored for run in runs_of(grid))
    again = OnATerminal(grid, *OPTIONS, "--only", "one")
    again.read_until(f"one, seed 1 ({runs[0].run_id})", "/200")
    code, output = again.end()
    assert code == 0 and output.count(": dev ") == 1
    check_all(runs[:1], undisturbed)


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
def test_a_cluster_of_the_users_own(grid, course_data, start, cluster, undisturbed, wait_for):
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
    assert output.count(": dev ") < 6
    cluster(23457)
    sweep = start("train", grid, *OPTIONS, "--scheduler", "tcp://127.0.0.1:23457")
    output, errors = sweep.communicate(timeout=300)
    assert sweep.returncode == 0 and output.endswith(" min)\n"), errors
    check_all(runs, undisturbed)
