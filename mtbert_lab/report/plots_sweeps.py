"""Figures of sweeps and of claims: f(table, ax=None) -> ax as in plots.py, or a Figure; nothing reads a file."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator
from seaborn.utils import relative_luminance

from mtbert_lab.report.plots import (
    BLACK,
    BLUE,
    COLOURS,
    GREY,
    HATCHES,
    ORANGE,
    SKY,
    VERMILION,
    as_text,
    boxes,
    intervals,
    log_axis,
    name_points,
    stacked,
    styles,
)
from mtbert_lab.report.words import TASK_LABELS
from mtbert_lab.statistics import CONTRADICTED, NO_DIFFERENCE, REPRODUCED, SEEDS, TOO_FEW

VERDICTS = {  # of a difference; distinguishable without colour, too
    "better": {"color": BLUE, "marker": "^"},
    "worse": {"color": VERMILION, "marker": "v"},
    NO_DIFFERENCE: {"color": GREY},
    TOO_FEW: {"color": GREY, "mfc": "white"},
}
CLAIM_COLOURS = {  # from dark to light, so that they are distinguishable in grey, too
    REPRODUCED: "#004488",
    CONTRADICTED: "#BB5566",
    NO_DIFFERENCE: "#DDAA33",
    TOO_FEW: "#EEDD99",
    "not comparable": "#BBBBBB",
    "cannot be checked": "#DDDDDD",
    "not measured yet": "#FFFFFF",
}
PART_COLOURS = {
    "weights": BLACK,
    "moments": GREY,
    "gradients": ORANGE,
    "task gradients": VERMILION,
    "activations": BLUE,
    "temporary": SKY,
}


def counts(
    table: pd.DataFrame,
    colours: dict[str, str],
    label: str,
    ax: Axes | None = None,
) -> Axes:
    """`stacked` bars of numbers of things, with the numbers in the bars that are wide enough."""
    longest = table.sum(axis=1).max()
    least = max(1, 0.04 * longest)
    ax = stacked(table, colours, label, ax, edgecolor="black", linewidth=0.6)
    for bars, part in zip(ax.containers, table, strict=True):
        colour = "white" if relative_luminance(colours[part]) < 0.25 else "black"
        numbers = [f"{n:.0f}" if n >= least else "" for n in bars.datavalues]
        texts = ax.bar_label(bars, numbers, label_type="center", color=colour, fontsize="x-small")
        if part in HATCHES:
            ground = {"fc": colours[part], "ec": "none", "pad": 2}
            plt.setp(texts, bbox=ground)
    ax.grid(axis="y", visible=False)
    return ax


def differences_by_task(
    table: pd.DataFrame,
    label: str,
    drawings: Mapping[str, pd.DataFrame] | None = None,
) -> plt.Figure:
    """Differences with intervals, a panel per task with its own scale: columns task, run, value, low, high, verdict.

    Column margin, where it is: a grey band has the differences that do not matter. Column group: the rows of a group
    have its name above them. drawings: run -> the table of its plan, drawn beside the name. A row without a value has
    a name and a drawing alone. A value far outside the others is an arrow at the edge, with its number; else it would
    hide them.
    """
    tasks, lines = table["task"].unique(), _lines(table)
    across = 1.5 * len(tasks) if len(tasks) > 1 else 4.0  # a page has 8.7 inches, to which wider figures shrink
    width = across + 0.07 * max(map(len, lines)) + (0.8 if drawings else 0)
    height = (0.33 if drawings else 0.27) * len(lines) + 1.5
    widths = [*([0.35] if drawings else []), *[1.0] * len(tasks)]
    figure, [axes] = plt.subplots(
        1, len(widths), figsize=(width, height), squeeze=False, sharey=True, width_ratios=widths
    )
    for ax, task in zip(axes[-len(tasks) :], tasks, strict=True):
        _panel(ax, table[table["task"] == task], lines)
        ax.set_title(TASK_LABELS[task], fontsize="medium")
        ax.xaxis.set_major_locator(MaxNLocator(3 if len(tasks) > 1 else 8, steps=[1, 2, 5, 10]))
    if drawings:
        _draw_plans(axes[0], drawings, lines)
    _embolden(axes[0], lines, set(table["run"]))
    figure.supxlabel(label, fontsize="medium")
    _legend_of_verdicts(figure, set(table["verdict"].dropna()))
    return figure


def _panel(ax: Axes, differences: pd.DataFrame, lines: Sequence[str]) -> None:
    """The differences on one task, each on its line."""
    low, high = _limits(differences)
    if "margin" in differences:
        margin = differences["margin"].max()
        ax.axvspan(-margin, margin, color=GREY, alpha=0.15, lw=0)
    ax.axvline(0, color="black", lw=1)
    on_lines = differences.set_index("run").reindex(lines).rename_axis("label").reset_index()
    on_lines["kind"] = on_lines["verdict"]
    value = on_lines["value"]
    is_outside = value.notna() & ~value.between(low, high)
    inside = on_lines.mask(is_outside).assign(label=on_lines["label"])  # an outside one keeps its line, empty
    looks = {verdict: {"ms": 6, "capsize": 2, "lw": 1.2, **look} for verdict, look in VERDICTS.items()}
    intervals(inside, ax, looks)
    for line, row in on_lines[is_outside].iterrows():
        _arrow_at_edge(ax, (low, high), line, row["value"], VERDICTS[row["verdict"]])
    ax.tick_params(labelsize="small")
    room = 0.04 * (high - low)
    ax.set_xlim(low - room, high + room)


def _lines(table: pd.DataFrame) -> list[str]:
    """The lines of a figure of differences from above: names of runs, those of a group below its name."""
    if "group" not in table:
        return list(table["run"].unique())
    lines = []
    for group, part in table.groupby("group", sort=False):
        lines += [group, *part["run"].unique()]
    return lines


def _embolden(ax: Axes, lines: Sequence[str], runs: set[str]) -> None:
    """The lines that name no run, but a group, are bold."""
    for text, line in zip(ax.get_yticklabels(), lines, strict=True):
        if line not in runs:
            text.set_fontweight("bold")


def _draw_plans(ax: Axes, drawings: Mapping[str, pd.DataFrame], lines: Sequence[str]) -> None:
    """The plans of runs on their lines: from the input on the left, a column per level, a box per copy."""
    for place, line in enumerate(lines):
        if line in drawings:
            _plan_on_a_line(ax, drawings[line].drop(index="pooler", errors="ignore"), place)
    ax.set_xlim(-0.6, max(map(len, drawings.values())) - 0.9)
    ax.set_xticks([])
    ax.grid(visible=False)
    ax.set_frame_on(False)
    ax.set_title("plan", fontsize="medium")
    ax.tick_params(labelsize="small")


def _plan_on_a_line(ax: Axes, plan: pd.DataFrame, line: int) -> None:
    """A table of `SharingPlan.table` as boxes of the height of a line; a box is as high as its tasks are many."""
    height = 0.74
    for level, start, size, mode in boxes(plan):
        gap = 0.08 if size < 1 else 0
        look = {"color": COLOURS[mode], "linewidth": 0}
        if mode == "frozen":  # the other modes differ in their boxes
            look |= {"hatch": HATCHES[mode], "edgecolor": "white"}
        top = line - height / 2 + height * start
        ax.bar(level, height * size - gap, bottom=top + gap / 2, width=0.8, **look)


def _legend_of_verdicts(figure: plt.Figure, found: set[str]) -> None:
    handles = []
    for verdict, look in VERDICTS.items():
        if verdict in found:
            look = {"ls": "", "marker": "o", **look}
            handles.append(Line2D([], [], label=verdict, **look))
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=len(handles),
        frameon=False,
        fontsize="small",
    )


def _limits(table: pd.DataFrame) -> tuple[float, float]:
    """The ends of the axis of a task's differences: all of them and their intervals, if none reaches far beyond.

    It also has 0 and, where there is one, the band of the margin.
    """
    ends = table[["low", "value", "high"]]
    reach = ends.abs().max(axis=1)
    most, usual = reach.max(), reach.median()
    if most > 8 * usual:
        most = 4 * usual
    lowest = min(0, ends.min(axis=None))
    highest = max(0, ends.max(axis=None))
    low, high = max(lowest, -most), min(highest, most)
    if "margin" in table:
        band = 1.1 * table["margin"].max()
        low, high = min(low, -band), max(high, band)
    return (low, high) if low < high else (-0.01, 0.01)  # all are 0, or none is known


def _arrow_at_edge(ax: Axes, limits: tuple[float, float], place: int, value: float, look: dict) -> None:
    """An arrow where the axis ends, towards a value outside of it, and the value on its inner side."""
    if value > 0:
        edge, marker, offset, align = limits[1], ">", -8, "right"
    else:
        edge, marker, offset, align = limits[0], "<", 8, "left"
    ax.plot(edge, place, marker, color=look["color"], mfc=look.get("mfc"), ms=6, clip_on=False)
    ax.annotate(
        f"{value:+.3f}",
        (edge, place),
        (offset, 0),
        textcoords="offset points",
        ha=align,
        va="center",
        fontsize="x-small",
        bbox={"fc": "white", "ec": "none", "pad": 0.5},
    )


def curves(table: pd.DataFrame, label: str) -> plt.Figure:
    """Curves over the steps of training, a panel per task: columns task, plan, steps, step, value.

    steps: of the whole run. A plan has its colour and marker; the lines of runs that are not the longest are broken.
    """
    tasks, longest = table["task"].unique(), table["steps"].max()
    looks = styles(table["plan"])
    figure, [axes] = plt.subplots(1, len(tasks), figsize=(3.1 * len(tasks), 3), squeeze=False)
    for ax, task in zip(axes, tasks, strict=True):
        part = table[table["task"] == task]
        for (plan, steps), line in part.groupby(["plan", "steps"], sort=False):
            name = plan if steps == longest else f"{plan}, {steps:,} steps"
            ax.plot(line["step"], line["value"], "-" if steps == longest else "--", label=name, ms=5, **looks[plan])
        ax.set(title=TASK_LABELS[task], xlabel="step")
        log_axis(ax.xaxis, (1,))
    axes[0].set_ylabel(label)
    axes[-1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")
    return figure


def front(
    table: pd.DataFrame,
    names: Sequence[str],
    x: str,
    ax: Axes | None = None,
    floor: float = -np.inf,
) -> Axes:
    """Score against a cost, a named point per row, those of the front joined: columns name, seeds, overall, cost x.

    A hollow point has fewer than SEEDS seeds. Columns low and high, where they are: the interval of a score. A score
    below `floor` is an arrow at the bottom with its number, else it would hide the differences between the others.
    """
    ax = ax or plt.gca()
    if table[x].max() > 2.5 * table[x].min():
        log_axis(ax.xaxis, (1, 2, 3, 5, 7))
    _steps(table.set_index("name").loc[list(names)], x, ax)
    is_above = table["overall"] >= floor
    above = table[is_above]
    is_on_front = table["name"].isin(names)
    has_few_seeds = table["seeds"] < SEEDS
    for (is_joined, is_hollow), part in above.groupby([is_on_front, has_few_seeds]):
        colour = COLOURS["shared"] if is_joined else GREY
        score = part["overall"]
        spread = None
        if "low" in part:
            spread = [score - part["low"], part["high"] - score]
        ax.errorbar(
            part[x],
            score,
            spread,
            elinewidth=0.6,
            ls="",
            marker="o" if is_joined else "s",
            ms=6,
            color=colour,
            mfc="white" if is_hollow else colour,
        )
    if np.isfinite(floor):
        ax.set_ylim(floor)
    name_points(above, x, "overall", ax)
    _arrows_at_bottom(table[~is_above], x, floor, ax)
    return ax


def _steps(table: pd.DataFrame, x: str, ax: Axes) -> None:
    """The line that joins the points of a front: at each cost the best score up to it."""
    across = np.repeat(table[x], 2)[1:]
    up = np.repeat(table["overall"], 2)[:-1]
    corners = Path(np.column_stack([across, up]))
    line = corners.interpolated(50).vertices  # points all along: names avoid them
    ax.plot(*line.T, color=COLOURS["shared"], lw=1)


def _arrows_at_bottom(table: pd.DataFrame, x: str, floor: float, ax: Axes) -> None:
    """An arrow per cost, with the names and scores of the runs that have it."""
    for i, (cost, part) in enumerate(table.groupby(x)):
        lines = [f"{as_text(row.name)}: {row.overall:+.3f}" for row in part.itertuples(index=False)]
        height = 20 + 16 * (i % 2)  # neighbours at two heights
        ax.annotate(
            "\n".join(lines),
            (cost, floor),
            (0, height),
            textcoords="offset points",
            fontsize="x-small",
            ha="center",
            arrowprops={"arrowstyle": "-|>", "color": VERMILION},
        )


def plans_by_size(
    table: pd.DataFrame, plans: Mapping[str, pd.DataFrame], margin: float, ax: Axes | None = None
) -> Axes:
    """Differences of plans from the first one against their parameters, each point with a drawing of its plan.

    table: columns name, parameters (million), value, low, high (nan: no interval). plans: name -> its
    `SharingPlan.table`. Differences within the margin, the grey band, do not matter.
    """
    ax = ax or plt.gca()
    ax.axhspan(-margin, margin, color=GREY, alpha=0.15, lw=0)
    ax.axhline(0, color="black", lw=0.8)
    top = table["high"].fillna(table["value"])
    reach = top.max()
    room = 0.05 * reach
    width = 0.062 * np.ptp(table["parameters"])
    height = 0.26 * reach
    for row, above in zip(table.itertuples(), top + room, strict=True):
        x = row.parameters
        spread = [[row.value - row.low], [row.high - row.value]]
        filling = "white" if np.isnan(row.low) else BLACK
        ax.errorbar(x, row.value, spread, marker="o", ms=6, capsize=3, color=BLACK, mfc=filling)
        inset = ax.inset_axes((x - width / 2, above, width, height), transform=ax.transData)
        _drawing(plans[row.name], inset)
        name = as_text(row.name)
        ax.annotate(name, (x, above + height), (0, 2), textcoords="offset points", ha="center", fontsize="x-small")
    ax.text(table["parameters"].max(), -0.9 * margin, "too small to matter", ha="right", fontsize="small")
    ax.set_ylim(-1.15 * margin, 1.5 * reach)
    ax.margins(x=0.07)
    ax.grid(axis="x", visible=False)
    ax.set_xlabel("parameters (million)")
    looks = {"one copy for all tasks": COLOURS["shared"], "a copy for each task": COLOURS["individual"]}
    handles = [Patch(label=label, color=colour) for label, colour in looks.items()]
    ax.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.63, 0.6), fontsize="small", frameon=False)
    return ax


def _drawing(plan: pd.DataFrame, ax: Axes) -> None:
    """A plan as rows of boxes, a row per level, a box per copy."""
    for level, start, size, mode in boxes(plan):
        gap = 0.3 * size if size < 1 else 0
        ax.barh(level, size - gap, left=start + gap / 2, height=0.7, color=COLOURS[mode], linewidth=0)
    ax.set_axis_off()


def memory_over_step(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Memory over one step, its parts on top of each other, the peak marked: a table of `cost.step_timeline` (MiB)."""
    table = table.reset_index(drop=True)
    shown = [part for part in PART_COLOURS if table[part].any()]
    colours = [PART_COLOURS[part] for part in shown]
    ax = table[shown].plot.area(ax=ax, color=colours, linewidth=0, legend=False)
    for drawn, part in zip(ax.collections, shown, strict=True):
        drawn.set(hatch=HATCHES.get(part), edgecolor="white", rasterized=True)

    total = table["total"]
    peak = total.max()
    ax.plot(total.idxmax(), peak, "v", color="black", ms=6, clip_on=False)
    is_new_phase = table["phase"] != table["phase"].shift()
    for start in np.flatnonzero(is_new_phase)[1:]:
        ax.axvline(start, color="white", lw=0.8)
    top = max(ax.get_ylim()[1], 1.08 * peak)  # the highest of the axes that share it
    last = max(1, len(table) - 1)
    ax.set(xlim=(0, last), ylim=(0, top))
    ax.set(xlabel="allocation of the step", ylabel="memory (MiB)")
    return ax
