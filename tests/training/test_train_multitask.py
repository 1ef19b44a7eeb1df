"""The loop on several tasks: exact resume, one score, the records of a run."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch

from mtbert.config import RunConfig
from mtbert.data.corpus import Corpus
from mtbert.data.tokens import tokenize
from mtbert.metrics import accuracy, pearson
from mtbert.multitask.model import MultitaskBert
from mtbert.training import distillation
from mtbert.training import loop as module
from mtbert.training import step as trainer
from mtbert.training.checkpoint import TrainingError
from mtbert.training.task_data import load_corpus
from mtbert.training.task_order import training_steps

THREE = ("sst", "quora", "sts")
CHAIN = ("sst>quora", "sst>sts", "quora>sts")
MEMORY = dict(memory_size=12, memory_batch=6)
RUNS = {
    "pcgrad with cosines": dict(scheme="unified", gradients="pcgrad", cosine_every=2, plan="S1 I1"),
    "gem, annealed": dict(gradients="gem", sampling="annealed", epochs=3, steps_per_epoch=4, **MEMORY),
    "in turn": dict(scheme="in_turn", adapter="lhuc", batch_size=16),
    "loss ratio": dict(scheme="unified", weighting="loss_ratio"),
    "uncertainty": dict(scheme="unified", weighting="uncertainty", accumulation=2),
    "progressive heads": dict(feeds=CHAIN, upstream="slow", steps_per_epoch=6, sampling="sqrt"),
    "best of each task": dict(scheme="unified", plan="3-bert", keep="best_per_task"),
    "average of weights": dict(scheme="unified", ema=0.7),
}


@pytest.fixture
def config(tiny_config) -> RunConfig:
    return tiny_config.but(tasks=THREE)


@pytest.mark.parametrize("name", RUNS)
def test_an_interrupted_run_goes_on_bit_for_bit(config, tmp_path, name, assert_goes_on_bit_for_bit):
    config = config.but(**RUNS[name])
    whole = assert_goes_on_bit_for_bit(config, 7, tmp_path / "checkpoint.pt")
    assert (len(whole.cosines) > 0) == (config.cosine_every is not None)


@pytest.mark.parametrize("gradients", ["sum", "pcgrad"])
def test_recording_does_not_change_a_run(run, config, gradients, assert_same_bits):
    """With dropout, whose draws are those of the step."""
    config = config.but(scheme="unified", gradients=gradients, plan="S1 I1")
    plain, recorded = run(config), run(config.but(cosine_every=2))
    assert len(recorded.cosines) and not len(plain.cosines)
    recorded.cosines = plain.cosines
    assert_same_bits(plain, recorded)


def test_a_slow_upstream_head_moves_at_its_rate(run, config):
    """Under Adam, in passes of the fed task alone: as far as a free one, times the rate."""
    config = config.but(tasks=("quora",), score_tasks=("sst",), feeds=("sst>quora",), schedule="none", keep="last")
    moved = {}
    for upstream in ("frozen", "slow", "free"):
        trained = run(config.but(upstream=upstream, learning_rate=1e-4)).model
        torch.manual_seed(config.seed)
        start = MultitaskBert(config).heads.by_task["sst"].state_dict()
        after = trained.heads.by_task["sst"].state_dict()
        moved[upstream] = sum((after[name] - start[name]).abs().sum().item() for name in start)
    assert moved["frozen"] == 0
    assert moved["slow"] == pytest.approx(0.1 * moved["free"], rel=0.1)


def test_the_best_model_of_each_task_is_kept(run, config, monkeypatch):
    """With nothing shared: sst of the first point, quora of the second, each as it was there."""
    config = config.but(tasks=("sst", "quora"), scheme="unified", plan="3-bert", schedule="none")
    scores = itertools.chain([0.9, 0.1, 0.2, 0.8], itertools.repeat(0.5))
    monkeypatch.setattr(module, "metrics_of", lambda task: {"accuracy": lambda p, y: next(scores)})
    kept = run(config.but(keep="best_per_task")).model
    first, second = (run(config.but(keep="last", epochs=epochs)).model.state_dict() for epochs in (1, 2))
    for task, expected, other in (("sst", first, second), ("quora", second, first)):
        own = {name: tensor for name, tensor in kept.state_dict().items() if name in kept.own_weights(task)}
        assert {name.split(".")[0] for name in own} == {"encoder", "heads"}
        assert all(torch.equal(tensor, expected[name]) for name, tensor in own.items())
        assert any(not torch.equal(tensor, other[name]) for name, tensor in own.items())


@pytest.mark.parametrize("scheme", ["unified", "in_turn"])
@pytest.mark.parametrize("gradients", ["gem", "agem"])
def test_constraints_that_a_step_breaks_are_counted(run, config, scheme, gradients):
    cost = run(config.but(scheme=scheme, gradients=gradients, learning_rate=5e-3, **MEMORY)).cost
    steps, checked = (cost[f"constraints_{name}"] for name in ("steps", "checked"))
    expected = {"unified": (9, 3 * 9), "in_turn": (25, 5 * 1 + 5 * 2 + 15 * 2)}  # steps behind the first, constraints
    assert (steps, checked) == expected[scheme]
    assert 0 < cost["constraints_projected"] <= steps and 0 < cost["constraints_broken"] <= checked


def test_plain_steps_break_no_constraint_of_gem(run, config, monkeypatch):
    """Without Adam's moments the update is the projected gradient, and no constraint is broken."""
    monkeypatch.setattr(trainer, "AdamW", lambda groups, lr: torch.optim.SGD(groups, lr=1e-3))
    cost = run(config.but(scheme="unified", gradients="gem", **MEMORY)).cost
    assert cost["constraints_projected"] > 0 and cost["constraints_broken"] == 0


