"""mtbert: minBERT and the ways of sharing it between tasks, as a thin package under a notebook report."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtbert.config import RunConfig
    from mtbert.data import Task
    from mtbert.results import load_model, load_or_run, read_grid

__version__ = "0.11.0"
__all__ = ["RunConfig", "Task", "load_model", "load_or_run", "read_grid"]

# Rounds that a thread of torch's waits awake for the others. By default there are 300,000: where other programs use the
# cores, threads then wait for threads that cannot run, and some steps take 30 times as long. Read when torch is
# imported; an idle machine is as fast as by default (benchmark `busy`).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")

_ROOMS = {"RunConfig": "config", "Task": "data"}  # of the others: results


def __getattr__(name: str) -> Any:
    """What the package exports, imported when it is used: the rooms need torch, which is slow to import."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOMS.get(name, 'results')}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
