"""Sweeps: the runs of some grids that are not stored are trained by the workers of a dask cluster.

By default the workers are processes of this machine. With the address of a scheduler they are those of any cluster,
which need the same folders of results, data and, to share checkpoints, cache. Who trains a run holds its lock, and a
run goes on from its checkpoint, so that any number of sweeps may be started, stopped and killed. A run that fails by an
error that is not mtbert's own, nor a full disk's, is tried again, RETRIES times. One whose worker dies is taken up by
another, as often as dask allows.
"""

import heapq
import logging
import math
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from tqdm.auto import tqdm

from mtbert.config import ConfigError, RunConfig
from mtbert.data import Corpus, load_tokenizer
from mtbert.multitask import meta_model
from mtbert.training import Stop, stopping
from mtbert_lab.cluster import SweepError, open_cluster
from mtbert_lab.paths import results_dir, stores
from mtbert_lab.store import (
    REPAIR,
    Corpora,
    is_done,
    read_run,
    run_folder,
    teacher_outputs,
    update_tables,
)

if TYPE_CHECKING:
    from distributed import Client, Future

    from mtbert_lab.workers import Outcome

log = logging.getLogger(__name__)
RETRIES = 2  # of a run that fails by chance, see above
POLL = 0.2  # seconds between two looks at what has ended and at signals
GRACE = 10.0  # seconds that runs have to end their step and save a checkpoint before they are killed
BUSY_SECONDS = 2.0  # between two tries of a run that another process trains
NEWS_SECONDS = 60.0  # between two lines in a log file that say what is trained


@dataclass(frozen=True)
class SweepRun:
    """A run of a sweep, with its predicted minutes and the predicted memory of its process in MiB."""

    name: str
    config: RunConfig
    run_id: str
    is_stored: bool
    minutes: float | None = None
    mib: float | None = None
    needs_model: bool = False  # in the cache, or the run does not count as stored
    missing_teachers: tuple[RunConfig, ...] = ()  # those whose outputs are in no store; none where it is stored

    def __str__(self) -> str:
        return f"{self.name}, seed {self.config.seed}"


def look_up(
    runs: Sequence[tuple[str, RunConfig]],
    data: str | Path | None = None,
    accept_rejects: bool = False,
) -> list[SweepRun]:
    """The runs with their ids, and whether they are stored; equal configurations once, under the first name.

    Those that are equal although some field is written otherwise, and has no effect, are logged.
    Teachers come before their students; those whose models are needed and missing are added. Raises ConfigError for
    all stored runs that are damaged or of other tasks than those here, and for all that could not start: their data or
    encoder are missing or damaged, or their encoder has other sizes than they need. Neither the encoder nor the number
    of rejected rows is checked for a stored run; `accept_rejects` leaves out the second check for all runs.
    """
    corpora = Corpora(data)
    found: dict[str, SweepRun] = {}
    checked: set[RunConfig] = set()  # of seed 1
    errors: dict[str, dict[str, None]] = {}  # error -> names of runs, in their order
    idle: dict[str, None] = {}  # what is said of runs that are another one
    to_do = [(name, config, False) for name, config in runs]
    for name, config, needs_model in to_do:  # grows by the teachers
        try:
            known = found.get(corpora.run_id(config))
            if known:
                if fields := _fields_that_differ(config, known.config):
                    idle[f"{name} is the same run as {known.name}, whatever it says of {', '.join(fields)}"] = None
                if known.needs_model or not needs_model:
                    continue
                name = known.name
            run = _inspect(name, config, corpora, needs_model)
            to_do += [(f"teacher of {name}", teacher, True) for teacher in run.missing_teachers]
            if not run.is_stored and config.but(seed=1) not in checked:
                checked.add(config.but(seed=1))
                _check_start(config, corpora(config), accept_rejects)
            found[run.run_id] = run
        except ValueError as error:
            errors.setdefault(str(error), {})[name] = None
    for text in idle:
        log.warning("%s", text)
    if errors:
        lines = [f"{', '.join(names)}: {error}" for error, names in errors.items()]
        raise ConfigError("\n".join(lines))
    return sorted(found.values(), key=lambda run: generation(run.config))


