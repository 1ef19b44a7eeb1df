"""Sweeps: the runs of some grids that are not stored are trained by the workers of a dask cluster.

By default these are processes of this machine, whose ports demand a certificate that only this sweep has: a dask server
runs any code for whoever it lets in, and every user of the machine reaches the loopback. Dask imports modules from its
scratch folder, so that is in a folder that only this user enters. With the address of a scheduler they are those of any
cluster, which need the same folders of results, data and, to share checkpoints, cache.
Who trains a run holds its lock, and a run goes on from its checkpoint, so that any number of sweeps may be started,
stopped and killed. A run that fails is tried again, and one whose worker dies is taken up by another, RETRIES times.
"""

import heapq
import logging
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from multiprocessing import active_children, resource_tracker
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import pandas as pd
from tqdm.auto import tqdm

from mtbert.config import ConfigError, RunConfig
from mtbert.data import Corpus, load_tokenizer
from mtbert.multitask import meta_model
from mtbert.runtime import check_processes
from mtbert.training import Stop, load_corpus, stopping
from mtbert_lab.paths import results_dir, stores
from mtbert_lab.store import clean_up, data_root, is_done, run_id_of, teacher_outputs, update_tables

if TYPE_CHECKING:
    from distributed import Client, Future, LocalCluster

log = logging.getLogger(__name__)
RETRIES = 2
POLL = 0.2  # seconds between two looks at what has ended and at signals
GRACE = 10.0  # seconds in which runs may end behind their step before they are killed
BUSY_SECONDS = 2.0  # between two tries of a run that another process trains
NEWS_SECONDS = 60.0  # between two lines of `regular_news`


class SweepError(RuntimeError):
    """A sweep that cannot begin or go on; the message says why."""


@dataclass(frozen=True)
class SweepRun:
    """A run of a sweep, with its predicted minutes and the predicted memory of its process in MiB."""

    name: str
    config: RunConfig
    run_id: str
    is_stored: bool
    minutes: float | None = None
    mib: float | None = None
    is_teacher: bool = False  # of another run, which needs its model
    asks: tuple[RunConfig, ...] = ()  # its teachers whose outputs are in no store; none where it is stored

    def __str__(self) -> str:
        return f"{self.name}, seed {self.config.seed}"


def look_up(
    runs: Sequence[tuple[str, RunConfig]],
    data: str | Path | None = None,
    again: bool = False,
    accept_rejects: bool = False,
) -> list[SweepRun]:
    """The runs with their ids, and whether they are stored; equal configurations once, under the first name.

    Teachers come before their students; those whose models are needed and missing are added. again: a run whose model
    is not in the cache does not count as stored. Raises ConfigError for all runs that could not start: their data or
    encoder are missing or damaged, or their encoder has other sizes than they need. Neither the encoder nor the number
    of rejected rows is checked for a stored run; `accept_rejects` leaves out the second check for all runs.
    """
    corpora: dict[tuple, Corpus] = {}

    def corpus_of(config: RunConfig) -> Corpus:
        drawn_with = config.seed if config.train_rows else None
        tables = (config.corpus, config.tasks, config.scored, config.train_rows, config.augment, drawn_with)
        if tables not in corpora:
            corpora[tables] = load_corpus(config, data_root(config, data))
        return corpora[tables]

    found: dict[str, SweepRun] = {}
    checked: set[RunConfig] = set()  # of seed 1
    errors: dict[str, dict[str, None]] = {}  # error -> names of runs, in their order
    to_do = [(name, config, False) for name, config in runs]
    for name, config, is_teacher in to_do:  # grows by the teachers
        try:
            corpus = corpus_of(config)
            run_id = run_id_of(config, corpus)
            if run_id in found and (found[run_id].is_teacher or not is_teacher):
                continue
            run = SweepRun(name, config, run_id, is_done(run_id, stores(), again or is_teacher), is_teacher=is_teacher)
            if not run.is_stored:
                run = replace(run, asks=tuple(teacher_outputs(config, corpus, corpus_of, stores()).missing()))
                to_do += [(f"teacher of {name}", teacher, True) for teacher in run.asks]
                if config.but(seed=1) not in checked:
                    checked.add(config.but(seed=1))
                    if not accept_rejects:
                        corpus.check()
                    load_tokenizer(config.encoder)
                    meta_model(config)
            if run_id in found:
                run = replace(run, name=found[run_id].name)
            found[run_id] = run
        except ValueError as error:
            errors.setdefault(str(error), {})[name] = None
    if errors:
        lines = [f"{', '.join(names)}: {error}" for error, names in errors.items()]
        raise ConfigError("\n".join(lines))
    return sorted(found.values(), key=lambda run: run.config.generation)


