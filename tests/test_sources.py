"""Code of one's own names a run by its source."""

import functools

import pytest
import torch

from mtbert.config import ConfigError, RunConfig
from mtbert.samplers import SAMPLERS, proportional
from mtbert.sharing.adapters import PAL, Adapter
from mtbert.sources import SourceError, is_own, source_digest

FUNCTION = """
def mine(sizes, epoch, epochs):
    return sizes**{}
"""
CLASS = """
class mine_too:
    power = 1

class mine:
    power = {}
    def weights(self, sizes):
        return sizes**self.power

other = {}
"""


def power(sizes, epoch, epochs):
    return sizes**0.5


class Mine(Adapter):
    def after_layer(self, depth, x):
        return x * 0.5


@pytest.fixture
def shell():
    return pytest.importorskip("IPython.core.interactiveshell").InteractiveShell()


def test_the_code_of_the_package_is_not_ones_own():
    assert not is_own(PAL) and not is_own(proportional) and is_own(Mine) and is_own(power)


def test_where_code_is_indented_does_not_count():
    def indented():
        def power(sizes, epoch, epochs):
            return sizes**0.5

        return power

    assert source_digest(power) == source_digest(indented()) != source_digest(Mine)


@pytest.mark.parametrize("cell", [FUNCTION, CLASS], ids=["function", "class"])
def test_what_a_notebook_defines_is_named_by_its_source(shell, cell):
    digests = []
    for number in (1, 2, 1):
        shell.run_cell(cell.format(number, "unchanged"))
        digests.append(source_digest(shell.user_ns["mine"]))
    assert digests[0] == digests[2] != digests[1]


def test_other_lines_of_the_cell_of_a_class_do_not_count(shell):
    digests = set()
    for other in (1, 2):
        shell.run_cell(CLASS.format(1, other))
        digests.add(source_digest(shell.user_ns["mine"]))
    assert len(digests) == 1


@pytest.mark.parametrize("thing", [functools.partial(power, epoch=1), torch.maximum, type("Made", (Adapter,), {})])
def test_code_without_source_is_refused(thing, monkeypatch):
    with pytest.raises(SourceError, match="has no Python source that could name the run; put it in a file"):
        source_digest(thing)
    monkeypatch.setitem(SAMPLERS, "mine", thing)
    with pytest.raises(ConfigError, match=r"^sampling: .* has no Python source"):
        _ = RunConfig(sampling="mine").digest


def test_a_notebooks_class_without_methods_is_refused(shell):
    shell.run_cell("class mine:\n    power = 1\n")
    with pytest.raises(SourceError, match=r"mine is from outside of mtbert .* put it in a file"):
        source_digest(shell.user_ns["mine"])
