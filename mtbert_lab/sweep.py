"""Sweeps: the runs of some grids that are not stored are trained by the workers of a dask cluster.

By default these are processes of this machine, whose ports demand a certificate that only this sweep has: a dask server
runs any code for whoever it lets in, and every user of the machine reaches the loopback. Dask imports modules from its
scratch folder, so that is in a folder that only this user enters. With the address of a scheduler they are those of any
cluster, which need the same folders of results, data and, to share checkpoints, cache.
A run that fails is tried again, and one whose worker dies is taken up by another from its checkpoint, each at most
RETRIES times, as is a start at which a worker dies.
"""

import heapq
import logging
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain, count
from multiprocessing import resource_tracker
from pathlib import Path
from queue import Empty, SimpleQueue
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
    from distributed import Client, Future, LocalCluster, WorkerPlugin

log = logging.getLogger(__name__)
RETRIES = 2
POLL = 0.2  # seconds between two looks at signals
BUSY_SECONDS = 2.0  # between two tries of runs that other processes train
IDLE_SECONDS = 30.0  # between two messages that say what the sweep waits for
NEWS_SECONDS = 60.0  # between two lines of `regular_news`


class SweepError(RuntimeError):
    """A sweep that cannot begin or go on; the message says why."""


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
    is_teacher: bool = False  # of another run, which needs its model
    asks: tuple[RunConfig, ...] = ()  # its teachers whose outputs are in no store; none where it is stored

    def __str__(self) -> str:
        return f"{self.name}, seed {self.config.seed}"


Ended = tuple[SweepRun, float | RunFailed, float | None]  # a run, its score or error, its minutes; see `train_all`


def look_up(
    runs: Sequence[tuple[str, RunConfig]],
    data: str | Path | None = None,
    again: bool = False,
    accept_rejects: bool = False,
) -> list[SweepRun]:
    """The runs with their ids, and whether they are stored; equal configurations once, under the first name.

    Teachers of runs that are not stored come first, unless their outputs are stored or their models in the cache.
    again: a run whose model is not in the cache does not count as stored. The data are read once for all runs on the
    same tables. Raises ConfigError for all runs that could not start: their data or encoder are missing or damaged, or
    their encoder has other sizes than they need. Neither the encoder nor the number of rejected rows is checked for a
    stored run; `accept_rejects` leaves out the second check for all runs.
    """
    corpora: dict[tuple, Corpus] = {}

    def corpus_of(config: RunConfig) -> Corpus:
        drawn_with = config.seed if config.train_rows else None
        tables = (config.corpus, config.tasks, config.scored, config.train_rows, config.augment, drawn_with)
        if tables not in corpora:
            corpora[tables] = load_corpus(config, data_root(config, data))
        return corpora[tables]

    found: dict[str, SweepRun] = {}
    checked: set[RunConfig] = set()
    errors: dict[str, dict[str, None]] = {}  # error -> names of runs, in their order
    for name, config in runs:
        try:
            corpus = corpus_of(config)
            run_id = run_id_of(config, corpus)
            if run_id not in found:
                is_stored = is_done(run_id, stores(), again)
                asks = [] if is_stored else teacher_outputs(config, corpus, corpus_of, stores()).missing()
                found[run_id] = SweepRun(name, config, run_id, is_stored, asks=tuple(asks))
            if found[run_id].is_stored:
                continue
            of_any_seed = config.but(seed=1)
            if of_any_seed not in checked:
                checked.add(of_any_seed)
                if not accept_rejects:
                    corpus.check()
                load_tokenizer(config.encoder)
                meta_model(config)
        except ValueError as error:
            errors.setdefault(str(error), {})[name] = None
    if errors:
        lines = [f"{', '.join(names)}: {error}" for error, names in errors.items()]
        raise ConfigError("\n".join(lines))
    return _teachers_first(found, data, accept_rejects)


