"""Code by hand beside the package's own: its source is shown, and the numbers of both are compared."""

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import torch
from IPython.display import Markdown, display
from torch import Tensor

from mtbert_lab.escapes import fence


def show_source(thing: Callable[..., Any] | type, doc: bool = False) -> None:
    """Show the code of a function or class as Markdown, which pages and JupyterLab colour. doc: with docstrings."""
    source = textwrap.dedent(inspect.getsource(thing))
    if not doc:
        source = without_docstrings(source)
    quotes = fence(source)
    display(Markdown(f"{quotes}python\n{source.rstrip()}\n{quotes}"))


def without_docstrings(source: str) -> str:
    """The code without the docstrings of its functions and classes; comments stay."""
    lines = source.splitlines()
    dropped: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        is_documented = isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None
        if not is_documented or len(node.body) == 1:  # a docstring alone is the body
            continue
        first = node.body[0]
        dropped.update(range(first.lineno - 1, first.end_lineno))
        if not lines[first.end_lineno].strip():  # the empty line behind it
            dropped.add(first.end_lineno)
    kept = [line for number, line in enumerate(lines) if number not in dropped]
    return "\n".join(kept)


def agree(what: str, by_hand: Tensor | float, package: Tensor | float, tolerance: float = 1e-5) -> None:
    """Print that both have the same shape and numbers; AssertionError where they differ by more than the tolerance.

    tolerance: of a difference, as a share of the package's largest number.
    """
    by_hand = torch.as_tensor(by_hand).detach().double()
    package = torch.as_tensor(package).detach().double()
    if by_hand.shape != package.shape:
        raise AssertionError(f"{what}: by hand {tuple(by_hand.shape)}, the package {tuple(package.shape)}")
    largest = package.abs().max().item()
    torch.testing.assert_close(by_hand, package, rtol=0, atol=tolerance * largest, msg=lambda text: f"{what}: {text}")
    size = f"{largest:,.0f}" if largest >= 1000 else f"{largest:.2g}"
    shape = " x ".join(map(str, package.shape))
    print(f"{what}: both agree ({f'{shape} numbers, up to ' if shape else ''}{size})")
