"""Figures of memory over a training step: f(table, ax=None) -> ax, as in plots.py; nothing here reads a file."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from mtbert.cost import PARTS

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
    ax = ax or plt.gca()
    shown = [part for part in PARTS if table[part].any()]
    moments = np.arange(len(table))
    layers = [table[part].to_numpy() for part in shown]
    ax.stackplot(moments, *layers, labels=shown, colors=[PART_COLOURS[part] for part in shown], linewidth=0)
    peak = int(table["total"].to_numpy().argmax())
    ax.plot(peak, table["total"].iloc[peak], "v", color="black", ms=6, clip_on=False)
    for start in np.flatnonzero(table["phase"].ne(table["phase"].shift()).to_numpy())[1:]:
        ax.axvline(start, color="white", lw=0.8)
    top = max(ax.get_ylim()[1], 1.08 * table["total"].max())  # of axes that share it the highest
    ax.set(xlim=(0, max(1, len(table) - 1)), ylim=(0, top), xlabel="operation of the step", ylabel="memory (MiB)")
    return ax
