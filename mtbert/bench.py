"""`mtbert bench`: ours against a peer, one after the other in one process, and the table of what came out.

In every repeat each contender runs once, ours first in one repeat and last in the next, so that a machine that slows
down slows all of them. Before the first repeat everybody warms up. While ours runs the C library keeps freed memory, as
`train` has it do; while another program's code runs it does what it does by default (heap.py), and whoever runs after
such a change warms up again.

results/bench.csv has a row for each benchmark, size and peer. Ratios are peer / ours: above 1 ours is faster. low and
high are the smallest and the largest ratio of a repeat. A ratio of at least `reach` was asked for.
"""

import difflib
import gc
import importlib.metadata
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pandas as pd
import torch

from mtbert.data import DataError
from mtbert.heap import free_by_default, keep_freed_memory
from mtbert.paths import replacing
from mtbert.profiling import environment

WARM_UP = -1  # the number of the repeat that is not counted
LEAST_SECONDS = 0.6  # of a measurement: what is shorter is called several times
KEY = ("benchmark", "size", "peer", "encoder", "precision")  # with the kind of device: what a row replaces

Run = Callable[[int], float | None]  # number of the repeat -> units of work done, None: 1


class BenchError(ValueError):
    """A benchmark that does not exist; the message names those that do."""


class Missing(LookupError):
    """Something that a row needs is not here; the message says what to do."""


@dataclass(frozen=True)
class Setting:
    """Where and on which encoder benchmarks run: device, precision fp32 or bf16, RunConfig's encoder and weights."""

    device: torch.device
    precision: str = "fp32"
    encoder: str = "minilm"
    weights: str = "pretrained"
    data: str | Path | None = None  # of the course's files; None: where `find_data` looks
    repeats: int = 5


@dataclass(frozen=True)
class Peer:
    """What ours is compared with; a number for `run` is a limit in the contest's unit, which nothing measures.

    scale: factor of what is measured, and span: largest size / this one, where the peer is ours at a smaller size. The
    ratio then says whether ours grows faster than the arithmetic does. missing: why the peer cannot run, what to do.
    """

    run: Run | float = math.nan
    reach: float | None = None  # the ratio asked for
    scale: float = 1.0
    span: float | None = None
    package: str | None = None  # of another program: whose version is told
    missing: str = ""


@dataclass(frozen=True)
class Contest:
    """One size of a benchmark: ours and its peers, on the same work.

    A run returns how many units of work (rows, steps) it did, and its time is divided by that; with `timed` False it
    returns the measurement itself, in `unit`. is_total: the repeats are the parts of one whole, whose sum counts.
    precision: where it is not the setting's.
    """

    size: str
    ours: Run
    peers: dict[str, Peer]
    unit: str = "ms"
    timed: bool = True
    is_total: bool = False
    precision: str | None = None


@dataclass(frozen=True)
class Benchmark:
    """A name, what builds its contests, and the keyword arguments of each; once: the encoder does not matter to it."""

    name: str
    build: Callable[..., Contest]
    sizes: tuple[dict, ...] = ({},)
    once: bool = False


@dataclass(frozen=True)
class Outcome:
    """A row of the table, or why there is none."""

    name: str
    row: dict = field(default_factory=dict)
    skipped: str = ""
    failed: str = ""

    def __str__(self) -> str:
        if self.skipped or self.failed:
            return f"{self.name}: {'skipped, ' + self.skipped if self.skipped else 'failed, ' + self.failed}"
        row = self.row
        line = f"{self.name} / {row['peer']}: ours {row['ours']:.4g} {row['unit']}, peer {row['theirs']:.4g}, ratio "
        line += f"{row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
        if row["reach"] is not None:
            line += f", asked for {row['reach']:.3f}: {'reached' if row['reached'] else 'NOT reached'}"
        if row["slope"] is not None:
            line += f"; slope {row['slope']:.2f}, of the arithmetic {row['arithmetic_slope']:.2f}"
        return line


