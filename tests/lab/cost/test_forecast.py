"""A run is foreseen: the shapes of its steps, what is computed once, and the comparison with stored runs."""

import numpy as np
import pytest

from mtbert.config import RunConfig
from mtbert.data.tokens import tokenize
from mtbert.runtime import SLACK_MIB
from mtbert.training.task_data import load_corpus
from mtbert.training.task_order import training_steps
from mtbert_lab.cost.dry_run import DryRun, at_peak
from mtbert_lab.cost.forecast import LIBRARIES_MIB, Forecast, cost_key
from mtbert_lab.cost.lengths import Lengths, read_lengths, texts_of
from mtbert_lab.cost.time import Speed

THREE = ("sst", "quora", "sts")


@pytest.fixture
def config(tiny_config) -> RunConfig:
    return tiny_config.but(tasks=THREE, scheme="unified", epochs=2, keep="last")


def test_shapes_are_those_of_the_batches(config, course_data):
    lengths = read_lengths(config)
    corpus = load_corpus(config, course_data)
    tokens = {task: tokenize(task, table, config.encoder) for task, table in corpus.train.items()}
    steps = training_steps(config, {task: part.lengths for task, part in tokens.items()})
    batches = [{task: tuple(tokens[task].batch(rows).input_ids.shape) for task, rows in step.items()} for step in steps]
    assert Forecast(config, lengths).steps == batches and len(batches) == 10


SPEED = Speed(60.0, 20.0)  # a minute of training, a third of it to evaluate


def forecast(config, train=(10, 12), dev=(10,), copies=20) -> Forecast:
    def tile(part):
        return {task: np.tile(part, copies) for task in config.scored}

    return Forecast(config, Lengths(tile(train), tile(dev)))


def test_the_longest_batch_decides(config):
    lengths = Lengths({task: np.array([10] * 39 + [60]) for task in THREE}, {task: np.array([10]) for task in THREE})
    run = Forecast(config, lengths)
    assert max(step["sst"][1] for step in run.steps) == 60
    steps = {str(step): step for step in run.steps}.values()  # of other shapes
    dry = DryRun(config, run.memory)
    peaks = [at_peak(dry.step(step))["total"] for step in steps]
    assert run.peak()["total"] == pytest.approx(max(peaks), rel=1e-4)
    best = run.counts["trained_parameters"] * 4 / 2**20
    beside = LIBRARIES_MIB + 2 * SLACK_MIB
    assert run.process_mib() == pytest.approx(run.peak()["total"] + beside, rel=1e-3)
    keeps_best = Forecast(config.but(keep="best"), lengths)
    assert keeps_best.process_mib() == pytest.approx(run.peak()["total"] + best + beside, rel=1e-3)


def test_the_longest_batch_of_a_task_decides_where_tasks_have_passes_of_their_own(config):
    run = forecast(config.but(gradients="pcgrad"))
    run.steps = [{"sst": (16, 10), "quora": (16, 96), "sts": (16, 10)}, dict.fromkeys(THREE, (16, 56))]
    dry = DryRun(run.config, run.memory)
    peaks = [at_peak(dry.step(step))["total"] for step in run.steps]
    assert run.peak()["total"] == pytest.approx(max(peaks), rel=1e-4) and peaks[0] > 1.01 * peaks[1]


def test_time_is_that_of_the_padded_tokens(config):
    run = forecast(config)
    assert len(run.steps) == 10 and run.feature_tokens == run.pretraining_tokens == 0
    assert run.training_tokens == sum(B * T for step in run.steps for B, T in step.values())
    assert run.evaluation_tokens == 3 * (2 * 20 * 10 + 20 * 22)  # two points, and the training examples at the end
    cost = run.cost(SPEED, with_memory=False)
    assert cost.training == run.training_tokens and cost.evaluation == run.evaluation_tokens / 3
    assert cost.minutes == cost.training + cost.evaluation and cost.mib is None
    assert cost.teaching == 3 * 20 * 22 / 3
    once, twice = (forecast(config.but(pretrain=stage)) for stage in ("before", "both"))
    assert once.pretraining_tokens == 22 * 20 * (1 + 1 / 2 + 1 / 2)
    assert twice.cost(SPEED, with_memory=False).pretraining == 2 * once.pretraining_tokens


def test_steps_of_three_lengths_are_timed(config):
    run = forecast(config)
    run.steps = [{"sst": (8, T)} for T in (10, 40, 20, 30, 50)]
    assert [step["sst"][1] for step in run.sample().steps] == [50, 20, 40]


def test_runs_that_cost_the_same(config):
    longer = config.but(epochs=9)
    assert cost_key(config.but(seed=3, learning_rate=1e-3)) == cost_key(config) != cost_key(longer)
    assert texts_of(longer.but(seed=3)) == texts_of(config) != texts_of(config.but(max_length=8))


def test_the_points_of_the_learning_curve(config):
    """Each on curve_rows of the dev examples, and the scores at the end on all, and on the training examples."""
    some = forecast(config.but(curve_rows=5, evals_per_epoch=2))
    assert some.evaluation_tokens == 3 * (10 * (4 * 5 + 20) + 20 * 22)
    turns = forecast(config.but(scheme="in_turn"))  # scored after each task's pass
    assert turns.evaluation_tokens == 3 * (6 * 10 * 20 + 20 * 22)


def test_sentences_of_a_pair_that_are_encoded_apart_both_count(config):
    apart = forecast(config.but(pairs="sum"))
    assert apart.evaluation_tokens == (1 + 2 + 2) * (2 * 20 * 10 + 20 * 22)
    frozen = forecast(config.but(pairs="sum", plan="frozen"))
    assert frozen.feature_tokens == (1 + 2 + 2) * 20 * 22
    joint, alone = (forecast(config.but(tasks=("quora",), pairs=pairs)) for pairs in ("joint", "sum"))
    assert alone.training_tokens == 2 * joint.training_tokens


def test_frozen_layers_are_computed_once(config):
    once = 3 * 20 * 22
    half = forecast(config.but(plan="F1 S1"))
    assert half.known == THREE and half.feature_tokens == once / 2
    dev = 3 * 20 * 10
    assert half.evaluation_tokens == dev / 2 + (2 * dev + once) / 2  # the lower half reads dev once
    frozen = forecast(config.but(plan="frozen"))
    assert frozen.feature_tokens == once
    assert frozen.evaluation_tokens == dev
    few = forecast(config.but(plan="frozen", epochs=1, steps_per_epoch=1))
    assert few.feature_tokens == pytest.approx(once * config.batch_size / 40)  # of the examples that it sees
    once_each = forecast(config.but(plan="F1 S1", epochs=1, curve_rows=2))
    assert once_each.known == ()  # one pass: nothing to gain
    assert once_each.evaluation_tokens == 3 * (10 * (2 + 20) + 20 * 22)  # nor for dev, of which a point reads a tenth


def test_gem_draws_from_its_memory(config):
    run = forecast(config.but(gradients="gem", scheme="sampled"))
    assert run.memory == dict.fromkeys(THREE, 12)
