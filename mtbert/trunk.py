"""The encoder under a sharing plan: one pass for a batch of several tasks.

At every depth each group of the plan runs its layer once, on the rows of all its tasks together. Source: paper 002,
section 4 (1-bert, 3-bert, hybrid-bert); papers 001, equation 7, and 003, equation 2 (where a PAL joins a layer).

N is the number of tokens, padding included, of all sequences that a group encodes together.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtbert.adapters import Adapter
from mtbert.bert import BertLayer, BertModel
from mtbert.fast import attend
from mtbert.sharing import Level, SharingPlan
from mtbert.tokens import Batch


class SharedEncoder(nn.Module):
    """The encoder's levels, each in as many copies as its plan has groups; all copies start from the same weights."""

    def __init__(self, base: BertModel, plan: SharingPlan, adapters: dict[str, Adapter]) -> None:
        super().__init__()
        self.config, self.plan = base.config, plan
        self.embeddings = _copies(base.embeddings, plan.embeddings)
        self.layers = nn.ModuleList(_copies(*pair) for pair in zip(base.layers, plan.layers, strict=True))
        self.poolers = _copies(base.pooler, plan.pooler)
        self.adapters = nn.ModuleDict(adapters)

    def levels(self) -> dict[str, tuple[Level, nn.ModuleList]]:
        """Name (embeddings, layer 1, ..., pooler) -> how the plan holds it, and its copies."""
        modules = [self.embeddings, *self.layers, self.poolers]
        return {name: (level, m) for (name, level), m in zip(self.plan.levels.items(), modules, strict=True)}

    def forward(self, batches: dict[str, Batch], below: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Hidden states of the last layer, task -> (B, T, d); the tasks' batches may differ in B and T.

        below: what `below` gives, for the tasks where it is known already.
        """
        rows = _rows(batches)
        flats = {(task,): hidden.flatten(0, 1) for task, hidden in (below or {}).items()}
        flats |= self._below({task: batch for task, batch in batches.items() if (task,) not in flats}, rows)
        flats = self._run(flats, rows, self.frozen_depth, len(self.layers))
        return {task: part for group, flat in flats.items() for task, part in _apart(flat, group, rows).items()}

    def below(self, batches: dict[str, Batch]) -> dict[str, Tensor]:
        """Hidden states below the layer `frozen_depth`, task -> (B, T, d): a function of the text alone."""
        rows = _rows(batches)
        flats = self._below(batches, rows)
        return {task: part for group, flat in flats.items() for task, part in _apart(flat, group, rows).items()}

    @property
    def frozen_depth(self) -> int:
        """`SharingPlan.frozen_depth` under these adapters."""
        return self.plan.frozen_depth({depth for adapter in self.adapters.values() for depth in adapter.layers})

    def _below(self, batches: dict[str, Batch], rows: dict[str, "Rows"]) -> dict[tuple, Tensor]:
        words, embedded = {}, {}
        for group, embed in zip(self.plan.embeddings.groups, self.embeddings, strict=True):
            if present := [task for task in group if task in batches]:
                # once for all tasks: each look-up's gradient is as large as the whole table
                together = embed.word(_together(batches[task].input_ids for task in present))
                words |= _apart(together, present, rows)
        for task, batch in batches.items():
            embed = _copy_for(task, self.plan.embeddings, self.embeddings)
            embedded[(task,)] = embed(batch.input_ids, batch.token_type_ids, words[task]).flatten(0, 1)
        return self._run(embedded, rows, 0, self.frozen_depth)

    def _run(self, flats: dict[tuple, Tensor], rows: dict[str, "Rows"], start: int, stop: int) -> dict[tuple, Tensor]:
        """The layers from `start` to `stop` on the tokens of groups of tasks (N, d)."""
        present = {task for group in flats for task in group}
        for depth in range(start, stop):
            groups = [tuple(task for task in group if task in present) for group in self.plan.layers[depth].groups]
            flats = _regroup(flats, [group for group in groups if group], rows)
            adapters = {task: a for task, a in self.adapters.items() if depth in a.layers}
            for group, layer in zip(groups, self.layers[depth], strict=True):
                if group:
                    here = {task: adapters[task] for task in group if task in adapters}
                    flats[group] = run_layer(layer, flats[group], {task: rows[task] for task in group}, here, depth)
        return flats

    def pool(self, task: str, hidden: Tensor) -> Tensor:
        """tanh(W h_[CLS] + b) of the task's pooler: (B, T, d) -> (B, d)."""
        return torch.tanh(_copy_for(task, self.plan.pooler, self.poolers)(hidden[:, 0]))

    def task_encoder(self, task: str) -> BertModel:
        """A task's way through the plan as a plain encoder without adapters; it holds these weights, not copies."""
        with torch.device("meta"):
            model = BertModel(self.config)
        model.embeddings = _copy_for(task, self.plan.embeddings, self.embeddings)
        model.layers = nn.ModuleList(_copy_for(task, *pair) for pair in zip(self.plan.layers, self.layers, strict=True))
        model.pooler = _copy_for(task, self.plan.pooler, self.poolers)
        return model.train(self.training)

    def freeze(self) -> None:
        """Take the frozen levels out of training."""
        for level, copies in self.levels().values():
            copies.requires_grad_(level.mode != "F")

    def train(self, mode: bool = True) -> "SharedEncoder":
        """Training mode; frozen levels stay in evaluation mode, without dropout."""
        super().train(mode)
        for level, copies in self.levels().values():
            if level.mode == "F":
                copies.eval()
        return self


def _copies(module: nn.Module, level: Level) -> nn.ModuleList:
    return nn.ModuleList([module] + [copy.deepcopy(module) for _ in level.groups[1:]])


def _copy_for(task: str, level: Level, copies: nn.ModuleList) -> nn.Module:
    return next(module for group, module in zip(level.groups, copies, strict=True) if task in group)


@dataclass(frozen=True)
class Rows:
    """The rows of one task: B sequences padded to T tokens, mask (B, T)."""

    B: int
    T: int
    mask: Tensor


def _rows(batches: dict[str, Batch]) -> dict[str, Rows]:
    return {task: Rows(*batch.input_ids.shape, batch.attention_mask) for task, batch in batches.items()}


def _apart(flat: Tensor, group: Iterable[str], rows: dict[str, Rows]) -> dict[str, Tensor]:
    """The tokens of a group (N, ...) -> task -> (B, T, ...)."""
    parts = flat.split([rows[task].B * rows[task].T for task in group])
    return {task: part.unflatten(0, (rows[task].B, rows[task].T)) for task, part in zip(group, parts, strict=True)}


def _together(parts: Iterable[Tensor]) -> Tensor:
    """(B, T, ...) of several tasks -> (N, ...), all their tokens."""
    flat = [part.flatten(0, 1) for part in parts]
    return torch.cat(flat) if len(flat) > 1 else flat[0]


def _regroup(flats: dict[tuple, Tensor], groups: list[tuple], rows: dict[str, Rows]) -> dict[tuple, Tensor]:
    """The tokens of all tasks in other groups; where the groups are the same nothing is copied."""
    if set(flats) == set(groups):
        return flats
    parts = {task: part for group, flat in flats.items() for task, part in _apart(flat, group, rows).items()}
    return {group: _together(parts[task] for task in group) for group in groups}


def run_layer(layer: BertLayer, x: Tensor, rows: dict[str, Rows], adapters: dict[str, Adapter], depth: int) -> Tensor:
    """`BertLayer.forward` on the tokens of several tasks together (N, d), with the adapters of this depth -> (N, d).

    What works token by token runs once, on the N tokens of all tasks; attention runs on each task's own (B, T); an
    adapter sees its task's rows alone.
    """
    masks = {task: part.mask[:, None, None, :] for task, part in rows.items()}  # (B, 1, 1, T)

    def works(hook: str) -> bool:
        return any(getattr(type(adapter), hook) is not getattr(Adapter, hook) for adapter in adapters.values())

    def adapted(x: Tensor, hook: str) -> Tensor:
        if not works(hook):
            return x
        parts = _apart(x, rows, rows)
        return _together(getattr(adapters[t], hook)(depth, p) if t in adapters else p for t, p in parts.items())

    attention = layer.attention
    dropout = attention.dropout if attention.training else 0.0
    projected = _apart(attention.project_tokens(x), rows, rows)  # (B, T, 3, h, d_k)
    context = []
    for task, mask in masks.items():
        heads = (part.transpose(1, 2) for part in projected[task].unbind(2))  # (B, h, T, d_k)
        context.append(attend(*heads, mask, dropout).transpose(1, 2).flatten(2))  # (B, T, d)
    attended = adapted(layer.attention_output(_together(context)), "after_attention")
    attended = layer.attention_norm(x + layer.dropout(attended))
    feed_forward = layer.feed_forward_out(F.gelu(layer.feed_forward_in(attended)))
    residual = attended + layer.dropout(adapted(feed_forward, "after_feed_forward"))
    for hook, read in (("beside", x), ("beside_feed_forward", attended)):
        if works(hook):  # LN(h_att + FFN(h_att) + TS(h)), 003 equation 2
            inputs, terms = _apart(read, rows, rows), _apart(residual, rows, rows)
            for task, adapter in adapters.items():
                if (term := getattr(adapter, hook)(depth, inputs[task], masks[task])) is not None:
                    terms[task] = terms[task] + term
            residual = _together(terms.values())
    return adapted(layer.output_norm(residual), "after_layer")