# --- the choice and the run ----------------------------------------------------------------------------------------


def choose(benchmarks: Iterable[Benchmark], names: Iterable[str]) -> list[Benchmark]:
    """The benchmarks of these names, all where there is no name. Raises BenchError for an unknown one."""
    known, names = {benchmark.name: benchmark for benchmark in benchmarks}, list(names)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ";"
            raise BenchError(f"there is no benchmark {name!r}{hint} known are {', '.join(known)}")
    return [benchmark for name, benchmark in known.items() if name in names or not names]


def run_benchmarks(benchmarks: Iterable[Benchmark], settings: list[Setting], out: Path) -> Iterator[Outcome]:
    """Run every size of every benchmark in every setting; each row is in the file `out` before it is yielded.

    A row that cannot run (Missing, DataError) is skipped, any other error of a row does not stop those behind it.
    """
    keep_freed_memory()
    for setting in settings:
        for benchmark in benchmarks:
            if benchmark.once and setting is not settings[0]:
                continue
            for size in benchmark.sizes:
                yield from _outcomes(benchmark, size, setting, out)
                gc.collect()


def _outcomes(benchmark: Benchmark, size: dict, setting: Setting, out: Path) -> Iterator[Outcome]:
    name = f"{benchmark.name} {' '.join(str(value) for value in size.values())}".strip()
    try:
        contest = benchmark.build(setting, **size)
        name = f"{benchmark.name} {contest.size}".strip()
        for peer, about in contest.peers.items():
            if about.missing:
                yield Outcome(f"{name} / {peer}", skipped=about.missing)
        contest = replace(contest, peers={peer: about for peer, about in contest.peers.items() if not about.missing})
        where = _about(benchmark.name, replace(setting, precision=contest.precision or setting.precision))
        rows = [where | row for row in compare(contest, setting)]
    except (Missing, DataError) as error:
        yield Outcome(name, skipped=str(error))
    except Exception as error:
        yield Outcome(name, failed=f"{type(error).__name__}: {error}")
    else:
        for row in rows:
            write_row(out, row)
            yield Outcome(name, row)


# --- the measurement -----------------------------------------------------------------------------------------------


def compare(contest: Contest, setting: Setting) -> list[dict]:
    """A row for every peer; ours is measured once for all of them."""
    ours, peers = "ours", contest.peers
    runs = {ours: contest.ours} | {name: peer.run for name, peer in peers.items() if callable(peer.run)}
    others = {name for name, peer in peers.items() if peer.package}
    measured = interleave(runs, contest, setting, others)
    rows = []
    for name, peer in peers.items():
        theirs = measured.get(name, [(peer.run, 1.0)] * setting.repeats)
        theirs = [(value * peer.scale, work) for value, work in theirs]
        ratios = [(b / n) / (a / m) for (a, m), (b, n) in zip(measured[ours], theirs, strict=True)]
        a, b = (_whole(values, contest.is_total) for values in (measured[ours], theirs))
        grows = {"slope": None, "arithmetic_slope": None}
        if peer.span:
            slopes = (math.log(a / (b / peer.scale)), math.log(peer.scale))
            grows = dict(zip(grows, (slope / math.log(peer.span) for slope in slopes), strict=True))
        versions = {"peer_version": _version(peer.package)}
        rows.append(
            dict(size=contest.size, peer=name, ours=a, theirs=b, unit=contest.unit, ratio=b / a, low=min(ratios),
                 high=max(ratios), reach=peer.reach, reached=None if peer.reach is None else b / a >= peer.reach,
                 **grows, repeats=setting.repeats, **versions)
        )  # fmt: skip
    return rows


