"""Calibration, groups and interference on invented examples."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from mtbert.data import TASKS, DataError, PosError, load_table
from mtbert.data.tasks import Task
from mtbert.multitask import MultitaskBert, task_loss
from mtbert.training import prepare_task
from mtbert_lab.analysis import calibration, errors, groups, interference, probabilities, remedies
from mtbert_lab.analysis.systems import Systems
from mtbert_lab.paths import results_dir
from mtbert_lab.statistics import Estimate, Resamples
from mtbert_lab.store import MissingRun, dev_table, load_model

RUN = dict(tasks=("sst", "quora"), scheme="unified", plan="1-bert", steps_per_epoch=2)  # of the run in `stored`


def confident(N: int, T: float) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (1, N, 3) at temperature 1 / T of labels (N,) that are drawn at temperature 1."""
    random = np.random.default_rng(2)
    logits = random.normal(size=(N, 3), scale=1.5)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (random.random(N)[:, None] > p.cumsum(1)).sum(1)
    return calibration.sharpened(p, 1 / T)[None], labels


def test_temperature_finds_what_made_a_model_overconfident():
    p, labels = confident(4000, 3.0)
    assert calibration.temperature(p[0], labels) == pytest.approx(3.0, rel=0.1)
    cooled = calibration.cross_fitted(
        lambda q, y, other: calibration.sharpened(other, calibration.temperature(q, y)), p, labels
    )
    drawn = Resamples(4000, {"one": 1}, 50)
    before, after = (calibration.calibration_error(drawn, "one", q, labels)[0] for q in (p, cooled))
    assert before > 0.1 and after < 0.03
    assert calibration.log_loss(cooled, labels).mean() < calibration.log_loss(p, labels).mean()


def test_calibration_error_by_hand():
    p = np.array([[[0.9, 0.1], [0.9, 0.1], [0.35, 0.65], [0.35, 0.65]]])
    error = calibration.calibration_error(Resamples(4, {"one": 1}, 10), "one", p, np.array([0, 1, 1, 1]))[0]
    assert error == pytest.approx((2 * abs(0.5 - 0.9) + 2 * abs(1 - 0.65)) / 4, abs=1e-6)
    many = np.tile(p, (1, 20, 1))
    table = calibration.reliability(Resamples(80, {}, 50), many, np.tile([0, 1, 1, 1], 20))
    assert table["value"].tolist() == [1, 0.5] and table["n"].tolist() == [40, 40]
    assert table["confidence"].tolist() == pytest.approx([0.65, 0.9]) and table["low"][1] < 0.5 < table["high"][1]


def test_cross_fitting_never_fits_on_what_it_changes():
    labels = np.arange(10)

    def method(values, fit, other):
        assert not set(fit) & set(other)
        return other + 100

    assert calibration.cross_fitted(method, labels[None], labels).tolist() == [list(range(100, 110))]


def test_isotonic_scores_and_thresholds():
    scores, labels = np.array([0.1, 0.2, 0.3, 0.4]), np.array([1.0, 0.0, 3.0, 5.0])
    assert calibration.recalibrated(scores, labels, np.array([0.15, 0.35, 9.0])) == pytest.approx([0.5, 4, 5])
    ties = calibration.recalibrated(np.array([3.0, 5, 5, 5]), np.array([3.0, 2, 3, 5]), np.array([3.0, 5]))
    assert ties == pytest.approx([3, 10 / 3]), "equal scores get one value, whatever their order"
    assert calibration.thresholded(scores, np.array([0, 0, 0, 1]), np.array([0.3, 0.31])).tolist() == [0, 1]


def test_features_of_pairs_and_of_sentences():
    train = pd.DataFrame(
        {
            "sentence1": ["Is tea hot?", "one", "two"],
            "sentence2": ["Is milk cold?", "three", "four"],
            "label": [0, 1, 1],
        }
    )
    dev = pd.DataFrame(
        {
            "sentence1": ["Is tea hot?", "three", "It isn't so"],
            "sentence2": ["Is tea warm?", "one", "It is so"],
            "label": [1, 0, 1],
        }
    )
    found = groups.features("quora", train, dev)
    assert found["words"].tolist() == [6, 2, 6] and found["negation"].tolist() == [False, False, True]
    assert found["overlap"].round(2).tolist() == [0.5, 0, 0.5]
    assert found["both_labels"].tolist() == [True, True, False]  # "is tea hot" is in pairs of both labels
    assert found["disputed"].tolist() == [False, True, False]
    reviews = pd.DataFrame({"sentence": ["never dull", "Fine!"], "label": [3, 4]})
    found = groups.features("sst", reviews.assign(label=[3, 1]), reviews)
    assert found["negation"].tolist() == [True, False] and found["disputed"].tolist() == [False, True]


