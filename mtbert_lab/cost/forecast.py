"""Minutes and memory of whole runs before they are trained.

The steps of a run follow from its configuration and the lengths of its texts (`training_steps`). Memory is that of the
step with the longest batch, by a dry run; time is that of all padded tokens, at the measured speed of a few steps.
Source: paper 000, section 4.
"""

import functools
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from mtbert.config import RunConfig
from mtbert.data import TASKS
from mtbert.multitask import meta_model, parameter_counts
from mtbert.runtime import MIB, SLACK_MIB
from mtbert.training import (
    KEPT_FROM,
    TRAIN_ROWS,
    Shapes,
    batch_shapes,
    dev_passes,
    evaluation_steps,
    expected_passes,
    micro_batch_count,
    training_steps,
    weighted_tokens,
)
from mtbert_lab.cost.dry_run import DryRun, at_peak
from mtbert_lab.cost.lengths import Lengths, read_lengths, texts_of
from mtbert_lab.cost.steps import padded_tokens
from mtbert_lab.cost.time import TIMING_SECONDS, Sample, Speed, measure_speeds
from mtbert_lab.sweep import SweepRun

FLOAT_MIB = 4 / MIB
LIBRARIES_MIB = 490  # memory of the interpreter and its libraries after a step, without that of torch's allocator
ROW_MIB = 600 / MIB  # memory of an example: two sentences as text, as token ids, and the arrays made of them
STAGES = {"none": 0, "before": 1, "after": 1, "both": 2}  # how often a run is pretrained further
TIMED = (0.9, 0.25, 0.75)  # quantiles of a run's steps by their tokens: the first warms up, the others are timed
SAME_COST = (  # the fields that change neither the steps nor what they compute
    "seed", "learning_rate", "schedule", "warmup", "weight_decay", "teachers", "distil", "temperature",
)  # fmt: skip
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cost:
    """What a run needs: minutes by what they are spent on, and MiB of its process.

    teaching: minutes in which its model predicts all training texts for students, which are no part of the run.
    mib: None where it was not asked for.
    """

    steps: int
    parameters: int
    trained_parameters: int
    features: float
    pretraining: float
    training: float
    evaluation: float
    teaching: float
    mib: float | None

    @property
    def minutes(self) -> float:
        """Of the whole run."""
        return self.features + self.pretraining + self.training + self.evaluation


def cost_key(config: RunConfig) -> RunConfig:
    """The configuration without the fields that do not change what a run costs."""
    default = {field: RunConfig.model_fields[field].default for field in SAME_COST}
    return config.model_copy(update=default)


def predict_costs(
    runs: Iterable[tuple[str, RunConfig]],
    device: str = "cpu",
    threads: int | None = None,
    data: str | Path | None = None,
    with_memory: bool = True,
    seconds: float = TIMING_SECONDS,
) -> dict[RunConfig, Cost | Exception]:
    """The cost of named runs by their `cost_key`, or the exception where it cannot be predicted.

    device: cpu or cuda. threads, seconds: see `measure_speeds`. data: see `read_lengths`.
    """
    lengths_of = functools.cache(functools.partial(read_lengths, data=data))
    forecasts: dict[RunConfig, Forecast] = {}
    costs: dict[RunConfig, Cost | Exception] = {}
    for name, config in runs:
        key = cost_key(config)
        if key in forecasts or key in costs:
            continue
        try:
            forecasts[key] = Forecast(key, lengths_of(texts_of(key)), device == "cuda", name)
        except Exception as error:
            costs[key] = error
    if not forecasts:
        return costs
    samples = {key: forecast.sample() for key, forecast in forecasts.items()}
    speeds = measure_speeds(samples, device, threads, seconds)
    for key, forecast in forecasts.items():
        speed = speeds[key]
        try:
            costs[key] = speed if isinstance(speed, Exception) else forecast.cost(speed, with_memory)
        except Exception as error:
            costs[key] = error
    return costs


def predict_runs(
    runs: Sequence[SweepRun],
    device: str = "cpu",
    threads: int | None = None,
    data: str | Path | None = None,
    with_memory: bool = True,
) -> list[SweepRun]:
    """The runs with predicted minutes and MiB; arguments: see `predict_costs`.

    A prediction that fails is a warning, as the run may succeed. The time in which a teacher predicts the training
    texts counts for the first run that asks for it.
    """
    named = [(str(run), run.config) for run in runs]
    for run in runs:
        named += [(f"teacher {teacher.digest}", teacher) for teacher in run.missing_teachers]
    costs = predict_costs(named, device, threads, data, with_memory)
    has_taught: set[RunConfig] = set()
    result = []
    for run in runs:
        cost = costs[cost_key(run.config)]
        if isinstance(cost, Exception):
            log.warning("%s: no prediction (%s: %s)", run, type(cost).__name__, cost)
            result.append(run)
            continue
        minutes = cost.minutes
        for teacher in set(run.missing_teachers) - has_taught:
            taught = costs[cost_key(teacher)]
            minutes += taught.teaching if isinstance(taught, Cost) else 0.0
        has_taught |= set(run.missing_teachers)
        result.append(replace(run, minutes=float(minutes), mib=cost.mib))
    return result