def interleave(
    runs: dict[str, Run], contest: Contest, setting: Setting, others: Collection[str] = ()
) -> dict[str, list[tuple[float, float]]]:
    """Name -> a measurement and its units of work for every repeat; times in milliseconds.

    others: the names that are not our code, and run with the C library's defaults.
    """
    calls = {name: _calls(run, contest, setting.device) for name, run in runs.items()}
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    by_default = False
    for repeat in range(setting.repeats):
        for name in list(runs) if repeat % 2 == 0 else reversed(runs):
            if by_default != (name in others):
                by_default = not by_default
                free_by_default() if by_default else keep_freed_memory()
                _measure(runs[name], WARM_UP, 1, contest.timed, setting.device)
            measured[name].append(_measure(runs[name], repeat, calls[name], contest.timed, setting.device))
    keep_freed_memory()
    return measured


def _calls(run: Run, contest: Contest, device: torch.device) -> int:
    """Warm up; how many calls make a measurement of LEAST_SECONDS."""
    started = time.perf_counter()
    _measure(run, WARM_UP, 1, contest.timed, device)
    first = time.perf_counter() - started
    if contest.is_total or not contest.timed or first >= 10 * LEAST_SECONDS:
        return 1
    milliseconds, _ = _measure(run, WARM_UP, 1, True, device)  # the first call may have built something
    return max(1, math.ceil(LEAST_SECONDS * 1000 / max(milliseconds, 1e-3)))


def _measure(run: Run, repeat: int, calls: int, timed: bool, device: torch.device) -> tuple[float, float]:
    _synchronize(device)
    work = 0.0
    started = time.perf_counter()
    for _ in range(calls):
        done = run(repeat)
        work += 1 if done is None else done
    _synchronize(device)
    return ((time.perf_counter() - started) * 1000, work) if timed else (work, 1.0)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def started_process(script: str, *arguments: str) -> str:
    """What a fresh Python prints that runs this script; raises RuntimeError with the last line of its error."""
    process = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError(process.stderr.strip().splitlines()[-1])
    return process.stdout


def _whole(values: list[tuple[float, float]], is_total: bool) -> float:
    """The median of value / work, or, of the parts of a whole, the sum of values / the sum of work."""
    if is_total:
        return sum(value for value, _ in values) / sum(work for _, work in values)
    return statistics.median(value / work for value, work in values)


# --- the table -----------------------------------------------------------------------------------------------------


def _about(benchmark: str, setting: Setting) -> dict:
    where = environment(setting.device) | {"transformers": _version("transformers")}
    encoder = Path(setting.encoder).name + (" (random weights)" if setting.weights == "random" else "")
    return {"benchmark": benchmark, "encoder": encoder, "precision": setting.precision, **where}


def _version(package: str | None) -> str | None:
    if package is None:
        return None
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


COLUMNS = (
    "benchmark", "size", "peer", "ours", "theirs", "unit", "ratio", "low", "high", "reach", "reached", "slope",
    "arithmetic_slope", "repeats", "encoder", "precision", "device", "threads", "mtbert", "torch", "transformers",
    "peer_version", "python",
)  # fmt: skip


def write_row(path: Path, row: dict) -> None:
    """Put a row into the table, in the place of the one of the same KEY and kind of device; whole or not at all.

    Other rows stay as they are, to the digit.
    """
    rows = [dict(old) for old in read_rows(path)] if path.exists() else []
    row = {name: _text(row.get(name)) for name in COLUMNS}
    places = [i for i, old in enumerate(rows) if _key(old) == _key(row)]
    if places:
        rows[places[0]] = row
    else:
        rows.append(row)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        pd.DataFrame(rows, columns=list(COLUMNS)).to_csv(partial, index=False)


def read_rows(path: Path) -> list[dict]:
    """The rows of the table, every value as it is written."""
    return pd.read_csv(path, dtype=str, keep_default_na=False).to_dict("records")


def _key(row: dict) -> tuple:
    """CPUs count as one kind of device, GPUs of different names do not."""
    return (*(row[name] for name in KEY), row["device"].split(" (")[0])


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