def describe(runs: Sequence[SweepRun], workers: int) -> str:
    """A table of the runs, and the time and memory of those that are not stored."""
    missing = [run for run in runs if not run.is_stored]
    rows = []
    for run in runs:
        row = {"name": run.name, "seed": run.config.seed, "run id": run.run_id, "state": "stored"}
        if not run.is_stored:
            row["state"] = "to train"
            row["minutes"] = "unknown" if run.minutes is None else f"{run.minutes:.1f}"
            row["memory (MiB)"] = "unknown" if run.mib is None else f"{run.mib:.0f}"
        rows.append(row)
    lines = [
        pd.DataFrame(rows).to_string(index=False, na_rep=""),
        f"{len(runs) - len(missing)} of {len(runs)} are stored already",
    ]
    minutes = [run.minutes for run in missing if run.minutes is not None]
    if minutes:
        left = duration(minutes_left(missing, workers))
        lines.append(f"{len(minutes)} to train: {sum(minutes):.1f} minutes, {workers} at a time {left}")
    mib = sorted(run.mib for run in missing if run.mib is not None)
    if mib:
        largest = mib[-workers:]
        lines.append(f"memory of {len(largest)} at a time: at most {sum(largest):.0f} MiB")
    return "\n".join(lines)


def minutes_left(
    runs: Sequence[SweepRun],
    workers: int,
    taken: Mapping[str, float] = MappingProxyType({}),
    left: Mapping[str, float] = MappingProxyType({}),
) -> float | None:
    """Minutes from now until all of these runs have ended, started in this order in `workers` processes; None: unknown.

    taken: run id -> minutes of runs that have ended, or will have; their ratio to the predictions corrects the other
    predictions. A run without a prediction counts as the mean of these runs, at first 0. left: run id -> minutes that
    lie ahead of runs that have done a step, 0 of those that have ended; of the others all do.
    """
    if not taken and all(run.minutes is None for run in runs):
        return None
    predicted = {run.run_id: run.minutes for run in runs if run.run_id in taken and run.minutes}
    rate = 1.0
    if predicted:
        rate = sum(taken[run_id] for run_id in predicted) / sum(predicted.values())
    mean = sum(taken.values()) / max(1, len(taken))
    ends = [0.0] * workers  # a heap: when each process has done its runs
    for run in runs:
        expected = mean if run.minutes is None else rate * run.minutes
        heapq.heapreplace(ends, ends[0] + left.get(run.run_id, expected))
    return max(ends)


def duration(minutes: float) -> str:
    """'about 2 h 10 min'."""
    if minutes < 1:
        return "less than a minute"
    hours, rest = divmod(round(minutes), 60)
    return f"about {hours} h {rest} min" if hours else f"about {rest} min"


@contextmanager
def regular_news(news: Callable[[], str]) -> Iterator[None]:
    """Inside the block a thread prints a line every NEWS_SECONDS, for who reads a log file."""
    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(NEWS_SECONDS):
            print(news(), flush=True)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def train_missing(
    runs: Sequence[SweepRun],
    workers: int = 1,
    threads: int = 1,
    data: str | Path | None = None,
    device: str = "auto",
    scheduler: str | None = None,
    again: bool = False,
) -> dict[str, str]:
    """Train the runs that are not stored, in this order, and print a line when one ends; run -> why it failed.

    workers: processes on this machine, unless `scheduler` is the address of one of dask; threads: of torch in each.
    On SIGINT or SIGTERM no further run is started, the runs save their checkpoints and end, and KeyboardInterrupt or
    SystemExit is raised; while the workers start, and the second time, SIGINT kills them. Raises SweepError where there
    is no scheduler, or none any more.
    """
    missing = [run for run in runs if not run.is_stored]
    minutes = minutes_left(missing, workers)
    rest = f"; the others take {duration(minutes)}" if missing and minutes is not None else ""
    print(f"{len(runs) - len(missing)} of {len(runs)} are stored already{rest}", flush=True)
    for run in runs:  # what a process that was killed has left
        if run.is_stored:
            clean_up(run.run_id, stores())
    update_tables(results_dir())
    if not missing:
        return {}
    with (
        open_cluster(min(workers, len(missing)), scheduler) as client,
        stopping("stopped; the same command goes on from the checkpoints") as stop,
    ):
        try:
            return train_on(client, missing, stop, threads, data, device, again)
        finally:
            update_tables(results_dir())


