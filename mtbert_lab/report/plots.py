"""Figures: f(table, ax=None) -> ax. Nothing here reads a file; a thing has the same colour in every figure."""

import base64
import html
import io
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

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

from mtbert_lab.paths import check_writable, figures_dir
from mtbert_lab.report.words import TASK_LABELS
from mtbert_lab.statistics import TOO_FEW

# Okabe and Ito's palette: distinguishable in print and by colour-blind readers.
BLUE = "#0072B2"
VERMILION = "#D55E00"
GREEN = "#009E73"
ORANGE = "#E69F00"
SKY = "#56B4E9"
PURPLE = "#CC79A7"
BLACK = "#000000"
GREY = "#7F7F7F"
PALETTE = (BLUE, VERMILION, GREEN, ORANGE, SKY, PURPLE, BLACK, GREY)
COLOURS = {
    "fine-tuned": BLUE,
    "pretrained": BLUE,
    "shared": BLUE,
    "1-bert": BLUE,
    "mean": BLUE,
    "cfimdb": VERMILION,
    "individual": VERMILION,
    "3-bert": VERMILION,
    "GEM": VERMILION,
    "pooler": VERMILION,
    "sst": GREEN,
    "hybrid": GREEN,
    "hybrid-3": GREEN,
    "cls": GREEN,
    "frozen": ORANGE,
    "quora": SKY,
    "sts": PURPLE,
    "1-bert + PAL": PURPLE,
    "hybrid-1": PURPLE,
    "random": BLACK,
    "hybrid-5": BLACK,
    "paper": GREY,
    "alone": GREY,
}
MARKERS = "osD^vPX*"
SVG_ID = re.compile(r'(?P<before>\bid="|href="#|url\(#)(?P<id>[a-zA-Z][0-9a-f]{10})\b')
MODES = ("frozen", "shared", "individual")
HATCHES = {  # for those who see grey
    "frozen": "---",
    "temporary": "---",
    "cannot be checked": "---",
    TOO_FEW: "xxx",
    "individual": "///",
    "task gradients": "///",
    "not comparable": "///",
}


# A figure brings its own ground, white or dark, so that it is legible wherever it is shown.
DARK = "@media (prefers-color-scheme: dark) {svg {filter: invert(0.92) hue-rotate(180deg)}}"


def use_style() -> None:
    """The report's one style; call it once at the top of a notebook."""
    sns.set_theme(context="notebook", style="whitegrid", font_scale=0.9)
    fonts = ["DejaVu Sans", "Verdana", "sans-serif"]  # equally wide: where a reader has no DejaVu the layout stays
    plt.rcParams.update({"figure.constrained_layout.use": True, "font.sans-serif": fonts})


def save(figure: plt.Figure, name: str) -> str:
    """Write a figure as SVG to `figures_dir()`, text as text, the same bytes each time; returns the SVG.

    Raises FolderError if they cannot be written there.
    """
    options = {"svg.fonttype": "none", "svg.hashsalt": "mtbert", "savefig.dpi": 150}  # dpi: of rasterized parts
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    image = io.StringIO()
    with plt.rc_context(options):
        figure.savefig(image, format="svg", metadata=nothing)
    text = _numbered(image.getvalue()).replace("</style>", f"{DARK}</style>", 1)
    path = figures_dir() / f"{name}.svg"
    check_writable(path.parent)
    path.write_text(text, encoding="utf8")
    return text


def _numbered(svg: str) -> str:
    """An SVG of matplotlib with its ids in order: they are hashes of coordinates whose last bits differ by chance."""
    numbers: dict[str, int] = {}

    def number(found: re.Match) -> str:
        kind = found["id"][0]
        return f"{found['before']}{kind}{numbers.setdefault(found['id'], len(numbers))}"

    return SVG_ID.sub(number, svg)


_shown: list[str] = []  # names of figures, in the order in which this kernel has shown them for the first time


def number_of(name: str) -> str:
    """The number of a figure, such as "5.3" of "05_curves": the third one of notebook 05 that this kernel has shown.

    It goes by the name: a figure that is shown again keeps its number.
    """
    if name not in _shown:
        _shown.append(name)
    notebook = _notebook_of(name)
    alike = [other for other in _shown if _notebook_of(other) == notebook]
    place = alike.index(name) + 1
    return f"{int(notebook)}.{place}" if notebook else str(place)


def _notebook_of(name: str) -> str:
    """The number with which a figure's name begins; empty without one."""
    number, _, _ = name.partition("_")
    return number if number.isdecimal() else ""


def captioned(name: str, image: str, caption: str) -> HTML:
    """An image and its caption with the figure's number; both are HTML."""
    number = f"<b>Figure {number_of(name)}.</b>"
    return HTML(f"<figure>{image}<figcaption>{number} {caption}</figcaption></figure>")


