"""An imitation of how projected attention layers were first computed, as a peer of ours.

Source: Stickland and Murray 2019 and the published layout of their code, written anew: every task makes its own pass
through the whole model, attention is a matrix product, a softmax and a matrix product with the mask added as
(1 - mask) * -10000 and dropout on the materialised probabilities, a PAL has linear layers of its own for Q, K and V,
and the optimizer walks over the parameters one by one in Python, clips each one's gradient and corrects no bias.

Layer norm and GELU are torch's, which is faster than the formulas written out there. B batch, T tokens, d hidden size.
"""

import math
from collections.abc import Iterable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtbert.bert import BertConfig
from mtbert.data import TASKS
from mtbert.heads import task_loss
from mtbert.multitask import MultitaskBert, autocast
from mtbert.rows import TaskRows
from mtbert.tokens import Batch


class HandAttention(nn.Module):
    """Multi-head attention, step by step: softmax(Q K' / sqrt(d_k) + mask) V."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor, added_mask: Tensor) -> Tensor:
        """hidden (B, T, d), added_mask (B, 1, 1, T) -> (B, T, d)."""
        B, T, d = hidden.shape
        q, k, v = (
            linear(hidden).view(B, T, self.heads, -1).permute(0, 2, 1, 3)
            for linear in (self.query, self.key, self.value)
        )  # (B, h, T, d_k)
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(d // self.heads)
        weights = self.dropout(F.softmax(scores + added_mask, dim=-1))  # (B, h, T, T)
        return torch.matmul(weights, v).permute(0, 2, 1, 3).contiguous().view(B, T, d)


class HandLayer(nn.Module):
    """A layer of BERT; `extra` (B, T, d), a PAL's output, joins the residual of the second layer norm."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        d, d_i, eps = config.hidden_size, config.intermediate_size, config.layer_norm_eps
        self.attention = HandAttention(d, config.num_attention_heads, config.attention_probs_dropout_prob)
        self.attention_output = nn.Linear(d, d)
        self.attention_norm = nn.LayerNorm(d, eps=eps)
        self.feed_forward_in = nn.Linear(d, d_i)
        self.feed_forward_out = nn.Linear(d_i, d)
        self.output_norm = nn.LayerNorm(d, eps=eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, added_mask: Tensor, extra: Tensor) -> Tensor:
        """hidden (B, T, d) -> (B, T, d)."""
        attended = self.dropout(self.attention_output(self.attention(hidden, added_mask)))
        attended = self.attention_norm(attended + hidden)
        output = self.dropout(self.feed_forward_out(F.gelu(self.feed_forward_in(attended))))
        return self.output_norm(output + attended + extra)


class HandEmbeddings(nn.Module):
    """Word, position and token-type embeddings, layer norm, dropout."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        d = config.hidden_size
        self.word = nn.Embedding(config.vocab_size, d)
        self.position = nn.Embedding(config.max_position_embeddings, d)
        self.token_type = nn.Embedding(config.type_vocab_size, d)
        self.norm = nn.LayerNorm(d, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """(B, T) -> (B, T, d)."""
        positions = torch.arange(input_ids.size(1), device=input_ids.device).unsqueeze(0).expand_as(input_ids)
        hidden = self.word(input_ids) + self.position(positions) + self.token_type(token_type_ids)
        return self.dropout(self.norm(hidden))


class HandPal(nn.Module):
    """GELU(V_D g(V_E h)): V_E and V_D of a task for all layers, g attention with Q, K and V of each layer."""

    def __init__(self, config: BertConfig, s: int, heads: int) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(config.hidden_size, s), nn.Linear(s, config.hidden_size)
        dropout = config.attention_probs_dropout_prob
        depths = range(config.num_hidden_layers)
        self.attention = nn.ModuleDict({str(depth): HandAttention(s, heads, dropout) for depth in depths})

    def forward(self, depth: int, hidden: Tensor, added_mask: Tensor) -> Tensor:
        """hidden (B, T, d) -> (B, T, d)."""
        return F.gelu(self.decode(self.attention[str(depth)](self.encode(hidden), added_mask)))


class OriginalPals(nn.Module):
    """BERT with a PAL of every task on every layer, mean pooling and a linear head a task, with the weights of `ours`.

    ours: plan 1-bert, adapter pal with biases on all layers, heads of one layer.
    """

    def __init__(self, ours: MultitaskBert, tables: dict[str, TaskRows]) -> None:
        super().__init__()
        run, base = ours.run_config, ours.encoder.task_encoder(next(iter(tables)))
        self.embeddings = HandEmbeddings(base.config)
        self.layers = nn.ModuleList(HandLayer(base.config) for _ in base.layers)
        weights = {name: t for name, t in base.state_dict().items() if not name.startswith("pooler.")}
        self.load_state_dict(weights)
        self.pals, self.heads = nn.ModuleDict(), nn.ModuleDict()
        for task in tables:
            self.pals[task] = HandPal(base.config, run.adapter_size, run.adapter_heads)
            self.pals[task].load_state_dict(ours.encoder.adapters[task].state_dict())
            source = ours.heads.by_task[task].layers[0]
            linear = nn.Linear(source.in_features, source.out_features)
            linear.load_state_dict(source.state_dict())
            self.heads[task] = nn.Sequential(nn.Dropout(run.head_dropout), linear)
        self.tables, self.run_config = tables, run
        self.to(next(ours.parameters()).device).train()

    def forward(self, task: str, batch: Batch) -> Tensor:
        """Logits of a task's batch, in a pass of its own: (B, classes), or (B,) for pairs."""
        types = torch.zeros_like(batch.input_ids) if batch.token_type_ids is None else batch.token_type_ids
        mask = batch.attention_mask.float()
        added_mask = (1.0 - mask[:, None, None, :]) * -10000.0
        hidden = self.embeddings(batch.input_ids, types)
        for depth, layer in enumerate(self.layers):
            hidden = layer(hidden, added_mask, self.pals[task](depth, hidden, added_mask))
        embedding = (hidden * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
        return self.heads[task](embedding).squeeze(-1)

    def step(self, optimizer: torch.optim.Optimizer, rows: dict[str, np.ndarray]) -> None:
        """One training step: a pass and its backward pass for every task, then one update."""
        for task, part in rows.items():
            table = self.tables[task]
            batch = table.tokens.batch(part).to(table.device)
            with autocast(self.run_config, table.device):
                logits = self(task, batch)
            loss = task_loss(TASKS[task], logits.float(), table.labels[part])
            loss.backward()
            loss.item()
        optimizer.step()
        optimizer.zero_grad()


class PerParameterAdam(torch.optim.Optimizer):
    """Adam with decoupled weight decay and no bias correction, one parameter after the other.

    Each parameter's gradient is clipped to `max_norm` by itself.
    """

    def __init__(self, params: Iterable, lr: float, weight_decay: float = 0.01, max_norm: float = 1.0) -> None:
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, max_norm=max_norm))

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["m"], state["v"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                nn.utils.clip_grad_norm_(parameter, group["max_norm"])
                state["m"].mul_(0.9).add_(parameter.grad, alpha=0.1)
                state["v"].mul_(0.999).addcmul_(parameter.grad, parameter.grad, value=0.001)
                update = state["m"] / (state["v"].sqrt() + 1e-6)
                update += group["weight_decay"] * parameter
                parameter.add_(-(group["lr"] * update))
