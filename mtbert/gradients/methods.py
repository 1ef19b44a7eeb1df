"""The methods that a configuration can name in `gradients`, besides "sum".

To add one, put a function here or in a file of its own, and its name into one of the two registries.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from mtbert.gradients.gem import agem, gem
from mtbert.gradients.pcgrad import pcgrad_weights

# Of the tasks' gradients in a unified step: their Gram matrix (T, T), float64, and a generator -> the weights (T,) of
# the gradients in the update.
WEIGHTS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {"pcgrad": pcgrad_weights}


# Of a step's gradient g (P,), those of the episodic memory M (K, P) and GEM's margin: the projected gradient M'v + g,
# and v (K,), 0 where a memory took no part.
PROJECTIONS: dict[str, Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]] = {
    "gem": gem,
    "agem": lambda g, M, margin: agem(g, M),
}
