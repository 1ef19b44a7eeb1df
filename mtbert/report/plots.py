"""Figures: f(table, ax=None) -> ax. Nothing here reads a file; one style, one fixed colour for every thing shown."""

import os
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from mtbert.paths import REPOSITORY

# Okabe and Ito's palette: told apart in print and by colour-blind readers.
COLOURS = {
    "fine-tuned": "#0072B2",
    "frozen": "#E69F00",
    "pretrained": "#0072B2",
    "random": "#000000",
    "paper": "#7F7F7F",
    "sst": "#009E73",
    "cfimdb": "#D55E00",
    "quora": "#56B4E9",
    "sts": "#CC79A7",
    "shared": "#0072B2",
    "individual": "#D55E00",
    "1-bert": "#0072B2",
    "hybrid": "#009E73",
    "3-bert": "#D55E00",
    "1-bert + PAL": "#CC79A7",
    "F + S": "#56B4E9",
    "fewer layers": "#000000",
    "other batches": "#7F7F7F",
    "single task": "#7F7F7F",
    "round_robin": "#E69F00",
    "sqrt": "#56B4E9",
    "proportional": "#0072B2",
    "annealed": "#009E73",
    "gradient": "#7F7F7F",
    "PCGrad": "#0072B2",
    "GEM": "#D55E00",
    "sum": "#000000",
    "mean": "#0072B2",
    "cls": "#009E73",
    "pooler": "#D55E00",
}
TASK_LABELS = {"sst": "SST", "cfimdb": "CFIMDB", "quora": "Quora", "sts": "STS"}
METRIC_LABELS = {"accuracy": "accuracy", "pearson": "Pearson correlation", "f1": "F1", "macro_f1": "macro F1"}


def use_style() -> None:
    """The report's one style; call it once at the top of a notebook."""
    sns.set_theme(context="notebook", style="whitegrid", font_scale=0.9)
    plt.rcParams.update({"figure.dpi": 100, "savefig.dpi": 150, "figure.constrained_layout.use": True})


def save(figure: plt.Figure, name: str) -> None:
    """Write a figure as PNG and PDF to MTBERT_FIGURES, else to figures/ of this checkout; the same bytes each time."""
    folder = Path(os.environ.get("MTBERT_FIGURES") or REPOSITORY / "figures")
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", metadata={"Software": None})
    figure.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None, "Producer": None, "Creator": None})


