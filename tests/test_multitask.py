"""The encoder under its heads: freezing, options, saving."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from mtbert.bert import BertModel
from mtbert.config import ConfigError, RunConfig
from mtbert.heads import sentence_embedding
from mtbert.hub import CheckpointError
from mtbert.multitask import MultitaskBert, parameter_counts, pick_device
from mtbert.tokens import tokenize

FIRST = ["the kettle sings", "a long walk along the river at dawn", "no"]
SECOND = ["a kettle whistles", "nobody walks by the river", "yes, it is"]
TABLE = pd.DataFrame({"id": list("abc"), "sentence": FIRST, "sentence1": FIRST, "sentence2": SECOND})


@pytest.fixture
def build(tiny_encoder):
    """A model of some configuration, built after seed 0."""

    def build(**fields) -> MultitaskBert:
        torch.manual_seed(0)
        return MultitaskBert(RunConfig.from_params({"encoder": tiny_encoder, **fields}))

    return build


def batch_of(model: MultitaskBert, task: str):
    config = model.run_config
    return tokenize(task, TABLE, config.encoder, config.pairs, config.max_length).batch(np.arange(3))


def test_a_head_for_every_scored_task(build):
    model = build(tasks=["sst"], score_tasks=["sts", "quora"]).eval()
    assert list(model.heads) == ["sst", "sts", "quora"]
    assert model("sst", batch_of(model, "sst")).shape == (3, 5)
    assert model("sts", batch_of(model, "sts")).shape == (3,)


@pytest.mark.parametrize("pooling", ["pooler", "cls", "mean"])
@pytest.mark.parametrize("pairs", ["joint", "sum", "concat"])
def test_features_are_pooled_pairs(build, pairs, pooling):
    model = build(tasks=["sts"], pairs=pairs, pooling=pooling).eval()
    features = model.features("sts", batch_of(model, "sts"))

    def embed(columns: list[str]) -> torch.Tensor:
        task = "sts" if len(columns) == 2 else "sst"
        table = TABLE if len(columns) == 2 else TABLE[["id"]].assign(sentence=TABLE[columns[0]])
        batch = tokenize(task, table, model.run_config.encoder).batch(np.arange(3))
        output = model.encoder(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        return sentence_embedding(output, batch.attention_mask, pooling)

    expected = {
        "joint": lambda: embed(["sentence1", "sentence2"]),
        "sum": lambda: embed(["sentence1"]) + embed(["sentence2"]),
        "concat": lambda: torch.cat((embed(["sentence1"]), embed(["sentence2"])), dim=1),
    }[pairs]()
    torch.testing.assert_close(features, expected, atol=1e-5, rtol=1e-5)


def test_a_frozen_encoder_learns_nothing_and_drops_nothing(build):
    model = build(frozen=True, head_dropout=0.0).train()
    assert model.heads.training and not any(module.training for module in model.encoder.modules())
    batch = batch_of(model, "sst")
    first = model("sst", batch)
    assert torch.equal(first, model("sst", batch))
    first.sum().backward()
    assert all(p.grad is None for p in model.encoder.parameters())
    assert all(p.grad is not None for p in model.heads.parameters())


def test_an_encoder_that_is_fine_tuned_learns_and_drops(build):
    model = build(head_dropout=0.0).train()
    batch = batch_of(model, "sst")
    first = model("sst", batch)
    assert not torch.equal(first, model("sst", batch))
    first.sum().backward()
    assert {n for n, p in model.encoder.named_parameters() if p.grad is None} == {"pooler.weight", "pooler.bias"}


def test_parameter_counts(build):
    counts = parameter_counts(build(frozen=True))
    d, i = 32, 48
    layer = 4 * (d * d + d) + 2 * d * i + i + d + 4 * d
    encoder = (30522 + 512 + 2 + 2) * d + 2 * layer + d * d + d
    assert counts == {"parameters": encoder + 5 * d + 5, "trained_parameters": 5 * d + 5}
    assert parameter_counts(build())["trained_parameters"] == encoder + 5 * d + 5


def test_saved_and_loaded_logits_are_equal(build, tmp_path):
    model = build(tasks=["quora"], score_tasks=["sst"], pairs="concat", seed=4).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save(tmp_path / "model")
    loaded = MultitaskBert.load(tmp_path / "model")
    assert loaded.run_config == model.run_config and not loaded.training
    for task in ("quora", "sst"):
        assert torch.equal(loaded(task, batch_of(model, task)), model(task, batch_of(model, task)))


def test_the_saved_encoder_is_a_checkpoint(build, tmp_path):
    model = build()
    model.save(tmp_path)
    states = BertModel.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(tensor, states[name]) for name, tensor in model.encoder.state_dict().items())


@pytest.mark.parametrize("name", ["run_config.json", "heads.safetensors"])
def test_a_missing_part_of_a_saved_model_is_named(build, tmp_path, name):
    build().save(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        MultitaskBert.load(tmp_path)


def test_max_length_over_the_positions(build):
    with pytest.raises(CheckpointError, match=r"max_length is 513.*512 positions"):
        build(max_length=513)


def test_attention_dropout_is_applied(build):
    assert [layer.attention.dropout for layer in build().encoder.layers] == [0.1, 0.1]
    model = build(attention_dropout=0.0, head_dropout=0.0)
    assert [layer.attention.dropout for layer in model.encoder.layers] == [0.0, 0.0]


def test_random_weights_are_a_function_of_the_seed(build):
    pretrained, random = build(), build(weights="random")
    assert random.encoder.config == pretrained.encoder.config
    models = pretrained, random, build(weights="random")
    weights = [model.encoder.layers[0].feed_forward_in.weight for model in models]
    assert not torch.equal(weights[0], weights[1])
    assert torch.equal(weights[1], weights[2])
    torch.manual_seed(1)
    assert not torch.equal(MultitaskBert(random.run_config).encoder.layers[0].feed_forward_in.weight, weights[1])


def test_stored_configuration_is_plain_json(build, tmp_path):
    build(tasks=["sts"]).save(tmp_path)
    content = json.loads((tmp_path / "run_config.json").read_text())
    assert content["tasks"] == ["sts"] and set(content) == set(RunConfig.model_fields)


def test_devices():
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_gpu_is_named():
    with pytest.raises(ConfigError, match="no GPU is available here; use 'cpu' or 'auto'"):
        pick_device("cuda")
