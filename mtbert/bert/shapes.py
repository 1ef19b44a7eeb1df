"""Models that have shapes and no numbers: their parameters are counted, or get the tensors of a checkpoint."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.overrides import TorchFunctionMode


@contextmanager
def without_numbers() -> Iterator[None]:
    """What is made here lies on torch's device meta, and no weights are drawn for it.

    A draw has nothing to write there; torch still imports its compiler for the first one, which takes a second.
    """
    with torch.device("meta"), _WithoutDraws():
        yield


class _WithoutDraws(TorchFunctionMode):
    def __torch_function__(self, function: Callable, types: object, args: tuple = (), kwargs: dict | None = None):
        if function is nn.init.normal_:
            return kwargs["tensor"]  # torch names every argument of this function
        return function(*args, **(kwargs or {}))
