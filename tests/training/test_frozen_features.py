"""Runs over a frozen prefix give the same numbers with and without what is kept on disk, and read it when they can."""

import time

import numpy as np
import pandas as pd
import pytest
import torch

from mtbert.data import mapped_array
from mtbert.multitask.model import MultitaskBert
from mtbert.paths import cache_dir
from mtbert.sharing.shared_encoder import SharedEncoder
from mtbert.training import frozen_features
from mtbert.training import task_data as module
from mtbert.training.step import Trainer
from mtbert.training.task_data import load_corpus, predict_table, prepare_task

TIMES = ("feature_seconds", "feature_cpu_seconds")
# Of runs of two passes: one keeps the embeddings of its texts, the other the states behind frozen embeddings and a
# frozen first layer, with dropout on in the second.
FEATURES = dict(tasks=("sts",), frozen=True)
STATES = dict(tasks=("sst", "sts"), plan="F1 I1", scheme="unified", steps_per_epoch=5, pairs="concat")


@pytest.fixture
def config(tiny_config):
    return tiny_config.but(**STATES)


def files() -> list:
    return sorted((cache_dir() / "frozen").glob("*.npy"))


def close(first: pd.DataFrame, second: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(first, second, check_exact=False, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pairs", ["joint", "concat"])
def test_a_run_is_the_same_with_and_without_kept_states(run, config, monkeypatch, pairs):
    config = config.but(pairs=pairs)
    kept = run(config)
    assert len(files()) == 4  # train and dev of two tasks
    monkeypatch.setattr(module, "KEPT_FROM", np.inf)
    fresh = run(config)
    close(kept.predictions, fresh.predictions)
    close(kept.curve.drop(columns=["seconds", "cpu_seconds"]), fresh.curve.drop(columns=["seconds", "cpu_seconds"]))


def test_another_run_reads_what_the_first_one_wrote(run, config, monkeypatch):
    first = run(config)
    written = {path.name: path.stat().st_ino for path in files()}
    monkeypatch.setattr(SharedEncoder, "prefix_states", lambda *_: pytest.fail("the frozen layers ran again"))
    again = run(config)
    assert {path.name: path.stat().st_ino for path in files()} == written
    pd.testing.assert_frame_equal(first.predictions, again.predictions, check_exact=True)
    run(config.but(plan="F1 S1", seed=2))  # the same frozen layers
    assert len(files()) == 4


@pytest.mark.parametrize(
    "fields, change",
    [
        (FEATURES, dict(pooling="cls")),
        (FEATURES, dict(precision="bf16")),
        (FEATURES, dict(max_length=8)),
        (FEATURES, dict(pairs="concat")),
        (FEATURES, dict(weights="random")),
        (STATES, dict(plan="F1 S1", max_length=8)),
        (STATES, dict(precision="bf16")),
        (STATES, dict(weights="random")),
    ],
    ids=str,
)
def test_what_changes_the_numbers_changes_the_files(run, tiny_config, fields, change):
    config = tiny_config.but(**fields)
    run(config)
    before = set(files())
    run(config.but(**change))
    assert len(before) == 2 * len(config.tasks)  # train and dev
    assert len(set(files()) - before) == len(before)


def test_one_pass_keeps_nothing(run, config):
    """Nor do points of the curve that read few rows of dev."""
    short = config.but(epochs=1, keep="last")
    run(short)
    run(short.but(evals_per_epoch=3, curve_rows=2))
    assert not files()


def test_features_of_a_frozen_encoder_are_read_by_the_next_seed(run, tiny_config, monkeypatch):
    run(tiny_config.but(frozen=True))
    assert len(files()) == 2
    monkeypatch.setattr(MultitaskBert, "embed", lambda *_: pytest.fail("the encoder ran again"))
    run(tiny_config.but(frozen=True, seed=2))


def test_predictions_leave_nothing_on_disk(tiny_config, course_folder):
    """Whatever is kept, the predictions are the same."""
    torch.manual_seed(0)
    model = MultitaskBert(tiny_config.but(frozen=True))
    table = load_corpus(tiny_config, course_folder).dev["sst"]
    predicted = predict_table(model, "sst", table, "dev", "cpu")
    assert not files()
    kept = prepare_task(model, "sst", table, torch.device("cpu"), passes=1).predictions(model, "dev")
    pd.testing.assert_frame_equal(predicted, kept, check_exact=True)
    assert len(files()) == 1


@pytest.mark.parametrize("plan", ["frozen", "F1 S1"])
def test_features_are_made_before_the_clock_starts_and_every_run_tells_their_seconds(
    run, tiny_config, monkeypatch, plan
):
    step, made = Trainer.step, []
    monkeypatch.setattr(Trainer, "step", lambda *arguments: made.append(len(files())) or step(*arguments))

    def slowly(path, shape, fill):
        return mapped_array(path, shape, lambda array: time.sleep(0.2) or fill(array))

    monkeypatch.setattr(frozen_features, "mapped_array", slowly)
    first = run(tiny_config.but(plan=plan)).cost
    assert made[0] == 2  # train and dev
    assert 0.2 <= first["feature_seconds"] > first["feature_cpu_seconds"] >= 0
    second = run(tiny_config.but(plan=plan, seed=2)).cost  # reads what the first one made
    assert {name: second[name] for name in TIMES} == {name: first[name] for name in TIMES}
    assert [run(tiny_config.but(plan="S2")).cost[name] for name in TIMES] == [0, 0]
