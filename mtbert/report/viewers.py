"""Looking around in a live notebook: attention, plans, errors, two sentences, and a run in training.

A viewer has a function that makes what it shows, and makes controls only in a kernel of a Jupyter server: an executed
notebook keeps static figures and no state of widgets, for which its page would load scripts.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from itertools import groupby

import ipywidgets
import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
import torch
from IPython.display import display
from ipywidgets import Dropdown, IntSlider, Text, Widget, interactive_output
from tokenizers import Tokenizer
from torch import Tensor
from traitlets import Bunch

from mtbert.bert import BertConfig, BertModel
from mtbert.config import RunConfig
from mtbert.data import TASKS, demo
from mtbert.multitask import MultitaskBert, encoder_config
from mtbert.paths import cache_dir
from mtbert.report import notebook, plots
from mtbert.sharing import PlanError, SharingPlan
from mtbert.training import LOG, load_corpus, train

DEMO = RunConfig(  # heads on a frozen encoder: features once, and then as many epochs as one likes
    tasks=("sst", "quora", "sts"), plan="frozen", pairs="product+difference+cosine", scheme="unified", train_rows=400,
    epochs=20, eval_spacing="log", keep="last", batch_size=32, learning_rate=1e-2, max_length=64,
)  # fmt: skip
ANY, PAGE = "any", 10  # errors at a time
ENCODERS = {"MiniLM, 6 layers": encoder_config(DEMO), "bert-base-uncased, 12 layers": BertConfig()}


def _in_jupyter(viewer: Callable[..., None]) -> Callable[..., None]:
    """A viewer that does nothing, and so makes no widget, in a kernel that no Jupyter server started."""

    @wraps(viewer)
    def viewed(*arguments: object, **options: object) -> None:
        if "JPY_SESSION_NAME" in os.environ:
            viewer(*arguments, **options)

    return viewed


def attention_maps(model: BertModel, input_ids: Tensor) -> Tensor:
    """The attention weights of one sequence without padding: (1, T) -> (L, h, T, T), each row summing to 1."""
    hidden, maps = model.embeddings(input_ids), []
    for layer in model.layers:
        q, k, _ = layer.attention.project(hidden).transpose(1, 3).unbind(2)  # each (1, h, T, d_k)
        maps.append(torch.softmax(q @ k.mT / q.size(-1) ** 0.5, dim=-1)[0])
        hidden = layer(hidden)
    return torch.stack(maps)


@_in_jupyter
def attention_viewer(model: BertModel, tokenizer: Tokenizer, sentence: str) -> None:
    """The attention of any sentence, by layer and head."""

    def draw(sentence: str, layer: int, head: int) -> None:
        encoding = tokenizer.encode(sentence)
        with torch.no_grad():
            weights = attention_maps(model, torch.tensor([encoding.ids]))[layer - 1, head - 1]
        size = 2 + 0.3 * len(encoding)
        figure, ax = plt.subplots(figsize=(size + 0.5, size))
        names = [f"{i} {token}" for i, token in enumerate(encoding.tokens)]  # a token may occur twice
        sns.heatmap(pd.DataFrame(weights, names, names), cmap="Blues", vmin=0, vmax=1, square=True, ax=ax)
        ax.set(xlabel="attended to (key)", ylabel="token (query)", title=f"layer {layer}, head {head}")
        _show(figure)

    layers, heads = model.config.num_hidden_layers, model.config.num_attention_heads
    _view(
        draw,
        sentence=Text(sentence, description="sentence", continuous_update=False, layout={"width": "100%"}),
        layer=IntSlider(1, 1, layers, description="layer"),
        head=IntSlider(1, 1, heads, description="head"),
    )


def plan_figure(plan: str, tasks: Sequence[str], encoder: BertConfig) -> plt.Figure:
    """A plan drawn, its parameters in the title; raises PlanError."""
    tables = [SharingPlan.parse(text, tasks, encoder.num_hidden_layers).table(encoder) for text in (plan, "1-bert")]
    size, one = (table["parameters"].sum() / 1e6 for table in tables)
    figure, ax = plt.subplots(figsize=(1.2 + 0.9 * len(tasks), 1.2 + 0.25 * len(tables[0])), layout="constrained")
    plots.plan(tables[0], tasks, ax)
    trained = tables[0]["trained"].sum() / 1e6
    ax.set_title(f"{plan}: {size:.1f} M parameters,\n{trained:.1f} M trained, {size / one:.2f} times 1-bert")
    plots.legend_of_modes(figure)
    return figure


@_in_jupyter
def plan_editor(tasks: Sequence[str]) -> None:
    """A plan as text, or layer by layer, with its drawing and parameters; the message where it is not a plan."""

    def draw(plan: str, encoder: str) -> None:
        try:
            _show(plan_figure(plan, tasks, ENCODERS[encoder]))
        except PlanError as error:
            print(error)

    text = Text(description="plan", continuous_update=False)
    encoder = Dropdown(options=list(ENCODERS), description="encoder")
    options = [("frozen", "F"), ("shared", "S"), ("individual", "I")]
    boxes = [ipywidgets.ToggleButtons(options=options, value="S", description=f"layer {i + 1}") for i in range(12)]
    levels = list(SharingPlan.parse("S12", tasks).layers)  # of the buttons; a level of the text may say more than S
    ends: list[str] = []  # emb: and pool:, which have no button

    def read(_: object) -> None:
        """Set the buttons to a new text, where it is a plan."""
        with suppress(PlanError):
            plan = SharingPlan.parse(text.value, tasks, ENCODERS[encoder.value].num_hidden_layers)
            levels[: len(plan.layers)] = plan.layers
            ends[:] = [word for word in str(plan).split() if ":" in word]
            for box, level in zip(boxes, levels, strict=True):
                box.value = level.mode

    def write(_: object) -> None:
        """Write the plan of the buttons, for a new encoder or after a click."""
        layers = ENCODERS[encoder.value].num_hidden_layers
        for i, box in enumerate(boxes):
            box.layout.display = "flex" if i < layers else "none"
        segments = [f"{level.mode}{len(list(same))}{level}" for level, same in groupby(levels[:layers])]
        first, last = ([word for word in ends if word.startswith(part)] for part in ("emb:", "pool:"))
        text.value = " ".join([*first, *segments, *last])

    def click(change: Bunch) -> None:
        i = boxes.index(change.owner)
        if change.new != levels[i].mode:  # else the text has set the button
            [levels[i]] = SharingPlan.parse(f"{change.new}1", tasks).layers
            write(change)

    for box in boxes:
        box.observe(click, "value")
    encoder.observe(write, "value")
    text.observe(read, "value")
    write(None)
    _view(draw, *reversed(boxes), plan=text, encoder=encoder)


@_in_jupyter
def error_browser(errors: pd.DataFrame) -> None:
    """The errors of an `analysis.errors.error_table` by task, model, kind and number of words, PAGE at a time."""
    names = ("task", "model", "kind")
    chosen = {name: Dropdown(options=[ANY, *errors[name].unique()], description=name) for name in names}
    longest = max(errors["words"], default=0)
    chosen["words"] = ipywidgets.IntRangeSlider(value=(0, longest), max=longest, description="words")
    start = ipywidgets.BoundedIntText(1, min=1, max=max(1, len(errors)), step=PAGE, description="from error")

    def draw(words: tuple[int, int], start: int, **chosen: str) -> None:
        found = errors[errors["words"].between(*words)]
        for name, value in chosen.items():
            found = found if value == ANY else found[found[name] == value]
        page = found.iloc[start - 1 : start - 1 + PAGE]
        notebook.say(f"{start} to {start - 1 + len(page)} of {len(found)}" if len(page) else "No such errors.")
        notebook.listing(page)

    for control in chosen.values():
        control.observe(lambda _: start.set_trait("value", 1), "value")
    _view(draw, **chosen, start=start)


def demo_model() -> MultitaskBert:
    """Heads of three tasks on the frozen encoder, trained on the demo corpus for some seconds and kept in the cache."""
    folder = cache_dir() / "models" / f"{DEMO.digest}-viewer"
    if not (folder / "run_config.json").exists():  # written last
        train(DEMO, load_corpus(DEMO, demo.root()), progress=False).model.save(folder)
    return MultitaskBert.load(folder)


def what_it_says(model: MultitaskBert, first: str, second: str) -> pd.DataFrame:
    """What a model predicts for two sentences: a row for each task, of one sentence two: task, of, predicted, range."""
    rows, both = [], (first, second)
    for task in model.run_config.tasks:
        low, high = TASKS[task].label_range
        of, texts = (["both sentences"], [both]) if TASKS[task].is_pair else (["the first", "the second"], both)
        about = {"task": plots.TASK_LABELS[task], "of": of, "range": f"{low:g} to {high:g}"}
        rows.append(model.predict(texts, task)[["predicted"]].round(1).assign(**about))
    return pd.concat(rows, ignore_index=True)[["task", "of", "predicted", "range"]]


@_in_jupyter
def two_sentences(first: str, second: str) -> None:
    """Two sentences to type, and what the demo model says of them."""
    wide = dict(continuous_update=False, layout={"width": "100%"})
    _view(
        lambda first, second: display(what_it_says(demo_model(), first, second)),
        first=Text(first, description="first", **wide),
        second=Text(second, description="second", **wide),
    )


def watch(config: RunConfig) -> plt.Figure:
    """The points that a run has written so far, in training or after it; raises FileNotFoundError without any."""
    [file, *_] = [*(cache_dir() / "models").glob(f"{config.digest}-*/{LOG}"), None]
    if file is None:
        raise FileNotFoundError(f"no run of configuration {config.digest} has written {LOG} in the cache")
    table = pd.read_csv(file, index_col="step")
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.2))
    for ax, what in zip(axes, ("train_loss", "dev_"), strict=True):
        table.filter(like=what).dropna(how="all").plot(ax=ax, marker="o", ms=3, xlabel="step", ylabel=what.strip("_"))
    figure.suptitle(f"{', '.join(config.tasks)}: step {table.index[-1]}", fontsize="medium")
    return figure


def _view(draw: Callable, *boxes: Widget, **controls: Widget) -> None:
    """Show controls and what `draw` makes of their values."""
    display(ipywidgets.VBox([*boxes, *controls.values(), interactive_output(draw, controls)]))


def _show(figure: plt.Figure) -> None:
    display(figure)
    plt.close(figure)
