"""An export with its model card: what the card says, and that its lines give our numbers."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import transformers

from mtbert.data.tasks import TASKS, Task
from mtbert.multitask.export import ExportError
from mtbert.multitask.model import MultitaskBert
from mtbert_lab.model_card import _score_table, export_with_card

TEXTS = ["a bright story about a violin", "the dull kitchen", "a garden in winter, and a bicycle"]


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


def test_the_model_card_has_the_stored_run(model, synthetic, tmp_path):
    """Its scores with intervals, and the version that trained it."""
    trained = model(("quora",), pooling="pooler")
    encoder = Path(trained.run_config.encoder)
    run = synthetic(trained.run_config, 0.75, provenance={"mtbert": "0.3.0"})
    export_with_card(trained, "quora", tmp_path, run=run)
    card = (tmp_path / "README.md").read_text()
    row = run.scores.iloc[0]
    assert f"| accuracy | 0.750 | {row.low:.3f} to {row.high:.3f} | 400 |" in card
    assert "pipeline_tag: text-classification" in card and "| plan | I2, trained on quora |" in card
    assert f"| run | {run.run_id} of mtbert 0.3.0 |" in card and f"| {encoder.name} (" in card
    assert "- quora: licence Quora's terms, non-commercial" in card and str(encoder.parent) not in card


def test_an_export_does_not_overwrite_another_readme(model, tmp_path):
    (tmp_path / "README.md").write_text("My project\n")
    with pytest.raises(ExportError, match=r"README.md is no model card of an export.*name another folder"):
        export_with_card(model(pooling="pooler"), "sst", tmp_path)
    (tmp_path / "README.md").unlink()
    for _ in range(2):
        export_with_card(model(pooling="pooler"), "sst", tmp_path)


def test_an_export_does_not_overwrite_another_model(model, tmp_path):
    ours = model(pooling="pooler")
    saved = tmp_path / "saved"
    ours.save(saved)
    with pytest.raises(ExportError, match=r"another model \(run_config.json\), which would be overwritten"):
        export_with_card(ours, "sst", saved)
    encoder = tmp_path / "encoder"
    ours.encoder.task_encoder("sst").save_pretrained(encoder)
    with pytest.raises(ExportError, match=r"another model \(config.json\), which would be overwritten"):
        export_with_card(ours, "sst", encoder)


def test_a_score_without_an_interval_has_none_on_the_card():
    scores = pd.DataFrame([{"task": "sst", "metric": "accuracy", "value": 1.0, "low": np.nan, "high": np.nan, "n": 9}])
    assert "| accuracy | 1.000 | – | 9 |" in _score_table("sst", scores)


def test_names_of_classes_and_plans_are_text_on_the_model_card(tiny_config, monkeypatch, tmp_path):
    labels = {"class_names": ("<b>a</b>", "*b*|"), "kind": "classes", "num_classes": 2}
    own = Task(name="own", files="{split}.csv", sentence_columns=("text",), label_column="label", **labels)
    monkeypatch.setitem(TASKS.data, "own", own)
    config = tiny_config.but(tasks=("own", "sst"), plan="S1(own|sst) I1")
    export_with_card(MultitaskBert(config), "own", tmp_path, encoder_only=True)
    card = (tmp_path / "README.md").read_text()
    assert r"one of \<b\>a\</b\>, \*b\*\|" in card and r"| plan | S1(own\|sst) I1, trained on" in card
    assert "random weights" in card, "its head is left out"
