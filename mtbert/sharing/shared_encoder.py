"""The encoder under a sharing plan: one pass for a batch of several tasks.

At every depth each group of the plan runs its `BertLayer` once on the tokens of all its tasks together.
Source: paper 002, section 4 (1-bert, 3-bert, hybrid-bert); papers 001, equation 7, and 003, equation 2 (where a PAL
joins a layer).

N is the number of tokens, padding included, of all sequences that a group encodes together.
"""

import copy
from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mtbert.bert import Batch, BertModel, LayerHooks, apart, together, without_numbers
from mtbert.sharing.adapters import Adapter
from mtbert.sharing.plan import Group, Level, SharingPlan

Tokens = dict[Group, Tensor]  # (N, d) of each group
States = dict[str, Tensor]  # (B, T, d) of each task
Masks = dict[str, Tensor]  # (B, 1, 1, T) of each task, True = attend; of layers perhaps (B, h, T, T), added to scores


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
        self.config = base.config
        self.plan = plan
        self.embeddings = _copies(base.embeddings, plan.embeddings)
        self.layers = nn.ModuleList()
        for layer, level in zip(base.layers, plan.layers, strict=True):
            self.layers.append(_copies(layer, level))
        self.poolers = _copies(base.pooler, plan.pooler)
        self.adapters = nn.ModuleDict(adapters)

    def levels(self) -> dict[str, tuple[Level, nn.ModuleList]]:
        """Name (embeddings, layer 1, ..., pooler) -> its mode in the plan, and its copies."""
        modules = [self.embeddings, *self.layers, self.poolers]
        found = {}
        for (name, level), copies in zip(self.plan.levels.items(), modules, strict=True):
            found[name] = level, copies
        return found

    def forward(self, batches: dict[str, Batch], below: States | None = None) -> States:
        """Hidden states of the last layer, task -> (B, T, d); the tasks' batches may differ in B and T.

        below: what `below` gives, for the tasks where it is known already.
        """
        states = dict(below or {})
        others = {task: batch for task, batch in batches.items() if task not in states}
        if others:
            states |= self.below(others)
        return self._run(states, _masks(batches), self.frozen_depth, len(self.layers))

    def below(self, batches: dict[str, Batch]) -> States:
        """Hidden states below the layer `frozen_depth`, task -> (B, T, d): a function of the text alone."""
        states = self._embed(batches)
        return self._run(states, _masks(batches), 0, self.frozen_depth)

    @property
    def frozen_depth(self) -> int:
        """`SharingPlan.frozen_depth`, and 0 with adapters, which train in every layer."""
        return 0 if self.adapters else self.plan.frozen_depth

    def _embed(self, batches: dict[str, Batch]) -> States:
        """The outputs of the embeddings, task -> (B, T, d)."""
        level = self.plan.embeddings
        copies = self.embeddings
        masks = _masks(batches)
        words: States = {}
        for group, embed in _used(level, copies, batches).items():
            # One look-up for all tasks of a copy: its gradient is as large as the whole table.
            ids = together(batches[task].input_ids for task in group)
            words |= _by_task({group: embed.word(ids)}, masks)
        states: States = {}
        for task, batch in batches.items():
            embed = _copy_for(task, level, copies)
            states[task] = embed(batch.input_ids, batch.token_type_ids, words[task])
        return states

    def _run(self, states: States, masks: Masks, start: int, stop: int) -> States:
        """The layers from `start` to `stop`, on the states of all tasks: task -> (B, T, d)."""
        tokens: Tokens = {}
        for task, hidden in states.items():
            tokens[(task,)] = hidden.flatten(0, 1)
        in_layers = self._in_layers(masks) if start < stop else masks
        for depth in range(start, stop):
            level = self.plan.layers[depth]
            layers = _used(level, self.layers[depth], states)
            tokens = _regroup(tokens, layers, masks)
            for group, layer in layers.items():
                own = {task: masks[task] for task in group}
                in_order = [in_layers[task] for task in group]
                tokens[group] = self._run_layer(layer, depth, tokens[group], own, in_order)
        return _by_task(tokens, masks)

    def _in_layers(self, masks: Masks) -> Masks:
        """The masks with the relative positions of each task's embeddings, where the encoder has them."""
        found: Masks = {}
        for task, mask in masks.items():
            embed = _copy_for(task, self.plan.embeddings, self.embeddings)
            found[task] = embed.attention_mask(mask, mask.size(-1))
        return found

    def _run_layer(self, layer: nn.Module, depth: int, hidden: Tensor, masks: Masks, in_order: list[Tensor]) -> Tensor:
        """A layer on the tokens of a group, with the adapters of its tasks: (N, d) -> (N, d).

        masks: of the adapters, (B, 1, 1, T); in_order: those of the layer, in the order of the tokens.
        """
        by_task = dict(self.adapters.items())
        adapters = [by_task.get(task) for task in masks]
        hooks = LayerHooks(adapters, depth, list(masks.values()))
        if self.checkpoint_layers and torch.is_grad_enabled():
            return checkpoint(layer, hidden, in_order, hooks, use_reentrant=False)
        return layer(hidden, in_order, hooks)

    def pool(self, task: str, hidden: Tensor) -> Tensor:
        """The output of the task's pooler: (B, T, d) -> (B, d)."""
        pooler = _copy_for(task, self.plan.pooler, self.poolers)
        return pooler(hidden)

    def task_encoder(self, task: str, without_adapter: bool = False) -> BertModel:
        """A task's way through the plan as a plain encoder; it has these weights, not copies.

        Raises ExportError if the task has an adapter, which a plain encoder cannot run, unless it is to be left out.
        """
        if task in self.adapters and not without_adapter:
            kind = type(self.adapters[task]).__name__
            raise ExportError(f"{task} has an adapter ({kind}), without which its encoder gives other hidden states")
        with without_numbers():
            model = BertModel(self.config)
        model.embeddings = _copy_for(task, self.plan.embeddings, self.embeddings)
        model.layers = nn.ModuleList()
        for level, copies in zip(self.plan.layers, self.layers, strict=True):
            model.layers.append(_copy_for(task, level, copies))
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
    """The module for the first group of a level, and a copy of it for each of the others."""
    others = [copy.deepcopy(module) for _ in level.groups[1:]]
    return nn.ModuleList([module, *others])


