"""Which task a step trains.

Source: paper 001, section 4.3 (p_i ~ N_i^alpha, equations 8 and 9; one sentence there swaps the meaning of alpha 0 and
1, its table and Stickland and Murray 2019 do not).
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy import ndarray


def round_robin(sizes: ndarray, epoch: int, epochs: int) -> ndarray:
    """alpha = 0: the same weight for every task."""
    return np.ones(len(sizes))


def sqrt(sizes: ndarray, epoch: int, epochs: int) -> ndarray:
    """alpha = 1/2."""
    return sizes**0.5


def proportional(sizes: ndarray, epoch: int, epochs: int) -> ndarray:
    """alpha = 1."""
    return sizes


def annealed(sizes: ndarray, epoch: int, epochs: int) -> ndarray:
    """alpha = 1 - 0.8 (e - 1) / (E - 1) in epoch e of E; 1 where E is 1."""
    alpha = 1 - 0.8 * (epoch - 1) / max(1, epochs - 1)
    return sizes**alpha


# The tasks' numbers of examples (T,), divided by the largest, and epoch e of E -> weights (T,), N_i^alpha.
SAMPLERS: dict[str, Callable[..., ndarray]] = {
    "round_robin": round_robin,
    "sqrt": sqrt,
    "proportional": proportional,
    "annealed": annealed,
}


def task_probabilities(sizes: Sequence[int], strategy: str, epoch: int = 1, epochs: int = 1) -> ndarray:
    """Probability of drawing each task, (T,), summing to 1: p_i ~ N_i^alpha, where N_i counts examples.

    strategy: a name in SAMPLERS. Raises ValueError for another one, a size below 1, an epoch outside 1..epochs, or a
    sampler whose weights are not one for each task, finite, at least 0 and not all 0.
    """
    sizes = np.asarray(sizes, dtype=np.float64)
    is_count = np.isfinite(sizes) & (sizes >= 1)
    if sizes.ndim != 1 or not len(sizes) or not is_count.all():
        raise ValueError(f"sizes are the numbers of examples, at least 1 each; got {sizes.tolist()}")
    if strategy not in SAMPLERS:
        raise ValueError(f"unknown strategy {strategy!r}; known are {', '.join(SAMPLERS)}")
    if not 1 <= epoch <= epochs:
        raise ValueError(f"epoch {epoch} is not one of 1 to {epochs}")
    weights = np.asarray(SAMPLERS[strategy](sizes / sizes.max(), epoch, epochs), dtype=np.float64)
    are_weights = weights.shape == sizes.shape and np.isfinite(weights).all() and (weights >= 0).all()
    if not are_weights or not weights.any():
        raise ValueError(
            f"sampling: {strategy} gives {weights.tolist()} in epoch {epoch}; {len(sizes)} weights of at least 0, not "
            "all of them 0, are needed"
        )
    return weights / weights.sum()
