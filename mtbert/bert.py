"""minBERT: the BERT encoder, whole, in one file.

Source: Devlin et al. 2018 (the architecture), Vaswani et al. 2017 (attention), paper 000, section 2 (the equations
that notebook 01 walks through). Checkpoints are read and written in the Hugging Face layout, so that
`transformers.BertModel` and this module exchange weights without a conversion step.

Symbols: B batch, T tokens, d hidden size, h heads, d_k = d / h, d_i intermediate size, L layers.
"""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mtbert.hub import CheckpointError, locate


@dataclass(frozen=True)
class BertConfig:
    """Sizes of the encoder, under the names of a Hugging Face `config.json`; the defaults are bert-base-uncased.

    Raises ValueError if a size is not positive or the heads do not divide the hidden size.
    """

    vocab_size: int = 30522
    hidden_size: int = 768  # d
    num_hidden_layers: int = 12  # L
    num_attention_heads: int = 12  # h
    intermediate_size: int = 3072  # d_i
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    initializer_range: float = 0.02
    pad_token_id: int = 0
    hidden_act: str = "gelu"

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                 "max_position_embeddings", "type_vocab_size")  # fmt: skip
        for name in sizes:
            size = getattr(self, name)
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"{name} is {size!r}; it must be an integer of at least 1")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) does not divide hidden_size ({self.hidden_size})"
            )
        if self.hidden_act != "gelu":
            raise ValueError(f"hidden_act is {self.hidden_act!r}; minBERT implements 'gelu' only")

    @classmethod
    def from_json(cls, path: Path) -> "BertConfig":
        """Read a Hugging Face `config.json`; keys that the encoder does not need are passed over."""
        try:
            values = json.loads(path.read_text(encoding="utf8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: not a readable config.json ({error})") from error
        if not isinstance(values, dict):
            raise CheckpointError(f"{path}: holds no JSON object")
        if values.get("model_type", "bert") != "bert":
            raise CheckpointError(f"{path}: model_type is {values['model_type']!r}; this encoder reads 'bert'")
        if values.get("position_embedding_type", "absolute") != "absolute":
            raise CheckpointError(f"{path}: only absolute position embeddings are implemented")
        try:
            return cls(**{field.name: values[field.name] for field in fields(cls) if field.name in values})
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: {error}") from error


@dataclass
class BertOutput:
    """`last_hidden_state` (B, T, d) and `pooler_output` (B, d)."""

    last_hidden_state: Tensor
    pooler_output: Tensor


class BertEmbeddings(nn.Module):
    """Word + position + token-type embedding, then layer norm and dropout."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        d = config.hidden_size
        self.word = nn.Embedding(config.vocab_size, d, padding_idx=config.pad_token_id)
        self.position = nn.Embedding(config.max_position_embeddings, d)
        self.token_type = nn.Embedding(config.type_vocab_size, d)
        self.norm = nn.LayerNorm(d, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """input_ids, token_type_ids (B, T) -> (B, T, d)."""
        if token_type_ids is None:
            types = self.token_type.weight[0]  # (d), one sentence: type 0 everywhere
        else:
            types = self.token_type(token_type_ids)  # (B, T, d)
        positions = self.position.weight[: input_ids.size(1)]  # (T, d)
        return self.dropout(self.norm(self.word(input_ids) + types + positions))


class SelfAttention(nn.Module):
    """Multi-head attention: softmax(Q K' / sqrt(d_k) + mask) V in every head, the heads side by side."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        d = config.hidden_size
        self.heads = config.num_attention_heads
        self.query = nn.Linear(d, d)
        self.key = nn.Linear(d, d)
        self.value = nn.Linear(d, d)
        self.dropout = config.attention_probs_dropout_prob

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """hidden (B, T, d) -> Q, K, V, each (B, h, T, d_k)."""
        B, T, d = hidden.shape
        shape = (B, T, self.heads, d // self.heads)
        q, k, v = (linear(hidden).view(shape).transpose(1, 2) for linear in (self.query, self.key, self.value))
        return q, k, v

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """hidden (B, T, d), mask (B, 1, 1, T), True = attend -> (B, T, d)."""
        q, k, v = self.project(hidden)
        dropout = self.dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)  # (B, h, T, d_k)
        return context.transpose(1, 2).flatten(2)  # (B, T, d)


class BertLayer(nn.Module):
    """Attention, add & norm, feed-forward, add & norm (paper 001, equations 1 and 2)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        d, d_i = config.hidden_size, config.intermediate_size
        self.attention = SelfAttention(config)
        self.attention_output = nn.Linear(d, d)  # W^O
        self.attention_norm = nn.LayerNorm(d, eps=config.layer_norm_eps)
        self.feed_forward_in = nn.Linear(d, d_i)
        self.feed_forward_out = nn.Linear(d_i, d)
        self.output_norm = nn.LayerNorm(d, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """hidden (B, T, d), mask (B, 1, 1, T) -> (B, T, d)."""
        attended = self.attention_output(self.attention(hidden, mask))
        attended = self.attention_norm(hidden + self.dropout(attended))
        feed_forward = self.feed_forward_out(F.gelu(self.feed_forward_in(attended)))
        return self.output_norm(attended + self.dropout(feed_forward))


class BertModel(nn.Module):
    """The encoder: embeddings, L layers, and the pooler tanh(W h_[CLS] + b)."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = BertEmbeddings(config)
        self.layers = nn.ModuleList(BertLayer(config) for _ in range(config.num_hidden_layers))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)
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
        """Encode a padded batch.

        input_ids (B, T) token ids; attention_mask (B, T), 1 = token, 0 = padding, default all ones;
        token_type_ids (B, T), 0 = first sentence, 1 = second, default all zeros.
        Raises ValueError, naming the cause, for a sequence over the position table, ids outside the vocabulary
        and a mask or token types of another shape.
        """
        self._check(input_ids, attention_mask, token_type_ids)
        mask = None if attention_mask is None else attention_mask[:, None, None, :].bool()  # (B, 1, 1, T)
        hidden = self.embeddings(input_ids, token_type_ids)  # (B, T, d)
        for layer in self.layers:
            hidden = layer(hidden, mask)
        return BertOutput(hidden, torch.tanh(self.pooler(hidden[:, 0])))

    def _check(self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None) -> None:
        config = self.config
        if input_ids.dim() != 2 or input_ids.numel() == 0:
            raise ValueError(f"input_ids must be (batch, tokens) and not empty; got shape {tuple(input_ids.shape)}")
        if input_ids.size(1) > config.max_position_embeddings:
            raise ValueError(
                f"sequence of {input_ids.size(1)} tokens, but the encoder has {config.max_position_embeddings} "
                "positions; truncate the input (RunConfig.max_length)"
            )
        for name, tensor in (("attention_mask", attention_mask), ("token_type_ids", token_type_ids)):
            if tensor is not None and tensor.shape != input_ids.shape:
                raise ValueError(f"{name} has shape {tuple(tensor.shape)}, input_ids {tuple(input_ids.shape)}")
        # On a GPU these look-ups would stall every step; there the embedding's own device assertion speaks.
        if input_ids.device.type == "cpu":
            for name, ids, size in (
                ("input_ids", input_ids, config.vocab_size),
                ("token_type_ids", token_type_ids, config.type_vocab_size),
            ):
                if ids is not None and not 0 <= int(ids.min()) <= int(ids.max()) < size:
                    raise ValueError(f"{name} hold values from {ids.min()} to {ids.max()}; valid are 0 to {size - 1}")

    @classmethod
    def from_pretrained(cls, folder_or_name: str | Path = "minilm") -> "BertModel":
        """Load a BERT checkpoint in Hugging Face layout: a folder, 'minilm' (packaged), or a name on the hub.

        Raises CheckpointError if it cannot be found or a tensor is missing or of another shape.
        """
        folder = locate(folder_or_name)
        model = cls(BertConfig.from_json(folder / "config.json"))
        model.load_state_dict(_to_ours(_read_tensors(folder), model.state_dict(), folder))
        return model.eval()

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors so that `transformers.BertModel.from_pretrained` reads them."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config = {"model_type": "bert", "architectures": ["BertModel"], **asdict(self.config)}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf8")
        tensors = {_their_name(name): tensor.contiguous() for name, tensor in self.state_dict().items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


# The checkpoint's names beside ours: (ours, Hugging Face's), the longer one first where one starts another.
_NAMES = (
    ("embeddings.word.", "embeddings.word_embeddings."),
    ("embeddings.position.", "embeddings.position_embeddings."),
    ("embeddings.token_type.", "embeddings.token_type_embeddings."),
    ("embeddings.norm.", "embeddings.LayerNorm."),
    (".attention_output.", ".attention.output.dense."),
    (".attention_norm.", ".attention.output.LayerNorm."),
    (".attention.query.", ".attention.self.query."),
    (".attention.key.", ".attention.self.key."),
    (".attention.value.", ".attention.self.value."),
    (".feed_forward_in.", ".intermediate.dense."),
    (".feed_forward_out.", ".output.dense."),
    (".output_norm.", ".output.LayerNorm."),
    ("pooler.", "pooler.dense."),
    ("layers.", "encoder.layer."),
)


def _their_name(name: str) -> str:
    for ours, theirs in _NAMES:
        name = name.replace(ours, theirs)
    return name


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint folder: safetensors first; a pickle is opened with weights_only=True."""
    safe, pickled = folder / "model.safetensors", folder / "pytorch_model.bin"
    try:
        if safe.exists():
            return load_file(safe)
        if pickled.exists():
            tensors = torch.load(pickled, map_location="cpu", weights_only=True)
            return {name: tensor for name, tensor in tensors.items() if isinstance(tensor, Tensor)}
    except Exception as error:
        raise CheckpointError(f"{folder}: the weight file is damaged or not a plain tensor file ({error})") from error
    raise CheckpointError(f"{folder}: holds neither model.safetensors nor pytorch_model.bin")


def _to_ours(tensors: dict[str, Tensor], expected: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """Rename a checkpoint's tensors to ours; name every one that is missing or has another shape."""

    def plain(name: str) -> str:  # "bert." is put in front by models with a head, gamma and beta are older names
        name = name.removeprefix("bert.")
        return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")

    found = {plain(name): tensor for name, tensor in tensors.items()}
    missing = [_their_name(name) for name in expected if _their_name(name) not in found]
    wrong = [
        f"{_their_name(name)} {tuple(found[_their_name(name)].shape)}, expected {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if _their_name(name) in found and found[_their_name(name)].shape != tensor.shape
    ]
    if missing or wrong:
        problems = [f"missing: {', '.join(missing)}"] * bool(missing) + [
            f"of another shape: {'; '.join(wrong)}"
        ] * bool(wrong)
        raise CheckpointError(f"{folder}: tensors {'; '.join(problems)}")
    return {name: found[_their_name(name)].float() for name in expected}
