"""minBERT: the BERT encoder, whole, from the embeddings upward; its sizes are in config.py.

Source: Devlin et al. 2018 (the architecture), Vaswani et al. 2017 (attention), paper 000, section 2 (the equations
that notebook 01 explains). Checkpoints of BERT, RoBERTa, DistilBERT and MPNet are read and written in the layout of
Hugging Face (hf_checkpoints.py).

Symbols: B batch, T tokens, d hidden size, h heads, d_k = d / h, d_i intermediate size, L layers; N tokens of several
packed batches, padding included.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtbert.bert.batch import Mask, check_shapes, pack, stacked, unpack
from mtbert.bert.config import BertConfig
from mtbert.bert.cpu_ops import Dropout, Linear, attend, linear
from mtbert.bert.hf_checkpoints import read_tensors, to_ours, write_checkpoint
from mtbert.bert.hub import check_folder, locate, present, write_tokenizer
from mtbert.bert.relative_positions import RELATIVE_BUCKETS, biased_mask, relative_buckets
from mtbert.bert.shapes import init_empty_weights
from mtbert.bert.streams import side_by_side
from mtbert.files import write_checksums


@dataclass
class BertOutput:
    """`last_hidden_state` (B, T, d) and `pooler_output` (B, d)."""

    last_hidden_state: Tensor
    pooler_output: Tensor


class BertEmbeddings(nn.Module):
    """Word + position + token-type embedding, then layer norm and dropout; and MPNet's table of relative positions.

    All layers read that table, so it is here, and shared, copied or frozen with the other tables of the input.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        d = config.hidden_size
        self.word = nn.Embedding(config.vocab_size, d, padding_idx=config.pad_token_id)
        self.position = nn.Embedding(config.max_position_embeddings, d)
        self.token_type = nn.Embedding(config.type_vocab_size, d) if config.type_vocab_size else None
        self.offset = config.position_offset
        self.norm = nn.LayerNorm(d, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)
        heads = config.num_attention_heads
        self.relative = nn.Embedding(RELATIVE_BUCKETS, heads) if config.has_relative_positions else None

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None = None, words: Tensor | None = None) -> Tensor:
        """input_ids, token_type_ids (B, T) -> (B, T, d); words (B, T, d): their embeddings, where known."""
        hidden = self.word(input_ids) if words is None else words  # (B, T, d)
        if token_type_ids is not None:
            hidden = hidden + self.token_type(token_type_ids)
        elif self.token_type is not None:  # one sentence: type 0 everywhere
            hidden = hidden + self.token_type.weight[0]
        positions = self.position.weight[self.offset : self.offset + input_ids.size(1)]  # (T, d)
        return self.dropout(self.norm(hidden + positions))

    def attention_mask(self, mask: Mask, T: int) -> Mask:
        """The mask of every layer: mask (B, 1, 1, T), True = attend, as it is, or with relative positions (B, h, T, T).

        Those are added to the scores, where the mask is False so that no weight is left. Computed once a batch.
        """
        if self.relative is None:
            return mask
        bias = self.relative(relative_buckets(T, self.relative.weight.device))  # (T, T, h)
        return biased_mask(bias.permute(2, 0, 1), mask)


class SelfAttention(nn.Module):
    """Multi-head attention: softmax(Q K' / sqrt(d_k) + mask) V in every head, the heads concatenated.

    inputs: the size of the hidden states that are its input, if not d.
    """

    def __init__(self, config: BertConfig, inputs: int | None = None) -> None:
        super().__init__()
        d = config.hidden_size
        inputs = inputs or d
        self.heads = config.num_attention_heads
        self.query = Linear(inputs, d)
        self.key = Linear(inputs, d)
        self.value = Linear(inputs, d)
        self.dropout = config.attention_probs_dropout_prob

    def forward(self, hidden: Tensor, mask: Mask | list[Tensor] = None) -> Tensor:
        """hidden (B, T, d), mask (`Mask`) -> (B, T, d); packed batches as in `BertLayer`."""
        projected = self.project(hidden)  # (..., 3, h, d_k)
        if not isinstance(mask, list):
            return self.mix(projected, mask)
        masks = stacked(mask) if hidden.device.type == "cuda" else mask  # fewer kernels
        parts = unpack(projected, masks)  # a token attends within its own sequence, so batch by batch
        return pack(self.mix(part, own) for part, own in zip(parts, masks, strict=True))

    def project(self, hidden: Tensor) -> Tensor:
        """Q, K and V of every token and head in one matrix product: (..., d) -> (..., 3, h, d_k)."""
        parts = (self.query, self.key, self.value)
        weight = torch.cat([part.weight for part in parts])  # (3d, d)
        bias = torch.cat([part.bias for part in parts])  # (3d,)
        projected = linear(hidden, weight, bias)  # (..., 3d)
        return projected.unflatten(-1, (3, self.heads, -1))

    def mix(self, projected: Tensor, mask: Mask) -> Tensor:
        """The values of one batch, weighted: projected (B, T, 3, h, d_k), mask (`Mask`) -> (B, T, d)."""
        q, k, v = (part.transpose(1, 2) for part in projected.unbind(2))  # (B, h, T, d_k)
        dropout = self.dropout if self.training else 0.0
        context = attend(q, k, v, mask, dropout)  # softmax(Q K' / sqrt(d_k) + mask) V: (B, h, T, d_k)
        return context.transpose(1, 2).flatten(2)  # (B, T, d)