def show(figure: plt.Figure, name: str, alt: str, caption: str = "") -> None:
    """`save` a figure and show it with its number and caption.

    alt: for those who do not see it, what one would see. caption: what to look at; by default the alternative text.
    It is shown as an image in HTML: JupyterLab shows plain SVG only in notebooks that are trusted.
    """
    svg = save(figure, name)
    data = base64.b64encode(svg.encode()).decode()
    image = f'<img class="figure" alt="{html.escape(alt)}" src="data:image/svg+xml;base64,{data}">'
    display(captioned(name, image, html.escape(caption or alt, quote=False)))
    plt.close(figure)


def as_text(name: str) -> str:
    """A name as a figure shows it: matplotlib would take what stands between two dollars for a formula."""
    return name.replace("$", r"\$")


def styles(names: Iterable[str]) -> dict[str, dict]:
    """Name -> colour and marker of the things that one figure shows; no two alike among the first eight.

    A name of COLOURS has its colour there; the others get, in their order, the colours that are left of the palette.
    """
    names = list(dict.fromkeys(names))
    used = {COLOURS.get(name) for name in names}
    unused = [colour for colour in PALETTE if colour not in used]
    free = itertools.cycle(unused or PALETTE)
    markers = itertools.cycle(MARKERS)
    looks = {}
    for name in names:
        colour = COLOURS.get(name) or next(free)
        looks[name] = {"color": colour, "marker": next(markers)}
    return looks


def intervals(
    table: pd.DataFrame,
    ax: Axes | None = None,
    looks: dict[str, dict] | None = None,
) -> Axes:
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
        value = part["value"]
        below = (value - part["low"]).clip(lower=0)
        above = (part["high"] - value).clip(lower=0)
        places = [labels.index(label) for label in part["label"]]
        look = {"ls": "", "marker": "o", "capsize": 3, **look}
        ax.errorbar(value, places, xerr=[below, above], label=as_text(kind), **look)
    ax.set_yticks(range(len(labels)), map(as_text, labels))
    ax.set_ylim(len(labels) - 0.5, -0.5)
    return ax


def ratios(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """How many times faster, on a log axis, with its interval: columns label, ratio, low, high."""
    table = table.assign(kind="shared", value=table["ratio"])
    ax = intervals(table, ax)
    ax.axvline(1, color=GREY, lw=1)
    log_axis(ax.xaxis)
    ax.set_xlabel("time of the peer / our time")
    return ax


def plan(table: pd.DataFrame, tasks: Sequence[str], ax: Axes | None = None) -> Axes:
    """A sharing plan, from the input at the bottom upward: a row per level, a column per task, a box per copy.

    table: `SharingPlan.table()`. The colour is the mode; weights that one task has for itself are individual, whatever
    the level's mode. Each of several groups that share has its own shade; a bridge joins tasks over a column between
    them.
    """
    ax = ax or plt.gca()
    for height, level in enumerate(table.to_dict("records")):
        groups = [_columns(group, tasks) for group in level["groups"].split(" | ")]
        shades = itertools.count()
        for columns in groups:
            mode = mode_of(level["mode"], len(columns), len(groups))
            lighter = next(shades) / len(groups) if mode == "shared" else 0.0
            look = _box(mode, lighter)
            for column in columns:
                width = 1.0 if column + 1 in columns else 0.9  # neighbours touch
                ax.barh(height, width, left=column - 0.45, height=0.8, linewidth=0, **look)
            first, last = columns[0], columns[-1]
            distance = last - first
            if distance >= len(columns):  # a column of another group lies between them
                bridge = {"height": 0.2, "linewidth": 1.5, "zorder": 2, **look}
                ax.barh(height + 0.4 * lighter, distance + 0.2, left=first - 0.1, **bridge)
    ax.set_yticks(range(len(table)), table.index)
    ax.set_xticks(range(len(tasks)), [TASK_LABELS[task] for task in tasks])
    ax.set_xlim(-0.5, len(tasks) - 0.5)
    ax.grid(False)
    return ax


def boxes(plan: pd.DataFrame) -> Iterator[tuple[int, float, float, str]]:
    """The boxes of a plan's table, one per copy: number of the level, start and size (of all tasks: 1), mode."""
    for level, row in enumerate(plan.itertuples()):
        groups = [group.count(",") + 1 for group in row.groups.split(" | ")]
        start = 0
        for tasks in groups:
            yield level, start / sum(groups), tasks / sum(groups), mode_of(row.mode, tasks, len(groups))
            start += tasks


def mode_of(mode: str, tasks: int, groups: int) -> str:
    """The mode of a copy of a level: weights that one of several groups has for a single task are that task's own."""
    return "individual" if mode == "shared" and tasks == 1 and groups > 1 else mode


def _columns(group: str, tasks: Sequence[str]) -> list[int]:
    """The columns of a group's tasks, "sst, sts", from the left."""
    return sorted(tasks.index(task) for task in group.split(", "))


def _box(mode: str, lighter: float = 0.0) -> dict:
    """How a box of a mode looks; lighter: from 0, its colour, to 1, white."""
    darkness = 1 - np.array(to_rgb(COLOURS[mode]))
    colour = 1 - darkness * (1 - lighter)
    return {"facecolor": tuple(colour), "edgecolor": "white", "hatch": HATCHES.get(mode)}


def legend_of_modes(figure: plt.Figure) -> None:
    """The colours and hatches of `plan`, below the axes."""
    handles = [Patch(label=mode, **_box(mode)) for mode in MODES]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(MODES), frameon=False)


