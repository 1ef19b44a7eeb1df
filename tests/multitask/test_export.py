"""Exported encoders and heads give in transformers what they give here."""

import logging

import numpy as np
import pytest
import torch
import transformers

from mtbert.bert.hub import CheckpointError, locate
from mtbert.bert.model import BertModel
from mtbert.config import ConfigError
from mtbert.data.tasks import TASKS, Task
from mtbert.multitask.export import ExportError, export_task
from mtbert.multitask.model import MultitaskBert
from mtbert_lab.model_card import export_with_card
from mtbert_lab.store.runs import score_table

TEXTS = ["a bright story about a violin", "the dull kitchen", "a garden in winter, and a bicycle"]
AGE = Task(name="cfimdb", files="{split}", sentence_columns=("text",), label_column="age", kind="regression",
           label_range=(10, 90))  # fmt: skip


@pytest.fixture
def model(tiny_config, monkeypatch):
    """A model of plan I2, in which every task has an encoder of its own, with other weights than it starts from.

    cfimdb is a regression here.
    """

    def model(tasks=("sst",), **fields) -> MultitaskBert:
        monkeypatch.setitem(TASKS, "cfimdb", AGE)
        torch.manual_seed(5)
        found = MultitaskBert(tiny_config.but(tasks=tasks, plan="I2", **fields)).eval()
        with torch.no_grad():
            for parameter in found.parameters():
                parameter += 0.05 * torch.randn_like(parameter)
        return found

    return model


