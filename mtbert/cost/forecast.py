"""Memory and time of a whole run before it is trained.

The steps of a run follow from its configuration and the lengths of its texts (`training_steps`): the longest batch
decides the memory of training; time is that of all padded tokens, at the measured speed of a few steps. Memory of the
process on a CPU is more than the allocator's peak: the interpreter with its libraries, the tables, the best weights
kept for the end, freed blocks. Source: paper 000, section 4. Memory in MiB, time in seconds.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd

from mtbert.config import RunConfig
from mtbert.cost.dry_run import DryRun, at_peak
from mtbert.cost.steps import Shapes, padded_tokens
from mtbert.cost.time import Speed, Speeds
from mtbert.data import TASKS, DataError, tokenize
from mtbert.multitask import meta_model, parameter_counts
from mtbert.paths import find_result
from mtbert.results import SweepRun, data_root
from mtbert.runtime import MIB, SLACK_MIB
from mtbert.training import (
    HEAVY,
    KEPT_FROM,
    TRAIN_ROWS,
    batch_shapes,
    evaluation_steps,
    expected_passes,
    load_corpus,
    step_parts,
    training_steps,
)

FLOAT_MIB = 4 / MIB
ROW_MIB = 600 / MIB  # of an example: two sentences as text, as token ids, and the arrays made of them
LENGTHS = "lengths.csv"
STAGES = {"none": 0, "before": 1, "after": 1, "both": 2}  # of further pretraining
PRETRAINING = 3.5  # of a token, relative to an evaluation: forward, backward, the logits of masked tokens
MEMORY_SECONDS = 20.0  # that `predict_runs` spends on memory; runs that come later have no prediction of it
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lengths:
    """Tokens of every example, task -> (N,), of the train and dev splits."""

    train: dict[str, np.ndarray]
    dev: dict[str, np.ndarray]


def read_lengths(config: RunConfig, data: str | Path | None = None) -> Lengths:
    """The lengths of a run's texts; where the course's files are missing, from the counts that a store has of them.

    Raises DataError where there are neither.
    """
    try:
        corpus = load_corpus(config, data_root(config, data))
    except DataError:
        path = find_result(LENGTHS)
        if not path.exists():
            raise
        return _stored_lengths(config, pd.read_csv(path))

    def count(split: dict[str, pd.DataFrame]) -> dict[str, np.ndarray]:
        how = config.encoder, config.pairs, config.max_length
        return {task: tokenize(task, table, *how).lengths for task, table in split.items()}

    return Lengths(count(corpus.train), count(corpus.dev))


def count_lengths(config: RunConfig, data: str | Path | None = None) -> pd.DataFrame:
    """Numbers of examples by their tokens, without text: task, split, pairs (joint or apart), tokens, rows."""
    tables = []
    for pairs, name in (("joint", "joint"), ("sum", "apart")):
        found = read_lengths(config.but(pairs=pairs, max_length=512, train_rows=None), data)
        for split in ("train", "dev"):
            for task, lengths in getattr(found, split).items():
                tokens, rows = np.unique(lengths, return_counts=True)
                tables.append(pd.DataFrame(dict(task=task, split=split, pairs=name, tokens=tokens, rows=rows)))
    return pd.concat(tables, ignore_index=True)


def _stored_lengths(config: RunConfig, counts: pd.DataFrame) -> Lengths:
    """The lengths that `count_lengths` counted, in a random order."""
    if missing := set(config.scored) - set(counts["task"]):
        raise DataError(f"{LENGTHS} has no {', '.join(sorted(missing))}; name the folder of the data with --data")
    counts = counts[counts["pairs"] == ("apart" if config.two_encodings else "joint")]
    random = np.random.default_rng(config.seed)

    def draw(task: str, split: str, rows: int | None = None) -> np.ndarray:
        part = counts[(counts["task"] == task) & (counts["split"] == split)]
        return random.permutation(np.repeat(part["tokens"], part["rows"]).clip(upper=config.max_length))[:rows]

    train = {task: draw(task, "train", config.train_rows) for task in config.tasks}
    return Lengths(train, {task: draw(task, "dev") for task in config.scored})


class Texts:
    """Lengths of runs' texts, read once for all runs on the same; data and errors as of `read_lengths`."""

    def __init__(self, data: str | Path | None = None) -> None:
        self.data, self.known = data, {}

    def __getitem__(self, c: RunConfig) -> Lengths:
        key = (c.corpus, c.encoder, c.tasks, c.scored, c.two_encodings, c.max_length, c.train_rows)
        if key not in self.known:
            self.known[key] = read_lengths(c, self.data)
        return self.known[key]


