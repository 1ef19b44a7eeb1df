"""What the tests of training share."""

import pytest
import torch

from mtbert.bert.model import BertConfig, BertModel


@pytest.fixture(scope="module")
def calm_encoder(tmp_path_factory) -> str:
    """The tiny encoder without dropout."""
    folder = tmp_path_factory.mktemp("calm-encoder")
    torch.manual_seed(12345)
    shape = dict(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=48)
    calm = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.1)
    BertModel(BertConfig(**shape, **calm)).save_pretrained(folder, tokenizer="minilm")
    return str(folder)
