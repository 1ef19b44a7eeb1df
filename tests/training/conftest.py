"""What the tests of training share: when two runs are the same, and encoders of few words.

The steps of others consist of a table of 30,000.
"""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch

from mtbert.bert import BertConfig, BertModel
from mtbert.config import RunConfig
from mtbert.optim import AdamW
from mtbert.training.loop import TrainedRun

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


@pytest.fixture
def counted(monkeypatch):
    """counted(owner, name): a list that gets the arguments of every call of a method from now on."""

    def counted(owner: type, name: str) -> list:
        original, calls = getattr(owner, name), []

        def call(*args, **kwargs):
            calls.append(args)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)
        return calls

    return counted


def _assert_same_bits(first: TrainedRun, second: TrainedRun) -> None:
    times = ["seconds", "cpu_seconds"]
    others = second.model.state_dict()
    assert all(torch.equal(tensor, others[name]) for name, tensor in first.model.state_dict().items())
    pd.testing.assert_frame_equal(first.curve.drop(columns=times), second.curve.drop(columns=times), check_exact=True)
    pd.testing.assert_frame_equal(first.predictions, second.predictions, check_exact=True)
    pd.testing.assert_frame_equal(first.cosines, second.cosines, check_exact=True)
    for name, value in first.cost.items():
        if name in ("tokens", "best_step", "steps") or name.startswith("constraints_"):
            assert second.cost[name] == value, name


@pytest.fixture(scope="session")
def assert_same_bits():
    """Two runs have the same weights, predictions, curve and counts; only their times differ."""
    return _assert_same_bits


@pytest.fixture
def assert_goes_on_bit_for_bit(run, counted, monkeypatch):
    """A run that is stopped after so many steps and called again equals the whole run, which is returned.

    It is stopped in the middle of the next step: the model is updated, nothing is saved.
    """
    step = AdamW.step

    def stopped_after(steps: int):
        done = []

        def stopped(self, closure=None):
            step(self, closure)
            done.append(1)
            if len(done) > steps:
                raise KeyboardInterrupt

        return stopped

    def assert_goes_on_bit_for_bit(config: RunConfig, after: int, checkpoint: Path) -> TrainedRun:
        whole = run(config)
        monkeypatch.setenv("MTBERT_CHECKPOINT_SECONDS", "0")
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(AdamW, "step", stopped_after(after))
            run(config, checkpoint=checkpoint)
        assert torch.load(checkpoint, weights_only=True)["progress"]["step"] == after
        torch.manual_seed(77)  # another process
        steps = counted(AdamW, "step")
        _assert_same_bits(whole, run(config, checkpoint=checkpoint))
        assert len(steps) == whole.cost["steps"] - after > 0
        return whole

    return assert_goes_on_bit_for_bit
