"""minBERT: the encoder, its checkpoints, and faster operations on a CPU."""

from mtbert.bert.batch import Batch, Mask, pack, unpack
from mtbert.bert.config import BertConfig, checkpoint_sizes
from mtbert.bert.cpu_ops import Dropout, Linear
from mtbert.bert.hf_checkpoints import hf_name, write_tensors
from mtbert.bert.hub import (
    MINILM,
    MPNET,
    NAMED_ENCODERS,
    CheckpointError,
    content_name,
    copy_tokenizer,
    has_packaged_tokenizer,
    has_tokenizer,
    locate,
    mpnet_folder,
)
from mtbert.bert.model import (
    BertEmbeddings,
    BertLayer,
    BertModel,
    LayerHooks,
    SelfAttention,
    check_sizes,
    part_sizes,
)
from mtbert.bert.shapes import init_empty_weights
from mtbert.bert.streams import side_by_side

__all__ = [
    "MINILM",
    "MPNET",
    "NAMED_ENCODERS",
    "Batch",
    "BertConfig",
    "BertEmbeddings",
    "BertLayer",
    "BertModel",
    "CheckpointError",
    "Dropout",
    "LayerHooks",
    "Linear",
    "Mask",
    "SelfAttention",
    "check_sizes",
    "checkpoint_sizes",
    "content_name",
    "copy_tokenizer",
    "has_packaged_tokenizer",
    "has_tokenizer",
    "hf_name",
    "init_empty_weights",
    "locate",
    "mpnet_folder",
    "pack",
    "part_sizes",
    "side_by_side",
    "unpack",
    "write_tensors",
]