def _inspect(name: str, config: RunConfig, corpora: Corpora, needs_model: bool) -> SweepRun:
    """A run with its id, whether it is stored, and the teachers that are missing; StoreError for a damaged one."""
    run_id = corpora.run_id(config)
    run = SweepRun(name, config, run_id, is_done(run_id, stores(), needs_model), needs_model=needs_model)
    if run.is_stored:
        read_run(run_folder(run_id, stores()), config)  # raises StoreError
        return run
    outputs = teacher_outputs(config, corpora(config), corpora, stores())
    return replace(run, missing_teachers=tuple(outputs.missing()))


def _fields_that_differ(first: RunConfig, second: RunConfig) -> list[str]:
    return [field for field in RunConfig.model_fields if getattr(first, field) != getattr(second, field)]


def generation(config: RunConfig) -> int:
    """0 without teachers, else one more than the teachers have."""
    return max((1 + generation(teacher) for teacher in config.teachers), default=0)


def longest_first(runs: Sequence[SweepRun]) -> list[SweepRun]:
    """Teachers before their students, then the longest first; a run without minutes counts as the longest."""

    def place(run: SweepRun) -> tuple[int, float]:
        minutes = math.inf if run.minutes is None else run.minutes
        return generation(run.config), -minutes

    return sorted(runs, key=place)


def _check_start(config: RunConfig, corpus: Corpus, accept_rejects: bool) -> None:
    """Raises ValueError where a run could not start: for its tables, its tokenizer, or the sizes of its encoder.

    Rejected rows are logged.
    """
    corpus.warn()
    if not accept_rejects:
        corpus.check(REPAIR)
    load_tokenizer(config.encoder)
    meta_model(config)


def describe(runs: Sequence[SweepRun], workers: int | None) -> str:
    """A table of the runs, and the time of those that are not stored; their memory where it was predicted.

    workers: None where it is not known how many there are, as of a cluster.
    """
    missing = [run for run in runs if not run.is_stored]
    mib = sorted(run.mib for run in missing if run.mib is not None)
    rows = []
    for run in runs:
        row = {"name": run.name, "seed": run.config.seed, "run id": run.run_id, "state": "stored"}
        if not run.is_stored:
            row["state"] = "to train"
            row["minutes"] = "unknown" if run.minutes is None else f"{run.minutes:.1f}"
            if mib:
                row["memory (MiB)"] = "unknown" if run.mib is None else f"{run.mib:.0f}"
        rows.append(row)
    lines = [
        pd.DataFrame(rows).to_string(index=False, na_rep=""),
        f"{len(runs) - len(missing)} of {len(runs)} are stored already",
    ]
    minutes = [run.minutes for run in missing if run.minutes is not None]
    if minutes:
        known = "" if len(minutes) == len(missing) else f" for the {len(minutes)} with a forecast"
        at_a_time = f", {workers} at a time {duration(minutes_left(missing, workers))}" if workers else ""
        lines.append(f"{len(missing)} to train: {sum(minutes):.1f} minutes{known}{at_a_time}")
    if mib and workers:
        largest = mib[-workers:]
        lines.append(f"memory of {len(largest)} at a time: at most {sum(largest):.0f} MiB")
    return "\n".join(lines)


def train_missing(
    runs: Sequence[SweepRun],
    workers: int = 1,
    threads: int = 1,
    data: str | Path | None = None,
    device: str = "auto",
    scheduler: str | None = None,
) -> dict[SweepRun, str]:
    """Train the runs that are not stored, in this order, and print a line when one ends; run -> why it failed.

    workers: processes on this machine, unless `scheduler` is the address of a dask scheduler. threads: of torch in each
    process. On SIGINT or SIGTERM no further run starts, the runs save their checkpoints and end, and KeyboardInterrupt
    or SystemExit is raised. SIGINT kills the workers at once while they start, and when it comes a second time. Raises
    SweepError if the scheduler cannot be reached or is lost.
    """
    missing = [run for run in runs if not run.is_stored]
    minutes = None if scheduler else minutes_left(missing, workers)  # a cluster's workers are not known yet
    rest = f"; the others take {duration(minutes)}" if missing and minutes is not None else ""
    print(f"{len(runs) - len(missing)} of {len(runs)} are stored already{rest}", flush=True)
    update_tables(results_dir())
    if not missing:
        return {}
    with (
        open_cluster(min(workers, len(missing)), scheduler) as client,
        stopping("stopped; the same command goes on from the checkpoints") as stop,
    ):
        try:
            return train_on(client, missing, stop, threads, data, device)
        finally:
            update_tables(results_dir())


