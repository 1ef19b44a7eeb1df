"""Models with shapes and without weights: to count parameters, or to fill them from a checkpoint."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.overrides import TorchFunctionMode


@contextmanager
def init_empty_weights() -> Iterator[None]:
    """Modules that are built in this block have their parameters on torch's device meta; no weights are drawn.

    A draw has nothing to write there; torch still imports its compiler for the first one, which takes a second.
    """
    with torch.device("meta"), _WithoutDraws():
        yield


class _WithoutDraws(TorchFunctionMode):
    def __torch_function__(self, function: Callable, types: object, args: tuple = (), kwargs: dict | None = None):
        if function is nn.init.normal_:
            return kwargs["tensor"]  # torch names every argument of this function
        return function(*args, **(kwargs or {}))
