"""The encoder under a sharing plan: one pass for a batch of several tasks.

At every depth each group of the plan runs its `BertLayer` once, on the packed tokens of all its tasks.
Source: paper 002, section 4 (1-bert, 3-bert, hybrid-bert); papers 001, equation 7, and 003, equation 2 (where a PAL
joins a layer).

N is the number of tokens, padding included, of all sequences that a group encodes in one call.
"""

import copy
from collections.abc import Collection, Iterable
from functools import partial

from torch import Tensor, nn

from mtbert.bert import Batch, BertModel, LayerHooks, check_sizes, init_empty_weights, pack, side_by_side, unpack
from mtbert.sharing.adapters import Adapter
from mtbert.sharing.plan import Group, Level, PlanError, SharingPlan

States = dict[str, Tensor]  # hidden states (B, T, d) of each task


class Copies(nn.ModuleList):
    """One level of a plan: the module for the first of its groups, and a copy of it for each of the others."""

    def __init__(self, module: nn.Module, level: Level) -> None:
        others = [copy.deepcopy(module) for _ in level.groups[1:]]
        super().__init__([module, *others])
        self.level = level

    @property
    def by_group(self) -> dict[Group, nn.Module]:
        """The copy of each group of tasks."""
        return dict(zip(self.level.groups, self, strict=True))

    def of(self, task: str) -> nn.Module:
        """The copy that a task uses."""
        return next(module for group, module in self.by_group.items() if task in group)

    def used_by(self, tasks: Collection[str]) -> dict[Group, nn.Module]:
        """The users among these tasks of each copy -> the copy."""
        used = {}
        for group, module in self.by_group.items():
            users = tuple(task for task in group if task in tasks)
            if users:
                used[users] = module
        return used


def _check_known(tasks: Iterable[str], plan: SharingPlan) -> None:
    """Raises PlanError for a task that the plan does not have."""
    if unknown := set(tasks) - {*plan.tasks}:
        raise PlanError(f"the plan has no task {', '.join(sorted(unknown))}; it has {', '.join(plan.tasks)}")


