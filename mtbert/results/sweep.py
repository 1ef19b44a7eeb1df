"""Sweeps: which runs of some grids are stored, and how long the others will take."""

import heapq
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from mtbert.config import RunConfig
from mtbert.paths import find_result
from mtbert.results.runs import data_root, has_model
from mtbert.results.workers import SweepRun
from mtbert.training import load_corpus


def look_up(
    runs: Sequence[tuple[str, RunConfig]], data: str | Path | None = None, again: bool = False
) -> list[SweepRun]:
    """The runs with their ids, and whether they are stored; equal configurations once, under the first name.

    again: a run whose model is not in the cache does not count as stored. The data are read once for all runs on the
    same tables; raises DataError if they are missing.
    """
    fingerprints: dict[tuple, str] = {}
    found: dict[str, SweepRun] = {}
    for name, config in runs:
        key = (config.corpus, config.tasks, config.scored, config.train_rows, config.train_rows and config.seed)
        if key not in fingerprints:
            fingerprints[key] = load_corpus(config, data_root(config, data)).fingerprint
        run_id = f"{config.digest}-{fingerprints[key][:8]}"
        is_stored = find_result(f"runs/{run_id}/run.json").exists() and (has_model(run_id) or not again)
        found.setdefault(run_id, SweepRun(name, config, run_id, is_stored))
    return list(found.values())


def minutes_left(runs: Sequence[SweepRun], taken: dict[str, float], workers: int, elapsed: float) -> float | None:
    """Minutes until all of these runs have ended, started in this order in `workers` processes; None: not known.

    taken: run_id -> minutes of the runs that have ended; their ratio to the predictions corrects the other predictions.
    A run without a prediction counts as the mean of these runs, at first 0.
    """
    if not taken and all(run.minutes is None for run in runs):
        return None
    both = [(taken[run.run_id], run.minutes) for run in runs if run.run_id in taken and run.minutes]
    rate = sum(t for t, _ in both) / sum(m for _, m in both) if both else 1.0
    mean = sum(taken.values()) / max(1, len(taken))
    ends = [0.0] * workers
    for run in runs:
        expected = taken.get(run.run_id, mean if run.minutes is None else rate * run.minutes)
        heapq.heapreplace(ends, ends[0] + expected)
    return max(0.0, max(ends) - elapsed)


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
    lines = [
        pd.DataFrame(rows).to_string(index=False, na_rep=""),
        f"{len(runs) - len(missing)} of {len(runs)} are stored already",
    ]
    known = [run.minutes for run in missing if run.minutes is not None]
    if known:
        left = minutes_left(missing, {}, workers, 0.0)
        lines.append(f"{len(known)} to train: {sum(known):.1f} minutes, {workers} at a time {duration(left)}")
    if count := len(missing) - len(known):
        lines.append(f"{count} to train without a predicted time")
    if largest := sorted(run.mib for run in missing if run.mib is not None)[-workers:]:
        lines.append(f"memory of {len(largest)} at a time: at most {sum(largest):.0f} MiB")
    if count := sum(run.mib is None for run in missing if run.minutes is not None):
        lines.append(f"{count} to train without a predicted memory")
    return "\n".join(lines)


def duration(minutes: float) -> str:
    """'about 2 h 10 min'."""
    if minutes < 1:
        return "less than a minute"
    hours, rest = divmod(round(minutes), 60)
    return f"about {hours} h {rest} min" if hours else f"about {rest} min"
