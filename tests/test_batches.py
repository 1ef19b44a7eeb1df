"""Batches: every row once, little padding, all lengths mixed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtbert.batches import eval_batches, padding_share, train_batches


@given(st.integers(1, 400), st.integers(1, 9), st.integers(0, 5), st.integers(0, 5))
def test_an_epoch_has_every_row_once(rows, batch_size, seed, epoch):
    lengths = np.random.default_rng(rows).integers(3, 60, size=rows)
    batches = train_batches(lengths, batch_size, seed, epoch)
    assert sorted(np.concatenate(batches)) == list(range(rows))
    sizes = [len(batch) for batch in batches]
    assert len(sizes) == -(-rows // batch_size) and max(sizes) <= batch_size
    assert max(sizes) - min(sizes) <= 1, "no row weighs more than another in the mean losses of a pass"


def test_the_order_is_a_function_of_seed_and_epoch():
    lengths = np.arange(200) % 17
    order = {key: np.concatenate(train_batches(lengths, 8, *key)).tolist() for key in [(1, 0), (1, 1), (2, 0), (0, 1)]}
    assert np.concatenate(train_batches(lengths, 8, 1, 0)).tolist() == order[1, 0]
    assert len({tuple(rows) for rows in order.values()}) == 4


@pytest.mark.parametrize("rows, batch_size", [(1707, 32), (1707, 16), (8544, 32)])
def test_batches_are_mixed_again_in_every_pass(rows, batch_size):
    """Of two rows of one batch few meet again in the next pass, though all lengths differ, as in long reviews."""
    lengths = np.random.default_rng(0).permutation(rows) + 10
    place = np.empty(rows, dtype=int)
    for i, batch in enumerate(train_batches(lengths, batch_size, seed=1, epoch=1)):
        place[batch] = i
    same = [(place[batch][:, None] == place[batch]).sum() - len(batch) for batch in
            train_batches(lengths, batch_size, seed=1, epoch=0)]  # fmt: skip
    assert sum(same) / (rows * (batch_size - 1)) < 0.2
    shortest = [min(train_batches(lengths, batch_size, 1, epoch), key=len) for epoch in range(4)]
    assert len({frozenset(batch.tolist()) for batch in shortest}) == 4


def test_padding_share():
    lengths = np.array([4, 2, 3, 3])
    assert padding_share(lengths, [np.array([0, 1]), np.array([2, 3])]) == pytest.approx(2 / 14)
    assert padding_share(lengths, [np.array([2, 3])]) == 0


def test_little_padding_and_batches_of_all_lengths():
    random_ = np.random.default_rng(0)
    lengths = np.clip(np.exp(random_.normal(3, 0.5, size=8000)), 5, 120).astype(int)  # as sentences of reviews
    batches = train_batches(lengths, 32, seed=1, epoch=0)
    unsorted = np.array_split(random_.permutation(8000), 250)
    assert padding_share(lengths, unsorted) > 0.4
    assert padding_share(lengths, batches) < 0.05
    means = np.array([lengths[batch].mean() for batch in batches])
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.2, "an epoch must not run from short to long"


@given(st.lists(st.integers(2, 50), min_size=1, max_size=80), st.integers(1, 200))
def test_evaluation_covers_all_rows_within_the_budget(lengths, budget):
    lengths = np.array(lengths)
    batches = list(eval_batches(lengths, budget))
    assert sorted(np.concatenate(batches)) == list(range(len(lengths)))
    assert all(len(batch) == 1 or len(batch) * lengths[batch].max() <= budget for batch in batches)
    if budget >= len(lengths) * lengths.max():
        assert len(batches) == 1
