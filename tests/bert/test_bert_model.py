"""MiniLM against transformers.BertModel; checkpoints; errors."""

import copy
import json
import os
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.nn.functional import gelu

from mtbert.bert import Batch, BertConfig, BertModel
from mtbert.bert.cpu_ops import Dropout
from mtbert.bert.hub import CheckpointError, locate

SMALL = dict(
    hidden_size=48, num_attention_heads=3, num_hidden_layers=2, intermediate_size=100, vocab_size=997,
    max_position_embeddings=16,
)  # fmt: skip


@pytest.fixture(scope="module")
def models() -> tuple[BertModel, transformers.BertModel]:
    """minBERT and transformers' model with the packaged weights; test_hf_checkpoints.py has other sizes."""
    return BertModel.from_pretrained("minilm"), transformers.BertModel.from_pretrained(locate("minilm")).eval()


@pytest.fixture
def small() -> BertModel:
    """A small minBERT with random weights, in evaluation mode."""
    torch.manual_seed(0)
    return BertModel(BertConfig(**SMALL)).eval()


@pytest.fixture
def checkpoint(small, tmp_path) -> Path:
    """The folder of a small checkpoint, without checksums, as on the hub."""
    small.save_pretrained(tmp_path / "checkpoint")
    (tmp_path / "checkpoint" / "SHA256SUMS").unlink()
    return tmp_path / "checkpoint"


def test_random_weights_are_those_of_the_original_bert():
    """Weights from N(0, 0.02), biases 0, norms the identity, and the embedding of padding 0."""
    torch.manual_seed(0)
    model = BertModel(BertConfig(**SMALL, pad_token_id=3))
    assert not model.embeddings.word.weight[model.config.pad_token_id].any()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        elif parameter.numel() > 1000:  # the standard deviation of the sample is within 10% of that of the draw
            assert parameter.std().item() == pytest.approx(0.02, rel=0.1), name
            assert parameter.mean().item() == pytest.approx(0, abs=0.003), name


def largest_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a - b).abs().max().item()


@pytest.mark.parametrize("lengths", [[1], [1, 1, 1], [9, 4, 1, 7], [512, 100]], ids=str)
@torch.no_grad()
def test_outputs_equal_those_of_transformers(models, inputs, lengths):
    ours, reference = models
    batch = inputs(ours.config, lengths)
    mine, theirs = ours(**batch), reference(**batch)
    tokens = batch["attention_mask"].bool()
    assert largest_difference(mine.last_hidden_state[tokens], theirs.last_hidden_state[tokens]) <= 1e-5
    assert largest_difference(mine.pooler_output, theirs.pooler_output) <= 1e-5


@torch.no_grad()
def test_outputs_at_padding_equal_those_of_transformers(models, inputs):
    # In float64, as MiniLM amplifies rounding errors of float32 at padding to 2e-4.
    ours, reference = (copy.deepcopy(model).double() for model in models)
    batch = inputs(ours.config, [120, 30])
    mine, theirs = ours(**batch), reference(**batch)
    assert largest_difference(mine.last_hidden_state, theirs.last_hidden_state) <= 1e-11


def test_a_row_of_padding_alone_leaves_the_gradients_finite(small):
    ids, mask = torch.tensor([[2, 5, 3], [0, 0, 0]]), torch.tensor([[1, 1, 1], [0, 0, 0]])
    small.train()(ids, mask).last_hidden_state[0].sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in small.parameters() if parameter.grad is not None)


@torch.no_grad()
def test_dropout_is_where_bert_has_it(small, inputs, monkeypatch):
    """A dropout that triples shows every place: behind the embeddings, and in each layer before both sums."""
    monkeypatch.setattr(Dropout, "forward", lambda self, x: 3 * x)
    ids = inputs(small.config, [6, 6])["input_ids"]
    tables = small.embeddings
    hidden = 3 * tables.norm(tables.word(ids) + tables.position.weight[:6] + tables.token_type.weight[0])
    for layer in small.layers:
        attended = layer.attention_norm(hidden + 3 * layer.attention_output(layer.attention(hidden)))
        fed = layer.feed_forward_out(gelu(layer.feed_forward_in(attended)))
        hidden = layer.output_norm(attended + 3 * fed)
    torch.testing.assert_close(small(ids).last_hidden_state, hidden)


def to_pickle(checkpoint: Path, rename=lambda name: name) -> None:
    """Turn a checkpoint's safetensors file into an older one's pickle."""
    tensors = load_file(checkpoint / "model.safetensors")
    torch.save({rename(name): tensor for name, tensor in tensors.items()}, checkpoint / "pytorch_model.bin")
    (checkpoint / "model.safetensors").unlink()


def old_name(name: str) -> str:
    """The name under which the first BERT checkpoints hold a tensor."""
    return "bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")


