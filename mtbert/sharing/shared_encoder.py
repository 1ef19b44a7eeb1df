"""The encoder under a sharing plan: one pass for a batch of several tasks.

At every depth each group of the plan runs its `BertLayer` once on the tokens of all its tasks together.
Source: paper 002, section 4 (1-bert, 3-bert, hybrid-bert); papers 001, equation 7, and 003, equation 2 (where a PAL
joins a layer).

N is the number of tokens, padding included, of all sequences that a group encodes together.
"""

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mtbert.bert import Batch, BertModel, LayerHooks, apart, together
from mtbert.sharing.adapters import Adapter
from mtbert.sharing.plan import Level, SharingPlan

Group = tuple[str, ...]  # tasks whose tokens a layer reads together
Tokens = dict[Group, Tensor]  # (N, d) of each group


class ExportError(ValueError):
    """A part of a model that other code cannot run."""


class SharedEncoder(nn.Module):
    """The encoder's levels, each in as many copies as its plan has groups; all copies start from the same weights.

    checkpoint_layers: in training keep only the inputs of layers, and compute each layer again in the backward pass
    (gradient checkpointing, Chen et al. 2016).
    """

    checkpoint_layers = False

    def __init__(self, base: BertModel, plan: SharingPlan, adapters: dict[str, Adapter]) -> None:
        super().__init__()
        self.config, self.plan = base.config, plan
        self.embeddings = _copies(base.embeddings, plan.embeddings)
        self.layers = nn.ModuleList(_copies(*pair) for pair in zip(base.layers, plan.layers, strict=True))
        self.poolers = _copies(base.pooler, plan.pooler)
        self.adapters = nn.ModuleDict(adapters)

    def levels(self) -> dict[str, tuple[Level, nn.ModuleList]]:
        """Name (embeddings, layer 1, ..., pooler) -> its mode in the plan, and its copies."""
        levels = self.plan.levels
        pairs = zip(levels.values(), [self.embeddings, *self.layers, self.poolers], strict=True)
        return dict(zip(levels, pairs, strict=True))

    def forward(self, batches: dict[str, Batch], below: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Hidden states of the last layer, task -> (B, T, d); the tasks' batches may differ in B and T.

        below: what `below` gives, for the tasks where it is known already.
        """
        masks = _masks(batches)
        known = below or {}
        tokens = {(task,): hidden.flatten(0, 1) for task, hidden in known.items()}
        others = {task: batch for task, batch in batches.items() if task not in known}
        tokens |= self._run_below(others, masks)
        tokens = self._run(tokens, masks, self.frozen_depth, len(self.layers))
        return _by_task(tokens, masks)

    def below(self, batches: dict[str, Batch]) -> dict[str, Tensor]:
        """Hidden states below the layer `frozen_depth`, task -> (B, T, d): a function of the text alone."""
        masks = _masks(batches)
        return _by_task(self._run_below(batches, masks), masks)

    @property
    def frozen_depth(self) -> int:
        """`SharingPlan.frozen_depth`, and 0 with adapters, which train in every layer."""
        return 0 if self.adapters else self.plan.frozen_depth

    def _run_below(self, batches: dict[str, Batch], masks: dict[str, Tensor]) -> Tokens:
        """The embeddings and the layers below `frozen_depth`."""
        words: dict[str, Tensor] = {}
        for group, embed in zip(self.plan.embeddings.groups, self.embeddings, strict=True):
            present = [task for task in group if task in batches]
            if present:  # one look-up for all tasks: its gradient is as large as the whole table
                ids = together(batches[task].input_ids for task in present)
                words |= _apart(embed.word(ids), present, masks)
        tokens: Tokens = {}
        for task, batch in batches.items():
            embed = _copy_for(task, self.plan.embeddings, self.embeddings)
            hidden = embed(batch.input_ids, batch.token_type_ids, words[task])  # (B, T, d)
            tokens[(task,)] = hidden.flatten(0, 1)
        return self._run(tokens, masks, 0, self.frozen_depth)

    def _run(self, tokens: Tokens, masks: dict[str, Tensor], start: int, stop: int) -> Tokens:
        """The layers from `start` to `stop`."""
        present = set().union(*tokens)
        for depth in range(start, stop):
            groups = [_among(group, present) for group in self.plan.layers[depth].groups]
            tokens = _regroup(tokens, list(filter(None, groups)), masks)
            for group, layer in zip(groups, self.layers[depth], strict=True):
                if group:
                    own = {task: masks[task] for task in group}
                    tokens[group] = self._run_layer(layer, depth, tokens[group], own)
        return tokens

    def _run_layer(self, layer: nn.Module, depth: int, hidden: Tensor, masks: dict[str, Tensor]) -> Tensor:
        """A layer on the tokens of a group, with the adapters of its tasks: (N, d) -> (N, d)."""
        adapters = {task: self.adapters[task] for task in masks if task in self.adapters}
        inputs = hidden, list(masks.values()), GroupHooks(adapters, depth, masks)
        if self.checkpoint_layers and torch.is_grad_enabled():
            return checkpoint(layer, *inputs, use_reentrant=False)
        return layer(*inputs)

    def pool(self, task: str, hidden: Tensor) -> Tensor:
        """The output of the task's pooler: (B, T, d) -> (B, d)."""
        return _copy_for(task, self.plan.pooler, self.poolers)(hidden)

    def task_encoder(self, task: str, without_adapter: bool = False) -> BertModel:
        """A task's way through the plan as a plain encoder; it has these weights, not copies.

        Raises ExportError if the task has an adapter, which a plain encoder cannot run, unless it is to be left out.
        """
        if task in self.adapters and not without_adapter:
            kind = type(self.adapters[task]).__name__
            raise ExportError(f"{task} has an adapter ({kind}), without which its encoder gives other hidden states")
        with torch.device("meta"):
            model = BertModel(self.config)
        model.embeddings = _copy_for(task, self.plan.embeddings, self.embeddings)
        layers = zip(self.plan.layers, self.layers, strict=True)
        model.layers = nn.ModuleList(_copy_for(task, level, copies) for level, copies in layers)
        model.pooler = _copy_for(task, self.plan.pooler, self.poolers)
        model.training = self.training  # the levels, which are this encoder's own, keep their modes
        return model

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


def _masks(batches: dict[str, Batch]) -> dict[str, Tensor]:
    return {task: batch.attention_mask[:, None, None, :] for task, batch in batches.items()}  # (B, 1, 1, T)


def _apart(flat: Tensor, group: Iterable[str], masks: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tokens of a group (N, ...) -> task -> (B, T, ...)."""
    return dict(zip(group, apart(flat, [masks[task] for task in group]), strict=True))


def _by_task(tokens: Tokens, masks: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tokens of each group -> task -> (B, T, d)."""
    parts: dict[str, Tensor] = {}
    for group, flat in tokens.items():
        parts |= _apart(flat, group, masks)
    return parts


def _regroup(tokens: Tokens, groups: list[Group], masks: dict[str, Tensor]) -> Tokens:
    """The tokens of all tasks in other groups; where the groups are the same nothing is copied."""
    if set(tokens) == set(groups):
        return tokens
    parts = _by_task(tokens, masks)
    return {group: together(parts[task] for task in group) for group in groups}


def _among(group: Group, present: set[str]) -> Group:
    return tuple(task for task in group if task in present)


class GroupHooks(LayerHooks):
    """The adapters of one depth in a layer that a group of tasks shares; each sees its own task's (B, T, d) alone.

    masks: task -> (B, 1, 1, T) of the whole group, in the order of its tokens (N, d).
    """

    def __init__(self, adapters: dict[str, Adapter], depth: int, masks: dict[str, Tensor]) -> None:
        self.adapters, self.depth, self.masks = adapters, depth, masks

    def after_attention(self, x: Tensor) -> Tensor:
        """`Adapter.after_attention` of each task: (N, d) -> (N, d)."""
        return self._through("after_attention", x)

    def after_feed_forward(self, x: Tensor) -> Tensor:
        """`Adapter.after_feed_forward` of each task: (N, d) -> (N, d)."""
        return self._through("after_feed_forward", x)

    def beside(self, residual: Tensor, hidden: Tensor, attended: Tensor) -> Tensor:
        """LN(h_att + FFN(h_att) + TS(h)) (003, equation 2): the sum without and with TS(h), each (N, d)."""
        for hook, read in (("beside", hidden), ("beside_feed_forward", attended)):
            if not self._works(hook):
                continue
            inputs = _apart(read, self.masks, self.masks)
            sums = _apart(residual, self.masks, self.masks)
            for task, adapter in self.adapters.items():
                term = getattr(adapter, hook)(self.depth, inputs[task], self.masks[task])
                if term is not None:
                    sums[task] = sums[task] + term
            residual = together(sums.values())
        return residual

    def after_layer(self, x: Tensor) -> Tensor:
        """`Adapter.after_layer` of each task: (N, d) -> (N, d)."""
        return self._through("after_layer", x)

    def _through(self, hook: str, x: Tensor) -> Tensor:
        if not self._works(hook):
            return x
        parts = _apart(x, self.masks, self.masks)
        for task, adapter in self.adapters.items():
            parts[task] = getattr(adapter, hook)(self.depth, parts[task])
        return together(parts.values())

    def _works(self, hook: str) -> bool:
        """Whether an adapter overrides the hook; else the tokens need not be taken apart."""
        return any(getattr(type(adapter), hook) is not getattr(Adapter, hook) for adapter in self.adapters.values())
