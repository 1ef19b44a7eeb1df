"""Measured memory and time beside what was predicted of them."""

import pandas as pd
import pytest
import torch

from benchmarks import predictions
from benchmarks.predictions import (
    check_runs,
    count_lengths,
    measure_grid,
    measured_peak,
    measured_steps,
    predicted_peak,
    step_shapes,
)
from mtbert.data.tables import DataError
from mtbert_lab.cost.dry_run import PARTS
from mtbert_lab.cost.forecast import Forecast
from mtbert_lab.cost.lengths import read_lengths
from mtbert_lab.paths import find_data, results_dir
from mtbert_lab.store.runs import load_or_run
from mtbert_lab.store.tables import write_table

THREE = ("sst", "quora", "sts")
PAL = {"adapter": "pal", "adapter_size": 8, "adapter_heads": 2}


@pytest.mark.parametrize(
    "fields, shape",
    [
        ({}, (16, 96)),
        ({"plan": "3-bert", **PAL}, (8, 64)),
        ({"gradients": "pcgrad"}, (4, 32)),
        ({"accumulation": 4, "r_drop": 1.0, "ema": 0.99}, (16, 96)),
        ({"gradients": "agem", "scheme": "sampled"}, (4, 32)),
        ({"gradients": "gem"}, (4, 32)),
        ({"precision": "bf16"}, (16, 96)),
    ],
    ids=str,
)
def test_the_measured_peak(one_epoch, fields, shape):
    config, shapes = one_epoch.but(**fields), dict.fromkeys(THREE, shape)
    assert predicted_peak(config, shapes)["total"] == pytest.approx(measured_peak(config, shapes), rel=0.1)


def test_a_measured_step_in_a_process_of_its_own():
    table = measure_grid({"frozen": measured_steps()["frozen"]})
    assert table["name"].tolist() == ["frozen"] and table["device"].tolist() == ["cpu"]
    assert table["predicted"].item() == pytest.approx(table["measured"].item(), rel=0.1)
    assert table[PARTS].sum(axis=1).item() == pytest.approx(table["predicted"].item())


def test_the_measured_steps_are_as_they_are_described():
    steps = measured_steps()
    assert step_shapes(steps["long texts"]) == {"cfimdb": (8, 256)}
    assert step_shapes(steps["PCGrad"]) == dict.fromkeys(THREE, (8, 32))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_peak_of_a_gpu(one_epoch, precision):
    config, shapes = one_epoch.but(precision=precision), dict.fromkeys(THREE, (64, 128))
    measured = measured_peak(config, shapes, "cuda")
    assert predicted_peak(config, shapes, cuda=True)["total"] == pytest.approx(measured, rel=0.25)


def test_lengths_without_the_data(one_epoch, course_data, monkeypatch):
    counts = count_lengths(one_epoch)
    assert set(counts.columns) == {"task", "split", "pairs", "tokens", "rows"}
    assert counts.groupby(["split", "pairs", "task"])["rows"].sum().to_dict() == {
        (split, pairs, task): size for split, size in (("train", 40), ("dev", 20)) for pairs in ("joint", "apart")
        for task in THREE
    }  # fmt: skip
    here = read_lengths(one_epoch)
    monkeypatch.setattr("mtbert_lab.store.corpora.find_data", lambda path=None: None)
    with pytest.raises(DataError, match="files are not here"):
        read_lengths(one_epoch)
    write_table(counts, results_dir() / "lengths.csv")
    stored = read_lengths(one_epoch)
    with monkeypatch.context() as patch, pytest.raises(DataError, match="typo"):
        patch.setattr("mtbert_lab.store.corpora.find_data", find_data)
        read_lengths(one_epoch, "typo")
    for split in ("train", "dev"):
        for task in THREE:
            assert sorted(getattr(stored, split)[task]) == sorted(getattr(here, split)[task])
    short = read_lengths(one_epoch.but(max_length=8, train_rows=5, pairs="sum"))
    assert all(len(part) == 5 and part.max() <= 8 for part in short.train.values())
    swapped = read_lengths(one_epoch.but(augment="swap"))
    assert {task: len(part) for task, part in swapped.train.items()} == {"sst": 40, "quora": 80, "sts": 80}
    write_table(counts[counts["task"] != "sts"], results_dir() / "lengths.csv")
    with pytest.raises(DataError, match="has no sts"):
        read_lengths(one_epoch)


def test_stored_runs_next_to_their_predictions(one_epoch, speeds, course_data):
    run, other = (load_or_run(one_epoch.but(seed=seed), device="cpu", progress=False) for seed in (1, 2))
    table = check_runs(results_dir(), course_data).set_index("run_id")
    row, expected = table.loc[run.run_id], Forecast(run.config, read_lengths(run.config))
    assert row["predicted_mib"] == pytest.approx(expected.process_mib(), rel=0.01)
    seconds = expected.training_tokens * speeds.speed.training
    assert row["predicted_seconds"] == pytest.approx(seconds, rel=0.05)  # of one of the seeds
    assert row["peak_memory_mib"] == run.cost["peak_memory_mib"]
    assert row["train_cpu_seconds"] == run.cost["train_cpu_seconds"]
    assert table.loc[other.run_id, "predicted_seconds"] == row["predicted_seconds"] and len(speeds.asked) == 1


def test_a_stored_run_that_cannot_be_predicted_is_left_out(one_epoch, speeds, course_data, monkeypatch, caplog):
    run = load_or_run(one_epoch, device="cpu", progress=False)
    monkeypatch.setattr("mtbert_lab.store.corpora.find_data", lambda path=None: None)
    assert check_runs(results_dir(), None).empty
    assert f"{run.run_id}: no prediction" in caplog.text


def test_the_time_of_a_stored_run_contains_the_pass_that_makes_features(one_epoch, speeds, course_data, changed_run):
    run = load_or_run(one_epoch, device="cpu", progress=False)
    with changed_run(results_dir() / "runs" / run.run_id) as content:
        assert content["cost"]["feature_cpu_seconds"] == 0.0  # nothing is frozen
        content["cost"]["feature_cpu_seconds"] = 100.0
    [spent] = check_runs(results_dir(), course_data)["train_cpu_seconds"]
    assert spent == run.cost["train_cpu_seconds"] + 100


def test_measurements_are_written(speeds, course_data, tmp_path, monkeypatch):
    measured = pd.DataFrame({"name": ["one"], "measured": [1 / 3]})
    monkeypatch.setattr(predictions, "measure_grid", lambda configs, device: measured)
    monkeypatch.setattr(predictions, "count_lengths", lambda config, data: pd.DataFrame({"task": list(config.tasks)}))
    monkeypatch.setattr(predictions, "baseline_table", lambda config, *how: pd.DataFrame({"task": list(config.tasks)}))
    paths = list(predictions.renew_measurements(tmp_path, "cpu", 1, course_data))
    assert [path.name for path in paths] == ["memory.csv", "lengths.csv", "baselines.csv", "runs_predicted.csv"]
    assert pd.read_csv(paths[2])["task"].tolist() == ["sst", "cfimdb", "quora", "sts"]
    assert (tmp_path / "memory.csv").read_text() == "name,measured\none,0.333333\n"
    assert not list(tmp_path.glob(".*"))
