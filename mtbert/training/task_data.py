"""The data of a run's tasks on a device: tokens, labels, and the outputs of frozen layers, computed once."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from mtbert.data import TASKS, Corpus, FlatSequences, TokenizedTable, pos_features, tokenize
from mtbert.multitask import MultitaskBert, autocast, in_order, predict
from mtbert.runtime import pick_device
from mtbert.training.checkpoint import TrainingError
from mtbert.training.frozen_features import TokenStates, embeddings_of_all_rows
from mtbert.training.task_order import Rows

KEPT_FROM = 2  # passes over a table, from which on it pays to keep the outputs of frozen layers


def load_corpus(config: RunConfig, root: Path) -> Corpus:
    """The tables of a configuration in the folder `root`; as `Corpus.load`."""
    corpus = Corpus.load(root, config.tasks, config.scored, config.train_rows, config.seed)
    return corpus.with_swapped_pairs() if config.augment == "swap" else corpus


@dataclass(eq=False)
class TaskData:
    """One split of one task on a device: N rows of tokens and labels, and features that do not change in training.

    It holds no model: methods that compute logits are given one. `prepare_task` makes what a model reads.
    """

    task: str
    table: pd.DataFrame
    tokens: TokenizedTable
    device: torch.device
    labels: Tensor | None = None  # (N,); None where the table has none
    teachers: Tensor | None = None  # the teachers' logits for all rows, if there are teachers
    tags: Tensor | None = None  # (N, p), part-of-speech features, where the configuration asks for them
    embeddings: Tensor | None = None  # (N, k, d), kept where the whole encoder is frozen
    states: TokenStates | None = None  # inputs of the first trained layer, kept on disk
    feature_seconds: float = 0.0  # of embeddings or states when they were computed, by this run or by another one
    feature_cpu_seconds: float = 0.0

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
    def _on_device(self) -> FlatSequences:
        return FlatSequences(self.tokens, self.device)

    def needs_host(self, model: MultitaskBert) -> bool:
        """Whether the host has a part in a step: its input is looked up on disk, or made in batches."""
        if model.embeddings_are_fixed:
            return self.embeddings is None
        return self.states is not None

    def prefix_states(self, rows: ndarray, batch: Batch) -> Tensor | None:
        """`SharedEncoder.prefix_states` (B, T, d) of some rows, where they are kept."""
        return None if self.states is None else self.states.batch(rows, batch.attention_mask)

    def fixed_embeddings(self, model: MultitaskBert, rows: ndarray | Tensor) -> Tensor:
        """(B, k, d) of these rows, where they are a function of the text alone."""
        if self.embeddings is not None:
            return self.embeddings[rows]
        return in_order(_embedded(model, self, rows))

    def logits(self, model: MultitaskBert, rows: ndarray | None = None) -> Tensor:
        """The model's logits of these rows, by default of all, in their order."""
        if rows is None:
            rows = np.arange(len(self))

        def compute(part: ndarray) -> Tensor:
            length = None
            if self.device.type == "cuda" and not self.needs_host(model):
                length = int(self.tokens.lengths[part].max())
                part = torch.from_numpy(part).to(self.device)
            return task_logits(model, {self.task: self}, {self.task: part}, length)[self.task]

        return in_order(_in_batches(model, self, rows, compute))

    def predictions(self, model: MultitaskBert, split: str, rows: ndarray | None = None) -> pd.DataFrame:
        """task, split, id, label (where there is one), predicted, confidence: a row an example, by default all.

        Raises TrainingError if the model's outputs are not finite.
        """
        table = self.table
        if rows is not None:
            table = table.iloc[rows].reset_index(drop=True)
        logits = self.logits(model, rows)
        if not logits.isfinite().all():
            raise TrainingError(
                f"the model's outputs for {self.task} are not finite; a lower learning_rate, or max_grad_norm, may help"
            )
        predicted, confidence = predict(TASKS[self.task], logits)
        result = pd.DataFrame({"task": self.task, "split": split, "id": table["id"]})
        if self.labels is not None:
            result["label"] = table["label"]
        result["predicted"] = predicted.cpu().numpy()
        result["confidence"] = confidence.cpu().numpy()
        return result


