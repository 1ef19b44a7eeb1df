"""The curves of some runs, drawn while they train: again and again in a live notebook, elsewhere once at the end."""

import functools
import math
import time
from collections.abc import Mapping
from statistics import fmean

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import HTML, DisplayHandle, display
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from mtbert.config import RunConfig
from mtbert.data import TASKS, Corpus
from mtbert.training import ReadProgress, TrainedRun, train, watch
from mtbert_lab.report import plots
from mtbert_lab.report.viewers import is_live
from mtbert_lab.report.words import METRIC_LABELS, TASK_LABELS

SECONDS = 3.0  # between two drawings; one takes about half a second of the processor


class LiveCurves:
    """Training loss and each task's dev score by step, a line for every run that `train` has been called for.

    baselines: task -> a score that needs no training, which is drawn as a dashed line; its tasks have an axis each.
    """

    def __init__(self, baselines: Mapping[str, float]) -> None:
        self.baselines = dict(baselines)
        self.logs: dict[str, list[dict]] = {}  # name of a run -> a row per step, with scores at the points of its curve
        self.steps = 1  # of the longest run
        self._handle: DisplayHandle | None = None
        self._drawn = -math.inf  # when

    def train(self, name: str, config: RunConfig, corpus: Corpus) -> TrainedRun:
        """`mtbert.training.train` on the processor, with its curve in the figure."""
        self.logs[name] = []
        self._draw(f"{name}: preparing the sentences")
        token = watch.set(functools.partial(self._after_step, name))
        try:
            return train(config, corpus, "cpu", progress=False)
        finally:
            watch.reset(token)

    def finish(self, name: str, alt: str, caption: str = "") -> None:
        """Show the whole figure as `plots.show` does, in place of the one that changed."""
        if self._handle is not None:
            self._handle.update(HTML(""))
            self._handle = None
        plots.show(self.figure(), name, alt, caption)

    def figure(self) -> plt.Figure:
        """The curves so far."""
        figure, axes = plt.subplots(1, 1 + len(self.baselines), figsize=(11, 3))
        axes[0].set(title="training loss")
        for ax, (task, score) in zip(axes[1:], self.baselines.items(), strict=True):
            label = METRIC_LABELS[TASKS[task].metric]
            ax.set(title=f"{TASK_LABELS[task]}: {label}", ylim=(min(0.0, score), 1))
            ax.axhline(score, color=plots.GREY, linestyle="--", label="baseline")
        looks = plots.styles(self.logs)
        for name, log in self.logs.items():
            self._add(axes, name, pd.DataFrame(log), looks[name])
        for ax in axes:
            ax.set(xlabel="step", xlim=(0, self.steps))  # from the start, so that one sees how far it is
            ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes[-1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
        return figure

    def _add(self, axes: list[Axes], name: str, log: pd.DataFrame, look: dict) -> None:
        """Add the lines of one run, which may have no point yet."""
        if log.empty:
            return
        axes[0].plot(log["step"], log["train_loss"], color=look["color"], linewidth=1)
        for ax, task in zip(axes[1:], self.baselines, strict=True):
            column = f"dev_{task}"
            if column in log:
                points = log.dropna(subset=[column])
                ax.plot(points["step"], points[column], label=plots.as_text(name), clip_on=False, **look)

    def _after_step(self, name: str, progress: ReadProgress, total: int) -> bool:
        """What the training loop calls after every step; False: it goes on."""
        now = progress()
        if "losses" not in now:  # pretraining, which is not drawn
            return False
        losses = now["losses"]  # by task, of the steps since the last point of the curve
        if losses:
            row = {"step": now["step"], "train_loss": fmean(losses[-1].values())}
        else:
            row = now["curve"][-1]
        self.logs[name].append(row)
        self.steps = max(self.steps, total)
        if time.monotonic() - self._drawn >= SECONDS:
            self._draw(f"{name}: step {now['step']} of {total}")
        return False

    def _draw(self, title: str) -> None:
        """Draw the curves so far in place of the last drawing; nothing where nobody watches."""
        if not is_live():
            return
        figure = self.figure()
        figure.suptitle(plots.as_text(title), fontsize="medium")
        if self._handle is None:
            self._handle = display(figure, display_id=True)
        else:
            self._handle.update(figure)
        plt.close(figure)
        self._drawn = time.monotonic()
