"""Seconds of a padded token, in training and in evaluation: a few real steps of a run, on random tokens.

A step takes its padded tokens times the seconds of a token, which a few steps tell for all. They are kept in the cache.
On a CPU with one thread time is the processor's, which other work on the machine changes less than the clock's; on a
GPU the steps are graphs, as those of a run are. Source: paper 000, sections 3.3 and 4 (training times; performance
under constraints of time).
"""

import multiprocessing
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import numpy as np
import torch
from numpy import ndarray
from torch.utils.benchmark import timer

from mtbert.config import RunConfig
from mtbert.data import cached_arrays
from mtbert.multitask import MultitaskBert
from mtbert.runtime import environment, keep_freed_memory, pick_device
from mtbert.training import Shapes, graphs_are_on
from mtbert_lab.cost.steps import Steps, padded_tokens
from mtbert_lab.own_code import import_files, imported

TIMING_SECONDS = 45.0  # after which no further run is timed; the last one may take some seconds more
SPEEDS = "speed"  # folder of the cache


@dataclass(frozen=True)
class Speed:
    """Seconds of a padded token, in a training step and in an evaluation."""

    training: float
    evaluation: float


@dataclass(frozen=True, eq=False)
class Sample:
    """Some steps of a run: the first warms up, the others are timed. memory, known: as in `Steps`."""

    name: str
    config: RunConfig
    steps: list[Shapes]
    memory: dict[str, int]
    known: tuple[str, ...]


def measure_speeds(
    samples: Mapping[RunConfig, Sample],
    device: str = "cpu",
    threads: int | None = None,
    seconds: float = TIMING_SECONDS,
) -> dict[RunConfig, Speed | Exception]:
    """The speed of each run, from the cache or timed now; the exception where none can be timed.

    seconds: after which no further run is timed. These runs, and those whose steps fail, have the mean speed of the
    others; the next call times more of them. What is timed is said on stderr.
    """
    threads = threads or torch.get_num_threads()
    place = pick_device(device)
    machine = str(environment(place) | {"threads": threads, "graphs": graphs_are_on(place)})
    speeds: dict[RunConfig, Speed] = {}
    failed: dict[RunConfig, Exception] = {}
    with Timing(device, threads, seconds) as timing:
        for config, sample in samples.items():
            key = f"{sample.config.digest} {sample.known} {sample.steps}"
            try:
                [values] = cached_arrays(SPEEDS, ("values",), [key], partial(timing, sample), machine)
                speeds[config] = Speed(*values)
            except Exception as error:
                failed[config] = error
    if failed and speeds:
        reasons = [f"{samples[config].name} ({error})" for config, error in failed.items()]
        print(f"not timed, but estimated: {'; '.join(reasons)}", file=sys.stderr)
        speeds |= dict.fromkeys(failed, _mean(list(speeds.values())))
    return failed | speeds


def _mean(speeds: Sequence[Speed]) -> Speed:
    training = fmean(speed.training for speed in speeds)
    return Speed(training, fmean(speed.evaluation for speed in speeds))


class Timing:
    """Times samples one after another, in a process of its own, until the time is up."""

    def __init__(self, device: str, threads: int, seconds: float) -> None:
        self.device = device
        self.threads = threads
        self.deadline = time.monotonic() + seconds
        self.pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> "Timing":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, sample: Sample) -> list[ndarray]:
        """`token_seconds` of a sample, (2,), as `cached_arrays` takes it. Raises TimeoutError when the time is up."""
        if time.monotonic() > self.deadline:
            raise TimeoutError("the time is up")
        print(f"timing steps of {sample.name}", file=sys.stderr, flush=True)
        if self.pool is None:
            spawning = multiprocessing.get_context("spawn")
            self.pool = ProcessPoolExecutor(1, spawning, initializer=import_files, initargs=([*imported],))
        try:
            return [np.array(self.pool.submit(token_seconds, sample, self.device, self.threads).result())]
        except BrokenProcessPool:  # killed, maybe for its memory: the next run is timed in another
            self.close()
            raise

    def close(self) -> None:
        """End the process."""
        if self.pool is not None:
            self.pool.shutdown()
            self.pool = None


def token_seconds(sample: Sample, device: str, threads: int) -> list[float]:
    """Seconds of a padded token, in training and in evaluation, over all steps of a sample but the first.

    For a process of its own, as it sets threads and allocator as `train` does. On a GPU a step is repeated: first it
    runs without a graph, then it is captured, then the graph is timed. What a run's captures take is not counted.
    """
    torch.set_num_threads(threads)
    keep_freed_memory()
    place = pick_device(device)
    clock = time.process_time if place.type == "cpu" and threads == 1 else timer
    run = Steps(MultitaskBert(sample.config).to(place), sample.memory, sample.known, graphs=None)
    training = evaluation = 0.0
    warm_up, *timed = sample.steps
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
    tokens = sum(padded_tokens(sample.config, step) for step in timed)
    return [training / tokens, evaluation / tokens]