@pytest.mark.usefixtures("saved_each_step")
def test_pretraining_before_and_after(run, config, tmp_path):
    config = config.but(tasks=("sst",), epochs=1, pretrain="both", max_length=16)
    path = tmp_path / "checkpoint.pt"
    both = run(config, checkpoint=path)
    assert both.cost["pretrain_before_tokens"] == both.cost["pretrain_after_tokens"] > 0
    names = ("checkpoint", "checkpoint_pretraining_before", "checkpoint_pretraining_after")
    assert {file.stem for file in tmp_path.iterdir()} == {*names}
    before = run(config.but(pretrain="before"))
    pd.testing.assert_frame_equal(both.curve.drop(columns=["seconds", "cpu_seconds"]),
                                  before.curve.drop(columns=["seconds", "cpu_seconds"]))  # fmt: skip
    name = "encoder.layers.0.0.feed_forward_in.weight"
    assert not torch.equal(both.model.state_dict()[name], before.model.state_dict()[name])


def test_points_of_the_curve(run, config):
    trained = run(config.but(scheme="unified", evals_per_epoch=2, learning_rate=5e-3))
    by_task = [f"{name}_{task}" for name in ("dev", "train_loss") for task in THREE]
    columns = ["step", "epoch", "tokens", "seconds", "cpu_seconds", "train_loss", "dev_score", *by_task]
    assert list(trained.curve.columns) == columns
    assert trained.curve["step"].tolist() == [2, 5, 7, 10]
    assert trained.curve["epoch"].tolist() == [0.4, 1.0, 1.4, 2.0]
    best = trained.curve.loc[trained.curve["dev_score"].idxmax()]
    assert best["step"] == trained.cost["best_step"]
    dev = {task: part for task, part in trained.predictions.groupby("task", sort=False)}
    assert list(dev) == list(THREE)
    scores = {}
    for task, metric in (("sst", accuracy), ("quora", accuracy), ("sts", pearson)):
        scores[task] = float(metric(dev[task]["predicted"].to_numpy(), dev[task]["label"].to_numpy()))
        assert best[f"dev_{task}"] == pytest.approx(scores[task]), "the kept model scores what the curve says"
    assert best["dev_score"] == pytest.approx((scores["sst"] + scores["quora"] + (1 + scores["sts"]) / 2) / 3)