class Forecast:
    """What a run takes. `steps`: the shapes of its steps, in order. Raises as `MultitaskBert` does."""

    def __init__(self, config: RunConfig, lengths: Lengths, speeds: Speeds, cuda: bool = False) -> None:
        self.config = config
        self.lengths = lengths
        self.speeds = speeds
        self.cuda = cuda
        model = meta_model(config)
        self.counts = parameter_counts(model)
        self.is_fixed = model.features_are_fixed
        self.frozen_share = model.encoder.frozen_depth / len(model.encoder.layers)
        self.vector_mib = (1 + config.two_encodings) * model.encoder.config.hidden_size * FLOAT_MIB
        self.steps = [batch_shapes(step, lengths.train) for step in training_steps(config, lengths.train)]
        self.train = _tokens(config, lengths.train)
        self.dev = _tokens(config, lengths.dev)
        sizes = [len(part) for part in lengths.train.values()]
        self.passes = dict(zip(lengths.train, expected_passes(config, sizes), strict=True))
        self.known = ()  # the tasks whose states below the first trained layer are read from disk
        if self.frozen_share:
            self.known = tuple(task for task, passes in self.passes.items() if passes >= KEPT_FROM)
        self.points = len(evaluation_steps(config, sizes))  # of the learning curve
        quantile = 1 - 0.5 / config.memory_batch  # about the longest of memory_batch random examples
        self.memory = {task: int(np.quantile(part, quantile)) for task, part in lengths.train.items()}

    @cached_property
    def peak(self) -> pd.Series:
        """The moment at which the allocator holds most, a row of `DryRun.step`: in the step with the largest parts."""
        run = DryRun(self.config, self.memory, self.known, self.cuda)
        is_sum = run.steps.trainer.is_sum
        return at_peak(run.step(max(self.steps, key=lambda step: self._largest_part(step, is_sum))))

    def _largest_part(self, step: Shapes, is_sum: bool) -> float:
        """Tokens of the largest part of a step, long texts counted as `step_parts` does."""
        passes = [step] if is_sum else [{task: shape} for task, shape in step.items()]
        return max(self._part(shapes) for shapes in passes)

    def _part(self, shapes: Shapes) -> float:
        heavy = sum(self.config.encodings(task) * B * T * (1 + T / HEAVY) for task, (B, T) in shapes.items())
        return heavy / step_parts(self.config, shapes, self.cuda)

    def process_mib(self) -> float:
        """Peak memory of the process; on a GPU of its allocator, as stored runs have it.

        Files of what frozen layers give are not in it: they are mapped, and the system may drop them.
        """
        training = self.peak["total"] + self.counts["trained_parameters"] * FLOAT_MIB  # the best weights
        if self.cuda:
            return training
        train = self.lengths.train
        dev = self.lengths.dev.values()
        embedded = [len(part) for part in dev]
        embedded += [len(train[task]) for task in train if self.passes[task] >= 1]
        once = 3 * max(embedded) * self.vector_mib if self.is_fixed else 0.0  # in parts, whole, and in order
        rows = sum(map(len, [*train.values(), *dev]))
        freed = 2 * SLACK_MIB  # blocks of training and evaluation
        return self.speeds.beside_mib() + training + once + rows * ROW_MIB + freed

    @cached_property
    def speed(self) -> Speed:
        """Measured seconds of a padded token."""
        return self.speeds.of(self.config, self.steps, self.memory, self.known)

    @cached_property
    def step_seconds(self) -> float:
        """Mean time of a step."""
        tokens = sum(padded_tokens(self.config, step) for step in self.steps)
        return self.speed.training * tokens / len(self.steps)

    @cached_property
    def once_seconds(self) -> float:
        """Computing the states of frozen layers of the training texts, which are read from disk from then on."""
        tasks = self.lengths.train if self.is_fixed else self.known
        tokens = sum(min(1.0, self.passes[task]) * self.train[task].sum() for task in tasks)
        return float(tokens) * self.speed.evaluation * (1.0 if self.is_fixed else self.frozen_share)

    @cached_property
    def evaluation_seconds(self) -> float:
        """The points of the learning curve and the scores at the end, on dev and on TRAIN_ROWS training examples.

        Frozen layers read the dev texts once.
        """
        rows = self.config.curve_rows
        above = 0.0 if self.is_fixed else 1 - self.frozen_share
        whole = sum(part.sum() for part in self.dev.values())
        points = self.points * sum(self.dev[task][:rows].sum() for task in self.config.tasks)
        points += sum(part[:TRAIN_ROWS].sum() for part in self.train.values())
        tokens = whole * (1 - above) + above * (points + whole * (rows is not None))
        return float(tokens) * self.speed.evaluation

    @property
    def pretrain_seconds(self) -> float:
        """Further pretraining on the first sentence of every training example; its memory is not predicted."""
        tokens = sum(part.sum() / len(TASKS[task].sentence_columns) for task, part in self.train.items())
        epochs = STAGES[self.config.pretrain] * self.config.pretrain_epochs
        return PRETRAINING * epochs * float(tokens) * self.speed.evaluation

    @property
    def teaching_seconds(self) -> float:
        """What it predicts for all training texts, where it teaches other runs."""
        return float(sum(part.sum() for part in self.train.values())) * self.speed.evaluation

    @property
    def train_seconds(self) -> float:
        """Training without its evaluations."""
        return self.once_seconds + len(self.steps) * self.step_seconds

    @property
    def minutes(self) -> float:
        """Training, further pretraining and evaluation."""
        return (self.train_seconds + self.pretrain_seconds + self.evaluation_seconds) / 60

    def steps_within(self, minutes: float) -> int:
        """How many of the steps end within these minutes, with their share of the evaluations."""
        once = self.once_seconds + self.pretrain_seconds
        share = (60 * minutes - once) / (60 * self.minutes - once)
        return int(len(self.steps) * min(1.0, max(0.0, share)))