def train_on(
    client: "Client",
    runs: Sequence[SweepRun],
    stop: Stop,
    threads: int = 1,
    data: str | Path | None = None,
    device: str = "auto",
) -> dict[SweepRun, str]:
    """`train_missing` on a cluster. A signal in `stop` stops the runs.

    On a terminal a bar counts the runs and shows the steps of each; in a log file a line a minute says what is trained.
    """
    from mtbert_lab.workers import Sweep

    sweep = f"mtbert-{client.id}"
    client.register_plugin(Sweep(sweep, threads, data, stores(), device), sweep)
    status = Status(client, runs, device)
    for topic in (sweep, "all"):  # messages of the workers and of the scheduler
        client.subscribe_topic(topic, status.note)
    queue = Queue(client, sweep, device)
    for run in runs:
        queue.put(run)
    failed: dict[SweepRun, str] = {}
    with tqdm(total=len(runs), desc="runs", unit="run", leave=False, disable=None) as bar:
        while queue.waiting and stop.number is None:
            for run, outcome in queue.ended():
                if outcome.state in ("busy", "stopped"):  # another process trains it; its worker closes
                    queue.put(run, BUSY_SECONDS)
                    continue
                if outcome.state == "failed":
                    failed[run] = outcome.text
                status.end(run, outcome.minutes if outcome.state == "trained" else None)
                bar.update()
                ended = len(runs) - len(queue.waiting)
                rest = status.left() if queue.waiting else ""
                _say(f"[{ended} of {len(runs)}] {_line(run, outcome)}{rest}")
            status.tell(bar)
            time.sleep(POLL)
    client.unsubscribe_topic("all")  # the workers end now, and none is lost
    _end(client, sweep, queue.waiting)
    return failed


class Queue:
    """The runs of a sweep that wait for a worker or are trained by one."""

    def __init__(self, client: "Client", sweep: str, device: str) -> None:
        self.client = client
        self.sweep = sweep
        self.resources = {"GPU": 1} if device.startswith("cuda") else None
        self.waiting: dict[Future, SweepRun] = {}
        self.numbers = count()

    def put(self, run: SweepRun, pause: float = 0.0) -> None:
        """Append a run. pause: seconds that its worker waits before it begins."""
        from mtbert_lab.workers import train_run

        number = next(self.numbers)
        future = self.client.submit(
            train_run,
            *(self.sweep, run.run_id, run.config, run.needs_model, pause),
            key=(self.sweep, run.run_id, number),  # a group of tasks by its first part: many wait at the scheduler
            priority=-number,
            retries=RETRIES,
            resources=self.resources,
        )
        self.waiting[future] = run

    def ended(self) -> "Iterator[tuple[SweepRun, Outcome]]":
        """Take out the runs that have ended. Raises SweepError if the scheduler has lost one."""
        for future in [future for future in self.waiting if future.done()]:
            yield self.waiting.pop(future), _outcome(future)


def _say(text: str) -> None:
    """Print a line, above a bar; a reader that is gone, such as `head`, ends no sweep."""
    with suppress(BrokenPipeError):
        tqdm.write(text)
        sys.stdout.flush()


def _outcome(future: "Future") -> "Outcome":
    """The result of `workers.train_run`. Raises SweepError if the scheduler has lost it."""
    from mtbert_lab.workers import Outcome

    if future.status == "error":
        error = future.exception()
        frames = traceback.extract_tb(future.traceback())
        first, *rest = f"{type(error).__name__}: {error}".splitlines()
        if frames:
            first += f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
        return Outcome("failed", "\n".join([first, *rest, *traceback.format_list(frames)]))
    if future.status != "finished":
        raise SweepError("the scheduler was lost; the same command goes on from the checkpoints")
    return future.result()