@pytest.mark.parametrize(("range_", "labels", "disputed"), [((0, 5), (2.0, 3.0), True), ((0, 100), (50.0, 51.0), False),
                                                            ((0, 1), (0.0, 0.9), True)])  # fmt: skip
def test_numbers_differ_by_a_share_of_their_range(monkeypatch, range_, labels, disputed):
    monkeypatch.setitem(TASKS, "sts", TASKS["sts"].model_copy(update={"label_range": range_}))
    pair = {"sentence1": ["a kettle"], "sentence2": ["a pan"]}
    train, dev = (pd.DataFrame({**pair, "label": [label]}) for label in labels)
    assert groups.features("sts", train, dev)["disputed"].tolist() == [disputed]


def test_groups_are_thirds_and_truths_of_enough_examples():
    table = pd.DataFrame({"words": range(90), "negation": [True] * 30 + [False] * 60, "rare": [True] + [False] * 89})
    sizes = {name: int(mask.sum()) for name, mask in groups.groups(table).items()}
    assert sizes == {"words, lowest third": 30, "words, highest third": 30, "negation": 30}


@pytest.mark.parametrize(
    ("task", "predicted", "labels", "kinds"),
    [
        ("sst", [0, 1, 3, 4], [0, 2, 2, 0], ["", "next class", "next class", "far off"]),
        ("quora", [0, 1, 0], [0, 0, 1], ["", "false positive", "missed"]),
        ("sts", [2.0, 4.0, 0.4], [2.9, 2.0, 2.0], ["", "too high", "too low"]),
    ],
)
def test_kinds_of_errors(task, predicted, labels, kinds):
    assert errors.error_kinds(task, np.array(predicted), np.array(labels)).tolist() == kinds


@pytest.fixture(autouse=True)
def tagged(monkeypatch):
    """Every sentence has the same parts of speech; NLTK's data may not be here."""

    def shares(task: str, table: pd.DataFrame) -> np.ndarray:
        width = len(TASKS[task].sentence_columns) * len(groups.TAGS)
        return np.full((len(table), width), 0.1)

    monkeypatch.setattr(groups, "pos_features", shares)


def test_what_needs_model_and_data_is_kept(stored, isolated, monkeypatch):
    sst = stored.predictions[stored.predictions["task"] == "sst"]
    p = probabilities.probabilities(stored, "sst", device="cpu")
    assert p.shape == (20, 5) and (p.argmax(1) == sst["predicted"]).all()
    assert np.abs(p.max(1) - sst["confidence"]).max() < 1e-3
    for file in (isolated / "cache" / "models").rglob("*.safetensors"):
        file.unlink()
    assert (probabilities.probabilities(stored, "sst") == p).all()
    (isolated / "results" / "probabilities" / f"{stored.run_id}-sst.parquet").unlink()
    assert probabilities.probabilities(stored, "sst") is None  # no model, no table
    with pytest.raises(MissingRun, match="one: no probabilities of sst's classes are stored"):
        Systems.read("sst", {"one": [stored]})
    of_pairs = probabilities.probabilities(stored, "quora")
    assert ((of_pairs[:, 1] > 0.5) == stored.predictions.query("task == 'quora'")["predicted"]).all()
    even = replace(stored, predictions=stored.predictions.assign(confidence=0.5))  # in half precision, of .5001
    of_pairs = probabilities.probabilities(even, "quora")
    assert ((of_pairs[:, 1] > 0.5) == stored.predictions.query("task == 'quora'")["predicted"]).all()

    found = groups.known_features(stored, "quora")
    monkeypatch.delenv("MTBERT_DATA")
    assert found.equals(groups.known_features(stored, "quora")) and len(found) == 20  # no data, but a table


@pytest.fixture
def reordered(course_folder, tmp_path) -> Path:
    """The course's data with the same dev rows of SST in another order."""
    folder = shutil.copytree(course_folder, tmp_path / "reordered")
    header, *rows = (folder / "ids-sst-dev.csv").read_text().splitlines()
    (folder / "ids-sst-dev.csv").write_text("\n".join([header, *rows[::-1]]) + "\n")
    return folder


