"""The store: a run is trained once, stored whole or not at all, and found with and without the data."""

import importlib
import json
import logging
import shutil
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from filelock import FileLock, Timeout

from mtbert.bert.hub import CheckpointError, locate
from mtbert.config import RunConfig
from mtbert.data import TASKS, demo
from mtbert.data.tables import DataError, load_table
from mtbert.metrics import OWN_METRICS, accuracy
from mtbert.paths import REPOSITORY
from mtbert.sharing import ADAPTERS
from mtbert.training.task_data import predict_table
from mtbert_lab.paths import results_dir
from mtbert_lab.store import corpora, folders, removal, runs
from mtbert_lab.store.compare import difference, scored, seeds_of_configurations, stack_predictions, summarize
from mtbert_lab.store.corpora import data_root
from mtbert_lab.store.folders import read_run, run_folder, stored_runs, write_run
from mtbert_lab.store.grids import read_grid, read_grids
from mtbert_lab.store.listing import find_run, is_of_files_here, list_runs
from mtbert_lab.store.loading import load_model
from mtbert_lab.store.models import has_model, model_folder, remove_model, run_lock
from mtbert_lab.store.removal import cache_contents, clear_models, forget
from mtbert_lab.store.run import MissingRun, Run, StoreError
from mtbert_lab.store.runs import stored_seeds

THREE = RunConfig(tasks=("sst", "quora", "sts"), scheme="unified", keep="last")


@pytest.fixture
def config(tiny_config) -> RunConfig:
    return tiny_config.but(epochs=1, frozen=True)


@pytest.fixture
def fewer_rows(course_data, tmp_path, cut) -> Path:
    """A copy of the data whose training split of SST lacks three rows."""
    other = Path(shutil.copytree(course_data, tmp_path / "other"))
    cut(other / "ids-sst-train.csv", 3)
    return other


@pytest.fixture
def own_data(course_folder, tmp_path, monkeypatch) -> Path:
    """A copy of the data, for a test that changes them, found through MTBERT_DATA."""
    data = Path(shutil.copytree(course_folder, tmp_path / "data"))
    monkeypatch.setenv("MTBERT_DATA", str(data))
    return data


def refuse(*args, **kwargs):
    raise AssertionError("trained")


def assert_same(first: Run, second: Run) -> None:
    assert (first.run_id, first.config, first.cost) == (second.run_id, second.config, second.cost)
    assert first.provenance == second.provenance
    for name in ("scores", "curve", "predictions"):
        table, other = getattr(first, name), getattr(second, name)
        pd.testing.assert_frame_equal(table, other, check_dtype=False)


def test_trained_once_and_loaded_after(config, course_data, monkeypatch, run_of):
    trained = run_of(config)
    monkeypatch.setattr(runs, "train", refuse)
    assert_same(trained, run_of(config))
    assert_same(trained, run_of(config, data=course_data, store=results_dir()))
    with pytest.raises(AssertionError, match="trained"):
        run_of(config.but(seed=2))


def test_runs_are_listed_in_the_order_of_their_seeds(config, course_data, run_of):
    for seed in (10, 2, 1):
        run_of(config.but(seed=seed))
    assert list_runs()["seed"].tolist() == ["1", "2", "10"]


def test_a_score_is_that_of_the_metric_that_the_task_has_today(config, course_data, monkeypatch, run_of):
    """Also one that was registered after the run."""
    run = run_of(config)
    macro_f1 = float(run.scores.loc[run.scores["metric"] == "macro_f1", "value"].iloc[0])
    assert run.score("sst") != macro_f1
    monkeypatch.setitem(TASKS, "sst", TASKS["sst"].model_copy(update={"metric": "macro_f1"}))
    assert run.score() == run.score("sst") == macro_f1
    assert list_runs()["dev scores"].tolist() == [f"sst macro_f1 {macro_f1:.3f}"]
    monkeypatch.setitem(OWN_METRICS, "bad", lambda predicted, labels: (predicted != labels).mean(-1))
    monkeypatch.setitem(TASKS, "sst", TASKS["sst"].model_copy(update={"metric": "bad"}))
    dev = run.predictions
    assert run.score() == (dev["predicted"] != dev["label"]).mean()


