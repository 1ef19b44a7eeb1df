"""Which task a step trains, and which examples make a batch.

Source: paper 001, section 4.3 (p_i ~ N_i^alpha, equations 8 and 9; one sentence there swaps the meaning of alpha 0 and
1, its table and Stickland and Murray 2019 do not).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

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

    strategy: a name in SAMPLERS. Raises ValueError for another one, a size below 1 or an epoch outside 1..epochs.
    """
    sizes = np.asarray(sizes, dtype=np.float64)
    is_count = np.isfinite(sizes) & (sizes >= 1)
    if sizes.ndim != 1 or not len(sizes) or not is_count.all():
        raise ValueError(f"sizes are the numbers of examples, at least 1 each; got {sizes.tolist()}")
    if strategy not in SAMPLERS:
        raise ValueError(f"unknown strategy {strategy!r}; known are {', '.join(SAMPLERS)}")
    if not 1 <= epoch <= epochs:
        raise ValueError(f"epoch {epoch} is not one of 1 to {epochs}")
    weights = SAMPLERS[strategy](sizes / sizes.max(), epoch, epochs)
    return weights / weights.sum()


POOL = 64  # batches at most that are sorted by length together: enough for little padding
POOLS = 4  # of a pass at least: drawn again for every pass, they mix the batches of a small dataset


def train_batches(lengths: ndarray, batch_size: int, seed: int, epoch: int) -> list[ndarray]:
    """One pass over all rows in random order: row numbers of each batch, a function of seed and epoch alone.

    Rows are shuffled, cut into pools, sorted by length within a pool and cut into batches, and the batches are
    shuffled: every row comes once, and a batch has sequences of similar length. Batches differ by one row at most,
    so that every row weighs the same in the mean losses of a pass.
    """
    random = np.random.default_rng([seed, epoch])
    rows = random.permutation(len(lengths))
    n = math.ceil(len(rows) / batch_size)  # batches
    starts = np.arange(n + 1) * len(rows) // n  # of the batches among the rows, and the end
    pool_count = max(POOLS, math.ceil(n / POOL))
    for numbers in np.array_split(np.arange(n), min(n, pool_count)):
        pool = slice(starts[numbers[0]], starts[numbers[-1] + 1])
        by_length = np.argsort(lengths[rows[pool]], kind="stable")
        rows[pool] = rows[pool][by_length]
    batches = np.split(rows, starts[1:-1])
    return [batches[i] for i in random.permutation(n)]


def eval_batches(lengths: ndarray, token_budget: int) -> Iterator[ndarray]:
    """All rows once, longest first, in batches of at most `token_budget` padded tokens (but at least one row)."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = int(lengths[order[start]])
        rows = max(1, token_budget // longest)
        yield order[start : start + rows]
        start += rows


def padding_share(lengths: ndarray, batches: Iterable[ndarray]) -> float:
    """The share of padding in the tokens of these batches, each padded to its longest sequence."""
    own = 0  # tokens of the sequences
    padded = 0
    for batch in batches:
        own += int(lengths[batch].sum())
        padded += int(lengths[batch].max()) * len(batch)
    return 1 - own / padded
