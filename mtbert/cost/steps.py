"""Training steps of a model on examples of given shapes, without text: to measure, or to run dry."""

import numpy as np
import torch
from torch import Tensor

from mtbert.bert import Batch
from mtbert.data import TAGS, TASKS
from mtbert.gradients import PROJECTIONS, EpisodicMemory
from mtbert.multitask import MultitaskBert
from mtbert.training import Trainer

Shapes = dict[str, tuple[int, int]]  # task -> (examples, tokens of the longest)


class Rows:
    """Stands for `TaskRows`: examples of some lengths without text.

    The first ones are a step's, those behind them GEM's memory, whose label is another one so that gradients conflict.
    known: whether the states below the first trained layer are read from disk.
    """

    def __init__(self, model: MultitaskBert, task: str, shapes: list[tuple[int, int]], known: bool = False) -> None:
        config, encoder, columns = model.run_config, model.encoder.config, len(TASKS[task].sentence_columns)
        self.tokens, self.width, self.known, self.device = self, encoder.hidden_size, known, model.device
        self.lengths = np.repeat([T for _, T in shapes], [B for B, _ in shapes])
        self.sequences = config.encodings(task)
        self.has_types = columns > self.sequences and encoder.type_vocab_size > 1
        self.labels = torch.zeros(len(self.lengths), device=self.device)
        self.labels[shapes[0][0] :] = 1
        self.teachers = None  # reading their logits takes no time worth counting
        width = len(TAGS) * columns
        self.tags = torch.zeros(len(self.lengths), width, device=self.device) if config.pos_features else None

    def batch(self, rows: np.ndarray) -> Batch:
        shape = self.sequences * len(rows), int(self.lengths[rows].max())
        types = torch.zeros(shape, dtype=torch.int64) if self.has_types else None
        return Batch(torch.ones(shape, dtype=torch.int64), torch.ones(shape, dtype=torch.bool), types)

    def below(self, rows: np.ndarray, batch: Batch) -> Tensor | None:
        return torch.zeros(*batch.input_ids.shape, self.width, device=self.device) if self.known else None

    def fixed_embeddings(self, rows: np.ndarray) -> Tensor:
        return torch.zeros(len(rows), self.sequences, self.width, device=self.device)


class Steps:
    """Training steps of a model on examples of given shapes, without text: dry, or measured.

    known: the tasks whose states below the first trained layer are read from disk.
    """

    def __init__(self, model: MultitaskBert) -> None:
        self.model, self.config, self.known = model, model.run_config, ()
        self.trainer = Trainer(model, {}, total_steps=1_000_000)
        for parameter in self.trainer.trained:  # AdamW makes its moments
            parameter.grad = torch.zeros_like(parameter)
        self.trainer.update({})

    @property
    def is_sum(self) -> bool:
        """As of `Trainer`."""
        return self.trainer.is_sum

    @property
    def flat_size(self) -> int:
        """Numbers in a task's gradient of the parameters that tasks share."""
        return self.trainer.updates.shared.size

    def gradients(self, shapes: Shapes, memory: dict[str, int] | None = None) -> None:
        """The gradient of a step. shapes: before it is cut into parts; memory: task -> tokens of the longest example
        that GEM draws of it, by default those of the step's tasks.
        """
        updates, K = self.trainer.updates, self.config.memory_batch
        updates.tables, updates.memory = {}, EpisodicMemory(K, "reservoir", seed=0)
        longest = memory or {task: T for task, (_, T) in shapes.items()}
        longest = longest if self.config.gradients in PROJECTIONS else {}
        for task in {**shapes, **longest}:
            B, T = shapes.get(task, (0, 0))
            drawn = (K, longest[task]) if task in longest else (0, 0)
            updates.tables[task] = Rows(self.model, task, [(B, T), drawn], task in self.known)
            updates.memory.add(task, np.arange(B, B + drawn[0]))
        self.model.train()
        updates.gradients(1, {task: np.arange(B) for task, (B, _) in shapes.items()})

    def step(self, shapes: Shapes, memory: dict[str, int] | None = None) -> None:
        """A whole step; arguments of `gradients`."""
        self.gradients(shapes, memory)
        self.trainer.update({})