@pytest.mark.parametrize("rename", [str, old_name])
def test_pickled_checkpoint_loads(small, checkpoint, rename):
    to_pickle(checkpoint, rename)
    loaded = BertModel.from_pretrained(checkpoint).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in small.state_dict().items())


def test_safetensors_come_before_the_pickle(checkpoint):
    (checkpoint / "pytorch_model.bin").write_bytes(b"never opened")
    BertModel.from_pretrained(checkpoint)


def test_half_precision_checkpoint_becomes_fp32(small, checkpoint):
    path = checkpoint / "model.safetensors"
    save_file({name: tensor.half() for name, tensor in load_file(path).items()}, path)
    loaded = BertModel.from_pretrained(checkpoint).state_dict()
    assert all(torch.equal(loaded[name], tensor.half().float()) for name, tensor in small.state_dict().items())


def test_pickle_with_code_is_refused_and_not_executed(checkpoint, tmp_path, trap):
    (checkpoint / "model.safetensors").unlink()
    torch.save({"pooler.dense.weight": trap}, checkpoint / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="not a plain tensor file"):
        BertModel.from_pretrained(checkpoint)
    assert not (tmp_path / "executed").exists()


def test_pickle_without_a_dictionary_of_tensors_is_refused(checkpoint):
    (checkpoint / "model.safetensors").unlink()
    for content in ([torch.zeros(2)], {"epoch": 3}):
        torch.save(content, checkpoint / "pytorch_model.bin")
        with pytest.raises(CheckpointError, match=str(checkpoint)):
            BertModel.from_pretrained(checkpoint)


def test_missing_and_misshapen_tensors_are_named(checkpoint):
    path = checkpoint / "model.safetensors"
    tensors = load_file(path)
    del tensors["encoder.layer.1.attention.self.key.bias"], tensors["embeddings.LayerNorm.weight"]
    tensors["pooler.dense.weight"] = torch.zeros(3, 5)
    save_file(tensors, path)
    with pytest.raises(CheckpointError) as error:
        BertModel.from_pretrained(checkpoint)
    for part in (
        str(checkpoint),
        "encoder.layer.1.attention.self.key.bias",
        "embeddings.LayerNorm.weight",
        "pooler.dense.weight (3, 5), expected (48, 48)",
    ):
        assert part in str(error.value)


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("config.json", Path.unlink, r"config\.json"),
        ("model.safetensors", Path.unlink, r"neither model\.safetensors nor pytorch_model\.bin"),
        ("model.safetensors", cut_in_half, "damaged"),
        ("model.safetensors", lambda path: path.write_bytes(b"x" * 100), "damaged"),
        ("model.safetensors", lambda path: path.write_bytes(b""), "damaged"),
    ],
)
def test_a_missing_or_damaged_file_is_named(checkpoint, name, damage, message):
    damage(checkpoint / name)
    with pytest.raises(CheckpointError, match=message) as error:
        BertModel.from_pretrained(checkpoint)
    assert str(checkpoint) in str(error.value)


def test_config_keys_of_other_tools_are_ignored(small, checkpoint):
    path = checkpoint / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"use_cache": True, "_name_or_path": "x"}))
    assert BertModel.from_pretrained(checkpoint).config == small.config


def ids(*shape: int, value: int = 5) -> torch.Tensor:
    return torch.full(shape, value)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (dict(input_ids=ids(2, 4, value=997)), "input_ids hold values from 997 to 997; valid are 0 to 996"),
        (dict(input_ids=ids(2, 4, value=-1)), "input_ids hold values from -1 to -1"),
        (dict(input_ids=ids(2, 4), token_type_ids=ids(2, 4, value=2)), "token_type_ids hold values from 2"),
        (dict(input_ids=ids(2, 4), attention_mask=ids(4)), r"attention_mask has shape \(4,\)"),
        (dict(input_ids=ids(0, 4)), r"not empty; got shape \(0, 4\)"),
        (dict(input_ids=ids(2, 0)), r"not empty; got shape \(2, 0\)"),
        (dict(input_ids=ids(7)), r"input_ids must be \(batch, tokens\)"),
    ],
)  # fmt: skip
def test_bad_inputs_are_named(small, batch, message):
    with pytest.raises(ValueError, match=message):
        small(**batch)


def test_a_batch_needs_its_ids_alone():
    ids = torch.tensor([[5, 6, 7], [8, 9, 0]])
    assert Batch(ids).attention_mask.all() and Batch(ids).attention_mask.dtype == torch.bool
    numbers = torch.tensor([[1, 1, 1], [1, 1, 0]])
    assert torch.equal(Batch(ids, numbers).attention_mask, numbers.bool())
    with pytest.raises(ValueError, match=r"attention_mask has shape \(2, 2\), input_ids \(2, 3\)"):
        Batch(ids, numbers[:, :2])
    with pytest.raises(ValueError, match=r"token_type_ids has shape \(1, 3\), input_ids \(2, 3\)"):
        Batch(ids, token_type_ids=numbers[:1])