def prepare_task(
    model: MultitaskBert,
    task: str,
    table: pd.DataFrame,
    device: torch.device,
    passes: float = 1.0,
    teachers: Tensor | None = None,
) -> TaskData:
    """A table as this model reads it, with the outputs of its frozen layers.

    passes: how often every row will be read. From KEPT_FROM passes on the inputs of the first trained layer are kept on
    disk; an encoder that is frozen as a whole embeds all rows at once. Both are computed here, or found on disk.
    teachers: the logits of the teachers for all rows, if there are teachers.
    """
    config = model.run_config
    tokens = tokenize(task, table, model.tokenizer_source, config.pairs, config.max_length)
    data = TaskData(task, table, tokens, device)
    if "label" in table:
        labels = table["label"].to_numpy(copy=True)
        data.labels = torch.tensor(labels, device=device)
    if teachers is not None:
        data.teachers = teachers.to(device)
    if config.pos_features:
        tags = pos_features(task, table)
        data.tags = torch.from_numpy(tags).to(device)
    if model.embeddings_are_fixed and passes >= 1:
        _keep_embeddings(model, data)
    if not model.embeddings_are_fixed and model.encoder.frozen_depth > 0 and passes >= KEPT_FROM:
        _keep_states(model, data)
    return data


def _keep_embeddings(model: MultitaskBert, data: TaskData) -> None:
    config = model.run_config
    about = f"{config.pooling} {_arithmetic(model, data)}"
    batches = _embedded(model, data, np.arange(len(data)))
    k = config.encodings(data.task)
    mapped = embeddings_of_all_rows(model.encoder, data.tokens, k, about, batches)
    data.embeddings = torch.from_numpy(mapped.array).to(data.device)
    data.feature_seconds, data.feature_cpu_seconds = mapped.seconds, mapped.cpu_seconds


def _keep_states(model: MultitaskBert, data: TaskData) -> None:
    def compute(part: ndarray) -> tuple[Tensor, Tensor]:
        batch = data.batch(part)
        with autocast(model.run_config, data.device):
            states = model.encoder.prefix_states({data.task: batch})[data.task]
        return states, batch.attention_mask

    batches = _in_batches(model, data, np.arange(len(data)), compute)
    data.states = TokenStates(model.encoder, data.tokens, _arithmetic(model, data), batches)
    mapped = data.states.mapped
    data.feature_seconds, data.feature_cpu_seconds = mapped.seconds, mapped.cpu_seconds


def _arithmetic(model: MultitaskBert, data: TaskData) -> str:
    """The precision and the kind of device, on which the bits of kept features depend."""
    return f"{model.run_config.precision} {data.device.type}"


def _embedded(model: MultitaskBert, data: TaskData, chosen: ndarray) -> Iterator[tuple[ndarray, Tensor]]:
    """Positions in `chosen` and the embeddings (B, k, d) of the rows there, batch by batch."""

    def compute(part: ndarray) -> Tensor:
        return model.embed({data.task: data.batch(part)})[data.task]

    return _in_batches(model, data, chosen, compute)


def _in_batches(
    model: MultitaskBert, data: TaskData, chosen: ndarray, compute: Callable[[ndarray], Any]
) -> Iterator[tuple[ndarray, Any]]:
    """Positions in `chosen` and `compute(rows)` of the rows there, in the batches of `MultitaskBert.in_batches`."""
    lengths = data.tokens.lengths[chosen]
    return model.in_batches(lengths, lambda positions: compute(chosen[positions]))


def task_logits(
    model: MultitaskBert, data: dict[str, TaskData], rows: Rows, length: int | None = None
) -> dict[str, Tensor]:
    """Logits of some rows of several tasks; where training leaves the encoder as it is, from kept embeddings.

    length: of rows in tensors on the device, as in `TaskData.batch`.
    """
    tags = {}
    for task, part in rows.items():
        if data[task].tags is not None:
            tags[task] = data[task].tags[part]
    if model.embeddings_are_fixed:
        logits = {}
        for task, part in rows.items():
            embeddings = data[task].fixed_embeddings(model, part)
            logits[task] = model.heads(task, embeddings, tags.get(task))
        return logits
    batches = {}
    prefix = {}
    for task, part in rows.items():
        batches[task] = data[task].batch(part, length)
        states = data[task].prefix_states(part, batches[task])
        if states is not None:
            prefix[task] = states
    return model(batches, tags, prefix)


def predict_table(
    model: MultitaskBert, task: str, table: pd.DataFrame, split: str, device: str = "auto"
) -> pd.DataFrame:
    """Predictions of a trained model for a checked table: task, split, id, predicted, confidence, and known labels.

    The model moves to the device and stays there. Outputs of frozen layers are not kept on disk. Raises TrainingError
    if outputs are not finite.
    """
    place = pick_device(device)
    model = model.to(place)
    return prepare_task(model, task, table, place, passes=0).predictions(model, split)