def test_a_metric_of_ones_own_may_take_one_run_at_a_time(config, course_data, monkeypatch, run_of):
    """Functions of predictions and labels, both (N,), as docs/own_code.md says."""
    monkeypatch.setitem(OWN_METRICS, "near", lambda predicted, labels: -float(np.abs(predicted - labels).mean()))
    monkeypatch.setitem(TASKS, "sst", TASKS["sst"].model_copy(update={"metric": "near"}))
    run = run_of(config)
    row = run.scores.set_index("metric").loc["near"]
    assert row["low"] < row["value"] < row["high"] < 0
    assert summarize([run, run_of(config.but(seed=2))])["lowest seed"] < 0


def test_a_number_has_no_confidence_which_would_overflow(config, course_data, monkeypatch, run_of):
    monkeypatch.setitem(TASKS, "sts", TASKS["sts"].model_copy(update={"label_range": (0, 1e6)}))
    stored = run_of(config.but(tasks=("sts",), pairs="sum"))
    assert stored.predictions["confidence"].isna().all() and np.isfinite(stored.predictions["predicted"]).all()


def test_what_a_run_holds(config, course_data, run_of):
    run = run_of(config.but(score_tasks=("sts",), pairs="sum"))
    digest, fingerprint = run.run_id.split("-")
    assert digest == run.config.digest and run.provenance["data"].startswith(fingerprint)
    assert run.provenance["rows"] == {"train sst": 40, "dev sst": 20, "dev sts": 20}
    assert run.provenance["torch"] == torch.__version__
    dev = run.predictions[run.predictions["task"] == "sst"]
    assert run.score() == run.score("sst") == (dev["predicted"] == dev["label"]).mean()
    assert run.score("sts") != run.score()
    metrics = run.scores.groupby("task")["metric"].agg(list).to_dict()
    assert metrics == {"sst": ["accuracy", "macro_f1"], "sts": ["pearson"]}
    assert run.cost["trained_parameters"] == 32 * 5 + 5 + 32 + 1


def test_the_tidy_table(config, course_data, run_of):
    stored = [run_of(config.but(seed=seed, evals_per_epoch=2)) for seed in (1, 2)]
    scores = pd.read_csv(results_dir() / "scores.csv")
    assert list(scores.columns) == [
        "run_id", "trained_on", "corpus", "encoder", "weights", "frozen", "plan", "adapter", "pooling", "pairs",
        "scheme", "sampling", "gradients", "precision", "seed", "other_fields",
        "task", "split", "metric", "value", "low", "high", "n", "steps", "tokens",
        "train_seconds", "peak_memory_mib", "parameters", "trained_parameters", "device", "mtbert",
    ]  # fmt: skip
    for run in stored:
        rows = scores[scores["run_id"] == run.run_id]
        assert set(rows["seed"]) == {run.config.seed} and set(rows["trained_on"]) == {"sst"}
        assert json.loads(rows["other_fields"].iloc[0])["batch_size"] == 8, "every field that differs is stored"
        assert rows["value"].tolist() == pytest.approx(run.scores["value"].tolist(), abs=1e-6)
    assert len(scores) == 4


def stored_files() -> list[str]:
    return sorted(path.name for path in results_dir().rglob("*") if path.is_file() and path.name != ".lock")


def test_a_runs_files_are_on_the_disk_before_they_get_its_name(config, course_data, monkeypatch, run_of):
    flushed = []

    def flush(path: Path) -> None:
        assert not (results_dir() / "runs" / f"{config.digest}-{path.parent.name.split('-')[1][:8]}").exists()
        flushed.append(path.name)

    monkeypatch.setattr(folders, "flush", flush)
    run = run_of(config)
    assert sorted(flushed) == sorted(path.name for path in (results_dir() / "runs" / run.run_id).iterdir())


