"""Looking around: attention, plans, errors, two sentences, and a run in training.

The plan explorer is a script in the page, and needs no kernel. The other viewers make controls only in a kernel of a
Jupyter server, and show something static elsewhere: an executed notebook keeps no state of widgets, for which its page
would load scripts.
"""

import html
import json
import os
from collections.abc import Callable, Sequence

import ipywidgets
import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
import torch
import torch.nn.functional as F
from IPython.display import display
from ipywidgets import Dropdown, IntSlider, Text, Widget, interactive_output
from matplotlib.patches import Rectangle
from tokenizers import Tokenizer
from torch import Tensor

from mtbert.analysis.errors import COLUMNS, error_kinds
from mtbert.bert import BertConfig, BertModel, part_sizes
from mtbert.config import RunConfig
from mtbert.data import TASKS, demo, load_table
from mtbert.multitask import MultitaskBert, encoder_config
from mtbert.paths import cache_dir
from mtbert.report import notebook, plots
from mtbert.report.tables import Grid
from mtbert.results import Run, overall_interval, summarize
from mtbert.statistics import count_seeds
from mtbert.training import LOG, load_corpus, train

DEMO = RunConfig(  # heads on a frozen encoder: features once, and then as many epochs as one likes
    tasks=("sst", "quora", "sts"), plan="frozen", pairs="product+difference+cosine", scheme="unified", train_rows=400,
    epochs=20, eval_spacing="log", keep="last", batch_size=32, learning_rate=1e-2, max_length=64,
)  # fmt: skip
CLASS_NAMES = {  # of labels that are numbers in the files
    "sst": ("very negative", "negative", "neutral", "positive", "very positive"),
    "quora": ("no duplicate", "duplicate"),
}
ANY, PAGE = "any", 10  # examples at a time
NO_TEXTS = (
    "**The sentences are not here**, only ids and numbers. They appear once you have the datasets: "
    "`mtbert data fetch FOLDER` downloads them, and `MTBERT_DATA` names their folder. As an example, some errors of a "
    "small model on the demo corpus:"
)
ENCODERS = {"MiniLM, 6 layers": encoder_config(DEMO), "bert-base-uncased, 12 layers": BertConfig()}


def _is_live() -> bool:
    """Whether a Jupyter server started this kernel, so that somebody can use controls."""
    return "JPY_SESSION_NAME" in os.environ


def attention_maps(model: BertModel, input_ids: Tensor) -> Tensor:
    """The attention weights of one sequence without padding: (1, T) -> (L, h, T, T), each row summing to 1."""
    hidden = model.embeddings(input_ids)
    maps = []
    for layer in model.layers:
        q, k, _ = layer.attention.project(hidden).transpose(1, 3).unbind(2)  # each (1, h, T, d_k)
        maps.append(torch.softmax(q @ k.mT / q.size(-1) ** 0.5, dim=-1)[0])
        hidden = layer(hidden)
    return torch.stack(maps)


def attention_figure(maps: Tensor, tokens: Sequence[str], layer: int, head: int) -> plt.Figure:
    """One head's map, and all heads in a grid, in which it is marked. maps: (L, h, T, T); layer, head: from 1."""
    L, h, T, _ = maps.shape
    figure, (ax, grid) = plt.subplots(1, 2, figsize=(13, 5.5), width_ratios=(1, 1.5))
    names = [f"{i} {token}" for i, token in enumerate(tokens)]  # a token may occur twice
    one = pd.DataFrame(maps[layer - 1, head - 1], names, names)
    sns.heatmap(one, cmap="Blues", vmin=0, vmax=1, square=True, ax=ax)
    ax.set(xlabel="attended to (key)", ylabel="token (query)", title=f"layer {layer}, head {head}")
    cell = T + 1  # with a gap between maps
    cells = F.pad(maps, (0, 1, 0, 1), value=torch.nan)  # (L, h, T + 1, T + 1)
    rows = cells.transpose(1, 2).reshape(L * cell, h * cell)
    grid.imshow(rows, cmap="Blues", vmin=0, vmax=1)
    corner = ((head - 1) * cell - 1, (layer - 1) * cell - 1)
    grid.add_patch(Rectangle(corner, cell, cell, fill=False, edgecolor=plots.COLOURS["individual"], linewidth=2))
    grid.set_xticks([T / 2 + i * cell for i in range(h)], range(1, h + 1))
    grid.set_yticks([T / 2 + i * cell for i in range(L)], range(1, L + 1))
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

    if not _is_live():
        alt = f"Attention of layer {layer}, head {head}, and small maps of all heads."
        plots.show(drawn(sentence, layer, head), "01_attention_heads", alt)
        return
    layers = model.config.num_hidden_layers
    heads = model.config.num_attention_heads
    _view(
        lambda **chosen: _show(drawn(**chosen)),
        sentence=Text(sentence, description="sentence", continuous_update=False, layout={"width": "98%"}),
        layer=IntSlider(layer, 1, layers, description="layer"),
        head=IntSlider(head, 1, heads, description="head"),
    )


