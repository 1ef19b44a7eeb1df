"""Code of one's own names a run by its source."""

import functools

import pytest
import torch

from mtbert.config import ConfigError, RunConfig
from mtbert.samplers import SAMPLERS, proportional
from mtbert.sharing.adapters import PAL, Adapter
from mtbert.sources import SourceError, is_own, source_digest

POWER = 0.5


def power(sizes, epoch, epochs):
    return helper(sizes)


def helper(sizes):
    return sizes**POWER


def with_closure(exponent):
    def weights(sizes, epoch, epochs):
        return sizes**exponent

    return weights


class Base(Adapter):
    def after_layer(self, depth, x):
        return x * POWER


class Mine(Base):
    """Changed where its base is."""


def test_the_code_of_the_package_is_not_ones_own():
    assert not is_own(PAL) and not is_own(proportional) and is_own(Mine) and is_own(power)


@pytest.mark.parametrize("thing", [power, Mine])
def test_what_the_code_uses_counts(thing, monkeypatch):
    before = source_digest(thing)
    assert source_digest(thing) == before
    monkeypatch.setitem(globals(), "POWER", 0.25)
    assert source_digest(thing) != before


def test_the_values_of_a_closure_count():
    assert source_digest(with_closure(1)) == source_digest(with_closure(1)) != source_digest(with_closure(2))


@pytest.mark.parametrize("thing", [functools.partial(power, epoch=1), torch.maximum])
def test_code_without_source_is_refused(thing, monkeypatch):
    with pytest.raises(SourceError, match="has no Python source that could name the run"):
        source_digest(thing)
    monkeypatch.setitem(SAMPLERS, "mine", thing)
    with pytest.raises(ConfigError, match=r"^sampling: .* has no Python source"):
        _ = RunConfig(sampling="mine").digest


def test_a_class_of_a_notebook_has_its_source():
    """`inspect` finds the source of functions alone where a cell defines them."""
    shell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell()
    cell = "class Mine:\n    k = {}\n    def weights(self):\n        return self.k\n"
    shell.run_cell(cell.format(1))
    first = source_digest(shell.user_ns["Mine"])
    shell.run_cell(cell.format(2))
    assert source_digest(shell.user_ns["Mine"]) != first
