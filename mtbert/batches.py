"""Which examples make a batch: sequences of similar length, so that little of it is padding."""

import math
from collections.abc import Iterable, Iterator

import numpy as np
from numpy import ndarray

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