def plan_explorer(grid: Grid, tasks: Sequence[str]) -> None:
    """A plan to type, to pick or to click together, on the built page, too: drawing, costs, and what its runs scored.

    grid: its runs of these tasks without soft sharing are taken, and listed in a table.
    """
    chosen = grid.pick(lambda config: config.tasks == tuple(tasks) and config.soft_sharing == "none").runs.values()
    stored = [{"plan": runs[0].config.plan_text, "facts": _plan_facts(runs)} for runs in chosen]
    content = {
        "tasks": tasks,
        "labels": [plots.TASK_LABELS[task] for task in tasks],
        "modes": {name[0].upper(): {"name": name, "colour": plots.COLOURS[name]} for name in plots.MODES},
        "encoders": {
            name: {"layers": encoder.num_hidden_layers, "sizes": part_sizes(encoder)}
            for name, encoder in ENCODERS.items()
        },
        "stored": stored,
    }
    data = html.escape(json.dumps(content, separators=(",", ":")))
    notebook.embed(f'<div class="plans" data-content="{data}"></div>', "plans")
    table = pd.DataFrame([{"plan": run["plan"], **run["facts"]} for run in stored])
    notebook.folded(table, f"The {len(stored)} plans with stored runs")


def _plan_facts(runs: list[Run]) -> dict[str, str]:
    """What the runs of a plan scored and used, for reading: scores with 95 % intervals, costs with their range."""
    minutes = [(run.cost["train_cpu_seconds"] + run.cost.get("feature_cpu_seconds", 0)) / 60 for run in runs]
    memory = [run.cost["peak_memory_mib"] for run in runs]
    scores = {plots.TASK_LABELS[task]: summarize(runs, task) for task in runs[0].config.tasks}
    facts = {"overall score": "{:.3f} ({:.3f} to {:.3f})".format(*overall_interval(runs))}
    facts |= {
        name: f"{found['value']:.3f} ({found['low']:.3f} to {found['high']:.3f})" for name, found in scores.items()
    }
    facts["processor time of the training"] = f"{_range(minutes, '.0f')} minutes"
    facts["memory of the whole process"] = f"{_range(memory, ',.0f')} MiB"
    return facts | {"stored runs": count_seeds(len(runs))}


def _range(values: list[float], form: str) -> str:
    """The lowest and the highest value."""
    return " to ".join(dict.fromkeys(format(value, form) for value in (min(values), max(values))))


def one_row_an_example(errors: pd.DataFrame) -> pd.DataFrame:
    """An `error_table` with a row per example: task, text, label, a column per model, words, id.

    A model's column has what it predicted and the kind of its error, or "right"; text is there if any example has one.
    """
    key = ["task", "id"]
    said = errors.assign(said=errors["predicted"] + " (" + errors["kind"] + ")")
    said = said.pivot(index=key, columns="model", values="said").reindex(columns=errors["model"].unique())
    about = errors.drop_duplicates(key).set_index(key)
    table = about[["text", "label"]].join(said.fillna("right")).join(about["words"]).reset_index()
    columns = ["task", *table.columns.drop(key), "id"]
    return table[columns] if errors["text"].any() else table[columns].drop(columns="text")


def error_browser(errors: pd.DataFrame) -> None:
    """The examples of an `analysis.errors.error_table` by task, model, kind and number of words, PAGE at a time.

    Where the sentences are not here, errors of the demo model show what there would be to read.
    """
    if len(errors) and not errors["text"].any():
        notebook.say(NO_TEXTS)
        notebook.listing(one_row_an_example(demo_errors()).groupby("task", sort=False).head(2))
    if not _is_live():
        return
    names = ("task", "model", "kind")
    chosen = {name: Dropdown(options=[ANY, *errors[name].unique()], description=name) for name in names}
    longest = max(errors["words"], default=0)
    chosen["words"] = ipywidgets.IntRangeSlider(value=(0, longest), max=longest, description="words")
    examples = one_row_an_example(errors).set_index(["task", "id"], drop=False)
    start = ipywidgets.BoundedIntText(1, min=1, max=max(1, len(examples)), description="from")
    steps = {"previous": -PAGE, "next": PAGE}
    buttons = [ipywidgets.Button(description=name) for name in steps]

    def draw(words: tuple[int, int], start: int, **chosen: str) -> None:
        found = errors[errors["words"].between(*words)]
        for name, value in chosen.items():
            found = found if value == ANY else found[found[name] == value]
        keys = found[["task", "id"]].drop_duplicates()
        page = examples.loc[pd.MultiIndex.from_frame(keys.iloc[start - 1 : start - 1 + PAGE])]
        buttons[0].disabled, buttons[1].disabled = start == 1, start + PAGE > len(keys)
        shown = f"{start} to {start - 1 + len(page)} of {len(keys)} examples"
        notebook.say(shown if len(page) else "No such errors.")
        notebook.listing(page)

    def turn(button: ipywidgets.Button) -> None:
        start.value = max(1, start.value + steps[button.description])

    for button in buttons:
        button.on_click(turn)
    for control in chosen.values():
        control.observe(lambda _: start.set_trait("value", 1), "value")
    _view(draw, *buttons, **chosen, start=start)


