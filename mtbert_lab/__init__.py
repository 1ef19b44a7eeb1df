"""The laboratory around `mtbert`: it stores runs, trains grids of them, compares them and makes the report."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtbert_lab.store import load_model, load_or_run, read_grid

__all__ = ["load_model", "load_or_run", "read_grid"]


def __getattr__(name: str) -> Any:
    """What the package exports, imported when it is used: the rooms need torch, which is slow to import."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.store"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