def _line(run: SweepRun, outcome: "Outcome") -> str:
    """A run that has ended, with its score or its error, as a line of text."""
    what = f"failed: {outcome.text.splitlines()[0]}" if outcome.state == "failed" else outcome.text
    spent = "stored by another" if outcome.state == "stored" else f"{outcome.minutes:.1f} min"
    return f"{run}: {what} ({run.run_id}, {spent})"


def _end(client: "Client", sweep: str, futures: "Iterable[Future]") -> None:
    """End a sweep: its runs save a checkpoint after their current step. Do not wait longer than GRACE for that."""
    from distributed import wait

    with suppress(OSError):  # a worker has just died, or the scheduler; TimeoutError: the current step takes long
        client.unregister_worker_plugin(sweep)
        wait(list(futures), timeout=GRACE)


@dataclass
class Progress:
    """How far a run of a sweep is."""

    run: SweepRun
    state: str = ""  # what its worker said last; empty before it has begun
    minutes: float | None = None  # that it took, or is expected to take where it is trained
    end: float | None = None  # by the clock, of a run that has done a step
    has_ended: bool = False

    @property
    def says_nothing(self) -> bool:
        """Whether its time says nothing about the other runs: it failed, or another process has stored it."""
        return self.has_ended and self.minutes is None


class Status:
    """How far the runs of a sweep are, from what their workers report and from the runs that have ended."""

    def __init__(self, client: "Client", runs: Sequence[SweepRun], device: str) -> None:
        self.client = client
        self.device = device
        self.progress = {run.run_id: Progress(run) for run in runs}
        self.next_line = time.monotonic() + NEWS_SECONDS

    def note(self, event: tuple[float, dict]) -> None:
        """Note a message of the scheduler or of a worker. A thread of dask's calls this."""
        _, message = event
        if message.get("action") == "remove-worker":
            log.warning("worker %s is lost; its run goes on elsewhere from its checkpoint", message["worker"])
        progress = self.progress.get(message.get("run_id"))
        if progress and not progress.has_ended:
            progress.state = message["state"]
            if message["minutes"] is not None:
                progress.minutes = message["minutes"]
                progress.end = time.monotonic() + 60 * message["left"]

    def end(self, run: SweepRun, minutes: float | None) -> None:
        """Note that a run has ended. minutes: that it took; None where they say nothing about the other runs."""
        progress = self.progress[run.run_id]
        progress.has_ended = True
        progress.minutes = minutes
        progress.end = time.monotonic()

    def left(self) -> str:
        """', about 3 min left'; empty where it is not known."""
        now = time.monotonic()
        known = {run_id: progress for run_id, progress in self.progress.items() if not progress.says_nothing}
        taken = {run_id: one.minutes for run_id, one in known.items() if one.minutes is not None}
        ahead = {run_id: max(0.0, one.end - now) / 60 for run_id, one in known.items() if one.end is not None}
        workers = len(self.client.nthreads()) or 1
        minutes = minutes_left([one.run for one in known.values()], workers, taken, ahead)
        return "" if minutes is None else f", {duration(minutes)} left"

    def tell(self, bar: tqdm) -> None:
        """Show what is trained: behind the bar on a terminal, elsewhere in a line every NEWS_SECONDS."""
        if not bar.disable:
            bar.set_postfix_str(self.text())
        elif time.monotonic() > self.next_line:
            _say(self.text())
            self.next_line += NEWS_SECONDS

    def text(self) -> str:
        """What is trained, and how long that takes. Where nothing is trained, the reason."""
        trained = [one for one in self.progress.values() if one.state and not one.has_ended]
        if trained:
            return "; ".join(f"{one.run} ({one.run.run_id}) {one.state}" for one in trained) + self.left()
        workers = self.client.scheduler_info()["workers"].values()
        if not workers:
            return f"no worker has joined the scheduler {self.client.scheduler.address}"
        if self.device.startswith("cuda") and not any(worker["resources"] for worker in workers):
            return f"none of the {len(workers)} workers has a GPU; start one with --resources GPU=1"
        return "no run has begun"


def minutes_left(
    runs: Sequence[SweepRun],
    workers: int,
    taken: Mapping[str, float] = {},
    left: Mapping[str, float] = {},
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
