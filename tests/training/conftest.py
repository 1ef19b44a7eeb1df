"""What the tests of training share: encoders of few words, whose steps do not consist of a table of 30,000."""

import json
from pathlib import Path

import pytest
import torch

from mtbert.bert import BertConfig, BertModel

WORDS = 5000  # of the packaged vocabulary, which begins with the letters, then has words and pieces by frequency


def write_encoder(folder: Path, dropout: float) -> str:
    """A random BERT with d = 32, h = 4, L = 2 and a tokenizer of WORDS words; others are cut into pieces."""
    torch.manual_seed(12345)
    shape = dict(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=48)
    rates = dict(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, initializer_range=0.1)
    BertModel(BertConfig(vocab_size=WORDS, **shape, **rates)).save_pretrained(folder, tokenizer="minilm")
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf8"))
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {word: number for word, number in vocabulary.items() if number < WORDS}
    path.write_text(json.dumps(content), encoding="utf8")
    (folder / "SHA256SUMS").unlink()  # the tokenizer was changed on purpose
    return str(folder)


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory) -> str:
    """The encoder of all tests of this folder: of few words, with dropout."""
    return write_encoder(tmp_path_factory.mktemp("tiny-encoder"), dropout=0.1)


@pytest.fixture(scope="session")
def calm_encoder(tmp_path_factory) -> str:
    """An encoder of few words without dropout."""
    return write_encoder(tmp_path_factory.mktemp("calm-encoder"), dropout=0.0)
