"""Looking around: attention, plans and errors.

The plan explorer is a script in the page, and needs no kernel. The other viewers make controls only in a kernel of a
Jupyter server, and show something static elsewhere: an executed notebook keeps no state of widgets, for which its page
would load scripts.
"""

import html
import json
import os
from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
import torch.nn.functional as F
from IPython.display import display
from ipywidgets import (
    BoundedIntText,
    Button,
    Dropdown,
    HBox,
    IntRangeSlider,
    IntSlider,
    Text,
    VBox,
    Widget,
    interactive_output,
)
from matplotlib.patches import Rectangle
from tokenizers import Tokenizer
from torch import Tensor

from mtbert.bert import BertConfig, BertModel, part_sizes
from mtbert.config import RunConfig
from mtbert.multitask import encoder_config
from mtbert_lab.report import notebook, plots
from mtbert_lab.report.tables import Grid
from mtbert_lab.report.words import TASK_LABELS
from mtbert_lab.statistics import count_seeds, interval_text
from mtbert_lab.store import Run, overall_interval, summarize

CAPTION_OF_HEADS = (
    "One head in large, and small maps of all heads, in which it is framed. A row is a token, and the dark fields of "
    "the row are where it attends to; a dark column is a token that all others attend to."
)
ANY = "any"
PAGE = 10  # examples at a time
NO_TEXTS = (
    "**The sentences are not here**, only ids and numbers. They appear once you have the datasets: "
    "`mtbert data fetch FOLDER` downloads them, and `MTBERT_DATA` names their folder."
)


def is_live() -> bool:
    """Whether a Jupyter server started this kernel, so that somebody can use controls."""
    return "JPY_SESSION_NAME" in os.environ


def attention_maps(model: BertModel, input_ids: Tensor) -> Tensor:
    """The attention weights of one sequence without padding: (1, T) -> (L, h, T, T), each row summing to 1."""
    hidden = model.embeddings(input_ids)
    bias = model.embeddings.attention_mask(None, input_ids.size(1))  # of relative positions, where there are any
    maps = []
    for layer in model.layers:
        projected = layer.attention.project(hidden).transpose(1, 3)
        q, k, _ = projected.unbind(2)  # each (1, h, T, d_k)
        scores = q @ k.mT / q.size(-1) ** 0.5
        if bias is not None:
            scores = scores + bias
        maps.append(torch.softmax(scores, dim=-1)[0])
        hidden = layer(hidden, bias)
    return torch.stack(maps)


def attention_figure(maps: Tensor, tokens: Sequence[str], layer: int, head: int) -> plt.Figure:
    """One head's map, and all heads in a grid, in which it is marked. maps: (L, h, T, T); layer, head: from 1."""
    L, h, T, _ = maps.shape
    figure, (ax, grid) = plt.subplots(1, 2, figsize=(13, 5.5), width_ratios=(1, 1.5))
    names = [f"{i} {plots.as_text(token)}" for i, token in enumerate(tokens)]  # a token may occur twice
    one = pd.DataFrame(maps[layer - 1, head - 1], names, names)
    sns.heatmap(one, cmap="Blues", vmin=0, vmax=1, square=True, ax=ax)
    ax.set(xlabel="attended to (key)", ylabel="token (query)", title=f"layer {layer}, head {head}")

    cell = T + 1  # with a gap between maps
    cells = F.pad(maps, (0, 1, 0, 1), value=torch.nan)  # (L, h, T + 1, T + 1)
    image = cells.transpose(1, 2).reshape(L * cell, h * cell)
    grid.imshow(image.numpy(), cmap="Blues", vmin=0, vmax=1)
    left = (head - 1) * cell - 1
    top = (layer - 1) * cell - 1
    mark = Rectangle((left, top), cell, cell, fill=False, edgecolor=plots.VERMILION, linewidth=2)
    grid.add_patch(mark)
    middles = T / 2 + cell * np.arange(max(h, L))
    grid.set_xticks(middles[:h], range(1, h + 1))
    grid.set_yticks(middles[:L], range(1, L + 1))
    grid.set(xlabel="head", ylabel="layer", title="all heads")
    grid.grid(False)
    return figure


def attention_viewer(model: BertModel, tokenizer: Tokenizer, sentence: str, layer: int, head: int) -> None:
    """The attention of any sentence, opened at one head, from 1; without a server that of the given sentence."""

    def drawn(sentence: str, layer: int, head: int) -> plt.Figure:
        encoding = tokenizer.encode(sentence)
        with torch.no_grad():
            maps = attention_maps(model, torch.tensor([encoding.ids]))
        return attention_figure(maps, encoding.tokens, layer, head)

    def draw(sentence: str, layer: int, head: int) -> None:
        figure = drawn(sentence, layer, head)
        display(figure)
        plt.close(figure)

    name = "01_attention_heads"
    if not is_live():
        alt = f"Attention of layer {layer}, head {head}, and small maps of all heads."
        plots.show(drawn(sentence, layer, head), name, alt, CAPTION_OF_HEADS)
        return
    plots.number_of(name)  # the figures behind it have the same numbers in JupyterLab as on the site
    config = model.config
    _view(
        draw,
        sentence=Text(sentence, description="sentence", continuous_update=False, layout={"width": "98%"}),
        layer=IntSlider(layer, 1, config.num_hidden_layers, description="layer"),
        head=IntSlider(head, 1, config.num_attention_heads, description="head"),
    )


