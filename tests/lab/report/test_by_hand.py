"""Notebook 04's code by hand computes what the package does, and a wrong line of it is found."""

import re
from collections.abc import Callable, Iterator

import nbformat
import pytest
import torch
from nbformat import NotebookNode

from mtbert.paths import REPOSITORY
from mtbert_lab.report import by_hand

NOTEBOOK = REPOSITORY / "notebooks/04_sharing_methods.ipynb"
RUN = {"parameters", "set-up", "by-hand"}  # tags of the cells that are executed here


def cells() -> dict[str, str]:
    """The id and code of every cell with code by hand, and of those that come before it."""
    found = {}
    for cell in nbformat.read(NOTEBOOK, 4).cells:
        if RUN.intersection(cell.metadata.get("tags", [])):
            found[cell.id] = cell.source
    return found


@pytest.fixture(scope="module")
def executed(tmp_path_factory) -> dict:
    """What the names of the notebook stand for when its cells have run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MTBERT_CACHE", str(tmp_path_factory.mktemp("cache")))
        names = {"__name__": "notebook"}
        for source in cells().values():
            exec(source, names)
        yield names


def count_by_section(count: Callable[[NotebookNode], int]) -> dict[str, int]:
    """The title of every numbered section of the notebook, and the sum over its cells of what `count` gives."""
    sections = {}
    for cell in nbformat.read(NOTEBOOK, 4).cells:
        if found := re.match(r"## (\d .*)", cell.source):
            title = found[1]
            sections[title] = 0
        if sections:
            sections[title] += count(cell)
    return sections


def test_by_hand_and_package_agree_in_every_section(executed, capsys):
    """The cells raise where they differ; here every section must have compared something."""

    def agreements(cell: NotebookNode) -> int:
        if "by-hand" not in cell.metadata.get("tags", []):
            return 0
        return "".join(output.get("text", "") for output in cell.outputs).count(": both agree (")

    sections = count_by_section(agreements)
    assert list(sections) == [
        "1 Sharing plans",
        "2 Adapters",
        "3 Soft sharing",
        "4 Conflicting gradients",
        "5 Which task next",
        "6 Heads and losses",
        "7 Distillation",
    ]
    assert min(sections.values()) >= 2


MISTAKES = {  # id of a cell -> a line of it, and what a reader might write instead
    "plan-by-hand": ('if mode != "F"]', "]"),
    "hybrid-by-hand": ("for layer in own[task]:", "for layer in own['sst']:"),
    "hybrid-solution": ('"sts": [fourth[1]]', '"sts": [fourth[0]]'),
    "pal-by-hand": ("fed + TS", "fed"),
    "adapters-by-hand": ("return x + V_D(F.gelu(V_E(x)))", "return V_D(F.gelu(V_E(x)))"),
    "adapters-solution": ("3 * s**2", "4 * s**2"),
    "soft-by-hand": ("(W - W.mean(0)) ** 2", "W**2"),
    "pcgrad-by-hand": ("if product < 0:", "if True:"),
    "step-by-hand": ("freed(G_step, generator)", "G_step"),
    "gem-by-hand": (".clamp(min=0)", ""),
    "gem-solution": ("M.mean(0)", "M[0]"),
    "samplers-by-hand": ("0.8 * (e - 1)", "0.8 * e"),
    "progressive-by-hand": ('f["quora"], torch.cat([x, y_sst], -1)', 'f["quora"], torch.cat([y_sst, x], -1)'),
    "init-by-hand": ("std=std)", "std=2 * std)"),
    "distil-by-hand": ("w * tau**2 * soft", "w * tau * soft"),
}


def test_every_cell_by_hand_has_a_mistake_to_find():
    tagged = [cell.id for cell in nbformat.read(NOTEBOOK, 4).cells if "by-hand" in cell.metadata.get("tags", [])]
    assert sorted(tagged) == sorted(MISTAKES)


@pytest.mark.parametrize("cell", MISTAKES)
def test_a_wrong_line_by_hand_is_found(executed, cell):
    right, wrong = MISTAKES[cell]
    source = cells()[cell]
    assert right in source
    with pytest.raises(AssertionError):
        exec(source.replace(right, wrong), dict(executed))


def test_a_head_that_feeds_another_must_not_be_trained_by_it(executed):
    source = cells()["progressive-by-hand"].replace(", x, feeds=True)", ", x)")
    with pytest.raises(AssertionError):
        exec(source, dict(executed))


FENCED = re.compile(r"```python\n(?P<code>.*?)```\n\n```text\n(?P<printed>.*?)```", re.DOTALL)


def solutions(notebook: str) -> dict[str, tuple[str, str]]:
    """The id of every cell with a folded solution in its text, with the solution's code and what that prints."""
    found = {}
    for cell in nbformat.read(REPOSITORY / "notebooks" / notebook, 4).cells:
        if cell.cell_type == "markdown" and (match := FENCED.search(cell.source)):
            assert cell.source.startswith("> **Try it.**") and "<details><summary>Solution</summary>\n\n" in cell.source
            found[cell.id] = (match["code"], match["printed"])
    return found


