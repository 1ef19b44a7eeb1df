"""A saved model brings all that its predictions depend on, or says what has changed since."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
import transformers

from mtbert.bert.hub import CheckpointError
from mtbert.config import RunConfig
from mtbert.data.tasks import TASKS, Task
from mtbert.data.tokens import load_tokenizer
from mtbert.multitask.export import export_task
from mtbert.multitask.model import MultitaskBert
from mtbert.paths import REPOSITORY

TEXTS = ["A Bright Story about a Violin", "the dull kitchen", "a Garden in winter, and a bicycle"]
FIELDS = dict(name="cfimdb", files="{split}.csv", sentence_columns=("text",), label_column="label")
CLASSES = FIELDS | dict(kind="classes", class_names=("bad", "good"))
NUMBER = FIELDS | dict(kind="regression", label_range=(0, 5))


@pytest.fixture
def define(monkeypatch):
    """Give the task cfimdb other fields, as an edit of its YAML file does."""
    return lambda **fields: monkeypatch.setitem(TASKS, "cfimdb", Task(**fields))


@pytest.fixture
def encoder(tiny_encoder, tmp_path) -> Path:
    return Path(shutil.copytree(tiny_encoder, tmp_path / "encoder"))


@pytest.fixture
def model(encoder, shake) -> MultitaskBert:
    torch.manual_seed(5)
    return shake(MultitaskBert(RunConfig(tasks=("cfimdb",), encoder=str(encoder))).eval())


def change_tokenizer(encoder: Path) -> None:
    """Another tokenizer in the folder of an encoder: two words have changed places in its vocabulary."""
    path = encoder / "tokenizer.json"
    content = json.loads(path.read_text())
    words = content["model"]["vocab"]
    words["bright"], words["winter"] = words["winter"], words["bright"]
    path.write_text(json.dumps(content))
    (encoder / "SHA256SUMS").unlink()


# --- tasks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "before, after, change",
    [
        (CLASSES, {"class_names": ("good", "bad")}, r"class_names was \['bad', 'good'\], is \['good', 'bad'\]"),
        (CLASSES, {"class_names": ("bad", "good", "fair")}, r"num_classes was 2, is 3"),
        (CLASSES, {"kind": "binary"}, "kind was 'classes', is 'binary'"),
        (CLASSES, {"sentence_columns": ("title",)}, r"sentence_columns was \['text'\], is \['title'\]"),
        (CLASSES, {"sentence_columns": ("text", "title")}, r"sentence_columns was \['text'\], is \['text', 'title'\]"),
        (NUMBER, {"label_range": (0, 10)}, r"label_range was \[0.0, 5.0\], is \[0.0, 10.0\]"),
    ],
)
def test_a_task_that_was_changed_after_training_is_named(define, model, tmp_path, before, after, change):
    define(**before)
    model = MultitaskBert(model.run_config)
    model.save(tmp_path / "model")
    MultitaskBert.load(tmp_path / "model")
    define(**before | after)
    with pytest.raises(CheckpointError, match=rf"trained with other tasks than those here: cfimdb: .*{change}"):
        MultitaskBert.load(tmp_path / "model")


def test_where_a_task_s_files_are_and_how_they_are_read_may_change(define, model, tmp_path):
    define(**CLASSES)
    model.save(tmp_path / "model")
    define(**CLASSES | {"files": "new/{split}.csv", "separator": ",", "metric": "macro_f1", "id_column": None})
    MultitaskBert.load(tmp_path / "model")


def test_a_fault_of_a_task_s_file_is_not_called_one_of_the_model(model, tmp_path):
    """In a fresh process, where reading the model reads the tasks."""
    model.save(tmp_path / "model")
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "topics.yaml").write_text("name: topics\nkinds: classes\n")
    code = f"from mtbert import MultitaskBert; MultitaskBert.load({str(tmp_path / 'model')!r})"
    environment = {**os.environ, "MTBERT_TASKS": str(tmp_path / "tasks")}
    failed = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=REPOSITORY, capture_output=True, text=True
    )
    assert "DataError" in failed.stderr and "did you mean kind?" in failed.stderr
    assert "damaged" not in failed.stderr


def test_a_model_that_is_saved_over_another_has_one_tokenizer(model, tmp_path):
    model.save(tmp_path / "model")
    for name in ("merges.txt", ".DS_Store"):
        (tmp_path / "model" / "tokenizer" / name).write_text("of another one")
    model.save(tmp_path / "model")
    assert not (tmp_path / "model" / "tokenizer" / "merges.txt").exists()
    MultitaskBert.load(tmp_path / "model")
    (tmp_path / "model" / "tokenizer" / ".DS_Store").write_text("made by a file manager")
    MultitaskBert.load(tmp_path / "model")


# --- tokenizer and encoder --------------------------------------------------------------------------------------------


def test_a_model_predicts_with_the_tokenizer_that_it_was_trained_with(model, encoder, tmp_path):
    before = model.predict(TEXTS)
    model.save(tmp_path / "model")
    change_tokenizer(encoder)
    assert not before.equals(model.predict(TEXTS)), "the folder has another tokenizer now"
    pd.testing.assert_frame_equal(MultitaskBert.load(tmp_path / "model").predict(TEXTS), before)
    shutil.rmtree(encoder)
    loaded = MultitaskBert.load(tmp_path / "model")
    assert loaded.run_config == model.run_config and not loaded.training
    pd.testing.assert_frame_equal(loaded.predict(TEXTS), before)
    loaded.save(tmp_path / "model")
    loaded.save(tmp_path / "copy")
    pd.testing.assert_frame_equal(MultitaskBert.load(tmp_path / "copy").predict(TEXTS), before)


def test_a_model_is_exported_with_the_tokenizer_that_it_was_trained_with(model, encoder, tmp_path):
    ids = load_tokenizer(encoder).encode(TEXTS[0]).ids
    model.save(tmp_path / "model")
    change_tokenizer(encoder)
    assert load_tokenizer(encoder).encode(TEXTS[0]).ids != ids
    export_task(MultitaskBert.load(tmp_path / "model"), None, tmp_path / "exported", encoder_only=True)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")(TEXTS[0])["input_ids"] == ids


def test_token_types_are_those_of_the_encoder_of_the_model(encoder, tmp_path):
    """They come from its config.json: a pair has other ids without them."""
    torch.manual_seed(5)
    model = MultitaskBert(RunConfig(tasks=("sts",), encoder=str(encoder))).eval()
    pairs = list(zip(TEXTS, reversed(TEXTS), strict=True))
    before = model.predict(pairs)
    model.save(tmp_path / "model")
    values = json.loads((encoder / "config.json").read_text())
    (encoder / "config.json").write_text(json.dumps(values | {"type_vocab_size": 1}))
    pd.testing.assert_frame_equal(MultitaskBert.load(tmp_path / "model").predict(pairs), before)
