"""Figures show every number of their table, with labelled axes and fixed colours, and no text over another."""

import base64
import html
import itertools

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.text import Text

from mtbert.data import TASKS
from mtbert.metrics import METRICS
from mtbert.sharing.plan import SharingPlan
from mtbert_lab.cost import PARTS
from mtbert_lab.report import plots, plots_sweeps, words
from mtbert_lab.report.plots_sweeps import CLAIM_COLOURS, VERDICTS


def drawn(ax: plt.Axes) -> set[tuple[float, float]]:
    """The points of all lines, the ends of error bars included."""
    points = np.concatenate([line.get_xydata() for line in ax.get_lines()])
    return {tuple(point) for point in points.round(6).tolist()}


def test_every_task_and_metric_has_a_name_and_every_task_a_colour_of_its_own():
    assert set(words.TASK_LABELS) == set(TASKS)
    assert len({plots.COLOURS[task] for task in TASKS}) == len(TASKS)
    selecting = {next(iter(metrics)) for metrics in METRICS.values()}
    assert selecting <= set(words.METRIC_LABELS)


def test_figures_are_written_as_the_same_bytes(isolated):
    plots.use_style()
    for name in ("first", "second"):
        figure, ax = plt.subplots(figsize=(3, 2))
        ax.plot([1, 2, 3], "o")
        plots.save(figure, name)
    folder = isolated / "figures"
    assert sorted(path.name for path in folder.iterdir()) == ["first.svg", "second.svg"]
    assert (folder / "first.svg").read_bytes() == (folder / "second.svg").read_bytes()


def test_a_figure_has_its_text_as_text_and_turns_dark(isolated):
    figure, ax = plt.subplots()
    ax.set_xlabel("memory (MiB)")
    svg = plots.save(figure, "name")
    assert ">memory (MiB)</text>" in svg and svg.count("prefers-color-scheme: dark") == 1


def test_any_names_of_runs_are_told_apart_by_colour_and_by_marker():
    looks = plots.styles(["half", "1-bert", "mine", "half", "theirs"])
    assert list(looks) == ["half", "1-bert", "mine", "theirs"] and looks == plots.styles(looks)
    assert looks["1-bert"]["color"] == plots.COLOURS["1-bert"]
    for part in ("color", "marker"):
        assert len({look[part] for look in looks.values()}) == 4
    assert len({tuple(look.values()) for look in plots.styles(map(str, range(30))).values()}) >= 8


@pytest.fixture
def shown(isolated, monkeypatch):
    """The HTML of what figures show, in a kernel that has shown none."""
    outputs = []
    monkeypatch.setattr(plots, "display", lambda output: outputs.append(output.data))
    monkeypatch.setattr(plots, "_shown", [])
    return outputs


def test_a_figure_is_shown_with_number_caption_and_alternative_text(isolated, shown):
    plots.show(plt.figure(), "05_name", 'A "line" that rises.', "It rises for x > 2 & more.")
    svg = (isolated / "figures" / "05_name.svg").read_bytes()
    data = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
    image = f'<img class="figure" alt="A &quot;line&quot; that rises." src="{data}">'
    caption = "<b>Figure 5.1.</b> It rises for x &gt; 2 &amp; more."
    assert shown == [f"<figure>{image}<figcaption>{caption}</figcaption></figure>"]
    assert not plt.get_fignums()


def test_the_alternative_text_is_the_caption_where_there_is_none(shown):
    plots.show(plt.figure(), "name", 'A "line" that rises.')
    assert '<figcaption><b>Figure 1.</b> A "line" that rises.</figcaption>' in shown[0]


def test_a_figure_keeps_its_number_when_it_is_shown_again(shown):
    names = ["05_a", "05_b", "11_a", "05_b", "mine", "05_c", "05_a", "05_c"]
    numbers = ["5.1", "5.2", "11.1", "5.2", "1", "5.3", "5.1", "5.3"]
    assert [plots.number_of(name) for name in names] == numbers


