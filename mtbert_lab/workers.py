"""What a worker of a dask cluster does: it trains one run after another, in one process.

`train_run` is the task; what all tasks of a sweep share is a plugin of every worker, `Sweep`. When it is removed, the
worker saves a checkpoint of its run after the current step and stops the run. Dask removes it when the sweep ends or is
stopped, and when the worker closes: on SIGTERM, or because its scheduler is lost. Only `sweep.train_on` imports this
file, as dask is slow to import.
"""

import errno
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from distributed import Worker, WorkerPlugin, get_worker
from filelock import Timeout

from mtbert.config import RunConfig
from mtbert.runtime import free_by_default
from mtbert.training import ReadProgress, watch
from mtbert_lab.hints import is_own_error
from mtbert_lab.own_code import import_files, imported
from mtbert_lab.store import Training, is_done, read_corpus, read_run, run_folder, run_id_of

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # on a disk
REPORT_SECONDS = 1.0  # between two reports of a run's steps


class Outcome(NamedTuple):
    """How a run ended on a worker.

    busy: another process trains it; stopped: it is to go on from its checkpoint elsewhere; both are tried again.
    """

    state: Literal["trained", "stored", "busy", "failed", "stopped"]
    text: str = ""  # its score, or its error
    minutes: float = 0.0  # that it took


def train_run(sweep: str, run_id: str, config: RunConfig, needs_model: bool, pause: float) -> Outcome:
    """The task that dask runs on a worker.

    pause: seconds before it begins. mtbert's own errors are returned as text, and so are those of a full or
    read-only disk, as another try would not help. Other errors are raised, and dask tries the run again.
    """
    time.sleep(pause)
    plugin = get_worker().plugins.get(sweep)
    if plugin is None:
        return Outcome("stopped")
    started = time.monotonic()
    try:
        state, text = plugin.train(run_id, config, needs_model)
    except Timeout:
        plugin.tell(run_id, "waits: it or its teacher is trained elsewhere")
        state, text = "busy", ""
    except SystemExit:
        state, text = "stopped", ""
    except Exception as error:
        if not is_own_error(error) and getattr(error, "errno", None) not in NO_ROOM:
            raise
        state, text = "failed", f"{type(error).__name__}: {error}"
    finally:
        free_by_default()  # the memory goes back, as the worker goes on to other runs
    return Outcome(state, text, (time.monotonic() - started) / 60)


class WorkerError(RuntimeError):
    """A worker that cannot train a run; the message says why."""


class Sweep(WorkerPlugin):
    """What all runs of a sweep share, on every worker.

    name: of the topic to which reports are sent. threads: of torch. stores: those that are read; the first of them is
    written to.
    """

    def __init__(self, name: str, threads: int, data: str | Path | None, stores: Sequence[Path], device: str) -> None:
        self.name = name
        self.threads = threads
        self.data = data and Path(data).resolve()
        self.stores = [store.resolve() for store in stores]
        self.device = device
        self.imports = [Path(file).resolve() for file in imported]
        self.is_stopped = False

    def setup(self, worker: Worker) -> None:
        """Import registered code."""
        self.worker = worker
        import_files(self.imports)

    def teardown(self, worker: Worker) -> None:
        """Stop the run."""
        self.is_stopped = True

    def tell(self, run_id: str, state: str, minutes: float | None = None, left: float | None = None) -> None:
        """Report how far a run is. minutes: that all its steps take; left: those ahead, where that is known."""
        self.worker.log_event(self.name, {"run_id": run_id, "state": state, "minutes": minutes, "left": left})

    def train(self, run_id: str, config: RunConfig, needs_model: bool) -> tuple[str, str]:
        """Train and store a run, unless that is done; returns 'trained' or 'stored', and its score as text.

        needs_model: a run whose model is not in the cache is trained again. Raises filelock.Timeout if another process
        trains the run, or a teacher that has to be trained before it.
        """
        if self.worker.state.nthreads != 1:  # runs in one process would share torch's random generator
            raise WorkerError(f"a worker has {self.worker.state.nthreads} threads; start it with --nthreads 1")
        torch.set_num_threads(self.threads)
        if self.device != "cpu" and torch.cuda.is_available() and isinstance(self.worker.name, int):
            torch.cuda.set_device(self.worker.name % torch.cuda.device_count())
        watch.set(StepReports(self, run_id))
        if is_done(run_id, self.stores, needs_model):
            return "stored", self._score(run_id, config)
        self.tell(run_id, "begins")
        corpus = read_corpus(config, self.data)
        if run_id != run_id_of(config, corpus):
            raise WorkerError("a worker has other data, another encoder or another version of mtbert")
        training = Training(self.stores, self.data, self.device, progress=False, wait=False)
        is_trained = training.once(config, corpus, needs_model)
        return "trained" if is_trained else "stored", self._score(run_id, config)

    def _score(self, run_id: str, config: RunConfig) -> str:
        return f"dev {read_run(run_folder(run_id, self.stores), config).score():.4f}"


class StepReports:
    """Is called after every step of a run and reports it now and then; returns True where the run has to stop."""

    def __init__(self, sweep: Sweep, run_id: str) -> None:
        self.sweep = sweep
        self.run_id = run_id
        self.first: tuple[float, int] | None = None  # when this training did its first step here, and its number
        self.total = 0  # another training, such as a teacher's, has another
        self.last = 0.0  # when it reported

    def __call__(self, progress: ReadProgress, total: int) -> bool:
        now = time.monotonic()
        if now - self.last > REPORT_SECONDS:
            self.last = now
            step = progress()["step"]
            if self.first is None or total != self.total or step < self.first[1]:
                self.first, self.total = (now, step), total
            since, first = self.first
            minutes, left = None, None
            if step > first:
                pace = (now - since) / 60 / (step - first)
                minutes, left = pace * total, pace * (total - step)
            self.sweep.tell(self.run_id, f"{step}/{total}", minutes, left)
        return self.sweep.is_stopped