def _tokens(config: RunConfig, lengths: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tokens of every example in all its sequences."""
    return {task: part * config.encodings(task) for task, part in lengths.items()}


def predict_runs(
    runs: Sequence[SweepRun], device: str = "cpu", threads: int | None = None, data: str | Path | None = None
) -> list[SweepRun]:
    """The runs with predicted minutes and MiB; those that differ in the seed and the teachers alone share a prediction.

    Times steps of each kind that this machine has not timed. A prediction that fails is logged as a warning: a run is
    not refused for it. Memory is predicted for MEMORY_SECONDS, in the order of the runs. device: cpu or cuda; threads:
    of a process. A teacher's predictions for the training texts count to the first run that it teaches, as if none were
    in the cache.
    """
    teachers = {run.run_id: _teachers(run.config) for run in runs}
    named = [(str(run), run.config) for run in runs]
    for some in teachers.values():
        named += [(f"teacher {config.digest}", config) for config in some]
    predictions = _predictions(named, device, threads, data)
    seen: set[RunConfig] = set()
    result = []
    for run in runs:
        found = predictions[_key(run.config)]
        if "minutes" not in found:
            result.append(run)
            continue
        minutes = found["minutes"]
        for teacher in teachers[run.run_id]:
            if teacher not in seen:
                minutes += predictions[_key(teacher)].get("teaching", 0.0)
                seen.add(teacher)
        result.append(replace(run, minutes=minutes, mib=found.get("mib")))
    return result


def _teachers(config: RunConfig) -> list[RunConfig]:
    """The runs that teach a run, each once."""
    return list(dict.fromkeys(chain.from_iterable(config.teachers_by_task.values())))


def _predictions(
    named: Sequence[tuple[str, RunConfig]], device: str, threads: int | None, data: str | Path | None
) -> dict[str, dict[str, float]]:
    """`_key` of each configuration -> minutes, teaching (minutes) and mib, as far as they can be predicted."""
    texts = Texts(data)
    predictions: dict[str, dict[str, float]] = {}
    left = MEMORY_SECONDS
    with Speeds(device, threads) as speeds:
        for name, config in named:
            if _key(config) in predictions:
                continue
            found = predictions[_key(config)] = {}
            try:
                forecast = Forecast(config, texts[config], speeds, device == "cuda")
                found["teaching"] = forecast.teaching_seconds / 60
                found["minutes"] = forecast.minutes
                started = time.monotonic()
                if left > 0:
                    found["mib"] = forecast.process_mib()
                left -= time.monotonic() - started
            except Exception as error:
                log.warning("%s: no prediction (%s: %s)", name, type(error).__name__, error)
    return predictions


def _key(config: RunConfig) -> str:
    """Equal for configurations that differ in the seed and the teachers alone, whose steps take the same."""
    default = {name: RunConfig.model_fields[name].default for name in ("teachers", "distil", "temperature")}
    return config.model_copy(update=default | {"seed": 0}).digest
