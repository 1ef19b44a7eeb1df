"""The rows of a run: subsets, predictions in file order, several tasks in one pass."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch

from mtbert.config import ConfigError, RunConfig
from mtbert.data.tables import load_table
from mtbert.data.tasks import TASKS, Task
from mtbert.multitask.model import MultitaskBert
from mtbert.training import loop
from mtbert.training.task_data import TaskData, load_corpus, predict_table, prepare_task


def test_a_subset_is_a_function_of_the_seed(course_folder, tiny_config):
    subsets = [load_corpus(tiny_config.but(train_rows=15, seed=seed), course_folder) for seed in (1, 1, 2)]
    ids = [subset.train["sst"]["id"].tolist() for subset in subsets]
    whole = load_corpus(tiny_config, course_folder)
    assert ids[0] == ids[1] != ids[2] and len(ids[0]) == 15
    assert set(ids[0]) < set(whole.train["sst"]["id"])
    assert subsets[0].fingerprint == subsets[1].fingerprint != subsets[2].fingerprint != whole.fingerprint
    assert len(subsets[0].dev["sst"]) == 20, "dev stays whole"
    assert len(load_corpus(tiny_config.but(train_rows=400), course_folder).train["sst"]) == 40


def test_predictions_are_in_file_order_whatever_the_lengths(run, tiny_config, course_folder):
    trained = run(tiny_config.but(epochs=1))
    table = load_table("sst", "test", course_folder)[0]
    together = predict_table(trained.model, "sst", table, "test", device="cpu")
    assert list(together.columns) == ["task", "split", "id", "predicted", "confidence"]
    assert together["id"].tolist() == table["id"].tolist()
    for i in range(len(table)):
        alone = predict_table(trained.model, "sst", table.iloc[[i]].reset_index(drop=True), "test", device="cpu")
        assert alone["predicted"][0] == together["predicted"][i]
        assert alone["confidence"][0] == pytest.approx(together["confidence"][i], abs=1e-5)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        dict(keep="last"),
        dict(ema=0.7),
        dict(keep="last", ema=0.7),
        dict(keep="last", pretrain="after"),
        dict(keep="best_per_task", tasks=("sst", "quora"), scheme="unified", plan="3-bert"),
    ],
    ids=str,
)
def test_the_predictions_of_a_run_are_those_of_the_kept_model(run, tiny_config, course_folder, monkeypatch, fields):
    """In evaluation mode; the last task's best model is not the last, as its dev score falls while others' rise."""
    config, numbers = tiny_config.but(**fields), itertools.count()

    def metrics_of(task: Task) -> dict:
        sign = -1 if task.name == config.tasks[-1] else 1
        return {"accuracy": lambda predicted, labels: sign * next(numbers)}

    monkeypatch.setattr(loop, "metrics_of", metrics_of)
    trained = run(config)
    dev = load_corpus(config, course_folder).dev
    again = [predict_table(trained.model, task, table, "dev", "cpu") for task, table in dev.items()]
    pd.testing.assert_frame_equal(pd.concat(again, ignore_index=True), trained.predictions, check_exact=True)


@pytest.fixture
def model_and_tables(course_folder, tiny_config) -> tuple[MultitaskBert, dict[str, TaskData]]:
    """A model in evaluation mode, and the training rows of two tasks."""
    torch.manual_seed(0)
    config = tiny_config.but(tasks=["sst", "sts"], pairs="concat")
    model = MultitaskBert(config).eval()
    corpus = load_corpus(config, course_folder)
    return model, {task: prepare_task(model, task, table, torch.device("cpu")) for task, table in corpus.train.items()}


@pytest.mark.parametrize("passes, encoded", [(0.5, [2, 3]), (1.0, [40])])
def test_a_frozen_encoder_reads_what_few_passes_see_when_they_see_it(
    course_folder, tiny_config, monkeypatch, passes, encoded
):
    torch.manual_seed(0)
    config = tiny_config.but(frozen=True)
    model = MultitaskBert(config).train()
    table = load_corpus(config, course_folder).train["sst"]
    seen = []
    real = model.embed

    def noted(batches):
        seen.append(len(batches["sst"].input_ids))
        return real(batches)

    monkeypatch.setattr(model, "embed", noted)
    rows = prepare_task(model, "sst", table, torch.device("cpu"), passes)
    parts = [rows.fixed_embeddings(model, np.array(part)) for part in ([3, 1], [7, 8, 0])]
    assert seen == encoded and model.training  # without dropout all the same:
    fresh = prepare_task(model.eval(), "sst", table, torch.device("cpu"))
    expected = model.embed({"sst": fresh.tokens.batch(np.array([7, 8, 0]))})
    torch.testing.assert_close(parts[1], expected["sst"], rtol=1e-5, atol=1e-5)
    assert not parts[1].requires_grad


def test_what_is_computed_in_batches_leaves_the_model_in_training(model_and_tables):
    model, tables = model_and_tables
    model.train()
    for _ in model.in_batches(tables["sst"].tokens.lengths, len):
        assert model.training and torch.is_grad_enabled()
        break
    assert model.training and torch.is_grad_enabled()


def test_part_of_speech_features_reach_the_heads(course_folder, tiny_config, monkeypatch):
    def shares(task: str, table: pd.DataFrame) -> np.ndarray:
        return np.tile(np.arange(len(table), dtype=np.float32)[:, None], (1, 24))

    monkeypatch.setattr("mtbert.training.task_data.pos_features", shares)
    config = tiny_config.but(tasks=["sts"], pos_features=True)
    model = MultitaskBert(config).eval()
    rows = prepare_task(model, "sts", load_corpus(config, course_folder).train["sts"], torch.device("cpu"))
    weight = model.heads.by_task["sts"].layers[0].weight
    assert weight.shape == (1, 32 + 24)
    with torch.no_grad():
        weight.zero_()
        weight[0, -1] = 2.0
    assert rows.logits(model).tolist() == [2.0 * i for i in range(40)]


@pytest.mark.parametrize("pairs", ["joint", "concat+cosine"])
@pytest.mark.parametrize("task", ["sst", "quora", "sts"])
def test_a_model_predicts_texts_as_it_predicts_a_table(tiny_encoder, course_folder, task, pairs):
    config = RunConfig(corpus="course", encoder=tiny_encoder, tasks=("sst", "quora", "sts"), pairs=pairs)
    torch.manual_seed(0)
    model = MultitaskBert(config)
    table, _ = load_table(task, "dev", course_folder)
    texts = list(table[list(TASKS[task].sentence_columns)].itertuples(index=False))
    found = model.predict([text[0] for text in texts] if task == "sst" else texts, task)
    expected = predict_table(model, task, table, "dev", "cpu")
    np.testing.assert_array_equal(found["predicted"], expected["predicted"])
    if TASKS[task].is_number:
        assert list(found) == ["predicted"]
    else:
        np.testing.assert_array_equal(found["confidence"], expected["confidence"])
    assert model.predict([], task).empty and model.training
    if not TASKS[task].is_number:
        expected = list(model.predict(texts[:1], task, probabilities=True))
        assert list(model.predict([], task, probabilities=True)) == expected


def test_predictions_of_texts_have_the_part_of_speech_features_of_their_own_text(
    tiny_encoder, course_folder, monkeypatch
):
    def lengths(task: str, table: pd.DataFrame) -> np.ndarray:
        parts = [table[column].str.len().to_numpy(np.float32) for column in TASKS[task].sentence_columns]
        return np.repeat(np.stack(parts, axis=1) / 100, 12, axis=1)

    monkeypatch.setattr("mtbert.multitask.model.pos_features", lengths)
    monkeypatch.setattr("mtbert.training.task_data.pos_features", lengths)
    torch.manual_seed(0)
    model = MultitaskBert(RunConfig(corpus="course", encoder=tiny_encoder, tasks=("quora",), pos_features=True))
    table, _ = load_table("quora", "dev", course_folder)
    found = model.predict(list(table[["sentence1", "sentence2"]].itertuples(index=False)))
    expected = predict_table(model, "quora", table, "dev", "cpu")
    pd.testing.assert_frame_equal(found, expected[["predicted", "confidence"]])


def test_probabilities_have_the_names_of_the_classes(tiny_encoder, monkeypatch):
    monkeypatch.setitem(TASKS, "sst", TASKS["sst"].model_copy(update={"class_names": tuple("abcde")}))
    torch.manual_seed(0)
    model = MultitaskBert(RunConfig(encoder=tiny_encoder))
    found = model.predict(["a fine film", "a dull one", "so it ends"], probabilities=True)
    assert list(found) == ["predicted", "confidence", "p_a", "p_b", "p_c", "p_d", "p_e"]
    for row in found.to_dict("records"):
        assert row["confidence"] == row[f"p_{row['predicted']}"] == max(row[f"p_{name}"] for name in "abcde")


def test_texts_that_a_task_does_not_take(tiny_encoder):
    model = MultitaskBert(RunConfig(encoder=tiny_encoder, tasks=("sst", "sts")))
    with pytest.raises(ValueError, match="task is 'quora'; this model has sst, sts"):
        model.predict(["fine"], "quora")
    with pytest.raises(ValueError, match=r"sts has 2 texts \(sentence1, sentence2\); number 1 has 1"):
        model.predict([("a b", "c"), "d"], "sts")


def test_swapped_pairs_are_there_once_more_behind_the_others(course_folder, tiny_config):
    config = tiny_config.but(tasks=["sst", "sts"], pairs="joint")
    plain = load_corpus(config, course_folder)
    corpus = load_corpus(config.but(augment="swap"), course_folder)
    table, once = corpus.train["sts"], len(plain.train["sts"])
    assert len(table) == 2 * once and len(corpus.train["sst"]) == len(plain.train["sst"])
    assert table["sentence1"][once:].tolist() == table["sentence2"][:once].tolist()
    assert table["sentence2"][once:].tolist() == table["sentence1"][:once].tolist()
    assert table["label"][once:].tolist() == table["label"][:once].tolist()
    assert corpus.dev["sts"].equals(plain.dev["sts"]), "dev is not augmented"


def test_swapping_single_sentences_is_an_error(tiny_config):
    with pytest.raises(ConfigError, match="augment: swap is for pairs, and sst reads single sentences"):
        tiny_config.but(tasks=["sst"], augment="swap")
