"""What a worker of a dask cluster does: it is a process that trains one run at a time, and many one after another.

A worker stops its run behind the current step, with a checkpoint, when its `Sweep` is taken from it: when the sweep is
stopped, and when the worker closes, be it by SIGTERM or as its scheduler is lost. Imported by `sweep.train_all` alone,
as dask is slow to import.
"""

import errno
import logging
import signal
import time
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path

import torch
from distributed import Worker, WorkerPlugin, get_worker
from filelock import Timeout

from mtbert.config import RunConfig
from mtbert.data import Corpus
from mtbert.runtime import free_by_default
from mtbert.training import load_corpus, watch
from mtbert_lab.own_code import import_files, imported
from mtbert_lab.store import data_root, is_done, read_run, run_folder, run_id_of, run_lock, train_and_store

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # on a disk
REPORT_SECONDS = 1.0  # between two reports of a run's steps


class WorkerError(RuntimeError):
    """A worker that cannot train a run; the message says why."""


class Sweep(WorkerPlugin):
    """What all runs of a sweep share, on every worker. threads: of torch; reports are sent to the topic `name`.

    stores: those that are read, the first of which is written to.
    """

    def __init__(self, name: str, threads: int, data: str | None, stores: list[str], device: str) -> None:
        self.name = name
        self.threads = threads
        self.data = data
        self.device = device
        self.stores = [Path(store) for store in stores]
        self.imports = [str(Path(file).resolve()) for file in imported]
        self.is_stopped = False

    def setup(self, worker: Worker) -> None:
        """Import registered code. Leave Ctrl-C, which all processes of a terminal get, and rejects to the parent."""
        if worker.nanny:
            import_files(self.imports)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        logging.getLogger(Corpus.__module__).setLevel(logging.ERROR)

    def teardown(self, worker: Worker) -> None:
        """Stop the run."""
        self.is_stopped = True

    def train(self, worker: Worker, run_id: str, config: RunConfig, again: bool) -> tuple[str, float]:
        """Train and store a run, unless it is 'stored'; its score. again: as of `load_or_run`.

        Raises filelock.Timeout if the run, or a teacher that has to be trained first, is locked.
        """
        if worker.state.nthreads != 1:
            raise WorkerError(f"a worker has {worker.state.nthreads} threads; start it with --nthreads 1")
        last = 0.0

        def report(progress: Callable[[], dict], total: int) -> bool:
            nonlocal last
            if time.monotonic() - last > REPORT_SECONDS:
                last = time.monotonic()
                message = {"run_id": run_id, "worker": worker.address, "step": progress()["step"], "total": total}
                worker.log_event(self.name, message)
            return self.is_stopped

        watch.set(report)
        torch.set_num_threads(self.threads)
        if self.device != "cpu" and torch.cuda.is_available() and isinstance(worker.name, int):
            torch.cuda.set_device(worker.name % torch.cuda.device_count())
        with run_lock(run_id, blocking=False):
            state = "stored" if is_done(run_id, self.stores, again) else "trained"
            if state == "trained":
                report(lambda: {"step": 0}, 0)
                corpus = load_corpus(config, data_root(config, self.data))
                if run_id != run_id_of(config, corpus):
                    raise WorkerError("a worker has other data, another encoder or another version of mtbert")
                train_and_store(config, corpus, run_id, self.stores, self.device, False, self.data, wait=False)
        return state, read_run(run_folder(run_id, self.stores), config).score()


def train_run(sweep: str, run_id: str, config: RunConfig, again: bool) -> tuple[str, float | str, float]:
    """A task of dask: trained, stored (by another process), busy (trained by another), failed or stopped; minutes.

    Between them the score or the error. Raises errors that are not mtbert's own, so that dask tries again, except
    those of a full or read-only disk: the same command goes on later.
    """
    worker = get_worker()
    started = time.monotonic()
    if sweep not in worker.plugins:
        return "stopped", "", 0.0
    try:
        state, outcome = copy_context().run(worker.plugins[sweep].train, worker, run_id, config, again)
    except Timeout:
        state, outcome = "busy", ""
    except SystemExit:
        state, outcome = "stopped", ""
    except Exception as error:
        is_own = type(error).__module__.startswith(("mtbert.", "mtbert_lab."))
        if not is_own and getattr(error, "errno", None) not in NO_ROOM:
            raise
        state, outcome = "failed", f"{type(error).__name__}: {error}"
    finally:
        free_by_default()  # the memory goes back, as the worker goes on to other runs
    return state, outcome, (time.monotonic() - started) / 60