def test_features_of_another_dev_split_are_not_taken(stored, course_folder, reordered):
    assert groups.known_features(stored, "sst", reordered) is None
    other = errors.error_table(stored.run_id, data=reordered).query("task == 'sst'")
    assert (other["text"] == "").all() and (other["words"] == 0).all()
    assert len(groups.known_features(stored, "sst", course_folder)) == 20  # nothing wrong was kept


def test_features_that_could_not_be_computed_are_computed_when_they_can(stored, monkeypatch):
    def unknown(task: str, table: pd.DataFrame) -> np.ndarray:
        raise PosError("no NLTK data")

    with monkeypatch.context() as patch:
        patch.setattr(groups, "pos_features", unknown)
        assert groups.known_features(stored, "sst")["describing"].isna().all()
    assert groups.known_features(stored, "sst")["describing"].notna().all()


def test_features_of_rows_without_ids_are_those_of_their_data(
    trained, course_folder, reordered, tmp_path, monkeypatch, run_of
):
    """Their ids are line numbers, which another file has as well."""
    monkeypatch.setitem(TASKS, "sst", TASKS["sst"].model_copy(update={"id_column": None}))
    first = shutil.copytree(course_folder, tmp_path / "first")  # the original may be known with its ids
    config = trained[0].config
    run = run_of(config, data=first)
    known = groups.known_features(run, "sst", first)
    with pytest.raises(DataError, match="was scored on another dev split of sst"):
        dev_table(run, "sst", reordered)
    other = run_of(config, data=reordered)
    assert groups.known_features(other, "sst", reordered)["words"].tolist() == known["words"].tolist()[::-1]


def test_a_table_of_errors_has_the_worst_first_and_the_texts_where_the_data_are(stored, course_folder, monkeypatch):
    table = errors.error_table(stored.run_id)
    assert set(table["model"]) == {stored.run_id} and set(table["task"]) == {"sst", "quora"}
    sst = table[table["task"] == "sst"]
    gaps = (sst["predicted"].astype(int) - sst["label"].astype(int)).abs()
    assert len(sst) == (stored.predictions.query("task == 'sst'").eval("predicted != label")).sum()
    assert gaps.is_monotonic_decreasing and sst["confidence"][gaps == gaps.max()].is_monotonic_decreasing
    assert (sst["text"].str.count(r"\w+") == sst["words"]).all()
    assert errors.error_table(stored.run_id, stored.run_id).equals(table)
    quora = load_table("quora", "dev", course_folder)[0].set_index("id")
    for error in table[table["task"] == "quora"].itertuples():
        assert error.text == " | ".join(quora.loc[error.id, ["sentence1", "sentence2"]])
    monkeypatch.delenv("MTBERT_DATA")
    assert errors.error_table(stored.run_id).drop(columns="text").equals(table.drop(columns="text"))
    with pytest.raises(MissingRun):
        errors.error_table("ffffffffff")


def test_errors_of_a_run_that_is_not_stored_are_not_told_from_its_model(stored):
    shutil.rmtree(results_dir() / "runs" / stored.run_id)
    with pytest.raises(MissingRun, match=f"{stored.run_id}: .* the run is not stored; train it again"):
        errors.error_table(stored.run_id)


def test_errors_of_classes_with_names_have_the_names(monkeypatch):
    fields = dict(files="{split}.tsv", sentence_columns=("headline",), label_column="topic")
    monkeypatch.setitem(TASKS, "topics", Task(name="topics", kind="classes", class_names=("sport", "snow"), **fields))
    assert errors.error_kinds("topics", np.array([0.0, 0, 1]), np.array([0, 1, 0])).tolist() == [
        "", "snow as sport", "sport as snow",
    ]  # fmt: skip
    monkeypatch.setitem(TASKS, "price", Task(name="price", kind="regression", label_range=(0, 100), **fields))
    assert errors.error_kinds("price", np.array([40.0, 40]), np.array([20, 5])).tolist() == ["", "too high"]


def losses_of_each(model: MultitaskBert, task: str, split: str, data: Path) -> torch.Tensor:
    """The loss of every example of a split (N,), each in a batch of its own."""
    rows = prepare_task(model, task, load_table(task, split, data)[0], torch.device("cpu"))
    losses = []
    for i in range(len(rows)):
        logits = model({task: rows.tokens.batch(np.array([i]))})[task]
        losses.append(task_loss(TASKS[task], logits, rows.labels[[i]]))
    return torch.stack(losses)