def _used(level: Level, copies: nn.ModuleList, tasks: Collection[str]) -> dict[Group, nn.Module]:
    """The copies of a level that these tasks use, by which of the tasks use each."""
    used = {}
    for group, module in zip(level.groups, copies, strict=True):
        users = tuple(task for task in group if task in tasks)
        if users:
            used[users] = module
    return used


def _copy_for(task: str, level: Level, copies: nn.ModuleList) -> nn.Module:
    [module] = _used(level, copies, [task]).values()
    return module


def _masks(batches: dict[str, Batch]) -> Masks:
    masks: Masks = {}
    for task, batch in batches.items():
        masks[task] = batch.attention_mask[:, None, None, :]
    return masks


def _apart(tokens: Tensor, masks: Masks) -> States:
    """The tokens of a group (N, ...), whose masks these are -> task -> (B, T, ...)."""
    parts = apart(tokens, list(masks.values()))
    return dict(zip(masks, parts, strict=True))


def _by_task(tokens: Tokens, masks: Masks) -> States:
    """The tokens of each group -> task -> (B, T, d)."""
    parts: States = {}
    for group, flat in tokens.items():
        own = {task: masks[task] for task in group}
        parts |= _apart(flat, own)
    return parts


def _regroup(tokens: Tokens, groups: Collection[Group], masks: Masks) -> Tokens:
    """The tokens of all tasks in other groups; where the groups are the same nothing is copied."""
    if set(tokens) == set(groups):
        return tokens
    parts = _by_task(tokens, masks)
    regrouped: Tokens = {}
    for group in groups:
        regrouped[group] = together(parts[task] for task in group)
    return regrouped
