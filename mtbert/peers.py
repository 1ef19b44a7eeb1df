"""What ours is measured against: the usual training loop around transformers, and the originals' arithmetic.

Sources: the loops are those of the transformers and torch documentation; GEM: Lopez-Paz and Ranzato 2017, section 3 and
their published settings (float64 on the host, quadprog on the dual, eps 1e-3); PCGrad as TorchJD documents it for
several losses of one trunk.

Every peer gets the same token ids in the same padded batches as ours, made by the same function. Where a peer could be
built in several ways, it is the faster one: no pooler, token ids ready before the clock starts.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.util import find_spec

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModel
from transformers import BertConfig as TheirConfig

from mtbert.data import TASKS
from mtbert.heads import task_loss
from mtbert.layouts import their_name
from mtbert.multitask import MultitaskBert, autocast
from mtbert.rows import TaskRows
from mtbert.tokens import Batch

GEM_EPS = 1e-3  # added to the diagonal of GEM's Gram matrix


def not_installed(package: str) -> str:
    """What to do about an optional package; empty where it is there."""
    return "" if find_spec(package) else f"{package} is not installed: pip install --no-deps {package}"


class TransformersModel(nn.Module):
    """transformers.BertModel, the mean over the tokens, and dropout and a linear layer for each task.

    It starts from the weights of `ours`, a model of plan 1-bert with mean pooling and heads of one layer; `tables`
    gives batches and labels.
    """

    def __init__(self, ours: MultitaskBert, tables: dict[str, TaskRows]) -> None:
        super().__init__()
        base = ours.encoder.task_encoder(next(iter(tables)))
        sizes = {name: value for name, value in asdict(base.config).items() if name != "model_type"}
        config = TheirConfig(**sizes)
        self.encoder = AutoModel.from_config(config, attn_implementation="sdpa", add_pooling_layer=False)
        weights = {their_name(n): t for n, t in base.state_dict().items() if not n.startswith("pooler.")}
        self.encoder.load_state_dict(weights)
        self.heads = nn.ModuleDict()
        for task in tables:
            source = ours.heads.by_task[task].layers[0]
            linear = nn.Linear(source.in_features, source.out_features)
            linear.load_state_dict(source.state_dict())
            self.heads[task] = nn.Sequential(nn.Dropout(ours.run_config.head_dropout), linear)
        self.tables, self.run_config = tables, ours.run_config
        self.to(next(ours.parameters()).device).train()

    def embed(self, batch: Batch) -> Tensor:
        """The mean of the last hidden states over a sequence's tokens, (B, d)."""
        mask = batch.attention_mask
        hidden = self.encoder(
            input_ids=batch.input_ids, attention_mask=mask.long(), token_type_ids=batch.token_type_ids
        ).last_hidden_state
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1)

    def batch(self, task: str, rows: np.ndarray) -> Batch:
        """The padded batch of some rows of a task, on the model's device."""
        table = self.tables[task]
        return table.tokens.batch(rows).to(table.device)

    def logits(self, task: str, rows: np.ndarray) -> Tensor:
        """(B, classes), or (B,) for pairs."""
        with self.autocast:
            return self.heads[task](self.embed(self.batch(task, rows))).float().squeeze(-1)

    def loss(self, task: str, rows: np.ndarray) -> Tensor:
        """Mean loss of some rows of a task: cross-entropy, binary cross-entropy or squared error."""
        return task_loss(TASKS[task], self.logits(task, rows), self.tables[task].labels[rows])

    def merged(self, rows: dict[str, np.ndarray]) -> tuple[Tensor, dict[str, slice]]:
        """One pass over the rows of all tasks, padded to the longest: embeddings (B, d), and each task's places."""
        batches = {task: self.batch(task, part) for task, part in rows.items()}
        width = max(batch.input_ids.size(1) for batch in batches.values())

        def join(pick: Callable[[Batch], Tensor]) -> Tensor:
            return torch.cat([F.pad(part, (0, width - part.size(1))) for part in map(pick, batches.values())])

        whole = Batch(
            join(lambda batch: batch.input_ids),
            join(lambda batch: batch.attention_mask),
            join(lambda b: torch.zeros_like(b.input_ids) if b.token_type_ids is None else b.token_type_ids),
        )
        ends = np.cumsum([0, *(len(part) for part in rows.values())]).tolist()
        places = {task: slice(ends[i], ends[i + 1]) for i, task in enumerate(rows)}
        with self.autocast:
            return self.embed(whole).float(), places

    def losses(self, features: Tensor, places: dict[str, slice], rows: dict[str, np.ndarray]) -> dict[str, Tensor]:
        """Each task's mean loss on its places of embeddings (B, d)."""
        result = {}
        for task, place in places.items():
            with self.autocast:
                logits = self.heads[task](features[place]).float().squeeze(-1)
            result[task] = task_loss(TASKS[task], logits, self.tables[task].labels[rows[task]])
        return result

    @property
    def autocast(self) -> torch.autocast:
        """The precision of ours."""
        return autocast(self.run_config, next(self.parameters()).device)


