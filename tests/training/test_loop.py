"""The loop: exact resume, the best model kept, breakdowns named."""

import logging
import math
from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from mtbert.batches import train_batches
from mtbert.config import ConfigError
from mtbert.data.tasks import TASKS
from mtbert.data.tokens import tokenize
from mtbert.metrics import accuracy, pearson
from mtbert.multitask.losses import divergence
from mtbert.multitask.model import MultitaskBert
from mtbert.optim import AdamW, make_schedule
from mtbert.samplers import SAMPLERS
from mtbert.training import loop as module
from mtbert.training.checkpoint import TrainingError
from mtbert.training.loop import TrainedRun
from mtbert.training.micro_batches import weighted_tokens
from mtbert.training.parameters import UPSTREAM_RATE, parameter_groups
from mtbert.training.step import Trainer
from mtbert.training.task_data import TaskData, load_corpus


def weights(run: TrainedRun) -> dict[str, torch.Tensor]:
    return run.model.state_dict()


def test_the_loop_is_the_plain_loop(run, tiny_config, course_folder, monkeypatch):
    """Dropout on, clipped, decayed, rates of a schedule, two epochs: what anyone would write gives the same bits."""
    config = tiny_config.but(tasks=("quora",), schedule="linear", warmup=0.2, max_grad_norm=0.1, weight_decay=0.01)
    table = load_corpus(config, course_folder).train[config.tasks[0]]
    tokens = tokenize("quora", table, config.encoder)
    labels = torch.tensor(table["label"].tolist())
    torch.manual_seed(config.seed)
    model = MultitaskBert(config).train()
    optimizer = AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.01)
    schedule = make_schedule(optimizer, "linear", total_steps=10, warmup=0.2)
    losses = []
    for epoch in range(2):
        for rows in train_batches(tokens.lengths, 8, config.seed, epoch):
            optimizer.zero_grad()
            logits = model({"quora": tokens.batch(rows)})["quora"]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels[rows].float())
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            assert norm > 0.1
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
    rising = iter([0.1, 0.2])  # the last model is the best
    monkeypatch.setattr(module, "metrics_of", lambda task: {"accuracy": lambda p, y: next(rising)})
    trained = run(config)
    means = [np.mean(losses[:5]), np.mean(losses[5:])]
    assert trained.curve["train_loss"].tolist() == pytest.approx(means, rel=1e-6)
    assert all(torch.equal(tensor, weights(trained)[name]) for name, tensor in model.state_dict().items())


def test_another_seed_gives_another_model(run, tiny_config):
    first, second = run(tiny_config), run(tiny_config.but(seed=2))
    assert not torch.equal(
        weights(first)["heads.by_task.sst.layers.0.weight"], weights(second)["heads.by_task.sst.layers.0.weight"]
    )
    assert first.curve["train_loss"].tolist() != second.curve["train_loss"].tolist()


@pytest.mark.parametrize("task", ["sst", "cfimdb", "quora", "sts"])
def test_every_task_is_learned(run, tiny_config, task):
    trained = run(tiny_config.but(tasks=(task,), epochs=8, learning_rate=5e-3, head_dropout=0.0))
    loss = trained.curve["train_loss"].tolist()
    assert loss[-1] < 0.85 * loss[0]
    metric = pearson if task == "sts" else accuracy
    dev = trained.predictions
    score = float(metric(dev["predicted"].to_numpy(), dev["label"].to_numpy()))
    assert score > {"sst": 0.4, "cfimdb": 0.8, "quora": 0.8, "sts": 0.5}[task]


@pytest.mark.parametrize(
    "fields, after",
    [
        (dict(epochs=3, learning_rate=1e-6), 12),  # the score stays as it is: the first model is the best
        (dict(tasks=("sts",), pairs="concat", evals_per_epoch=2, schedule="onecycle", max_grad_norm=0.5), 5),
        (dict(frozen=True, epochs=3, schedule="cosine"), 11),
    ],
)
def test_an_interrupted_run_goes_on_bit_for_bit(tiny_config, tmp_path, fields, after, assert_goes_on_bit_for_bit):
    config = tiny_config.but(**fields)
    whole = assert_goes_on_bit_for_bit(config, after, tmp_path / "run" / "checkpoint.pt")
    if config.learning_rate == 1e-6:
        assert whole.cost["best_step"] == 5, "the kept model is older than the interruption"


