"""The methods that a configuration can name in `gradients`, besides "sum".

To add one, put a function here or in a file of its own, and its name into one of the two registries. Its constants are
keyword-only arguments with defaults, which `gradient_options` of a configuration sets.

Every update is on the scale of the sum of the tasks' gradients, so that clipping and learning rates mean the same for
all methods. A method whose paper has the mean returns T times its update for T tasks.
"""

import inspect
from collections.abc import Callable

import torch
from torch import Tensor

from mtbert.gradients.cagrad import cagrad_weights
from mtbert.gradients.gem import agem, gem
from mtbert.gradients.pcgrad import pcgrad_weights
from mtbert.sources import is_own

# The Gram matrix (T, T), float64, of the tasks' gradients in a unified step, and a generator -> the weights (T,) of
# the gradients in the update; all 1 is "sum".
WEIGHTS: dict[str, Callable[..., Tensor]] = {"pcgrad": pcgrad_weights, "cagrad": cagrad_weights}

# A step's gradient g (P,), the sum over its tasks, and the gradients M (K, P) of the episodic memory -> the projected
# gradient M'v + g, and v (K,), 0 where a memory took no part.
PROJECTIONS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {"gem": gem, "agem": agem}


def check_options(name: str, options: dict[str, float], tasks: int) -> None:
    """Raises ValueError for an option that a method does not have, or a value that it refuses for so many tasks.

    A method of one's own is tried without options, too: it may not take what it is given.
    """
    known = []  # none for "sum"
    method = WEIGHTS.get(name) or PROJECTIONS.get(name)
    if method is not None:
        parameters = inspect.signature(method).parameters.values()
        known = [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
    unknown = options.keys() - known
    if unknown:
        raise ValueError(f"{name} has no constant {', '.join(unknown)}; it has {', '.join(known) or 'none'}")
    if not options and (method is None or not is_own(method)):
        return
    with torch.device("cpu"):  # the caller may build a model on the device meta
        gradients = torch.eye(tasks, dtype=torch.float64)
        given = (gradients, torch.Generator()) if name in WEIGHTS else (gradients[0], gradients)
        try:
            inspect.signature(method).bind(*given, **options)
        except TypeError as error:
            kinds = ", ".join(type(one).__name__ for one in given)
            raise ValueError(f"{name} is called with {kinds} and its options: {error}") from error
        method(*given, **options)