def test_two_threads_that_ask_for_one_run_train_it_once(config, course_data, monkeypatch, train_counted, run_of):
    asked, both_ask = [], threading.Event()

    def lock(*which):
        asked.append(which)
        if len(asked) == 2:
            both_ask.set()
        return run_lock(*which)

    def wait(config):
        assert both_ask.wait(30)

    monkeypatch.setattr(runs, "run_lock", lock)
    trained, found = train_counted(wait), []
    threads = [threading.Thread(target=lambda: found.append(run_of(config))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert trained == [1] and len(found) == 2 and found[0].provenance == found[1].provenance


def test_two_processes_that_finish_the_same_run_leave_one(config, course_data, run_of):
    run = run_of(config)
    before = stored_files()
    write_run(replace(run, cost=run.cost | {"steps": 99}), results_dir())
    assert stored_files() == before
    assert_same(run, run_of(config, train_missing=False))


def test_what_killed_processes_left_is_removed(config, course_data, run_of):
    kept = results_dir() / "runs" / ".gitkeep"
    left = [results_dir() / name for name in (".scores.csv.77", "dev/.sst-0123.parquet.77", "runs/.id-1.77/run.json")]
    for path in (kept, *left):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    corpus = corpora.load_corpus(config, course_data)
    partial = model_folder(f"{config.digest}-{corpus.fingerprint[:8]}") / ".checkpoint.pt.77"
    partial.parent.mkdir(parents=True)
    partial.touch()
    run_of(config)
    assert kept.exists() and not partial.exists() and not any(path.parent.exists() for path in left[2:])
    assert not any(path.exists() for path in left)


def test_a_missing_run_is_named_and_not_trained(config, course_data, monkeypatch, run_of):
    monkeypatch.setattr(runs, "train", refuse)
    with pytest.raises(MissingRun, match=rf"{config.digest} \(tasks sst, seed 1\).*mtbert train"):
        run_of(config, train_missing=False)


def test_a_stored_run_is_found_without_the_data(config, course_data, monkeypatch, run_of):
    run = run_of(config)
    monkeypatch.delenv("MTBERT_DATA")
    monkeypatch.setattr(corpora, "find_data", lambda path=None: None)
    assert_same(run, run_of(config, train_missing=False))
    with pytest.raises(DataError, match=r"--data or MTBERT_DATA.*mtbert data fetch.*corpus to 'demo'"):
        run_of(config)


def test_of_two_versions_of_the_data_the_one_that_is_here_is_taken(config, course_data, tmp_path, run_of, fewer_rows):
    first = run_of(config)
    second = run_of(config, data=fewer_rows)
    assert first.run_id != second.run_id and second.provenance["rows"]["train sst"] == 37
    assert run_of(config, data=fewer_rows, train_missing=False).run_id == second.run_id
    assert run_of(config, train_missing=False).run_id == first.run_id
    newest = run_of(config, data=tmp_path / "nothing", train_missing=False)
    assert newest.run_id in {first.run_id, second.run_id}, "without data one of them"


def test_changed_dev_data_make_another_run(config, course_data, tmp_path, run_of):
    first = run_of(config)
    other = shutil.copytree(course_data, tmp_path / "other")
    path = other / "ids-sst-dev.csv"
    path.write_text(path.read_text().replace("dull", "drab"))
    assert run_of(config, data=other).run_id != first.run_id


def test_a_stored_configuration_that_differs_is_refused(config, course_data, run_of, changed_run):
    run = run_of(config)
    folder = results_dir() / "runs" / run.run_id
    with changed_run(folder) as content:
        content["config"]["batch_size"] = 16
    with pytest.raises(ValueError, match=f"{run.run_id}: has another configuration"):
        run_of(config)
    assert read_run(folder).config == config.but(batch_size=16)


def test_the_trained_model_is_kept_and_the_checkpoint_is_not(config, course_data, run_of):
    run = run_of(config.but(frozen=False, epochs=2))
    assert not list(model_folder(run.run_id).glob("checkpoint*"))
    model = load_model(run.run_id)
    table, _ = load_table("sst", "dev", course_data)
    again = predict_table(model, "sst", table, "dev", device="cpu")
    stored = {"label": "float32", "predicted": "float32", "confidence": "float16"}
    again = again.astype(stored).astype({"confidence": "float32"})
    pd.testing.assert_frame_equal(again, run.predictions, check_exact=True)


def test_the_content_of_an_encoder_names_a_run(config, course_data, tmp_path, monkeypatch, run_of):
    """Not the path of its folder: other weights in the same folder make another run, another path does not."""
    folder = shutil.copytree(config.encoder, tmp_path / "encoder")
    first = run_of(config.but(encoder=str(folder)))
    assert first.run_id == run_of(config).run_id
    monkeypatch.chdir(tmp_path)
    assert config.but(encoder="encoder").digest == config.digest
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
    (folder / "SHA256SUMS").unlink()
    assert run_of(config.but(encoder=str(folder))).run_id != first.run_id
    packaged = shutil.copytree(locate("minilm"), tmp_path / "minilm")
    assert RunConfig(encoder=str(packaged)).digest == RunConfig().digest


def test_ids_and_labels_are_stored_once(config, course_data, run_of):
    first, second = run_of(config), run_of(config.but(seed=2))
    assert len(list((results_dir() / "dev").iterdir())) == 1
    assert first.predictions["id"].tolist() == second.predictions["id"].tolist()
    (results_dir() / "dev" / next((results_dir() / "dev").iterdir()).name).rename(results_dir() / "moved.parquet")
    with pytest.raises(StoreError, match=r"sst-\w+\.parquet is missing.*restore it"):
        run_of(config)


def test_a_run_is_found_by_its_id_and_by_its_name_in_a_grid(config, course_data, tmp_path, run_of):
    first, second = run_of(config), run_of(config.but(seed=2))
    assert [find_run(run.run_id[:9]) for run in (first, second)] == [first.run_id, second.run_id]
    grid = tmp_path / "grid.yaml"
    fields = config.model_dump(mode="json", exclude_defaults=True)
    runs = {"half a run": fields, "other": fields | {"epochs": 7, "seeds": [1]}}
    grid.write_text(yaml.safe_dump({"seeds": [1, 2], "runs": runs}))
    assert find_run(f"{grid}:half a run:2") == second.run_id
    for name in (f"{grid}:half a run:2", second.run_id[:9]):
        assert load_model(name).run_config == second.config
    for text, message in (
        (f"{grid}:half a run", f"fits 2 runs: {', '.join(sorted([first.run_id, second.run_id]))}; name one"),
        (f"{grid}:other", "fits 0 runs; `mtbert train .*grid.yaml --only other` trains it"),
        (f"{grid}:other:9", "'other' has no seed 9; it has 1"),
        (f"{grid}:none", "has no run 'none'; it has half a run, other"),
        ("zz", "'zz' fits 0 runs; `mtbert runs` lists them"),
        ("", "'' fits 0 runs"),
    ):
        with pytest.raises(MissingRun, match=message):
            find_run(text)


def test_of_several_versions_of_the_data_that_of_the_files_here_is_meant(
    config, own_data, grid_of, monkeypatch, run_of, cut
):
    old = run_of(config)
    assert "data" not in list_runs()
    cut(own_data / "ids-sst-train.csv", 1)
    new = run_of(config)
    grid = grid_of(config)
    assert find_run(f"{grid}:one:1") == new.run_id != old.run_id
    versions = list_runs([grid]).set_index("run id")["data"].to_dict()
    assert versions == {old.run_id: "of other files", new.run_id: "of the files here"}
    monkeypatch.delenv("MTBERT_DATA")
    assert find_run(f"{grid}:one:1", own_data) == new.run_id
    monkeypatch.setattr(corpora, "find_data", lambda path=None: None)
    with pytest.raises(MissingRun, match="fits 2 runs"):
        find_run(f"{grid}:one:1")


def test_seeds_are_all_of_one_version_of_the_data(config, own_data, monkeypatch, run_of, cut):
    """That of the files here, if a seed has it; else the one that most seeds have."""
    seeds = [config.but(seed=seed) for seed in (1, 2, 3)]
    many = [run_of(seed).run_id for seed in seeds[:2]]
    cut(own_data / "ids-sst-train.csv", 1)
    assert [run.run_id for run in stored_seeds(seeds)] == many
    few = [run_of(seed).run_id for seed in seeds[1:2]]
    assert [run.run_id for run in stored_seeds(seeds)] == few
    monkeypatch.setattr(corpora, "find_data", lambda path=None: None)
    assert [run.run_id for run in stored_seeds(seeds)] == many
    assert stored_seeds(seeds[2:]) == []


def test_seeds_with_training_rows_of_their_own_belong_together(config, course_data, run_of):
    seeds = [config.but(seed=seed, train_rows=8) for seed in (1, 2)]
    assert [run.run_id for run in stored_seeds(seeds)] == []
    own = [run_of(seed).run_id for seed in seeds]
    assert len({run_id.partition("-")[2] for run_id in own}) == 2
    assert [run.run_id for run in stored_seeds(seeds)] == own


def test_who_lists_runs_is_not_told_of_rejected_rows(config, own_data, grid_of, caplog, run_of):
    old = run_of(config)
    with open(own_data / "ids-sst-train.csv", "a") as file:
        file.write("40\tx40\ta fine end\t9\n40\tx41\ta fine end\t3\n")
    with caplog.at_level("WARNING"):
        assert not corpora.is_of_files_here(old.run_id, config) and not caplog.text
        new = run_of(config)
        assert "9 is outside 0..4" in caplog.text, "where it is trained"
        caplog.clear()
        assert "of the files here" in list_runs()["data"].tolist()
        assert find_run(f"{grid_of(config)}:one:1") == new.run_id
    assert not caplog.text


def test_a_run_is_found_by_its_name_in_another_form_of_unicode(config, course_data, grid_of, run_of):
    run = run_of(config)
    composed, apart = "caf\u00e9", "cafe\u0301"
    grid = grid_of(config, apart)
    assert find_run(f"{grid}:{composed}:1") == find_run(f"{grid}:{apart}") == run.run_id
    assert [name for name, _ in read_grids([grid], only=composed)] == [apart]
    assert len(list_runs([grid], text=composed)) == 1


def test_an_encoder_is_named_relative_to_its_grid(config, course_data, tmp_path, grid_of, run_of):
    shutil.copytree(config.encoder, tmp_path / "encoders" / "tiny")
    grid = grid_of(config, encoder="encoders/tiny")
    [one] = read_grid(grid)["one"]
    run = run_of(one)
    assert run.run_id.startswith(config.digest), "the same content"
    assert list_runs([grid])["name"].tolist() == ["one"]
    (tmp_path / "encoders").rename(tmp_path / "moved")
    assert is_of_files_here(run.run_id, one), "the data are here, without the encoder, too"


def test_all_runs_with_unknown_names_are_left_out_and_one_warning(config, course_data, caplog, run_of, changed_run):
    """As of a user's task whose YAML file is not there: the other runs are read as before."""
    known = run_of(config.but(seed=4))
    for seed in (1, 2, 3):
        run = run_of(config.but(seed=seed))
        folder = results_dir() / "runs" / run.run_id
        with changed_run(folder) as content:
            content["config"] |= {"tasks": ["topics"]} if seed < 3 else {"adapter": "mine"}
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert list_runs()["run id"].tolist() == [known.run_id]
    [record] = caplog.records
    assert " and 1 more: tasks: 'topics' is not known; MTBERT_TASKS names" in record.message
    assert f"{run.run_id}: adapter: 'mine' is not known; --import FILE.py runs your own" in record.message
    with pytest.raises(StoreError, match="adapter: 'mine' is not known"):
        read_run(folder)


def test_the_list_names_adapters_and_gradient_methods(config, course_data, run_of):
    run_of(config.but(tasks=["sst", "sts"], scheme="unified", frozen=False, adapter="lhuc", gradients="pcgrad"))
    assert list_runs()[["adapter", "gradients"]].to_numpy().tolist() == [["lhuc", "pcgrad"]]


def module_of(folder, text: str, monkeypatch):
    """The module mine, imported anew from this text."""
    (folder / "mine.py").write_text(text)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a file of the same second and size would count as it
    monkeypatch.syspath_prepend(folder)
    sys.modules.pop("mine", None)
    importlib.invalidate_caches()
    return importlib.import_module("mine")


ADAPTER = """
from mtbert.sharing import Adapter

class Mine(Adapter):
    def after_layer(self, depth, x):
        return x * {}
"""


def test_changed_code_of_ones_own_is_another_run(config, course_data, tmp_path, monkeypatch, run_of):
    runs_of = []
    for factor in (1, 5, 1):
        module = module_of(tmp_path, ADAPTER.format(factor), monkeypatch)
        monkeypatch.setitem(ADAPTERS, "mine", module.Mine)
        runs_of.append(run_of(config.but(adapter="mine")))
    first, changed, as_before = runs_of
    assert first.run_id == as_before.run_id != changed.run_id
    assert not first.predictions["confidence"].equals(changed.predictions["confidence"])
    assert load_model(first.run_id)
    with pytest.raises(CheckpointError, match=r"another version of .*the code of adapter mine than the one here"):
        load_model(changed.run_id)
    for factor, run in ((1, first), (5, changed)):
        monkeypatch.setitem(ADAPTERS, "mine", module_of(tmp_path, ADAPTER.format(factor), monkeypatch).Mine)
        [seeds] = seeds_of_configurations([results_dir()]).values()
        assert [folder.name for folder, _ in seeds.values()] == [run.run_id], "one of the other code is no seed of it"


def test_models_are_cleared_oldest_first_and_only_if_they_can_be_trained_again(config, course_data, run_of):
    old, new, not_stored, foreign = (run_of(config.but(seed=seed)) for seed in (2, 1, 3, 4))
    shutil.rmtree(results_dir() / "runs" / not_stored.run_id)
    total = sum(size for _, size, _ in cache_contents())
    assert clear_models(total) == {}
    with run_lock(foreign.run_id):  # another process trains it
        assert list(clear_models(total - 1)) == [old.run_id]
        assert list(clear_models(0)) == [new.run_id]
    assert [has_model(run.run_id) for run in (old, new, not_stored, foreign)] == [False, False, True, True]


def test_the_run_that_brings_the_cache_to_its_limit_says_so(config, course_data, monkeypatch, caplog, run_of):
    run_of(config)
    monkeypatch.setattr("mtbert_lab.store.models.CACHE_LIMIT", sum(size for _, size, _ in cache_contents()) + 1)
    for seed in (2, 3):
        run_of(config.but(seed=seed))
        told = [text for text in caplog.messages if "mtbert cache --clear" in text]
        assert len(told) == 1, "once, by the second run"


def test_models_without_data_stay(config, course_data, monkeypatch, run_of):
    run = run_of(config)
    monkeypatch.delenv("MTBERT_DATA")
    monkeypatch.setattr(corpora, "find_data", lambda data: None)
    assert clear_models(0) == {} and has_model(run.run_id)


def test_models_of_runs_on_other_data_stay(config, course_data, monkeypatch, run_of, fewer_rows):
    run = run_of(config)
    monkeypatch.setenv("MTBERT_DATA", str(fewer_rows))
    assert clear_models(0) == {} and has_model(run.run_id)


def test_seeds_on_other_data_are_of_another_configuration(config, course_data, monkeypatch, run_of, fewer_rows):
    three = config.but(tasks=("sst", "quora"), scheme="unified", keep="last", frozen=False)
    stored = [run_of(three.but(seed=seed)) for seed in (1, 2)]
    run_of(three.but(seed=2, cosine_every=1))
    monkeypatch.setenv("MTBERT_DATA", str(fewer_rows))
    other = run_of(three)
    found = []
    for seeds in seeds_of_configurations([results_dir()]).values():
        found.append({seed: folder.name for seed, (folder, _) in seeds.items()})
    ids = [run.run_id for run in stored]
    assert sorted(map(len, found)) == [1, 2]
    [alone], [both] = ([seeds for seeds in found if len(seeds) == count] for count in (1, 2))
    assert alone == {1: other.run_id} and both[1] == ids[0] and both.keys() == {1, 2}


def test_a_difference_between_versions_of_the_data_is_told(
    config, course_data, monkeypatch, run_of, fewer_rows, caplog
):
    first = run_of(config)
    assert difference([first], [run_of(config.but(seed=2))]) and not caplog.messages
    monkeypatch.setenv("MTBERT_DATA", str(fewer_rows))
    other = run_of(config)
    for _ in range(2):
        difference([first], [other])
    told = [text for text in caplog.messages if "different versions" in text]
    assert told == [
        f"{first.run_id} and {other.run_id} were trained on different versions of the data; train both on one"
    ]


def test_a_run_prints_in_a_line(config, course_data, run_of):
    run = run_of(config)
    assert repr(run) == f"<Run {run.run_id}: sst, plan frozen, seed 1, dev {run.score():.4f}>"


def test_a_run_is_deleted_with_its_model_and_its_rows(config, course_data, run_of):
    run, other = run_of(config), run_of(config.but(seed=2))
    folder = results_dir() / "runs" / run.run_id
    derived = results_dir() / "probabilities" / f"{run.run_id}-sst.parquet"  # of its model
    derived.parent.mkdir()
    derived.touch()
    assert forget(run.run_id) == [folder, model_folder(run.run_id)]
    assert not folder.exists() and not model_folder(run.run_id).exists() and not derived.exists()
    assert pd.read_csv(results_dir() / "scores.csv")["run_id"].unique().tolist() == [other.run_id]


def test_a_deletion_that_fails_halfway_leaves_no_half_of_a_run(config, course_data, monkeypatch, run_of):
    """Neither a folder with a part of its files, which would be damaged, nor a model without its weights."""
    run = run_of(config)

    def fails(folder, **how):
        raise PermissionError(13, "Permission denied", str(folder))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", fails)
        with pytest.raises(StoreError, match=f"{run.run_id}: cannot be deleted as a whole"):
            forget(run.run_id)
    assert run_folder(run.run_id) is None and list_runs().empty
    remove_model(run.run_id)
    again = run_of(config)
    assert not list((results_dir() / "runs").glob(".*")) and again.run_id == run.run_id
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", fails)
        assert clear_models(0) == {} and not has_model(run.run_id)


def test_a_run_that_another_process_trains_is_not_deleted(config, course_data, run_of):
    run = run_of(config)
    with run_lock(run.run_id), pytest.raises(StoreError, match=f"{run.run_id}: is being trained by another process"):
        forget(run.run_id)
    assert_same(run_of(config, train_missing=False), run)
    assert has_model(run.run_id)


def test_a_run_of_a_store_that_is_only_read_is_not_deleted(config, course_data, tmp_path, monkeypatch, run_of):
    run, read = run_of(config), results_dir()
    monkeypatch.setattr(removal, "stores", lambda: [tmp_path / "own", read])
    with pytest.raises(StoreError, match=f"{run.run_id}: is in {read}, which is only read; MTBERT_RESULTS="):
        forget(run.run_id)
    assert read_run(read / "runs" / run.run_id).run_id == run.run_id


def test_another_model_of_a_stored_run_leaves_its_result(config, course_data, caplog, run_of, changed_run):
    run = run_of(config)
    with changed_run(results_dir() / "runs" / run.run_id) as content:
        content["scores"][0]["value"] = 0.75
    shutil.rmtree(model_folder(run.run_id))
    assert run_of(config).score() == 0.75 and not model_folder(run.run_id).exists()
    with caplog.at_level(logging.WARNING):
        assert run_of(config, needs_model=True).score() == 0.75
    assert f"dev {run.score():.4f}, the stored result, which stays, 0.7500" in caplog.text
    assert load_model(run.run_id).run_config == run.config


def test_a_model_is_not_trained_on_other_data(config, course_data, monkeypatch, run_of, fewer_rows):
    run = run_of(config)
    shutil.rmtree(model_folder(run.run_id))
    monkeypatch.setattr(runs, "train", refuse)
    with pytest.raises(DataError, match=f"{run.run_id}: was trained on other data than those that are here"):
        load_model(run.run_id, train_missing=True, data=fewer_rows, device="cpu")


def test_a_correlation_alone_is_compared_as_it_is(config, course_data, run_of):
    """In a mean of tasks it counts as (1 + r) / 2."""
    one, other = (run_of(config.but(tasks=("sts",), seed=seed)) for seed in (1, 2))
    assert difference([one], [other]).value == pytest.approx(one.score() - other.score())


def test_predictions_of_several_seeds(config, course_data, run_of):
    stored = [run_of(config.but(seed=seed)) for seed in (1, 2)]
    predicted, labels = stack_predictions(stored, "sst")
    assert predicted.shape == (2, 20) and labels.shape == (20,)
    scores = accuracy(predicted, labels)
    assert scores.tolist() == pytest.approx([run.score() for run in stored])


def test_runs_on_different_dev_examples_are_not_compared(config, course_data, run_of):
    first = run_of(config)
    shuffled = first.predictions.assign(id=[*first.predictions["id"][::-1]])
    with pytest.raises(StoreError, match=f"{first.run_id} and other were scored on different dev splits of sst"):
        scored([first, replace(first, run_id="other", predictions=shuffled)], "sst")


def test_tasks_with_files_of_their_own_need_no_folder_of_datasets(course_folder, monkeypatch):
    monkeypatch.setitem(TASKS, "own", TASKS["quora"].model_copy(update={"name": "own", "folder": course_folder}))
    monkeypatch.setattr(corpora, "find_data", lambda path=None: None)
    config = RunConfig(corpus="course", tasks=("own",))
    assert len(corpora.load_corpus(config, data_root(config)).train["own"]) == 40
    with pytest.raises(DataError, match="its files are not here"):
        data_root(config.but(tasks=("own", "sst")))


def test_the_demo_corpus_needs_no_data():
    assert data_root(RunConfig(corpus="demo"), data="no such folder") == demo.root()


def test_a_worker_does_not_wait_for_a_teacher_that_another_process_trains(config, course_data):
    teacher = config.but(seed=2)
    student = config.but(teachers=[teacher])
    corpus = corpora.read_corpus(student, course_data)
    lock = model_folder(corpora.run_id_of(teacher, corpus)) / "lock"
    lock.parent.mkdir(parents=True)
    with FileLock(lock), pytest.raises(Timeout):
        runs.Training([results_dir()], device="cpu", progress=False, wait=False).once(student, corpus)


def test_every_committed_run_is_read_under_the_id_of_its_configuration():
    runs = {folder.name: content["config"].digest for folder, content in stored_runs([REPOSITORY / "results"])}
    assert runs.keys() == {path.name for path in (REPOSITORY / "results" / "runs").iterdir()}
    assert [run_id for run_id, digest in runs.items() if not run_id.startswith(f"{digest}-")] == []


def test_score_table():
    random = np.random.default_rng(1)
    labels = random.integers(0, 2, 100)
    predicted = np.where(random.random(100) < 0.9, labels, 1 - labels)
    table = runs.score_table("quora", "dev", predicted, labels)
    assert list(table.columns) == ["task", "split", "metric", "value", "low", "high", "n"]
    assert table["metric"].tolist() == ["accuracy", "macro_f1", "f1"]
    assert (table["low"] < table["value"]).all() and (table["value"] < table["high"]).all()
    assert set(table["n"]) == {100} and set(table["task"]) == {"quora"} and set(table["split"]) == {"dev"}
    assert table["value"][0] == accuracy(predicted, labels)
    assert runs.score_table("sts", "dev", np.ones(100), random.random(100))["value"].tolist() == [0]


def test_the_tasks_of_a_difference_are_those_of_the_runs(synthetic):
    both = THREE.but(tasks=("quora", "sts"))
    first, second = [synthetic(both, 0.9)], [synthetic(both.but(plan="3-bert"), 0.8)]
    found = difference(first, second, "overall")
    value, (low, high) = found.value, found.interval()
    assert value == pytest.approx(first[0].score() - second[0].score()) and low < value < high


def test_a_difference_overall_is_of_the_tasks_that_both_train(synthetic):
    both = THREE.but(tasks=("sst", "quora"), score_tasks=("sts",))
    first, second = [synthetic(both, 0.9)], [synthetic(both.but(plan="3-bert"), 0.8)]
    assert difference(first, second).value == pytest.approx(first[0].score() - second[0].score())


def test_a_score_is_summarized_over_its_seeds(synthetic):
    stored = [synthetic(THREE.but(seed=seed), right) for seed, right in ((1, 0.9), (2, 0.8))]
    scores = [float(run.scores.query("task == 'sst' and metric == 'macro_f1'")["value"].item()) for run in stored]
    found = summarize(stored, "sst", "macro_f1")
    assert found["value"] == pytest.approx(sum(scores) / 2) and found["low"] < found["value"] < found["high"]
    assert (found["lowest seed"], found["highest seed"]) == pytest.approx((scores[1], scores[0]))
    assert (found["metric"], found["seeds"], found["n"]) == ("macro_f1", 2, 400)
    assert summarize(stored)["metric"] == "accuracy", "the first of the first task"
