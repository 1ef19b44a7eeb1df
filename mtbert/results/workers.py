"""Worker processes that train one run each, several at a time.

A worker calls `work`: it reads its run as a line of JSON from standard input, trains it with `load_or_run` and writes
the score, or an error, as a line of JSON to standard output. Each worker has its own session, so that Ctrl-C reaches
only its parent, which then stops all workers. If the parent dies, standard input ends and the worker stops as on
SIGTERM.
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
COMMAND = [sys.executable, "-c", "from mtbert.results.workers import work; work()"]
RETRIES = 2  # of a run whose process died
PAUSE = 0.25  # seconds between two starts, and between two polls of the processes


class RunFailed(RuntimeError):
    """A run of a sweep without a score; the message says why."""


@dataclass(frozen=True)
class SweepRun:
    """A run of a sweep, with its predicted minutes and the predicted memory of its process in MiB."""

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
    """A process that trains one run; place: the line of its progress bar, from 1; started: time.monotonic()."""

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
    device: str = "auto",
    again: bool = False,
) -> Iterator[tuple[SweepRun, float | RunFailed, float]]:
    """Train runs, started in this order; yields each when it ends, with its score or error, and its minutes.

    again: as of `load_or_run`.

    `workers` processes of `threads` threads each. A run whose process died, for instance for lack of memory, goes on
    from its checkpoint after the others, at most RETRIES times. On SIGINT or SIGTERM no further run is started, the
    workers save their checkpoints and end, then KeyboardInterrupt or SystemExit is raised; a second SIGINT kills them.
    """
    job = {"threads": threads, "device": device, "data": data and str(data), "again": again}
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
                            log.warning("%s: its process died with %s; it goes on from its checkpoint", run, how)
                            queue.append(run)
                            continue
                        outcome = RunFailed(f"its process died {RETRIES + 1} times, last with {how}; out of memory?")
                    yield run, outcome, (time.monotonic() - worker.started) / 60
            for worker in running:
                worker.process.terminate()
            for worker in running:
                worker.process.wait()
        finally:  # after an error or a second SIGINT
            for worker in running:
                worker.process.kill()


def _start(run: SweepRun, place: int, job: dict) -> _Worker:
    bar = {"DESC": str(run), "POSITION": str(place), "LEAVE": "", "MININTERVAL": "1"}  # arguments of tqdm
    environment = os.environ | {f"TQDM_{name}": value for name, value in bar.items()}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    output = tempfile.TemporaryFile("w+", encoding="utf8")  # noqa: SIM115 - a pipe could become full
    process = subprocess.Popen(
        COMMAND, stdin=subprocess.PIPE, stdout=output, env=environment, start_new_session=True, text=True
    )
    process.stdin.write(json.dumps({**job, "config": run.config.model_dump(mode="json")}) + "\n")
    process.stdin.flush()  # and stays open until this process ends
    return _Worker(run, place, process, output, time.monotonic())


def _outcome(worker: _Worker) -> float | RunFailed | None:
    """The score or the error that a worker wrote before it ended; None if it died before."""
    worker.process.stdin.close()
    with worker.output as output:
        output.seek(0)
        lines = output.read().splitlines()
    try:
        result = json.loads(lines[-1])
        return result["score"] if "score" in result else RunFailed(result["error"])
    except (IndexError, ValueError, TypeError, KeyError):
        return None


def _how_it_ended(process: subprocess.Popen) -> str:
    return signal.Signals(-process.returncode).name if process.returncode < 0 else f"exit code {process.returncode}"


def work() -> None:
    """Train the run that standard input names, and print its score or its error as a line of JSON."""
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    logging.getLogger(Corpus.__module__).setLevel(logging.ERROR)  # the parent has logged the rejected rows
    torch.set_num_threads(job.pop("threads"))
    try:
        result = {"score": load_or_run(RunConfig.from_params(job.pop("config")), **job).score()}
    except SystemExit:  # on SIGTERM, after a step; the parent prints the message
        sys.exit(128 + signal.SIGTERM)
    except Exception as error:
        if not type(error).__module__.startswith("mtbert."):
            traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(result), flush=True)


def _stop_with_parent() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
