"""What the viewers show, without a browser: attention, plans, predictions; and that they need a live kernel."""

import html
import json
import re
import subprocess

import ipywidgets
import numpy as np
import pandas as pd
import pytest
import torch
import transformers

from mtbert.bert import BertConfig, BertModel
from mtbert.config import RunConfig
from mtbert.data.tokens import load_tokenizer
from mtbert.multitask import encoder_config
from mtbert.sharing import PlanError, SharingPlan
from mtbert_lab.analysis import errors
from mtbert_lab.report import viewers
from mtbert_lab.report.tables import Grid
from mtbert_lab.store import overall_interval

THREE = ("sst", "quora", "sts")


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


def test_attention_maps_are_those_of_transformers(tmp_path):
    """Of MPNet, which adds numbers for the distance of two tokens to their scores."""
    sizes = dict(model_type="mpnet", vocab_size=60, hidden_size=16, num_hidden_layers=3, num_attention_heads=2)
    sizes |= dict(intermediate_size=24, max_position_embeddings=20, type_vocab_size=0, pad_token_id=1)
    torch.manual_seed(3)
    ours = BertModel(BertConfig(**sizes, initializer_range=0.2)).eval()
    torch.nn.init.normal_(ours.embeddings.relative.weight)  # large, so that none is without effect
    ours.save_pretrained(tmp_path)
    theirs = transformers.MPNetModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
    ids = torch.randint(2, 60, (1, 14))
    with torch.no_grad():
        expected = torch.cat(theirs(ids, output_attentions=True).attentions)
        torch.testing.assert_close(viewers.attention_maps(ours, ids), expected)


PLANS = (
    "S6",
    "hybrid-3",
    "F2 S2 I2",
    "emb:F S4(sst,sts|quora) I2",
    "S3 S3(quora, sts | sst) pool:S",
    "frozen",
    "S2 S4",
)
NO_PLANS = (
    "S5",
    "S9",
    "X6",
    "S",
    "S4(sst,quora|imdb) I2",
    "I6(sst|quora,sts)",
    "S4(sst,sts) I2",
    "S6 emb:F",
    "pool:S S6",
)


def test_the_plan_explorer_reads_plans_as_python_does(tmp_path, chromium, shown):
    viewers.plan_explorer(Grid((), {}, {}), THREE)
    script = """<script>
      const input = document.querySelector(".plans input"), found = [];
      for (const text of PLANS) {
        input.value = text;
        input.oninput();
        const error = document.querySelector(".plans [role=alert]").textContent;
        const [parameters, trained] = [...document.querySelectorAll(".plans td")].map(cell => cell.textContent);
        document.querySelectorAll(".plans button")[1].click(); // layer 6, to the next mode
        found.push([text, error, parameters, trained, input.value]);
      }
      document.body.replaceChildren(JSON.stringify(found));
    </script>"""
    page = shown[0].data + script.replace("PLANS", json.dumps([*PLANS, *NO_PLANS]))
    (tmp_path / "page.html").write_text(f"<!DOCTYPE html><body>{page}</body>")
    command = [*chromium, "--dump-dom", f"{tmp_path}/page.html"]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    found = json.loads(html.unescape(re.search(r"<body>(.*)</body>", dom, re.DOTALL)[1]))
    encoder = encoder_config(RunConfig())
    for text, error, parameters, trained, clicked in found[: len(PLANS)]:
        table = SharingPlan.parse(text, THREE, 6).table(encoder)
        assert error == "" and parameters.startswith(f"{table['parameters'].sum() / 1e6:.1f} million"), text
        assert trained == f"{table['trained'].sum() / 1e6:.1f} million", text
        levels = SharingPlan.parse(clicked, THREE, 6).levels
        following = {"S": "I", "I": "F", "F": "S"}[SharingPlan.parse(text, THREE, 6).layers[-1].mode]
        assert levels["layer 6"].mode == levels["pooler"].mode == following, text
        assert str(SharingPlan.parse(clicked, THREE, 6)).replace(" ", "") == clicked.replace(" ", "")
    for text, error, *_ in found[len(PLANS) :]:
        with pytest.raises(PlanError):
            SharingPlan.parse(text, THREE, 6)
        assert error, text


def test_the_plan_explorer_has_the_stored_runs_of_its_tasks(monkeypatch, synthetic, shown):
    tables = []
    monkeypatch.setattr(viewers.notebook, "collapsible", lambda table, title: tables.append(table))
    fields = {"tasks": THREE, "scheme": "unified"}
    configs = {
        "1-bert": [RunConfig(**fields, seed=seed) for seed in (1, 2)],
        "soft": [RunConfig(**fields, plan="3-bert", soft_sharing="l2")],
        "two tasks": [RunConfig(tasks=("sst", "quora"), scheme="unified")],
    }
    cost = {"train_cpu_seconds": 60.0, "feature_cpu_seconds": 60.0, "peak_memory_mib": 1234.0}
    runs = {name: [synthetic(config, 0.8) for config in group] for name, group in configs.items()}
    for seed, run in enumerate(runs["1-bert"], start=1):
        run.cost.update(cost, train_cpu_seconds=60.0 * seed)
    viewers.plan_explorer(Grid((), configs, runs), THREE)
    [run] = json.loads(html.unescape(re.search(r'data-content="(.+?)"', shown[0].data)[1]))["stored"]
    assert run["plan"] == "1-bert" and run["facts"]["stored runs"] == "2 seeds"
    assert run["facts"]["processor time of the training"] == "2 to 3 minutes"
    assert run["facts"]["memory of the whole process"] == "1,234 MiB"
    score, low, high = overall_interval(runs["1-bert"])
    assert run["facts"]["overall score"] == f"{score:.3f} ({low:.3f} to {high:.3f})"
    assert tables[0]["overall score"].tolist() == [run["facts"]["overall score"]]


