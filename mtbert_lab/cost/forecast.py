"""Memory and time of a whole run before it is trained.

The steps of a run follow from its configuration and the lengths of its texts (`training_steps`): the longest batch
decides the memory of training; time is that of all padded tokens, at the measured speed of a few steps. Memory of the
process on a CPU is more than the allocator's peak: the interpreter with its libraries, the tables, the best weights
kept for the end, freed blocks. Source: paper 000, section 4. Memory in MiB, time in seconds.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from numpy import ndarray

from mtbert.config import RunConfig
from mtbert.data import TASKS
from mtbert.multitask import meta_model, parameter_counts
from mtbert.runtime import MIB, SLACK_MIB
from mtbert.training import (
    KEPT_FROM,
    TRAIN_ROWS,
    batch_shapes,
    evaluation_steps,
    expected_passes,
    step_parts,
    training_steps,
    weighted_tokens,
)
from mtbert_lab.cost.dry_run import DryRun, at_peak
from mtbert_lab.cost.lengths import KnownLengths, Lengths
from mtbert_lab.cost.steps import Shapes, padded_tokens
from mtbert_lab.cost.time import Speed, Speeds
from mtbert_lab.sweep import SweepRun

FLOAT_MIB = 4 / MIB
ROW_MIB = 600 / MIB  # memory of an example: two sentences as text, as token ids, and the arrays made of them
STAGES = {"none": 0, "before": 1, "after": 1, "both": 2}  # how often a run is pretrained further
PRETRAINING = 3.5  # time of a token, relative to an evaluation: forward, backward, the logits of masked tokens
MEMORY_SECONDS = 20.0  # that `predict_runs` spends on memory; runs that come later have no prediction of it
log = logging.getLogger(__name__)


class Forecast:
    """What a run takes. `steps`: the shapes of its steps, in order. Raises as `MultitaskBert` does."""

    def __init__(self, config: RunConfig, lengths: Lengths, speeds: Speeds, cuda: bool = False) -> None:
        self.config = config
        self.lengths = lengths
        self.speeds = speeds
        self.cuda = cuda
        self.steps = [batch_shapes(step, lengths.train) for step in training_steps(config, lengths.train)]
        self.train = _tokens(config, lengths.train)
        self.dev = _tokens(config, lengths.dev)
        model = meta_model(config)
        self.counts = parameter_counts(model)
        self.is_fixed = model.features_are_fixed
        self.width = model.encoder.config.hidden_size
        self.frozen_share = model.encoder.frozen_depth / len(model.encoder.layers)
        sizes = [len(part) for part in lengths.train.values()]
        self.points = len(evaluation_steps(config, sizes))  # points of the learning curve
        self.passes = dict(zip(lengths.train, expected_passes(config, sizes), strict=True))
        self.known: tuple[str, ...] = ()  # the tasks whose states below the first trained layer are read from disk
        if self.frozen_share:
            self.known = tuple(task for task, passes in self.passes.items() if passes >= KEPT_FROM)
        longest = 1 - 0.5 / config.memory_batch  # the quantile of about the longest of memory_batch random examples
        self.memory = {task: int(np.quantile(part, longest)) for task, part in lengths.train.items()}

    @cached_property
    def peak(self) -> pd.Series:
        """The moment with the most memory in the step with the largest parts, a row of `DryRun.step`."""
        run = DryRun(self.config, self.memory, self.known, self.cuda)

        def largest_part(step: Shapes) -> float:
            if run.steps.is_sum:
                return self._part_tokens(step)
            return max(self._part_tokens({task: shape}) for task, shape in step.items())

        return at_peak(run.step(max(self.steps, key=largest_part)))

    def _part_tokens(self, shapes: Shapes) -> float:
        """Tokens of each part that a batch is cut into."""
        return weighted_tokens(self.config, shapes) / step_parts(self.config, shapes, self.cuda)

    def process_mib(self) -> float:
        """Peak memory of the process; on a GPU of its allocator, as stored runs have it.

        Files of what frozen layers give are not in it: they are mapped, and the system may drop them.
        """
        best_weights = self.counts["trained_parameters"] * FLOAT_MIB
        training = self.peak["total"] + best_weights
        if self.cuda:
            return training
        train_rows = {task: len(part) for task, part in self.lengths.train.items()}
        dev_rows = {task: len(part) for task, part in self.lengths.dev.items()}
        tables = (sum(train_rows.values()) + sum(dev_rows.values())) * ROW_MIB
        freed = 2 * SLACK_MIB  # blocks of training and evaluation
        whole = self.speeds.beside_mib() + training + tables + freed
        if self.is_fixed:
            embedded = [*dev_rows.values()]
            embedded += [rows for task, rows in train_rows.items() if self.passes[task] >= 1]
            vector = (1 + self.config.two_encodings) * self.width * FLOAT_MIB
            whole += 3 * max(embedded) * vector  # in parts, whole, and in order
        return whole

    @cached_property
    def speed(self) -> Speed:
        """Measured seconds of a padded token."""
        return self.speeds.of(self.config, self.steps, self.memory, self.known)

    @cached_property
    def once_seconds(self) -> float:
        """Computing the states of frozen layers of the training texts, which are read from disk from then on."""
        tasks = self.lengths.train if self.is_fixed else self.known
        share = 1.0 if self.is_fixed else self.frozen_share
        tokens = 0.0
        for task in tasks:
            tokens += min(1.0, self.passes[task]) * self.train[task].sum()
        return float(tokens) * share * self.speed.evaluation

    @property
    def train_seconds(self) -> float:
        """Training without its evaluations."""
        tokens = sum(padded_tokens(self.config, step) for step in self.steps)
        return self.once_seconds + tokens * self.speed.training

    @cached_property
    def evaluation_seconds(self) -> float:
        """The points of the learning curve and the scores at the end, on dev and on TRAIN_ROWS training examples.

        Frozen layers read the dev texts once.
        """
        rows = self.config.curve_rows
        dev = sum(part.sum() for part in self.dev.values())
        point = sum(self.dev[task][:rows].sum() for task in self.config.tasks)
        train = sum(part[:TRAIN_ROWS].sum() for part in self.train.values())
        read = self.points * point + train
        if rows is not None:  # else the last point has the scores at the end
            read += dev
        frozen = 1.0 if self.is_fixed else self.frozen_share
        tokens = frozen * dev + (1 - frozen) * read
        return float(tokens) * self.speed.evaluation

    @property
    def pretrain_seconds(self) -> float:
        """Further pretraining on the first sentence of every training example; its memory is not predicted."""
        tokens = 0.0
        for task, part in self.train.items():
            tokens += part.sum() / len(TASKS[task].sentence_columns)
        epochs = STAGES[self.config.pretrain] * self.config.pretrain_epochs
        return epochs * tokens * PRETRAINING * self.speed.evaluation

    @property
    def teaching_seconds(self) -> float:
        """What it predicts for all training texts, where it teaches other runs."""
        tokens = sum(part.sum() for part in self.train.values())
        return float(tokens) * self.speed.evaluation

    @property
    def minutes(self) -> float:
        """Training, further pretraining and evaluation."""
        return (self.train_seconds + self.pretrain_seconds + self.evaluation_seconds) / 60

    def steps_within(self, minutes: float) -> int:
        """How many of the steps end within these minutes, with their share of the evaluations."""
        once = self.once_seconds + self.pretrain_seconds
        share = (60 * minutes - once) / (60 * self.minutes - once)
        return int(len(self.steps) * min(1.0, max(0.0, share)))


def _tokens(config: RunConfig, lengths: dict[str, ndarray]) -> dict[str, ndarray]:
    """Tokens of every example in all its sequences."""
    return {task: part * config.encodings(task) for task, part in lengths.items()}


def predict_runs(
    runs: Sequence[SweepRun], device: str = "cpu", threads: int | None = None, data: str | Path | None = None
) -> list[SweepRun]:
    """The runs with predicted minutes and MiB; those with one `cost_key` share a prediction.

    Times steps of each kind that this machine has not timed. A prediction that fails is logged as a warning: a run is
    not refused for it. Memory is predicted for MEMORY_SECONDS, in the order of the runs. device: cpu or cuda; threads:
    of a process. What a teacher predicts for the training texts counts to the first run that asks for it.
    """
    named: dict[RunConfig, str] = {}
    for run in runs:
        named.setdefault(run.config, str(run))
    for run in runs:
        for teacher in run.asks:
            named.setdefault(teacher, f"teacher {teacher.digest}")
    predictions = _predictions(named, device, threads, data)
    has_taught: set[RunConfig] = set()
    result = []
    for run in runs:
        found = predictions[cost_key(run.config)]
        if "minutes" not in found:
            result.append(run)
            continue
        minutes = found["minutes"]
        for teacher in run.asks:
            if teacher not in has_taught:
                minutes += predictions[cost_key(teacher)].get("teaching", 0.0)
                has_taught.add(teacher)
        result.append(replace(run, minutes=minutes, mib=found.get("mib")))
    return result


def _predictions(
    named: dict[RunConfig, str], device: str, threads: int | None, data: str | Path | None
) -> dict[str, dict[str, float]]:
    """`cost_key` of each configuration -> minutes, teaching (minutes) and mib, as far as they can be predicted."""
    lengths = KnownLengths(data)
    predictions: dict[str, dict[str, float]] = {}
    left = MEMORY_SECONDS
    with Speeds(device, threads) as speeds:
        for config, name in named.items():
            key = cost_key(config)
            if key in predictions:
                continue
            found = predictions[key] = {}
            try:
                forecast = Forecast(config, lengths.of(config), speeds, device == "cuda")
                found["teaching"] = forecast.teaching_seconds / 60
                found["minutes"] = forecast.minutes
                started = time.monotonic()
                if left > 0:
                    found["mib"] = forecast.process_mib()
                left -= time.monotonic() - started
            except Exception as error:
                log.warning("%s: no prediction (%s: %s)", name, type(error).__name__, error)
    return predictions


def cost_key(config: RunConfig) -> str:
    """Equal for configurations that differ in the seed and the teachers alone, whose steps take the same."""
    unseen = ("seed", "teachers", "distil", "temperature")
    default = {name: RunConfig.model_fields[name].default for name in unseen}
    return config.model_copy(update=default).digest