def demo_model() -> MultitaskBert:
    """Heads of three tasks on the frozen encoder, trained on the demo corpus for some seconds and kept in the cache."""
    folder = cache_dir() / "models" / f"{DEMO.digest}-viewer"
    if not (folder / "run_config.json").exists():  # written last
        train(DEMO, load_corpus(DEMO, demo.root()), progress=False).model.save(folder)
    return MultitaskBert.load(folder)


def demo_errors() -> pd.DataFrame:
    """The errors of `demo_model` on the demo corpus, as an `analysis.errors.error_table`."""
    model = demo_model()
    parts = []
    for task in model.run_config.tasks:
        table, _ = load_table(task, "dev", demo.root())
        columns = list(TASKS[task].sentence_columns)
        texts = table[columns].agg(tuple, axis=1).tolist()
        said = model.predict(texts, task)
        table["kind"] = error_kinds(task, said["predicted"].to_numpy(), table["label"].to_numpy())
        table["text"] = table[columns].agg(" | ".join, axis=1)
        confidence = float("nan") if TASKS[task].is_number else said["confidence"].round(3)
        table = table.assign(model="demo model", task=task, confidence=confidence)
        table["words"] = table["text"].str.split().str.len()
        for name, values in (("label", table["label"]), ("predicted", said["predicted"])):
            table[name] = values.round(2).map("{:g}".format)
        parts.append(table[table["kind"] != ""])
    return pd.concat(parts, ignore_index=True)[COLUMNS]


def what_it_says(model: MultitaskBert, first: str, second: str) -> pd.DataFrame:
    """What a model predicts for two sentences: a row for each task, of one sentence two: task, of, says, probability.

    says: the name of the class, or the score of the range; probability: of that class.
    """
    rows, both = [], (first, second)
    for task in model.run_config.tasks:
        about = TASKS[task]
        of, texts = (["both sentences"], [both]) if about.is_pair else (["the first", "the second"], both)
        for name, said in zip(of, model.predict(texts, task).itertuples(), strict=True):
            names = about.class_names or CLASS_NAMES.get(task)
            if about.is_number:
                low, high = about.label_range
                says = f"{said.predicted:.1f}, from {low:g} to {high:g}"
                probability = "–"
            else:
                says = names[int(said.predicted)] if names and not about.class_names else str(said.predicted)
                probability = f"{said.confidence:.2f}"
            rows.append((plots.TASK_LABELS[task], name, says, probability))
    return pd.DataFrame(rows, columns=["task", "of", "says", "probability"])


def two_sentences(first: str, second: str) -> None:
    """What the demo model says of two sentences; in a live notebook of any two that are typed."""

    def draw(first: str, second: str) -> None:
        notebook.listing(what_it_says(demo_model(), first, second))

    if not _is_live():
        draw(first, second)
        return
    wide = dict(continuous_update=False, layout={"width": "98%"})
    _view(draw, first=Text(first, description="first", **wide), second=Text(second, description="second", **wide))


def watch(config: RunConfig) -> plt.Figure:
    """The points that a run has written so far, in training or after it; raises FileNotFoundError without any."""
    [file, *_] = [*(cache_dir() / "models").glob(f"{config.digest}-*/{LOG}"), None]
    if file is None:
        raise FileNotFoundError(f"no run of configuration {config.digest} has written {LOG} in the cache")
    table = pd.read_csv(file, index_col="step")
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.2))
    for ax, what in zip(axes, ("train_loss", "dev_"), strict=True):
        points = table.filter(like=what).dropna(how="all")
        points.plot(ax=ax, marker="o", ms=3, xlabel="step", ylabel=what.strip("_"))
    figure.suptitle(f"{', '.join(config.tasks)}: step {table.index[-1]}", fontsize="medium")
    return figure


def _view(draw: Callable, *buttons: Widget, **controls: Widget) -> None:
    """Show controls, buttons in a row, and what `draw` makes of the controls' values."""
    row = [ipywidgets.HBox(buttons)] if buttons else []
    display(ipywidgets.VBox([*controls.values(), *row, interactive_output(draw, controls)]))


def _show(figure: plt.Figure) -> None:
    display(figure)
    plt.close(figure)
