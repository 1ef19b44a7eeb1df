"""The sizes of an encoder, their bounds, and the sizes of a checkpoint."""

from dataclasses import dataclass, fields
from pathlib import Path

from mtbert.bert.hf_checkpoints import LAYOUTS, read_config
from mtbert.bert.hub import MPNET, CheckpointError, locate

SIZES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings",
)  # fmt: skip
RATES = ("layer_norm_eps", "hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range")
LARGEST = 10**7  # the bound of any size: more is a damaged file, and fits into no memory
MOST_LAYERS = 999
MOST_PARAMETERS = 2 * 10**10


@dataclass(frozen=True)
class BertConfig:
    """Sizes of the encoder, under the names of a Hugging Face `config.json`; the defaults are bert-base-uncased.

    Raises ValueError if a size or rate is out of its range, the heads do not divide the hidden size or no position is
    left.
    """

    vocab_size: int = 30522
    hidden_size: int = 768  # d
    num_hidden_layers: int = 12  # L
    num_attention_heads: int = 12  # h
    intermediate_size: int = 3072  # d_i
    max_position_embeddings: int = 512
    type_vocab_size: int = 2  # 0: no token types
    layer_norm_eps: float = 1e-12
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    initializer_range: float = 0.02
    pad_token_id: int = 0
    hidden_act: str = "gelu"
    model_type: str = "bert"  # or roberta, distilbert, mpnet: names in a checkpoint, start of positions, relative ones

    def __post_init__(self) -> None:
        if self.model_type not in LAYOUTS:
            raise ValueError(f"model_type is {self.model_type!r}; known are {', '.join(LAYOUTS)}")
        for name in SIZES:
            self._check_integer(name, least=1)
        self._check_integer("type_vocab_size", least=0)
        if LAYOUTS[self.model_type].counts_after_padding:
            self._check_integer("pad_token_id", least=0)
        for name in RATES:
            self._check_rate(name)
        if not self.layer_norm_eps:
            raise ValueError("layer_norm_eps is 0; a vector of equal numbers would be divided by 0")
        if self.num_hidden_layers > MOST_LAYERS or self._parameters > MOST_PARAMETERS:
            raise ValueError(
                f"num_hidden_layers is {self.num_hidden_layers}, with {self._parameters:.1g} parameters; at most "
                f"{MOST_LAYERS} and {MOST_PARAMETERS:.1g} are read"
            )
        if self.pad_token_id is not None and self.pad_token_id not in range(self.vocab_size):
            raise ValueError(f"pad_token_id is {self.pad_token_id!r}, which is no token of {self.vocab_size}")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) does not divide hidden_size ({self.hidden_size})"
            )
        needed = {"hidden_act": "gelu", **LAYOUTS[self.model_type].fixed}
        for name, value in needed.items():
            given = getattr(self, name)
            if given != value:
                raise ValueError(f"{name} is {given!r}; minBERT's {self.model_type} needs {value!r}")
        if self.positions < 1:
            raise ValueError(f"max_position_embeddings is {self.max_position_embeddings}; no position is left for text")

    def _check_integer(self, name: str, least: int) -> None:
        value = getattr(self, name)
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not is_integer or not least <= value < LARGEST:
            raise ValueError(f"{name} is {value!r}; it must be an integer of at least {least}, below {LARGEST}")

    def _check_rate(self, name: str) -> None:
        value = getattr(self, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= 1:
            raise ValueError(f"{name} is {value!r}; it must be a number from 0 to 1")

    @property
    def _parameters(self) -> int:
        """The number of weights, without biases and norms."""
        d, d_i = self.hidden_size, self.intermediate_size
        embeddings = self.vocab_size + self.max_position_embeddings + self.type_vocab_size
        layer = 4 * d + 2 * d_i
        return d * (embeddings + self.num_hidden_layers * layer)

    @property
    def position_offset(self) -> int:
        """The row of the position table where a sequence starts, behind pad_token_id in RoBERTa and MPNet."""
        return self.pad_token_id + 1 if LAYOUTS[self.model_type].counts_after_padding else 0

    @property
    def has_relative_positions(self) -> bool:
        """Whether attention scores get a bias by the distance of the two tokens."""
        return LAYOUTS[self.model_type].has_relative_positions

    @property
    def positions(self) -> int:
        """Tokens of the longest sequence."""
        return self.max_position_embeddings - self.position_offset

    @classmethod
    def from_json(cls, path: Path) -> "BertConfig":
        """Read a Hugging Face `config.json`, ignoring other keys; raises CheckpointError naming the file."""
        values = read_config(path, [field.name for field in fields(cls)])
        try:
            return cls(**values)
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: {error}") from error


MPNET_SIZES = BertConfig(
    vocab_size=30527,
    max_position_embeddings=514,
    type_vocab_size=0,
    layer_norm_eps=1e-5,
    pad_token_id=1,
    model_type="mpnet",
)


def checkpoint_sizes(folder_or_name: str | Path) -> BertConfig:
    """The sizes of a checkpoint; those of mpnet are known where nobody has fetched it. Raises CheckpointError."""
    if folder_or_name == MPNET:
        return MPNET_SIZES
    return BertConfig.from_json(locate(folder_or_name) / "config.json")
