"""Which task a step trains, and on which rows: draws by the samplers' probabilities, and passes that drop nothing."""

from itertools import islice

import numpy as np
import pytest

from mtbert.config import RunConfig
from mtbert.samplers import task_probabilities
from mtbert.training.task_order import expected_passes, training_steps

LENGTHS = {"sst": np.arange(25) % 7 + 3, "quora": np.arange(91) % 11 + 4, "sts": np.arange(8) % 3 + 5}


def config(**fields) -> RunConfig:
    return RunConfig(tasks=("sst", "quora", "sts"), batch_size=4, **fields)


@pytest.mark.parametrize("sampling", ["round_robin", "sqrt", "proportional", "annealed"])
def test_draws_follow_the_probabilities(sampling):
    """10,000 steps, each task within 3 standard deviations of its share, in every epoch."""
    lengths = {task: np.full(size, 5) for task, size in zip(("sst", "quora", "sts"), (200, 900, 60), strict=True)}
    epochs, steps = 4, 2_500
    run = training_steps(config(sampling=sampling, epochs=epochs, steps_per_epoch=steps), lengths)
    for epoch in range(1, epochs + 1):
        drawn = [next(iter(step)) for step in islice(run, steps)]
        p = task_probabilities((200, 900, 60), sampling, epoch, epochs)
        for task, share in zip(lengths, p, strict=True):
            assert abs(drawn.count(task) - steps * share) <= 3 * np.sqrt(steps * share * (1 - share)) + 1
    assert next(run, None) is None


def test_round_robin_takes_turns():
    run = training_steps(config(sampling="round_robin", epochs=2, steps_per_epoch=5), LENGTHS)
    drawn = [next(iter(step)) for step in run]
    assert drawn == ["sst", "quora", "sts"] * 3 + ["sst"], "also over the end of an epoch"


@pytest.mark.parametrize("fields", [{"scheme": "unified"}, {"scheme": "in_turn"}, {"sampling": "sqrt"}, {}])
def test_every_pass_holds_every_example_once(fields):
    seen = {task: [] for task in LENGTHS}
    for step in training_steps(config(epochs=8, seed=3, **fields), LENGTHS):
        for task, rows in step.items():
            seen[task] += rows.tolist()
    for task, rows in seen.items():
        size = len(LENGTHS[task])
        passes = [rows[i : i + size] for i in range(0, len(rows), size)]
        assert all(sorted(one) == list(range(size)) for one in passes[:-1])
        assert len(set(passes[-1])) == len(passes[-1])
        if len(passes) > 2:
            assert passes[0] != passes[1], "passes are shuffled again"


def test_in_turn_trains_one_task_after_the_other():
    run = [next(iter(step)) for step in training_steps(config(scheme="in_turn", epochs=2), LENGTHS)]
    assert run == 2 * (["sst"] * 7 + ["quora"] * 23 + ["sts"] * 2)


def test_a_unified_step_has_a_batch_of_every_task():
    run = list(training_steps(config(scheme="unified", epochs=2), LENGTHS))
    assert len(run) == 2 * 11, "as many examples as the datasets hold: 32 batches of 4 make 11 steps of 3"
    assert all(tuple(step) == tuple(LENGTHS) for step in run)
    assert all(1 <= len(rows) <= 4 for step in run for rows in step.values())


def test_the_sequence_is_a_function_of_the_seed():
    def run(seed: int) -> list:
        steps = training_steps(config(epochs=3, seed=seed, sampling="sqrt"), LENGTHS)
        return [(task, rows.tolist()) for step in steps for task, rows in step.items()]

    assert run(1) == run(1) != run(2)


def test_one_task_is_the_same_in_every_scheme():
    one = RunConfig(tasks=("sst",), batch_size=4, epochs=3)
    sampled, in_turn, unified = (
        [step["sst"].tolist() for step in training_steps(one.but(scheme=scheme), {"sst": LENGTHS["sst"]})]
        for scheme in ("sampled", "in_turn", "unified")
    )
    assert sampled == in_turn == unified and len(sampled) == 3 * 7


@pytest.mark.parametrize("scheme", ["sampled", "in_turn", "unified"])
def test_one_task_has_the_steps_that_are_asked_for(scheme):
    config = RunConfig(tasks=("sst",), batch_size=4, epochs=2, steps_per_epoch=3, scheme=scheme)
    assert len(list(training_steps(config, {"sst": np.full(40, 5)}))) == 6
    assert expected_passes(config, [40]) == pytest.approx([6 * 4 / 40])
    assert expected_passes(config, [39]) == expected_passes(config, [40]), "ten batches a pass, one of three rows"


@pytest.mark.parametrize("scheme", ["sampled", "in_turn", "unified"])
def test_batch_sizes_by_task(scheme):
    sizes = {"sts": 2, "sst": 8, "quora": 16}
    config = RunConfig(tasks=("sst", "quora", "sts"), batch_size=sizes, scheme=scheme, epochs=1)
    lengths = {"sst": np.full(64, 5), "quora": np.full(160, 5), "sts": np.full(32, 5)}
    steps = list(training_steps(config, lengths))
    assert len(steps) == {"unified": 12}.get(scheme, 8 + 10 + 16)
    assert all(len(part) == sizes[task] for step in steps for task, part in step.items())
    assert config.digest == config.but(batch_size=dict(reversed(sizes.items()))).digest


@pytest.mark.parametrize(
    "fields, passes",
    [
        (dict(scheme="unified", epochs=2, steps_per_epoch=10), (2 * 10 * 8 / 40, 2 * 10 * 8 / 120)),
        (dict(scheme="in_turn", epochs=3), (3, 3)),
        (dict(scheme="sampled", sampling="proportional", epochs=3), (3, 3)),
        (dict(scheme="sampled", sampling="round_robin", epochs=1), (80 / 40, 80 / 120)),
    ],
)
def test_expected_passes(fields, passes):
    config = RunConfig(tasks=["sst", "sts"], batch_size=8, **fields)
    assert expected_passes(config, [40, 120]) == pytest.approx(passes)
