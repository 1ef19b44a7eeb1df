"""Curves that are drawn while a run trains."""

import matplotlib.pyplot as plt
import pytest

from mtbert.config import RunConfig
from mtbert.data import demo
from mtbert.training import load_corpus, train, watch
from mtbert_lab.report import live

TASKS = ("sst", "sts")
BASELINES = {"sst": 0.25, "sts": 0.0}


class Handle:
    """Stands for IPython's display handle; keeps what it is updated with."""

    def __init__(self) -> None:
        self.updates = []

    def update(self, shown: object) -> None:
        self.updates.append(shown)


@pytest.fixture
def config(tiny_encoder) -> RunConfig:
    steps = {"epochs": 1, "steps_per_epoch": 4, "evals_per_epoch": 2, "batch_size": 2, "train_rows": 8, "curve_rows": 6}
    return RunConfig(corpus="demo", tasks=TASKS, encoder=tiny_encoder, scheme="unified", keep="last", **steps)


@pytest.fixture
def shown(monkeypatch) -> tuple[list, Handle]:
    """What is displayed, what the first display is updated with, where nobody waits between two drawings."""
    first, handle = [], Handle()

    def display(figure, display_id):
        first.append(figure)
        return handle

    monkeypatch.setattr(live, "display", display)
    monkeypatch.setattr(live, "SECONDS", 0.0)
    return first, handle


def test_a_watched_run_is_the_same_run(config, monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    corpus = load_corpus(config, demo.root())
    before = watch.get()
    watched = live.LiveCurves(BASELINES).train("1-bert", config, corpus)
    alone = train(config, corpus, "cpu", progress=False)
    timed = ["seconds", "cpu_seconds"]
    assert watched.curve.drop(columns=timed).equals(alone.curve.drop(columns=timed))
    assert watched.predictions.equals(alone.predictions)
    assert watch.get() is before


def test_pretraining_is_not_drawn(config):
    curves = live.LiveCurves(BASELINES)
    curves.train("1-bert", config.but(pretrain="before", pretrain_epochs=1), load_corpus(config, demo.root()))
    assert [row["step"] for row in curves.logs["1-bert"] if "train_loss" in row][:1] == [1]
    assert max(row["step"] for row in curves.logs["1-bert"]) == 4


def test_live_figures_follow_the_steps(config, monkeypatch, shown):
    monkeypatch.setenv("JPY_SESSION_NAME", "a.ipynb")
    first, handle = shown
    before = plt.get_fignums()
    curves = live.LiveCurves(BASELINES)
    curves.train("1-bert", config, load_corpus(config, demo.root()))
    assert len(first) == 1 and len(handle.updates) == 4, "one before the first step, one after each"
    titles = [figure.get_suptitle() for figure in [*first, *handle.updates]]
    assert titles == ["1-bert: preparing the sentences", *(f"1-bert: step {step} of 4" for step in (1, 2, 3, 4))]
    loss, *scores = handle.updates[-1].axes
    assert loss.lines[0].get_xdata().tolist() == [1, 2, 3, 4]
    assert {ax.get_xlim() for figure in handle.updates for ax in figure.axes} == {(0, 4)}
    for ax, baseline in zip(scores, BASELINES.values(), strict=True):
        dashed, line = ax.lines
        assert list(dashed.get_ydata()) == [baseline, baseline]
        assert line.get_xdata().tolist() == [2, 4]
    assert plt.get_fignums() == before, "no figure is left open"


def test_nothing_is_drawn_before_the_end_where_nobody_watches(config, monkeypatch, shown, isolated):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    saved = []
    monkeypatch.setattr(live.plots, "show", lambda figure, name, alt, caption: saved.append((figure, name)))
    first, handle = shown
    curves = live.LiveCurves(BASELINES)
    curves.train("1-bert", config, load_corpus(config, demo.root()))
    curves.train("3-bert", config, load_corpus(config, demo.root()))
    assert not first and not handle.updates
    curves.finish("10_curves", "Curves.")
    [(figure, name)] = saved
    assert name == "10_curves"
    assert len(figure.axes[0].lines) == 2, "a line for each run"
    assert not figure.get_suptitle()


def test_the_last_live_figure_gives_way_to_the_final_one(monkeypatch, shown):
    monkeypatch.setenv("JPY_SESSION_NAME", "a.ipynb")
    monkeypatch.setattr(live.plots, "show", lambda figure, name, alt, caption: None)
    _, handle = shown
    curves = live.LiveCurves(BASELINES)
    curves._draw("1-bert: step 1 of 4")
    curves.finish("10_curves", "Curves.")
    assert handle.updates[-1].data == ""