class LayerHooks:
    """The adapters of a layer that has packed batches: each changes the tokens of its own batch alone.

    adapters: one for each batch, or None, in the order of the tokens; masks: of each batch, (B, 1, 1, T), True =
    attend. An adapter has a function for each place where it works, and None for the others (`mtbert.sharing.Adapter`).
    """

    def __init__(self, adapters: Sequence[nn.Module | None] = (), depth: int = 0, masks: Sequence[Tensor] = ()) -> None:
        self.adapters = adapters
        self.depth = depth
        self.masks = list(masks)

    def change(self, place: str, x: Tensor) -> Tensor:
        """x as the adapters change it at a place: (N, d) -> (N, d)."""
        hooks = self._hooks(place)
        if not hooks:
            return x
        parts = unpack(x, self.masks)  # (B, T, d) of each batch
        jobs = [functools.partial(hook, self.depth, parts[i]) for i, hook in hooks.items()]
        for i, changed in zip(hooks, side_by_side(jobs, [x]), strict=True):
            parts[i] = changed
        return pack(parts)

    def add(self, place: str, residual: Tensor, x: Tensor) -> Tensor:
        """The residual plus the adapters' terms TS(x) at a place: (N, d), (N, d) -> (N, d)."""
        hooks = self._hooks(place)
        if not hooks:
            return residual
        inputs = unpack(x, self.masks)
        jobs = [functools.partial(hook, self.depth, inputs[i], self.masks[i]) for i, hook in hooks.items()]
        terms = side_by_side(jobs, [x, *self.masks])
        sums = unpack(residual, self.masks)
        for i, term in zip(hooks, terms, strict=True):
            sums[i] = sums[i] + term
        return pack(sums)

    def _hooks(self, place: str) -> dict[int, Callable]:
        """Number of a batch -> the function that its adapter has for the place."""
        hooks = {i: getattr(adapter, place, None) for i, adapter in enumerate(self.adapters)}
        return {i: hook for i, hook in hooks.items() if hook is not None}


NO_HOOKS = LayerHooks()


class BertLayer(nn.Module):
    """Attention, add & norm, feed-forward, add & norm (paper 001, equations 1 and 2)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        d, d_i = config.hidden_size, config.intermediate_size
        self.attention = SelfAttention(config)
        self.attention_output = Linear(d, d)  # W^O
        self.attention_norm = nn.LayerNorm(d, eps=config.layer_norm_eps)
        self.feed_forward_in = Linear(d, d_i)
        self.feed_forward_out = Linear(d_i, d)
        self.output_norm = nn.LayerNorm(d, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, mask: Mask | list[Tensor] = None, hooks: LayerHooks = NO_HOOKS) -> Tensor:
        """hidden (B, T, d), mask (`Mask`) -> (B, T, d).

        Packed batches, such as one of each task: hidden (N, d) and a list of their masks -> (N, d). Attention is
        computed batch by batch, all else on the N tokens at once.
        """
        attended = self.attention_output(self.attention(hidden, mask))
        attended = hooks.change("after_attention", attended)
        attended = self.attention_norm(hidden + self.dropout(attended))  # MHLN(h), equation 1
        fed = F.gelu(self.feed_forward_in(attended))  # (B, T, d_i)
        fed = self.feed_forward_out(fed)  # (B, T, d)
        fed = hooks.change("after_feed_forward", fed)
        residual = attended + self.dropout(fed)
        residual = hooks.add("parallel", residual, hidden)
        residual = hooks.add("parallel_feed_forward", residual, attended)
        return hooks.change("after_layer", self.output_norm(residual))  # BL(h), equation 2


class Pooler(nn.Linear):
    """tanh(W h_[CLS] + b)."""

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden (B, T, d) -> (B, d)."""
        return torch.tanh(super().forward(hidden[:, 0]))


