"""Time of training steps and evaluations, measured: a few real steps of a configuration, on random tokens.

A step takes its padded tokens times the seconds of a token, which a few steps tell for all. Runs whose steps compute
the same are of one kind, which is timed once and kept in the cache. Once TIMING_SECONDS are over, the other kinds take
the mean time of a multiplication; the next call times more of them. On a CPU with one thread time is the processor's,
which other work on the machine changes less than the clock's; on a GPU the steps are graphs, as those of a run are.
Source: paper 000, sections 3.3 and 4 (training times; performance under constraints of time).
"""

import logging
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy import ndarray
from torch.utils.benchmark import timer

from mtbert.config import RunConfig
from mtbert.data import cached_arrays
from mtbert.multitask import MultitaskBert
from mtbert.runtime import environment, keep_freed_memory, pick_device, resident_mib
from mtbert.training import Shapes, graphs_are_on
from mtbert_lab.cost.memory import measured_steps, predicted_peak, step_shapes
from mtbert_lab.cost.steps import Steps, padded_tokens

TIMING_SECONDS = 45.0  # after which no further kind of steps is timed; the last one may take some seconds more
QUANTILES = (0.9, 0.25, 0.75)  # of a run's steps by their tokens: the first warms up, the others are timed
WITHOUT_WORK = (  # the fields that change nothing of what a step computes
    "seed", "epochs", "steps_per_epoch", "train_rows", "learning_rate", "schedule", "warmup", "layer_decay",
    "weight_decay", "task_weights", "soft_strength", "gem_margin", "sampling", "keep", "eval_spacing",
    "evals_per_epoch", "curve_rows", "teachers", "distil", "temperature", "pretrain", "pretrain_epochs",
    "pretrain_learning_rate",
)  # fmt: skip
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Speed:
    """Seconds of a padded token, in a training step and in an evaluation."""

    training: float
    evaluation: float


@dataclass(frozen=True, eq=False)
class Kind:
    """Steps that compute the same, but for their lengths.

    name: of a run with such steps. steps: of the lengths QUANTILES. memory, known: as of `Steps`. training, evaluation:
    about how many multiplications a token takes.
    """

    name: str
    config: RunConfig
    steps: list[Shapes]
    memory: dict[str, int]
    known: tuple[str, ...]
    training: float
    evaluation: float

    @property
    def key(self) -> str:
        """Its name in the cache."""
        return f"{self.config.digest} {self.known} {QUANTILES}"


def kind_of(config: RunConfig, steps: Sequence[Shapes], **about: Any) -> Kind:
    """The kind of a run's steps. steps: all that it takes; about: the further fields of `Kind`."""
    default = {field: RunConfig.model_fields[field].default for field in WITHOUT_WORK}
    alike = config.model_copy(update=default | {"weights": "random"})
    by_tokens = sorted(steps, key=partial(padded_tokens, config))
    some = [by_tokens[int(share * len(steps))] for share in QUANTILES]
    return Kind(config=alike, steps=some, **about)


def measure_speeds(
    kinds: Sequence[Kind], device: str = "cpu", threads: int | None = None, again: bool = False
) -> dict[str, Speed]:
    """The speed of each kind by its key, from the cache or timed now; nan where none could be timed.

    again: time what the cache has once more, however long that takes. What is timed is said on stderr.
    """
    threads = threads or torch.get_num_threads()
    deadline = math.inf if again else time.monotonic() + TIMING_SECONDS
    speeds: dict[str, Speed] = {}
    timed: list[Kind] = []
    others: list[Kind] = []
    with _process() as process:
        for kind in {kind.key: kind for kind in kinds}.values():
            measure = partial(_time_steps, process, deadline, kind, device, threads)
            try:
                speeds[kind.key] = Speed(*_cached(kind.key, measure, device, threads, again))
                timed.append(kind)
            except _OutOfTimeError:
                others.append(kind)
            except Exception as error:
                log.warning("%s: steps cannot be timed (%s: %s)", kind.name, type(error).__name__, error)
                others.append(kind)
    if others:
        print(f"not timed, but estimated: {'; '.join(kind.name for kind in others)}", file=sys.stderr)
    return speeds | _estimated(others, timed, speeds)


