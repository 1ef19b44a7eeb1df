"""Sweeps: runs looked up in the store, predicted, trained by worker processes."""

import heapq
import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import torch

from mtbert.config import RunConfig
from mtbert.data import Corpus
from mtbert.paths import results_dir
from mtbert.results.runs import data_root
from mtbert.results.store import read_run
from mtbert.results.workers import SweepRun, train_all
from mtbert.training import load_corpus

log = logging.getLogger(__name__)


@contextmanager
def warned_once() -> Iterator[None]:
    """Inside the block a table that is read several times is warned of once."""
    seen, logger = set(), logging.getLogger(Corpus.__module__)

    def is_new(record: logging.LogRecord) -> bool:
        before = len(seen)
        seen.add(record.getMessage())
        return len(seen) > before

    logger.addFilter(is_new)
    try:
        yield
    finally:
        logger.removeFilter(is_new)


def look_up(
    runs: Sequence[tuple[str, RunConfig]], data: str | Path | None = None, store: str | Path | None = None
) -> list[SweepRun]:
    """The runs with their ids, and whether the store (default: `results_dir()`) holds them.

    A configuration that is there twice comes once, under its first name. The data are read once for all runs on the
    same tables; raises DataError where they are missing.
    """
    folder = Path(store) if store else results_dir()
    fingerprints: dict[tuple, str] = {}
    found: dict[str, SweepRun] = {}
    for name, config in runs:
        key = (config.corpus, config.tasks, config.scored, config.train_rows, config.train_rows and config.seed)
        if key not in fingerprints:
            fingerprints[key] = load_corpus(config, data_root(config, data)).fingerprint
        run_id = f"{config.digest}-{fingerprints[key][:8]}"
        is_stored = (folder / "runs" / run_id / "run.json").exists()
        found.setdefault(run_id, SweepRun(name, config, run_id, is_stored))
    return list(found.values())


def run_grid(
    grid: dict[str, list[RunConfig]],
    workers: int = 1,
    threads: int | None = None,
    data: str | Path | None = None,
    store: str | Path | None = None,
    device: str = "auto",
) -> Iterator[tuple[str, RunConfig, float | Exception]]:
    """Train every run that the store lacks, each in a process of its own; yields (name, config, score or error).

    Stored runs come first and start no process; the others start in the grid's order. workers processes of `threads`
    threads each (default: the cores shared out evenly). A failed run does not stop the others; how a sweep is
    interrupted and goes on: `workers.train_all`.
    """
    pairs = [(name, config) for name, configs in grid.items() for config in configs]
    runs = look_up(pairs, data, store)
    for run in runs:
        if run.is_stored:
            folder = (Path(store) if store else results_dir()) / "runs" / run.run_id
            yield run.name, run.config, read_run(folder, run.config).score()
    missing = [run for run in runs if not run.is_stored]
    for run, outcome, _ in train_all(missing, workers, threads or threads_of_each(workers), data, store, device):
        yield run.name, run.config, outcome


def threads_of_each(workers: int) -> int:
    """The cores shared out evenly among so many processes, at least one for each."""
    return max(1, torch.get_num_threads() // workers)


def longest_first(runs: Sequence[SweepRun]) -> list[SweepRun]:
    """The runs by falling minutes, those without a prediction first; where they are equal, as they were."""
    return sorted(runs, key=lambda run: -math.inf if run.minutes is None else -run.minutes)


def minutes_left(runs: Sequence[SweepRun], taken: dict[str, float], workers: int, elapsed: float) -> float | None:
    """Minutes until all of these runs, started in this order by so many workers, have ended; None: not known.

    taken: the minutes of those that have, by run_id; what they took of their predictions corrects the others'. A run
    without a prediction counts as much as those on average, at first 0.
    """
    both = [(taken[run.run_id], run.minutes) for run in runs if run.run_id in taken and run.minutes]
    rate = sum(t for t, _ in both) / sum(m for _, m in both) if both else 1.0
    if not taken and all(run.minutes is None for run in runs):
        return None
    mean = sum(taken.values()) / max(1, len(taken))
    ends = [0.0] * workers
    for run in runs:
        expected = taken.get(run.run_id, mean if run.minutes is None else rate * run.minutes)
        heapq.heapreplace(ends, ends[0] + expected)
    return max(0.0, max(ends) - elapsed)


def describe(runs: Sequence[SweepRun], workers: int) -> str:
    """The runs as a table, and what those that are not stored will take together."""
    missing = [run for run in runs if not run.is_stored]
    width = max(4, *(len(run.name) for run in runs))
    rows = [
        {
            "name".ljust(width): run.name.ljust(width),
            "seed": run.config.seed,
            "run id": run.run_id,
            "state": "stored" if run.is_stored else "to train",
            "minutes": "" if run.is_stored else "unknown" if run.minutes is None else f"{run.minutes:.1f}",
            "memory (MiB)": "" if run.is_stored else "unknown" if run.mib is None else f"{run.mib:.0f}",
        }
        for run in runs
    ]
    lines = [pd.DataFrame(rows).to_string(index=False), f"{len(runs) - len(missing)} of {len(runs)} are stored already"]
    known = [run.minutes for run in missing if run.minutes is not None]
    if known:
        left = minutes_left(missing, {}, workers, 0.0)
        lines.append(f"{len(known)} to train: {sum(known):.1f} minutes, {workers} at a time {duration(left)}")
    if count := len(missing) - len(known):
        lines.append(f"{count} to train, of which the minutes are unknown")
    largest = sorted(run.mib for run in missing if run.mib is not None)[-workers:]
    if largest:
        lines.append(f"memory of {len(largest)} at a time: at most {sum(largest):.0f} MiB")
    if count := sum(run.mib is None for run in missing if run.minutes is not None):
        lines.append(f"the memory of {count} is not predicted")
    return "\n".join(lines)


def duration(minutes: float) -> str:
    """'about 2 h 10 min'."""
    if minutes < 1:
        return "less than a minute"
    hours, rest = divmod(round(minutes), 60)
    return f"about {hours} h {rest} min" if hours else f"about {rest} min"