def test_intervals_stand_beside_their_labels():
    rows = [("SST", "fine-tuned", 0.5, 0.45, 0.56), ("STS", "fine-tuned", 0.8, 0.7, 0.85)]
    rows.append(("SST", "paper", 0.52, np.nan, np.nan))
    ax = plots.intervals(pd.DataFrame(rows, columns=["label", "kind", "value", "low", "high"]))
    assert [label.get_text() for label in ax.get_yticklabels()] == ["SST", "STS"]
    assert drawn(ax) >= {(0.45, 0), (0.5, 0), (0.56, 0), (0.7, 1), (0.8, 1), (0.85, 1), (0.52, 0)}
    assert ax.get_legend_handles_labels()[1] == ["fine-tuned", "paper"]


def test_ratios_are_on_a_log_axis():
    ax = plots.ratios(pd.DataFrame(dict(label=["x"], ratio=[1.2], low=[1.1], high=[1.3])))
    assert drawn(ax) >= {(1.1, 0), (1.2, 0), (1.3, 0)} and ax.get_yticklabels()[0].get_text() == "x"
    assert ax.get_xscale() == "log" and ax.get_xlabel() == "time of the peer / our time"


def test_a_plan_has_a_box_for_every_level_and_task_in_the_colour_of_its_mode():
    tasks = ("sst", "quora", "sts")
    table = SharingPlan.parse("F1 S1 I1", tasks, 3).table()
    ax = plots.plan(table, tasks)
    boxes = [patch for patch in ax.patches if patch.get_height() > 0.5]
    assert len(boxes) == 5 * 3
    colours = {level: set() for level in range(5)}
    for box in boxes:
        colours[round(box.get_y() + 0.4)].add(to_hex(box.get_facecolor()).upper())
    modes = ["frozen", "frozen", "shared", "individual", "individual"]
    assert colours == {level: {plots.COLOURS[mode]} for level, mode in enumerate(modes)}
    assert [label.get_text() for label in ax.get_yticklabels()] == list(table.index)


def test_a_plan_shows_which_tasks_share():
    def at_first_layer(plan: str, tasks: tuple[str, ...]) -> tuple[list, list]:
        """The colour of each task's box of the first layer, and the ends of what joins the tasks."""
        ax = plots.plan(SharingPlan.parse(plan, tasks).table(), tasks, plt.subplots()[1])
        patches = [patch for patch in ax.patches if 0.5 < patch.get_y() + patch.get_height() / 2 < 1.5]
        boxes = sorted((patch for patch in patches if patch.get_height() > 0.5), key=lambda box: box.get_x())
        bridges = [patch for patch in patches if patch.get_height() < 0.5]
        ends = [(round(b.get_x() + 0.1), round(b.get_x() + b.get_width() - 0.1)) for b in bridges]
        assert all(bridge.zorder > box.zorder for bridge in bridges for box in boxes)  # else a box hides it
        return [to_hex(box.get_facecolor()) for box in boxes], ends

    three, four = ("sst", "quora", "sts"), ("sst", "quora", "sts", "cfimdb")
    shared, own = (plots.COLOURS[mode].lower() for mode in ("shared", "individual"))
    assert at_first_layer("S4 I2", three) == ([shared] * 3, [])
    assert at_first_layer("S4(sst,sts|quora) I2", three) == ([shared, own, shared], [(0, 2)])
    (sst, quora, sts, cfimdb), ends = at_first_layer("S4(sst,sts|quora,cfimdb)", four)
    assert sst == sts == shared and quora == cfimdb not in (shared, own) and ends == [(0, 2), (1, 3)]


