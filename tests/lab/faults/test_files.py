"""Damaged files of the store and of trained models are named, with what to do; none is read silently."""

import hashlib
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import torch

from mtbert.bert import BertModel, CheckpointError
from mtbert.config import RunConfig
from mtbert.files import write_checksums
from mtbert.multitask import MultitaskBert
from mtbert_lab.model_card import export_with_card
from mtbert_lab.paths import results_dir
from mtbert_lab.store import corpora, runs
from mtbert_lab.store.folders import read_run, stored_runs
from mtbert_lab.store.loading import load_model
from mtbert_lab.store.models import has_model, model_folder
from mtbert_lab.store.run import Run, StoreError

RUN = dict(frozen=True)  # of the run in `stored`


# --- the store --------------------------------------------------------------------------------------------------------


@pytest.fixture
def config(trained) -> RunConfig:
    return trained[0].config


def folder_of(run: Run) -> Path:
    return results_dir() / "runs" / run.run_id


def test_no_flipped_bit_of_a_run_is_read(stored, refused):
    folder = folder_of(stored)
    assert sorted(path.name for path in folder.iterdir()) == ["SHA256SUMS", "predictions.parquet", "run.json"]
    refused(lambda: read_run(folder), list(folder.iterdir()), StoreError, 20)


def test_no_flipped_bit_of_ids_and_labels_is_read(stored, flip):
    [path] = (results_dir() / "dev").iterdir()
    whole, draw, content, seen = stored.predictions, random.Random(8), path.read_bytes(), 0
    for _ in range(40):
        flip(path, draw)
        try:
            pd.testing.assert_frame_equal(read_run(folder_of(stored)).predictions, whole)
        except StoreError as error:
            assert str(path) in str(error) and "restore it" in str(error)
            seen += 1
        path.write_bytes(content)
    assert seen > 10, "in the other files the bit belongs to nothing that is read"


def test_the_message_says_what_to_do(stored, config, run_of):
    path = folder_of(stored) / "run.json"
    path.write_text(path.read_text().replace('"value": 0', '"value": 1'))
    with pytest.raises(StoreError, match=r"run\.json is damaged or was changed: .* delete the run's folder"):
        run_of(config)
    shutil.rmtree(path.parent)
    pd.testing.assert_frame_equal(run_of(config).predictions, stored.predictions)


def test_checksums_that_a_run_had_are_missed(stored):
    (folder_of(stored) / "SHA256SUMS").unlink()
    with pytest.raises(StoreError, match=r"SHA256SUMS is missing; restore it"):
        read_run(folder_of(stored))


def test_a_file_that_is_no_part_of_a_run_is_said(stored, caplog):
    (folder_of(stored) / "notes.txt").write_text("mine")
    read_run(folder_of(stored))
    assert f"{folder_of(stored)}: no part of the run, and not read: notes.txt" in caplog.text
    (folder_of(stored) / "cosines.parquet").write_bytes(b"")
    with pytest.raises(StoreError, match=r"SHA256SUMS does not list cosines\.parquet"):
        read_run(folder_of(stored))


def cut_lists(folder: Path) -> list[str]:
    """The checksums of a folder, emptied or cut at a line end, in any order of their lines."""
    lines = (folder / "SHA256SUMS").read_text().splitlines(keepends=True)
    return ["", "\n", *("".join(lines[:i] + lines[i + 1 :]) for i in range(len(lines)))]


def refused_without_checksums(read: Callable, folder: Path, error: type) -> None:
    """Assert that no shortened list of checksums turns the check of a file off."""
    read()
    for text in cut_lists(folder):
        (folder / "SHA256SUMS").write_text(text)
        with pytest.raises(error, match=r"SHA256SUMS does not list"):
            read()


def test_no_line_of_the_checksums_may_be_missing(stored, tiny_encoder, tmp_path):
    folder, model = folder_of(stored), model_folder(stored.run_id)
    encoder = shutil.copytree(tiny_encoder, tmp_path / "encoder")
    lines = (encoder / "SHA256SUMS").read_text().splitlines(keepends=True)
    kept = [line for line in lines if line.endswith((" config.json\n", " model.safetensors\n"))]
    (encoder / "SHA256SUMS").write_text("".join(kept))  # a tokenizer may be saved into the folder later
    refused_without_checksums(lambda: read_run(folder), folder, StoreError)
    refused_without_checksums(lambda: load_model(stored.run_id), model, CheckpointError)
    refused_without_checksums(lambda: BertModel.from_pretrained(encoder), encoder, CheckpointError)
    (model / "SHA256SUMS").unlink()
    with pytest.raises(CheckpointError, match=r"SHA256SUMS is missing; delete the folder, train again"):
        load_model(stored.run_id)


