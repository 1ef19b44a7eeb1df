"""The tables of a run on a device: labels, tokens, and the features that a frozen encoder gives, computed once."""

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy import ndarray
from torch import Tensor

from mtbert.bert import Batch
from mtbert.config import RunConfig
from mtbert.data import TASKS, Corpus, DeviceTokens, MappedArray, pos_features, tokenize
from mtbert.multitask import MultitaskBert, autocast, in_order, predict
from mtbert.runtime import pick_device
from mtbert.training.batches import Rows
from mtbert.training.frozen_features import TokenStates, embeddings_of_all_rows

KEPT_FROM = 2  # passes over a table, from which on it pays to write down what frozen layers make of it


def load_corpus(config: RunConfig, root: Path) -> Corpus:
    """The tables of a configuration in the folder `root`; as `Corpus.load`."""
    corpus = Corpus.load(root, config.tasks, config.scored, config.train_rows, config.seed)
    return corpus.with_swapped_pairs() if config.augment == "swap" else corpus


class TaskRows:
    """One split of one task on a device: its logits for any rows, in training and in evaluation.

    passes: how often every row will be asked for. If that is more than once, what lies below the first trained layer is
    kept on disk; if all rows will be asked for, a frozen encoder embeds them all at once.
    teachers: the logits of the teachers for all rows, if it has some.
    """

    def __init__(
        self,
        model: MultitaskBert,
        task: str,
        table: pd.DataFrame,
        device: torch.device,
        passes: float = 1.0,
        teachers: Tensor | None = None,
    ) -> None:
        config = model.run_config
        self.model = model
        self.config = config
        self.task = task
        self.table = table
        self.device = device
        self.tokens = tokenize(task, table, model.tokenizer, config.pairs, config.max_length)
        self.labels = None
        if "label" in table:
            labels = table["label"].to_numpy(copy=True)
            self.labels = torch.tensor(labels, device=device)
        self.teachers = None if teachers is None else teachers.to(device)
        self.tags = None
        if config.pos_features:
            tags = pos_features(task, table)
            self.tags = torch.from_numpy(tags).to(device)
        self._keeps_embeddings = passes >= 1
        self._keeps_states = passes >= KEPT_FROM and model.encoder.frozen_depth > 0 and not model.features_are_fixed

    def __len__(self) -> int:
        return len(self.table)

    def batch(self, rows: ndarray | Tensor, length: int | None = None) -> Batch:
        """The batch of these rows on the device, padded to the longest sequence.

        Rows in a tensor on the device: the batch is made there, padded to `length` tokens.
        """
        if isinstance(rows, Tensor):
            return self._on_device.batch(rows, length)
        return self.tokens.batch(rows).to(self.device)

    @cached_property
    def _on_device(self) -> DeviceTokens:
        return DeviceTokens(self.tokens, self.device)

    @property
    def is_on_device(self) -> bool:
        """Whether a batch can be made on the device: not where it has to be looked up on disk, row by row."""
        if self.model.features_are_fixed:
            return self._keeps_embeddings
        return not self._keeps_states

    def _in_batches(self, rows: ndarray, compute: Callable[[ndarray], Any]) -> Iterator[tuple[ndarray, Any]]:
        """`MultitaskBert.in_batches` of these rows: positions in `rows`, and what `compute` gives for them."""
        lengths = self.tokens.lengths[rows]
        return self.model.in_batches(lengths, lambda positions: compute(rows[positions]))

    def logits(self, rows: ndarray | None = None) -> Tensor:
        """Logits of these rows, by default of all, in their order."""
        if rows is None:
            rows = np.arange(len(self))

        def compute(part: ndarray) -> Tensor:
            length = None
            if self.device.type == "cuda" and self.is_on_device:
                length = int(self.tokens.lengths[part].max())
                part = torch.from_numpy(part).to(self.device)
            return task_logits(self.model, {self.task: self}, {self.task: part}, length)[self.task]

        return in_order(self._in_batches(rows, compute))

    def predictions(self, split: str, rows: ndarray | None = None) -> pd.DataFrame:
        """task, split, id, label (where there is one), predicted, confidence: a row an example, by default all."""
        table = self.table
        if rows is not None:
            table = table.iloc[rows].reset_index(drop=True)
        predicted, confidence = predict(TASKS[self.task], self.logits(rows))
        result = pd.DataFrame({"task": self.task, "split": split, "id": table["id"]})
        if self.labels is not None:
            result["label"] = table["label"]
        result["predicted"] = predicted.cpu().numpy()
        result["confidence"] = confidence.cpu().numpy()
        return result

    def fixed_embeddings(self, rows: ndarray | Tensor) -> Tensor:
        """(B, k, d) of these rows, where they are a function of the text alone."""
        if self._keeps_embeddings:
            return self._kept_embeddings[rows]
        return in_order(self._in_batches(rows, self._embed))

    def _embed(self, rows: ndarray) -> Tensor:
        batch = self.batch(rows)
        return self.model.embed({self.task: batch})[self.task]

    @cached_property
    def _kept_embeddings(self) -> Tensor:
        """(N, k, d) of all rows, on the device."""
        return torch.from_numpy(self._embeddings_on_disk.array).to(self.device)

    @cached_property
    def _embeddings_on_disk(self) -> MappedArray:
        about = f"{self.config.pooling} {self._arithmetic}"
        batches = self._in_batches(np.arange(len(self)), self._embed)
        k = self.config.encodings(self.task)
        return embeddings_of_all_rows(self.model.encoder, self.tokens, k, about, batches)

    def below(self, rows: ndarray, batch: Batch) -> Tensor | None:
        """Hidden states (B, T, d) below the first trained layer, where they are kept; made at the first call."""
        if not self._keeps_states:
            return None
        return self._states.batch(rows, batch.attention_mask)

    def make_features(self) -> tuple[float, float]:
        """Compute what frozen layers make of all rows, or find it on disk, before the first row is asked for.

        Returns the seconds that it took when it was computed, by this run or by another one: of the clock, and of the
        processor. Zeros where nothing is kept.
        """
        if self._keeps_states:
            mapped = self._states.mapped
        elif self._keeps_embeddings and self.model.features_are_fixed:
            mapped = self._embeddings_on_disk
        else:
            return 0.0, 0.0
        return mapped.seconds, mapped.cpu_seconds

    @cached_property
    def _states(self) -> TokenStates:
        def compute(rows: ndarray) -> tuple[Tensor, Tensor]:
            batch = self.batch(rows)
            with autocast(self.config, self.device):
                states = self.model.encoder.below({self.task: batch})[self.task]
            return states, batch.attention_mask

        batches = self._in_batches(np.arange(len(self)), compute)
        return TokenStates(self.model.encoder, self.tokens, self._arithmetic, batches)

    @property
    def _arithmetic(self) -> str:
        return f"{self.config.precision} {self.device.type}"


Tables = dict[str, TaskRows]  # by task


def task_logits(model: MultitaskBert, tables: Tables, rows: Rows, length: int | None = None) -> dict[str, Tensor]:
    """Logits of some rows of several tasks; where training leaves the encoder as it is, from kept embeddings.

    length: of rows in tensors on the device, as in `TaskRows.batch`.
    """
    tags = {}
    for task, part in rows.items():
        if tables[task].tags is not None:
            tags[task] = tables[task].tags[part]
    if model.features_are_fixed:
        logits = {}
        for task, part in rows.items():
            embeddings = tables[task].fixed_embeddings(part)
            logits[task] = model.heads(task, embeddings, tags.get(task))
        return logits
    batches = {}
    below = {}
    for task, part in rows.items():
        batches[task] = tables[task].batch(part, length)
        states = tables[task].below(part, batches[task])
        if states is not None:
            below[task] = states
    return model(batches, tags, below)


def predict_table(
    model: MultitaskBert, task: str, table: pd.DataFrame, split: str, device: str = "auto"
) -> pd.DataFrame:
    """Predictions of a trained model for a checked table: id, predicted, confidence, and label where it is known."""
    place = pick_device(device)
    return TaskRows(model.to(place), task, table, place).predictions(split)