def train_on(
    client: "Client",
    runs: Sequence[SweepRun],
    stop: Stop,
    threads: int = 1,
    data: str | Path | None = None,
    device: str = "auto",
    again: bool = False,
) -> dict[str, str]:
    """`train_missing` on a cluster; when `stop` has a signal, the runs are ended.

    On a terminal a bar shows the steps, elsewhere a line a minute says what is trained.
    """
    from mtbert_lab.workers import Sweep, train_run

    sweep = f"mtbert-{client.id}"
    client.register_plugin(Sweep(sweep, threads, data, stores(), device), sweep)
    progress = Progress(client, runs, device)
    for topic in (sweep, "all"):  # messages of the workers and of the scheduler
        client.subscribe_topic(topic, progress.note)
    resources = {"GPU": 1} if device.startswith("cuda") else None
    numbers = count()

    def submit(run: SweepRun, pause: float) -> "Future":
        """Give a run to the workers, behind those that they have."""
        number = next(numbers)
        arguments = sweep, run.run_id, run.config, again or run.is_teacher, pause
        how = {"retries": RETRIES, "priority": -number, "resources": resources}
        return client.submit(train_run, *arguments, key=(sweep, run.run_id, number), **how)

    waiting = {submit(run, 0.0): run for run in runs}
    failed = {}
    with (
        tqdm(total=len(runs), desc="runs", unit="run", leave=False, disable=None) as bar,
        regular_news(progress.text) if bar.disable else nullcontext(),
    ):
        while waiting and stop.number is None:
            for future in [future for future in waiting if future.done()]:
                run = waiting.pop(future)
                state, value, minutes = _outcome(future)
                if state in ("busy", "stopped"):  # by another process; as its worker closes
                    waiting[submit(run, BUSY_SECONDS)] = run
                    continue
                if state == "failed":
                    failed[str(run)] = value
                    value = f"failed: {value.splitlines()[0]}"
                spent = "stored by another" if state == "stored" else f"{minutes:.1f} min"
                progress.end(run, minutes if state == "trained" else None)
                bar.update()
                rest = progress.left() if waiting else ""
                tqdm.write(f"[{len(runs) - len(waiting)} of {len(runs)}] {run}: {value} ({run.run_id}, {spent}){rest}")
            if not bar.disable:
                bar.set_postfix_str(progress.text())
            time.sleep(POLL)
    client.unsubscribe_topic("all")  # the workers end now, and none is lost
    if waiting:
        _end(client, sweep, list(waiting))
    return failed


def _outcome(future: "Future") -> tuple[str, str, float]:
    """The result of `workers.train_run`; raises SweepError where there is none."""
    if future.status == "error":
        error = future.exception()
        return "failed", f"{type(error).__name__}: {error}", 0.0
    if future.status != "finished":
        raise SweepError("the scheduler was lost; the same command goes on from the checkpoints")
    return future.result()


def _end(client: "Client", sweep: str, futures: "list[Future]") -> None:
    """Runs that have begun end behind their current step, if that is soon, and the others at once."""
    from distributed import wait

    with suppress(OSError):  # a worker has just died, or the scheduler; TimeoutError: the current step takes long
        client.unregister_worker_plugin(sweep)
        wait(futures, timeout=GRACE)


