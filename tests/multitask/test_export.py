"""Exported encoders and heads give in transformers what they give here."""

import pytest
import torch
import transformers

from mtbert.bert.model import BertModel
from mtbert.config import ConfigError
from mtbert.data.tasks import TASKS, Task
from mtbert.multitask.export import ExportError, export_task

TEXTS = ["a bright story about a violin", "the dull kitchen", "a garden in winter, and a bicycle"]
AGE = Task(name="cfimdb", files="{split}", sentence_columns=("text",), label_column="age", kind="regression",
           label_range=(10, 90))  # fmt: skip


@pytest.fixture(autouse=True)
def age(monkeypatch):
    """cfimdb is a regression here."""
    monkeypatch.setitem(TASKS, "cfimdb", AGE)


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


def test_a_sentence_task_of_a_model_with_cosines_is_exported(model, tmp_path):
    fields = dict(pairs="concat", similarity="sigmoid_cosine", head_norm=True)
    assert export_task(model(("sts", "sst"), **fields), "sst", tmp_path, encoder_only=True) == "BertModel"


@pytest.mark.parametrize("fields, reason", [
    ({"head_layers": 2}, "head_layers is 2, not 1"),
    ({"head_norm": True}, "head_norm is True, not False"),
    ({"pairs": "concat"}, "pairs is 'concat', not 'joint'"),
    ({"pooling": "mean"}, "pooling is 'mean', not 'pooler'"),
    ({"pos_features": True}, "pos_features is True, not False"),
    ({"tasks": ("sst", "quora"), "feeds": ("sst>quora",)}, "feeds show it the outputs of other heads"),
])  # fmt: skip
def test_a_head_that_transformers_does_not_have_is_not_left_out_unasked(model, tmp_path, fields, reason):
    ours = model(**{"tasks": ("quora",), "pooling": "pooler"} | fields)
    with pytest.raises(ExportError, match=rf"the one of quora: {reason}\. .*encoder_only=True"):
        export_task(ours, "quora", tmp_path)
    assert not list(tmp_path.iterdir())
    assert export_task(ours, "quora", tmp_path, encoder_only=True) == "BertModel"


def test_an_encoder_with_adapters_is_not_exported_without_them(model, tmp_path):
    with pytest.raises(ExportError, match=r"sst has an adapter \(PAL\), without which its encoder gives other hidden"):
        export_task(model(adapter="pal", adapter_size=12, adapter_heads=4), "sst", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_task_that_the_model_does_not_have_is_named(model, tmp_path):
    with pytest.raises(ConfigError, match="task is 'sts'; this model has sst"):
        export_task(model(), "sts", tmp_path)
    with pytest.raises(ConfigError, match=r"several tasks; name one with task=\.\.\.: sst, quora"):
        export_task(model(("sst", "quora")), None, tmp_path)
