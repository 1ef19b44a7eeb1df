"""Tokens of the examples of a run: from its data, or else from the counts that a results store has."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy import ndarray

from mtbert.config import RunConfig
from mtbert.data import TASKS, DataError, tokenize
from mtbert_lab.paths import find_result
from mtbert_lab.store import NoCourseData, read_corpus

LENGTHS = "lengths.csv"
TEXT_FIELDS = ("corpus", "tasks", "score_tasks", "train_rows", "augment", "encoder", "pairs", "max_length")


@dataclass(frozen=True)
class Lengths:
    """Tokens of every example, task -> (N,), of the train and dev splits."""

    train: dict[str, ndarray]
    dev: dict[str, ndarray]


def read_lengths(config: RunConfig, data: str | Path | None = None) -> Lengths:
    """The lengths of a run's texts; where no folder of the course's files is known, from the counts of a store.

    Raises DataError if there are neither, and where a folder is known but lacks a file.
    """
    try:
        corpus = read_corpus(config, data)
    except NoCourseData:
        path = find_result(LENGTHS)
        if not path.exists():
            raise
        return _drawn_lengths(config, pd.read_csv(path))
    return Lengths(_token_counts(config, corpus.train), _token_counts(config, corpus.dev))


def texts_of(config: RunConfig) -> RunConfig:
    """A configuration with only the fields that decide the texts; runs with the same one have the same lengths."""
    return RunConfig().model_copy(update={field: getattr(config, field) for field in TEXT_FIELDS})


def _token_counts(config: RunConfig, tables: dict[str, pd.DataFrame]) -> dict[str, ndarray]:
    counts = {}
    for task, table in tables.items():
        counts[task] = tokenize(task, table, config.encoder, config.pairs, config.max_length).lengths
    return counts


def _drawn_lengths(config: RunConfig, counts: pd.DataFrame) -> Lengths:
    """The lengths that lengths.csv counts, in a random order."""
    missing = set(config.scored) - set(counts["task"])
    if missing:
        raise DataError(f"{LENGTHS} has no {', '.join(sorted(missing))}; name the folder of the data with --data")
    pairs = "apart" if config.is_bi_encoder else "joint"
    counts = counts[counts["pairs"] == pairs]
    random = np.random.default_rng(config.seed)

    def draw(task: str, split: str) -> ndarray:
        part = counts.query("task == @task and split == @split")
        lengths = np.repeat(part["tokens"], part["rows"])
        return random.permutation(lengths.clip(upper=config.max_length))

    train = {task: draw(task, "train")[: config.train_rows] for task in config.tasks}
    if config.augment == "swap":  # a pair is also read as b, a
        train = {task: np.tile(part, 1 + TASKS[task].is_pair) for task, part in train.items()}
    dev = {task: draw(task, "dev") for task in config.scored}
    return Lengths(train, dev)