def plan_explorer(grid: Grid, tasks: Sequence[str]) -> None:
    """A plan to type, to pick or to click together, on the built page, too: drawing, costs, and what its runs scored.

    grid: its runs of these tasks without soft sharing are taken, and listed in a table.
    """

    def is_shown(config: RunConfig) -> bool:
        return config.tasks == tuple(tasks) and config.soft_sharing == "none"

    stored = []
    for runs in grid.pick(is_shown).runs.values():
        plan = runs[0].config.plan_text
        stored.append({"plan": plan, "facts": _plan_facts(runs)})
    sizes = {"MiniLM, 6 layers": encoder_config(RunConfig()), "bert-base-uncased, 12 layers": BertConfig()}
    encoders = {}
    for name, encoder in sizes.items():
        encoders[name] = {"layers": encoder.num_hidden_layers, "sizes": part_sizes(encoder)}
    modes = {}
    for name in plots.MODES:
        letter = name[0].upper()
        modes[letter] = {"name": name, "colour": plots.COLOURS[name]}
    content = {
        "tasks": tasks,
        "labels": [TASK_LABELS[task] for task in tasks],
        "modes": modes,
        "encoders": encoders,
        "stored": stored,
    }
    data = html.escape(json.dumps(content, separators=(",", ":")))
    notebook.embed(f'<div class="plans" data-content="{data}"></div>', "plans")
    table = pd.DataFrame([{"plan": run["plan"], **run["facts"]} for run in stored])
    notebook.collapsible(table, f"The {len(stored)} plans with stored runs")


def _plan_facts(runs: list[Run]) -> dict[str, str]:
    """What the runs of a plan scored and used, for reading: scores with 95 % intervals, costs with their range."""
    facts = {"overall score": overall_interval(runs).text()}
    for task in runs[0].config.tasks:
        score = summarize(runs, task)
        facts[TASK_LABELS[task]] = interval_text(score["value"], score["low"], score["high"])
    minutes, memory = [], []
    for run in runs:
        seconds = run.cost["train_cpu_seconds"] + run.cost.get("feature_cpu_seconds", 0)
        minutes.append(seconds / 60)
        memory.append(run.cost["peak_memory_mib"])
    facts["processor time of the training"] = f"{_range(minutes, '.0f')} minutes"
    facts["memory of the whole process"] = f"{_range(memory, ',.0f')} MiB"
    facts["stored runs"] = count_seeds(len(runs))
    return facts


def _range(values: list[float], form: str) -> str:
    """The lowest and the highest value; one where they look alike."""
    low = format(min(values), form)
    high = format(max(values), form)
    return low if low == high else f"{low} to {high}"


def one_row_an_example(errors: pd.DataFrame) -> pd.DataFrame:
    """An `error_table` with a row per example: task, text, label, a column per model, words, id.

    A model's column has what it predicted and the kind of its error, or "right"; text is there if any example has one.
    """
    key = ["task", "id"]
    models = errors["model"].unique()
    said = errors.assign(said=errors["predicted"] + " (" + errors["kind"] + ")")
    said = said.pivot(index=key, columns="model", values="said")
    said = said.reindex(columns=models).fillna("right")
    about = errors.drop_duplicates(key).set_index(key)[["text", "label", "words"]]
    table = about.join(said).reset_index()
    texts = ["text"] if errors["text"].any() else []
    return table[["task", *texts, "label", *models, "words", "id"]]


def error_browser(errors: pd.DataFrame) -> None:
    """The examples of an `analysis.errors.error_table` by task, model, kind and number of words, PAGE at a time.

    Where the sentences are not here, a hint says how to get them.
    """
    if len(errors) and not errors["text"].any():
        notebook.display_markdown(NO_TEXTS)
    if not is_live():
        return
    controls = {}
    for name in ("task", "model", "kind"):
        options = [ANY, *errors[name].unique()]
        controls[name] = Dropdown(options=options, description=name)
    longest = max(errors["words"], default=0)
    controls["words"] = IntRangeSlider(value=(0, longest), max=longest, description="words")
    examples = one_row_an_example(errors).set_index(["task", "id"], drop=False)
    last = max(1, len(examples))
    start = BoundedIntText(1, min=1, max=last, description="from")
    previous = Button(description="previous")
    following = Button(description="next")

    def draw(words: tuple[int, int], start: int, **chosen: str) -> None:
        found = errors[errors["words"].between(*words)]
        for name, value in chosen.items():
            if value != ANY:
                found = found[found[name] == value]
        keys = found[["task", "id"]].drop_duplicates()
        on_page = keys.iloc[start - 1 : start - 1 + PAGE]
        page = examples.loc[pd.MultiIndex.from_frame(on_page)]
        previous.disabled = start == 1
        following.disabled = start + PAGE > len(keys)
        if len(page):
            notebook.display_markdown(f"{start} to {start - 1 + len(page)} of {len(keys)} examples")
        else:
            notebook.display_markdown("No such errors.")
        notebook.listing(page)

    def turn(by: int) -> None:
        start.value = max(1, start.value + by)

    previous.on_click(lambda _: turn(-PAGE))
    following.on_click(lambda _: turn(PAGE))
    for control in controls.values():
        control.observe(lambda _: start.set_trait("value", 1), "value")
    _view(draw, previous, following, **controls, start=start)


def _view(draw: Callable, *buttons: Button, **controls: Widget) -> None:
    """Show controls, buttons in a row, and what `draw` makes of the controls' values."""
    row = [HBox(buttons)] if buttons else []
    drawn = interactive_output(draw, controls)
    display(VBox([*controls.values(), *row, drawn]))
