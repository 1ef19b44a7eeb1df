"""BERT, RoBERTa, DistilBERT and MPNet checkpoints against transformers' classes: states, gradients, saving, errors."""

import json
import logging
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from mtbert.bert import BertConfig, BertModel, part_sizes
from mtbert.bert.hf_checkpoints import hf_name
from mtbert.bert.hub import CheckpointError
from mtbert.multitask.model import parameter_counts

ROBERTA = dict(pad_token_id=1, layer_norm_eps=1e-5)
SHAPES = {
    "bert-d48-h3-L2": dict(
        hidden_size=48, num_attention_heads=3, num_hidden_layers=2, intermediate_size=100, vocab_size=997,
    ),
    "bert-d64-h8-L4": dict(
        hidden_size=64, num_attention_heads=8, num_hidden_layers=4, intermediate_size=96, vocab_size=50,
        type_vocab_size=4, layer_norm_eps=1e-5, pad_token_id=3,
    ),
    "roberta-d48-h3-L2": dict(
        ROBERTA, hidden_size=48, num_attention_heads=3, num_hidden_layers=2, intermediate_size=100, vocab_size=997,
        max_position_embeddings=66, type_vocab_size=1,
    ),
    "roberta-d64-h8-L3": dict(
        hidden_size=64, num_attention_heads=8, num_hidden_layers=3, intermediate_size=96, vocab_size=50,
        max_position_embeddings=70, pad_token_id=5,
    ),
    "distilbert-d48-h3-L2": dict(dim=48, n_heads=3, n_layers=2, hidden_dim=100, vocab_size=997),
    "distilbert-d128-h2-L3": dict(
        dim=128, n_heads=2, n_layers=3, hidden_dim=256, vocab_size=301, max_position_embeddings=64, pad_token_id=3,
        sinusoidal_pos_embds=True,
    ),
    "mpnet-d48-h3-L2": dict(
        hidden_size=48, num_attention_heads=3, num_hidden_layers=2, intermediate_size=100, vocab_size=997,
        max_position_embeddings=514, layer_norm_eps=1e-5,
    ),
}  # fmt: skip
CLASSES = {
    "bert": (transformers.BertConfig, transformers.BertModel),
    "roberta": (transformers.RobertaConfig, transformers.RobertaModel),
    "distilbert": (transformers.DistilBertConfig, transformers.DistilBertModel),
    "mpnet": (transformers.MPNetConfig, transformers.MPNetModel),
}
LENGTHS = [[1], [9, 4, 1, 7], [64, 20]]


@pytest.fixture(scope="module", params=SHAPES)
def reference(request, shake) -> torch.nn.Module:
    """transformers' model with every parameter, also of norms and biases, changed from its initial value."""
    config_class, model_class = CLASSES[request.param.split("-")[0]]
    torch.manual_seed(0)
    return shake(model_class(config_class(**SHAPES[request.param]))).eval()


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory) -> Path:
    """The checkpoint that transformers writes."""
    folder = tmp_path_factory.mktemp("checkpoint")
    reference.save_pretrained(folder)
    return folder


@pytest.fixture
def ours(folder) -> BertModel:
    """minBERT with the reference's weights."""
    return BertModel.from_pretrained(folder)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@torch.no_grad()
def test_states_equal_those_of_transformers(reference, ours, inputs, lengths):
    batch = inputs(ours.config, lengths)
    mine, theirs = ours(**batch), reference(**batch)
    tokens = batch["attention_mask"].bool()
    assert (mine.last_hidden_state - theirs.last_hidden_state)[tokens].abs().max() <= 1e-5
    if hasattr(reference, "pooler"):
        assert (mine.pooler_output - theirs.pooler_output).abs().max() <= 1e-5


def test_gradients_equal_those_of_transformers(reference, ours, inputs):
    batch = inputs(ours.config, [12, 5, 8])
    torch.manual_seed(2)
    weights = torch.randn(3, 12, ours.config.hidden_size) * batch["attention_mask"].unsqueeze(-1)
    for model in (reference, ours):
        model.zero_grad()
        output = model(**batch)
        loss = (output.last_hidden_state * weights).sum()
        if hasattr(reference, "pooler"):
            loss = loss + output.pooler_output.square().sum()
        loss.backward()
    theirs = dict(reference.named_parameters())
    for name, parameter in ours.named_parameters():
        if name.startswith("pooler.") and not hasattr(reference, "pooler"):
            continue
        expected = theirs.pop(hf_name(name, ours.config.model_type)).grad
        if expected is None:  # transformers' sinusoidal positions stand still
            assert name == "embeddings.position.weight"
            continue
        difference = (parameter.grad - expected).abs().max()
        if name.endswith("key.bias"):  # softmax ignores a shift of its row: this gradient is 0, up to rounding
            assert expected.abs().max() < 1e-3 and difference < 1e-3, name
        else:
            assert difference <= 1e-4 * expected.abs().max() and expected.any(), name
    assert not theirs


