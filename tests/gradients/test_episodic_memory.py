"""The episodic memory: every example equally likely, no example twice, a function of the seed."""

import math

import numpy as np
import torch

from mtbert.gradients.episodic_memory import EpisodicMemory


def batches(n: int, size: int, passes: int = 1) -> list[np.ndarray]:
    """The rows 0 to n - 1, in another order every pass, in batches."""
    orders = [np.random.default_rng(i).permutation(n) for i in range(passes)]
    return [order[start : start + size] for order in orders for start in range(0, n, size)]


def filled(size: int, parts: list[np.ndarray], seed: int = 0) -> EpisodicMemory:
    memory = EpisodicMemory(size, seed)
    for part in parts:
        memory.add("sst", part)
    return memory


def test_reservoir_keeps_every_example_equally_often():
    """2,000 memories of 5 from 40 examples: each count is binomial(2000, 1/8); so are they after a second pass."""
    for passes in (1, 2):
        counts = np.zeros(40)
        for seed in range(2000):
            counts[filled(5, batches(40, 16, passes), seed).rows("sst")] += 1
        expected, p = 2000 * 5 / 40, 5 / 40
        chi_square = ((counts - expected) ** 2 / (expected * (1 - p))).sum()
        assert counts.sum() == 2000 * 5
        assert chi_square < 39 + 4 * math.sqrt(2 * 39)


def test_reservoir_after_several_passes_is_that_of_the_first():
    one, three = (filled(10, batches(100, 8, passes)) for passes in (1, 3))
    assert np.array_equal(one.rows("sst"), three.rows("sst"))


def test_memory_has_no_duplicates_and_a_size():
    memory = EpisodicMemory(7, 1)
    for i, part in enumerate(batches(30, 4, passes=4)):
        memory.add("sst", np.concatenate([part, part]))
        rows = memory.rows("sst")
        assert len(set(rows.tolist())) == len(rows) == min(7, 4 * (i + 1))
        assert rows.dtype == np.int64 and rows.min() >= 0 and rows.max() < 30
    assert filled(7, [np.arange(0)]).tasks == ()


def test_memory_is_a_function_of_what_was_added_and_the_seed():
    torch.manual_seed(0), np.random.seed(0)
    parts = batches(60, 8, passes=2)
    first = filled(9, parts)
    np.random.random(5)
    assert np.array_equal(first.rows("sst"), filled(9, parts).rows("sst"))
    assert np.array_equal(first.rows("sst"), filled(9, [np.concatenate(parts)]).rows("sst"))
    other = EpisodicMemory(9, 0)  # another task between the calls changes nothing
    for part in parts:
        other.add("quora", part)
        other.add("sst", part)
    assert np.array_equal(first.rows("sst"), other.rows("sst"))
    assert other.tasks == ("quora", "sst")
    assert not np.array_equal(first.rows("sst"), filled(9, parts, seed=1).rows("sst"))
    assert not np.array_equal(other.rows("quora"), other.rows("sst"))


def test_memory_sample():
    memory = filled(20, batches(50, 8))
    sample = memory.sample("sst", 6, step=3)
    assert len(set(sample.tolist())) == 6 and set(sample) <= set(memory.rows("sst"))
    assert np.array_equal(sample, memory.sample("sst", 6, step=3))
    assert not np.array_equal(sample, memory.sample("sst", 6, step=4))
    assert sorted(memory.sample("sst", 99, step=0)) == sorted(memory.rows("sst"))
    memory.add("quora", np.arange(50))
    before = memory.rows("quora")
    memory.sample("quora", 2, step=0)[:] = -1
    memory.rows("quora")[:] = -1
    assert np.array_equal(memory.rows("quora"), before)
    assert not len(memory.sample("unknown", 3, step=0)) and not len(memory.rows("unknown"))
