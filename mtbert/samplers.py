"""Which task a step trains, and which examples make a batch.

Source: paper 001, section 4.3 (p_i ~ N_i^alpha, equations 8 and 9; one sentence there swaps the meaning of alpha 0 and
1, its table and Stickland and Murray 2019 do not).
"""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np


def round_robin(sizes: np.ndarray, epoch: int, epochs: int) -> np.ndarray:
    """alpha = 0: every task alike."""
    return np.ones(len(sizes))


def sqrt(sizes: np.ndarray, epoch: int, epochs: int) -> np.ndarray:
    """alpha = 1/2."""
    return sizes**0.5


def proportional(sizes: np.ndarray, epoch: int, epochs: int) -> np.ndarray:
    """alpha = 1."""
    return sizes


def annealed(sizes: np.ndarray, epoch: int, epochs: int) -> np.ndarray:
    """alpha = 1 - 0.8 (e - 1) / (E - 1) in epoch e of E; 1 where E is 1."""
    return sizes ** (1 - 0.8 * (epoch - 1) / max(1, epochs - 1))


def loss(sizes: np.ndarray, epoch: int, epochs: int, losses: np.ndarray) -> np.ndarray:
    """p_i ~ L_i, whatever the sizes; in the first epoch, before a loss is known, every task alike."""
    return np.maximum(losses, 1e-12)


# Numbers of examples (T,), at most 1 as parts of the largest, epoch e of E -> weights (T,) of the tasks, N_i^alpha.
# One with an argument `losses` also gets L (T,), the `moving_average` of each task's training losses before the epoch.
SAMPLERS: dict[str, Callable[..., np.ndarray]] = {
    "round_robin": round_robin,
    "sqrt": sqrt,
    "proportional": proportional,
    "annealed": annealed,
    "loss": loss,
}
DECAY = 0.9  # of the moving average


def moving_average(before: float | None, loss: float) -> float:
    """L <- 0.9 L + 0.1 loss after each step of a task; the first loss is the first average."""
    return loss if before is None else DECAY * before + (1 - DECAY) * loss


def task_probabilities(
    sizes: Sequence[int], strategy: str, epoch: int = 1, epochs: int = 1, losses: Sequence[float] | None = None
) -> np.ndarray:
    """Probability of drawing each task, (T,), summing to 1: p_i ~ N_i^alpha, where N_i counts examples.

    strategy: a name in SAMPLERS; losses (T,): what some of these see, by default equal ones. Raises ValueError for
    another strategy, a size below 1 or an epoch outside 1..epochs.
    """
    sizes = np.asarray(sizes, dtype=np.float64)
    if sizes.ndim != 1 or not len(sizes) or not np.isfinite(sizes).all() or (sizes < 1).any():
        raise ValueError(f"sizes are the numbers of examples, at least 1 each; got {sizes.tolist()}")
    if strategy not in SAMPLERS:
        raise ValueError(f"unknown strategy {strategy!r}; known are {', '.join(SAMPLERS)}")
    if not 1 <= epoch <= epochs:
        raise ValueError(f"epoch {epoch} is not one of 1 to {epochs}")
    sampler = SAMPLERS[strategy]
    seen = {}
    if "losses" in inspect.signature(sampler).parameters:
        seen["losses"] = np.ones(len(sizes)) if losses is None else np.asarray(losses)
    weights = sampler(sizes / sizes.max(), epoch, epochs, **seen)
    return weights / weights.sum()


POOL = 64  # batches at most that are sorted by length together: enough for little padding
POOLS = 4  # of a pass at least: drawn again for every pass, they mix the batches of a small dataset


def train_batches(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """One pass over all rows in random order: row numbers of each batch, a function of seed and epoch alone.

    Rows are shuffled, cut into pools, sorted by length within a pool and cut into batches, and the batches are
    shuffled: every row comes once, and a batch has sequences of similar length. Batches differ by one row at most,
    so that every row weighs the same in the mean losses of a pass.
    """
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(lengths))
    n = math.ceil(len(order) / batch_size)
    starts = np.arange(n + 1) * len(order) // n
    pools = np.array_split(np.arange(n), min(n, max(POOLS, math.ceil(n / POOL))))
    batches = []
    for numbers in pools:
        cuts = starts[numbers[0] : numbers[-1] + 2]
        pool = order[cuts[0] : cuts[-1]]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batches += np.split(pool, cuts[1:-1] - cuts[0])
    return [batches[i] for i in random.permutation(n)]


def eval_batches(lengths: np.ndarray, token_budget: int) -> Iterator[np.ndarray]:
    """All rows once, longest first, in batches of at most `token_budget` padded tokens (but at least one row)."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        stop = start + max(1, token_budget // int(lengths[order[start]]))
        yield order[start:stop]
        start = stop


def padding_share(lengths: np.ndarray, batches: Iterable[np.ndarray]) -> float:
    """The share of padding in the tokens of these batches, each padded to its longest sequence."""
    batches = list(batches)
    padded = sum(int(lengths[batch].max()) * len(batch) for batch in batches)
    return 1 - sum(int(lengths[batch].sum()) for batch in batches) / padded