def test_a_file_that_may_not_be_read_is_not_called_damaged(stored, monkeypatch):
    def forbidden(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("mtbert.files.sha256", forbidden)
    with pytest.raises(PermissionError):
        load_model(stored.run_id)
    with pytest.raises(StoreError, match=r"predictions\.parquet cannot be read \(Permission denied\)"):
        read_run(folder_of(stored))


# What is no content of a run.json.
NO_RUNS = ("", "{", "[]", "null", "{}", '{"config": {"seed": "x"}}', '{"config": {}}', "[" * 10_000, "\0")


@pytest.mark.parametrize("name, text", [*(("run.json", text) for text in NO_RUNS), ("predictions.parquet", "PAR1")])
def test_a_file_of_a_run_that_cannot_be_read_is_named(stored, name, text):
    folder = folder_of(stored)
    (folder / name).write_text(text)
    write_checksums(folder)
    with pytest.raises(StoreError, match=re.escape(f"{folder / name} is damaged (") + ".*restore it"):
        read_run(folder)


def test_a_run_under_another_name_is_refused(stored):
    """A name from inside of a file must not lead to other folders."""
    folder = folder_of(stored).rename(folder_of(stored).with_name("0123456789-01234567"))
    with pytest.raises(StoreError, match=f"it is of run '{stored.run_id}'"):
        read_run(folder)


def test_damaged_predictions_are_named_before_a_model_is_trained_again(stored, course_data, monkeypatch):
    (folder_of(stored) / "predictions.parquet").write_bytes(b"")
    shutil.rmtree(model_folder(stored.run_id))
    monkeypatch.setattr(runs, "train", None)
    corpus = corpora.read_corpus(stored.config, course_data)
    with pytest.raises(StoreError, match=r"predictions\.parquet is damaged"):
        runs.Training([results_dir()], device="cpu", progress=False).once(stored.config, corpus, needs_model=True)


def test_predictions_of_other_examples_are_named(stored):
    """Whole files whose checksums are right, but which do not belong together."""
    path = folder_of(stored) / "predictions.parquet"
    pd.read_parquet(path).iloc[:-1].to_parquet(path, index=False)
    write_checksums(path.parent)
    with pytest.raises(StoreError, match="the predictions do not fit the examples sst-"):
        read_run(path.parent)


def test_a_damaged_run_does_not_fail_another_one(stored, config, caplog, run_of):
    path = folder_of(stored) / "run.json"
    path.write_text(path.read_text()[:100])
    other = run_of(config.but(seed=2))
    assert f"{path.parent}: run.json is damaged" in caplog.text
    assert [content["run_id"] for _, content in stored_runs([results_dir()])] == [other.run_id]


def test_a_folder_without_run_json_is_replaced_by_the_trained_run(stored, config, monkeypatch, run_of):
    (folder_of(stored) / "run.json").unlink()
    again = run_of(config)
    assert again.score() == stored.score()
    monkeypatch.setattr(runs, "train", None)
    assert run_of(config).cost == again.cost


def test_damaged_ids_and_labels_are_written_again(stored, config, run_of):
    [path] = (results_dir() / "dev").iterdir()
    content = path.read_bytes()
    path.write_bytes(content[:100])
    run_of(config.but(seed=2))
    assert path.read_bytes() == content
    read_run(folder_of(stored))


@pytest.mark.parametrize("place", ["../..", "/tmp"])
def test_a_run_that_names_a_file_elsewhere_is_refused(stored, changed_run, place):
    """A run.json may come from others: what it names outside of the store is not read as ids and labels."""
    folder = folder_of(stored)
    [path] = (results_dir() / "dev").iterdir()
    table = pd.read_parquet(path)
    table = table.assign(label=1 - table["label"])
    digest = hashlib.sha256(table.to_csv(index=False).encode()).hexdigest()[:8]
    table.to_parquet(results_dir().parent / f"secret-{digest}.parquet", index=False)
    name = f"{place}/secret-{digest}"
    with changed_run(folder) as content:
        content["examples"] = {"sst": name}
    with pytest.raises(StoreError, match=f"{name} is no name of a file in .*dev"):
        read_run(folder)


# --- models ----------------------------------------------------------------------------------------------


def test_no_flipped_bit_of_a_trained_model_is_read(stored, refused, flip):
    folder = model_folder(stored.run_id)
    names = ("SHA256SUMS", "encoder.json", "model.safetensors", "run_config.json", "tasks.json")
    refused(lambda: load_model(stored.run_id), [folder / name for name in names], CheckpointError, 8)
    for path in (folder / "tokenizer").iterdir():
        content = path.read_bytes()
        flip(path, random.Random(1))
        with pytest.raises(CheckpointError, match=re.escape(f"tokenizer/{path.name} is damaged or was changed")):
            load_model(stored.run_id)
        path.write_bytes(content)


def test_a_save_that_is_interrupted_is_not_read_as_a_model(stored, monkeypatch):
    """Half of an earlier model and half of a later one."""
    model = load_model(stored.run_id)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    monkeypatch.setattr("mtbert.multitask.saved_model.write_checksums", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.save(model_folder(stored.run_id))
    assert not has_model(stored.run_id)
    with pytest.raises(CheckpointError, match=r"no trained model; run_config\.json missing"):
        MultitaskBert.load(model_folder(stored.run_id))


# --- checksums and records ----------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs sha256sum")
def test_sha256sum_checks_the_files_of_a_run_a_model_and_an_export(stored, config, tmp_path, flip):
    export_with_card(MultitaskBert(config.but(pooling="pooler")), None, tmp_path)
    of_each = {folder_of(stored): "run.json", model_folder(stored.run_id): "tasks.json", tmp_path: "config.json"}
    for folder, name in of_each.items():
        check = partial(subprocess.run, ["sha256sum", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, text=True)
        whole = check()
        assert whole.returncode == 0 and f"{name}: OK" in whole.stdout.splitlines()
        flip(folder / name, random.Random(3))
        damaged = check()
        assert damaged.returncode == 1 and f"{name}: FAILED" in damaged.stdout.splitlines()
