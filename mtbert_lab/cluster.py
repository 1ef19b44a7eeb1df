"""The workers of a sweep: processes of this machine that dask starts, or those of any dask cluster.

A dask server runs any code for whoever it lets in, and every user of a machine reaches its ports. The processes started
here therefore demand a certificate that is made for each sweep. Dask also imports modules from its scratch folder,
which is here one that only this user enters.
"""

import logging
import signal
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, resource_tracker
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed import Client, LocalCluster

FILES_ALONE, FILES_EACH = 30, 10  # open files of a sweep without workers, and for each worker
SETTINGS = {  # of dask on this machine
    "distributed.scheduler.worker-saturation": 1.0,  # a run waits for the first free worker
    "distributed.scheduler.worker-ttl": None,  # by the clock, which may jump; a dead process is noticed anyway
    "distributed.worker.profile.enabled": False,  # it takes a tenth of the time of tiny runs
    "distributed.scheduler.http.routes": [],  # pages for anyone
    "distributed.worker.http.routes": [],
}


class SweepError(RuntimeError):
    """A sweep that cannot begin or go on; the message says why."""


@contextmanager
def open_cluster(workers: int, scheduler: str | None) -> Iterator["Client"]:
    """The client of a cluster: of the scheduler at this address, or else of processes that are started here.

    The processes end with the block. Raises SweepError if the scheduler cannot be reached or a process cannot start.
    """
    if not scheduler:
        _check_processes(workers)
    import dask
    from distributed import Client  # without /proc it cannot be imported

    if scheduler:
        try:
            client = Client(scheduler)
        except (OSError, ValueError, TypeError, RuntimeError) as error:  # the last two: dask's settings of TLS
            raise SweepError(f"--scheduler {scheduler}: no scheduler answers there ({error})") from error
        with client:
            yield client
        return
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # it logs with tracebacks that a connection is closed
    with (
        tempfile.TemporaryDirectory(prefix="mtbert-", ignore_cleanup_errors=True) as scratch,  # of mode 0700
        dask.config.set(SETTINGS | {"temporary-directory": scratch}),
        _start(workers) as cluster,
        Client(cluster) as client,
    ):
        yield client


def _check_processes(workers: int) -> None:
    """Raises SweepError where too few open files are allowed: dask's processes would then wait for each other."""
    import resource  # Windows does not have it, and no sweeps

    files = FILES_ALONE + FILES_EACH * workers
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)  # -1: any number
    if 0 <= allowed < files:
        raise SweepError(
            f"the processes of a sweep need {files} open files, and {allowed} are allowed; `ulimit -n {files}` allows "
            "them"
        )


def _start(workers: int) -> "LocalCluster":
    """Start the workers with signals blocked, as a terminal sends Ctrl-C to all its processes.

    This process alone is to handle it. While the workers start, a signal ends it at once.
    """
    from distributed import LocalCluster
    from distributed.security import Security

    resource_tracker.ensure_running()  # started with the first worker it would unblock them
    blocked = {signal.SIGINT, signal.SIGTERM}
    with ThreadPoolExecutor(1, initializer=signal.pthread_sigmask, initargs=(signal.SIG_BLOCK, blocked)) as starter:
        started = starter.submit(
            LocalCluster,
            n_workers=workers,
            threads_per_worker=1,
            memory_limit=0,
            resources={"GPU": 1},
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            security=Security.temporary(),
            silence_logs=logging.CRITICAL,
        )
        try:
            return started.result()
        except (RuntimeError, OSError) as error:
            raise SweepError(f"the workers cannot be started ({error.__cause__ or error})") from error
        except KeyboardInterrupt:
            for worker in active_children():
                worker.kill()
            raise
