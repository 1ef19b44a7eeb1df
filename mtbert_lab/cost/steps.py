"""Training steps of a model on random tokens of given shapes, to measure them or for a dry run."""

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from mtbert.bert import Batch
from mtbert.config import RunConfig
from mtbert.data import TAGS, TASKS
from mtbert.multitask import MultitaskBert
from mtbert.training import Shapes, Trainer


def padded_tokens(config: RunConfig, shapes: Shapes) -> int:
    """Tokens of a step in all its sequences, with padding."""
    return sum(config.encodings(task) * B * T for task, (B, T) in shapes.items())


class RandomTexts:
    """Rows of random tokens, of these lengths (N,), with the interface of `TaskData`.

    The first `remembered` rows have another label than the others, so that their gradients conflict. known: whether
    the states below the first trained layer are read from disk. On a GPU the tokens are made there, so that the steps
    can be graphs, as with `TaskData`.
    """

    teachers = None  # to read their logits takes no time worth counting

    def __init__(
        self,
        model: MultitaskBert,
        task: str,
        lengths: ndarray,
        remembered: int = 0,
        known: bool = False,
    ) -> None:
        config = model.run_config
        sizes = model.encoder.config
        columns = len(TASKS[task].sentence_columns)
        self.tokens = self  # it has lengths and batches, as a `TokenizedTable`
        self.lengths = lengths
        self.known = known
        self.is_fixed = model.embeddings_are_fixed
        self.device = model.device
        self.sequences = config.encodings(task)
        self.vocabulary = sizes.vocab_size
        self.width = sizes.hidden_size
        self.has_types = columns > self.sequences and sizes.type_vocab_size > 1
        self.labels = torch.zeros(len(lengths), device=self.device)
        self.labels[:remembered] = 1
        self.tags = None
        if config.pos_features:
            self.tags = torch.zeros(len(lengths), len(TAGS) * columns, device=self.device)

    def needs_host(self, model: MultitaskBert) -> bool:
        """As of `TaskData`."""
        return self.known and not self.is_fixed

    def batch(self, rows: ndarray | Tensor, length: int | None = None) -> Batch:
        """A batch of these rows, padded to the longest; where rows are numbers on a device, to `length` tokens."""
        if length is None:
            length = int(self.lengths[rows].max())
        shape = (self.sequences * len(rows), length)
        place = self.device if isinstance(rows, Tensor) else "cpu"  # a graph has no part on the host
        ids = torch.randint(self.vocabulary, shape, device=place)
        mask = torch.ones(shape, dtype=torch.bool, device=place)
        types = torch.zeros_like(ids) if self.has_types else None
        return Batch(ids, mask, types).to(self.device)

    def prefix_states(self, rows: ndarray | Tensor, batch: Batch) -> Tensor | None:
        """Hidden states (B, T, d), where they are known."""
        if not self.known:
            return None
        return torch.zeros(*batch.input_ids.shape, self.width, device=self.device)

    def fixed_embeddings(self, model: MultitaskBert, rows: ndarray | Tensor) -> Tensor:
        """Sentence embeddings (B, k, d) of these rows."""
        return torch.zeros(len(rows), self.sequences, self.width, device=self.device)


class Steps:
    """Training steps and evaluations of a model on random tokens, real or as a dry run.

    memory: task -> tokens of the longest example that GEM draws. known: the tasks whose states below the first trained
    layer are read from disk. graphs: see `Trainer`.
    """

    def __init__(
        self,
        model: MultitaskBert,
        memory: dict[str, int],
        known: tuple[str, ...] = (),
        graphs: bool | None = False,
    ) -> None:
        self.model = model
        self.config = model.run_config
        self.memory = memory
        self.known = known
        self.tables: dict[str, RandomTexts] = {}
        self.kept: list[RandomTexts] = []  # a graph reads the rows with which it was captured
        if known and not model.embeddings_are_fixed:
            graphs = False  # what frozen layers make of the texts is read on the host
        self.trainer = Trainer(model, self.tables, total_steps=1_000_000, graphs=graphs)
        for parameter in self.trainer.trained:  # AdamW makes its moments
            parameter.grad = torch.zeros_like(parameter)
        self.trainer.update({})
        self.has_graphs = self.trainer.graphs is not None
        self.is_sum = self.trainer.is_sum
        self.remembered = min(self.config.memory_batch, self.config.memory_size)
        self.trainer.remember({task: np.arange(self.remembered) for task in memory})

    def train(self, shapes: Shapes) -> None:
        """A whole step."""
        self.compute_gradients(shapes)
        self.update()

    def compute_gradients(self, shapes: Shapes) -> None:
        """The part of a step before the update. shapes: of the whole batches, which the step may cut into parts."""
        rows = {}
        for task in {**shapes, **self.memory}:
            B, T = shapes.get(task, (0, 0))
            remembered = np.full(self.remembered, self.memory.get(task, T))
            lengths = np.concatenate([remembered, np.full(B, T)])
            self.tables[task] = RandomTexts(self.model, task, lengths, self.remembered, task in self.known)
            if task in shapes:
                rows[task] = np.arange(self.remembered, len(lengths))
        if self.has_graphs:
            self.kept += self.tables.values()
        self.trainer.compute_gradients(1, rows)

    def update(self) -> None:
        """The part of a step after the gradient."""
        self.trainer.update({})

    @torch.no_grad()
    def evaluate(self, shapes: Shapes) -> None:
        """Embed batches without dropout and gradients."""
        self.model.eval()
        batches = {}
        for task, (B, T) in shapes.items():
            table = RandomTexts(self.model, task, np.full(B, T))
            batches[task] = table.batch(np.arange(B))
        self.model.embed(batches)