@pytest.mark.usefixtures("saved_each_step")
def test_a_finished_run_is_read_from_its_checkpoint(run, tiny_config, tmp_path, counted, assert_same_bits):
    checkpoint = tmp_path / "checkpoint.pt"
    whole = run(tiny_config, checkpoint=checkpoint)
    steps = counted(AdamW, "step")
    assert_same_bits(whole, run(tiny_config, checkpoint=checkpoint))
    assert not steps


def test_checkpoints_wait_for_their_time(run, tiny_config, tmp_path, monkeypatch):
    monkeypatch.setenv("MTBERT_CHECKPOINT_SECONDS", "1000")
    run(tiny_config, checkpoint=tmp_path / "checkpoint.pt")
    assert not [*tmp_path.iterdir()]


@pytest.mark.usefixtures("saved_each_step")
@pytest.mark.parametrize("other", ["seed", "label_range", "metric", "fields", "rows"])
def test_a_checkpoint_of_another_run_or_version_is_passed_over(
    tiny_config, course_folder, tmp_path, caplog, monkeypatch, counted, other
):
    """Also where a task meant something else, or its rows were others."""
    config = tiny_config.but(tasks=("sst", "sts"), epochs=1, steps_per_epoch=2, keep="last")
    first, corpus, path = config, load_corpus(config, course_folder), tmp_path / "checkpoint.pt"
    with monkeypatch.context() as patch:
        if other == "seed":
            first = config.but(seed=5)
        elif other == "label_range":
            patch.setitem(TASKS, "sts", TASKS["sts"].model_copy(update={"label_range": (0, 10)}))
        elif other == "metric":
            patch.setitem(TASKS, "sst", TASKS["sst"].model_copy(update={"metric": "macro_f1"}))
        elif other == "fields":
            patch.setattr(module, "fields", lambda progress: fields(progress)[1:])
        else:
            corpus.train["sst"] = corpus.train["sst"].iloc[::-1].reset_index(drop=True)
        module.train(first, corpus, "cpu", path, progress=False)
    steps = counted(AdamW, "step")
    with caplog.at_level(logging.WARNING):
        module.train(config, load_corpus(config, course_folder), "cpu", path, progress=False)
    assert "belongs to another run, or was begun by another version, and is not used" in caplog.text
    assert len(steps) == 2, "it starts from the beginning"


def test_tables_of_other_tasks_than_the_configurations_are_named(tiny_config, course_folder):
    corpus = load_corpus(tiny_config.but(tasks=("sts", "sst")), course_folder)
    with pytest.raises(TrainingError, match=r"corpus: has tables of .*'sts', 'sst'.* but needs .*'sst', 'sts'"):
        module.train(tiny_config.but(tasks=("sst", "sts")), corpus, device="cpu")


def test_a_sampler_that_fails_in_a_late_epoch_is_said_before_training(tiny_config, course_folder, monkeypatch):
    monkeypatch.setitem(SAMPLERS, "falling", lambda sizes, epoch, epochs: [1.0, 2.5 - epoch])
    monkeypatch.setattr(module, "build_encoder", lambda config: pytest.fail("began"))
    config = tiny_config.but(tasks=("sst", "sts"), scheme="sampled", sampling="falling", epochs=3)
    with pytest.raises(ValueError, match=r"falling gives .* in epoch 3"):
        module.train(config, load_corpus(config, course_folder), device="cpu", progress=False)


def test_rows_of_the_curve_without_a_correlation_are_said_before_training(tiny_config, course_folder, run):
    """One row of STS has one label: with Pearson's correlation of it no point would be the best."""
    config = tiny_config.but(tasks=("sst", "sts"), curve_rows=1, keep="best")
    corpus = load_corpus(config, course_folder)
    with pytest.raises(TrainingError, match=r"curve_rows: the 1 dev examples of sts .* have one label"):
        module.train(config, corpus, device="cpu", progress=False)
    assert math.isnan(run(config.but(keep="last")).curve["dev_sts"].iloc[-1]), "nothing rests on the points then"


