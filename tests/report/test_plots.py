"""Figures show the numbers of their table, and are written as the same bytes each time."""

import itertools
import math

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text

from mtbert.data.tasks import TASKS
from mtbert.report import plots
from mtbert.sharing.plan import SharingPlan
from mtbert.training.metrics import metrics_of


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_every_task_and_metric_has_a_name_and_every_task_a_colour():
    assert set(plots.TASK_LABELS) == set(TASKS)
    assert set(TASKS) <= set(plots.COLOURS)
    assert {name for task in TASKS.values() for name in metrics_of(task)} == set(plots.METRIC_LABELS)


def test_figures_are_written_as_the_same_bytes(isolated):
    plots.use_style()
    for name in ("first", "second"):
        figure, ax = plt.subplots(figsize=(3, 2))
        ax.plot([1, 2, 3])
        plots.save(figure, name)
    folder = isolated / "figures"
    assert sorted(path.name for path in folder.iterdir()) == ["first.pdf", "first.png", "second.pdf", "second.png"]
    for kind in ("png", "pdf"):
        assert (folder / f"first.{kind}").read_bytes() == (folder / f"second.{kind}").read_bytes()


def test_scores_show_values_and_intervals():
    table = pd.DataFrame(
        [
            ("SST", "fine-tuned", 0.5, 0.45, 0.56),
            ("STS", "fine-tuned", 0.8, 0.7, 0.85),
            ("SST", "paper", 0.52, None, None),
        ],
        columns=["label", "kind", "value", "low", "high"],
    )
    ax = plt.subplots()[1]
    assert plots.scores(table, ax) is ax
    assert [label.get_text() for label in ax.get_yticklabels()] == ["SST", "STS"]
    [bars] = ax.containers
    assert bars.lines[0].get_xydata().tolist() == [[0.5, 0], [0.8, 1]]
    ends = [segment[:, 0].tolist() for segment in bars.lines[2][0].get_segments()]
    assert ends == [pytest.approx([0.45, 0.56]), pytest.approx([0.7, 0.85])]
    [paper] = [line for line in ax.get_lines() if line.get_label() == "paper"]
    assert paper.get_xydata().tolist() == [[0.52, 0]]


def test_learning_curves_are_a_line_a_seed_with_one_label_a_kind():
    rows = [("frozen", seed, epoch, seed / 10 + epoch) for seed in (1, 2) for epoch in (1, 2, 3)]
    table = pd.DataFrame(rows, columns=["kind", "seed", "epoch", "dev_score"])
    ax = plots.learning_curves(table, plt.subplots()[1])
    lines = ax.get_lines()
    assert [line.get_ydata().tolist() for line in lines] == [[1.1, 2.1, 3.1], [1.2, 2.2, 3.2]]
    assert {to_hex(line.get_color()).upper() for line in lines} == {plots.COLOURS["frozen"]}
    assert ax.get_legend_handles_labels()[1] == ["frozen"]