class BertModel(nn.Module):
    """The encoder: embeddings, L layers, and the pooler."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.source: Path | None = None  # the checkpoint that it was read from
        self.embeddings = BertEmbeddings(config)
        self.layers = nn.ModuleList(BertLayer(config) for _ in range(config.num_hidden_layers))
        self.pooler = Pooler(config.hidden_size, config.hidden_size)
        self.apply(self._initialize)

    def _initialize(self, module: nn.Module) -> None:
        """N(0, initializer_range) weights, zero biases: the initialization of the original BERT."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            nn.init.zeros_(module.weight[module.padding_idx])

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, token_type_ids: Tensor | None = None
    ) -> BertOutput:
        """Encode a batch that is padded on the right.

        input_ids (B, T) token ids; attention_mask (B, T), 1 = token, 0 = padding, default all ones;
        token_type_ids (B, T), 0 = first sentence, 1 = second, default all zeros.
        Raises ValueError for a sequence longer than the position table, ids outside the vocabulary, and a mask or
        token types of another shape.
        """
        self._check(input_ids, attention_mask, token_type_ids)
        mask = None if attention_mask is None else attention_mask[:, None, None, :].bool()  # (B, 1, 1, T)
        hidden = self.embeddings(input_ids, token_type_ids)  # (B, T, d)
        mask = self.embeddings.attention_mask(mask, input_ids.size(1))
        for layer in self.layers:
            hidden = layer(hidden, mask)
        return BertOutput(hidden, self.pooler(hidden))

    def _check(self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None) -> None:
        config = self.config
        if input_ids.dim() != 2 or input_ids.numel() == 0:
            raise ValueError(f"input_ids must be (batch, tokens) and not empty; got shape {tuple(input_ids.shape)}")
        check_shapes(input_ids, attention_mask, token_type_ids)
        check_sizes(config, input_ids, token_type_ids)
        if input_ids.device.type != "cpu":  # on a GPU a comparison would wait for the device in every step
            return
        _check_ids("input_ids", input_ids, config.vocab_size)
        if token_type_ids is not None:
            _check_ids("token_type_ids", token_type_ids, config.type_vocab_size)

    @classmethod
    def from_pretrained(cls, folder_or_name: str | Path = "minilm") -> "BertModel":
        """Load a checkpoint: a folder, 'minilm' (packaged), or a name on the hub; in evaluation mode.

        A checkpoint without a pooler gets a random one and a warning. Raises CheckpointError if it cannot be found or
        another tensor is missing or of another shape.
        """
        folder = locate(folder_or_name)
        check_folder(folder)
        config = BertConfig.from_json(folder / "config.json")
        with init_empty_weights():  # shapes are compared before there is memory for them
            expected = cls(config).state_dict()
        found = to_ours(read_tensors(folder), expected, folder, config.model_type)
        model = cls(config)
        model.source = folder
        model.load_state_dict(found, strict=False)  # all but, perhaps, the pooler
        return model.eval()

    def save_pretrained(
        self, folder: str | Path, tokenizer: str | Path | None = None, max_length: int | None = None
    ) -> None:
        """Write config.json, model.safetensors and the tokenizer for transformers (its DistilBERT ignores our pooler).

        tokenizer: the encoder whose tokenizer it is; default: the checkpoint that this model was read from. max_length:
        tokens to which it truncates, where it is told to; default: all positions of the encoder. Raises CheckpointError
        for a tokenizer that cannot be found.
        """
        folder = Path(folder)
        source = self.source if tokenizer is None else locate(tokenizer)  # first: nothing is written where it fails
        write_checkpoint(folder, self.state_dict(), asdict(self.config))
        write_tokenizer(source, folder, max_length or self.config.positions)
        write_checksums(folder, present(folder))


def check_sizes(config: BertConfig, input_ids: Tensor, token_type_ids: Tensor | None) -> None:
    """Raises ValueError for a sequence that is too long for an encoder, and for token types that it does not have."""
    T = input_ids.size(1)
    if config.positions < T:
        raise ValueError(
            f"sequence of {T} tokens, but the encoder has {config.positions} positions; truncate the input "
            "(RunConfig.max_length)"
        )
    if token_type_ids is not None and not config.type_vocab_size:
        raise ValueError("token_type_ids are given, but the encoder has no token types; leave them out")


def _check_ids(name: str, ids: Tensor, size: int) -> None:
    lowest, highest = int(ids.min()), int(ids.max())
    if lowest < 0 or highest >= size:
        raise ValueError(f"{name} hold values from {lowest} to {highest}; valid are 0 to {size - 1}")


@functools.cache
def part_sizes(config: BertConfig) -> dict[str, int]:
    """Numbers of parameters of the embeddings, of one layer, and of the pooler."""
    with init_empty_weights():
        model = BertModel(replace(config, num_hidden_layers=1))
    parts = {"embeddings": model.embeddings, "layer": model.layers[0], "pooler": model.pooler}
    sizes = {}
    for name, part in parts.items():
        sizes[name] = sum(parameter.numel() for parameter in part.parameters())
    return sizes