def test_own_code_without_a_source_trains_without_a_checkpoint(tiny_config, course_folder, monkeypatch, tmp_path):
    """A checkpoint is named by the code of its run; what cannot be named is said before any work."""
    defined = {}
    exec("def halves(sizes, epoch, epochs):\n    return [1.0, 1.0]", defined)
    monkeypatch.setitem(SAMPLERS, "halves", defined["halves"])
    config = tiny_config.but(tasks=("sst", "sts"), scheme="sampled", sampling="halves", epochs=1, steps_per_epoch=2)
    corpus = load_corpus(config, course_folder)
    assert module.train(config, corpus, device="cpu", progress=False).cost["steps"] == 2
    monkeypatch.setattr(module, "build_encoder", lambda config: pytest.fail("began"))
    with pytest.raises(ConfigError, match="no Python source"):
        module.train(config, corpus, device="cpu", checkpoint=tmp_path / "checkpoint.pt", progress=False)


def test_the_best_model_on_dev_is_kept(run, tiny_config, monkeypatch):
    """A dev score that rises and falls: the model, the predictions and best_step are those of its peak."""
    predictions = []
    scores = iter([0.2, 0.4, 0.9, 0.9, 0.1, 0.3])

    def metric(predicted, labels, axis=-1):
        predictions.append(predicted)
        return next(scores)

    monkeypatch.setattr(module, "metrics_of", lambda task: {"pearson": metric})
    trained = run(tiny_config.but(tasks=("sts",), epochs=3, evals_per_epoch=2))
    assert trained.curve["dev_score"].tolist() == [0.2, 0.4, 0.9, 0.9, 0.1, 0.3]
    assert trained.cost["best_step"] == trained.curve["step"][2], "of equal scores, the first"
    assert trained.predictions["predicted"].tolist() == predictions[2].tolist()
    assert all((predictions[2] != later).any() for later in predictions[3:])


def test_a_first_score_of_nan_is_beaten(run, tiny_config, monkeypatch):
    scores = iter([math.nan, -0.2, math.nan])
    monkeypatch.setattr(module, "metrics_of", lambda task: {"pearson": lambda p, y: next(scores)})
    assert run(tiny_config.but(epochs=3)).cost["best_step"] == 10


@pytest.mark.parametrize("layer_decay", [1.0, 0.5])
def test_a_learning_rate_that_explodes_is_noticed(run, tiny_config, layer_decay):
    """Of layers with rates of their own the highest is named, not that of the embeddings."""
    with pytest.raises(TrainingError, match=r"learning rate 1\.00e\+30"):
        run(tiny_config.but(learning_rate=1e30, schedule="none", layer_decay=layer_decay))


def test_a_last_step_that_breaks_the_model_is_noticed(run, tiny_config):
    """No loss is computed after it."""
    config = tiny_config.but(tasks=("sst",), learning_rate=1e30, schedule="none", epochs=1, steps_per_epoch=1)
    with pytest.raises(TrainingError, match="the model's outputs for sst are not finite"):
        run(config)


@pytest.mark.parametrize("progress, is_shown", [(True, True), (None, False), (False, False)])
def test_a_bar_is_shown_where_it_is_asked_for(run, tiny_config, course_folder, capsys, progress, is_shown):
    """By default on a terminal alone."""
    config = tiny_config.but(epochs=1)
    module.train(config, load_corpus(config, course_folder), device="cpu", progress=progress)
    out, err = capsys.readouterr()
    assert not out and ("5/5" in err) == is_shown and bool(err) == is_shown