def _teachers_first(found: dict[str, SweepRun], data: str | Path | None, accept_rejects: bool) -> list[SweepRun]:
    """These runs, by run id, behind the teachers that have to be trained for them."""
    teachers: dict[RunConfig, str] = {}  # and the name in the list of runs
    for run in reversed(found.values()):
        teachers |= dict.fromkeys(run.asks, f"teacher of {run.name}")
    if not teachers:
        return list(found.values())
    needed = look_up([(name, teacher) for teacher, name in teachers.items()], data, True, accept_rejects)
    first = {}
    for run in needed:
        if not run.is_stored:
            name = found[run.run_id].name if run.run_id in found else run.name
            first[run.run_id] = replace(run, name=name, is_teacher=True)
    others = [run for run_id, run in found.items() if run_id not in first]
    return [*first.values(), *others]


def minutes_left(runs: Sequence[SweepRun], taken: dict[str, float], workers: int, elapsed: float) -> float | None:
    """Minutes until all of these runs have ended, started in this order in `workers` processes; None: not known.

    taken: run_id -> minutes of the runs that have ended; their ratio to the predictions corrects the other predictions.
    A run without a prediction counts as the mean of these runs, at first 0.
    """
    if not taken and all(run.minutes is None for run in runs):
        return None
    predicted = {run.run_id: run.minutes for run in runs if run.run_id in taken and run.minutes}
    rate = 1.0
    if predicted:
        rate = sum(taken[run_id] for run_id in predicted) / sum(predicted.values())
    mean = sum(taken.values()) / max(1, len(taken))
    ends = [0.0] * workers  # a heap: the time at which each process has done its runs
    for run in runs:
        expected = mean if run.minutes is None else rate * run.minutes
        heapq.heapreplace(ends, ends[0] + taken.get(run.run_id, expected))
    return max(0.0, max(ends) - elapsed)


class Remaining:
    """The minutes until the runs of a sweep have ended: by predictions, by what has ended, and by the steps so far."""

    def __init__(self, runs: Sequence[SweepRun], workers: int) -> None:
        self.runs = list(runs)  # without those whose time says nothing about the others
        self.workers = workers
        self.taken: dict[str, float] = {}
        self.begun: dict[str, tuple[float, int]] = {}  # run id -> when it was first heard of, and its step then
        self.expected: dict[str, float] = {}  # run id -> minutes, of runs that are being trained
        self.started = time.monotonic()

    def note(self, run_id: str, step: int, total: int) -> None:
        """Take in that a run has come to a step."""
        now = time.monotonic()
        since, first = self.begun.setdefault(run_id, (now, step))
        if step > first:
            self.expected[run_id] = (now - since) / 60 * (total - first) / (step - first)

    def note_end(self, run: SweepRun, minutes: float | None) -> None:
        """Take in that a run has ended; minutes: None where its time says nothing about the others."""
        self.expected.pop(run.run_id, None)
        if minutes is None:
            self.runs.remove(run)
        else:
            self.taken[run.run_id] = minutes

    def text(self) -> str:
        """', about 3 min left'; empty where it is not known."""
        elapsed = (time.monotonic() - self.started) / 60
        minutes = minutes_left(self.runs, self.expected | self.taken, self.workers, elapsed)
        return "" if minutes is None else f", {duration(minutes)} left"


