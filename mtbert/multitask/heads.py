"""On top of the encoder: sentence embeddings, pair features, task heads.

Source: papers 000 (section 2: dropout, then linear, on a sentence embedding; section 3.3: pair embeddings summed),
001 (equations 3 to 5), 002 (section 4.2: pairs concatenated, with their Hadamard product, or both sentences in one
sequence; heads of several layers with dropout inside; mean squared error for similarity), 004 (section 4: layer norm
of the embeddings, dropout after the head, heads that see other heads' outputs).

Symbols: B batch, T tokens, d hidden size, k sentences encoded apart (1 or 2), D features of a head, p tag features.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtbert.bert import Dropout
from mtbert.config import RunConfig
from mtbert.data import TAGS, TASKS, Task
from mtbert.multitask.progressive_heads import UpstreamAttention, all_upstream, detached, upstream_tasks
from mtbert.pairs import pair_features, pair_width

TAG_COUNT = len(TAGS)  # shares of part-of-speech tags of one sentence


def sentence_embedding(last_hidden_state: Tensor, attention_mask: Tensor, pooling: str) -> Tensor:
    """Hidden states (B, T, d), mask (B, T) -> (B, d): the [CLS] state ('cls') or the mean over the tokens ('mean')."""
    if pooling == "cls":
        return last_hidden_state[:, 0]
    weights = attention_mask.unsqueeze(-1).to(last_hidden_state.dtype)  # (B, T, 1)
    return (last_hidden_state * weights).sum(1) / weights.sum(1)


class TaskHead(nn.Module):
    """`head_layers` linear layers, ReLU between: (B, D) -> logits (B, classes), or (B,) for binary tasks and numbers.

    Dropout is applied before the head, before each of its linear layers ('inside'), or on the logits ('after').
    """

    def __init__(self, task: Task, width: int, config: RunConfig) -> None:
        super().__init__()
        widths = [width, *[config.head_width] * (config.head_layers - 1), output_width(task)]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        self.dropout = Dropout(config.head_dropout)
        self.place = config.dropout_place
        for linear in self.layers:
            nn.init.normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)

    def forward(self, features: Tensor) -> Tensor:
        """features (B, D) -> logits (B, classes) or (B,)."""
        x = features
        for i, linear in enumerate(self.layers):
            x = F.relu(x) if i else x
            if self.place == "inside" or (self.place == "before" and i == 0):
                x = self.dropout(x)
            x = linear(x)
        x = self.dropout(x) if self.place == "after" else x
        return x.squeeze(-1) if x.size(-1) == 1 else x


def output_width(task: Task) -> int:
    """Number of logits of an example."""
    return task.num_classes if task.kind == "classes" else 1


class TaskHeads(nn.Module):
    """The head of every scored task, on embeddings (B, k, d) with k = 2 where a pair's sentences are encoded apart.

    With `head_norm` all that reads the embeddings reads them after one layer norm that the tasks share. With
    `similarity` sigmoid_cosine a task of kind similarity has no head.

    `feeds` (004, section 4): a fed task's head sees its own features next to its upstream heads' logits on the same
    rows, or next to one context of them (`combine` attention). Upstream heads see their own upstream heads; they drop
    out as the module's mode says. Where sentences are encoded apart, an upstream head for single sentences gives
    logits of each. `upstream` says where a fed task's gradient of the weights of the heads above it, near or far,
    goes: nowhere (frozen), to `offsets`, which have a learning rate of their own (slow), or to the weights (free). The
    embeddings, and the layer norm, always receive all.
    """

    def __init__(self, config: RunConfig, hidden_size: int) -> None:
        super().__init__()
        self.config, self.hidden_size = config, hidden_size
        self.upstreams = upstream_tasks(config.feeds)
        self.offsets: dict[str, Tensor] = {}  # name of an upstream head's weight -> zeros, see `add_offsets`
        self.norm = nn.LayerNorm(hidden_size, eps=1e-12) if config.head_norm else nn.Identity()
        self.by_task = nn.ModuleDict()
        for name in config.scored:
            if not self._is_cosine(name):
                widths = [self._own_width(name), *self._fed_widths(name)]
                if name in self.upstreams and config.combine == "attention":
                    widths[1:] = [config.head_width]
                self.by_task[name] = TaskHead(TASKS[name], sum(widths), config)
        self.attention = nn.ModuleDict()  # drawn last: the heads' weights do not depend on it
        for name in self.upstreams if config.combine == "attention" else ():
            widths = self._fed_widths(name)
            self.attention[name] = UpstreamAttention(self._own_width(name), widths, config.head_width)

    def forward(self, task: str, embeddings: Tensor, tags: Tensor | None = None) -> Tensor:
        """A task's logits: (B, classes), or (B,) for binary tasks and numbers.

        embeddings (B, k, d); tags (B, p), with pos_features: TAG_COUNT columns for each sentence of the task.
        Raises ValueError if the embeddings or tags are of another shape.
        """
        B = len(embeddings)
        k = self.config.encodings(task)
        p = TAG_COUNT * len(TASKS[task].sentence_columns)
        if embeddings.shape != (B, k, self.hidden_size):
            raise ValueError(f"embeddings of {task} are {tuple(embeddings.shape)}, not (B, {k}, {self.hidden_size})")
        if not self.config.pos_features:
            tags = None
        elif tags is None or tags.shape != (B, p):
            raise ValueError(f"tags of {task} are {tags if tags is None else tuple(tags.shape)}, not ({B}, {p})")
        embeddings = self.norm(embeddings)
        if self._is_cosine(task):  # 001, equation 5, without its factor 5
            return torch.sigmoid(F.cosine_similarity(*embeddings.unbind(1), dim=-1))
        return self._logits(task, embeddings, tags, is_upstream=False)

    def _logits(self, task: str, embeddings: Tensor, tags: Tensor | None, is_upstream: bool) -> Tensor:
        """Logits of a task's head, for its own rows or, upstream, for those of a task that it feeds."""

        def module(name: str) -> Callable[..., Tensor]:
            whole = self.get_submodule(name)
            if not is_upstream or self.config.upstream == "free":
                return whole
            prefix = f"{name}."
            offsets = {n.removeprefix(prefix): offset for n, offset in self.offsets.items() if n.startswith(prefix)}
            return detached(whole, offsets)

        own = pair_features(embeddings, self.config.pairs) if embeddings.size(1) == 2 else embeddings[:, 0]
        own = own if tags is None else torch.cat((own, tags.to(own.dtype)), dim=-1)  # (B, D)
        seen = [self._upstream(upstream, embeddings, tags) for upstream in self.upstreams.get(task, ())]
        if task in self.attention:
            seen = [module(f"attention.{task}")(own, seen)]
        return module(f"by_task.{task}")(torch.cat((own, *seen), dim=-1) if seen else own)

    def _upstream(self, upstream: str, embeddings: Tensor, tags: Tensor | None) -> Tensor:
        """Logits of an upstream head on another task's rows: (B, classes), or (B, k classes) sentence by sentence.

        A head gets as many blocks of tags as it was made for: its own sentence's, or, where a pair is one sequence,
        the mean of both sentences' for a head of single sentences; a single sentence's block twice for a pair's head.
        """
        B, k, _ = embeddings.shape
        if k == 2 and not TASKS[upstream].is_pair:
            embeddings = embeddings.flatten(0, 1).unsqueeze(1)  # (2B, 1, d), a pair's sentences one after the other
            tags = None if tags is None else tags.reshape(2 * B, TAG_COUNT)
        elif tags is not None:
            blocks = tags.unflatten(1, (-1, TAG_COUNT))
            if not TASKS[upstream].is_pair:
                tags = blocks.mean(1)
            elif blocks.size(1) == 1:
                tags = tags.repeat(1, 2)
        return self._logits(upstream, embeddings, tags, is_upstream=True).reshape(B, -1)

    def _own_width(self, name: str) -> int:
        d = self.hidden_size
        task = TASKS[name]
        width = pair_width(self.config.pairs, d) if self.config.encodings(name) == 2 else d
        return width + TAG_COUNT * len(task.sentence_columns) * self.config.pos_features

    def _fed_widths(self, name: str) -> list[int]:
        upstreams = [TASKS[upstream] for upstream in self.upstreams.get(name, ())]
        return [output_width(task) * (1 if task.is_pair else self.config.encodings(name)) for task in upstreams]

    def _is_cosine(self, name: str) -> bool:
        return TASKS[name].kind == "similarity" and self.config.similarity == "sigmoid_cosine"

    def add_offsets(self) -> dict[str, Tensor]:
        """With `upstream` slow, zeros beside the weights of upstream heads, by the weights' names; else none.

        A fed task's gradient then goes to them. The trainer gives them a learning rate of their own, adds them to the
        weights after every step and sets them to zero again: Adam's moments of the two gradients stay separate.
        """
        if self.config.upstream == "slow":
            upstream = set().union(*(all_upstream(task, self.upstreams) for task in self.upstreams))
            prefixes = tuple(f"{kind}.{name}." for name in upstream for kind in ("by_task", "attention"))
            weights = {name: p for name, p in self.named_parameters() if name.startswith(prefixes)}
            self.offsets = {name: torch.zeros_like(p, requires_grad=True) for name, p in weights.items()}
        return self.offsets

    def shared_parameters(self) -> dict[str, Tensor]:
        """What more than one of the training tasks trains, by name; of an offset the name is that of its weight.

        They are the layer norm's parameters, those of free upstream heads, and the offsets of slow ones.
        """
        tasks = self.config.tasks
        parameters = dict(self.named_parameters())
        is_free = self.config.upstream == "free"
        if not is_free:
            parameters = {name: p for name, p in parameters.items() if name.startswith("norm.")} | self.offsets
        shared = ["norm."] if len(tasks) > 1 else []
        for name in self.by_task:
            users = [task for task in tasks if name in all_upstream(task, self.upstreams)]
            if is_free and name in tasks:
                users.append(name)
            if len(users) > 1:
                shared += [f"by_task.{name}.", f"attention.{name}."]
        return {name: p for name, p in parameters.items() if name.startswith(tuple(shared))}
