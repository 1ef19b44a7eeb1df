"""Time of training steps and evaluations, measured: a few real steps of a configuration, on random tokens.

A step takes its padded tokens times the seconds of a token, which a few steps tell for all. Configurations that differ
in nothing that a step computes share a measurement. On a CPU with one thread time is the processor's, which other work
on the machine changes less than the clock's. Source: paper 000, sections 3.3 and 4 (training times; performance under
constraints of time).
"""

import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy import ndarray
from torch.utils.benchmark import timer

from mtbert.config import RunConfig
from mtbert.data import cached_arrays
from mtbert.multitask import MultitaskBert
from mtbert.runtime import environment, keep_freed_memory, pick_device, resident_mib
from mtbert_lab.cost.memory import measured_steps, predicted_peak, step_shapes
from mtbert_lab.cost.steps import Shapes, Steps, padded_tokens

QUANTILES = (0.9, 0.25, 0.75)  # of a run's steps by their tokens: the first warms up, the others are timed
WITHOUT_WORK = (  # the fields that change nothing of what a step computes
    "seed", "epochs", "steps_per_epoch", "train_rows", "learning_rate", "schedule", "warmup", "layer_decay",
    "weight_decay", "task_weights", "soft_strength", "gem_margin", "sampling", "keep", "eval_spacing",
    "evals_per_epoch", "curve_rows", "teachers", "distil", "temperature", "pretrain", "pretrain_epochs",
    "pretrain_learning_rate",
)  # fmt: skip


@dataclass(frozen=True)
class Speed:
    """Seconds of a padded token, in a training step and in an evaluation."""

    training: float
    evaluation: float


class Speeds:
    """What this machine takes, from the cache, or measured in a process of its own and kept there.

    The process ends with the `with` block. again: measure once more what the cache has. The first measurement is
    announced on stderr.
    """

    def __init__(self, device: str = "cpu", threads: int | None = None, again: bool = False) -> None:
        self.device = device
        self.threads = threads or torch.get_num_threads()
        self.again = again
        self.found: dict[str, list[float]] = {}
        self.is_announced = False
        self.pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))

    def __enter__(self) -> "Speeds":
        return self

    def __exit__(self, *error: object) -> None:
        self.pool.shutdown()

    def of(self, config: RunConfig, steps: Sequence[Shapes], memory: dict[str, int], known: tuple[str, ...]) -> Speed:
        """The speed of a configuration. steps: all that a run of it takes; memory, known: as of `Steps`."""
        self.beside_mib()  # first: a larger model leaves freed blocks in the process
        default = {name: RunConfig.model_fields[name].default for name in WITHOUT_WORK}
        kind = config.model_copy(update=default | {"weights": "random"})
        by_tokens = sorted(steps, key=partial(padded_tokens, config))
        some = [by_tokens[int(share * len(steps))] for share in QUANTILES]
        key = f"{kind.digest} {known} {QUANTILES}"
        training, evaluation = self._measured(key, _token_seconds, kind, some, memory, known, self.device, self.threads)
        return Speed(training, evaluation)

    def beside_mib(self) -> float:
        """Resident memory of a process without that of torch's allocator: the interpreter and its libraries."""
        [mib] = self._measured("beside_mib", _beside_mib)
        return mib

    def _measured(self, key: str, measure: Callable[..., list[float]], *arguments: object) -> list[float]:
        """What `measure` returns for these arguments, which the cache has under this key and the machine."""
        machine = environment(pick_device(self.device)) | {"threads": self.threads}

        def compute() -> list[ndarray]:
            if not self.is_announced:
                print("timing steps on this machine, some seconds for each new kind", file=sys.stderr, flush=True)
                self.is_announced = True
            return [np.array(self.pool.submit(measure, *arguments).result())]

        if key not in self.found:
            [values] = cached_arrays("speed", ("values",), [key], compute, made_with=str(machine), again=self.again)
            self.found[key] = values.tolist()
        return self.found[key]


def _token_seconds(
    config: RunConfig, steps: list[Shapes], memory: dict[str, int], known: tuple[str, ...], device: str, threads: int
) -> list[float]:
    """Seconds of a padded token, in training and in evaluation, over all of these steps but the first.

    For a process of its own, as it sets threads and allocator as `train` does.
    """
    torch.set_num_threads(threads)
    keep_freed_memory()
    place = pick_device(device)
    clock = time.process_time if place.type == "cpu" and threads == 1 else timer
    run = Steps(MultitaskBert(config).to(place), memory, known)
    training = evaluation = 0.0
    warm_up, *timed = steps
    run.gradients(warm_up)
    run.update()
    for step in timed:
        started = clock()
        run.gradients(step)
        run.update()
        trained = clock()
        run.evaluate(step)
        training += trained - started
        evaluation += clock() - trained
    tokens = sum(padded_tokens(config, step) for step in timed)
    return [training / tokens, evaluation / tokens]


def _beside_mib() -> list[float]:
    """Resident memory after a small step, less the peak of torch's allocator, of which the process keeps all."""
    torch.set_num_threads(1)
    keep_freed_memory()
    config = measured_steps()["1-bert, few tokens"]
    shapes = step_shapes(config)
    run = Steps(MultitaskBert(config.but(weights="random")), {})
    run.gradients(shapes)
    run.update()
    return [resident_mib() - predicted_peak(config, shapes)["total"]]