def test_kept_features_train_as_fresh_ones_do(run, tiny_config, monkeypatch):
    config = tiny_config.but(frozen=True, tasks=("sts",), pairs="sum", epochs=3, head_dropout=0.0, learning_rate=0.01)
    kept = run(config)
    monkeypatch.setattr(MultitaskBert, "embeddings_are_fixed", False)
    fresh = run(config)
    assert kept.curve["train_loss"].iloc[-1] < kept.curve["train_loss"].iloc[0]
    np.testing.assert_allclose(kept.curve["train_loss"], fresh.curve["train_loss"], rtol=1e-4)
    for name in ("heads.by_task.sts.layers.0.weight", "heads.by_task.sts.layers.0.bias"):
        torch.testing.assert_close(weights(kept)[name], weights(fresh)[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "fields, steps",
    [
        (dict(evals_per_epoch=1), {5, 10}),
        (dict(evals_per_epoch=5), {*range(1, 11)}),
        (dict(evals_per_epoch=20), {*range(1, 11)}),
        (dict(evals_per_epoch=2, eval_spacing="log"), {1, 2, 5, 10}),
    ],
    ids=str,
)
def test_steps_that_are_points_of_the_curve(tiny_config, fields, steps):
    assert module.evaluation_steps(tiny_config.but(**fields), [40]) == steps


def test_how_often_the_rows_of_dev_are_read(tiny_config):
    few = tiny_config.but(score_tasks=("sts",), curve_rows=5, keep="last")
    assert module.dev_passes(few, "sst", rows=20, points=8) == 3, "a quarter in each point, and the scores at the end"
    assert module.dev_passes(few, "sts", rows=20, points=8) == 1
    assert module.dev_passes(few.but(curve_rows=50), "sst", rows=20, points=8) == 9
    assert module.dev_passes(few.but(curve_rows=None), "sst", rows=20, points=8) == 8
    assert module.dev_passes(few.but(keep="best"), "sst", rows=20, points=8) == 4, "the kept model is scored, too"


def test_the_clock_of_a_run_counts_its_steps_alone(run, tiny_config, monkeypatch):
    """A step takes 10 s, an evaluation 1000 s, half of it of the processor."""
    now = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: now[0] / 2)
    monkeypatch.setattr("mtbert.training.progress.time", clock)

    def takes(seconds: float, owner: type, name: str) -> None:
        whole = getattr(owner, name)

        def slow(*args, **kwargs):
            now[0] += seconds
            return whole(*args, **kwargs)

        monkeypatch.setattr(owner, name, slow)

    takes(10, Trainer, "step")
    takes(1000, TaskData, "predictions")
    trained = run(tiny_config)
    assert trained.curve["seconds"].tolist() == [50, 100] and trained.curve["cpu_seconds"].tolist() == [25, 50]
    assert trained.cost["train_seconds"] == 100 and trained.cost["train_cpu_seconds"] == 50


def test_points_of_the_curve_on_some_dev_examples(run, tiny_config):
    """The same examples at every point, all of them in the scores."""
    whole, some = run(tiny_config), run(tiny_config.but(curve_rows=7))
    chosen = module._subset(7, 20)
    assert len(set(chosen)) == 7 and list(module._subset(20, 20)) == list(range(20))
    assert len(some.predictions) == len(whole.predictions) == 20
    kept = some.predictions.iloc[chosen]
    best = some.curve.set_index("step")["dev_score"][some.cost["best_step"]]
    assert best == pytest.approx(accuracy(kept["predicted"].to_numpy(), kept["label"].to_numpy()))


def test_scores_of_the_last_step_and_of_the_best(run, tiny_config, monkeypatch):
    """Told beside those of the kept model: the last step on dev and on training examples, the best point."""
    monkeypatch.setattr(module, "TRAIN_ROWS", 15)
    config = tiny_config.but(keep="last", evals_per_epoch=5, learning_rate=5e-3)
    trained = run(config)
    scores = trained.step_scores[trained.step_scores["metric"] == "accuracy"].set_index(["at", "split"])
    last, curve = scores.loc["last", "dev"], trained.curve.set_index("step")["dev_score"]
    assert last["step"] == 10 and last["value"] == pytest.approx(curve[10])
    assert last["value"] == pytest.approx(accuracy(*trained.predictions[["predicted", "label"]].to_numpy().T))
    assert scores.loc["best", "dev"]["value"] == pytest.approx(curve.max())
    assert scores.loc["best", "dev"]["step"] == curve.idxmax()
    assert scores.loc["last", "train"]["n"] == 15 and 0 <= scores.loc["last", "train"]["value"] <= 1
    best = run(config.but(keep="best"))
    pd.testing.assert_frame_equal(best.step_scores, trained.step_scores)


def test_steps_of_an_epoch_of_one_task_in_turn(run, tiny_config):
    """Not passes: what is reported is trained, and the learning rate ends where training does."""
    config = tiny_config.but(scheme="in_turn", steps_per_epoch=3, schedule="onecycle", evals_per_epoch=3)
    trained = run(config)
    assert trained.curve["step"].tolist() == [1, 2, 3, 4, 5, 6] and trained.cost["steps"] == 6