def describe(runs: Sequence[SweepRun], workers: int) -> str:
    """A table of the runs, and the time and memory of those that are not stored."""
    rows = []
    for run in runs:
        row = {"name": run.name, "seed": run.config.seed, "run id": run.run_id, "state": "stored"}
        if not run.is_stored:
            row["state"] = "to train"
            row["minutes"] = "unknown" if run.minutes is None else f"{run.minutes:.1f}"
            row["memory (MiB)"] = "unknown" if run.mib is None else f"{run.mib:.0f}"
        rows.append(row)
    missing = [run for run in runs if not run.is_stored]
    timed = [run for run in missing if run.minutes is not None]
    lines = [
        pd.DataFrame(rows).to_string(index=False, na_rep=""),
        f"{len(runs) - len(missing)} of {len(runs)} are stored already",
    ]
    if timed:
        minutes = sum(run.minutes for run in timed)
        left = minutes_left(missing, {}, workers, 0.0)
        lines.append(f"{len(timed)} to train: {minutes:.1f} minutes, {workers} at a time {duration(left)}")
    if len(missing) > len(timed):
        lines.append(f"{len(missing) - len(timed)} to train without a predicted time")
    mib = sorted(run.mib for run in missing if run.mib is not None)
    if mib:
        largest = mib[-workers:]
        lines.append(f"memory of {len(largest)} at a time: at most {sum(largest):.0f} MiB")
    unknown = [run for run in timed if run.mib is None]
    if unknown:
        lines.append(f"{len(unknown)} to train without a predicted memory")
    return "\n".join(lines)


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
    On a terminal a bar shows the steps, elsewhere a line a minute says what is trained. On SIGINT or SIGTERM no further
    run is started, the runs save their checkpoints and end, and KeyboardInterrupt or SystemExit is raised; a second
    SIGINT kills the workers. Raises SweepError where there is no scheduler, or none any more.
    """
    missing = [run for run in runs if not run.is_stored]
    minutes = minutes_left(missing, {}, workers, 0.0)
    rest = f"; the others take {duration(minutes)}" if missing and minutes is not None else ""
    print(f"{len(runs) - len(missing)} of {len(runs)} are stored already{rest}", flush=True)
    for run in runs:  # what a process that was killed has left
        if run.is_stored:
            clean_up(run.run_id, stores())
    update_tables(results_dir())
    if not missing:
        return {}
    with (
        stopping("stopped; the same command goes on from the checkpoints") as stop,
        open_cluster(min(workers, len(missing)), scheduler) as client,
        tqdm(total=len(missing), desc="runs", unit="run", leave=False, disable=None) as bar,
        ExitStack() as at_the_end,
    ):
        at_the_end.callback(update_tables, results_dir())
        if bar.disable:
            at_the_end.enter_context(regular_news(lambda: bar.postfix or "no run has begun"))
        remaining = Remaining(missing, len(client.nthreads()) or 1)
        ended = train_all(client, missing, threads, data, device, again, stop, bar, remaining)
        return _tell(ended, missing, client, bar, remaining)


def _tell(
    ended: Iterator[Ended], runs: Sequence[SweepRun], client: "Client", bar: tqdm, remaining: Remaining
) -> dict[str, str]:
    """Print a line for each of these runs when it ends; run -> why it failed."""
    failed = {}
    for done, (run, outcome, minutes) in enumerate(ended, 1):
        if isinstance(outcome, RunFailed):
            failed[str(run)] = str(outcome)
            result = f"failed: {str(outcome).splitlines()[0]}"
        else:
            result = f"dev {outcome:.4f}"
        remaining.note_end(run, None if isinstance(outcome, RunFailed) else minutes)
        spent = "stored by another" if minutes is None else f"{minutes:.1f} min"
        remaining.workers = len(client.nthreads()) or 1
        rest = remaining.text() if done < len(runs) else ""
        tqdm.write(f"[{done} of {len(runs)}] {run}: {result} ({run.run_id}, {spent}){rest}")
        bar.update()
    return failed


@contextmanager
def open_cluster(workers: int, scheduler: str | None) -> Iterator["Client"]:
    """The client of a cluster: that of the scheduler at this address, or processes of this machine until the end."""
    if not scheduler:
        check_processes(workers)
    from distributed import Client  # without /proc it cannot be imported
    from distributed.gc import disable_gc_diagnosis

    if scheduler:
        try:
            client = Client(scheduler)
        except (OSError, ValueError, TypeError, RuntimeError) as error:  # the last two: dask's settings of TLS
            raise SweepError(f"--scheduler {scheduler}: no scheduler answers there ({error})") from error
        with client:
            yield client
        return
    # Workers inherit that these are blocked: Ctrl-C, which a terminal sends to all its processes, is for this one.
    resource_tracker.ensure_running()  # else multiprocessing starts it with the first worker, and then unblocks them
    with tempfile.TemporaryDirectory(prefix="mtbert-", ignore_cleanup_errors=True) as scratch:  # of mode 0700
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            cluster = _start_workers(workers, scratch)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        with cluster, Client(cluster) as client:
            # The scheduler times garbage collections in a callback, where a Ctrl-C during a collection would be lost.
            disable_gc_diagnosis()
            yield client


def _start_workers(workers: int, scratch: str) -> "LocalCluster":
    """A scheduler and its workers on this machine, without web pages, that only the holder of their certificate enters.

    scratch: a folder that nobody else may write to, as these processes import modules from it. A start at which a
    worker dies is tried again. Raises SweepError where none succeeds.
    """
    import dask
    from distributed import LocalCluster
    from distributed.security import Security

    settings = {
        "temporary-directory": scratch,
        "distributed.scheduler.allowed-failures": RETRIES,
        "distributed.scheduler.worker-saturation": 1.0,
        "distributed.worker.profile.enabled": False,  # it takes a tenth of the time of tiny runs
        "distributed.scheduler.worker-ttl": None,  # by the clock; a dead process is noticed without it
        "distributed.scheduler.http.routes": [],  # pages for anyone
        "distributed.worker.http.routes": [],
    }
    local = {
        "n_workers": workers,
        "threads_per_worker": 1,
        "memory_limit": 0,
        "resources": {"GPU": 1},
        "dashboard_address": "127.0.0.1:0",
        "scheduler_kwargs": {"dashboard": False},
        "security": Security.temporary(),
        "silence_logs": logging.ERROR,
    }
    logger = logging.getLogger("distributed")
    for tries_left in reversed(range(RETRIES + 1)):
        logger.setLevel(logging.CRITICAL)  # dask's tracebacks of a start that is tried again help nobody
        try:
            with dask.config.set(settings):
                return LocalCluster(**local)
        except (RuntimeError, OSError) as error:
            if not tries_left:
                raise SweepError(f"the workers cannot be started ({_causes(error)})") from error
            log.warning("the workers did not start (%s); once more", _causes(error))
        finally:
            logger.setLevel(logging.ERROR)  # where root has a handler, silence_logs does not do it


def _causes(error: BaseException) -> str:
    """The messages of an error and of what led to it, in one line."""
    texts = [str(error) or type(error).__name__]
    while error := error.__cause__:
        if str(error) not in texts[-1]:
            texts.append(str(error))
    return ": ".join(texts)


def _register(client: "Client", plugin: "WorkerPlugin", name: str) -> None:
    """Give a plugin to all workers, those that start later included; tried again where a worker dies meanwhile."""
    for tries_left in reversed(range(RETRIES + 1)):
        try:
            client.register_plugin(plugin, name)
            return
        except OSError as error:
            if not tries_left:
                raise SweepError(f"the sweep cannot be given to the workers ({error})") from error
            time.sleep(POLL)


def idle_because(client: "Client", resources: dict | None) -> str:
    """Why no worker trains a run; nothing where one does, or is about to."""
    if any(client.processing().values()):
        return ""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    if not workers:
        return f"no worker has joined the scheduler {client.scheduler.address}"
    if resources and not any(worker["resources"] for worker in workers):
        return f"none of the {len(workers)} workers has a GPU; start one with --resources GPU=1"
    return ""


def train_all(
    client: "Client",
    runs: Sequence[SweepRun],
    threads: int,
    data: str | Path | None,
    device: str,
    again: bool,
    stop: Stop,
    bar: tqdm,
    remaining: Remaining,
) -> Iterator[Ended]:
    """Train runs, in this order; yields each when it ends, with its score or error, and its minutes.

    The minutes are None for a run that another process has stored meanwhile. When `stop` has a signal, the runs that
    have begun end behind their current step, and the others do not begin. bar: shows the steps of the runs and what is
    left, which `remaining` learns of. Runs that other processes train come last.
    """
    submitted = _Submitted(client, threads, data, device, again)
    for run in runs:
        submitted.submit(run)
    told = time.monotonic()
    while submitted.futures or submitted.busy:
        if time.monotonic() - told > IDLE_SECONDS:
            told = time.monotonic()
            submitted.tell_what_is_awaited()
        if stop.number:
            submitted.stop()
        elif not submitted.futures:
            time.sleep(BUSY_SECONDS)
            submitted.submit_busy()
        try:
            event = submitted.events.get(timeout=POLL)
        except Empty:
            continue
        if isinstance(event, tuple):
            _, message = event
            submitted.note(message)
            if message.get("total"):
                remaining.note(message["run_id"], message["step"], message["total"])
            bar.set_postfix_str("; ".join(submitted.steps.values()) + remaining.text())
        elif outcome := submitted.outcome(event):
            yield outcome
    client.unsubscribe_topic("all")  # else the scheduler reports that this client leaves, to this client


class _Submitted:
    """The runs that the workers of a cluster have or get, and what is heard of them.

    Attributes: futures by their keys, (name, run id, number); busy: runs that other processes train; events: an ended
    future, or a tuple with a message of a worker or the scheduler; steps: run id -> how far the run is, as text.
    """

    def __init__(self, client: "Client", threads: int, data: str | Path | None, device: str, again: bool) -> None:
        from mtbert_lab.workers import Sweep

        self.client = client
        self.again = again
        self.name = f"mtbert-{client.id}"
        self.resources = {"GPU": 1} if device.startswith("cuda") else None
        self.events = SimpleQueue()
        self.numbers = count()
        self.is_stopped = False
        self.runs: dict[str, SweepRun] = {}
        self.workers: dict[str, str] = {}  # run id -> the address of the worker that reported last
        self.steps: dict[str, str] = {}
        self.futures: dict[tuple, Future] = {}
        self.busy: list[SweepRun] = []
        among = [str(store.resolve()) for store in stores()]
        data = data and str(Path(data).resolve())
        _register(client, Sweep(self.name, threads, data, among, device), self.name)
        for topic in (self.name, "all"):  # reports of the workers and the scheduler
            client.subscribe_topic(topic, self.events.put)

    def submit(self, run: SweepRun) -> None:
        """Give a run to the workers, behind those that they have."""
        from mtbert_lab.workers import train_run

        number = next(self.numbers)
        self.runs[run.run_id] = run
        future = self.client.submit(
            train_run, self.name, run.run_id, run.config, self.again or run.is_teacher,
            key=(self.name, run.run_id, number), retries=RETRIES, priority=-number, resources=self.resources,
        )  # fmt: skip
        self.futures[future.key] = future
        future.add_done_callback(self.events.put)

    def submit_busy(self) -> None:
        """Try the runs that other processes train once more."""
        runs, self.busy = self.busy, []
        for run in runs:
            self.submit(run)

    def stop(self) -> None:
        """Runs that have begun end behind their current step; the others are given up."""
        if self.is_stopped:
            return
        self.is_stopped = True
        self.busy = []
        with suppress(OSError):  # a worker died just now
            self.client.unregister_worker_plugin(self.name)
        begun = set(chain(*self.client.processing().values()))
        self.futures = {key: future for key, future in self.futures.items() if key in begun}

    def tell_what_is_awaited(self) -> None:
        """Warn where no run is trained."""
        if self.busy and not self.futures:
            log.warning("waiting for runs that other processes train: %s", "; ".join(map(str, self.busy)))
        elif reason := idle_because(self.client, self.resources):
            log.warning("%s; runs that wait: %d", reason, len(self.futures) + len(self.busy))

    def note(self, message: dict) -> None:
        """Take in a message: of a worker that a run has come to a step, or of the scheduler."""
        if "run_id" not in message:
            if message["action"] == "remove-worker":
                log.warning("worker %s is lost; its run waits for a free one", message["worker"])
            return
        run = self.runs[message["run_id"]]
        if message["worker"] != self.workers.setdefault(run.run_id, message["worker"]):
            log.warning("%s goes on from its checkpoint, on another worker", run)
            self.workers[run.run_id] = message["worker"]
        self.steps[run.run_id] = f"{run} ({run.run_id}) {message['step']}/{message['total']}"

    def outcome(self, future: "Future") -> Ended | None:
        """What `train_all` yields for a future that has ended; None where its run has not ended, or was given up."""
        if future.key not in self.futures:
            return None
        del self.futures[future.key]
        run = self.runs[future.key[1]]
        self.steps.pop(run.run_id, None)
        if future.status == "error":
            error = future.exception()
            return run, RunFailed(f"{type(error).__name__}: {error}"), 0.0
        if future.status != "finished":
            raise SweepError("the scheduler was lost; the same command goes on from the checkpoints")
        state, outcome, minutes = future.result()
        if state in ("busy", "stopped"):
            if not self.is_stopped and state == "busy":
                self.busy.append(run)
            elif not self.is_stopped:  # its worker closes
                self.submit(run)
            return None
        if state == "failed":
            return run, RunFailed(outcome), minutes
        return run, outcome, None if state == "stored" else minutes
