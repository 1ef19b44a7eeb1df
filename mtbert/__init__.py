"""mtbert: minBERT and the ways of sharing it between tasks, as a thin package under a notebook report."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtbert.config import RunConfig
    from mtbert.data import Task
    from mtbert.results import load_model, load_or_run, read_grid

__version__ = "0.10.0"
__all__ = ["RunConfig", "Task", "load_model", "load_or_run", "read_grid"]

_ROOMS = {"RunConfig": "config", "Task": "data"}  # of the others: results


def __getattr__(name: str) -> Any:
    """What the package exports, imported when it is used: the rooms need torch, which is slow to import."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOMS.get(name, 'results')}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