NAME_PLACES = [(7, 0), (-7, 0)]  # offsets from a point, in points of print: beside it, then farther above and below
for _dy in range(14, 99, 12):
    for _up in (_dy, -_dy):
        NAME_PLACES += [(_dx, _up) for _dx in (0, 18, -18, 50, -50)]


def name_points(table: pd.DataFrame, x: str, y: str, ax: Axes) -> None:
    """Write the `name` of each row, if it has one, beside its point, where it covers no line, other name or edge."""
    ax.margins(x=0.15, y=0.2)
    ax.figure.draw_without_rendering()  # from here on everything has its place
    points = np.concatenate([line.get_xydata() for line in ax.lines])
    points = ax.transData.transform(points)  # in pixels
    names: list[Bbox] = []
    named = table[table["name"] != ""]
    for row in named.sort_values(x).to_dict("records"):
        for offset in NAME_PLACES:
            text = _name(ax, row["name"], (row[x], row[y]), offset)
            text.get_window_extent()  # puts it into its place; that of the name alone, without the line to its point:
            box = Text.get_window_extent(text)
            covers_point = box.padded(5).count_contains(points) > 0
            covers_name = box.padded(2).count_overlaps(names) > 0
            is_inside = ax.bbox.x0 <= box.x0 and box.x1 <= ax.bbox.x1
            is_free = is_inside and not covers_point and not covers_name
            if is_free or offset == NAME_PLACES[-1]:
                names.append(box)
                break
            text.remove()


def _name(
    ax: Axes,
    name: str,
    point: tuple[float, float],
    offset: tuple[int, int],
) -> Text:
    """Write a name at an offset from its point; a line joins them where the name is above or below."""
    dx, dy = offset
    line = None
    if dy:
        align = "center"
        line = {"arrowstyle": "-", "lw": 0.5, "color": GREY, "shrinkB": 3}
    else:
        align = "left" if dx > 0 else "right"
    return ax.annotate(
        as_text(name),
        point,
        xytext=offset,
        textcoords="offset points",
        fontsize="x-small",
        ha=align,
        va="center",
        bbox={"fc": "white", "ec": "none", "pad": 0.5},
        arrowprops=line,
    )


def log_axis(axis: Axis, ticks: Sequence[float] = (1, 2, 5)) -> None:
    """Plain numbers on a logarithmic axis, at these multiples of each power of ten."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(LogLocator(subs=ticks))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def predicted_measured(table: pd.DataFrame, unit: str, ax: Axes | None = None) -> Axes:
    """Predictions against measurements on log axes, a band of 10 % around equality: columns measured, predicted."""
    ax = ax or plt.gca()
    measured, predicted = table["measured"], table["predicted"]
    ends = np.array([0.8 * measured.min(), 1.25 * measured.max()])
    ax.fill_between(ends, 0.9 * ends, 1.1 * ends, color=GREY, alpha=0.25, lw=0)
    ax.plot(measured, predicted, "o", ms=5, color=COLOURS["shared"])
    log_axis(ax.xaxis)
    log_axis(ax.yaxis)
    ax.set(xlabel=f"measured ({unit})", ylabel=f"predicted ({unit})")
    ax.tick_params(labelsize="small")
    return ax


def stacked(
    table: pd.DataFrame,
    colours: dict[str, str],
    label: str,
    ax: Axes | None = None,
    **bars: Any,
) -> Axes:
    """Horizontal bars, a bar per row of `table`, a part per column with its colour; bars: options of the bars."""
    from_below = table.iloc[::-1].rename(index=str).rename(index=as_text, columns=as_text)
    ax = from_below.plot.barh(
        stacked=True,
        ax=ax,
        color=[colours[part] for part in table],
        width=0.8,
        xlabel=label,
        ylabel="",
        **bars,
    )
    for drawn, part in zip(ax.containers, table, strict=True):
        if part in HATCHES:
            look = {"hatch": HATCHES[part], "edgecolor": "white", "linewidth": 0, **bars}
            plt.setp(drawn, **look)
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return ax
