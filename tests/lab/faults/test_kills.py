"""A process that is killed at a file operation behind training: the next call has all, and nothing is left."""

import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from mtbert.data import TASKS
from mtbert.data.array_cache import cached_arrays, mapped_array
from mtbert.paths import REPOSITORY, cache_dir
from mtbert_lab.paths import results_dir
from mtbert_lab.store import runs
from mtbert_lab.store.loading import load_model
from mtbert_lab.store.models import has_model, model_folder, run_lock
from mtbert_lab.store.removal import remove_unused
from mtbert_lab.store.tables import update_tables

RUN = dict(frozen=True)  # of the runs in `stored`
SEEDS = (1, 2)
# A process for each operation, forked after the slow imports: the first of a pair dies at it, the second goes on.
KILLED = """
import itertools, json, os, sys, traceback
import torch
from mtbert.config import RunConfig
from mtbert_lab.store import runs
from mtbert_lab.store.runs import load_or_run

config, folder = RunConfig.from_params(json.loads(sys.argv[1])), sys.argv[2]
os.environ["MTBERT_CHECKPOINT_SECONDS"] = "0"


def call(number, last):
    for name in ("CACHE", "RESULTS"):
        os.environ[f"MTBERT_{name}"] = f"{folder}/{number}/{name.lower()}"
    train, left = runs.train, iter(range(last or 0, -1, -1))

    def die(event, details):
        writes = event == "open" and isinstance(details[2], int) and details[2] & (os.O_WRONLY | os.O_RDWR)
        if (writes or event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir")) and folder in str(details[0]):
            if next(left) == 0:
                os._exit(9)

    def train_and_count(*args, **options):
        trained = train(*args, **options)
        sys.addaudithook(die)
        return trained

    if last is not None:
        runs.train = train_and_count
    load_or_run(config, device="cpu", progress=False)
    if last is None:  # a kill may have left the run without its model
        load_or_run(config, device="cpu", progress=False, needs_model=True)
    os._exit(0)


def forked(number, last):
    if not (child := os.fork()):
        try:
            call(number, last)
        finally:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


torch.set_num_threads(1)
os.environ.update(MTBERT_CACHE=f"{folder}/warm/cache", MTBERT_RESULTS=f"{folder}/warm/results")
load_or_run(config, device="cpu", progress=False)  # what is slow the first time
for number in itertools.count(0, int(sys.argv[3])):
    code = forked(number, number)
    assert forked(number, None) == 0
    if code == 0:
        break
    assert code == 9, code
"""


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 9])
def test_a_kill_at_any_file_operation_behind_training_loses_nothing(
    tiny_config, course_data, tmp_path, monkeypatch, every, run_of
):
    config = tiny_config.but(epochs=1, frozen=True)
    fields = json.dumps(config.model_dump(mode="json"))
    killed = subprocess.run([sys.executable, "-c", KILLED, fields, str(tmp_path), str(every)], cwd=REPOSITORY)
    assert killed.returncode == 0
    torch.set_num_threads(1)
    whole = run_of(config)
    model = load_model(whole.run_id).state_dict()
    monkeypatch.setattr(runs, "train", None)
    folders = sorted(tmp_path.iterdir())
    assert len(folders) > 25 / every, "operations"
    for folder in folders:
        for name in ("cache", "results"):
            monkeypatch.setenv(f"MTBERT_{name.upper()}", str(folder / name))
        assert has_model(whole.run_id), folder.name
        remove_unused(days=30)
        left = [path.name for path in folder.rglob("*") if path.suffix == ".pt" or path.name.startswith(".")]
        assert left == [".lock"], folder.name
        assert set(pd.read_csv(results_dir() / "scores.csv")["run_id"]) == {whole.run_id}
        run = run_of(config)
        pd.testing.assert_frame_equal(run.predictions, whole.predictions, check_exact=True)
        kept = load_model(whole.run_id).state_dict()
        assert all(torch.equal(tensor, kept[name]) for name, tensor in model.items())


