"""Figures of sweeps and claims show the numbers of their table, and the words of a difference by mark and colour."""

import itertools

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.text import Text

from mtbert.report import plots_sweeps
from mtbert.report.plots_sweeps import CLAIM_COLOURS, VERDICTS


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def rows(*verdicts: str, task: str = "sst") -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"run": f"plan {i}", "task": task, "value": i / 100, "low": i / 100 - 0.02, "high": i / 100 + 0.03,
             "verdict": verdict}
            for i, verdict in enumerate(verdicts, 1)
        ]
    )  # fmt: skip


def test_verdicts_are_told_apart_without_colour():
    marks = {(mark, colour == "white") for colour, mark in VERDICTS.values()}
    assert len(marks) == len(VERDICTS)
    greys = [sum(w * c for w, c in zip((0.299, 0.587, 0.114), to_rgb(c), strict=True)) for c in CLAIM_COLOURS.values()]
    decided = ["reproduced", "contradicted", "not distinguishable", "not measured yet"]
    shades = [greys[list(CLAIM_COLOURS).index(name)] for name in decided]
    assert all(b - a > 0.15 for a, b in itertools.pairwise(shades))


def test_counts_stand_in_their_bars():
    table = pd.DataFrame({"reproduced": [3, 0], "not measured yet": [20, 7]}, index=["000", "001"])
    ax = plots_sweeps.counts(table, CLAIM_COLOURS, "claims", plt.subplots()[1])
    first, second = ax.containers
    assert [bar.get_width() for bar in first] == [0, 3] and [bar.get_width() for bar in second] == [7, 20]
    told = {text.get_text(): to_hex(text.get_color()) for text in ax.texts if text.get_text()}
    assert told == {"3": "#ffffff", "7": "#000000", "20": "#000000"}  # light on dark, dark on light
    edges = [to_hex(patch.get_edgecolor()) for patch in ax.get_legend().get_patches()]
    assert edges == ["#000000"] * 2  # or a white patch would not be seen


def test_a_difference_has_its_interval_and_its_mark():
    table = rows("better", "worse", "not distinguishable", "not decided yet (2 seeds)")
    ax = plots_sweeps.differences(table, plt.subplots()[1])
    bars = {VERDICT: bar for VERDICT, bar in zip(VERDICTS, ax.containers, strict=True)}
    for place, (verdict, (colour, mark)) in enumerate(VERDICTS.items()):
        points = bars[verdict].lines[0]
        assert points.get_xydata().tolist() == [[(place + 1) / 100, place]]
        assert points.get_marker() == mark and to_hex(points.get_markerfacecolor()) == to_hex(colour)
        [segment] = bars[verdict].lines[2][0].get_segments()
        assert segment[:, 0].tolist() == pytest.approx([(place + 1) / 100 - 0.02, (place + 1) / 100 + 0.03])
    assert [label.get_text() for label in ax.get_yticklabels()] == [f"plan {i}" for i in range(1, 5)]


def test_every_task_has_a_panel_with_the_same_lines():
    table = pd.concat([rows("better", "worse"), rows("not distinguishable", task="sts")])
    figure = plots_sweeps.differences_by_task(table, "minus 1-bert")
    assert [ax.get_title() for ax in figure.axes] == ["SST", "STS"]
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()
    assert sum(len(bars.lines[0].get_xydata()) for bars in figure.axes[1].containers) == 1  # plan 2 has no STS
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(VERDICTS)


def test_turns_show_mean_and_range_over_seeds():
    table = pd.DataFrame(
        [("sequence", after, score + seed / 10) for seed in (0, 2) for after, score in (("sst", 0.5), ("quora", 0.3))],
        columns=["run", "after", "score"],
    )
    ax = plots_sweeps.over_turns(table, plt.subplots()[1])
    [bars] = ax.containers
    assert bars.lines[0].get_ydata().tolist() == pytest.approx([0.6, 0.4])
    assert [segment[:, 1].tolist() for segment in bars.lines[2][0].get_segments()] == [
        pytest.approx([0.5, 0.7]),
        pytest.approx([0.3, 0.5]),
    ]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["after SST", "after Quora"]


def test_only_the_front_is_named_and_few_seeds_are_hollow():
    table = pd.DataFrame(
        [("a", 3, 1.0, 0.5), ("b", 1, 2.0, 0.6), ("c", 1, 2.5, 0.4)], columns=["name", "seeds", "cost", "overall"]
    )
    ax = plots_sweeps.front(table, ["a", "b"], "cost", plt.subplots()[1])
    assert {text.get_text() for text in ax.texts} == {"a", "b"}
    top = {}  # what is drawn last at a place is seen
    for line in ax.get_lines():
        if line.get_marker() == "o":
            top |= {tuple(point): to_hex(line.get_markerfacecolor()) for point in line.get_xydata()}
    assert top[2.0, 0.6] == top[2.5, 0.4] == "#ffffff" and top[1.0, 0.5] != "#ffffff"
    boxes = [Text.get_window_extent(text) for text in ax.texts]
    assert not boxes[0].overlaps(boxes[1])