class SharedEncoder(nn.Module):
    """The encoder's levels, each in as many copies as its plan has groups; all copies start from the same weights.

    Frozen levels take no gradient, nor does what is frozen in `base`. It takes over the modules of `base` and changes
    them: two encoders need one each. adapters: task -> its adapter. Raises PlanError for a plan of another number of
    layers, and for an adapter of a task that the plan does not have.
    """

    def __init__(self, base: BertModel, plan: SharingPlan, adapters: dict[str, Adapter]) -> None:
        if len(plan.layers) != len(base.layers):
            raise PlanError(
                f"the plan has {len(plan.layers)} layers, the encoder {len(base.layers)}; `SharingPlan.parse` takes "
                "num_layers"
            )
        _check_known(adapters, plan)
        super().__init__()
        self.config = base.config
        self.source = base.source
        self.plan = plan
        self.embeddings = Copies(base.embeddings, plan.embeddings)
        self.layers = nn.ModuleList(map(Copies, base.layers, plan.layers))
        self.poolers = Copies(base.pooler, plan.pooler)
        self.adapters = nn.ModuleDict(adapters)
        for copies in self.levels().values():
            if copies.level.is_frozen:
                copies.requires_grad_(False)

    def forward(self, batches: dict[str, Batch], prefix: States | None = None) -> States:
        """Hidden states of the last layer, task -> (B, T, d); the tasks' batches may differ in B and T.

        prefix: what `prefix_states` gives, for the tasks where that is at hand. Raises PlanError for a task that the
        plan does not have, ValueError for sequences that are too long and for token types that the encoder lacks.
        """
        _check_known(batches, self.plan)
        states = dict(prefix or {})
        others = {task: batch for task, batch in batches.items() if task not in states}
        if others:
            states |= self.prefix_states(others)
        return self._run(states, batches, self.frozen_depth, len(self.layers))

    def prefix_states(self, batches: dict[str, Batch]) -> States:
        """Hidden states that enter layer `frozen_depth`, task -> (B, T, d): a function of the text alone."""
        return self._run(self._embed(batches), batches, 0, self.frozen_depth)

    @property
    def frozen_depth(self) -> int:
        """`SharingPlan.frozen_depth`, and 0 with adapters, which train in every layer."""
        return 0 if self.adapters else self.plan.frozen_depth

    def _embed(self, batches: dict[str, Batch]) -> States:
        """The outputs of the embeddings, task -> (B, T, d)."""
        for batch in batches.values():
            check_sizes(self.config, batch.input_ids, batch.token_type_ids)
        words: States = {}
        for tasks, embed in self.embeddings.used_by(batches).items():
            # One look-up for all tasks of a copy: its gradient is as large as the whole table.
            ids = [batches[task].input_ids for task in tasks]
            parts = unpack(embed.word(pack(ids)), ids)
            words |= zip(tasks, parts, strict=True)
        states: States = {}
        for task, batch in batches.items():
            embed = self.embeddings.of(task)
            states[task] = embed(batch.input_ids, batch.token_type_ids, words[task])
        return states

    def _run(self, states: States, batches: dict[str, Batch], start: int, stop: int) -> States:
        """The layers from `start` to `stop`, on the states of all tasks: task -> (B, T, d).

        At each depth every copy of the layer runs once, on the packed tokens of all tasks that share it.
        """
        masks = self._masks(batches) if start < stop else {}
        for depth in range(start, stop):
            jobs = []
            for tasks, layer in self.layers[depth].used_by(states).items():
                jobs.append(partial(self._run_copy, layer, depth, tasks, states, batches, masks))
            inputs = [*states.values(), *masks.values()]
            states = {}
            for outputs in side_by_side(jobs, inputs):
                states |= outputs
        return states

    def _run_copy(
        self,
        layer: nn.Module,
        depth: int,
        tasks: Group,
        states: States,
        batches: dict[str, Batch],
        masks: dict[str, Tensor],
    ) -> States:
        """One copy of the layer at a depth, on the tokens of its tasks; all of it is on one branch of a graph."""
        own_masks = [masks[task] for task in tasks]
        hidden = pack(states[task] for task in tasks)  # (N, d)
        hidden = layer(hidden, own_masks, self._hooks(depth, tasks, batches))
        parts = unpack(hidden, own_masks)  # (B, T, d) of each task
        return dict(zip(tasks, parts, strict=True))

    def _masks(self, batches: dict[str, Batch]) -> dict[str, Tensor]:
        """The mask of each task's attention in all layers; in MPNet it holds relative positions."""
        masks = {}
        for task, batch in batches.items():
            embed = self.embeddings.of(task)
            masks[task] = embed.attention_mask(batch.mask, batch.input_ids.size(1))
        return masks

    def _hooks(self, depth: int, tasks: Group, batches: dict[str, Batch]) -> LayerHooks:
        """The tasks' adapters in a layer; their attention sees padding alone, no relative positions."""
        adapters = dict(self.adapters.items())
        padding = [batches[task].mask for task in tasks]
        return LayerHooks([adapters.get(task) for task in tasks], depth, padding)

    def levels(self) -> dict[str, Copies]:
        """Name (embeddings, layer 1, ..., pooler) -> the copies of a level."""
        return dict(zip(self.plan.levels, [self.embeddings, *self.layers, self.poolers], strict=True))

    def pool(self, task: str, hidden: Tensor) -> Tensor:
        """The output of the task's pooler: (B, T, d) -> (B, d). Raises PlanError as `forward` does."""
        _check_known([task], self.plan)
        return self.poolers.of(task)(hidden)

    def task_encoder(self, task: str) -> BertModel:
        """A task's way through the plan as a plain encoder; it has these weights, not copies.

        It is without the task's adapter, which a plain encoder cannot run: where there is one, the hidden states
        differ from those of `forward`. Raises PlanError as `forward` does.
        """
        _check_known([task], self.plan)
        with init_empty_weights():
            model = BertModel(self.config)
        model.source = self.source
        model.embeddings = self.embeddings.of(task)
        model.layers = nn.ModuleList(copies.of(task) for copies in self.layers)
        model.pooler = self.poolers.of(task)
        model.training = self.training  # the levels, which are this encoder's own, keep their modes
        return model

    def train(self, mode: bool = True) -> "SharedEncoder":
        """Training mode; frozen levels stay in evaluation mode, without dropout."""
        super().train(mode)
        for copies in self.levels().values():
            if copies.level.is_frozen:
                copies.eval()
        return self