class Forecast:
    """The work of a run, in tokens. `steps`: the shapes of its steps, in order. Raises as `MultitaskBert` does.

    Tokens are counted in all sequences of a text.
    """

    def __init__(self, config: RunConfig, lengths: Lengths, cuda: bool = False, name: str = "") -> None:
        self.config = config
        self.lengths = lengths
        self.cuda = cuda
        self.name = name
        self.steps = [batch_shapes(step, lengths.train) for step in training_steps(config, lengths.train)]
        self.train = {task: part * config.encodings(task) for task, part in lengths.train.items()}
        self.dev = {task: part * config.encodings(task) for task, part in lengths.dev.items()}
        model = meta_model(config)
        self.counts = parameter_counts(model)
        self.is_fixed = model.embeddings_are_fixed
        self.width = model.encoder.config.hidden_size
        frozen = model.encoder.frozen_depth
        self.frozen_share = 1.0 if self.is_fixed else frozen / len(model.encoder.layers)
        sizes = [len(part) for part in lengths.train.values()]
        self.points = len(evaluation_steps(config, sizes))  # of the learning curve
        self.passes = dict(zip(lengths.train, expected_passes(config, sizes), strict=True))
        self.known: tuple[str, ...] = ()  # the tasks whose states below the first trained layer are read from disk
        if frozen:
            self.known = tuple(task for task, passes in self.passes.items() if passes >= KEPT_FROM)
        longest = 1 - 0.5 / config.memory_batch  # the quantile of about the longest of memory_batch random examples
        self.memory = {task: int(np.quantile(part, longest)) for task, part in lengths.train.items()}

    def sample(self) -> Sample:
        """The steps to be timed. Their weights are random, as no step takes longer for its numbers."""
        by_tokens = sorted(self.steps, key=functools.partial(padded_tokens, self.config))
        steps = [by_tokens[int(share * len(by_tokens))] for share in TIMED]
        config = self.config.model_copy(update={"weights": "random"})
        return Sample(self.name, config, steps, self.memory, self.known)

    def cost(self, speed: Speed, with_memory: bool = True) -> Cost:
        """Its cost. A token of pretraining takes the time of one in a training step."""
        training, evaluation = speed.training / 60, speed.evaluation / 60
        return Cost(
            steps=len(self.steps),
            **self.counts,
            features=self.feature_tokens * evaluation,
            pretraining=self.pretraining_tokens * training,
            training=self.training_tokens * training,
            evaluation=self.evaluation_tokens * evaluation,
            teaching=sum(part.sum() for part in self.train.values()) * evaluation,
            mib=self.process_mib() if with_memory else None,
        )

    @property
    def training_tokens(self) -> int:
        """Tokens of all steps, with padding."""
        return sum(padded_tokens(self.config, step) for step in self.steps)

    @property
    def feature_tokens(self) -> float:
        """Tokens of training texts whose states of frozen layers are computed once and then read from disk."""
        tokens = 0.0
        for task in self.lengths.train if self.is_fixed else self.known:
            tokens += min(1.0, self.passes[task]) * self.train[task].sum()
        return tokens * self.frozen_share

    @property
    def pretraining_tokens(self) -> float:
        """Tokens of further pretraining on the first sentence of every training text. Its memory is not predicted."""
        tokens = 0.0
        for task, part in self.train.items():
            tokens += part.sum() / len(TASKS[task].sentence_columns)
        return STAGES[self.config.pretrain] * self.config.pretrain_epochs * tokens

    @property
    def evaluation_tokens(self) -> float:
        """Tokens of the learning curve and of the scores at the end, on dev and on TRAIN_ROWS training examples.

        Where the outputs of frozen layers are kept, these layers read a text of dev once, and a training text no more.
        """
        trained_share = 1 - self.frozen_share
        tokens = 0.0
        for task, part in self.dev.items():
            passes = dev_passes(self.config, task, len(part), self.points)
            tokens += part.sum() * (self.frozen_share + trained_share * passes if self.keeps(passes) else passes)
        for task, part in self.train.items():
            tokens += part[:TRAIN_ROWS].sum() * (trained_share if self.keeps(self.passes[task]) else 1)
        return tokens

    def keeps(self, passes: float) -> bool:
        """Whether the outputs of frozen layers, if there are any, are kept of rows that are read so often."""
        return passes >= (1 if self.is_fixed else KEPT_FROM)

    def peak(self) -> pd.Series:
        """The moment with the most memory of the step with the largest part, a row of `DryRun.step`."""
        config = self.config
        run = DryRun(config, self.memory, self.known, self.cuda)

        def largest_part(step: Shapes) -> float:
            passes = [step] if run.steps.is_sum else [{task: shape} for task, shape in step.items()]
            return max(weighted_tokens(config, one) / micro_batch_count(config, one, self.cuda) for one in passes)

        return at_peak(run.step(max(self.steps, key=largest_part)))

    def process_mib(self) -> float:
        """Peak memory of the process; on a GPU that of its allocator in steps without graphs.

        Graphs hold gradients and a pool of their own: stored runs on a GPU take several times as much.
        The best weights are held beside the trained ones where `keep` asks for them. On a CPU the process holds more
        than the allocator's peak: libraries, tables, and blocks that were freed. The stored states of frozen layers are
        not counted: their files are mapped, and the system may drop them.
        """
        best_weights = 0.0 if self.config.keep == "last" else self.counts["trained_parameters"] * FLOAT_MIB
        training = self.peak()["total"] + best_weights
        if self.cuda:
            return training
        train_rows = {task: len(part) for task, part in self.lengths.train.items()}
        dev_rows = {task: len(part) for task, part in self.lengths.dev.items()}
        tables = (sum(train_rows.values()) + sum(dev_rows.values())) * ROW_MIB
        freed = 2 * SLACK_MIB  # blocks of training and evaluation
        whole = LIBRARIES_MIB + training + tables + freed
        if self.is_fixed:
            embedded = [*dev_rows.values()]
            embedded += [rows for task, rows in train_rows.items() if self.passes[task] >= 1]
            vector = (1 + self.config.is_bi_encoder) * self.width * FLOAT_MIB
            whole += 3 * max(embedded) * vector  # in parts, whole, and in order
        return whole
