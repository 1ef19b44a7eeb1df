"""What the viewers show, without a browser: attention, plans, predictions, a log; and that they need a live kernel."""

import matplotlib

matplotlib.use("Agg")

import ipywidgets
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from mtbert.analysis import errors
from mtbert.bert.model import BertConfig, BertModel
from mtbert.config import RunConfig
from mtbert.data.tokens import load_tokenizer
from mtbert.multitask.model import MultitaskBert
from mtbert.report import viewers
from mtbert.results.runs import model_folder
from mtbert.sharing.plan import PlanError
from mtbert.training import LOG

THREE = ("sst", "quora", "sts")


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture
def live(monkeypatch) -> list:
    """What is displayed in a kernel that a Jupyter server started."""
    monkeypatch.setenv("JPY_SESSION_NAME", "a.ipynb")
    shown = []
    monkeypatch.setattr(viewers, "display", shown.append)
    return shown


def controls(box: ipywidgets.VBox) -> dict:
    return {control.description: control for control in box.children[:-1]}


def test_attention_maps_are_those_of_the_layers(tiny_encoder):
    model, ids = BertModel.from_pretrained(tiny_encoder), torch.tensor([[101, 7592, 2088, 102]])
    with torch.no_grad():
        maps, states = viewers.attention_maps(model, ids), [model.embeddings(ids)]
        for layer in model.layers:
            states.append(layer(states[-1]))
    assert maps.shape == (2, 4, 4, 4)
    torch.testing.assert_close(maps.sum(-1), torch.ones(2, 4, 4))
    second = model.layers[1].attention
    value = second.value(states[1]).view(4, 4, 8).transpose(0, 1)  # (h, T, d_k)
    torch.testing.assert_close((maps[1] @ value).transpose(0, 1).reshape(1, 4, 32), second(states[1]))


def test_a_plan_is_drawn_with_its_parameters():
    encoder = BertConfig(num_hidden_layers=2, hidden_size=8, num_attention_heads=2, intermediate_size=16, vocab_size=20)
    assert viewers.plan_figure("S2", THREE, encoder).axes[0].get_title().endswith("1.00 times 1-bert")
    assert "I2" in viewers.plan_figure("I2", THREE, encoder).axes[0].get_title()
    with pytest.raises(PlanError):
        viewers.plan_figure("I3", THREE, encoder)


def test_the_plan_editor_writes_the_plan_of_its_buttons(live, capsys):
    viewers.plan_editor(THREE)
    parts = controls(live[-1])
    assert parts["plan"].value == "S6" and parts["layer 7"].layout.display == "none"
    parts["layer 1"].value = "F"
    parts["layer 6"].value = "I"
    assert parts["plan"].value == "F1 S4 I1"
    parts["encoder"].value = "bert-base-uncased, 12 layers"
    assert parts["plan"].value == "F1 S4 I1 S6"


def test_the_plan_editor_sets_its_buttons_to_a_plan_that_is_typed(live, capsys):
    viewers.plan_editor(THREE)
    parts = controls(live[-1])
    parts["plan"].value = "hybrid-3"
    assert [parts[f"layer {i}"].value for i in range(1, 7)] == list("SSSIII")
    parts["plan"].value = "emb:F S4(sst,sts|quora) I2"
    assert [parts[f"layer {i}"].value for i in range(1, 7)] == list("SSSSII")
    assert parts["plan"].value == "emb:F S4(sst,sts|quora) I2"  # the buttons do not write what they were set to
    parts["layer 6"].value = "S"
    assert parts["plan"].value == "emb:F S4(sst,sts|quora) I1 S1"
    parts["plan"].value = "S9"  # no plan of six layers
    assert [parts[f"layer {i}"].value for i in range(1, 7)] == list("SSSSIS")


def test_any_sentence_has_an_attention_viewer(live, tiny_encoder):
    model, tokenizer = BertModel.from_pretrained(tiny_encoder), load_tokenizer("minilm")
    viewers.attention_viewer(model, tokenizer, "A lantern.")
    parts = controls(live[-1])
    assert (parts["layer"].max, parts["head"].max) == (2, 4)
    viewers.attention_viewer(model, tokenizer, "")  # only [CLS] and [SEP]


def test_errors_are_filtered_and_turned_page_by_page(live, monkeypatch):
    rows = [("1-bert", "sst", f"id {i}", 4, 0, 0.9, "far off", i, "") for i in range(12)]
    rows.append(("3-bert", "sts", "pair", 1.0, 4.25, np.nan, "too high", 30, "A cat. | A dog."))
    said, shown = [], []
    monkeypatch.setattr(viewers.notebook, "say", said.append)
    monkeypatch.setattr(viewers.notebook, "listing", shown.append)
    viewers.error_browser(pd.DataFrame(rows, columns=errors.COLUMNS))
    parts = controls(live[-1])
    assert parts["task"].options == ("any", "sst", "sts") and said == ["1 to 10 of 13"]
    parts["from error"].value = 11
    assert said[-1] == "11 to 13 of 13" and shown[-1]["id"].tolist() == ["id 10", "id 11", "pair"]
    parts["words"].value = (11, 30)
    assert said[-1] == "1 to 2 of 2"
    parts["kind"].value = "too high"
    assert shown[-1]["text"].tolist() == ["A cat. | A dog."]
    parts["model"].value = "1-bert"
    assert said[-1] == "No such errors."
    viewers.error_browser(pd.DataFrame(columns=errors.COLUMNS))
    assert said[-1] == "No such errors."


def test_no_widget_is_made_without_a_server(monkeypatch, tiny_encoder):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    made = []
    monkeypatch.setattr(ipywidgets.Widget, "_widget_construction_callback", made.append)
    ipywidgets.IntSlider()
    assert made
    made.clear()
    viewers.plan_editor(THREE)
    viewers.attention_viewer(BertModel.from_pretrained(tiny_encoder), load_tokenizer("minilm"), "A lantern.")
    viewers.error_browser(pd.DataFrame(columns=errors.COLUMNS))
    viewers.two_sentences("A lantern.", "A violin.")
    assert not made


def test_two_sentences_get_a_prediction_of_every_task(tiny_encoder):
    model = MultitaskBert(RunConfig(tasks=THREE, encoder=tiny_encoder))
    table = viewers.what_it_says(model, "a bright story", "a dull kitchen")
    assert table["of"].tolist() == ["the first", "the second", "both sentences", "both sentences"]
    assert table["task"].tolist() == ["SST", "SST", "Quora", "STS"] and table["range"].iloc[-1] == "0 to 5"
    assert table["predicted"].iloc[0] == round(float(model.predict(["a bright story"], "sst")["predicted"][0]), 1)


def test_a_run_in_training_is_drawn_from_its_log(isolated):
    config = RunConfig()
    with pytest.raises(FileNotFoundError, match=config.digest):
        viewers.watch(config)
    folder = model_folder(f"{config.digest}-12345678")
    folder.mkdir(parents=True)
    points = pd.DataFrame({"step": [1, 2, 3], "train_loss": [1.6, 1.5, 1.2], "dev_score": [np.nan, 0.3, np.nan]})
    points.to_csv(folder / LOG, index=False)
    losses, scores = viewers.watch(config).axes
    assert losses.lines[0].get_xydata().tolist() == [[1, 1.6], [2, 1.5], [3, 1.2]]
    assert scores.lines[0].get_xydata().tolist() == [[2, 0.3]]
