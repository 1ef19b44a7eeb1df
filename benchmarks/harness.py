"""Measures mtbert ("ours") and its peers in turns, and updates the table bench.csv of the results store.

Every repeat measures each once, in an order that is reversed from repeat to repeat, so that a machine that slows down
slows all of them. While ours runs the C library keeps freed memory, as in training; for another package's code it has
its default (runtime.py). Every measurement begins with calls that are not counted.

A row of the table: benchmark, size and peer (what was compared), ours and theirs (medians over the repeats, in `unit`),
ratio = theirs / ours (above 1: ours costs less), low and high (the smallest and the largest ratio of a repeat). For
steps on a GPU (gpu_steps.py) our_busy is the share of the time in which it computes.
"""

import gc
import importlib.metadata
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from filelock import FileLock
from torch.utils.benchmark import Timer

from mtbert.data import DataError
from mtbert.files import replacing
from mtbert.runtime import environment, free_by_default, keep_freed_memory

CPU = torch.device("cpu")
LEAST_SECONDS = 0.6  # of a measurement: what is shorter is called several times
KEY = ("benchmark", "size", "peer", "encoder", "precision")  # with the kind of device: what a row replaces
COLUMNS = (
    "benchmark", "size", "peer", "ours", "theirs", "unit", "ratio", "low", "high",
    "repeats", "encoder", "precision", "device", "threads", "mtbert", "torch", "transformers", "peer_version", "python",
    "our_busy",
)  # fmt: skip

Run = Callable[[int], float]  # number of the repeat -> what it cost, in the contest's unit


@dataclass(frozen=True)
class Setting:
    """What all benchmarks share. encoder: RunConfig's."""

    encoder: str = "minilm"
    data: str | Path | None = None  # of the course's files; None: where `find_data` looks
    repeats: int = 5


@dataclass(frozen=True)
class Peer:
    """What ours is compared with. package: whose code it is, None: ours."""

    run: Run
    package: str | None = None


@dataclass(frozen=True)
class Contest:
    """One size of a benchmark: ours and its peers, on the same work."""

    size: str
    ours: Run
    peers: dict[str, Peer]
    unit: str = "ms"


Benchmarks = dict[str, tuple[Callable[..., Contest], tuple[dict, ...]]]  # what builds a contest, its arguments by size


class Outcome(NamedTuple):
    """A row of the table, or why there is none, as text."""

    text: str
    failed: bool = False


def run_benchmarks(benchmarks: Benchmarks, setting: Setting, out: Path) -> Iterator[Outcome]:
    """Run every size of every benchmark on the CPU; each row is in the file `out` before it is yielded.

    A line on stderr says which one begins.

    Skipped are benchmarks without the course's data, and peers of other packages that raise: one that is not installed,
    or torch.compile without a C++ compiler. After any other error the benchmarks behind it still run.
    """
    jobs = [(name, build, size) for name, (build, sizes) in benchmarks.items() for size in sizes]
    for number, (name, build, size) in enumerate(jobs, start=1):
        about = ", ".join(f"{key} {value}" for key, value in size.items())
        print(f"[{number} of {len(jobs)}] {name} {about}", file=sys.stderr, flush=True)
        try:
            yield from _measured(name, build, size, setting, out)
        except DataError as error:
            yield Outcome(f"{name}: skipped, {error}")
        except Exception as error:
            yield Outcome(f"{name}: failed, {type(error).__name__}: {error}", failed=True)
        gc.collect()


def _measured(name: str, build: Callable[..., Contest], size: dict, setting: Setting, out: Path) -> Iterator[Outcome]:
    where = {"benchmark": name, "encoder": Path(setting.encoder).name} | environment(CPU)
    where["precision"] = size.get("precision", "fp32")
    where["transformers"] = importlib.metadata.version("transformers")
    keep_freed_memory()
    contest = build(setting, **size)
    rows, skipped = compare(contest, setting.repeats)
    for peer, error in skipped.items():
        first, _, _ = str(error).strip().partition("\n")  # a compiler's whole output may follow
        yield Outcome(f"{name} {contest.size} / {peer}: skipped, {type(error).__name__}: {first}")
    for row in rows:
        write_row(out, where | row)
        yield Outcome(f"{name} {describe(row)}")


def timed(call: Callable[[], object], work: float = 1.0) -> Run:
    """A run: the median time of a call, divided by `work`, in milliseconds; the first calls warm up."""
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return lambda repeat: 1000 * timer.blocked_autorange(min_run_time=LEAST_SECONDS).median / work


def interleave(contest: Contest, repeats: int) -> tuple[dict[str, np.ndarray], dict[str, Exception]]:
    """Peer ("" for ours) -> what each repeat cost (repeats,), and the errors of other packages; ours are raised."""
    peers = {"": Peer(contest.ours)} | contest.peers
    measured, errors = {name: np.zeros(repeats) for name in peers}, {}
    for repeat in range(repeats):
        for name in list(measured)[:: 1 if repeat % 2 == 0 else -1]:
            peer = peers[name]
            set_allocator = free_by_default if peer.package else keep_freed_memory
            set_allocator()
            try:
                measured[name][repeat] = peer.run(repeat)
            except Exception as error:
                if not peer.package:
                    raise
                errors[name] = error
                del measured[name]
    keep_freed_memory()
    return measured, errors


def compare(contest: Contest, repeats: int) -> tuple[list[dict], dict[str, Exception]]:
    """A row for every peer, and the peers that raise; ours is measured once for all of them."""
    measured, errors = interleave(contest, repeats)
    medians = {name: float(np.median(costs)) for name, costs in measured.items()}
    ours, median = measured.pop(""), medians.pop("")
    about = dict(size=contest.size, ours=median, unit=contest.unit, repeats=repeats)
    rows = []
    for name, costs in measured.items():
        theirs, ratios = medians[name], costs / ours
        row = about | dict(peer=name, theirs=theirs, ratio=theirs / median, low=ratios.min(), high=ratios.max())
        if package := contest.peers[name].package:
            row["peer_version"] = importlib.metadata.version(package)
        rows.append(row)
    return rows, errors


def describe(row: dict) -> str:
    """A row in a line, without what it was measured on."""
    ours = f"{row['ours']:.4g} {row['unit']}"
    ratio = f"{row['ratio']:.4g} ({row['low']:.4g} to {row['high']:.4g})"
    return f"{row['size']} / {row['peer']}: ours {ours}, peer {row['theirs']:.4g}, ratio {ratio}"


def write_row(path: Path, row: dict) -> None:
    """Put a row into the table, in the place of the one of the same KEY and kind of device; whole or not at all.

    Other rows stay as they are, to the digit. The lock is that of a results store: one process writes at a time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    row = {name: f"{value:.6g}" if isinstance(value := row.get(name, ""), float) else str(value) for name in COLUMNS}
    with FileLock(path.with_name(".lock")):
        rows = {_key(old): old for old in read_rows(path)} if path.exists() else {}
        rows[_key(row)] = row
        with replacing(path) as partial:
            pd.DataFrame(rows.values(), columns=list(COLUMNS)).to_csv(partial, index=False)


def read_rows(path: Path) -> list[dict]:
    """The rows of the table, every value as it is written."""
    return pd.read_csv(path, dtype=str, keep_default_na=False).to_dict("records")


def _key(row: dict) -> tuple:
    """CPUs count as one kind of device, GPUs of different names do not."""
    return (*(row[name] for name in KEY), row["device"].split(" (")[0])