def test_names_of_points_cover_nothing():
    minutes = [1.0, 1.01, 1.02, 1.03, 1.04, 9.0]
    ax = plt.subplots()[1]
    ax.plot(minutes, [0.7] * 6, "o")
    plots.name_points(pd.DataFrame(dict(name=list("abcdef"), value=0.7, minutes=minutes)), "minutes", "value", ax)
    assert drawn(ax) == {(x, 0.7) for x in minutes} and {text.get_text() for text in ax.texts} == set("abcdef")
    boxes = [Text.get_window_extent(text) for text in ax.texts]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    points = ax.transData.transform([(x, 0.7) for x in minutes])
    assert not any(box.count_contains(points) for box in boxes)
    assert all(ax.bbox.x0 <= box.x0 and box.x1 <= ax.bbox.x1 for box in boxes)


def test_predicted_against_measured():
    ax = plots.predicted_measured(pd.DataFrame(dict(predicted=[90.0, 210.0], measured=[100.0, 200.0])), "MiB")
    assert drawn(ax) == {(100, 90), (200, 210)} and ax.get_xscale() == ax.get_yscale() == "log"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("measured (MiB)", "predicted (MiB)")


def rows(*verdicts: str, task: str = "sst") -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"run": f"plan {i}", "task": task, "value": i / 100, "low": i / 100 - 0.02, "high": i / 100 + 0.03,
             "verdict": verdict}
            for i, verdict in enumerate(verdicts, 1)
        ]
    )  # fmt: skip


def test_verdicts_are_distinguishable_without_colour():
    assert len({(style.get("marker", "o"), style.get("mfc")) for style in VERDICTS.values()}) == len(VERDICTS)
    greys = [sum(w * c for w, c in zip((0.299, 0.587, 0.114), to_rgb(c), strict=True)) for c in CLAIM_COLOURS.values()]
    decided = ["reproduced", "contradicted", "no difference that matters", "not measured yet"]
    shades = [greys[list(CLAIM_COLOURS).index(name)] for name in decided]
    assert all(b - a > 0.15 for a, b in itertools.pairwise(shades))


def test_counts_stand_in_their_bars():
    table = pd.DataFrame({"reproduced": [3, 0], "not measured yet": [20, 7]}, index=["000", "001"])
    ax = plots_sweeps.counts(table, CLAIM_COLOURS, "claims", plt.subplots()[1])
    numbers = {text.get_text(): to_hex(text.get_color()) for text in ax.texts if text.get_text()}
    assert numbers == {"3": "#ffffff", "7": "#000000", "20": "#000000"}  # light on dark, dark on light


def test_differences_have_a_panel_per_task_with_the_same_lines():
    table = rows("better", "worse", "no difference that matters", "too few runs to tell")
    figure = plots_sweeps.differences_by_task(pd.concat([table, rows("worse", task="sts")]), "minus 1-bert")
    first, second = figure.axes
    assert [ax.get_title() for ax in figure.axes] == ["SST", "STS"] and figure.get_supxlabel() == "minus 1-bert"
    assert [label.get_text() for label in first.get_yticklabels()] == [f"plan {i}" for i in range(1, 5)]
    for place in range(4):
        value = (place + 1) / 100
        assert drawn(first) >= {(value, place), (round(value - 0.02, 6), place), (round(value + 0.03, 6), place)}
    assert (0.01, 0) in drawn(second) and (0.02, 1) not in drawn(second)  # plan 2 has no STS
    assert first.get_ylim() == second.get_ylim()
    assert first.get_xlim()[1] > 0.07 > second.get_xlim()[1] > 0.04, "each on its own scale"
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(VERDICTS)


def test_a_difference_far_outside_is_an_arrow_with_its_number():
    table = rows("better", "better", "too few runs to tell", "worse")
    table.loc[3, ["value", "low", "high"]] = -0.5, -0.6, -0.4
    [ax] = plots_sweeps.differences_by_task(table, "minus 1-bert").axes
    assert ax.get_xlim()[0] > -0.3 and {text.get_text() for text in ax.texts} == {"-0.500"}
    [arrow] = [line for line in ax.get_lines() if line.get_marker() == "<"]
    assert arrow.get_ydata() == [3] and arrow.get_color() == VERDICTS["worse"]["color"]


