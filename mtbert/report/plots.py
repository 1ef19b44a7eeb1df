"""Figures: f(table, ax=None) -> ax. Nothing here reads a file; a thing has the same colour in every figure."""

import base64
import html
import io
import itertools
from collections.abc import Iterable, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from IPython.display import HTML, display
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, NullFormatter
from matplotlib.transforms import Bbox

from mtbert.paths import figures_dir

# Okabe and Ito's palette: distinguishable in print and by colour-blind readers.
_SHOWN_IN = {
    "#0072B2": ("fine-tuned", "pretrained", "shared", "1-bert", "PCGrad", "mean"),
    "#D55E00": ("cfimdb", "individual", "3-bert", "GEM", "pooler"),
    "#009E73": ("sst", "hybrid", "hybrid-3", "cls"),
    "#E69F00": ("frozen",),
    "#56B4E9": ("quora", "F + S"),
    "#CC79A7": ("sts", "1-bert + PAL", "hybrid-1"),
    "#000000": ("random", "fewer layers", "sum", "hybrid-5"),
    "#7F7F7F": ("paper", "other batches", "gradient", "alone"),
}
COLOURS = {name: colour for colour, names in _SHOWN_IN.items() for name in names}
MARKERS = "osD^vPX*"
MODES = ("frozen", "shared", "individual")
_HATCHED = {"---": ("frozen", "temporary", "cannot be checked"), "xxx": ("not decided",),
            "///": ("individual", "task gradients", "not comparable")}  # fmt: skip
HATCHES = {name: hatch for hatch, names in _HATCHED.items() for name in names}  # for those who see grey


class _Labels(dict[str, str]):
    """Names of tasks in figures and tables; a task of a user has its own name."""

    def __missing__(self, task: str) -> str:
        return task


TASK_LABELS = _Labels(sst="SST", cfimdb="CFIMDB", quora="Quora", sts="STS")
METRIC_LABELS = dict(accuracy="accuracy", pearson="Pearson correlation", f1="F1", macro_f1="macro F1", r2="R²")


# A figure brings its own ground, white or dark, so that it is legible wherever it is shown.
DARK = "@media (prefers-color-scheme: dark) {svg {filter: invert(0.92) hue-rotate(180deg)}}"


def use_style() -> None:
    """The report's one style; call it once at the top of a notebook."""
    sns.set_theme(context="notebook", style="whitegrid", font_scale=0.9)
    fonts = ["DejaVu Sans", "Verdana", "sans-serif"]  # equally wide: where a reader has no DejaVu the layout stays
    plt.rcParams.update({"figure.constrained_layout.use": True, "font.sans-serif": fonts})


