"""Steps of ours, as the benchmarks take them."""

import math
from types import SimpleNamespace

import pytest

from benchmarks.ours import Training


class OnDevice:
    """A loss that numpy cannot read, as those on a GPU."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __float__(self) -> float:
        return self.value


def test_losses_may_be_on_a_device():
    ours = object.__new__(Training)
    ours.all_rows = {}
    ours.trainer = SimpleNamespace(step=lambda number, rows: {"sst": OnDevice(1.0)})
    ours.step()
    ours.trainer.step = lambda number, rows: {"sst": OnDevice(math.nan)}
    with pytest.raises(FloatingPointError, match="not finite"):
        ours.step()