def adamw(model: nn.Module, **options: object) -> torch.optim.AdamW:
    """torch's AdamW at the learning rate that ours has in the benchmarks."""
    return torch.optim.AdamW(model.parameters(), lr=1e-5, **options)


def usual_step(model: TransformersModel, optimizer: torch.optim.Optimizer, rows: dict[str, np.ndarray]) -> None:
    """One training step: for every task a pass and its backward pass, then one update; the losses are read."""
    losses = []
    for task, part in rows.items():
        loss = model.loss(task, part)
        loss.backward()
        losses.append(loss.detach())
    optimizer.step()
    optimizer.zero_grad()
    [loss.item() for loss in losses]


def merged_step(model: TransformersModel, optimizer: torch.optim.Optimizer, rows: dict[str, np.ndarray]) -> None:
    """One training step with a single pass for the rows of all tasks."""
    losses = model.losses(*model.merged(rows), rows)
    sum(losses.values()).backward()
    optimizer.step()
    optimizer.zero_grad()
    [loss.item() for loss in losses.values()]


def random_batches(size: int, batch_size: int, seed: int) -> list[np.ndarray]:
    """All rows once in random order, lengths not looked at: what a shuffling DataLoader gives."""
    order = np.random.default_rng(seed).permutation(size)
    return [order[i : i + batch_size] for i in range(0, size, batch_size)]


@torch.no_grad()
def usual_predictions(model: TransformersModel, task: str, batches: Iterator[np.ndarray]) -> np.ndarray:
    """Predicted class of every row of a binary task, batch by batch."""
    model.eval()
    predicted = [(model.logits(task, rows).sigmoid() > 0.5).long().cpu().numpy() for rows in batches]
    return np.concatenate(predicted)


# --- gradients -----------------------------------------------------------------------------------------------------


def torchjd_gradients(model: TransformersModel, rows: dict[str, np.ndarray], chunk: int | None = None) -> None:
    """PCGrad by TorchJD, on one pass for the rows of all tasks: the gradient is left in `.grad`.

    chunk: how many rows of the Jacobian are differentiated at once; None: all. Raises ImportError without torchjd.
    """
    from torchjd.aggregation import PCGrad
    from torchjd.autojac import jac_to_grad, mtl_backward

    features, places = model.merged(rows)
    losses = model.losses(features, places, rows)
    shared = list(model.encoder.parameters())
    heads = [list(model.heads[task].parameters()) for task in rows]
    mtl_backward(list(losses.values()), features, tasks_params=heads, shared_params=shared, parallel_chunk_size=chunk)
    jac_to_grad(shared, PCGrad())


def torchjd_step(
    model: TransformersModel, optimizer: torch.optim.Optimizer, rows: dict[str, np.ndarray], chunk: int | None = None
) -> None:
    """One training step with PCGrad by TorchJD."""
    torchjd_gradients(model, rows, chunk)
    optimizer.step()
    optimizer.zero_grad()


def gem_on_the_host(g: Tensor, M: Tensor, margin: float = 0.0, solver: str = "quadprog") -> Tensor:
    """GEM's projection of g (P,) by memories M (K, P) in float64 on the host -> (P,), like g.

    v minimises 1/2 v'(MM' + eps I)v + (Mg)'v, v >= margin; g~ = M'v + g. solver: quadprog, or scipy where that is not
    installed.
    """
    memories, gradient = M.cpu().double().numpy(), g.cpu().double().numpy()
    gram = memories @ memories.T
    gram = (gram + gram.T) / 2 + GEM_EPS * np.eye(len(gram))
    linear = memories @ gradient
    if solver == "quadprog":
        import quadprog

        v = quadprog.solve_qp(gram, -linear, np.eye(len(gram)), np.full(len(gram), margin))[0]
    else:
        from scipy.optimize import nnls

        upper = np.linalg.cholesky(gram).T  # gram = upper' upper: least squares in v - margin >= 0
        v = nnls(upper, -np.linalg.solve(upper.T, linear + gram.sum(1) * margin))[0] + margin
    return torch.from_numpy(v @ memories + gradient).to(g)
