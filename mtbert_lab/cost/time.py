"""Time of training steps and evaluations, measured: a few real steps of a configuration, on random tokens.

A step takes its padded tokens times the seconds of a token, which a few steps tell for all. Runs whose steps compute
the same are of one kind, which is timed once. Where there are more kinds than TIMING_SECONDS allow, the others take the
time of the most similar kind that was timed, scaled by the layers that a token passes. On a CPU with one thread time is
the processor's, which other work on the machine changes less than the clock's; on a GPU the steps are graphs, as those
of a run are. Source: paper 000, sections 3.3 and 4 (training times; performance under constraints of time).
"""

import logging
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
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

    def difference(self, other: "Kind") -> float:
        """How little its time says about another's: the fields that differ, and the doublings of work and of tokens."""
        fields = 0
        for name in RunConfig.model_fields:
            fields += getattr(self.config, name) != getattr(other.config, name)
        work = self.training / other.training
        tokens = self.tokens / other.tokens
        return fields + abs(math.log2(work)) + abs(math.log2(tokens))

    @property
    def tokens(self) -> int:
        """Padded tokens of its steps."""
        return sum(padded_tokens(self.config, step) for step in self.steps)


def kind_of(config: RunConfig, steps: Sequence[Shapes], **about: Any) -> Kind:
    """The kind of a run's steps. steps: all that it takes; about: the further fields of `Kind`."""
    default = {field: RunConfig.model_fields[field].default for field in WITHOUT_WORK}
    alike = config.model_copy(update=default | {"weights": "random"})
    by_tokens = sorted(steps, key=partial(padded_tokens, config))
    some = [by_tokens[int(share * len(steps))] for share in QUANTILES]
    return Kind(config=alike, steps=some, **about)


class Speeds:
    """What this machine takes, from the cache, or measured in a process of its own and kept there.

    The process ends with the `with` block. again: measure once more what the cache has, however long that takes. What
    is timed is said on stderr.
    """

    def __init__(self, device: str = "cpu", threads: int | None = None, again: bool = False) -> None:
        self.device = device
        self.threads = threads or torch.get_num_threads()
        place = pick_device(device)
        self.machine = str(environment(place) | {"threads": self.threads, "graphs": graphs_are_on(place)})
        self.again = again
        self.timed: list[str] = []  # the runs whose steps were timed now
        self.seconds = 0.0  # that it took
        self.pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))

    def __enter__(self) -> "Speeds":
        return self

    def __exit__(self, *error: object) -> None:
        self.pool.shutdown()

    def of(self, kinds: Sequence[Kind]) -> dict[str, Speed]:
        """The speed of each kind, by its key; nan where none could be timed."""
        if kinds:
            self.beside_mib()  # first: a larger model leaves freed blocks in the process
        speeds: dict[str, Speed] = {}
        known: list[Kind] = []
        others: list[Kind] = []
        for kind in _most_different_first(kinds):
            try:
                values = self._measured(kind.name, kind.key, _token_seconds, kind, self.device, self.threads)
            except _OutOfTimeError:
                others.append(kind)
            except Exception as error:
                log.warning("%s: steps cannot be timed (%s: %s)", kind.name, type(error).__name__, error)
                others.append(kind)
            else:
                speeds[kind.key] = Speed(*values)
                known.append(kind)
        for kind in others:
            speeds[kind.key] = _scaled(kind, known, speeds)
        self._tell(others)
        return speeds

    def beside_mib(self) -> float:
        """Resident memory of a process without that of torch's allocator: the interpreter and its libraries."""
        [mib] = self._measured("", "beside_mib", _beside_mib)
        return mib

    def _measured(self, name: str, key: str, measure: Callable[..., list[float]], *arguments: object) -> ndarray:
        """What `measure` returns for these arguments, which the cache has under this key and the machine.

        name: of the run, "" for none. Raises _OutOfTimeError where it would have to be measured and the time is up.
        """

        def compute() -> list[ndarray]:
            if self.timed and self.seconds > TIMING_SECONDS and not self.again:
                raise _OutOfTimeError
            if not self.seconds:
                print("timing steps on this machine, about a minute", file=sys.stderr, flush=True)
            started = time.monotonic()
            values = self.pool.submit(measure, *arguments).result()
            self.seconds += time.monotonic() - started
            if name:
                self.timed.append(name)
            return [np.array(values)]

        [values] = cached_arrays("speed", ("values",), [key], compute, made_with=self.machine, again=self.again)
        return values

    def _tell(self, others: list[Kind]) -> None:
        """Say on stderr what was timed, and what was not."""
        if self.timed:
            print(f"timed in {self.seconds:.0f} s: steps of {'; '.join(self.timed)}", file=sys.stderr)
        if others:
            names = "; ".join(kind.name for kind in others)
            print(f"scaled from the most similar that were timed: {names}", file=sys.stderr)


class _OutOfTimeError(Exception):
    """No further kind of steps is timed."""


def _most_different_first(kinds: Sequence[Kind]) -> Iterator[Kind]:
    """Each kind once: the first, then always the one that differs most from all before it."""
    difference = {kind: math.inf for kind in {kind.key: kind for kind in kinds}.values()}
    while difference:
        kind = max(difference, key=difference.get)
        del difference[kind]
        yield kind
        for other in difference:
            difference[other] = min(difference[other], kind.difference(other))


def _scaled(kind: Kind, known: list[Kind], speeds: dict[str, Speed]) -> Speed:
    """The speed of a kind that was not timed: that of the most similar one, by the work of a token."""
    if not known:
        return Speed(math.nan, math.nan)
    similar = min(known, key=kind.difference)
    speed = speeds[similar.key]
    return Speed(
        speed.training * kind.training / similar.training,
        speed.evaluation * kind.evaluation / similar.evaluation,
    )


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


def _beside_mib() -> list[float]:
    """Resident memory after a small step, less the peak of torch's allocator, of which the process keeps all."""
    torch.set_num_threads(1)
    keep_freed_memory()
    config = measured_steps()["1-bert, few tokens"]
    shapes = step_shapes(config)
    run = Steps(MultitaskBert(config.but(weights="random")), {})
    run.train(shapes)
    return [resident_mib() - predicted_peak(config, shapes)["total"]]