def save(figure: plt.Figure, name: str) -> str:
    """Write a figure as SVG to `figures_dir()`, text as text, the same bytes each time; returns the SVG."""
    image = io.StringIO()
    with plt.rc_context(
        {"svg.fonttype": "none", "svg.hashsalt": "mtbert", "savefig.dpi": 150}
    ):  # dpi: rasterized parts
        figure.savefig(image, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = image.getvalue().replace("</style>", f"{DARK}</style>", 1)
    folder = figures_dir()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.svg").write_text(text, encoding="utf8")
    return text


def show(figure: plt.Figure, name: str, alt: str) -> None:
    """`save` a figure and show it with an alternative text, which says what a reader would see.

    It is shown as an image in HTML: JupyterLab shows plain SVG only in notebooks that are trusted.
    """
    data = base64.b64encode(save(figure, name).encode()).decode()
    display(HTML(f'<img class="figure" alt="{html.escape(alt)}" src="data:image/svg+xml;base64,{data}">'))
    plt.close(figure)


def styles(names: Iterable[str]) -> dict[str, dict]:
    """Name -> colour and marker of the things that one figure shows; no two alike among the first eight.

    A name of COLOURS has its colour there, the others get in their order what these leave of the palette.
    """
    names = list(dict.fromkeys(names))
    used = {COLOURS.get(name) for name in names}
    free = itertools.cycle([colour for colour in _SHOWN_IN if colour not in used] or _SHOWN_IN)
    colours = {name: COLOURS.get(name) or next(free) for name in names}
    return {name: {"color": colours[name], "marker": MARKERS[i % 8]} for i, name in enumerate(names)}


def intervals(table: pd.DataFrame, ax: Axes | None = None, looks: dict[str, dict] | None = None) -> Axes:
    """Values with their intervals, a line per label: columns label, kind, value, low, high (nan: no interval).

    looks: kind -> how `Axes.errorbar` draws it, in the order of the legend; by default `styles`, a paper's hollow.
    """
    ax = ax or plt.gca()
    labels = list(dict.fromkeys(table["label"]))
    if looks is None:
        looks = styles(table["kind"])
        if "paper" in looks:
            looks["paper"] |= {"mfc": "white", "ms": 7}
    for kind, look in looks.items():
        part = table[table["kind"] == kind]
        below = (part["value"] - part["low"]).clip(lower=0)
        above = (part["high"] - part["value"]).clip(lower=0)
        places = [labels.index(label) for label in part["label"]]
        look = {"ls": "", "marker": "o", "capsize": 3} | look
        ax.errorbar(part["value"], places, xerr=[below, above], label=kind, **look)
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    return ax


def ratios(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """How many times faster, on a log axis, with its interval: columns label, ratio, low, high."""
    ax = intervals(table.assign(kind="shared", value=table["ratio"]), ax)
    ax.axvline(1, color="#7F7F7F", lw=1)
    log_axis(ax.xaxis)
    ax.set_xlabel("time of the peer / our time")
    return ax


def plan(table: pd.DataFrame, tasks: Sequence[str], ax: Axes | None = None) -> Axes:
    """A sharing plan, from the input at the bottom upward: a row per level, a column per task, a box per copy.

    table: `SharingPlan.table()`. The colour is the mode; weights that one task has for itself are individual, whatever
    the level's mode. Of several groups that share, each has its own shade; a bridge joins tasks over a column between
    them.
    """
    ax = ax or plt.gca()
    for height, (level_mode, text) in enumerate(zip(table["mode"], table["groups"], strict=True)):
        groups = []
        for group in text.split(" | "):
            groups.append(sorted(tasks.index(task) for task in group.split(", ")))
        shades = itertools.count()
        for places in groups:
            is_alone = len(places) == 1 and len(groups) > 1
            mode = "individual" if level_mode == "shared" and is_alone else level_mode
            lighter = next(shades) / len(groups) if mode == "shared" else 0.0
            colour = tuple(1 - (1 - part) * (1 - lighter) for part in to_rgb(COLOURS[mode]))
            look = dict(facecolor=colour, edgecolor="white", linewidth=0, hatch=HATCHES.get(mode))
            for place in places:
                neighbours = place + 1 in places
                ax.barh(height, 1.0 if neighbours else 0.9, left=place - 0.45, height=0.8, **look)
            if places[-1] - places[0] >= len(places):  # a column of another group lies between them
                bridge = look | dict(height=0.2, linewidth=1.5, zorder=2)
                ax.barh(height + 0.4 * lighter, places[-1] - places[0] + 0.2, left=places[0] - 0.1, **bridge)
    ax.set_yticks(range(len(table)), table.index)
    ax.set_xticks(range(len(tasks)), [TASK_LABELS[task] for task in tasks])
    ax.set_xlim(-0.5, len(tasks) - 0.5)
    ax.grid(False)
    return ax


def legend_of_modes(figure: plt.Figure) -> None:
    """The colours and hatches of `plan`, below the axes."""
    boxes = {mode: dict(facecolor=COLOURS[mode], edgecolor="white", hatch=HATCHES.get(mode)) for mode in MODES}
    handles = [Patch(label=mode, **box) for mode, box in boxes.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(MODES), frameon=False)


NAME_PLACES = [
    (7, 0),
    (-7, 0),
    *((dx, sign * dy) for dy, sign, dx in itertools.product(range(14, 99, 12), (1, -1), (0, 18, -18, 50, -50))),
]


def name_points(table: pd.DataFrame, x: str, y: str, ax: Axes) -> None:
    """Write the `name` of each row beside its point, where it covers no point of a line, no other name and no edge."""
    ax.margins(x=0.15, y=0.2)
    ax.figure.draw_without_rendering()  # from here on everything has its place
    points = np.concatenate([ax.transData.transform(line.get_xydata()) for line in ax.lines])
    names: list[Bbox] = []
    for row in table.sort_values(x).to_dict("records"):
        for dx, dy in NAME_PLACES:
            text = ax.annotate(
                row["name"], (row[x], row[y]), xytext=(dx, dy), textcoords="offset points", fontsize="x-small",
                ha="center" if dy else "left" if dx > 0 else "right", va="center",
                bbox=dict(fc="white", ec="none", pad=0.5),
                arrowprops=dict(arrowstyle="-", lw=0.5, color="#7F7F7F", shrinkB=3) if dy else None,
            )  # fmt: skip
            text.get_window_extent()  # puts it into its place; that of the name alone, without the line to its point:
            box = Text.get_window_extent(text)
            is_free = not box.padded(5).count_contains(points) and not box.padded(2).count_overlaps(names)
            is_inside = ax.bbox.x0 <= box.x0 and box.x1 <= ax.bbox.x1
            is_last = (dx, dy) == NAME_PLACES[-1]
            if (is_free and is_inside) or is_last:
                names.append(box)
                break
            text.remove()


def log_axis(axis: Axis, ticks: Sequence[float] = (1, 2, 5)) -> None:
    """Plain numbers on a logarithmic axis, at these multiples of each power of ten."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(LogLocator(subs=ticks))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def predicted_measured(table: pd.DataFrame, unit: str, ax: Axes | None = None) -> Axes:
    """Predictions against measurements on log axes, a band of 10 % around equality: columns measured, predicted."""
    ax = ax or plt.gca()
    ends = table["measured"].agg(["min", "max"]) * [0.8, 1.25]
    ax.fill_between(ends, 0.9 * ends, 1.1 * ends, color="#7F7F7F", alpha=0.25, lw=0)
    ax.plot(table["measured"], table["predicted"], "o", ms=5, color=COLOURS["shared"])
    log_axis(ax.xaxis)
    log_axis(ax.yaxis)
    ax.set(xlabel=f"measured ({unit})", ylabel=f"predicted ({unit})")
    ax.tick_params(labelsize="small")
    return ax


def stacked(table: pd.DataFrame, colours: dict[str, str], label: str, ax: Axes | None = None, **bars) -> Axes:
    """Horizontal bars, a bar per row of `table`, a part per column with its colour; bars: options of the bars."""
    ax = table.iloc[::-1].plot.barh(
        stacked=True, ax=ax, color=[colours[part] for part in table], width=0.8, xlabel=label, ylabel="", **bars
    )
    for drawn, part in zip(ax.containers, table, strict=True):
        if part in HATCHES:
            plt.setp(drawn, **{"hatch": HATCHES[part], "edgecolor": "white", "linewidth": 0} | bars)
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return ax
