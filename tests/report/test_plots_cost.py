"""Figures of memory over a step show the numbers of their table."""

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from mtbert.cost import PARTS
from mtbert.report import plots_sweeps as plots_cost


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def parts(**given) -> dict:
    return {part: given.get(part, 0.0) for part in PARTS}


def test_every_part_has_a_colour():
    assert list(plots_cost.PART_COLOURS) == PARTS


def test_memory_over_a_step():
    rows = [
        {"phase": "forward", **parts(weights=2.0, activations=1.0), "total": 3.0},
        {"phase": "forward", **parts(weights=2.0, activations=4.0), "total": 6.0},
        {"phase": "backward", **parts(weights=2.0, gradients=2.0), "total": 4.0},
    ]
    ax = plt.subplots()[1]
    assert plots_cost.memory_over_step(pd.DataFrame(rows), ax) is ax
    assert [area.get_label() for area in ax.collections] == ["weights", "gradients", "activations"]
    peak, *changes = ax.get_lines()
    assert peak.get_xydata().tolist() == [[1, 6.0]]
    assert [line.get_xdata()[0] for line in changes] == [2]