def scores(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Scores with their 95 % intervals, a line a row of `table`: label, kind (a colour's name), value, low, high.

    Rows with the same label share a line; a row without low and high (a paper's number) is a hollow diamond.
    """
    ax = ax or plt.gca()
    labels = list(dict.fromkeys(table["label"]))
    for kind, part in table.groupby("kind", sort=False):
        places = [labels.index(label) for label in part["label"]]
        if part["low"].isna().all():
            ax.plot(part["value"], places, "D", mfc="white", mec=COLOURS[kind], ms=7, ls="", label=kind)
            continue
        widths = [part["value"] - part["low"], part["high"] - part["value"]]
        ax.errorbar(part["value"], places, xerr=widths, fmt="o", color=COLOURS[kind], capsize=3, label=kind)
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    return ax


def learning_curves(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Dev score against the epochs trained, a line a seed, a colour a kind: columns kind, seed, epoch, dev_score."""
    ax = ax or plt.gca()
    for (kind, seed), part in table.groupby(["kind", "seed"], sort=False):
        label = kind if seed == table.loc[table["kind"] == kind, "seed"].iloc[0] else None
        ax.plot(part["epoch"], part["dev_score"], "o-", ms=3, lw=1.2, color=COLOURS[kind], alpha=0.8, label=label)
    ax.set_xlabel("epochs (passes over the training split)")
    return ax


def cost(table: pd.DataFrame, column: str, label: str, ax: Axes | None = None) -> Axes:
    """Horizontal bars of one cost, a bar a row of `table`: its index names the run, `kind` its colour."""
    ax = ax or plt.gca()
    ax.barh(range(len(table)), table[column], color=[COLOURS[kind] for kind in table["kind"]])
    ax.set_yticks(range(len(table)), table.index)
    ax.invert_yaxis()
    ax.set_xlabel(label)
    for place, value in enumerate(table[column]):
        ax.annotate(f" {value:.3g}", (value, place), va="center", fontsize="small")
    ax.margins(x=0.15)
    return ax


def activations(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Activation functions: one line a column over the index x."""
    ax = ax or plt.gca()
    for name, colour in zip(table.columns, ("#0072B2", "#7F7F7F", "#E69F00"), strict=False):
        ax.plot(table.index, table[name], label=name, color=colour, linewidth=2)
    ax.set(xlabel="x", ylabel="activation(x)")
    ax.legend(frameon=False)
    return ax


def attention_map(weights: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """One head's attention: a row for each query token, a column for each key token, white 0 to dark blue 1."""
    ax = ax or plt.gca()
    ax.imshow(weights, cmap="Blues", vmin=0, vmax=1)
    ax.set_xticks(range(weights.shape[1]), weights.columns, rotation=90)
    ax.set_yticks(range(weights.shape[0]), weights.index)
    ax.tick_params(labelsize="small")
    ax.grid(False)
    ax.set(xlabel="attended to (key)", ylabel="token (query)")
    return ax


def similarity_map(cosines: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Cosine similarities between stages (E: embeddings, a number: a layer), each written in its cell."""
    ax = ax or plt.gca()
    size = 8 if len(cosines) < 9 else 5
    sns.heatmap(cosines, vmin=0, vmax=1, cmap="Greens", annot=True, fmt=".2f", annot_kws={"size": size},
                square=True, cbar=False, ax=ax)  # fmt: skip
    ax.tick_params(labelsize="small", rotation=0)
    ax.set(xlabel="stage (E: embeddings, number: layer)", ylabel="stage")
    return ax


def parity(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Relative differences by depth, log axis: columns part, quantity, weights ('pretrained', 'random'), difference.

    A difference of exactly 0 has no place on the axis and is left out.
    """
    ax = ax or plt.gca()
    parts = list(dict.fromkeys(table["part"]))
    markers = dict(zip(dict.fromkeys(table["quantity"]), "os^D", strict=False))
    for (weights, quantity), rows in table[table["difference"] > 0].groupby(["weights", "quantity"], sort=False):
        places = [parts.index(part) for part in rows["part"]]
        label = f"{quantity}, {weights}"
        ax.plot(places, rows["difference"], markers[quantity], color=COLOURS[weights], label=label)
    ax.set_xticks(range(len(parts)), parts, rotation=30, ha="right")
    ax.set(yscale="log", xlabel="part of the encoder", ylabel="difference / largest value")
    return ax


def optimizer_gap(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """How far two optimizers part, on a log axis: columns step, gap (relative to the way gone), settings."""
    ax = ax or plt.gca()
    sns.lineplot(table, x="step", y="gap", hue="settings", style="settings", markers=True, dashes=False,
                 palette="colorblind", ax=ax)  # fmt: skip
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set(yscale="log", xlabel="optimizer step", ylabel="gap / way gone")
    ax.legend(title=None)
    return ax


def overfit(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Training loss on a log axis, a line a kind of weights ('pretrained' or 'random'): columns step, loss, weights."""
    ax = ax or plt.gca()
    for weights, rows in table.groupby("weights", sort=False):
        ax.plot(rows["step"], rows["loss"], "o-", ms=3, color=COLOURS[weights], label=f"{weights} weights")
    ax.set(yscale="log", xlabel="optimizer step", ylabel="cross-entropy (nats)")
    return ax


def learning_rate_range(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Loss against a rising learning rate on a log axis: columns learning_rate, loss, smoothed."""
    ax = ax or plt.gca()
    ax.plot(table["learning_rate"], table["loss"], "o", ms=3, color="#7F7F7F", label="one batch")
    ax.plot(table["learning_rate"], table["smoothed"], lw=2, color=COLOURS["fine-tuned"], label="moving average")
    ax.set(xscale="log", xlabel="learning rate", ylabel="cross-entropy (nats)")
    return ax


def plan(table: pd.DataFrame, tasks: Sequence[str], ax: Axes | None = None) -> Axes:
    """A sharing plan, from the input at the bottom upward: a row a level, a column a task, a box a copy.

    table: `SharingPlan.table()`. The colour is the mode; tasks in one box share its weights, also over a gap that a bar
    crosses.
    """
    ax = ax or plt.gca()
    for height, (mode, groups) in enumerate(zip(table["mode"], table["groups"], strict=True)):
        for group in groups.split(" | "):
            places = sorted(tasks.index(task) for task in group.split(", "))
            together = dict(color=COLOURS[mode], linewidth=0)
            for place in places:
                neighbours = place + 1 in places
                ax.barh(height, 1.0 if neighbours else 0.9, left=place - 0.45, height=0.8, **together)
            ax.barh(height, places[-1] - places[0], left=places[0], height=0.2, zorder=0, **together)
    ax.set_yticks(range(len(table)), table.index)
    ax.set_xticks(range(len(tasks)), [TASK_LABELS[task] for task in tasks])
    ax.set_xlim(-0.5, len(tasks) - 0.5)
    ax.grid(False)
    return ax


def mode_legend(figure: plt.Figure) -> None:
    """What the colours of `plan` mean, under the figure."""
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[mode]) for mode in ("frozen", "shared", "individual")]
    figure.legend(handles, ["frozen", "shared", "individual"], loc="outside lower center", ncols=3, frameon=False)


def probabilities(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Probability of drawing each task by epoch, a line a task: index epoch, a column a task."""
    ax = ax or plt.gca()
    for task in table.columns:
        ax.plot(table.index, table[task], "o-", ms=4, color=COLOURS[task], label=TASK_LABELS[task])
    ax.set(ylim=(0, 1), xlabel="epoch")
    ax.xaxis.get_major_locator().set_params(integer=True)
    return ax


def vectors(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Vectors from the origin of a plane: columns name, kind (a colour's name), x, y."""
    ax = ax or plt.gca()
    for row in table.itertuples():
        ax.annotate("", (row.x, row.y), (0, 0), arrowprops=dict(arrowstyle="-|>", color=COLOURS[row.kind], lw=2))
        ax.annotate(row.name, (row.x, row.y), color=COLOURS[row.kind], xytext=(4, 4), textcoords="offset points")
    reach = 1.25 * table[["x", "y"]].abs().to_numpy().max()
    ax.set(
        xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xlabel="first parameter", ylabel="second parameter"
    )
    return ax


def gradient_cosines(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Mean cosine of two tasks' gradients, a row a level, a column a pair, red below 0: columns layer, pair, cosine."""
    ax = ax or plt.gca()
    levels, pairs = dict.fromkeys(table["layer"]), dict.fromkeys(table["pair"])
    means = table.pivot_table(index="layer", columns="pair", values="cosine").loc[list(levels)[::-1], list(pairs)]
    sns.heatmap(means, cmap="RdBu", vmin=-1, vmax=1, annot=True, fmt=".2f", cbar=False, ax=ax)
    ax.tick_params(rotation=0)
    ax.set(xlabel="pair of tasks", ylabel="level")
    return ax


def against_parameters(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Scores with 95 % intervals against millions of parameters: columns name, kind, parameters, value, low, high."""
    ax = ax or plt.gca()
    for row in table.itertuples():
        error = [[row.value - row.low], [row.high - row.value]]
        ax.errorbar(
            row.parameters / 1e6, row.value, yerr=error, fmt="o", capsize=3, color=COLOURS[row.kind], label=row.name
        )
    ax.set_xlabel("parameters (millions)")
    return ax


def scores_over(table: pd.DataFrame, x: str, ax: Axes | None = None) -> Axes:
    """Dev score against a cost, a line a run: columns name, kind (a colour's name), dev_score and the cost x."""
    ax = ax or plt.gca()
    for (name, kind), part in table.groupby(["name", "kind"], sort=False):
        ax.plot(part[x], part["dev_score"], "o-", ms=3, lw=1.4, color=COLOURS[kind], label=name)
    return ax


NAME_PLACES = [(7, 0), (-7, 0)] + [
    (dx, side * dy) for dy in (14, 26, 38, 50) for side in (1, -1) for dx in (0, 18, -18)
]


def scores_against(table: pd.DataFrame, x: str, ax: Axes | None = None) -> Axes:
    """Scores against a cost, a point a run with its name: columns name, kind (a colour), value and the cost x.

    Names go where they cover no point, no other name and no edge; set the scale of the axes before.
    """
    ax = ax or plt.gca()
    rows = table.sort_values(x).to_dict("records")
    for row in rows:
        ax.plot(row[x], row["value"], "o", ms=6, color=COLOURS[row["kind"]])
    ax.margins(x=0.15, y=0.2)
    ax.figure.draw_without_rendering()  # from here on everything has its place
    taken = [line.get_window_extent() for line in ax.lines]
    for row in rows:
        for dx, dy in NAME_PLACES:
            name = ax.annotate(
                row["name"], (row[x], row["value"]), xytext=(dx, dy), textcoords="offset points", fontsize="x-small",
                ha="center" if dy else "left" if dx > 0 else "right", va="center",
                arrowprops=dict(arrowstyle="-", lw=0.5, color="#7F7F7F", shrinkB=3) if dy else None,
            )  # fmt: skip
            name.get_window_extent()  # puts it into its place; that of the name alone, without the line to its point:
            box = Text.get_window_extent(name)
            is_inside = ax.bbox.x0 <= box.x0 and box.x1 <= ax.bbox.x1
            if (dx, dy) == NAME_PLACES[-1] or (is_inside and not any(box.overlaps(other) for other in taken)):
                taken.append(box)
                break
            name.remove()
    return ax


def log_axis(axis: Axis) -> None:
    """Plain numbers at 1, 2 and 5 on a logarithmic axis."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def predicted_measured(table: pd.DataFrame, unit: str, ax: Axes | None = None) -> Axes:
    """Predictions against measurements on log axes, a band of 10 % around equality: columns measured, predicted."""
    ax = ax or plt.gca()
    ends = [0.8 * table["measured"].min(), 1.25 * table["measured"].max()]
    ax.fill_between(ends, [0.9 * end for end in ends], [1.1 * end for end in ends], color="#7F7F7F", alpha=0.25, lw=0)
    ax.plot(table["measured"], table["predicted"], "o", ms=5, color=COLOURS["shared"])
    log_axis(ax.xaxis)
    log_axis(ax.yaxis)
    ax.set(xlabel=f"measured ({unit})", ylabel=f"predicted ({unit})")
    return ax


def stacked(table: pd.DataFrame, colours: dict[str, str], label: str, ax: Axes | None = None) -> Axes:
    """Horizontal bars, a bar a row of `table`, a part a column with its colour."""
    ax = ax or plt.gca()
    table.iloc[::-1].plot.barh(stacked=True, ax=ax, color=[colours[part] for part in table], width=0.8)
    ax.set(xlabel=label, ylabel="")
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return ax


def ratios(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """How many times faster, on a log axis, with its interval, a line a row: columns label, ratio, low, high."""
    ax = ax or plt.gca()
    places = range(len(table))
    widths = [(table["ratio"] - table["low"]).clip(lower=0), (table["high"] - table["ratio"]).clip(lower=0)]
    ax.errorbar(table["ratio"], places, xerr=widths, fmt="o", color=COLOURS["shared"], capsize=3)
    ax.axvline(1, color="#7F7F7F", lw=1)
    ax.set_yticks(places, table["label"])
    log_axis(ax.xaxis)
    ax.set_xlabel("time of the peer / our time")
    ax.set_ylim(len(table) - 0.5, -0.5)
    return ax
