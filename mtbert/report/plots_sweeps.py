"""Figures of sweeps and of claims: f(table, ax=None) -> ax, as in plots.py; nothing here reads a file."""

import itertools
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from mtbert.cost import PARTS
from mtbert.report.plots import COLOURS, TASK_LABELS, log_axis, scores_against, stacked

VERDICTS = {  # of a difference: colour and mark
    "better": ("#0072B2", "^"),
    "worse": ("#D55E00", "v"),
    "not distinguishable": ("#7F7F7F", "o"),
    "not decided yet": ("white", "o"),
}
CLAIM_COLOURS = {  # from dark to light, so that a grey print tells them apart too
    "reproduced": "#004488",
    "contradicted": "#BB5566",
    "not distinguishable": "#DDAA33",
    "not decided": "#EEDD99",
    "not comparable": "#BBBBBB",
    "cannot be checked": "#DDDDDD",
    "not measured yet": "#FFFFFF",
}
TURN_STYLES = [  # a run each: told apart in grey by mark and line
    dict(color="#7F7F7F", marker="o", ls="-"),
    dict(color="#D55E00", marker="^", ls="--"),
    dict(color="#0072B2", marker="s", ls=":"),
    dict(color="#000000", marker="D", ls="-."),
]


def counts(table: pd.DataFrame, colours: dict[str, str], label: str, ax: Axes | None = None) -> Axes:
    """`stacked` bars of numbers of things, with the numbers in the bars."""
    ax = stacked(table, colours, label, ax)
    for bars, part in zip(ax.containers, table, strict=True):
        red, green, blue = to_rgb(colours[part])
        is_dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        for bar in bars:
            bar.set(edgecolor="black", linewidth=0.6)
        texts = [f"{bar.get_width():.0f}" if bar.get_width() else "" for bar in bars]
        ax.bar_label(bars, texts, label_type="center", color="white" if is_dark else "black", fontsize="x-small")
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))  # again: its white patches have an edge now
    ax.grid(axis="y", visible=False)
    return ax


def differences(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Differences with 95 % intervals, a line a row: columns run, value, low, high, verdict (see VERDICTS)."""
    ax = ax or plt.gca()
    names = list(dict.fromkeys(table["run"]))
    ax.axvline(0, color="black", lw=1)
    for verdict, (colour, mark) in VERDICTS.items():
        part = table[table["verdict"].str.startswith(verdict)]
        places = [names.index(name) for name in part["run"]]
        widths = [part["value"] - part["low"], part["high"] - part["value"]]
        line = "#7F7F7F" if colour == "white" else colour
        ax.errorbar(part["value"], places, xerr=widths, fmt=mark, color=line, mfc=colour, ms=6, capsize=2, lw=1.2)
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    ax.tick_params(axis="x", labelsize="small")
    return ax


def differences_by_task(table: pd.DataFrame, label: str) -> plt.Figure:
    """A panel of `differences` a task, over the same runs: a further column task; label of the x axis."""
    tasks, names = list(dict.fromkeys(table["task"])), list(dict.fromkeys(table["run"]))
    size = (3.4 * len(tasks) + 0.07 * max(map(len, names)), 0.3 * len(names) + 1.7)
    figure, axes = plt.subplots(1, len(tasks), figsize=size, squeeze=False)
    for ax, task in zip(axes[0], tasks, strict=True):
        rows = table[table["task"] == task].set_index("run").reindex(names).reset_index()
        differences(rows.assign(verdict=rows["verdict"].fillna("")), ax)
        ax.set_title(TASK_LABELS[task])
        ax.set_xlabel(label, fontsize="small")
        if ax is not axes[0, 0]:
            ax.set_yticklabels([])
    handles = [
        Line2D([], [], marker=mark, mfc=colour, mec="#7F7F7F" if colour == "white" else colour, ls="", label=verdict)
        for verdict, (colour, mark) in VERDICTS.items()
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize="small")
    return figure


def over_turns(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """A task's score after each task's pass, a line a run: columns run, after, score; the mean, a bar over seeds."""
    ax = ax or plt.gca()
    turns = list(dict.fromkeys(table["after"]))
    for (name, part), style in zip(table.groupby("run", sort=False), itertools.cycle(TURN_STYLES), strict=False):
        scores = part.groupby("after", sort=False)["score"].agg(["mean", "min", "max"]).loc[turns]
        widths = [scores["mean"] - scores["min"], scores["max"] - scores["mean"]]
        ax.errorbar(range(len(turns)), scores["mean"], yerr=widths, label=name, capsize=2, ms=5, lw=1.4, **style)
    ax.set_xticks(range(len(turns)), [f"after {TASK_LABELS[task]}" for task in turns], fontsize="small")
    ax.margins(x=0.1)
    return ax


def front(table: pd.DataFrame, names: Sequence[str], x: str, ax: Axes | None = None) -> Axes:
    """Score against a cost, a point a row, those of the front named and joined: columns name, seeds, overall, cost x.

    A hollow point has fewer than three seeds.
    """
    ax = ax or plt.gca()
    if table[x].max() > 4 * table[x].min():
        log_axis(ax.xaxis)
    on_front = table.set_index("name").loc[list(names)].reset_index()
    for row in table[~table["name"].isin(names)].to_dict("records"):  # one by one, so that names keep off each of them
        ax.plot(row[x], row["overall"], "o", ms=6, color="#7F7F7F", mfc="white" if row["seeds"] < 3 else "#7F7F7F")
    for one, other in itertools.pairwise(on_front.to_dict("records")):  # a step is two lines, which names keep off, too
        ax.plot([one[x], other[x]], [one["overall"]] * 2, color=COLOURS["shared"], lw=1)
        ax.plot([other[x]] * 2, [one["overall"], other["overall"]], color=COLOURS["shared"], lw=1)
    scores_against(on_front.assign(value=on_front["overall"], kind="shared"), x, ax)
    few = on_front[on_front["seeds"] < 3]
    ax.plot(few[x], few["overall"], "o", ms=6, color=COLOURS["shared"], mfc="white")
    return ax


PART_COLOURS = {
    "weights": "#000000",
    "moments": "#7F7F7F",
    "gradients": "#E69F00",
    "task gradients": "#D55E00",
    "activations": "#0072B2",
    "temporary": "#56B4E9",
}


def memory_over_step(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Memory over one step, its parts on top of each other, the peak marked: a table of `cost.step_timeline` (MiB)."""
    ax = ax or plt.gca()
    shown = [part for part in PARTS if table[part].any()]
    moments = np.arange(len(table))
    layers = [table[part].to_numpy() for part in shown]
    ax.stackplot(moments, *layers, labels=shown, colors=[PART_COLOURS[part] for part in shown], linewidth=0)
    peak = int(table["total"].to_numpy().argmax())
    ax.plot(peak, table["total"].iloc[peak], "v", color="black", ms=6, clip_on=False)
    for start in np.flatnonzero(table["phase"].ne(table["phase"].shift()).to_numpy())[1:]:
        ax.axvline(start, color="white", lw=0.8)
    top = max(ax.get_ylim()[1], 1.08 * table["total"].max())  # of axes that share it the highest
    ax.set(xlim=(0, max(1, len(table) - 1)), ylim=(0, top), xlabel="operation of the step", ylabel="memory (MiB)")
    return ax