@torch.no_grad()
def test_what_we_save_is_read_by_transformers_and_by_us(reference, ours, inputs, tmp_path):
    ours.save_pretrained(tmp_path)
    batch = inputs(ours.config, [10, 6])
    tokens = batch["attention_mask"].bool()
    again, mine_again = type(reference).from_pretrained(tmp_path).eval(), BertModel.from_pretrained(tmp_path)
    found, expected = again(**batch), reference(**batch)
    assert torch.equal(found.last_hidden_state[tokens], expected.last_hidden_state[tokens])
    if hasattr(reference, "pooler"):
        assert torch.equal(found.pooler_output, expected.pooler_output)
    assert mine_again.config == ours.config
    assert all(torch.equal(mine_again.state_dict()[name], tensor) for name, tensor in ours.state_dict().items())
    automatic = transformers.AutoModel.from_pretrained(tmp_path)
    assert type(automatic) is type(reference)
    for name, value in asdict(ours.config).items():
        if name not in ("type_vocab_size", "layer_norm_eps"):  # DistilBERT's config names neither
            theirs = {"intermediate_size": "hidden_dim", "hidden_dropout_prob": "dropout", "hidden_act": "activation",
                      "attention_probs_dropout_prob": "attention_dropout"}.get(name, name)  # fmt: skip
            assert getattr(again.config, theirs, getattr(again.config, name, None)) == value, name


def test_part_sizes_count_every_parameter(ours):
    sizes = part_sizes(ours.config)
    total = sizes["embeddings"] + len(ours.layers) * sizes["layer"] + sizes["pooler"]
    assert total == parameter_counts(ours)["parameters"]


def test_the_longest_sequence_is_one_of_all_positions(ours):
    n = ours.config.positions
    ours(torch.full((1, n), 7))
    with pytest.raises(ValueError, match=f"sequence of {n + 1} tokens, but the encoder has {n} positions"):
        ours(torch.full((1, n + 1), 7))


def test_token_types(ours):
    ids = torch.full((1, 4), 7)
    if ours.config.type_vocab_size:
        with torch.no_grad():
            assert torch.equal(ours(ids, None, torch.zeros_like(ids)).pooler_output, ours(ids).pooler_output)
    else:
        with pytest.raises(ValueError, match="the encoder has no token types"):
            ours(ids, None, torch.zeros_like(ids))


def test_a_checkpoint_without_a_pooler_gets_one_and_a_warning(reference, ours, folder, tmp_path, caplog):
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    save_file({name: t for name, t in tensors.items() if "pooler" not in name}, tmp_path / "model.safetensors")
    caplog.clear()
    torch.manual_seed(3)
    with caplog.at_level(logging.WARNING, logger="mtbert"):
        model = BertModel.from_pretrained(tmp_path)
    assert "has no pooler: it starts from random weights" in caplog.text
    assert str(tmp_path) in caplog.text
    assert model.pooler.weight.std().item() == pytest.approx(model.config.initializer_range, rel=0.1)
    assert not model.pooler.bias.any()
    model.save_pretrained(tmp_path)
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="mtbert"):
        assert torch.equal(BertModel.from_pretrained(tmp_path).pooler.weight, model.pooler.weight)
    assert not caplog.text


def test_half_a_pooler_is_an_error(ours, tmp_path):
    ours.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["pooler.dense.bias"]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "SHA256SUMS").unlink()
    with pytest.raises(CheckpointError, match=r"pooler\.dense\.bias is missing"):
        BertModel.from_pretrained(tmp_path)


def test_missing_tensors_are_named_as_the_checkpoint_names_them(ours, tmp_path):
    ours.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = hf_name("layers.1.attention.key.bias", ours.config.model_type)
    expected = {"bert": "encoder.layer.1.attention.self.key.bias",
                "roberta": "encoder.layer.1.attention.self.key.bias",
                "distilbert": "transformer.layer.1.attention.k_lin.bias",
                "mpnet": "encoder.layer.1.attention.attn.k.bias"}  # fmt: skip
    assert name == expected[ours.config.model_type]
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "SHA256SUMS").unlink()
    with pytest.raises(CheckpointError, match=name):
        BertModel.from_pretrained(tmp_path)


