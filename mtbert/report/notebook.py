"""What the report's notebooks share: their parameters, checked, and where the numbers come from."""

import html
import math
import platform
from contextlib import suppress
from importlib import metadata
from typing import Any

import pandas as pd
from IPython.display import HTML, Markdown, display

from mtbert import __version__
from mtbert.config import ConfigError

PLAIN = (bool, int, float, str, list, tuple, dict, type(None))  # what papermill can inject


def parameters(namespace: dict[str, Any]) -> dict[str, Any]:
    """The notebook's parameters, from its `globals()`, called in the cell behind the parameters cell.

    Declared are the annotated names of the parameters cell (`seed: int = 1`); papermill injects plain values.
    Raises ConfigError for a plain value that is not declared, since papermill only warns about those, and for a
    value of another type than declared. `1e-5`, which YAML reads as a string, counts as a float.
    """
    declared = namespace.get("__annotations__", {})
    shell = {"In", "Out"}  # IPython's own
    given = {
        name: value
        for name, value in namespace.items()
        if isinstance(value, PLAIN)
        and name not in shell
        and (not (name.startswith("_") or name.isupper()) or name.removeprefix("_").lower() in declared)
    }
    if unknown := sorted(given.keys() - declared.keys()):
        raise ConfigError(f"{', '.join(unknown)}: no parameter of this notebook; it has {', '.join(declared)}")
    return {name: _checked(name, given[name], declared[name]) for name in declared if name in given}


def _checked(name: str, value: Any, expected: type) -> Any:
    if expected is float and isinstance(value, int | str) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            value = float(value)
    if type(value) is not expected or (expected is float and not math.isfinite(value)):
        raise ConfigError(f"{name}: expected {expected.__name__}, got {value!r}")
    return value


def versions() -> str:
    """One line: what the notebook ran on."""
    packages = [f"{name} {metadata.version(name)}" for name in ("torch", "transformers", "numpy", "pandas")]
    return ", ".join([f"mtbert {__version__}", f"Python {platform.python_version()}", *packages])


def say(text: str) -> None:
    """Show a finding as text that wraps, not as printed output; an empty one not at all."""
    if text:
        display(Markdown(text))


def listing(table: pd.DataFrame) -> None:
    """Show a table of texts, all rows, aligned to the left; one without rows not at all."""
    if len(table):
        display(HTML(_left_aligned(table)))


def folded(table: pd.DataFrame, title: str) -> None:
    """Show a long table that opens with a click on its title, and scrolls."""
    frame = '<details><summary>{}</summary><div style="max-height: 32em; overflow: auto">{}</div></details>'
    display(HTML(frame.format(html.escape(title), _left_aligned(table))))


def _left_aligned(table: pd.DataFrame) -> str:
    """HTML of a table without its index; JupyterLab would align its cells to the right."""
    text = table.to_html(index=False, na_rep="", border=0)
    left = "text-align: left; vertical-align: top"
    return text.replace("<td>", f'<td style="{left}">').replace("<th>", f'<th style="{left}">')