def test_groups_have_their_names_above_them_and_margins_are_bands():
    table = rows("better", "worse").assign(group=["first", "second"], margin=0.005)
    table.loc[2] = {"task": "sst", "run": "alone", "group": "second", "margin": 0.005}
    [ax] = plots_sweeps.differences_by_task(table, "minus 1-bert").axes
    labels = {label.get_text(): label.get_fontweight() for label in ax.get_yticklabels()}
    assert list(labels) == ["first", "plan 1", "second", "plan 2", "alone"]
    assert [name for name, weight in labels.items() if weight == "bold"] == ["first", "second"]
    [band] = [patch for patch in ax.patches if patch.get_alpha()]
    wide = table.assign(margin=0.5)
    [other] = plots_sweeps.differences_by_task(wide, "minus 1-bert").axes
    assert other.get_xlim()[0] < -0.5 and other.get_xlim()[1] > 0.5, "the whole band is shown"
    assert (band.get_x(), band.get_width()) == (-0.005, 0.01)


def test_a_plan_is_drawn_on_its_line_with_a_box_for_every_copy():
    plan = SharingPlan.parse("F1 S2 S1(sst,sts|quora) I2", ("sst", "quora", "sts"), 6).table()
    figure = plots_sweeps.differences_by_task(rows("better", "worse"), "minus 1-bert", {"plan 2": plan})
    drawings, panel = figure.axes
    colours = [to_hex(box.get_facecolor()).upper() for box in drawings.patches]
    modes = [name for colour in colours for name in plots.MODES if plots.COLOURS[name] == colour]
    assert modes == ["frozen"] * 2 + ["shared"] * 3 + ["individual"] + ["individual"] * 6
    heights = {round(box.get_y() + box.get_height() / 2) for box in drawings.patches}
    assert heights == {1} and panel.get_ylim() == drawings.get_ylim()


def test_curves_have_a_line_per_plan_and_length():
    lines = [("1-bert", 12), ("1-bert", 48), ("3-bert", 48)]
    points = [("sst", plan, steps, step, step / 100) for plan, steps in lines for step in (6, steps)]
    table = pd.DataFrame(points, columns=["task", "plan", "steps", "step", "value"])
    [ax] = plots_sweeps.curves(table, "score").axes
    assert [(line.get_label(), line.get_linestyle()) for line in ax.lines] == [
        ("1-bert, 12 steps", "--"), ("1-bert", "-"), ("3-bert", "-"),
    ]  # fmt: skip
    assert len({line.get_marker() for line in ax.lines}) == 2, "plans differ in more than colour"


def test_every_point_is_named_and_a_low_score_is_an_arrow_with_its_number():
    table = pd.DataFrame({"name": list("abcd"), "seeds": 3, "cost": [1, 1, 2, 3], "overall": [-0.2, 0, -0.03, 0.01]})
    ax = plots_sweeps.front(table, ["a", "b", "d"], "cost", plt.subplots()[1], floor=-0.02)
    assert {text.get_text() for text in ax.texts} == {"a: -0.200", "b", "c: -0.030", "d"}
    assert ax.get_ylim()[0] == -0.02


def test_names_are_readable_and_few_seeds_are_hollow():
    table = pd.DataFrame(
        [("a", 3, 1.0, 0.5), ("b", 1, 2.0, 0.6), ("c", 1, 2.5, 0.4), ("", 3, 2.5, 0.3)],
        columns=["name", "seeds", "cost", "overall"],
    )
    ax = plots_sweeps.front(table, ["a", "b"], "cost", plt.subplots()[1])
    faces = {}
    for line in ax.get_lines():
        if line.get_marker() in ("o", "s"):
            faces |= {tuple(point): to_hex(line.get_markerfacecolor()) for point in line.get_xydata().tolist()}
    assert faces[2.0, 0.6] == faces[2.5, 0.4] == "#ffffff" and faces[1.0, 0.5] != "#ffffff"
    assert [text.get_text() for text in ax.texts] == ["a", "b", "c"]
    first, *others = (Text.get_window_extent(text) for text in ax.texts)
    assert not any(first.overlaps(other) for other in others)
    step = ax.transData.transform([(x, 0.5) for x in np.linspace(1, 2, 500)])
    assert not first.count_contains(step), "the line from a to b crosses the name of a"


