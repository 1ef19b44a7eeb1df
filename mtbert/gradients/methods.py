"""The methods that a configuration can name in `gradients`, besides "sum".

To add one, put a function here or in a file of its own, and its name into one of the two registries. Its constants are
keyword-only arguments with defaults, which `gradient_options` of a configuration sets.

An update is on the scale of the sum of the tasks' gradients, which "sum" takes: clipping and learning rates then mean
the same for all methods. A method whose paper has the mean returns T times its update for T tasks.
"""

import inspect
from collections.abc import Callable

import torch
from torch import Tensor

from mtbert.gradients.cagrad import cagrad_weights
from mtbert.gradients.gem import agem, gem
from mtbert.gradients.pcgrad import pcgrad_weights

# Of the tasks' gradients in a unified step: their Gram matrix (T, T), float64, and a generator -> the weights (T,) of
# the gradients in the update; all 1 is "sum".
WEIGHTS: dict[str, Callable[..., Tensor]] = {"pcgrad": pcgrad_weights, "cagrad": cagrad_weights}


# Of a step's gradient g (P,), the sum over its tasks, those of the episodic memory M (K, P) and GEM's margin: the
# projected gradient M'v + g, and v (K,), 0 where a memory took no part.
PROJECTIONS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "gem": gem,
    "agem": lambda g, M, margin: agem(g, M),
}


def constants(name: str) -> dict[str, float]:
    """The constants of a method, by name, with their defaults; none for "sum"."""
    if (method := WEIGHTS.get(name) or PROJECTIONS.get(name)) is None:
        return {}
    parameters = inspect.signature(method).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}


def check_options(name: str, options: dict[str, float], tasks: int) -> None:
    """Raises ValueError for an option that a method does not have, or a value that it refuses for so many tasks."""
    known = constants(name)
    if unknown := ", ".join(options.keys() - known.keys()):
        raise ValueError(f"{name} has no constant {unknown}; it has {', '.join(known) or 'none'}")
    if options and name in WEIGHTS:
        with torch.device("cpu"):  # the caller may build a model on the device meta
            WEIGHTS[name](torch.eye(tasks, dtype=torch.float64), torch.Generator(), **options)
