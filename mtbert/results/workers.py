"""Processes that train one run each, some at a time: told to stop together, replaced where one dies.

A worker is a process that runs `work`: it reads its run as a line of JSON from standard input, trains it with
`load_or_run` and writes the score, or what went wrong, as a line of JSON to standard output. Each is in a session of
its own, so that Ctrl-C reaches its parent alone, which tells it to stop. Where the parent is gone, standard input ends
and the worker stops as it does on SIGTERM.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch

from mtbert.config import RunConfig
from mtbert.data import Corpus
from mtbert.paths import REPOSITORY
from mtbert.results.runs import load_or_run
from mtbert.training import stopping

log = logging.getLogger(__name__)
RETRIES = 2  # of a run whose process died
PAUSE = 0.25  # seconds between two starts, and between two looks at the processes


class RunFailed(RuntimeError):
    """A run of a sweep that gave no score; the message says why."""


@dataclass(frozen=True)
class SweepRun:
    """A run of a sweep, and what it is predicted to take: minutes, and MiB of its process."""

    name: str
    config: RunConfig
    run_id: str
    is_stored: bool
    minutes: float | None = None
    mib: float | None = None

    def __str__(self) -> str:
        return f"{self.name}, seed {self.config.seed}"


@dataclass
class _Worker:
    """A process that trains one run; place: its line on the terminal, from 1; started: seconds, monotonic."""

    run: SweepRun
    place: int
    process: subprocess.Popen
    output: IO[str]
    started: float


def train_all(
    runs: Iterable[SweepRun],
    workers: int,
    threads: int,
    data: str | Path | None = None,
    store: str | Path | None = None,
    device: str = "auto",
) -> Iterator[tuple[SweepRun, float | RunFailed, float]]:
    """Train runs, started in this order; yields each at its end, with its score or error, and minutes.

    `workers` processes of `threads` threads each. A run whose process died, as it does where memory runs out, goes on
    from its checkpoint after the others, RETRIES times. On SIGINT or SIGTERM no further run is started, the workers
    save their checkpoints and end, then KeyboardInterrupt or SystemExit is raised; a second SIGINT kills them.
    """
    folders = {"data": data and str(data), "store": store and str(store)}
    job = {"threads": threads, "device": device, **folders}
    queue, deaths, running = deque(runs), Counter(), []
    with stopping("stopped; the same command goes on from the checkpoints") as stop:
        try:
            while (queue or running) and not stop.number:
                if queue and len(running) < workers:
                    place = min(set(range(1, workers + 1)) - {worker.place for worker in running})
                    running.append(_start(queue.popleft(), place, job))
                time.sleep(PAUSE)
                for worker in [worker for worker in running if worker.process.poll() is not None]:
                    running.remove(worker)
                    run, outcome = worker.run, _outcome(worker)
                    if outcome is None:
                        deaths[run.run_id] += 1
                        how = _how_it_ended(worker.process)
                        if deaths[run.run_id] <= RETRIES:
                            log.warning("%s: its process ended with %s; it goes on from its checkpoint", run, how)
                            queue.append(run)
                            continue
                        outcome = RunFailed(
                            f"its process ended {RETRIES + 1} times, at last with {how}; out of memory?"
                        )
                    yield run, outcome, (time.monotonic() - worker.started) / 60
            for worker in running:
                worker.process.terminate()
            for worker in running:
                worker.process.wait()
        finally:  # where an error, or a second SIGINT, came in between
            for worker in running:
                worker.process.kill()


def _start(run: SweepRun, place: int, job: dict) -> _Worker:
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH")]
    bar = {"DESC": str(run), "POSITION": str(place), "LEAVE": "", "MININTERVAL": "1"}  # arguments of tqdm
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment |= {f"TQDM_{name}": value for name, value in bar.items()}
    command = [sys.executable, "-c", "from mtbert.results.workers import work; work()"]
    output = tempfile.TemporaryFile("w+", encoding="utf8")  # noqa: SIM115 - no pipe, which would be full at some time
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=output, env=environment, start_new_session=True, text=True
    )
    process.stdin.write(json.dumps({**job, "config": run.config.model_dump(mode="json")}) + "\n")
    process.stdin.flush()  # open until this process ends
    return _Worker(run, place, process, output, time.monotonic())


def _outcome(worker: _Worker) -> float | RunFailed | None:
    """What a worker that has ended wrote: the score, or the error; None where it died before."""
    worker.process.stdin.close()
    with worker.output as output:
        output.seek(0)
        lines = output.read().splitlines()
    try:
        said = json.loads(lines[-1])
        return said["score"] if "score" in said else RunFailed(said["error"])
    except (IndexError, ValueError, TypeError, KeyError):
        return None


def _how_it_ended(process: subprocess.Popen) -> str:
    return signal.Signals(-process.returncode).name if process.returncode < 0 else f"exit code {process.returncode}"


def work() -> None:
    """Train the run that standard input names, and print its score or its error as a line of JSON."""
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    logging.getLogger(Corpus.__module__).setLevel(logging.ERROR)  # the parent has warned of rejected rows
    torch.set_num_threads(job.pop("threads"))
    try:
        said = {"score": load_or_run(RunConfig.from_params(job.pop("config")), **job).score()}
    except SystemExit:  # on SIGTERM, after a step; its message is the parent's to give
        sys.exit(128 + signal.SIGTERM)
    except Exception as error:
        if not type(error).__module__.startswith("mtbert."):
            traceback.print_exc()
        said = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(said), flush=True)


def _stop_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
