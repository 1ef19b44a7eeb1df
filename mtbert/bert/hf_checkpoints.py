"""Checkpoints of Hugging Face: BERT, RoBERTa, DistilBERT and MPNet.

One architecture, four sets of names. RoBERTa (Liu et al. 2019) numbers its positions from pad_token_id + 1 on. So does
MPNet (Song et al. 2020), which has no token types, and adds a bias to the attention scores (relative_positions.py).
DistilBERT (Sanh et al. 2019) has no token types and no pooler, and no dropout after the attention block, where
minBERT has one: in training mode the two differ.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mtbert.bert.hub import CheckpointError
from mtbert.bert.relative_positions import RELATIVE_BUCKETS
from mtbert.files import read_json, replacing, write_json

log = logging.getLogger(__name__)
# Parts of tensor names: (ours, Hugging Face's), replaced in this order.
_BERT_NAMES = (
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
_DISTILBERT_NAMES = (
    (".attention_output.", ".attention.out_lin."),
    (".attention_norm.", ".sa_layer_norm."),
    (".attention.query.", ".attention.q_lin."),
    (".attention.key.", ".attention.k_lin."),
    (".attention.value.", ".attention.v_lin."),
    (".feed_forward_in.", ".ffn.lin1."),
    (".feed_forward_out.", ".ffn.lin2."),
    (".output_norm.", ".output_layer_norm."),
    ("layers.", "transformer.layer."),
    *_BERT_NAMES,  # transformers ignores the pooler
)
_MPNET_NAMES = (
    ("embeddings.relative.", "encoder.relative_attention_bias."),
    (".attention_output.", ".attention.attn.o."),
    (".attention_norm.", ".attention.LayerNorm."),
    (".attention.query.", ".attention.attn.q."),
    (".attention.key.", ".attention.attn.k."),
    (".attention.value.", ".attention.attn.v."),
    *_BERT_NAMES,
)


@dataclass(frozen=True)
class Layout:
    """How one type of encoder is stored, and in what it differs from BERT."""

    architecture: str  # the class of transformers
    names: tuple[tuple[str, str], ...]  # parts of the tensors' names: ours, theirs
    keys: dict[str, str] = field(default_factory=dict)  # config.json's keys that are not BERT's: ours -> theirs
    defaults: dict[str, Any] = field(default_factory=dict)  # values without a key in config.json that are not BERT's
    fixed: dict[str, Any] = field(default_factory=dict)  # settings of the type that config.json does not name
    constants: dict[str, Any] = field(default_factory=dict)  # keys of config.json that have one value, and no name here
    counts_after_padding: bool = False  # positions are numbered from pad_token_id + 1 on
    has_relative_positions: bool = False  # attention scores get a bias by the distance of the two tokens


LAYOUTS = {
    "bert": Layout("BertModel", _BERT_NAMES),
    "roberta": Layout(
        "RobertaModel", _BERT_NAMES, defaults=dict(vocab_size=50265, pad_token_id=1), counts_after_padding=True
    ),
    "distilbert": Layout(
        "DistilBertModel",
        _DISTILBERT_NAMES,
        keys=dict(
            hidden_size="dim",
            num_hidden_layers="n_layers",
            num_attention_heads="n_heads",
            intermediate_size="hidden_dim",
            hidden_dropout_prob="dropout",
            attention_probs_dropout_prob="attention_dropout",
            hidden_act="activation",
        ),
        defaults=dict(num_hidden_layers=6),
        fixed=dict(type_vocab_size=0, layer_norm_eps=1e-12),
    ),
    "mpnet": Layout(
        "MPNetModel",
        _MPNET_NAMES,
        defaults=dict(vocab_size=30527),
        fixed=dict(type_vocab_size=0, pad_token_id=1),  # transformers' MPNet takes 1 whatever config.json says
        constants=dict(relative_attention_num_buckets=RELATIVE_BUCKETS),
        counts_after_padding=True,
        has_relative_positions=True,
    ),
}

IMPLEMENTED = {  # the one value that keys of any config.json may have here
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
}


def read_config(path: Path, names: list[str]) -> dict[str, Any]:
    """The values of a Hugging Face `config.json` under our `names`, without other keys.

    Raises CheckpointError if the file cannot be read or describes an encoder that minBERT does not implement.
    """
    try:
        values = read_json(path)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a readable config.json ({error})") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    model_type = values.get("model_type", "bert")
    if model_type not in list(LAYOUTS):  # a list, as a wrong value may have no hash
        raise CheckpointError(f"{path}: model_type is {model_type!r}; this encoder reads {', '.join(LAYOUTS)}")
    layout = LAYOUTS[model_type]
    for key, value in (IMPLEMENTED | layout.constants).items():
        if values.get(key) not in (None, value):
            raise CheckpointError(f"{path}: {key} is {values[key]!r}; only {value!r} is implemented")
    found = {}
    for name in names:
        key = layout.keys.get(name, name)
        if key in values:
            found[name] = values[key]
    return layout.defaults | found | layout.fixed


def write_checkpoint(folder: Path, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
    """Write our tensors, and our values as the `config.json`, in the layout of their model_type."""
    model_type = values["model_type"]
    layout = LAYOUTS[model_type]
    theirs = {hf_name(name, model_type): tensor for name, tensor in tensors.items()}
    write_tensors(folder / "model.safetensors", theirs)
    content = {"model_type": model_type, "architectures": [layout.architecture]}
    for name, value in values.items():
        if name not in layout.fixed:
            key = layout.keys.get(name, name)
            content[key] = value
    content |= layout.constants
    write_json(folder / "config.json", content)


def hf_name(name: str, model_type: str = "bert") -> str:
    """The name under which Hugging Face stores a tensor of ours."""
    for ours, theirs in LAYOUTS[model_type].names:
        name = name.replace(ours, theirs)
    return name


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint folder: safetensors first; a pickle is opened with weights_only=True.

    Raises CheckpointError where there is neither or it cannot be read.
    """
    safe = folder / "model.safetensors"
    pickled = folder / "pytorch_model.bin"
    try:
        if safe.exists():
            return load_file(safe)
        if pickled.exists():
            tensors = torch.load(pickled, map_location="cpu", weights_only=True)
            return {n: tensor for n, tensor in tensors.items() if isinstance(n, str) and isinstance(tensor, Tensor)}
    except Exception as error:
        raise CheckpointError(f"{folder}: the weight file is damaged or not a plain tensor file ({error})") from error
    raise CheckpointError(f"{folder}: holds neither model.safetensors nor pytorch_model.bin")


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a whole safetensors file, or none; raises OSError that names it, as on a full disk."""
    content = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with replacing(path) as partial:
        try:
            save_file(content, partial, metadata={"format": "pt"})
        except SafetensorError as error:
            raise OSError(f"{path}: cannot be written ({error})") from error


def to_ours(
    tensors: dict[str, Tensor], expected: dict[str, Tensor], folder: Path, model_type: str
) -> dict[str, Tensor]:
    """Rename a checkpoint's tensors to ours, as float32; `expected` has our names and shapes.

    A checkpoint without a pooler gets a warning, and none here. Raises CheckpointError naming every other tensor that
    is missing, has another shape than in `expected` or no floating-point numbers.
    """
    found = {}
    for name, tensor in tensors.items():
        name = name.removeprefix(f"{model_type}.")  # models with a head have it
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight")  # gamma and beta are older names
        name = name.replace("LayerNorm.beta", "LayerNorm.bias")
        found[name] = tensor
    theirs = {name: hf_name(name, model_type) for name in expected}
    pooler = {name for name in expected if name.startswith("pooler.")}
    if not any(theirs[name] in found for name in pooler):
        log.warning("%s has no pooler: it starts from random weights, as the heads do", folder)
        theirs = {name: their for name, their in theirs.items() if name not in pooler}
    problems = []
    for name, their in theirs.items():
        tensor = found.get(their)
        shape = tuple(expected[name].shape)
        if tensor is None:
            problems.append(f"{their} is missing")
        elif tuple(tensor.shape) != shape:
            problems.append(f"{their} {tuple(tensor.shape)}, expected {shape}")
        elif not tensor.is_floating_point():
            problems.append(f"{their} is {tensor.dtype}, expected floating-point numbers")
    if problems:
        raise CheckpointError(f"{folder}: {'; '.join(problems)}")
    return {name: found[their].float() for name, their in theirs.items()}