def test_what_another_process_still_needs_stays(tiny_config, course_data, run_of):
    """A run that has no model goes on from its checkpoint; beside a model there is nothing to go on with."""
    config = tiny_config.but(epochs=1, frozen=True)
    folder = model_folder(run_of(config).run_id)
    left = [folder / "checkpoint.pt", folder / ".checkpoint.pt.12-3f", folder / "tokenizer" / ".vocab.txt.12-3f"]
    for path in left:
        path.write_bytes(bytes(1000))
    model = (folder / "run_config.json").rename(folder / "elsewhere")
    remove_unused(days=30)
    assert all(path.exists() for path in left)
    model.rename(folder / "run_config.json")
    with run_lock(folder.name):  # another process trains the run for another store
        remove_unused(days=30)
    assert all(path.exists() for path in left)
    _, freed = remove_unused(days=30)
    assert not any(path.exists() for path in left) and freed == pytest.approx(3000)


# --- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["removed", "older than a run"])
def test_a_table_that_lacks_runs_is_written_again(stored, damage, run_of):
    path = results_dir() / "scores.csv"
    content = path.read_text()
    if damage == "removed":
        path.unlink()
    else:
        path.write_text(content.splitlines()[0])
        os.utime(path, (0, 0))
    run_of(stored.config)
    assert path.read_text() == content


def test_a_whole_table_is_not_written_again(stored, monkeypatch, run_of):
    """Also not where it has no row of a run that is damaged."""
    run_of(stored.config)
    with monkeypatch.context() as patch:
        patch.setattr("mtbert_lab.store.tables.write_table", None)
        run_of(stored.config)
    other = results_dir() / "runs" / "0123456789-01234567" / "run.json"
    other.parent.mkdir()
    other.write_text("damaged")
    update_tables(results_dir())
    monkeypatch.setattr("mtbert_lab.store.tables.write_table", None)
    update_tables(results_dir())


def test_rows_of_a_task_that_is_not_known_here_stay(stored, monkeypatch):
    update_tables(results_dir())
    path = results_dir() / "scores.csv"
    content = path.read_text()
    os.utime(path, (0, 0))  # older than the runs
    with monkeypatch.context() as patch:
        others = {name: task for name, task in TASKS.items() if name not in stored.config.tasks}
        patch.setattr(TASKS, "data", others)  # to delete an item would put it behind the others afterwards
        update_tables(results_dir())
    assert path.stat().st_mtime > 1 and path.read_text() == content


def test_a_table_that_cannot_be_written_is_a_warning(tiny_config, course_data, monkeypatch, caplog, run_of):
    def fail(table, path):
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("mtbert_lab.store.tables.write_table", fail)
        run = run_of(tiny_config.but(frozen=True))
    assert "scores.csv of" in caplog.text and "cannot be written ([Errno 28]" in caplog.text
    assert not (results_dir() / "scores.csv").exists()
    run_of(run.config)
    assert set(pd.read_csv(results_dir() / "scores.csv")["run_id"]) == {run.run_id}


# --- the cache --------------------------------------------------------------------------------------------------------


def test_what_nobody_has_read_for_long_is_removed(mtbert):
    def cached(text: str) -> None:
        cached_arrays("tokens", ("a",), [text], lambda: [np.ones(1000)])

    cached("used")
    cached("unused")
    frozen = cache_dir() / "frozen" / "a.npy"
    mapped_array(frozen, (10, 100), lambda array: array.fill(1))
    (cache_dir() / "models").mkdir()
    (cache_dir() / "models" / "model.npz").touch()
    (cache_dir() / "frozen" / ".b.npy.123-4f").write_bytes(bytes(100_000))  # of a killed process
    for path in cache_dir().rglob("*.np*"):
        os.utime(path, (0, 0))
    assert remove_unused(1e6) == (0, pytest.approx(100_000, rel=0.1))
    cached("used")
    count, freed = remove_unused(30)
    assert count == 2 and freed == pytest.approx(12_000, abs=1_000)
    assert sorted(path.parent.name for path in cache_dir().rglob("*.np?")) == ["models", "tokens"]
    output = mtbert("cache", "--clear", "--days", 0).output
    assert output.startswith(
        "removed: 1 files that nobody has read for 0 days, and what killed processes left, 0.000 GB\n"
    )
    assert [path.parent.name for path in cache_dir().rglob("*.np?")] == ["models"]
