"""What is committed: the cards of notebook 00 that others link to, no widget state, no sentence of the real data."""

import json
import re

import nbformat
import pandas as pd
import pytest

from mtbert.data import TASKS, load_table
from mtbert.paths import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
[START, *_] = NOTEBOOKS
SHOWN = [*NOTEBOOKS, *REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md"), *REPOSITORY.glob("figures/*.svg")]
WINDOW = 31  # characters at the start of a sentence that are looked up first


def text_of(path):
    return "\n".join(cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "markdown")


def test_every_paper_has_a_card_and_every_notebook_a_link():
    text = text_of(START)
    papers = pd.read_csv(REPOSITORY / "results" / "claims.csv", dtype=str)["paper"].unique()
    assert re.findall(r"^### Paper (\d+)$", text, re.MULTILINE) == sorted(papers)
    others = {path.name for path in START.parent.glob("*.ipynb")} - {START.name}
    assert set(re.findall(r"\]\((\w+\.ipynb)\)", text)) == others


def test_the_figure_of_the_labels_names_what_a_model_has_to_beat():
    table = pd.read_csv(REPOSITORY / "results" / "baselines.csv")
    table = table.query("baseline == 'most frequent' and metric == 'accuracy'").set_index("task")["value"]
    caption = f"{table['sst']:.3f} on SST and {table['quora']:.3f} on Quora: what a model has to beat"
    assert caption in START.read_text(encoding="utf8")
    assert f"{table['cfimdb']:.3f} by the most frequent label" in (REPOSITORY / "figures/00_labels.svg").read_text()


def test_links_to_cards_lead_to_a_heading(headings_of):
    headings = {"#" + heading.replace(" ", "-") for heading in headings_of(START)}
    links = re.findall(r"\]\((#[^)]+)\)", text_of(START))
    links += [
        link for path in START.parent.glob("*.ipynb") for link in re.findall(r"00_start\.ipynb(#[\w-]+)", text_of(path))
    ]
    assert links and set(links) <= headings


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_widget_state_is_committed(path):
    content = json.loads(path.read_text(encoding="utf8"))
    assert "widgets" not in content["metadata"] and "widget-view" not in path.read_text(encoding="utf8")


def test_no_sentence_of_the_real_data_is_committed(real_data):
    if real_data is None:
        pytest.skip("the datasets are not here")
    sentences = {}  # by their start
    for task, about in TASKS.items():
        for split in ("train", "dev"):
            table, _ = load_table(task, split, real_data)
            for sentence in pd.concat([table[column] for column in about.sentence_columns]).unique():
                written = json.dumps(sentence, ensure_ascii=False)[1:-1]
                if len(written) >= WINDOW:
                    sentences.setdefault(written[:WINDOW], []).append(written)
    found = []
    for path in SHOWN:
        text = re.sub(r'"image/png": "[^"]*"', "", path.read_text(encoding="utf8"))
        for i in range(len(text) - WINDOW + 1):
            for sentence in sentences.get(text[i : i + WINDOW], ()):
                if text.startswith(sentence, i):
                    found.append((path.name, sentence))
    assert found == []
