"""On top of the encoder: sentence embeddings, pair features, task heads.

Source: papers 000 (section 2: dropout, then linear, on a sentence embedding; section 3.3: pair embeddings summed),
001 (equations 3 to 5), 002 (section 4.1: mean squared error for similarity; section 4.2: pairs concatenated, with their
Hadamard product, or both sentences in one sequence, heads of several layers; section 5.3: dropout inside), 004 (section
4: layer norm of the embeddings, dropout after the head, heads that see other heads' outputs).

Symbols: B batch, T tokens, d hidden size, k sequences of an example (1 or 2), D features of a head, p tag features.
"""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from mtbert.bert import Dropout
from mtbert.config import RunConfig
from mtbert.data import TAGS, TASKS, Task
from mtbert.multitask.progressive_heads import UpstreamAttention, all_upstream, upstream_tasks
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

    A head of one layer starts as BERT's own layers do, from N(0, .02). One of several starts as torch's `nn.Linear`
    does, which is what the papers' heads are: a stack of layers drawn from N(0, .02) passes next to no signal on.
    """

    def __init__(self, task: Task, width: int, config: RunConfig) -> None:
        super().__init__()
        hidden = [config.head_width] * (config.head_layers - 1)
        widths = [width, *hidden, output_width(task)]
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(widths))
        self.dropout = Dropout(config.head_dropout)
        self.place = config.dropout_place
        if len(self.layers) == 1:
            only = self.layers[0]
            nn.init.normal_(only.weight, std=0.02)
            nn.init.zeros_(only.bias)

    def forward(self, features: Tensor) -> Tensor:
        """features (B, D) -> logits (B, classes) or (B,)."""
        x = features
        for i, linear in enumerate(self.layers):
            is_first = i == 0
            if not is_first:
                x = F.relu(x)
            if self.place == "inside" or (self.place == "before" and is_first):
                x = self.dropout(x)
            x = linear(x)
        if self.place == "after":
            x = self.dropout(x)
        return x.squeeze(-1) if x.size(-1) == 1 else x


def output_width(task: Task) -> int:
    """Number of logits of an example."""
    return task.num_classes if task.kind == "classes" else 1


class TaskHeads(nn.Module):
    """The head of every scored task, on embeddings (B, k, d) with k = 2 where a pair is encoded as two sequences.

    With `head_norm` all that reads the embeddings reads them after one layer norm that the tasks share. With
    `similarity` sigmoid_cosine a task of kind similarity has no head.

    `feeds` (004, section 4): a fed task's head sees its own features next to its upstream heads' logits on the same
    rows, or next to one context of them (`combine` attention). Upstream heads see their own upstream heads; their
    dropout is on in training mode. Where a pair is two sequences, an upstream head for single sentences gives logits
    of each.

    A fed task has a gradient of the weights of all heads above it. `upstream` says where this goes: nowhere (frozen),
    to `offsets`, which have a learning rate of their own (slow), or to the weights (free). The embeddings, and the
    layer norm, always receive their gradient.
    """

    def __init__(self, config: RunConfig, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        self.hidden_size = hidden_size
        self.upstreams = upstream_tasks(config.feeds)
        self.offsets: dict[str, Tensor] = {}  # name of an upstream head's weight -> zeros, see `add_offsets`
        self.norm = nn.LayerNorm(hidden_size, eps=1e-12) if config.head_norm else nn.Identity()
        attending = self.upstreams if config.combine == "attention" else ()
        self.by_task = nn.ModuleDict()
        for name in config.scored:
            if self._is_cosine(name):
                continue
            fed_width = config.head_width if name in attending else sum(self._fed_widths(name))
            width = self._own_width(name) + fed_width
            self.by_task[name] = TaskHead(TASKS[name], width, config)
        self.attention = nn.ModuleDict()  # drawn last: the heads' weights do not depend on it
        for name in attending:
            widths = self._fed_widths(name)
            self.attention[name] = UpstreamAttention(self._own_width(name), widths, config.head_width)

    def forward(self, task: str, embeddings: Tensor, tags: Tensor | None = None) -> Tensor:
        """A task's logits: (B, classes), or (B,) for binary tasks and numbers.

        embeddings (B, k, d); tags (B, p), with pos_features: TAG_COUNT columns for each sentence of the task.
        Raises ValueError if the embeddings or tags are of another shape.
        """
        B = len(embeddings)
        k = self.config.encodings(task)
        d = self.hidden_size
        p = TAG_COUNT * len(TASKS[task].sentence_columns)
        if embeddings.shape != (B, k, d):
            raise ValueError(f"embeddings of {task} are {tuple(embeddings.shape)}, not (B, {k}, {d})")
        if not self.config.pos_features:
            tags = None
        elif tags is None or tags.shape != (B, p):
            shape = None if tags is None else tuple(tags.shape)
            raise ValueError(f"tags of {task} are {shape}, not ({B}, {p})")
        embeddings = self.norm(embeddings)
        if self._is_cosine(task):
            h1, h2 = embeddings.unbind(1)  # (B, d) each
            return torch.sigmoid(F.cosine_similarity(h1, h2, dim=-1))  # 001, equation 5, without its factor 5
        return self._logits(task, embeddings, tags)

    def _logits(self, task: str, embeddings: Tensor, tags: Tensor | None = None, is_upstream: bool = False) -> Tensor:
        """Logits of a task's head, for its own rows or, upstream, for those of a task that it feeds."""
        is_pair = embeddings.size(1) == 2
        own = pair_features(embeddings, self.config.pairs) if is_pair else embeddings[:, 0]
        if tags is not None:
            own = torch.cat((own, tags.to(own.dtype)), dim=-1)  # (B, D)
        seen = [self._upstream(upstream, embeddings) for upstream in self.upstreams.get(task, ())]
        if task in self.attention:
            attention = self._module(f"attention.{task}", is_upstream)
            seen = [attention(own, seen)]
        head = self._module(f"by_task.{task}", is_upstream)
        return head(torch.cat((own, *seen), dim=-1))

    def _module(self, name: str, is_upstream: bool) -> Callable[..., Tensor]:
        """A module by its name; upstream, its weights receive no gradient, or their offsets do (see `upstream`)."""
        module = self.get_submodule(name)
        if not is_upstream or self.config.upstream == "free":
            return module
        weights = {}
        for key, parameter in module.named_parameters():
            weights[key] = parameter.detach()
            offset = self.offsets.get(f"{name}.{key}")
            if offset is not None:
                weights[key] = weights[key] + offset
        return lambda *args: functional_call(module, weights, args)

    def _upstream(self, upstream: str, embeddings: Tensor) -> Tensor:
        """Logits of an upstream head on another task's rows: (B, classes), or (B, k classes) sentence by sentence."""
        B, k, _ = embeddings.shape
        if k == 2 and not TASKS[upstream].is_pair:
            embeddings = embeddings.flatten(0, 1).unsqueeze(1)  # (2B, 1, d), a pair's sentences one after the other
        logits = self._logits(upstream, embeddings, is_upstream=True)
        return logits.reshape(B, -1)

    def _own_width(self, name: str) -> int:
        """D without what upstream heads add."""
        width = self.hidden_size
        if self.config.encodings(name) == 2:
            width = pair_width(self.config.pairs, width)
        if self.config.pos_features:
            width += TAG_COUNT * len(TASKS[name].sentence_columns)
        return width

    def _fed_widths(self, name: str) -> list[int]:
        """The numbers of logits that a task's upstream heads give for an example."""
        widths = []
        for upstream in self.upstreams.get(name, ()):
            task = TASKS[upstream]
            times = 1 if task.is_pair else self.config.encodings(name)
            widths.append(times * output_width(task))
        return widths

    def _is_cosine(self, name: str) -> bool:
        return TASKS[name].kind == "similarity" and self.config.similarity == "sigmoid_cosine"

    def add_offsets(self) -> None:
        """With `upstream` slow, note in `offsets` zeros for the weights of upstream heads.

        A fed task's gradient then goes to them, and they have a learning rate of their own: Adam's moments of the two
        gradients stay separate.
        """
        if self.config.upstream != "slow":
            return
        upstream: set[str] = set().union(*self.upstreams.values())
        for name, parameter in self.named_parameters():
            kind, task = name.split(".")[:2]  # by_task.sst.layers.0.weight, attention.sst.query.weight, norm.weight
            if kind != "norm" and task in upstream:
                self.offsets[name] = torch.zeros_like(parameter, requires_grad=True)

    @torch.no_grad()
    def apply_offsets(self) -> None:
        """After a step: add the offsets to their weights, and set them to zero again."""
        for name, offset in self.offsets.items():
            self.get_parameter(name).add_(offset)
            offset.zero_()

    def shared_parameters(self) -> dict[str, Tensor]:
        """Parameters that more than one of the training tasks trains, by name; an offset has the name of its weight.

        They are the layer norm's parameters, those of free upstream heads, and the offsets of slow ones.
        """
        tasks = self.config.tasks
        is_free = self.config.upstream == "free"
        users: Counter[str] = Counter()  # a head's task -> the number of tasks that train its weights or offsets
        for task in tasks:
            users.update(all_upstream(task, self.upstreams))
            if is_free:
                users[task] += 1
        shared: dict[str, Tensor] = {}
        for name, parameter in self.named_parameters():
            kind, head = name.split(".")[:2]
            trained = parameter if kind == "norm" or is_free else self.offsets.get(name)
            count = len(tasks) if kind == "norm" else users[head]
            if count > 1 and trained is not None:
                shared[name] = trained
        return shared
