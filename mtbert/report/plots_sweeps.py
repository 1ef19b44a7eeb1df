"""Figures of sweeps and of claims: f(table, ax=None) -> ax, as in plots.py; nothing here reads a file."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator
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
    """`stacked` bars of numbers of things, with the numbers in the bars that are wide enough."""
    least = max(1, 0.03 * table.sum(axis=1).max())
    ax = stacked(table, colours, label, ax, edgecolor="black", linewidth=0.6)
    for bars, part in zip(ax.containers, table, strict=True):
        colour = "white" if relative_luminance(colours[part]) < 0.25 else "black"
        numbers = [f"{n:.0f}" if n >= least else "" for n in bars.datavalues]
        texts = ax.bar_label(bars, numbers, label_type="center", color=colour, fontsize="x-small")
        if part in HATCHES:
            plt.setp(texts, bbox={"fc": colours[part], "ec": "none", "pad": 1})
    ax.grid(axis="y", visible=False)
    return ax


def differences_by_task(table: pd.DataFrame, label: str) -> plt.Figure:
    """Differences with intervals, a panel per task on one scale: columns task, run, value, low, high, verdict.

    A value far outside the others is an arrow at the edge, with its number; else it would hide them.
    """
    tasks, names = table["task"].unique(), table["run"].unique()
    size = (2.3 * len(tasks) + 0.07 * max(map(len, names)), 0.27 * len(names) + 1.5)
    figure, axes = plt.subplots(1, len(tasks), figsize=size, squeeze=False, sharex=True, sharey=True)
    reach = table[["low", "high"]].abs().max(axis=1)
    most = 4 * reach.median() if reach.max() > 8 * reach.median() else reach.max()
    lowest = min(0, table["low"].min())
    highest = max(0, table["high"].max())
    limits = [max(lowest, -most), min(highest, most)]
    looks = {verdict: {"ms": 6, "capsize": 2, "lw": 1.2} | look for verdict, look in VERDICTS.items()}
    table = table.assign(kind=table["verdict"]).set_index("run")
    for ax, task in zip(axes[0], tasks, strict=True):
        ax.axvline(0, color="black", lw=1)
        part = table[table["task"] == task].reindex(names).rename_axis("label").reset_index()
        is_outside = part["value"].ne(part["value"].clip(*limits)) & part["value"].notna()
        intervals(part.mask(is_outside).assign(label=part["label"]), ax, looks)
        for place, row in part[is_outside].iterrows():
            side = int(row["value"] > 0)
            look = VERDICTS[row["verdict"]]
            ax.plot(limits[side], place, "<>"[side], color=look["color"], mfc=look.get("mfc"), ms=6, clip_on=False)
            ax.annotate(
                f"{row['value']:+.3f}", (limits[side], place), (8 - 16 * side, 0), textcoords="offset points",
                ha=["left", "right"][side], va="center", fontsize="x-small", bbox=dict(fc="white", ec="none", pad=0.5),
            )  # fmt: skip
        ax.set_title(TASK_LABELS[task], fontsize="medium")
        ax.tick_params(labelsize="small")
    ax.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    room = 0.04 * (limits[1] - limits[0])
    ax.set_xlim(limits[0] - room, limits[1] + room)
    figure.supxlabel(label, fontsize="medium")
    found = [verdict for verdict in VERDICTS if verdict in set(table["verdict"])]
    handles = [Line2D([], [], label=verdict, **{"ls": "", "marker": "o"} | VERDICTS[verdict]) for verdict in found]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(found), frameon=False, fontsize="small")
    return figure


def front(table: pd.DataFrame, names: Sequence[str], x: str, ax: Axes | None = None, floor: float = -np.inf) -> Axes:
    """Score against a cost, a named point per row, those of the front joined: columns name, seeds, overall, cost x.

    A hollow point has fewer than three seeds. Columns low and high, where they are: the interval of a score. A score
    below `floor` is an arrow at the bottom with its number, else it would hide the differences between the others.
    """
    ax = ax or plt.gca()
    if table[x].max() > 2.5 * table[x].min():
        log_axis(ax.xaxis, (1, 2, 3, 5, 7))
    on_front = table.set_index("name").loc[list(names)].reset_index()
    across = np.repeat(on_front[x], 2)[1:]
    up = np.repeat(on_front["overall"], 2)[:-1]
    steps = np.column_stack([across, up])
    line = Path(steps).interpolated(50).vertices  # points all along: names avoid them
    ax.plot(*line.T, color=COLOURS["shared"], lw=1)
    is_shown = table["overall"] >= floor
    for (is_named, is_few), part in table[is_shown].groupby([table["name"].isin(names), table["seeds"] < 3]):
        colour = COLOURS["shared"] if is_named else "#7F7F7F"
        look = dict(ls="", marker="o" if is_named else "s", ms=6, color=colour, mfc="white" if is_few else colour)
        spread = [part["overall"] - part["low"], part["high"] - part["overall"]] if "low" in part else None
        ax.errorbar(part[x], part["overall"], spread, elinewidth=0.6, **look)
    if np.isfinite(floor):
        ax.set_ylim(floor)
    name_points(table[is_shown], x, "overall", ax)
    for i, (place, part) in enumerate(table[~is_shown].groupby(x)):
        text = "\n".join(f"{name}: {score:+.3f}" for name, score in zip(part["name"], part["overall"], strict=True))
        arrow = dict(arrowstyle="-|>", color="#D55E00")
        look = dict(textcoords="offset points", fontsize="x-small", ha="center", arrowprops=arrow)
        ax.annotate(text, (place, floor), (0, 20 + 16 * (i % 2)), **look)
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
    colours = [PART_COLOURS[part] for part in shown]
    ax = table[shown].plot.area(ax=ax, color=colours, linewidth=0, legend=False)
    for drawn, part in zip(ax.collections, shown, strict=True):
        drawn.set(hatch=HATCHES.get(part), edgecolor="white", rasterized=True)
    ax.plot(table["total"].idxmax(), table["total"].max(), "v", color="black", ms=6, clip_on=False)
    for start in np.flatnonzero(table["phase"].ne(table["phase"].shift()).to_numpy())[1:]:
        ax.axvline(start, color="white", lw=0.8)
    top = max(ax.get_ylim()[1], 1.08 * table["total"].max())  # of axes that share it the highest
    ax.set(xlim=(0, max(1, len(table) - 1)), ylim=(0, top))
    ax.set(xlabel="allocation of the step", ylabel="memory (MiB)")
    return ax
