"""A stored run is read with the tasks, and its model with the tokenizer, that it was trained with, or not at all."""

import shutil
from pathlib import Path

import pytest

from mtbert.bert.hub import CheckpointError
from mtbert.data.tasks import COURSE, TASKS, DataError, Task
from mtbert.files import write_checksums
from mtbert.multitask.saved_model import FILES
from mtbert_lab.paths import results_dir
from mtbert_lab.store.folders import StoreError, read_run
from mtbert_lab.store.loading import load_model
from mtbert_lab.store.models import model_folder

TEXTS = ["A Bright Story about a Violin", "the dull kitchen", "a Garden in winter, and a bicycle"]


def test_a_stored_run_of_a_changed_task_is_not_read(tiny_config, course_data, monkeypatch, run_of):
    run = run_of(tiny_config.but(tasks=["cfimdb"], frozen=True, epochs=1))
    folder = results_dir() / "runs" / run.run_id
    read_run(folder)
    changed = COURSE["cfimdb"].model_dump() | {"class_names": ("bad", "good")}
    monkeypatch.setitem(TASKS, "cfimdb", Task(**changed))
    with pytest.raises(StoreError, match=r"other tasks than those here: cfimdb: class_names was \[\], is \['bad'"):
        read_run(folder)


def remove_tokenizer(folder: Path) -> None:
    """Make a saved model one whose encoder had no tokenizer; the folder of an earlier one's stays."""
    shutil.rmtree(folder / "tokenizer")
    (folder / "tokenizer").mkdir()
    write_checksums(folder, FILES)


def test_a_model_without_a_tokenizer_is_not_used_with_another_one(tiny_config, course_data, tmp_path, caplog, run_of):
    encoder = Path(shutil.copytree(tiny_config.encoder, tmp_path / "encoder"))
    config = tiny_config.but(encoder=str(encoder), frozen=True, epochs=1)
    run = run_of(config)
    remove_tokenizer(model_folder(run.run_id))
    assert len(load_model(run.run_id).predict(TEXTS)) == 3
    assert f"was saved without a tokenizer; that of {encoder} is used as it is now" in caplog.text
    path = encoder / "tokenizer.json"
    path.write_text(path.read_text().replace('"lowercase": true', '"lowercase": false'))
    (encoder / "SHA256SUMS").unlink()
    with pytest.raises(
        CheckpointError, match=f"another version of the encoder {encoder} than the one here; restore it"
    ):
        load_model(run.run_id)


def test_a_model_is_not_trained_again_from_another_encoder(tiny_config, course_data, tmp_path, run_of):
    encoder = Path(shutil.copytree(tiny_config.encoder, tmp_path / "encoder"))
    run = run_of(tiny_config.but(encoder=str(encoder), frozen=True, epochs=1))
    shutil.rmtree(model_folder(run.run_id))
    weights = encoder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
    (encoder / "SHA256SUMS").unlink()
    with pytest.raises(DataError, match=f"{run.run_id}: .* its encoder now name another run"):
        load_model(run.run_id, train_missing=True, device="cpu")
