"""The tables of a run on a device: labels, tokens, and what a frozen encoder makes of them, computed once."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mtbert.config import RunConfig
from mtbert.data import TASKS, fingerprint, load_table
from mtbert.heads import predict
from mtbert.multitask import MultitaskBert, pick_device
from mtbert.pos import pos_features
from mtbert.profiling import release_freed_memory
from mtbert.tokens import TokenizedTable, eval_batches, tokenize

log = logging.getLogger(__name__)

EVAL_TOKENS = 8192  # padded tokens of an evaluation batch
RELEASE_BATCHES = 8  # on a CPU: every batch has another shape, and what the one before left is of no use to it


@dataclass(frozen=True)
class Corpus:
    """The checked tables of a run: every training task's train split, every scored task's dev split."""

    train: dict[str, pd.DataFrame]
    dev: dict[str, pd.DataFrame]

    @classmethod
    def load(cls, config: RunConfig, root: Path) -> "Corpus":
        """Read the tables and warn of rejected rows; raises DataError.

        `train_rows` takes a random subset of each task, a function of the seed.
        """
        train = {}
        for task in config.tasks:
            table = _load(task, "train", root)
            if config.train_rows is not None and config.train_rows < len(table):
                chosen = np.random.default_rng(config.seed).permutation(len(table))[: config.train_rows]
                table = table.iloc[np.sort(chosen)].reset_index(drop=True)
            train[task] = table
        return cls(train, {task: _load(task, "dev", root) for task in config.scored})

    @property
    def fingerprint(self) -> str:
        """Hex digits that name the content of the tables."""
        return fingerprint(*self.train.values(), *self.dev.values())


def _load(task: str, split: str, root: Path) -> pd.DataFrame:
    table, report = load_table(task, split, root)
    if report.rejects:
        log.warning("%s", report)
    return table


class TaskRows:
    """One split of one task on a device: its logits for any rows, in training and in evaluation."""

    def __init__(self, model: MultitaskBert, task: str, table: pd.DataFrame, device: torch.device) -> None:
        config = model.run_config
        self.model, self.config, self.task, self.table, self.device = model, config, task, table, device
        self.tokens: TokenizedTable = tokenize(task, table, config.encoder, config.pairs, config.max_length)
        self.labels = torch.tensor(table["label"].to_numpy(copy=True), device=device) if "label" in table else None
        self.tags = torch.from_numpy(pos_features(task, table)).to(device) if config.pos_features else None
        self.kept: Tensor | None = None  # (N, k, d)

    def __len__(self) -> int:
        return len(self.table)

    @torch.no_grad()
    def _over_all_rows(self, compute: Callable[[np.ndarray], Tensor]) -> Tensor:
        """compute(rows) over the whole split, in length-sorted batches; the result is in the table's order."""
        was_training = self.model.training
        self.model.eval()
        order, parts = [], []
        for number, rows in enumerate(eval_batches(self.tokens.lengths, EVAL_TOKENS), start=1):
            order.append(rows)
            parts.append(compute(rows))
            if number % RELEASE_BATCHES == 0 and self.device.type == "cpu":
                release_freed_memory()
        self.model.train(was_training)
        result = torch.cat(parts)
        place = torch.as_tensor(np.concatenate(order), device=self.device)
        return torch.empty_like(result).index_copy_(0, place, result)

    def logits(self) -> Tensor:
        """Logits of every row, in the table's order."""
        return self._over_all_rows(lambda rows: task_logits({self.task: self}, {self.task: rows})[self.task])

    def predictions(self, split: str) -> pd.DataFrame:
        """task, split, id, label (where there is one), predicted, confidence: a row an example."""
        similarity = self.config.similarity
        predicted, confidence = (part.cpu().numpy() for part in predict(TASKS[self.task], self.logits(), similarity))
        table = pd.DataFrame({"task": self.task, "split": split, "id": self.table["id"]})
        if self.labels is not None:
            table["label"] = self.table["label"]
        return table.assign(predicted=predicted, confidence=confidence)

    def embeddings(self) -> Tensor:
        """(N, k, d) of every row, where they are a function of the text alone; computed at the first call."""
        if self.kept is None:
            self.kept = self._over_all_rows(lambda rows: encode({self.task: self}, {self.task: rows})[self.task])
        return self.kept


def encode(tables: dict[str, TaskRows], rows: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Embeddings (B, k, d) of some rows of several tasks, in one pass through the encoder."""
    first = tables[next(iter(rows))]
    batches = {task: tables[task].tokens.batch(part).to(first.device) for task, part in rows.items()}
    with torch.autocast(first.device.type, torch.bfloat16, enabled=first.config.precision == "bf16"):
        return {task: part.float() for task, part in first.model.embed(batches).items()}


def task_logits(tables: dict[str, TaskRows], rows: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Logits of some rows of several tasks; where training leaves the encoder as it is, from kept embeddings."""
    model = tables[next(iter(rows))].model
    if model.features_are_fixed:
        embeddings = {task: tables[task].embeddings()[part] for task, part in rows.items()}
    else:
        embeddings = encode(tables, rows)
    tags = {task: tables[task].tags[part] for task, part in rows.items() if tables[task].tags is not None}
    return {task: model.heads(task, part, tags.get(task)) for task, part in embeddings.items()}


def predict_table(
    model: MultitaskBert, task: str, table: pd.DataFrame, split: str, device: str = "auto"
) -> pd.DataFrame:
    """Predictions of a trained model for a checked table: id, predicted, confidence, and label where it is known."""
    place = pick_device(device)
    return TaskRows(model.to(place), task, table, place).predictions(split)