def test_memory_over_a_step():
    parts = dict.fromkeys(PARTS, 0.0)
    table = pd.DataFrame(
        [
            {"phase": "forward", **parts, "weights": 2.0, "activations": 1.0, "total": 3.0},
            {"phase": "forward", **parts, "weights": 2.0, "activations": 4.0, "total": 6.0},
            {"phase": "backward", **parts, "weights": 2.0, "gradients": 2.0, "total": 4.0},
        ]
    )
    ax = plots_sweeps.memory_over_step(table, plt.subplots()[1])
    assert list(plots_sweeps.PART_COLOURS) == PARTS
    assert ax.get_legend_handles_labels()[1][:3] == ["weights", "gradients", "activations"]
    assert (1, 6.0) in drawn(ax) and 2 in {x for x, _ in drawn(ax)}, "the peak, and where the backward pass starts"
    assert ax.get_ylim()[1] > 6 and ax.get_ylabel() == "memory (MiB)"


@pytest.mark.parametrize("name", ["cost $5 to $9", "$broken_{$", "$$", r"a\$b $"])
def test_a_name_with_dollars_is_no_formula(isolated, name):
    """In every figure with names of runs; a formula in it would be set, or fail."""
    points = pd.DataFrame({"name": [name, "b"], "seeds": 3, "overall": [0.5, -9.0], "cost": [1.0, 2.0]})
    rows = [("sst", run, 0.1, 0.0, 0.2, "better") for run in (name, "b")]
    table = pd.DataFrame(rows, columns=["task", "run", "value", "low", "high", "verdict"])
    figure, axes = plt.subplots(3)
    shares = pd.DataFrame({name: [1, 2]}, index=[name, "b"])
    figures = [plots_sweeps.differences_by_task(table, "gain"), figure]
    plots_sweeps.front(points, [name], "cost", axes[0], floor=0.0)
    plots_sweeps.front(points.assign(overall=[-9.0, 0.5]), ["b"], "cost", axes[1], floor=0.0)
    plots_sweeps.counts(shares, {name: "#BBBBBB"}, "claims", axes[2])
    for number, one in enumerate(figures):
        svg = plots.save(one, f"dollars-{number}")
        assert html.escape(name, quote=False) in svg
        plt.close(one)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", [0.0, np.nan])
def test_differences_of_nothing_are_drawn_without_a_warning(value):
    rows = [("sst", run, value, value, value, "too few runs to tell") for run in "ab"]
    table = pd.DataFrame(rows, columns=["task", "run", "value", "low", "high", "verdict"])
    plots_sweeps.differences_by_task(table, "gain").draw_without_rendering()


def test_plans_by_size_has_every_difference_and_a_box_for_every_copy():
    table = pd.DataFrame({"name": ["1-bert", "hybrid-1"], "parameters": [20.0, 40.0], "value": [0.0, 0.01]})
    table = table.assign(low=[np.nan, 0.005], high=[np.nan, 0.015])
    tasks = ("sst", "quora", "sts")
    plans = {name: SharingPlan.parse(name, tasks, 2).table().filter(like="layer", axis=0) for name in table["name"]}
    ax = plots_sweeps.plans_by_size(table, plans, 0.002)
    assert drawn(ax) >= {(20.0, 0.0), (40.0, 0.01)}
    assert [len(inset.patches) for inset in ax.child_axes] == [2, 4]
    colours = [to_hex(box.get_facecolor()) for box in ax.child_axes[1].patches]
    assert colours == [to_hex(plots.COLOURS["shared"])] + 3 * [to_hex(plots.COLOURS["individual"])]