def test_a_conflict_is_a_step_that_raises_the_examples_loss(stored, course_folder):
    """A step of the shared layers along the mean gradient of the other task."""
    found = interference.conflicts(stored, 40, device="cpu")  # all examples: 20 of dev, 40 of train
    assert found.groupby(["task", "other"]).size().to_dict() == {("sst", "quora"): 20, ("quora", "sst"): 20}
    model = load_model(stored.run_id).eval()
    layers = [p for name, p in model.named_parameters() if name.startswith("encoder.layers.")]
    for (task, other), cosines in found.groupby(["task", "other"])["cosine"]:
        before = losses_of_each(model, task, "dev", course_folder)
        gradients = torch.autograd.grad(losses_of_each(model, other, "train", course_folder).mean(), layers)
        with torch.no_grad():
            for parameter, gradient in zip(layers, gradients, strict=True):
                parameter -= 0.001 * gradient
            is_raised = (losses_of_each(model, task, "dev", course_folder) > before).numpy()
            for parameter, gradient in zip(layers, gradients, strict=True):
                parameter += 0.001 * gradient
        is_clear = cosines.abs() > 0.01
        assert is_raised[is_clear].tolist() == (cosines < 0)[is_clear].tolist()
        assert 0 < is_raised[is_clear].mean() < 1, "examples of both kinds"


def test_the_mean_gradient_is_that_of_all_examples(stored, course_folder):
    model = MultitaskBert(stored.config).eval()
    shared = [p for name, p in model.shared_parameters().items() if name.startswith("encoder.layers.")]
    rows = prepare_task(model, "sst", load_table("sst", "train", course_folder)[0], torch.device("cpu"))
    whole = interference._gradient(model, "sst", rows, np.arange(len(rows)), shared)
    single = [interference._gradient(model, "sst", rows, np.array([i]), shared) for i in range(len(rows))]
    assert torch.allclose(whole, torch.stack(single).mean(0), atol=1e-6)


def test_the_gradient_of_layers_that_a_task_does_not_read_is_zero(stored, course_folder):
    config = stored.config.but(tasks=("sst", "quora", "sts"), plan="S1(sst,quora|sts)", layers=1, score_tasks=())
    model = MultitaskBert(config).eval()
    shared = [p for name, p in model.shared_parameters().items() if name.startswith("encoder.layers.")]
    rows = prepare_task(model, "sts", load_table("sts", "train", course_folder)[0], torch.device("cpu"))
    assert shared and not interference._gradient(model, "sts", rows, np.arange(3), shared).any()


def test_a_table_that_cannot_be_kept_is_returned_all_the_same(stored, caplog):
    kept = results_dir() / "probabilities"
    kept.write_text("no folder")
    assert probabilities.probabilities(stored, "sst", device="cpu").shape == (20, 5)
    assert "cannot be written" in caplog.text and "MTBERT_RESULTS names another folder" in caplog.text


def on_task(task, labels, predicted, probabilities=None):
    """Systems of a task from predictions (S, N) by name."""
    labels = np.array(labels, dtype=float)
    predicted = {name: np.array(rows, dtype=float) for name, rows in predicted.items()}
    far = {name: np.abs(rows - labels) for name, rows in predicted.items()}
    wrong = {name: gap if TASKS[task].is_number else (gap > 0).astype(float) for name, gap in far.items()}
    return Systems(task, labels, wrong, predicted, probabilities or {})


QUESTIONS = on_task("quora", [1, 1, 0, 0], {"a": [[1, 0, 1, 0], [1, 0, 0, 0]], "b": [[1, 0, 0, 1]]})


def test_rates_and_shares_of_errors_by_hand():
    rates = QUESTIONS.rates("a")
    assert rates["precision"][0] == pytest.approx((1 / 2 + 1) / 2) and rates["recall"][0] == pytest.approx(1 / 2)
    assert rates["F1"][0] == pytest.approx((1 / 2 + 2 / 3) / 2)
    false = (QUESTIONS.predicted["a"] == 1) & (QUESTIONS.labels == 0)
    assert QUESTIONS.share_of_errors("a", false)[0] == pytest.approx((1 / 2 + 0) / 2)
    assert QUESTIONS.wrong_in_all().tolist() == [False, True, False, False]


def test_a_disagreement_is_compared_with_the_seeds_own():
    pairs, excess = QUESTIONS.against_seeds(QUESTIONS.disagreement, "a", "b")
    assert pairs["a", "a"][0] == pytest.approx(1 / 4) and pairs["a", "b"][0] == pytest.approx((2 / 4 + 1 / 4) / 2)
    assert np.isnan(pairs["b", "b"][0]) and np.isnan(excess[0])  # one seed
    oracle, _ = QUESTIONS.against_seeds(QUESTIONS.oracle_error, "a", "b")
    assert oracle["a", "b"][0] == pytest.approx(1 / 4)  # all but the example that all get wrong


