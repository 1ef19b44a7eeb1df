"""The gradient of one step against `torch.autograd.grad` of every task's own loss, without dropout."""

import itertools
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from mtbert.bert import BertConfig, BertModel
from mtbert.config import RunConfig
from mtbert.data import TASKS
from mtbert.heads import task_loss
from mtbert.hub import locate
from mtbert.multitask import MultitaskBert
from mtbert.optim import AdamW
from mtbert.rows import Corpus, TaskRows
from mtbert.soft import soft_penalty
from mtbert.updates import LossWeights, Updates

THREE = ("sst", "quora", "sts")
ROWS = {"sst": np.arange(5), "quora": np.arange(3, 10), "sts": np.arange(10, 14)}  # a step's; numbers differ
UNIFIED = dict(scheme="unified")


@dataclass
class Step:
    """A model with its rows, and what computes the gradients of a step."""

    model: MultitaskBert
    tables: dict[str, TaskRows]
    updates: Updates

    @property
    def trained(self) -> dict[str, torch.nn.Parameter]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def loss(self, task: str, rows: np.ndarray) -> Tensor:
        """The plain mean loss of one task, through the model alone."""
        logits = self.model({task: self.tables[task].tokens.batch(rows)})[task]
        return task_loss(TASKS[task], logits, self.tables[task].labels[rows], self.model.run_config.similarity)

    def naive(self, task: str, rows: np.ndarray) -> dict[str, Tensor | None]:
        """The gradient of that loss by parameter; None where it does not reach."""
        gradients = torch.autograd.grad(self.loss(task, rows), list(self.trained.values()), allow_unused=True)
        return dict(zip(self.trained, gradients, strict=True))

    def result(self) -> dict[str, Tensor | None]:
        """What the last step left in `.grad`."""
        return {name: p.grad for name, p in self.trained.items()}


@pytest.fixture(scope="module")
def calm_encoder(tmp_path_factory) -> str:
    """The tiny encoder without dropout."""
    folder = tmp_path_factory.mktemp("calm-encoder")
    torch.manual_seed(12345)
    shape = dict(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=48)
    calm = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.1)
    BertModel(BertConfig(**shape, **calm)).save_pretrained(folder)
    shutil.copy(locate("minilm") / "tokenizer.json", folder)
    return str(folder)


@pytest.fixture
def step_of(calm_encoder, course_folder) -> Callable[..., Step]:
    """Build a step of three tasks; the copies of a level differ from one another."""

    def build(**fields) -> Step:
        base = dict(corpus="course", tasks=THREE, encoder=calm_encoder, batch_size=8, head_dropout=0.0)
        config = RunConfig(**{**base, "adapter_size": 8, "adapter_heads": 2, **fields})
        torch.manual_seed(3)
        model = MultitaskBert(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.05 * torch.randn_like(parameter)
        corpus = Corpus.load(config, course_folder)
        tables = {task: TaskRows(model, task, table, torch.device("cpu")) for task, table in corpus.train.items()}
        return Step(model.train(), tables, Updates(model, tables, LossWeights(), []))

    return build


def total(parts: list[Tensor | None], weights: list[float] | None = None) -> Tensor | None:
    """The weighted sum of those that are there."""
    weights = weights or [1.0] * len(parts)
    return sum((w * part for w, part in zip(weights, parts, strict=True) if part is not None), start=None or 0) if any(
        part is not None for part in parts
    ) else None
