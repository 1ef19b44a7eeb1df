"""A dry run holds what the real step holds."""

import pandas as pd
import pytest
import torch

from mtbert.config import RunConfig
from mtbert.multitask import MultitaskBert, parameter_counts
from mtbert.runtime import MIB
from mtbert_lab.cost.dry_run import CONFLICT, PARTS, DryRun, at_peak, step_timeline

THREE = ("sst", "quora", "sts")
SHAPES = {"sst": (4, 10), "quora": (4, 20), "sts": (4, 15)}


def make(tiny_encoder, **fields) -> RunConfig:
    return RunConfig.from_params(
        {"tasks": THREE, "scheme": "unified", "encoder": tiny_encoder, "max_length": 128, **fields}
    )


def dry(config: RunConfig, **options) -> DryRun:
    return DryRun(config, {task: T for task, (_, T) in SHAPES.items()}, **options)


def test_the_course_of_a_step(tiny_encoder):
    config = make(tiny_encoder)
    table, counts = step_timeline(config, SHAPES), parameter_counts(MultitaskBert(config))
    assert table["phase"].drop_duplicates().tolist() == ["forward", "backward", "update"]
    assert table["total"].tolist() == pytest.approx(table[PARTS].sum(axis=1).tolist())
    assert (table["weights"] * MIB).round().unique().tolist() == [counts["parameters"] * 4]
    assert (table["moments"] * MIB).round().unique() == pytest.approx(8 * counts["trained_parameters"], rel=0.001)
    pooler = 32 * 33  # mean pooling: its parameters never get a gradient
    gradients = table[table["phase"] == "update"]["gradients"].iloc[0]
    assert gradients * MIB == pytest.approx(4 * (counts["trained_parameters"] - pooler), rel=0.001)
    assert table[table["phase"] == "forward"]["activations"].is_monotonic_increasing
    assert table["activations"].iloc[-1] == 0
    assert at_peak(table)["total"] == table["total"].max()


def test_steps_repeat(tiny_encoder):
    """Nothing of a step stays behind, and the caller's torch and numpy are as before."""
    run, numpy, state = dry(make(tiny_encoder)), torch.Tensor.numpy, torch.get_rng_state()
    first, second = (at_peak(run.step(SHAPES))["total"] for _ in range(2))
    assert first == pytest.approx(second, rel=1e-4) and torch.Tensor.numpy is numpy
    assert torch.ones(2).tolist() == [1.0, 1.0] and torch.equal(torch.get_rng_state(), state)


def test_parts_of_a_batch_need_less(tiny_encoder):
    config, shapes = make(tiny_encoder), dict.fromkeys(THREE, (8, 60))
    whole, parts = dry(config).step(shapes), dry(config.but(accumulation=4)).step(shapes)
    assert parts["activations"].max() == pytest.approx(whole["activations"].max() / 4, rel=0.02)
    later = parts[parts["phase"] == "forward"]["gradients"]
    assert later.iloc[0] == 0 and later.iloc[-1] == whole["gradients"].max()


def test_what_lies_below_known_states_is_not_computed(tiny_encoder):
    config, shapes = make(tiny_encoder, plan="F1 S1"), dict.fromkeys(THREE, (32, 48))
    whole, known = (len(dry(config, known=tasks).step(shapes)) for tasks in ((), THREE))
    assert known < whole


@pytest.mark.parametrize("gradients, rows", [("pcgrad", 4), ("gem", 8)])
def test_flat_gradients(tiny_encoder, gradients, rows):
    """PCGrad: T and what they become; GEM has K memories', the sum and what it is projected to beside them."""
    run = dry(make(tiny_encoder, gradients=gradients))
    shared = 4 * sum(p.numel() for p in run.model.shared_parameters().values())
    assert CONFLICT < 0
    assert run.step(SHAPES)["task gradients"].max() * MIB == pytest.approx(rows * shared, abs=6 * 8 * 2**16)


@pytest.fixture(scope="module")
def plain_step(tiny_encoder) -> pd.DataFrame:
    return dry(make(tiny_encoder)).step(SHAPES)


EMBEDDINGS = (30522 + 512 + 2 + 2) * 32  # words, positions, types and a norm
LAYERS = 2 * (4 * (32 * 32 + 32) + 2 * 32 * 48 + 48 + 32 + 4 * 32)


@pytest.mark.parametrize(
    "fields, part, numbers",
    [
        ({"weighting": "uncertainty"}, "weights", 3),
        ({"cosine_every": 1}, "task gradients", 3 * (EMBEDDINGS + LAYERS)),
        ({"pos_features": True}, "weights", 12 * (5 + 2 + 2)),  # tags of a sentence; heads of 5, 1 and 1 logits
        ({"feeds": ("sst>quora",), "upstream": "slow"}, "moments", 2 * 5 + 3 * (5 * 32 + 5)),  # of offsets, too
        ({"pairs": "concat", "adapter": "houlsby", "adapter_size": 6}, "weights", 2 * 32 + 12 * (2 * 32 * 6 + 32 + 6)),
        ({"pooling": "pooler", "plan": "emb:F S2"}, "moments", -2 * EMBEDDINGS),
    ],
    ids=str,
)
def test_what_a_step_may_do_has_its_part_of_the_memory(tiny_encoder, plain_step, fields, part, numbers):
    other = dry(make(tiny_encoder, **fields)).step(SHAPES)
    assert (other[part].max() - plain_step[part].max()) * MIB == pytest.approx(4 * numbers)


def test_soft_sharing_computes_with_the_copies_side_by_side(tiny_encoder, plain_step):
    other = dry(make(tiny_encoder, plan="3-bert", soft_sharing="trace")).step(SHAPES)
    assert (other["temporary"].max() - plain_step["temporary"].max()) * MIB > 3 * 4 * 30522 * 32


def test_clipping_computes_in_the_update_and_holds_nothing(tiny_encoder, plain_step):
    other = dry(make(tiny_encoder, max_grad_norm=1.0)).step(SHAPES)
    more = other["phase"].value_counts() - plain_step["phase"].value_counts()
    assert more["update"] > 0 == more["forward"] == more["backward"]
    assert at_peak(other)["total"] == pytest.approx(at_peak(plain_step)["total"], rel=1e-4)