def test_the_slope_and_correlation_of_predictions_that_are_spread_too_wide():
    labels = np.linspace(0, 5, 30)
    on = on_task("sts", labels, {"a": [2 * labels - 2]})
    assert on.slope("a")[0] == pytest.approx(0.5) and on.correlation("a")[0] == pytest.approx(1)
    assert np.isnan(on.resamples.over_pairs("a", "a", np.ones((1, 1, 2001)))).all(), "no two different seeds"


def test_confusion_is_a_share_of_each_label():
    found = errors.confusion(np.array([[0, 1, 1], [0, 0, 1]]), np.array([0, 0, 1]), classes=2)
    assert found.tolist() == [[0.75, 0.25], [0, 1]]


def test_precision_and_recall_of_the_most_probable_examples():
    recall, precision = errors.precision_recall_curve(np.array([0.2, 0.9, 0.5]), np.array([1, 1, 0]))
    assert recall.tolist() == [0.5, 0.5, 1] and precision == pytest.approx([1, 1 / 2, 2 / 3])


def test_a_group_is_not_hard_for_its_labels_alone():
    labels, values = np.repeat([0, 1], 200), np.repeat([0.0, 1.0], 200)[None]  # label 1 is always wrong
    mask = np.arange(400) >= 250
    draws = Resamples(400, {"one": 1})
    adjusted = groups.inside_minus_outside(draws, "one", values, labels, mask)
    assert adjusted[0] == pytest.approx(0) and draws.mean("one", values, mask)[0] == pytest.approx(1)
    harder = groups.inside_minus_outside(draws, "one", values + mask, labels, mask)
    assert harder[0] == pytest.approx(1 / 4 + 50 * 3 / 4 / 250)


def test_a_conflict_that_is_the_label_alone_has_no_effect_at_equal_labels():
    random = np.random.default_rng(0)
    labels = np.repeat([0.0, 1.0], 200)
    cosine, lost = (sign * labels + random.normal(size=400) / 10 for sign in (-1, 1))
    effect = interference.conflict_effect(cosine, lost, labels)
    assert effect.correlation.high < -0.5 and abs(effect.at_equal_labels.value) < 0.2
    assert effect.in_conflict.value == pytest.approx((cosine < 0).mean(), abs=1e-6)


def test_another_plan_is_compared_over_its_seeds():
    """Two seeds of b that lie far apart: of these two the mean of three is better, of others it may not be."""
    labels = np.linspace(0, 5, 200)
    noise = np.random.default_rng(0).normal(size=(5, 200))
    close = labels + noise[:3] / 2
    apart = labels + noise[3:] * np.array([[0.1], [5]])
    on = on_task("sts", labels, {"a": close, "b": apart})
    table = remedies.judge_trials(remedies.three_in_one(on, "a", "b")).set_index("remedy")
    of_itself, of_other = (table.loc[f"mean of three a against one {name}"] for name in "ab")
    assert of_itself["verdict"] == "better" and of_other["value"] > of_itself["value"]
    assert of_other["verdict"] == "not shown" and of_other["low"] < 0 < of_other["high"]


def test_remedies_gain_where_they_are_the_cure():
    random = np.random.default_rng(0)
    labels = random.integers(2, size=400)
    right = np.where(random.random((2, 400)) < 0.8, labels, 1 - labels)  # seeds that are right in 80 of 100
    p = np.where(np.arange(2) == right[..., None], 0.999, 0.001)  # and far too sure of it
    on = on_task("quora", labels, {"a": right, "b": right[::-1]}, {"a": p, "b": p[::-1]})
    trials = [remedies.temperature_scaling(on, "a"), remedies.threshold(on, "a"), *remedies.averages(on, "a", "a", "b")]
    table = remedies.judge_trials(trials).set_index("remedy")
    assert table["verdict"]["temperature scaling"] == "better" and table["value"]["temperature scaling"] > 0
    assert trials[0].change.value < 0  # a lower log loss is a gain
    assert remedies.judge_trials([]).empty
    assert table["verdict"]["threshold"] == "no difference that matters", "it changes nothing"
    assert remedies.mean_class(np.array([[0.5, 0.0, 0.5]])).tolist() == [1]


def test_shares_are_said_in_per_cent():
    assert Estimate(0.7851, 0.7502, 0.8204, 0.0).percent() == "79% (75 to 82%)"