def test_the_average_of_the_weights_is_scored_and_kept(run, tiny_config):
    """Against the formula: a <- ema a + (1 - ema) w after every step, from the first step's weights on."""
    seen = []
    real = module.Trainer.update
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.Trainer, "update", lambda self, rows: real(self, rows) or seen.append(
            {name: t.clone() for name, t in self.model.state_dict().items()}))  # fmt: skip
        averaged = run(tiny_config.but(ema=0.7, keep="last"))
    plain = run(tiny_config.but(keep="last"))
    assert all(torch.equal(tensor, weights(plain)[name]) for name, tensor in seen[-1].items()), "training is the same"
    name = "heads.by_task.sst.layers.0.weight"
    mean = seen[0][name]
    for after in seen[1:]:
        mean = 0.7 * mean + 0.3 * after[name]
    torch.testing.assert_close(weights(averaged)[name], mean)
    scores = averaged.curve["dev_score"].iloc[-1]
    assert scores == pytest.approx(accuracy(*averaged.predictions[["predicted", "label"]].to_numpy().T))


def test_learning_rates_fall_from_layer_to_layer(tiny_config):
    model = MultitaskBert(tiny_config.but(layer_decay=0.5, weight_decay=0.1))
    rates = {id(p): (group["lr"], group["weight_decay"]) for group in parameter_groups(model) for p in group["params"]}
    for name, p in model.named_parameters():
        below = 2 if "embeddings" in name else 1 if ".layers.0.0" in name else 0
        assert rates[id(p)] == (1e-3 * 0.5**below, 0.1), name


def test_offsets_may_have_the_learning_rate_of_a_layer(tiny_config):
    """Then one group holds both, and every parameter is trained."""
    tasks = dict(tasks=("sst", "quora"), feeds=("sst>quora",), upstream="slow", layer_decay=UPSTREAM_RATE)
    model = MultitaskBert(tiny_config.but(**tasks))
    model.heads.add_offsets()
    offsets = model.heads.offsets
    grouped = [id(p) for group in parameter_groups(model) for p in group["params"]]
    assert sorted(grouped) == sorted(id(p) for p in [*model.parameters(), *offsets.values()])


def test_r_drop_is_its_formula():
    """Liang et al. 2021: the mean loss of two passes and the mean of both divergences between them."""
    first, second = torch.randn(4, 5), torch.randn(4, 5)
    p, q = first.softmax(-1), second.softmax(-1)
    both = (p * (p / q).log()).sum(-1) + (q * (q / p).log()).sum(-1)
    torch.testing.assert_close(divergence(TASKS["sst"], first, second), both.mean() / 2)
    p, q = first[:, 0].sigmoid(), second[:, 0].sigmoid()
    both = (p - q) * (p / q).log() + (q - p) * ((1 - p) / (1 - q)).log()
    torch.testing.assert_close(divergence(TASKS["quora"], first[:, 0], second[:, 0]), both.mean() / 2)
    squares = (first[:, 0] - second[:, 0]) ** 2
    torch.testing.assert_close(divergence(TASKS["sts"], first[:, 0], second[:, 0]), squares.mean())


def test_r_drop_of_some_tasks_is_theirs_alone(run, tiny_config, assert_same_bits):
    config = tiny_config.but(tasks=("sst", "quora"), scheme="unified", epochs=1)
    assert_same_bits(run(config.but(r_drop=0.5)), run(config.but(r_drop={"sst": 0.5, "quora": 0.5})))
    some = config.but(r_drop={"sst": 100.0})
    first, plain = (run(c).curve.iloc[0] for c in (some, config))
    assert first["train_loss_sst"] > plain["train_loss_sst"] + 0.01, "its passes disagree"
    assert first["train_loss_quora"] < plain["train_loss_quora"] + 0.01
    shapes = {"sst": (4, 10), "quora": (4, 10)}
    once, twice, both = (weighted_tokens(c, shapes) for c in (config, some, config.but(r_drop=0.5)))
    assert (twice, both) == (1.5 * once, 2 * once), "the other task is read once"


def test_tokens_of_sentences_encoded_apart_are_those_of_both(run, tiny_config, course_folder):
    config = tiny_config.but(tasks=("sts",), pairs="concat", epochs=1)
    table = load_corpus(config, course_folder).train["sts"]
    tokens = [tokenize("sts", table[["id", "label", a]].assign(**{b: table[a]}), config.encoder, "joint")
              for a, b in (("sentence1", "sentence2"), ("sentence2", "sentence1"))]  # fmt: skip
    both = sum((table_.columns[0].lengths + 2).sum() for table_ in tokens)
    assert run(config).cost["tokens"] == both