def test_any_sentence_has_an_attention_viewer_that_opens_at_a_head(live, tiny_encoder):
    model, tokenizer = BertModel.from_pretrained(tiny_encoder), load_tokenizer("minilm")
    viewers.attention_viewer(model, tokenizer, "A lantern.", layer=2, head=3)
    parts = controls(live[-1])
    assert (parts["layer"].value, parts["layer"].max) == (2, 2) and (parts["head"].value, parts["head"].max) == (3, 4)
    viewers.attention_viewer(model, tokenizer, "", layer=1, head=1)
    *_, figure, _ = live
    assert figure.axes[0].collections[0].get_array().size == 2 * 2, "the map of [CLS] and [SEP] alone"


def test_all_heads_stand_in_a_grid_and_one_is_marked():
    maps = torch.softmax(torch.randn(2, 3, 5, 5), -1)
    one, grid, *_ = viewers.attention_figure(maps, list("abcde"), layer=2, head=3).axes
    assert one.get_title() == "layer 2, head 3"
    shown = grid.images[0].get_array().filled(np.nan)
    assert shown.shape == (2 * 6, 3 * 6)
    np.testing.assert_allclose(shown[6:11, 12:17], maps[1, 2], rtol=1e-6)
    np.testing.assert_allclose(one.collections[0].get_array().reshape(5, 5), maps[1, 2], rtol=1e-6)
    (x, y), [mark] = (12 - 1, 6 - 1), grid.patches
    assert mark.get_xy() == (x, y)


def error_rows(text: str = "A cat. | A dog.") -> pd.DataFrame:
    rows = [("1-bert", "sst", f"id {i}", "4", "0", 0.9, "far off", i, "") for i in range(12)]
    rows.append(("3-bert", "sst", "id 0", "4", "2", 0.8, "far off", 0, ""))
    rows.append(("3-bert", "sts", "pair", "1", "4.25", np.nan, "too high", 30, text))
    return pd.DataFrame(rows, columns=errors.COLUMNS)


def test_an_example_has_one_row_with_what_each_model_says():
    table = viewers.one_row_an_example(error_rows())
    assert list(table) == ["task", "text", "label", "1-bert", "3-bert", "words", "id"] and len(table) == 13
    assert table.iloc[0, 3:5].tolist() == ["0 (far off)", "2 (far off)"]
    assert table.iloc[12].tolist() == ["sts", "A cat. | A dog.", "1", "right", "4.25 (too high)", 30, "pair"]
    assert "text" not in viewers.one_row_an_example(error_rows(text=""))


def test_errors_are_filtered_and_turned_page_by_page(live, monkeypatch):
    said, shown = [], []
    monkeypatch.setattr(viewers.notebook, "display_markdown", said.append)
    monkeypatch.setattr(viewers.notebook, "listing", shown.append)
    viewers.error_browser(error_rows())
    *controls_, row, _ = live[-1].children
    parts, (previous, following) = {control.description: control for control in controls_}, row.children
    assert parts["task"].options == ("any", "sst", "sts") and said == ["1 to 10 of 13 examples"]
    assert previous.disabled and not following.disabled
    following.click()
    assert said[-1] == "11 to 13 of 13 examples" and shown[-1]["id"].tolist() == ["id 10", "id 11", "pair"]
    assert following.disabled and not previous.disabled
    previous.click()
    assert said[-1] == "1 to 10 of 13 examples"
    parts["words"].value = (11, 30)
    assert said[-1] == "1 to 2 of 2 examples"
    parts["kind"].value = "too high"
    assert shown[-1]["text"].tolist() == ["A cat. | A dog."]
    parts["model"].value = "1-bert"
    assert said[-1] == "No such errors."
    viewers.error_browser(pd.DataFrame(columns=errors.COLUMNS))
    assert said[-1] == "No such errors."


def test_where_the_sentences_are_missing_a_hint_stands(monkeypatch):
    said = []
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.setattr(viewers.notebook, "display_markdown", said.append)
    viewers.error_browser(error_rows(text=""))
    assert said == [viewers.NO_TEXTS]
    viewers.error_browser(error_rows())
    assert len(said) == 1


def test_no_widget_is_made_without_a_server(monkeypatch, tiny_encoder):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    made = []
    monkeypatch.setattr(ipywidgets.Widget, "_widget_construction_callback", made.append)
    ipywidgets.IntSlider()
    assert made
    made.clear()
    viewers.plan_explorer(Grid((), {}, {}), THREE)
    viewers.attention_viewer(BertModel.from_pretrained(tiny_encoder), load_tokenizer("minilm"), "A lantern.", 1, 1)
    viewers.error_browser(pd.DataFrame(columns=errors.COLUMNS))
    assert not made