def read(folder, texts, reader):
    """What a class of transformers gives for texts, with the tokenizer of the folder."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    columns = [list(column) for column in zip(*texts, strict=True)] if isinstance(texts[0], tuple) else [texts]
    batch = tokenizer(*columns, return_tensors="pt", padding=True)
    with torch.no_grad():
        return batch, reader.from_pretrained(folder).eval()(**batch)


@pytest.mark.parametrize("pooling", ["mean", "pooler"])
@pytest.mark.parametrize("task", ["sst", "quora"])
def test_the_encoder_and_the_tokenizer_are_read_back(model, tmp_path, task, pooling):
    ours = model(("sst", "quora"), pooling=pooling)
    name = export_task(ours, task, tmp_path, encoder_only=pooling == "mean")
    assert name == {"mean": "BertModel", "pooler": "BertForSequenceClassification"}[pooling]
    texts = TEXTS if task == "sst" else list(zip(TEXTS, reversed(TEXTS), strict=True))
    batch, theirs = read(tmp_path, texts, transformers.AutoModel)
    mine = ours.encoder.task_encoder(task)(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])
    tokens = batch["attention_mask"].bool()
    torch.testing.assert_close(theirs.last_hidden_state[tokens], mine.last_hidden_state[tokens])
    torch.testing.assert_close(theirs.pooler_output, mine.pooler_output)
    again = BertModel.from_pretrained(tmp_path)
    assert torch.equal(
        again.layers[1].feed_forward_in.weight, ours.encoder.task_encoder(task).layers[1].feed_forward_in.weight
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == 30522 and tokenizer.model_max_length == 512


@pytest.mark.parametrize("task", ["sst", "quora", "sts", "cfimdb"])
def test_pipelines_of_transformers_give_our_numbers(model, tmp_path, monkeypatch, task):
    words = ("awful", "bad", "fair", "good", "great")
    monkeypatch.setitem(TASKS, "sst", TASKS["sst"].model_copy(update={"class_names": words}))
    ours = model((task,), pooling="pooler")
    with torch.no_grad():
        ours.heads.by_task[task].layers[0].bias[0] += 0.5  # of a number: far from where a sigmoid ends
    export_task(ours, task, tmp_path)
    pairs = list(zip(TEXTS, reversed(TEXTS), strict=True))
    given = [{"text": first, "text_pair": second} for first, second in pairs] if TASKS[task].is_pair else TEXTS
    found = transformers.pipeline("text-classification", model=str(tmp_path), device="cpu")(given)
    mine = ours.predict(pairs if TASKS[task].is_pair else TEXTS, task)
    if TASKS[task].is_number:
        low, high = TASKS[task].label_range
        scores = [min(max(one["score"], low), high) for one in found]
        assert scores == pytest.approx(mine["predicted"].tolist(), rel=1e-4) and {one["label"] for one in found} == {
            task
        }
        assert "confidence" not in mine and min(scores) > 1
    else:
        assert [one["label"] for one in found] == [str(label) for label in mine["predicted"]]
        assert [one["score"] for one in found] == pytest.approx(mine["confidence"].tolist(), rel=1e-4)
        assert {*mine["predicted"]} <= {*words} or task == "quora"


@pytest.mark.parametrize("task, max_length", [("sst", 8), ("quora", 12), ("quora", 13)])
def test_a_pipeline_cuts_long_texts_where_our_model_cuts_them(model, tmp_path, task, max_length):
    """Pairs to the same tokens, too; by the lines of the model card."""
    ours = model((task,), pooling="pooler", max_length=max_length)
    export_with_card(ours, task, tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "truncation=True)" in card and f"cut to {max_length} tokens" in card
    texts = [f"{text} {text}" for text in TEXTS]
    pairs = list(zip(texts, reversed(texts), strict=True))
    given = [{"text": first, "text_pair": second} for first, second in pairs] if task == "quora" else texts
    found = transformers.pipeline("text-classification", model=str(tmp_path), device="cpu")(given, truncation=True)
    mine = ours.predict(pairs if task == "quora" else texts, task)
    assert [one["score"] for one in found] == pytest.approx(mine["confidence"].tolist(), rel=1e-4)


def test_a_pipeline_reads_the_encoder_alone(model, tmp_path):
    ours = model(pooling="mean")
    export_task(ours, "sst", tmp_path, encoder_only=True)
    [theirs] = transformers.pipeline("feature-extraction", model=str(tmp_path), device="cpu")(TEXTS[0])
    batch, _ = read(tmp_path, TEXTS[:1], transformers.AutoModel)
    mine = ours.encoder.task_encoder("sst")(batch["input_ids"], batch["attention_mask"]).last_hidden_state[0]
    torch.testing.assert_close(torch.tensor(theirs), mine.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fields, reason", [
    ({"head_layers": 2}, "head_layers is 2, not 1"),
    ({"head_norm": True}, "head_norm is True, not False"),
    ({"pairs": "concat"}, "pairs is 'concat', not 'joint'"),
    ({"pooling": "mean"}, "pooling is 'mean', not 'pooler'"),
])  # fmt: skip
def test_a_head_that_transformers_does_not_have_is_not_left_out_unasked(model, tmp_path, fields, reason):
    ours = model(("quora",), **{"pooling": "pooler"} | fields)
    with pytest.raises(ExportError, match=f"{reason}.*encoder_only=True"):
        export_with_card(ours, "quora", tmp_path)
    assert not list(tmp_path.iterdir())
    assert export_with_card(ours, "quora", tmp_path, encoder_only=True) == "BertModel"
    assert "random weights" in (tmp_path / "README.md").read_text()


def test_the_model_card_has_the_scores_with_intervals(model, tmp_path):
    scores = score_table("quora", "dev", np.array([0, 1, 1, 0]), np.array([0, 1, 0, 0]))
    export_with_card(model(("quora",), pooling="pooler"), "quora", tmp_path, False, "0123456789-abcd", scores)
    card = (tmp_path / "README.md").read_text()
    row = scores.iloc[0]
    assert f"| accuracy | 0.750 | {row.low:.3f} to {row.high:.3f} | 4 |" in card
    assert "pipeline_tag: text-classification" in card and "| plan | I2, trained on quora |" in card
    assert "| run | 0123456789-abcd of mtbert" in card and "- quora: licence Quora's terms, non-commercial" in card


def test_an_export_does_not_overwrite_another_readme(model, tmp_path):
    (tmp_path / "README.md").write_text("My project\n")
    with pytest.raises(ExportError, match=r"README.md is no model card of an export.*name another folder"):
        export_with_card(model(pooling="pooler"), "sst", tmp_path)
    (tmp_path / "README.md").unlink()
    for _ in range(2):
        export_with_card(model(pooling="pooler"), "sst", tmp_path)


def test_a_sentence_task_of_a_model_with_cosines_is_exported(model, tmp_path):
    fields = dict(pairs="concat", similarity="sigmoid_cosine", head_norm=True)
    assert export_task(model(("sts", "sst"), **fields), "sst", tmp_path, encoder_only=True) == "BertModel"


def test_an_encoder_with_adapters_is_not_exported_without_them(model, tmp_path):
    with pytest.raises(ExportError, match=r"sst has an adapter \(PAL\), without which its encoder gives other hidden"):
        export_task(model(adapter="pal", adapter_size=12, adapter_heads=4), "sst", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_task_that_the_model_does_not_have_is_named(model, tmp_path):
    with pytest.raises(ConfigError, match="task is 'sts'; this model has sst"):
        export_task(model(), "sts", tmp_path)
    with pytest.raises(ConfigError, match=r"several tasks; name one with task=\.\.\.: sst, quora"):
        export_task(model(("sst", "quora")), None, tmp_path)


def test_save_pretrained_writes_the_tokenizer(tmp_path, tiny_encoder, caplog):
    BertModel.from_pretrained("minilm").save_pretrained(tmp_path / "minilm")
    ours, theirs = (transformers.AutoTokenizer.from_pretrained(f) for f in (tmp_path / "minilm", locate("minilm")))
    assert ours.get_vocab() == theirs.get_vocab() and ours(TEXTS)["input_ids"] == theirs(TEXTS)["input_ids"]
    with caplog.at_level(logging.WARNING):
        BertModel(BertModel.from_pretrained(tiny_encoder).config).save_pretrained(tmp_path / "random")
        assert not caplog.text  # it has no tokenizer that could be missed
        (tmp_path / "minilm" / "tokenizer.json").unlink()
        (tmp_path / "minilm" / "SHA256SUMS").unlink()
        BertModel.from_pretrained(tmp_path / "minilm").save_pretrained(tmp_path / "none")
    assert "none: written without a tokenizer" in caplog.text


def test_names_of_classes_and_plans_are_text_on_the_model_card(tiny_config, monkeypatch, tmp_path):
    labels = {"class_names": ("<b>a</b>", "*b*|"), "kind": "classes", "num_classes": 2}
    own = Task(name="own", files="{split}.csv", sentence_columns=("text",), label_column="label", **labels)
    monkeypatch.setitem(TASKS.data, "own", own)
    config = tiny_config.but(tasks=("own", "sst"), plan="S1(own|sst) I1")
    export_with_card(MultitaskBert(config), "own", tmp_path, encoder_only=True)
    card = (tmp_path / "README.md").read_text()
    assert r"one of \<b\>a\</b\>, \*b\*\|" in card and r"| plan | S1(own\|sst) I1, trained on" in card


def test_a_tokenizer_may_be_saved_into_the_folder_of_an_encoder(tmp_path, tiny_encoder):
    """Where there was none, and the same once more after it was used with padding; another one is refused."""
    BertModel(BertModel.from_pretrained(tiny_encoder).config).save_pretrained(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(locate("minilm"))
    theirs.save_pretrained(tmp_path)
    BertModel.from_pretrained(tmp_path)
    BertModel.from_pretrained(tmp_path).save_pretrained(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    theirs(["a dull day", "a day"], padding=True, truncation=True, max_length=8)
    theirs.save_pretrained(tmp_path)
    assert '"padding": null' not in (tmp_path / "tokenizer.json").read_text()
    BertModel.from_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text().replace('"lowercase": true', '"lowercase": false'))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is damaged or was changed"):
        BertModel.from_pretrained(tmp_path)
