"""The encoder under its heads: freezing, options, saving."""

import json
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch

from mtbert.bert import BertModel
from mtbert.bert.hub import CheckpointError
from mtbert.config import ConfigError, RunConfig
from mtbert.data import TASKS
from mtbert.data.tokens import tokenize
from mtbert.files import write_checksums
from mtbert.multitask.heads import sentence_embedding
from mtbert.multitask.model import MultitaskBert, parameter_counts

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


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_logits_have_the_type_of_the_weights(build, precision):
    model = build(tasks=["sts"], precision=precision).eval()
    assert model({"sts": batch_of(model, "sts")})["sts"].dtype == torch.float32
    if precision == "fp32":
        assert model.double()({"sts": batch_of(model, "sts")})["sts"].dtype == torch.float64


@pytest.mark.parametrize("pooling", ["pooler", "cls", "mean"])
@pytest.mark.parametrize("pairs", ["joint", "sum", "concat+product"])
def test_embeddings_are_pooled_states(build, pairs, pooling):
    """Both sentences in one sequence give one embedding, apart they give two, each that of its sentence."""
    model = build(tasks=["sts"], pairs=pairs, pooling=pooling).eval()
    embeddings = model.embed({"sts": batch_of(model, "sts")})["sts"]
    encoder = model.encoder.task_encoder("sts")

    def expected(column: str | None) -> torch.Tensor:
        table, task = (TABLE, "sts") if column is None else (TABLE[["id"]].assign(sentence=TABLE[column]), "sst")
        batch = tokenize(task, table, model.run_config.encoder).batch(np.arange(3))
        output = encoder(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        if pooling == "pooler":
            return output.pooler_output
        return sentence_embedding(output.last_hidden_state, batch.attention_mask, pooling)

    columns = [None] if pairs == "joint" else ["sentence1", "sentence2"]
    torch.testing.assert_close(embeddings, torch.stack([expected(c) for c in columns], dim=1), atol=1e-5, rtol=1e-5)


def test_a_frozen_encoder_learns_nothing_and_drops_nothing(build):
    model = build(frozen=True, head_dropout=0.0).train()
    assert model.embeddings_are_fixed and model.heads.training
    assert not any(module.training for name, module in model.encoder.named_modules() if name.count(".") > 1)
    batch = {"sst": batch_of(model, "sst")}
    first = model(batch)["sst"]
    assert torch.equal(first, model(batch)["sst"])
    first.sum().backward()
    assert all(p.grad is None for p in model.encoder.parameters())
    assert all(p.grad is not None for p in model.heads.parameters())


def test_an_encoder_that_is_fine_tuned_learns_and_drops(build):
    model = build(head_dropout=0.0).train()
    batch = {"sst": batch_of(model, "sst")}
    first = model(batch)["sst"]
    assert not torch.equal(first, model(batch)["sst"])
    first.sum().backward()
    unused = {name for name, p in model.encoder.named_parameters() if p.grad is None}
    assert unused == {"poolers.0.weight", "poolers.0.bias"}


PLANS = ("1-bert", "3-bert", "hybrid-1", "S2(sst,quora|sts)", "F1 S1", "I1 S1", "emb:S I2 pool:S", "frozen")


@pytest.mark.parametrize(
    "plan, pooling, upstream",
    [
        *((plan, "mean", "frozen") for plan in PLANS),
        ("3-bert", "pooler", "frozen"),
        ("emb:S I2 pool:S", "pooler", "free"),
        ("S2(sst,quora|sts)", "pooler", "free"),
        ("1-bert", "mean", "free"),
    ],
)
def test_shared_parameters_get_a_gradient_from_several_tasks(build, plan, pooling, upstream):
    """Measured: the parameters that the backward passes of at least two tasks reach."""
    model = build(tasks=["sst", "quora", "sts"], plan=plan, pooling=pooling, feeds=["sst>sts"], upstream=upstream)
    reached = Counter()
    for task in ("sst", "quora", "sts"):
        model.zero_grad()
        model({task: batch_of(model, task)})[task].sum().backward()
        reached.update(name for name, p in model.named_parameters() if p.grad is not None)
    assert set(model.shared_parameters()) == {name for name, times in reached.items() if times > 1}


def test_scored_tasks_do_not_make_a_parameter_shared(build):
    assert not build(tasks=["sst"], score_tasks=["sts"]).shared_parameters()


def test_table_has_a_row_for_adapters_and_heads(build):
    model = build(tasks=["sst", "sts"], plan="S1 I1", adapter="lhuc")
    table = model.table()
    assert list(table.index) == ["embeddings", "layer 1", "layer 2", "pooler", "adapters", "heads"]
    assert table["parameters"].sum() == parameter_counts(model)["parameters"]
    assert table["trained"].sum() == parameter_counts(model)["trained_parameters"]
    assert "adapters" not in build(tasks=["sst"]).table().index
    cosine = build(tasks=["sst", "sts"], pairs="concat", similarity="sigmoid_cosine")  # STS has no head
    assert cosine.table().loc["heads", ["groups", "copies"]].tolist() == ["sst", 1]


def test_parameter_counts(build):
    counts = parameter_counts(build(frozen=True))
    d, i = 32, 48
    layer = 4 * (d * d + d) + 2 * d * i + i + d + 4 * d
    encoder = (30522 + 512 + 2 + 2) * d + 2 * layer + d * d + d
    assert counts == {"parameters": encoder + 5 * d + 5, "trained_parameters": 5 * d + 5}
    assert parameter_counts(build())["trained_parameters"] == encoder + 5 * d + 5


def test_a_model_of_an_unknown_task_is_not_called_damaged(build, tmp_path, monkeypatch):
    build(tasks=["sst", "sts"]).save(tmp_path)
    monkeypatch.setattr(TASKS, "data", {"sts": TASKS["sts"]})
    with pytest.raises(CheckpointError, match="tasks: 'sst' is not known; MTBERT_TASKS names"):
        MultitaskBert.load(tmp_path)


@pytest.mark.parametrize("texts", ["the kettle sings", {"sentence": "a"}, pd.DataFrame({"sentence": ["a", "b"]})])
def test_one_string_or_a_table_is_no_list_of_texts(build, texts):
    with pytest.raises(ConfigError, match=f"texts: one {type(texts).__name__}; pass a list"):
        build().predict(texts)


@pytest.mark.parametrize("text", ["a \udcff byte", 5, None, b"bytes", ("a", "b"), ["\ud800"], [3], {"sentence": "a"}])
def test_what_is_no_text_is_named(build, text):
    message = r"texts: (number 1 has .*, which is no text in UTF-8|an example of sst has 1 text .*number 1 has)"
    with pytest.raises(ConfigError, match=message):
        build().predict(["a kettle", text])


def test_own_weights_are_those_of_the_task_not_of_its_namesake(build, monkeypatch):
    monkeypatch.setitem(TASKS, "sst2", TASKS["sst"].model_copy(update={"name": "sst2"}))
    config = build(tasks=["sst", "quora"], scheme="unified", weighting="uncertainty").run_config
    model = MultitaskBert(config.model_copy(update={"tasks": ("sst", "sst2")}))
    assert {name for name in model.own_weights("sst") if "log_variances" in name} == {"log_variances.sst"}


def test_what_a_scored_task_shares_is_the_own_of_the_one_that_trains(build):
    model = MultitaskBert(build(tasks=["sst"], score_tasks=["sts"]).run_config)
    encoder = {f"encoder.{name}" for name, weight in model.encoder.named_parameters() if weight.requires_grad}
    assert encoder <= model.own_weights("sst")


@pytest.mark.parametrize("name", ["run_config.json", "encoder.json", "model.safetensors"])
def test_a_missing_part_of_a_saved_model_is_named(build, tmp_path, name):
    build().save(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        MultitaskBert.load(tmp_path)


def test_a_model_of_another_version_is_not_called_damaged(build, tmp_path):
    build().save(tmp_path)
    path = tmp_path / "run_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"checkpoint_layers": False}))
    write_checksums(tmp_path)
    with pytest.raises(CheckpointError, match="checkpoint_layers: unknown key"):
        MultitaskBert.load(tmp_path)


@pytest.mark.parametrize("fields", [dict(layers=1), dict(attention_dropout=0.5)])
def test_an_encoder_that_is_given_has_what_the_configuration_says(build, tiny_encoder, fields):
    encoder = BertModel.from_pretrained(tiny_encoder)
    config = build(tasks=["sst"]).run_config
    assert MultitaskBert(config, encoder).run_config == config
    [(field, value)] = fields.items()
    with pytest.raises(ConfigError, match=f"{field}: {value}, but the encoder given has"):
        MultitaskBert(config.but(**fields), encoder)


def test_spaces_around_a_text_are_no_part_of_it(build):
    """As in a table: a tokenizer that keeps them would read another text."""
    model = build()
    pd.testing.assert_frame_equal(model.predict([" fine \n"]), model.predict(["fine"]))


def test_max_length_over_the_positions(build):
    with pytest.raises(CheckpointError, match=r"max_length is 513.*512 positions"):
        build(max_length=513)


def test_attention_dropout_is_applied(build):
    assert [layer[0].attention.dropout for layer in build().encoder.layers] == [0.1, 0.1]
    model = build(attention_dropout=0.0, head_dropout=0.0)
    assert [layer[0].attention.dropout for layer in model.encoder.layers] == [0.0, 0.0]


def test_random_weights_are_a_function_of_the_seed(build):
    pretrained, random = build(), build(weights="random")
    assert random.encoder.config == pretrained.encoder.config
    models = pretrained, random, build(weights="random")
    weights = [model.encoder.layers[0][0].feed_forward_in.weight for model in models]
    assert not torch.equal(weights[0], weights[1])
    assert torch.equal(weights[1], weights[2])
    torch.manual_seed(1)
    assert not torch.equal(MultitaskBert(random.run_config).encoder.layers[0][0].feed_forward_in.weight, weights[1])


def test_the_encoder_of_the_first_layers(tiny_config):
    whole = BertModel.from_pretrained(tiny_config.encoder)
    model = MultitaskBert(tiny_config.but(layers=1))
    assert len(model.encoder.plan.layers) == 1 and model.encoder.config.num_hidden_layers == 1
    torch.testing.assert_close(model.encoder.layers[0][0].state_dict(), whole.layers[0].state_dict())
