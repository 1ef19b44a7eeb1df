"""Memory and time of a whole run, predicted: its steps, its evaluations, the process around them.

The shapes of a run's steps follow from its configuration and the lengths of its texts (samplers.training_steps), so
that the longest batch is known before it comes. Memory of the process on a CPU is more than the allocator's peak: the
interpreter with its libraries, the tables, the best weights kept for the end, holes in the C library's heap and freed
blocks that it keeps (heap.py). Further pretraining is not in it. Source: paper 000, section 4. Memory in MiB, time in
seconds.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mtbert.config import RunConfig
from mtbert.cost.dry_run import DryRun, Shapes
from mtbert.cost.memory import at_peak
from mtbert.cost.time import Calibration, load_or_calibrate
from mtbert.data import DataError, tokenize
from mtbert.multitask import parameter_counts
from mtbert.results import SweepRun, data_root, stored_runs
from mtbert.runtime import MIB, SLACK_MIB
from mtbert.training import (
    EVAL_TOKENS,
    HEAVY,
    KEPT_FROM,
    batch_shapes,
    expected_passes,
    load_corpus,
    step_parts,
    training_steps,
)

FLOAT = 4  # bytes
ROW_MIB = 600 / MIB  # a row of two sentences as text, as token ids and in what is made of them
TRIMMED = 2  # training and evaluation may each keep SLACK_MIB of freed blocks
LENGTHS = "lengths.csv"
MEMORY_SECONDS = 8.0  # after so long, `predict_runs` leaves the memory of further runs out
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lengths:
    """Tokens of every example, task -> (N,), of the train and dev splits."""

    train: dict[str, np.ndarray]
    dev: dict[str, np.ndarray]


def read_lengths(config: RunConfig, data: str | Path | None = None, store: Path | None = None) -> Lengths:
    """The lengths of a run's texts; where the course's files are missing, from the counts that the store keeps of them.

    Raises DataError where there are neither.
    """
    try:
        root = data_root(config, data)
    except DataError:
        if store is None or not (store / LENGTHS).exists():
            raise
        return _stored_lengths(config, pd.read_csv(store / LENGTHS))
    corpus = load_corpus(config, root)
    parts = [
        {task: tokenize(task, table, config.encoder, config.pairs, config.max_length).lengths
         for task, table in tables.items()}
        for tables in (corpus.train, corpus.dev)
    ]  # fmt: skip
    return Lengths(*parts)


def count_lengths(config: RunConfig, data: str | Path | None = None) -> pd.DataFrame:
    """How many examples have so many tokens: task, split, pairs (joint or apart), tokens, rows; no text."""
    rows = []
    for pairs in ("joint", "sum"):
        found = read_lengths(config.but(pairs=pairs, max_length=512, train_rows=None), data)
        for split, parts in (("train", found.train), ("dev", found.dev)):
            for task, lengths in parts.items():
                tokens, counts = np.unique(lengths, return_counts=True)
                about = dict(task=task, split=split, pairs="joint" if pairs == "joint" else "apart")
                rows.append(pd.DataFrame({**about, "tokens": tokens, "rows": counts}))
    return pd.concat(rows, ignore_index=True)


def _stored_lengths(config: RunConfig, counts: pd.DataFrame) -> Lengths:
    """The examples in some order, as if drawn again."""
    pairs = "apart" if config.two_encodings else "joint"
    random = np.random.default_rng(config.seed)

    def draw(task: str, split: str) -> np.ndarray:
        part = counts[(counts["task"] == task) & (counts["split"] == split) & (counts["pairs"] == pairs)]
        lengths = np.minimum(np.repeat(part["tokens"], part["rows"]).to_numpy(), config.max_length)
        return random.permutation(lengths)[: config.train_rows if split == "train" else None]

    missing = set(config.scored) - set(counts["task"])
    if missing:
        raise DataError(f"{LENGTHS} has no {', '.join(sorted(missing))}; name the folder of the data with --data")
    return Lengths({t: draw(t, "train") for t in config.tasks}, {t: draw(t, "dev") for t in config.scored})


def step_shapes(config: RunConfig, lengths: Lengths) -> list[Shapes]:
    """The shapes of every step of a run, in order: task -> (examples, tokens of the longest)."""
    return [batch_shapes(step, lengths.train) for step in training_steps(config, lengths.train)]


class Forecast:
    """What a run will take; `steps` are its shapes, `calibration` prices its time, `dry` runs its steps."""

    def __init__(self, config: RunConfig, lengths: Lengths, calibration: Calibration, cuda: bool = False) -> None:
        self.config, self.lengths, self.calibration, self.cuda = config, lengths, calibration, cuda
        self.dry = DryRun(config, cuda)
        encoder = self.dry.model.encoder
        self.counts, self.is_fixed = parameter_counts(self.dry.model), self.dry.model.features_are_fixed
        self.width, self.frozen_share = encoder.config.hidden_size, encoder.frozen_depth / len(encoder.layers)
        self.steps = step_shapes(config, lengths)
        sizes = [len(part) for part in lengths.train.values()]
        self.passes = passes = dict(zip(lengths.train, expected_passes(config, sizes), strict=True))
        self.known = [task for task in passes if passes[task] >= KEPT_FROM and self.frozen_share]
        self.dry.steps.known = self.known
        self.points = config.epochs * config.evals_per_epoch  # of the learning curve

    @cached_property
    def peak(self) -> pd.Series:
        """The moment at which the allocator holds most, a row of `step_timeline`: in the step with the largest parts,
        told as `step_parts` tells them.
        """

        def part(step: Shapes) -> float:
            return sum(B * T * (1 + T / HEAVY) for B, T in step.values()) / step_parts(self.config, step, self.cuda)

        return at_peak(self.dry.step(max(self.steps, key=part), self._memory())[0])

    def _memory(self) -> Shapes:
        """What GEM draws: of so many random examples the longest is among the longest 1 in so many."""
        k = self.config.memory_batch
        return {task: (k, int(np.quantile(part, 1 - 0.5 / k))) for task, part in self.lengths.train.items()}

    def process_mib(self) -> float:
        """Peak memory of the process; on a GPU of its allocator, as stored runs have it."""
        best = self.counts["trained_parameters"] * FLOAT / MIB
        if self.cuda:
            return self.peak["total"] + best
        rows = sum(len(part) for parts in (self.lengths.train, self.lengths.dev) for part in parts.values())
        largest = max(map(len, self._embedded())) * self._embedding_mib
        once = 3 * largest * self.is_fixed  # in parts, whole, and in the table's order
        training = self.calibration.process_mib(self.peak) + best
        return training + once + rows * ROW_MIB + TRIMMED * SLACK_MIB

    def _embedded(self) -> list[np.ndarray]:
        """The tables of which a frozen encoder's embeddings are kept: those whose rows are all asked for."""
        train = [part for task, part in self.lengths.train.items() if self.passes[task] >= 1]
        return train + list(self.lengths.dev.values())

    @property
    def _embedding_mib(self) -> float:
        apart = 2 if self.config.two_encodings else 1
        return apart * self.width * FLOAT / MIB

    def mapped_mib(self) -> float:
        """Files of what frozen layers give, mapped into memory: counted as resident, but the system may drop them."""
        if self.is_fixed:
            return sum(map(len, self._embedded())) * self._embedding_mib
        dev = self.lengths.dev if self.frozen_share and self.points >= KEPT_FROM else {}
        tokens = sum(self.lengths.train[task].sum() for task in self.known) + sum(part.sum() for part in dev.values())
        return float(tokens) * self._embedding_mib

    def step_seconds(self) -> float:
        """Mean time of a step: of steps of the same tasks, that of the one whose tokens are nearest to their mean."""
        groups: dict[tuple, list[Shapes]] = {}
        for step in self.steps:
            groups.setdefault(tuple(step), []).append(step)
        seconds = 0.0
        for steps in groups.values():
            tokens = np.array([sum(B * T for B, T in step.values()) for step in steps])
            nearest = steps[int(np.abs(tokens - tokens.mean()).argmin())]
            seconds += len(steps) * self.calibration.seconds(self.dry.step(nearest, self._memory())[1])
        return self.calibration.about["variety"] * seconds / len(self.steps)

    def once_seconds(self) -> float:
        """What is computed once and may then be read from disk: what frozen layers make of the training texts."""
        if self.is_fixed:
            train = self.lengths.train.items()
            return sum(min(1.0, self.passes[task]) * self._reading({task: part}) for task, part in train)
        return self.frozen_share * self._reading({task: self.lengths.train[task] for task in self.known})

    def evaluation_seconds(self) -> tuple[float, float]:
        """What is done once, and what grows with the points of the learning curve."""
        whole, curve_rows = self._reading(self.lengths.dev), self.config.curve_rows
        if self.is_fixed:
            return whole, 0.0
        part = {task: self.lengths.dev[task][:curve_rows] for task in self.config.tasks}
        above, scores = 1 - self.frozen_share, whole * (curve_rows is not None)
        return whole * self.frozen_share + scores * above, self.points * self._reading(part) * above

    def _reading(self, lengths: dict[str, np.ndarray]) -> float:
        """One evaluation of these examples."""
        return float(sum(self._reading_seconds[task] * part.sum() for task, part in lengths.items()))

    @cached_property
    def _reading_seconds(self) -> dict[str, float]:
        """Time of a token in an evaluation, by task: of a batch of examples of its dev split's mean length."""
        result = {}
        for task, part in self.lengths.dev.items():
            T = max(1, int(np.ceil(part.mean())))
            B = max(1, EVAL_TOKENS // T)
            result[task] = self.calibration.seconds(self.dry.reading(task, (B, T))) / (B * T)
        return result

    def row(self, minutes: float | None = None) -> dict:
        """steps, of which fit in the minutes; seconds of a step, of what is done once, of training and of evaluation;
        minutes of all; peaks: step_mib (the allocator's in training), process_mib, and mapped_mib that may come on top;
        parameters and trained_parameters.
        """
        per_step, once, steps = self.step_seconds(), self.once_seconds(), len(self.steps)
        score_once, points = self.evaluation_seconds()
        with_points, fits = per_step + points / steps, steps
        if minutes is not None and (left := max(0.0, 60 * minutes - once - score_once)) < steps * with_points:
            fits = int(left / with_points)
        evaluation = score_once + points
        return {
            "steps": steps,
            "steps_that_fit": fits,
            "step_seconds": per_step,
            "once_seconds": once,
            "train_seconds": once + steps * per_step,
            "evaluation_seconds": evaluation,
            "minutes": (once + steps * per_step + evaluation) / 60,
            "step_mib": self.peak["total"],
            "process_mib": self.process_mib(),
            "mapped_mib": self.mapped_mib(),
            **self.counts,
        }


def check_runs(store: Path, calibration: Calibration, data: str | Path | None = None) -> pd.DataFrame:
    """Predictions against stored runs of the calibration's encoder and precision, a row a run.

    Runs without train_cpu_seconds are of an older, slower code and left out. Columns: run_id, tasks, plan, adapter,
    layers, batch, precision, device, threads, steps; predicted_mib (process and mapped files), peak_memory_mib
    (measured), memory_ratio; predicted_seconds, train_seconds, train_cpu_seconds (measured), time_ratio and cpu_ratio.
    Ratios are predicted / measured; the clock's time of a run that went on beside other work says little.
    """
    rows = []
    for content in stored_runs(store):
        config, cost, where = RunConfig.from_params(content["config"]), content["cost"], content["provenance"]
        fits = (config.encoder, config.precision) == (calibration.about["encoder"], calibration.about["precision"])
        if not fits or "train_cpu_seconds" not in cost:
            continue
        try:
            predicted = Forecast(config, read_lengths(config, data, store), calibration).row()
        except DataError:
            continue
        memory, seconds = predicted["process_mib"] + predicted["mapped_mib"], predicted["train_seconds"]
        about = {
            "run_id": content["run_id"],
            "tasks": "+".join(config.tasks),
            "plan": config.plan_text,
            "adapter": config.adapter,
            "layers": config.layers,
            "batch": config.batch_label,
            "precision": config.precision,
            "device": where["device"],
            "threads": where["threads"],
            "steps": predicted["steps"],
        }
        measured = {name: cost[name] for name in ("peak_memory_mib", "train_seconds", "train_cpu_seconds")}
        rows.append(
            {
                **about,
                "predicted_mib": memory,
                "predicted_seconds": seconds,
                **measured,
                "memory_ratio": memory / cost["peak_memory_mib"],
                "time_ratio": seconds / cost["train_seconds"],
                "cpu_ratio": seconds / cost["train_cpu_seconds"],
            }
        )
    return pd.DataFrame(rows)


def predict_runs(
    runs: Sequence[SweepRun],
    device: str = "cpu",
    threads: int | None = None,
    data: str | Path | None = None,
    store: Path | None = None,
) -> list[SweepRun]:
    """The runs with predicted minutes and MiB; those that differ in the seed alone share a prediction.

    Calibrates the machine where it is not. A prediction that fails is told as a warning. Memory is predicted for
    MEMORY_SECONDS, in the order of the runs. device: cpu or cuda; threads: of a process.
    """

    def prepare(config: RunConfig) -> tuple:
        return read_lengths(config, data, store), load_or_calibrate(config, device, threads)

    prepared: dict[tuple, tuple | None] = {}  # of the same texts and the same calibration
    forecasts: dict[str, Forecast | None] = {}
    minutes: dict[str, float | None] = {}
    mib: dict[str, float | None] = {}
    keys = [run.config.model_copy(update={"seed": 0}).digest for run in runs]
    for run, key in zip(runs, keys, strict=True):
        if key not in forecasts:
            c = run.config
            texts = (c.corpus, c.tasks, c.scored, c.two_encodings, c.max_length, c.train_rows)
            about = (*texts, c.encoder, c.precision, c.attention_dropout)
            if about not in prepared:
                prepared[about] = _tried(run, prepare, c)
            made = prepared[about]
            forecasts[key] = made and _tried(run, Forecast, c, *made, device == "cuda")
            minutes[key] = forecasts[key] and _tried(run, _minutes, forecasts[key])
    deadline = time.monotonic() + MEMORY_SECONDS
    for run, key in zip(runs, keys, strict=True):
        if key not in mib and forecasts[key] and time.monotonic() < deadline:
            mib[key] = _tried(run, forecasts[key].process_mib)
    return [replace(run, minutes=minutes[key], mib=mib.get(key)) for run, key in zip(runs, keys, strict=True)]


def _minutes(forecast: Forecast) -> float:
    training = forecast.once_seconds() + len(forecast.steps) * forecast.step_seconds()
    return (training + sum(forecast.evaluation_seconds())) / 60


def _tried(run: SweepRun, function: Callable, *args: object) -> Any:
    """What the function returns; None and a warning where it fails: a run is not refused for its prediction."""
    try:
        return function(*args)
    except Exception as error:
        log.warning("%s: no prediction (%s: %s)", run, type(error).__name__, error)
        return None
