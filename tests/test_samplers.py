"""Samplers: the probability of each task."""

import pytest

from mtbert.samplers import SAMPLERS, task_probabilities

SIZES = (8544, 141505, 6040)  # training rows of SST, Quora and STS


@pytest.mark.parametrize(
    "strategy, alpha, epoch",
    [("round_robin", 0, 1), ("sqrt", 0.5, 3), ("proportional", 1, 2)]
    + [("annealed", alpha, epoch) for epoch, alpha in enumerate((1.0, 0.8, 0.6, 0.4, 0.2), start=1)],
)
def test_a_task_is_drawn_by_a_power_of_its_size(strategy, alpha, epoch):
    powers = [size**alpha for size in SIZES]
    expected = [power / sum(powers) for power in powers]
    assert task_probabilities(SIZES, strategy, epoch, 5) == pytest.approx(expected)


def test_annealing_over_one_epoch_is_proportional():
    assert task_probabilities(SIZES, "annealed") == pytest.approx(task_probabilities(SIZES, "proportional"))


@pytest.mark.parametrize(
    "sizes, strategy, epoch, epochs, match",
    [
        ((), "sqrt", 1, 1, "at least 1 each"),
        ((3, 0), "sqrt", 1, 1, "at least 1 each"),
        ((3, float("nan")), "sqrt", 1, 1, "at least 1 each"),
        ((3, 4), "square", 1, 1, "unknown strategy 'square'; known are round_robin, sqrt"),
        ((3, 4), "annealed", 0, 5, "epoch 0 is not one of 1 to 5"),
        ((3, 4), "annealed", 6, 5, "epoch 6 is not one of 1 to 5"),
    ],
)
def test_sizes_strategies_and_epochs_that_do_not_exist_are_named(sizes, strategy, epoch, epochs, match):
    with pytest.raises(ValueError, match=match):
        task_probabilities(sizes, strategy, epoch, epochs)


def test_a_sampler_may_return_a_list(monkeypatch):
    monkeypatch.setitem(SAMPLERS, "first", lambda sizes, epoch, epochs: [3.0, 1.0])
    assert task_probabilities([10, 20], "first").tolist() == [0.75, 0.25]


@pytest.mark.parametrize("weights", [[1.0, -0.3], [0.0, 0.0], [1.0, float("nan")], [1.0, 1.0, 1.0], 1.0])
def test_weights_of_a_sampler_that_are_none_are_named_with_their_epoch(monkeypatch, weights):
    monkeypatch.setitem(SAMPLERS, "odd", lambda sizes, epoch, epochs: weights)
    with pytest.raises(ValueError, match=r"sampling: odd gives .* in epoch 2; 2 weights of at least 0"):
        task_probabilities([10, 20], "odd", 2, 3)