def test_the_train_loss_is_the_mean_over_tasks(run, config, monkeypatch):
    losses = []
    real = trainer.Trainer.compute_gradients
    monkeypatch.setattr(trainer.Trainer, "compute_gradients", lambda *args: losses.append(real(*args)) or losses[-1])
    curve = run(config.but(scheme="unified", weighting="uncertainty")).curve
    means = [np.mean(list(step.values())) for step in losses]
    assert curve["train_loss"].tolist() == pytest.approx([np.mean(means[:5]), np.mean(means[5:])])


def test_the_model_of_the_best_overall_score_is_kept(run, config, monkeypatch):
    """The best point of all tasks together is the best of none of them."""
    scores = {"sst": [0.2, 0.6, 0.9], "quora": [0.9, 0.8, 0.1], "sts": [-0.5, 0.4, 0.5]}
    left = {task: iter(values) for task, values in scores.items()}
    monkeypatch.setattr(module, "metrics_of", lambda task: {"score": lambda p, y: next(left[task.name])})
    trained = run(config.but(epochs=3, steps_per_epoch=2))
    expected = [np.mean([a, b, (1 + c) / 2]) for a, b, c in zip(*scores.values(), strict=True)]
    assert trained.curve["dev_score"].tolist() == pytest.approx(expected)
    assert trained.cost["best_step"] == 4


def test_score_tasks_select_no_model(run, config):
    trained = run(config.but(tasks=("sst", "quora"), score_tasks=("sts",), epochs=1, steps_per_epoch=2))
    assert [name for name in trained.curve.columns if name.startswith("dev_")] == ["dev_score", "dev_sst", "dev_quora"]
    assert trained.predictions["task"].unique().tolist() == list(THREE)


@pytest.mark.parametrize(
    "fields",
    [
        dict(scheme="unified"),
        dict(scheme="unified", gradients="pcgrad", cosine_every=1),
        dict(scheme="unified", gradients="gem"),
        dict(sampling="round_robin"),
        dict(sampling="round_robin", gradients="agem"),
    ],
    ids=str,
)
def test_a_loss_that_is_not_finite_names_its_task_step_and_rows(run, config, course_folder, monkeypatch, fields):
    """In the second epoch, and training stops at once."""
    real, calls = distillation.task_loss, []

    def loss(task, *args):
        value = real(task, *args)
        if task.name == "quora" and not memories:
            calls.append(1)
        return value * (math.nan if task.name == "quora" and len(calls) == 7 and not memories else 1)

    memories, real_memories = [], trainer.Trainer._extra_gradients

    def of_memory(self, *args):
        memories.append(1)
        result = real_memories(self, *args)
        memories.clear()
        return result

    monkeypatch.setattr(distillation, "task_loss", loss)
    monkeypatch.setattr(trainer.Trainer, "_extra_gradients", of_memory)
    config = config.but(**fields)
    with pytest.raises(TrainingError) as error:
        run(config)
    train = load_corpus(config, course_folder).train
    lengths = {task: tokenize(task, table, config.encoder).lengths for task, table in train.items()}
    steps = [(i, rows["quora"]) for i, rows in enumerate(training_steps(config, lengths), 1) if "quora" in rows]
    step, rows = steps[6]  # the second of its batches in the second epoch
    ids = ", ".join(train["quora"]["id"].iloc[rows[:4]])
    assert f"the loss of quora is nan at step {step} (epoch 2, batch of 8 rows, ids {ids}, ...)" in str(error.value)
    assert "Lower learning_rate" in str(error.value) and len(calls) == 7