@pytest.mark.parametrize("cell", solutions("04_sharing_methods.ipynb"))
def test_a_folded_solution_of_04_prints_what_it_says(executed, cell, capsys):
    code, printed = solutions("04_sharing_methods.ipynb")[cell]
    capsys.readouterr()
    exec(code, dict(executed))
    assert capsys.readouterr().out == printed


@pytest.fixture
def no_gradients() -> Iterator[None]:
    """Notebook 01 switches gradients off."""
    before = torch.is_grad_enabled()
    yield
    torch.set_grad_enabled(before)


def test_folded_solutions_of_01_print_what_they_say(no_gradients, isolated, capsys):
    names = {"__name__": "notebook"}
    found = solutions("01_implement.ipynb")
    assert len(found) == 2
    cells = nbformat.read(REPOSITORY / "notebooks/01_implement.ipynb", 4).cells
    last = max(place for place, cell in enumerate(cells) if cell.id in found)
    for cell in cells[: last + 1]:
        if cell.cell_type == "code":
            exec(cell.source, names)
        if cell.id in found:
            code, printed = found[cell.id]
            capsys.readouterr()
            exec(code, dict(names))
            assert capsys.readouterr().out == printed


def test_every_section_of_04_has_something_to_try():
    sections = count_by_section(lambda cell: cell.source.count("**Try it.**"))
    assert min(sections.values()) >= 1


def test_agreement_asks_for_shape_and_numbers(capsys):
    by_hand.agree("ones", torch.ones(2, 3), torch.ones(2, 3))
    assert capsys.readouterr().out == "ones: both agree (2 x 3 numbers, up to 1)\n"
    by_hand.agree("a count", 1234567, 1234567)
    assert capsys.readouterr().out == "a count: both agree (1,234,567)\n"
    with pytest.raises(AssertionError, match=r"ones: by hand \(3,\), the package \(2, 3\)"):
        by_hand.agree("ones", torch.ones(3), torch.ones(2, 3))
    with pytest.raises(AssertionError, match="ones"):
        by_hand.agree("ones", torch.ones(2) + 1e-3, torch.ones(2))
    with pytest.raises(AssertionError):
        by_hand.agree("nan", torch.tensor([torch.nan]), torch.ones(1))


def documented(x: int) -> int:
    """One line.

    More.
    """
    # a comment
    return x


class OnlyDocumented:
    """Nothing else."""


def test_sources_are_shown_as_markdown_without_docstrings(monkeypatch):
    shown = []
    monkeypatch.setattr(by_hand, "display", shown.append)
    by_hand.show_source(documented)
    by_hand.show_source(documented, doc=True)
    by_hand.show_source(OnlyDocumented)
    bare, whole, only = (markdown.data for markdown in shown)
    assert bare == "```python\ndef documented(x: int) -> int:\n    # a comment\n    return x\n```"
    assert '    """One line.\n' in whole
    assert '"""Nothing else."""' in only