class _OutOfTimeError(Exception):
    """No further kind of steps is timed."""


def _time_steps(process: ProcessPoolExecutor, deadline: float, kind: Kind, device: str, threads: int) -> list[ndarray]:
    """`_token_seconds` in this process; raises _OutOfTimeError after the deadline."""
    if time.monotonic() > deadline:
        raise _OutOfTimeError
    print(f"timing steps of {kind.name}", file=sys.stderr, flush=True)
    return [np.array(process.submit(_token_seconds, kind, device, threads).result())]


def _estimated(kinds: Sequence[Kind], timed: Sequence[Kind], speeds: dict[str, Speed]) -> dict[str, Speed]:
    """The speeds of kinds that were not timed: a multiplication takes the mean time of one in those that were."""
    if not timed:
        return {kind.key: Speed(np.nan, np.nan) for kind in kinds}
    training = float(np.mean([speeds[kind.key].training / kind.training for kind in timed]))
    evaluation = float(np.mean([speeds[kind.key].evaluation / kind.evaluation for kind in timed]))
    return {kind.key: Speed(training * kind.training, evaluation * kind.evaluation) for kind in kinds}


def measure_beside_mib(device: str = "cpu", threads: int | None = None, again: bool = False) -> float:
    """Resident memory of a process without that of torch's allocator: the interpreter and its libraries."""

    def measure() -> list[ndarray]:
        with _process() as process:
            return [np.array([process.submit(_beside_mib).result()])]

    [mib] = _cached("beside_mib", measure, device, threads or torch.get_num_threads(), again)
    return float(mib)


def _process() -> ProcessPoolExecutor:
    """A process of its own, which starts with what is submitted first and ends with the `with` block."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def _cached(key: str, measure: Callable[[], list[ndarray]], device: str, threads: int, again: bool) -> ndarray:
    """What was measured on this machine, which the cache has under this key."""
    place = pick_device(device)
    machine = str(environment(place) | {"threads": threads, "graphs": graphs_are_on(place)})
    [values] = cached_arrays("speed", ("values",), [key], measure, made_with=machine, again=again)
    return values


def _token_seconds(kind: Kind, device: str, threads: int) -> list[float]:
    """Seconds of a padded token, in training and in evaluation, over all steps of a kind but the first.

    For a process of its own, as it sets threads and allocator as `train` does. On a GPU a step is repeated: first it
    runs without a graph, then it is captured, then the graph is timed. What a run's captures take is not counted.
    """
    torch.set_num_threads(threads)
    keep_freed_memory()
    place = pick_device(device)
    clock = time.process_time if place.type == "cpu" and threads == 1 else timer
    run = Steps(MultitaskBert(kind.config).to(place), kind.memory, kind.known, graphs=None)
    training = evaluation = 0.0
    warm_up, *timed = kind.steps
    run.train(warm_up)
    for step in timed:
        for _ in range(3 if run.has_graphs else 1):  # the last one counts
            started = clock()
            run.train(step)
            trained = clock()
            run.evaluate(step)
            evaluated = clock()
        training += trained - started
        evaluation += evaluated - trained
    tokens = sum(padded_tokens(kind.config, step) for step in timed)
    return [training / tokens, evaluation / tokens]


def _beside_mib() -> float:
    """Resident memory after a small step, less the peak of torch's allocator, of which the process keeps all."""
    torch.set_num_threads(1)
    keep_freed_memory()
    config = measured_steps()["1-bert, few tokens"]
    shapes = step_shapes(config)
    run = Steps(MultitaskBert(config.but(weights="random")), {})
    run.train(shapes)
    return resident_mib() - predicted_peak(config, shapes)["total"]
