"""Minutes and memory of whole runs before they are trained, as a table.

The steps of a run follow from its configuration and the lengths of its texts (`training_steps`). Memory is that of the
step with the longest batch; time is that of all padded tokens, at the measured speed of a few steps. On a CPU a process
needs more memory than the allocator's peak: for the interpreter with its libraries, the tables, the best weights kept
for the end, and freed blocks. Source: paper 000, section 4.
"""

import logging
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
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
    Shapes,
    batch_shapes,
    evaluation_steps,
    expected_passes,
    step_parts,
    training_steps,
    weighted_tokens,
)
from mtbert_lab.cost.dry_run import DryRun, at_peak
from mtbert_lab.cost.lengths import Lengths, read_lengths, texts_key
from mtbert_lab.cost.steps import padded_tokens
from mtbert_lab.cost.time import Kind, Speed, kind_of, measure_beside_mib, measure_speeds
from mtbert_lab.sweep import SweepRun

FLOAT_MIB = 4 / MIB
ROW_MIB = 600 / MIB  # memory of an example: two sentences as text, as token ids, and the arrays made of them
STAGES = {"none": 0, "before": 1, "after": 1, "both": 2}  # how often a run is pretrained further
TRAINED = 5  # time of a trained layer, relative to a frozen one: forward, backward, dropout, update
PRETRAINING = 3.5  # time of a token, relative to an evaluation: forward, backward, the logits of masked tokens
MEMORY_SECONDS = 20.0  # that `predict_runs` spends on memory; runs that come later have no prediction of it
COLUMNS = [  # of `cost_table`
    "name", "steps", "parameters", "trained_parameters", "minutes", "features", "pretraining", "training", "evaluation",
    "teaching", "mib", "error",
]  # fmt: skip
log = logging.getLogger(__name__)


def cost_table(
    runs: Iterable[tuple[str, RunConfig]],
    device: str = "cpu",
    threads: int | None = None,
    data: str | Path | None = None,
    memory_seconds: float = math.inf,
    again: bool = False,
) -> pd.DataFrame:
    """Minutes and memory of named runs, a row for each `cost_key`, which is the index.

    Columns: name, of the first such run; steps, parameters, trained_parameters; minutes, and their parts features,
    pretraining, training, evaluation; teaching, the minutes to predict all training texts for students; mib, of the
    process; error, the exception if something cannot be predicted. memory_seconds: after which no memory is predicted.
    device: cpu or cuda. threads, again: see `measure_speeds`. data: see `read_lengths`.
    """
    known_lengths: dict[tuple, Lengths] = {}
    forecasts: dict[str, Forecast] = {}
    rows: dict[str, dict] = {}
    for name, config in runs:
        key = cost_key(config)
        if key in rows:
            continue
        rows[key] = {"name": name}
        try:
            texts = texts_key(config)
            if texts not in known_lengths:
                known_lengths[texts] = read_lengths(config, data)
            forecasts[key] = Forecast(config, known_lengths[texts], device == "cuda", name)
        except Exception as error:
            rows[key]["error"] = error
    if not forecasts:
        return pd.DataFrame.from_dict(rows, orient="index", columns=COLUMNS)
    beside_mib = measure_beside_mib(device, threads, again)
    kinds = {key: forecast.kind() for key, forecast in forecasts.items()}
    speeds = measure_speeds(list(kinds.values()), device, threads, again)
    deadline = time.monotonic() + memory_seconds
    for key, forecast in forecasts.items():
        minutes = forecast.minutes(speeds[kinds[key].key])
        rows[key] |= {"steps": len(forecast.steps), **forecast.counts, **minutes}
        if time.monotonic() < deadline:
            try:
                rows[key]["mib"] = forecast.process_mib(beside_mib)
            except Exception as error:
                rows[key]["error"] = error
    return pd.DataFrame.from_dict(rows, orient="index", columns=COLUMNS)


def cost_key(config: RunConfig) -> str:
    """Equal for configurations that differ in nothing but the seed and the teachers: their steps cost the same."""
    unseen = ("seed", "teachers", "distil", "temperature")
    default = {name: RunConfig.model_fields[name].default for name in unseen}
    return config.model_copy(update=default).digest


def predict_runs(
    runs: Sequence[SweepRun], device: str = "cpu", threads: int | None = None, data: str | Path | None = None
) -> list[SweepRun]:
    """The runs with predicted minutes and MiB; arguments: see `cost_table`.

    A prediction that fails is a warning, as the run may succeed. Memory is predicted for MEMORY_SECONDS, in the order
    of the runs. The time in which a teacher predicts the training texts counts for the first run that asks for it.
    """
    named = [(str(run), run.config) for run in runs]
    for run in runs:
        named += [(f"teacher {teacher.digest}", teacher) for teacher in run.asks]
    costs = cost_table(named, device, threads, data, MEMORY_SECONDS).to_dict("index")
    for cost in costs.values():
        if isinstance(cost["error"], Exception):
            log.warning("%s: no prediction (%s: %s)", cost["name"], type(cost["error"]).__name__, cost["error"])
    has_taught: set[RunConfig] = set()
    result = []
    for run in runs:
        cost = costs[cost_key(run.config)]
        minutes = cost["minutes"]
        for teacher in run.asks:
            if teacher not in has_taught:
                minutes += np.nan_to_num(costs[cost_key(teacher)]["teaching"])
                has_taught.add(teacher)
        result.append(replace(run, minutes=_known(minutes), mib=_known(cost["mib"])))
    return result


