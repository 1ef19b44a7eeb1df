"""mtbert: minBERT and the ways of sharing it between tasks. The papers' ideas, and what trains a model with them."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtbert.bert import Batch, BertConfig, BertModel
    from mtbert.config import RunConfig
    from mtbert.data import TASKS, Task
    from mtbert.gradients import cagrad, gem_project, pcgrad
    from mtbert.multitask import MultitaskBert
    from mtbert.optim import AdamW
    from mtbert.samplers import task_probabilities
    from mtbert.sharing import ADAPTERS, PAL, AdapterSizes, SharedEncoder, SharingPlan
    from mtbert.training import train

__version__ = "0.34.0"

# Rounds that a thread of torch's waits awake for the others. By default there are 300,000: where other programs use the
# cores, threads then wait for threads that cannot run, and some steps take 30 times as long. Read when torch is
# imported; an idle machine is as fast as by default (benchmark `busy`).
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")

__all__ = [
    "ADAPTERS",
    "PAL",
    "TASKS",
    "AdamW",
    "AdapterSizes",
    "Batch",
    "BertConfig",
    "BertModel",
    "MultitaskBert",
    "RunConfig",
    "SharedEncoder",
    "SharingPlan",
    "Task",
    "__version__",
    "cagrad",
    "gem_project",
    "pcgrad",
    "task_probabilities",
    "train",
]

_ROOMS = {  # where each of them is
    "bert": "Batch BertConfig BertModel",
    "config": "RunConfig",
    "data": "TASKS Task",
    "gradients": "cagrad gem_project pcgrad",
    "multitask": "MultitaskBert",
    "optim": "AdamW",
    "samplers": "task_probabilities",
    "sharing": "ADAPTERS PAL AdapterSizes SharedEncoder SharingPlan",
    "training": "train",
}


def __getattr__(name: str) -> Any:
    """A name that the package exports, imported when it is used: the parts need torch, which is slow to import."""
    for room, names in _ROOMS.items():
        if name in names.split():
            return getattr(import_module(f"{__name__}.{room}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
