"""What ours is compared with: the usual training loop around transformers, and the arithmetic of the original codes.

Sources: the loops of the transformers and torch documentation; GEM: Lopez-Paz and Ranzato 2017, section 3 and their
published settings (float64 on the host, quadprog on the dual, eps 1e-3); PALs: Stickland and Murray 2019 and the
published layout of their code; PCGrad as TorchJD documents it for several losses of one trunk.

A peer gets the padded batches of ours, but in `epoch` and, on a GPU, in one pass over all tasks. Where a peer could be
built in several ways, it is the faster one: no pooler, token ids ready before the clock starts.
"""

import copy
from dataclasses import asdict

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from transformers import AutoModel
from transformers import BertConfig as TheirConfig
from transformers.models.bert.modeling_bert import BertSelfAttention

from mtbert.bert import Batch, hf_name
from mtbert.data import TASKS
from mtbert.multitask import MultitaskBert, autocast, task_loss
from mtbert.training import TaskData

GEM_EPS = 1e-3  # added to the diagonal of GEM's Gram matrix


class TransformersModel(nn.Module):
    """transformers.BertModel, the mean over the tokens, and dropout and a linear layer for each task.

    It starts from the weights of `ours`, a model of plan 1-bert with mean pooling and heads of one layer; `tables`
    gives batches and labels. attention: transformers' name of its implementation.
    """

    def __init__(self, ours: MultitaskBert, tables: dict[str, TaskData], attention: str = "sdpa") -> None:
        super().__init__()
        base = ours.encoder.task_encoder(next(iter(tables)))
        sizes = {name: value for name, value in asdict(base.config).items() if name != "model_type"}
        config = TheirConfig(**sizes)
        with ours.device:  # weights that are drawn for nothing are drawn there
            self.encoder = AutoModel.from_config(config, attn_implementation=attention, add_pooling_layer=False)
        weights = {hf_name(n): t for n, t in base.state_dict().items() if not n.startswith("pooler.")}
        self.encoder.load_state_dict(weights)
        self.heads = nn.ModuleDict()
        for task in tables:
            linear = copy.deepcopy(ours.heads.by_task[task].layers[0])
            self.heads[task] = nn.Sequential(nn.Dropout(ours.run_config.head_dropout), linear)
        self.tables = tables
        self.autocast = autocast(ours.run_config, ours.device)
        self.to(next(ours.parameters()).device).train()

    def hidden_states(self, batch: Batch, task: str | None) -> Tensor:
        """(B, T) -> (B, T, d)."""
        mask = batch.attention_mask.long()
        return self.encoder(batch.input_ids, mask, batch.token_type_ids).last_hidden_state

    def embed(self, batch: Batch, task: str | None = None) -> Tensor:
        """The mean of the last hidden states over a sequence's tokens, (B, d)."""
        hidden = self.hidden_states(batch, task)
        weights = batch.attention_mask.unsqueeze(-1).to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1)

    def forward(self, task: str, batch: Batch) -> Tensor:
        """Logits of a task's batch in a pass of its own: (B, classes), or (B,) for pairs."""
        with self.autocast:
            return self.heads[task](self.embed(batch, task)).float().squeeze(-1)

    def batch(self, task: str, rows: np.ndarray) -> Batch:
        """The padded batch of a task's examples at these indices, on the model's device."""
        return self.tables[task].tokens.batch(rows).to(self.tables[task].device)

    def loss(self, task: str, rows: np.ndarray) -> Tensor:
        """Mean loss of these examples: cross-entropy, binary cross-entropy or squared error."""
        return task_loss(TASKS[task], self(task, self.batch(task, rows)), self.tables[task].labels[rows])

    def merged_batch(self, rows: dict[str, np.ndarray]) -> Batch:
        """The examples of all tasks as one batch, task after task, padded to the longest."""
        batches = [self.batch(task, part) for task, part in rows.items()]
        T = max(batch.input_ids.size(1) for batch in batches)

        def merged(tensors: list[Tensor]) -> Tensor:
            return torch.cat([F.pad(tensor, (0, T - tensor.size(1))) for tensor in tensors])

        ids, mask = merged([b.input_ids for b in batches]), merged([b.attention_mask for b in batches])
        types = [torch.zeros_like(b.input_ids) if b.token_type_ids is None else b.token_type_ids for b in batches]
        return Batch(ids, mask, merged(types))

    def losses_of(self, batch: Batch, labels: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
        """One pass over a merged batch, labels by task: embeddings (B, d), each task's mean loss."""
        losses = []
        with self.autocast:
            embeddings = self.embed(batch).float()
            by_task = embeddings.split([*map(len, labels.values())])
            for (task, part), features in zip(labels.items(), by_task, strict=True):
                logits = self.heads[task](features).float().squeeze(-1)
                losses.append(task_loss(TASKS[task], logits, part))
        return embeddings, losses

    def merged_losses(self, rows: dict[str, np.ndarray]) -> tuple[Tensor, list[Tensor]]:
        """One pass over the examples of all tasks, padded to the longest: embeddings (B, d), each task's mean loss."""
        labels = {task: self.tables[task].labels[part] for task, part in rows.items()}
        return self.losses_of(self.merged_batch(rows), labels)


def adamw(model: nn.Module, **options: object) -> torch.optim.AdamW:
    """torch's AdamW at the learning rate that ours has in the benchmarks."""
    return torch.optim.AdamW(model.parameters(), lr=1e-5, **options)


def usual_step(model: TransformersModel, optimizer: torch.optim.Optimizer, rows: dict[str, np.ndarray]) -> None:
    """One training step: for every task a pass and its backward pass, then one update; the losses are read."""
    losses = []
    for task, part in rows.items():
        losses.append(model.loss(task, part))
        losses[-1].backward()
    _update(optimizer, losses)


def torchjd_step(model: TransformersModel, optimizer: torch.optim.Optimizer, rows: dict[str, np.ndarray]) -> None:
    """One training step with PCGrad by TorchJD, on a single pass. Raises ImportError without torchjd.

    A row of the Jacobian at a time, which was faster than all at once.
    """
    features, losses = model.merged_losses(rows)
    torchjd_gradients(model, features, losses, list(rows))
    _update(optimizer, losses)


def torchjd_gradients(model: TransformersModel, features: Tensor, losses: list[Tensor], tasks: list[str]) -> None:
    """Leave in `.grad` what PCGrad by TorchJD makes of one pass: features (B, d), the tasks' losses."""
    from torchjd.aggregation import PCGrad
    from torchjd.autojac import jac_to_grad, mtl_backward

    shared = list(model.encoder.parameters())
    heads = [list(model.heads[task].parameters()) for task in tasks]
    mtl_backward(losses, features, tasks_params=heads, shared_params=shared, parallel_chunk_size=1)
    jac_to_grad(shared, PCGrad())


def _update(optimizer: torch.optim.Optimizer, losses: list[Tensor]) -> None:
    optimizer.step()
    optimizer.zero_grad()
    for loss in losses:
        loss.item()  # as loops do that report the loss; on a GPU it waits


class OriginalPals(TransformersModel):
    """An imitation of how projected attention layers were first computed, with the weights of `ours`.

    Every task makes a pass of its own; attention is a matrix product, a softmax and a matrix product, with the mask
    added as (1 - mask) * -10000 and dropout on the probabilities; a PAL's Q, K and V are linear layers of their own.
    ours: plan 1-bert, adapter pal with biases on all layers, heads of one layer.
    """

    def __init__(self, ours: MultitaskBert, tables: dict[str, TaskData]) -> None:
        super().__init__(ours, tables, attention="eager")
        run, adapters = ours.run_config, ours.encoder.adapters
        small = copy.copy(self.encoder.config)
        small.hidden_size, small.num_attention_heads = run.adapter_size, run.adapter_heads
        self.pals = nn.ModuleDict()
        for task in tables:
            attention = nn.ModuleList(BertSelfAttention(small) for _ in self.encoder.encoder.layer)
            for depth, module in enumerate(attention):
                module.load_state_dict(adapters[task].attention[depth].state_dict())
            ends = {name: copy.deepcopy(getattr(adapters[task], name)) for name in ("encode", "decode")}
            self.pals[task] = nn.ModuleDict({"attention": attention, **ends})
        self.to(next(ours.parameters()).device)

    def hidden_states(self, batch: Batch, task: str) -> Tensor:
        """LN(h_att + FFN(h_att) + GELU(V_D g(V_E h))) layer by layer: (B, T) -> (B, T, d)."""
        mask = (1.0 - batch.attention_mask[:, None, None, :].float()) * -10000.0
        hidden = self.encoder.embeddings(batch.input_ids, batch.token_type_ids)
        pal = self.pals[task]
        for layer, g in zip(self.encoder.encoder.layer, pal["attention"], strict=True):
            attended, output = layer.attention(hidden, mask)[0], layer.output
            feed_forward = output.dropout(output.dense(layer.intermediate(attended)))
            beside = F.gelu(pal["decode"](g(pal["encode"](hidden), mask)[0]))
            hidden = output.LayerNorm(feed_forward + attended + beside)
        return hidden

    def optimizer(self) -> torch.optim.Optimizer:
        """AdamW that walks over the parameters one by one and clips each one's gradient by itself, as theirs does."""

        def clip(*_: object) -> None:
            for parameter in self.parameters():
                clip_grad_norm_(parameter, 1.0)

        optimizer = adamw(self, foreach=False)
        optimizer.register_step_pre_hook(clip)
        return optimizer


def gem_on_the_host(g: Tensor, M: Tensor, margin: float = 0.0) -> Tensor:
    """GEM's projection of g (P,) by memories M (K, P) in float64 on the host, by quadprog -> (P,), like g.

    v minimises 1/2 v'(MM' + eps I)v + (Mg)'v, v >= margin; g~ = M'v + g.
    """
    import quadprog

    memories, gradient = M.cpu().double().numpy(), g.cpu().double().numpy()
    gram = memories @ memories.T
    gram = (gram + gram.T) / 2 + GEM_EPS * np.eye(len(gram))
    v = quadprog.solve_qp(gram, -memories @ gradient, np.eye(len(gram)), np.full(len(gram), margin))[0]
    return torch.from_numpy(v @ memories + gradient).to(g)