def _known(number: float) -> float | None:
    """The number, or None for nan."""
    return None if math.isnan(number) else float(number)


class Forecast:
    """The work of a run, in tokens. `steps`: the shapes of its steps, in order. Raises as `MultitaskBert` does.

    Tokens are counted in all sequences of a text. Features, pretraining and evaluation are counted in tokens of an
    evaluation.
    """

    def __init__(self, config: RunConfig, lengths: Lengths, cuda: bool = False, name: str = "") -> None:
        self.config = config
        self.lengths = lengths
        self.cuda = cuda
        self.name = name
        self.steps = [batch_shapes(step, lengths.train) for step in training_steps(config, lengths.train)]
        self.train = _tokens(config, lengths.train)
        self.dev = _tokens(config, lengths.dev)
        model = meta_model(config)
        self.counts = parameter_counts(model)
        self.is_fixed = model.features_are_fixed
        self.sizes = model.encoder.config
        self.layers = len(model.encoder.layers)
        self.frozen_layers = model.encoder.frozen_depth
        self.frozen_share = 1.0 if self.is_fixed else self.frozen_layers / self.layers
        sizes = [len(part) for part in lengths.train.values()]
        self.points = len(evaluation_steps(config, sizes))  # points of the learning curve
        self.passes = dict(zip(lengths.train, expected_passes(config, sizes), strict=True))
        self.known: tuple[str, ...] = ()  # the tasks whose states below the first trained layer are read from disk
        if self.frozen_layers:
            self.known = tuple(task for task, passes in self.passes.items() if passes >= KEPT_FROM)
        longest = 1 - 0.5 / config.memory_batch  # the quantile of about the longest of memory_batch random examples
        self.memory = {task: int(np.quantile(part, longest)) for task, part in lengths.train.items()}

    def kind(self) -> Kind:
        """The kind of its steps. A layer whose output is read from disk takes no time."""
        d = self.sizes.hidden_size
        layer = 4 * d * d + 2 * d * self.sizes.intermediate_size
        frozen = 0 if self.known else self.frozen_layers
        trained = 0 if self.is_fixed else self.layers - self.frozen_layers
        heads = 1  # and all else that is not a layer
        return kind_of(
            self.config,
            self.steps,
            name=self.name,
            memory=self.memory,
            known=self.known,
            training=layer * (frozen + TRAINED * trained + heads),
            evaluation=layer * (self.layers + heads),
        )

    def minutes(self, speed: Speed) -> dict[str, float]:
        """Columns of `cost_table`."""
        evaluation = speed.evaluation / 60
        parts = {
            "features": self.feature_tokens * evaluation,
            "pretraining": self.pretraining_tokens * PRETRAINING * evaluation,
            "training": self.training_tokens * speed.training / 60,
            "evaluation": self.evaluation_tokens * evaluation,
        }
        teaching = sum(part.sum() for part in self.train.values()) * evaluation
        return {"minutes": sum(parts.values()), **parts, "teaching": teaching}

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

        Frozen layers read the dev texts once.
        """
        rows = self.config.curve_rows
        dev = sum(part.sum() for part in self.dev.values())
        point = sum(self.dev[task][:rows].sum() for task in self.config.tasks)
        train = sum(part[:TRAIN_ROWS].sum() for part in self.train.values())
        read = self.points * point + train
        if rows is not None:  # else the last point has the scores at the end
            read += dev
        return self.frozen_share * dev + (1 - self.frozen_share) * read

    def peak(self) -> pd.Series:
        """The moment with the most memory of the step with the largest parts, a row of `DryRun.step`."""
        run = DryRun(self.config, self.memory, self.known, self.cuda)

        def largest_part(step: Shapes) -> float:
            if run.steps.is_sum:
                return self._part_tokens(step)
            return max(self._part_tokens({task: shape}) for task, shape in step.items())

        return at_peak(run.step(max(self.steps, key=largest_part)))

    def _part_tokens(self, shapes: Shapes) -> float:
        """Tokens in each of the parts of a batch."""
        return weighted_tokens(self.config, shapes) / step_parts(self.config, shapes, self.cuda)

    def process_mib(self, beside_mib: float) -> float:
        """Peak memory of the process; on a GPU that of its allocator, as in stored runs.

        beside_mib: see `measure_beside_mib`. The stored states of frozen layers are not counted: their files are
        mapped, and the system may drop them.
        """
        best_weights = self.counts["trained_parameters"] * FLOAT_MIB
        training = self.peak()["total"] + best_weights
        if self.cuda:
            return training
        train_rows = {task: len(part) for task, part in self.lengths.train.items()}
        dev_rows = {task: len(part) for task, part in self.lengths.dev.items()}
        tables = (sum(train_rows.values()) + sum(dev_rows.values())) * ROW_MIB
        freed = 2 * SLACK_MIB  # blocks of training and evaluation
        whole = beside_mib + training + tables + freed
        if self.is_fixed:
            embedded = [*dev_rows.values()]
            embedded += [rows for task, rows in train_rows.items() if self.passes[task] >= 1]
            vector = (1 + self.config.two_encodings) * self.sizes.hidden_size * FLOAT_MIB
            whole += 3 * max(embedded) * vector  # in parts, whole, and in order
        return whole


def _tokens(config: RunConfig, lengths: dict[str, ndarray]) -> dict[str, ndarray]:
    """Tokens of every example in all its sequences."""
    return {task: part * config.encodings(task) for task, part in lengths.items()}