def test_what_is_said_of_a_loss_that_is_not_finite_fits_the_call(config, course_folder, monkeypatch, tmp_path):
    """Ids of a corpus made by hand may be numbers, and without a checkpoint none is kept."""
    corpus = load_corpus(config, course_folder)
    alone = Corpus(train={"sst": corpus.train["sst"]}, dev={"sst": corpus.dev["sst"]})
    alone.train["sst"]["id"] = range(len(alone.train["sst"]))
    monkeypatch.setattr(distillation, "task_loss", lambda *args: torch.tensor(math.nan, requires_grad=True))
    with pytest.raises(TrainingError, match=r"ids \d+, \d+, .* or set max_grad_norm\.$"):
        module.train(config.but(tasks=("sst",)), alone, "cpu", progress=False)
    path = tmp_path / "run.pt"
    with pytest.raises(TrainingError, match=r"or set max_grad_norm\.$"):
        module.train(config.but(tasks=("sst",)), alone, "cpu", path, progress=False)
    values = iter([1.0])
    monkeypatch.setattr(
        distillation, "task_loss", lambda *args: torch.tensor(next(values, math.nan), requires_grad=True)
    )
    monkeypatch.setenv("MTBERT_CHECKPOINT_SECONDS", "0")
    with pytest.raises(TrainingError, match=r"step 2 .*; the checkpoint before this step is kept"):
        module.train(config.but(tasks=("sst",)), alone, "cpu", path, progress=False)


def test_a_gradient_that_is_not_finite_ends_the_run(run, config, monkeypatch):
    """With the sum the next loss is not finite; a method that looks at gradients says it at once."""
    backward = trainer.Trainer._backward

    def broken(self, number, rows, length):
        losses = backward(self, number, rows, length)
        if number == 3:
            next(iter(self.shared.parameters.values())).grad.fill_(math.inf)
        return losses

    monkeypatch.setattr(trainer.Trainer, "_backward", broken)
    with pytest.raises(TrainingError, match=r"step 3: gradients must be finite.*: sst\b.*max_grad_norm may help"):
        run(config.but(scheme="unified", gradients="pcgrad"))
    with pytest.raises(TrainingError, match=r"step 3: gradients must be finite.*: this step, the memory of sst\b"):
        run(config.but(scheme="unified", gradients="gem"))


@pytest.mark.parametrize("fields", [dict(), dict(scheme="in_turn"), dict(scheme="unified"), dict(gradients="gem")])
def test_tokens_are_counted_over_all_tasks(run, config, course_folder, fields):
    config = config.but(epochs=1, **fields)
    train = load_corpus(config, course_folder).train
    lengths = {task: tokenize(task, table, config.encoder).lengths for task, table in train.items()}
    seen = sum(lengths[task][rows].sum() for step in training_steps(config, lengths) for task, rows in step.items())
    trained = run(config)
    assert trained.cost["tokens"] == trained.curve["tokens"].iloc[-1] == seen
    if "scheme" in fields:
        assert seen == sum(part.sum() for part in lengths.values()), "every example once"


@pytest.mark.parametrize("fields", [dict(), dict(scheme="unified", gradients="pcgrad", head_norm=True)])
def test_a_frozen_encoder_reads_each_split_once(run, config, fields, counted):
    calls = counted(MultitaskBert, "embed")
    run(config.but(tasks=("sst", "quora"), score_tasks=("sts",), frozen=True, epochs=4, **fields))
    read = sorted(task for _, batches, *_ in calls for task in batches)
    assert read == ["quora", "quora", "sst", "sst", "sts"], "train and dev, of sts dev; one batch holds a split"


def test_a_point_before_a_tasks_turn_has_no_loss_of_it(run, config):
    curve = run(config.but(scheme="in_turn", steps_per_epoch=None)).curve
    first, last = curve["train_loss_sts"].iloc[[0, -1]]
    assert math.isnan(first) and not math.isnan(last)