class Progress:
    """How far the runs of a sweep are: by what their workers report, and by what has ended."""

    def __init__(self, client: "Client", runs: Sequence[SweepRun], device: str) -> None:
        self.client = client
        self.device = device
        self.runs = list(runs)  # without those whose time says nothing about the others
        self.names = {run.run_id: str(run) for run in runs}  # of those that have not ended
        self.states: dict[str, str] = {}  # run id -> how far a run is
        self.minutes: dict[str, float] = {}  # run id -> taken by a run that has ended, expected of one that is trained
        self.ends: dict[str, float] = {}  # run id -> by the clock, of runs that have done a step

    def note(self, event: tuple[float, dict]) -> None:
        """Take in a message of the scheduler or of a worker; a thread of dask's calls this."""
        _, message = event
        if message.get("action") == "remove-worker":
            log.warning("worker %s is lost; its run goes on elsewhere from its checkpoint", message["worker"])
        run_id = message.get("run_id")
        if run_id in self.names:
            self.states[run_id] = f"{self.names[run_id]} ({run_id}) {message['state']}"
            if message["minutes"] is not None:
                self.minutes[run_id] = message["minutes"]
                self.ends[run_id] = time.monotonic() + 60 * message["left"]

    def end(self, run: SweepRun, minutes: float | None) -> None:
        """Take in that a run has ended; minutes: None where its time says nothing about the others."""
        del self.names[run.run_id]
        self.states.pop(run.run_id, None)
        self.minutes.pop(run.run_id, None)
        self.ends[run.run_id] = time.monotonic()
        if minutes is None:
            self.runs.remove(run)
        else:
            self.minutes[run.run_id] = minutes

    def left(self) -> str:
        """', about 3 min left'; empty where it is not known."""
        workers = len(self.client.nthreads()) or 1
        now = time.monotonic()
        ahead = {run_id: max(0.0, end - now) / 60 for run_id, end in dict(self.ends).items()}
        minutes = minutes_left(self.runs, workers, dict(self.minutes), ahead)
        return "" if minutes is None else f", {duration(minutes)} left"

    def text(self) -> str:
        """What is trained, and how long it takes; where nothing is, why."""
        if states := list(self.states.values()):
            return "; ".join(states) + self.left()
        workers = self.client.scheduler_info()["workers"].values()
        if not workers:
            return f"no worker has joined the scheduler {self.client.scheduler.address}"
        if self.device.startswith("cuda") and not any(worker["resources"] for worker in workers):
            return f"none of the {len(workers)} workers has a GPU; start one with --resources GPU=1"
        return "no run has begun"


@contextmanager
def open_cluster(workers: int, scheduler: str | None) -> Iterator["Client"]:
    """The client of a cluster: that of the scheduler at this address, or processes of this machine until the end.

    Raises SweepError where there is none.
    """
    if not scheduler:
        check_processes(workers)
    import dask
    from distributed import Client, LocalCluster  # without /proc it cannot be imported
    from distributed.gc import disable_gc_diagnosis
    from distributed.security import Security

    if scheduler:
        try:
            client = Client(scheduler)
        except (OSError, ValueError, TypeError, RuntimeError) as error:  # the last two: dask's settings of TLS
            raise SweepError(f"--scheduler {scheduler}: no scheduler answers there ({error})") from error
        with client:
            yield client
        return
    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # it logs with tracebacks that a connection is closed
    with tempfile.TemporaryDirectory(prefix="mtbert-", ignore_cleanup_errors=True) as scratch:  # of mode 0700
        settings = {
            "temporary-directory": scratch,
            "distributed.scheduler.allowed-failures": RETRIES,
            "distributed.scheduler.worker-saturation": 1.0,  # a run waits for the first free worker
            "distributed.scheduler.worker-ttl": None,  # by the clock, which may jump; a dead process is noticed anyway
            "distributed.worker.profile.enabled": False,  # it takes a tenth of the time of tiny runs
            "distributed.scheduler.http.routes": [],  # pages for anyone
            "distributed.worker.http.routes": [],
        }
        start = partial(
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
        with dask.config.set(settings):
            cluster = _start(start)
        with cluster, Client(cluster) as client:
            # The scheduler times garbage collections in a callback, where a Ctrl-C during a collection would be lost.
            disable_gc_diagnosis()
            yield client


def _start(cluster: "Callable[[], LocalCluster]") -> "LocalCluster":
    """Start the workers, which inherit that signals are blocked: Ctrl-C, which a terminal sends to all its processes,
    is for this process, in which a signal ends the start at once.
    """
    resource_tracker.ensure_running()  # started with the first worker it would unblock them
    blocked = {signal.SIGINT, signal.SIGTERM}
    with ThreadPoolExecutor(1, initializer=signal.pthread_sigmask, initargs=(signal.SIG_BLOCK, blocked)) as starter:
        try:
            return starter.submit(cluster).result()
        except (RuntimeError, OSError) as error:
            raise SweepError(f"the workers cannot be started ({error.__cause__ or error})") from error
        except KeyboardInterrupt:
            for worker in active_children():
                worker.kill()
            raise