def test_a_checkpoint_with_a_language_modelling_head_loads(reference, ours, tmp_path):
    """Its names have the type in front, and tensors that the encoder does not need."""
    with_head = {transformers.BertModel: transformers.BertForMaskedLM,
                 transformers.RobertaModel: transformers.RobertaForMaskedLM,
                 transformers.DistilBertModel: transformers.DistilBertForMaskedLM,
                 transformers.MPNetModel: transformers.MPNetForMaskedLM}[type(reference)]  # fmt: skip
    model = with_head(reference.config)
    getattr(model, model.base_model_prefix).load_state_dict(reference.state_dict(), strict=False)
    model.save_pretrained(tmp_path)
    loaded = BertModel.from_pretrained(tmp_path).state_dict()
    for name, tensor in ours.state_dict().items():
        assert name.startswith("pooler.") or torch.equal(loaded[name], tensor), name


def test_nothing_is_written_where_the_tokenizer_is_unknown(ours, tmp_path):
    with pytest.raises(CheckpointError, match="nowhere"):
        ours.save_pretrained(tmp_path / "model", tokenizer=tmp_path / "nowhere")
    assert not (tmp_path / "model").exists()


def test_token_types_are_known_from_the_config(tmp_path):
    path = tmp_path / "config.json"
    for content, expected in (
        ({}, 2),
        ({"type_vocab_size": 1}, 1),
        ({"model_type": "distilbert"}, 0),
        ({"model_type": "distilbert", "type_vocab_size": 2}, 0),
        ({"model_type": "mpnet"}, 0),
    ):
        path.write_text(json.dumps(content))
        assert BertConfig.from_json(path).type_vocab_size == expected


def test_defaults_of_the_types(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "distilbert"}')
    assert BertConfig.from_json(path).num_hidden_layers == transformers.DistilBertConfig().n_layers
    path.write_text('{"model_type": "roberta", "max_position_embeddings": 514}')
    config, theirs = BertConfig.from_json(path), transformers.RobertaConfig()
    assert (config.vocab_size, config.pad_token_id, config.positions) == (theirs.vocab_size, theirs.pad_token_id, 512)
    path.write_text('{"model_type": "mpnet"}')
    config, theirs = BertConfig.from_json(path), transformers.MPNetConfig()
    assert (config.vocab_size, config.pad_token_id, config.positions) == (theirs.vocab_size, theirs.pad_token_id, 510)
    assert config.layer_norm_eps == theirs.layer_norm_eps


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ([1, 2], "not a JSON object"),
        ({"hidden_size": 1.5}, "hidden_size is 1.5; it must be an integer"),
        ({"hidden_size": True}, "hidden_size is True; it must be an integer"),
        ({"hidden_size": 10**30}, "hidden_size is 1000000.*; it must be an integer of at least 1, below 10000000"),
        ({"num_hidden_layers": -3}, "num_hidden_layers is -3; it must be an integer of at least 1"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000, with .* parameters; at most 999"),
        ({"layer_norm_eps": 0}, "layer_norm_eps is 0; a vector of equal numbers"),
        ({"layer_norm_eps": "x"}, "layer_norm_eps is 'x'; it must be a number from 0 to 1"),
        ({"hidden_dropout_prob": True}, "hidden_dropout_prob is True; it must be a number from 0 to 1"),
        ({"hidden_dropout_prob": 2}, "hidden_dropout_prob is 2; it must be a number from 0 to 1"),
        ({"pad_token_id": -1}, "pad_token_id is -1, which is no token"),
        ({"pad_token_id": "a"}, "pad_token_id is 'a', which is no token"),
        ({"is_decoder": True}, "is_decoder is True; only False is implemented"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'; only 'absolute'"),
        ({"model_type": {}}, r"model_type is \{\}; this encoder reads"),
        ({"model_type": "electra"}, "model_type is 'electra'; this encoder reads bert, roberta, distilbert, mpnet"),
        ({"model_type": "distilbert", "activation": "relu"}, "hidden_act is 'relu'"),
        ({"model_type": "distilbert", "n_heads": 5}, r"num_attention_heads \(5\) does not divide"),
        ({"model_type": "roberta", "max_position_embeddings": 2}, "no position is left"),
        ({"model_type": "roberta", "pad_token_id": None}, "pad_token_id is None"),
        ({"model_type": "mpnet", "relative_attention_num_buckets": 64}, "num_buckets is 64; only 32 is implemented"),
    ],
)
def test_unusable_config_is_named(tmp_path, content, named):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=f"{path}: .*{named}"):
        BertConfig.from_json(path)


def test_distilbert_with_token_types_is_refused():
    with pytest.raises(ValueError, match="type_vocab_size is 2; minBERT's distilbert needs 0"):
        BertConfig(model_type="distilbert")


def test_unknown_type_is_named():
    with pytest.raises(ValueError, match="model_type is 'gpt2'; known are bert, roberta, distilbert, mpnet"):
        BertConfig(model_type="gpt2")
