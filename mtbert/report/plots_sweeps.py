"""Figures of sweeps and of claims: f(table, ax=None) -> ax, as in plots.py; nothing here reads a file."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.path import Path
from matplotlib.ticker import FixedLocator, MaxNLocator
from seaborn.utils import relative_luminance

from mtbert.cost import PARTS
from mtbert.report.plots import COLOURS, HATCHES, TASK_LABELS, intervals, log_axis, name_points, stacked

VERDICTS = {  # of a difference; distinguishable without colour, too
    "better": {"color": "#0072B2", "marker": "^"},
    "worse": {"color": "#D55E00", "marker": "v"},
    "too close to call": {"color": "#7F7F7F"},
    "not decided": {"color": "#7F7F7F", "mfc": "white"},
}
CLAIM_COLOURS = {  # from dark to light, so that they are distinguishable in grey, too
    "reproduced": "#004488",
    "contradicted": "#BB5566",
    "different, but by less than the margin": "#6699CC",
    "too close to call": "#DDAA33",
    "not decided": "#EEDD99",
    "not comparable": "#BBBBBB",
    "cannot be checked": "#DDDDDD",
    "not measured yet": "#FFFFFF",
}


def counts(table: pd.DataFrame, colours: dict[str, str], label: str, ax: Axes | None = None) -> Axes:
    """`stacked` bars of numbers of things, with the numbers in the bars."""
    ax = stacked(table, colours, label, ax, edgecolor="black", linewidth=0.6)
    for bars, part in zip(ax.containers, table, strict=True):
        colour = "white" if relative_luminance(colours[part]) < 0.25 else "black"
        numbers = [f"{n:.0f}" if n else "" for n in bars.datavalues]
        texts = ax.bar_label(bars, numbers, label_type="center", color=colour, fontsize="x-small")
        if part in HATCHES:
            plt.setp(texts, bbox={"fc": colours[part], "ec": "none", "pad": 1})
    ax.grid(axis="y", visible=False)
    return ax


def differences_by_task(table: pd.DataFrame, label: str) -> plt.Figure:
    """Differences with intervals, a panel per task: columns task, run, value, low, high, verdict."""
    tasks, names = table["task"].unique(), table["run"].unique()
    size = (3.4 * len(tasks) + 0.07 * max(map(len, names)), 0.3 * len(names) + 1.7)
    figure, axes = plt.subplots(1, len(tasks), figsize=size, squeeze=False, sharey=True)
    table = table.assign(kind=table["verdict"]).set_index("run")
    for ax, task in zip(axes[0], tasks, strict=True):
        ax.axvline(0, color="black", lw=1)
        part = table[table["task"] == task].reindex(names).rename_axis("label").reset_index()
        ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        if is_wide := part[["low", "high"]].abs().max(axis=None) > 0.1:  # else the small ones are all at 0
            ax.set_xscale("symlog", linthresh=0.05)
            ax.xaxis.set(major_locator=FixedLocator([-0.5, -0.1, -0.02, 0, 0.02, 0.1, 0.5]), major_formatter="{x:g}")
        intervals(part, ax, {verdict: {"ms": 6, "capsize": 2, "lw": 1.2} | look for verdict, look in VERDICTS.items()})
        ax.set_title(TASK_LABELS[task])
        ax.set_xlabel(label + (", log beyond 0.05" if is_wide else ""), fontsize="small")
        ax.tick_params(axis="x", labelsize="small")
    handles = ax.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=len(VERDICTS), frameon=False, fontsize="small")
    return figure


def front(table: pd.DataFrame, names: Sequence[str], x: str, ax: Axes | None = None) -> Axes:
    """Score against a cost, a point per row, those of the front joined: columns name, seeds, overall, cost x.

    Of more than twelve points only those of the front are named. A hollow point has fewer than three seeds. Columns low
    and high, where they are: the interval of a score.
    """
    ax = ax or plt.gca()
    if table[x].max() > 4 * table[x].min():
        log_axis(ax.xaxis)
    on_front = table.set_index("name").loc[list(names)].reset_index()
    steps = np.column_stack([np.repeat(on_front[x], 2)[1:], np.repeat(on_front["overall"], 2)[:-1]])
    line = Path(steps).interpolated(50).vertices  # points all along: names avoid them
    ax.plot(*line.T, color=COLOURS["shared"], lw=1)
    for (is_named, is_few), part in table.groupby([table["name"].isin(names), table["seeds"] < 3]):
        colour = COLOURS["shared"] if is_named else "#7F7F7F"
        look = dict(ls="", marker="o" if is_named else "s", ms=6, color=colour, mfc="white" if is_few else colour)
        spread = [part["overall"] - part["low"], part["high"] - part["overall"]] if "low" in part else None
        ax.errorbar(part[x], part["overall"], spread, capsize=2, elinewidth=1, **look)
    name_points(on_front if len(table) > 12 else table, x, "overall", ax)
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
    table = table.reset_index(drop=True)
    shown = [part for part in PARTS if table[part].any()]
    ax = table[shown].plot.area(ax=ax, color=[PART_COLOURS[part] for part in shown], linewidth=0, legend=False)
    for drawn, part in zip(ax.collections, shown, strict=True):
        drawn.set(hatch=HATCHES.get(part), edgecolor="white")
    ax.plot(table["total"].idxmax(), table["total"].max(), "v", color="black", ms=6, clip_on=False)
    for start in np.flatnonzero(table["phase"].ne(table["phase"].shift()).to_numpy())[1:]:
        ax.axvline(start, color="white", lw=0.8)
    top = max(ax.get_ylim()[1], 1.08 * table["total"].max())  # of axes that share it the highest
    ax.set(xlim=(0, max(1, len(table) - 1)), ylim=(0, top), xlabel="operation of the step", ylabel="memory (MiB)")
    return ax
