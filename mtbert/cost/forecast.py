"""Memory and time of a whole run before it is trained.

The steps of a run follow from its configuration and the lengths of its texts (`training_steps`): the longest batch
decides the memory of training, the batch of mean length its time. Memory of the process on a CPU is more than the
allocator's peak: the interpreter with its libraries, the tables, the best weights kept for the end, freed blocks.
Source: paper 000, section 4. Memory in MiB, time in seconds.
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
from mtbert.cost.dry_run import DryRun
from mtbert.cost.memory import at_peak
from mtbert.cost.steps import Shapes
from mtbert.cost.time import Calibration, load_or_calibrate
from mtbert.data import TASKS, DataError, tokenize
from mtbert.multitask import EVAL_TOKENS, parameter_counts
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
MEMORY_SECONDS = 20.0  # `predict_runs` predicts no memory for the runs that come later than this
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

    def __init__(self, config: RunConfig, lengths: Lengths, calibration: Calibration, cuda: bool = False) -> None:
        self.config, self.lengths, self.calibration, self.cuda = config, lengths, calibration, cuda
        self.dry = DryRun(config, cuda)
        encoder = self.dry.model.encoder
        self.counts = parameter_counts(self.dry.model)
        self.is_fixed = self.dry.model.features_are_fixed
        self.frozen_share = encoder.frozen_depth / len(encoder.layers)
        self.vector_mib = (1 + config.two_encodings) * encoder.config.hidden_size * FLOAT_MIB
        self.steps = [batch_shapes(step, lengths.train) for step in training_steps(config, lengths.train)]
        self.train, self.dev = (  # tokens of every example in all its sequences
            {task: part * config.encodings(task) for task, part in split.items()}
            for split in (lengths.train, lengths.dev)
        )
        sizes = [len(part) for part in lengths.train.values()]
        passes = expected_passes(config, sizes)
        self.passes = dict(zip(lengths.train, passes, strict=True))
        self.known = [task for task in self.passes if self.passes[task] >= KEPT_FROM and self.frozen_share]
        self.dry.steps.known = self.known
        self.points = len(evaluation_steps(config, sizes))  # of the learning curve
        quantile = 1 - 0.5 / config.memory_batch  # about the longest of memory_batch random examples
        self.memory = {task: int(np.quantile(part, quantile)) for task, part in lengths.train.items()}

    @cached_property
    def peak(self) -> pd.Series:
        """The moment at which the allocator holds most, a row of `DryRun.step`: in the step with the largest parts."""

        def part(step: Shapes) -> float:
            passes = [step] if self.dry.steps.is_sum else [{task: step[task]} for task in step]
            tokens = {task: self.config.encodings(task) * B * T * (1 + T / HEAVY) for task, (B, T) in step.items()}
            return max(sum(tokens[t] for t in some) / step_parts(self.config, some, self.cuda) for some in passes)

        return at_peak(self.dry.step(max(self.steps, key=part), self.memory)[0])

    def process_mib(self) -> float:
        """Peak memory of the process; on a GPU of its allocator, as stored runs have it.

        Files of what frozen layers give are not in it: they are mapped, and the system may drop them.
        """
        training = self.peak["total"] + self.counts["trained_parameters"] * FLOAT_MIB  # the best weights
        if self.cuda:
            return training
        train, dev = self.lengths.train, self.lengths.dev.values()
        embedded = [len(part) for part in [*dev, *(train[task] for task in train if self.passes[task] >= 1)]]
        once = 3 * max(embedded) * self.vector_mib if self.is_fixed else 0.0  # in parts, whole, and in order
        rows = sum(map(len, [*train.values(), *dev]))
        beside = self.calibration.steps["beside_mib"].min()
        return beside + training + once + rows * ROW_MIB + 2 * SLACK_MIB  # freed blocks of training and evaluation

    @cached_property
    def step_seconds(self) -> float:
        """Mean time of a step: of steps of the same tasks, that of the one whose tokens are nearest to their mean."""
        groups: dict[tuple, list[Shapes]] = {}
        for step in self.steps:
            groups.setdefault(tuple(step), []).append(step)
        seconds = 0.0
        for steps in groups.values():
            tokens = np.array([sum(B * T for B, T in step.values()) for step in steps])
            nearest = steps[np.abs(tokens - tokens.mean()).argmin()]
            seconds += len(steps) * self.calibration.seconds(self.dry.step(nearest, self.memory)[1])
        return seconds / len(self.steps)

    @cached_property
    def token_seconds(self) -> float:
        """Time of a token in an evaluation, in a batch of the dev splits' mean length."""
        task, T = self.config.scored[0], int(np.concatenate(list(self.lengths.dev.values())).mean())
        B = max(1, EVAL_TOKENS // T)
        return self.calibration.seconds(self.dry.evaluation(task, (B, T))) / (B * T * self.config.encodings(task))

    @cached_property
    def once_seconds(self) -> float:
        """Computing the states of frozen layers of the training texts, which are read from disk from then on."""
        tasks = self.lengths.train if self.is_fixed else self.known
        tokens = sum(min(1.0, self.passes[task]) * self.train[task].sum() for task in tasks)
        return float(tokens) * self.token_seconds * (1.0 if self.is_fixed else self.frozen_share)

    @cached_property
    def evaluation_seconds(self) -> float:
        """The points of the learning curve and the scores at the end, on dev and on TRAIN_ROWS training examples.

        Frozen layers read the dev texts once.
        """
        above, rows = 0.0 if self.is_fixed else 1 - self.frozen_share, self.config.curve_rows
        whole = sum(part.sum() for part in self.dev.values())
        points = self.points * sum(self.dev[task][:rows].sum() for task in self.config.tasks)
        points += sum(part[:TRAIN_ROWS].sum() for part in self.train.values())
        tokens = whole * (1 - above) + above * (points + whole * (rows is not None))
        return float(tokens) * self.token_seconds

    @property
    def pretrain_seconds(self) -> float:
        """Further pretraining on the first sentence of every training example; its memory is not predicted."""
        tokens = sum(part.sum() / len(TASKS[task].sentence_columns) for task, part in self.train.items())
        epochs = STAGES[self.config.pretrain] * self.config.pretrain_epochs
        return PRETRAINING * epochs * float(tokens) * self.token_seconds

    @property
    def teaching_seconds(self) -> float:
        """What it predicts for all training texts, where it teaches other runs."""
        return float(sum(part.sum() for part in self.train.values())) * self.token_seconds

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


def predict_runs(
    runs: Sequence[SweepRun], device: str = "cpu", threads: int | None = None, data: str | Path | None = None
) -> list[SweepRun]:
    """The runs with predicted minutes and MiB; those that differ in the seed and the teachers alone share a prediction.

    Calibrates the machine where it is not. A prediction that fails is logged as a warning: a run is not refused for
    it. Memory is predicted for MEMORY_SECONDS, in the order of the runs. device: cpu or cuda; threads: of a process.
    A teacher's predictions for the training texts count to the first run that it teaches, as if none were in the cache.
    """
    texts, predictions, deadline = Texts(data), {}, None
    teachers = {run.run_id: dict.fromkeys(chain.from_iterable(run.config.teachers_by_task.values())) for run in runs}
    named = [(str(run), run.config) for run in runs]
    named += [(f"teacher {config.digest}", config) for config in dict.fromkeys(chain.from_iterable(teachers.values()))]
    for name, config in named:
        if (key := _key(config)) in predictions:
            continue
        found = predictions[key] = {}
        try:
            lengths = texts[config]
            calibration = load_or_calibrate(config, device, threads)
            deadline = deadline or time.monotonic() + MEMORY_SECONDS
            forecast = Forecast(config, lengths, calibration, device == "cuda")
            found |= {"minutes": forecast.minutes, "teaching": forecast.teaching_seconds / 60}
            if time.monotonic() < deadline:
                found["mib"] = forecast.process_mib()
        except Exception as error:
            log.warning("%s: no prediction (%s: %s)", name, type(error).__name__, error)
    seen, result = set(), []
    for run in runs:
        found = predictions[_key(run.config)]
        if "minutes" in found:
            new = teachers[run.run_id].keys() - seen
            minutes = found["minutes"] + sum(predictions[_key(teacher)].get("teaching", 0.0) for teacher in new)
            result.append(replace(run, minutes=minutes, mib=found.get("mib")))
            seen |= new
        else:
            result.append(run)
    return result


def _key(config: RunConfig) -> str:
    """Equal for configurations that differ in the seed and the teachers alone, whose steps take the same."""
    default = {name: RunConfig.model_fields[name].default for name in ("teachers", "distil", "temperature")}
    return config.model_copy(update=default | {"seed": 0}).digest
