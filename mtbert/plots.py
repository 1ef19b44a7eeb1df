"""Figures: f(table, ax=None) -> ax. Nothing here reads a file; one style, one fixed colour for every thing shown."""

import os
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes

from mtbert.paths import REPOSITORY

# Okabe and Ito's palette: told apart in print and by colour-blind readers.
COLOURS = {
    "fine-tuned": "#0072B2",
    "frozen": "#E69F00",
    "paper": "#7F7F7F",
    "sst": "#009E73",
    "cfimdb": "#D55E00",
    "quora": "#56B4E9",
    "sts": "#CC79A7",
    "mean": "#0072B2",
    "cls": "#009E73",
    "pooler": "#D55E00",
}
TASK_LABELS = {"sst": "SST", "cfimdb": "CFIMDB", "quora": "Quora", "sts": "STS"}
METRIC_LABELS = {"accuracy": "accuracy", "pearson": "Pearson correlation", "f1": "F1", "macro_f1": "macro F1"}


def use_style() -> None:
    """The report's one style; call it once at the top of a notebook."""
    sns.set_theme(context="notebook", style="whitegrid", font_scale=0.9)
    plt.rcParams.update({"figure.dpi": 100, "savefig.dpi": 150, "figure.constrained_layout.use": True})


def save(figure: plt.Figure, name: str) -> None:
    """Write a figure as PNG and PDF to MTBERT_FIGURES, else to figures/ of this checkout; the same bytes each time."""
    folder = Path(os.environ.get("MTBERT_FIGURES") or REPOSITORY / "figures")
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", metadata={"Software": None})
    figure.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None, "Producer": None, "Creator": None})