def test_costs_are_bars():
    table = pd.DataFrame({"kind": ["frozen", "fine-tuned"], "minutes": [1.5, 20.0]}, index=["a", "b"])
    ax = plots.cost(table, "minutes", "minutes of training", plt.subplots()[1])
    assert [bar.get_width() for bar in ax.patches] == [1.5, 20.0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b"]
    assert ax.get_xlabel() == "minutes of training"
    assert math.isclose(ax.patches[0].get_y() + ax.patches[0].get_height() / 2, 0)


def test_a_plan_has_a_box_for_every_level_and_task_in_the_colour_of_its_mode():
    tasks = ("sst", "quora", "sts")
    table = SharingPlan.parse("F1 S1(sst,sts|quora) I1", tasks, 3).table()
    ax = plots.plan(table, tasks, plt.subplots()[1])
    boxes = [patch for patch in ax.patches if patch.get_height() > 0.5]
    colours = {level: set() for level in range(5)}
    for box in boxes:
        colours[round(box.get_y() + 0.4)].add(to_hex(box.get_facecolor()).upper())
    modes = ["frozen", "frozen", "shared", "individual", "individual"]
    assert colours == {level: {plots.COLOURS[mode]} for level, mode in enumerate(modes)}
    assert len(boxes) == 5 * 3
    widths = {level: [] for level in range(5)}
    for box in boxes:
        widths[round(box.get_y() + 0.4)].append(round(box.get_width(), 3))
    assert widths[0] == widths[1] == [1.0, 1.0, 0.9], "boxes of neighbours touch"
    assert widths[2] == widths[3] == [0.9, 0.9, 0.9]
    bars = [(round(bar.get_y() + 0.1), bar.get_x(), bar.get_width()) for bar in ax.patches if bar not in boxes]
    assert (2, 0, 2) in bars and all(width == 0 for level, _, width in bars if level > 2), "sst with sts; each alone"
    assert [label.get_text() for label in ax.get_yticklabels()] == list(table.index)


def test_probabilities_are_drawn_by_epoch():
    table = pd.DataFrame({"sst": [0.1, 0.3], "sts": [0.9, 0.7]}, index=[1, 2])
    ax = plots.probabilities(table, plt.subplots()[1])
    assert [line.get_ydata().tolist() for line in ax.get_lines()] == [[0.1, 0.3], [0.9, 0.7]]
    assert [line.get_label() for line in ax.get_lines()] == ["SST", "STS"]


def test_vectors_start_at_the_origin():
    table = pd.DataFrame([("g", "gradient", 1.0, -2.0)], columns=["name", "kind", "x", "y"])
    ax = plots.vectors(table, plt.subplots()[1])
    arrow, text = ax.texts
    assert arrow.xy == (1, -2) and arrow.get_position() == (0, 0) and text.get_text() == "g"
    assert ax.get_xlim() == (-2.5, 2.5)


def test_gradient_cosines_are_means_by_level():
    rows = [("embeddings", "a", 0.5), ("embeddings", "a", 0.1), ("layer 1", "a", -1.0), ("layer 1", "b", 0.0)]
    table = pd.DataFrame([*rows, ("embeddings", "b", 1.0)], columns=["layer", "pair", "cosine"])
    ax = plots.gradient_cosines(table, plt.subplots()[1])
    assert [text.get_text() for text in ax.texts] == ["-1.00", "0.00", "0.30", "1.00"], "the input is at the bottom"


def test_scores_against_parameters():
    table = pd.DataFrame([("x", "1-bert", 22.5e6, 0.5, 0.4, 0.7)],
                         columns=["name", "kind", "parameters", "value", "low", "high"])  # fmt: skip
    [bars] = plots.against_parameters(table, plt.subplots()[1]).containers
    assert bars.lines[0].get_xydata().tolist() == [[22.5, 0.5]]
    assert bars.lines[2][0].get_segments()[0][:, 1].tolist() == [pytest.approx(0.4), pytest.approx(0.7)]


COSTS = pd.DataFrame(
    dict(name=["a", "b"], kind=["1-bert", "hybrid"], value=[0.7, 0.8], dev_score=[0.6, 0.7], minutes=[1.0, 4.0])
)


def test_scores_against_costs():
    ax = plots.scores_against(COSTS, "minutes")
    assert [(*line.get_xdata(), *line.get_ydata()) for line in ax.lines] == [(1.0, 0.7), (4.0, 0.8)]
    assert [text.get_text() for text in ax.texts] == ["a", "b"]
    plt.close("all")
    crowd = pd.DataFrame(
        dict(name=list("abcdef"), kind="1-bert", value=0.7, minutes=[1.0, 1.01, 1.02, 1.03, 1.04, 9.0])
    )
    boxes = [Text.get_window_extent(text) for text in plots.scores_against(crowd, "minutes").texts]
    assert len(boxes) == 6 and not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    plt.close("all")
    ax = plots.scores_over(COSTS, "minutes")
    assert [line.get_label() for line in ax.lines] == ["a", "b"] and ax.lines[1].get_ydata() == [0.7]


def test_predicted_against_measured():
    ax = plots.predicted_measured(pd.DataFrame(dict(predicted=[90.0, 210.0], measured=[100.0, 200.0])), "MiB")
    assert ax.lines[0].get_ydata().tolist() == [90, 210] and ax.get_xscale() == ax.get_yscale() == "log"
    assert ax.get_xlabel() == "measured (MiB)"


def test_stacked_bars_and_ratios():
    ax = plots.stacked(
        pd.DataFrame(dict(a=[1.0, 2.0], b=[3.0, 4.0]), index=["x", "y"]), dict(a="#000000", b="#0072B2"), "MiB"
    )
    assert sorted(bar.get_width() for bar in ax.patches) == [1, 2, 3, 4] and ax.get_xlabel() == "MiB"
    plt.close("all")
    ax = plots.ratios(pd.DataFrame(dict(label=["x"], ratio=[1.2], low=[1.1], high=[1.3])))
    assert [text.get_text() for text in ax.get_yticklabels()] == ["x"] and ax.get_xscale() == "log"
