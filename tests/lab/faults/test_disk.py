"""A full or read-only disk: training goes on, no finished run is lost, no partial file stays, no process dies."""

import errno
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from torch import nn

from mtbert.bert.hub import copy_tokenizer, locate, write_tokenizer
from mtbert.data.array_cache import cached_arrays, mapped_array
from mtbert.files import replacing
from mtbert.multitask import MultitaskBert
from mtbert.multitask.export import export_task
from mtbert.paths import REPOSITORY, FolderError, cache_dir
from mtbert.training.checkpoint import Checkpoint
from mtbert_lab.cli import main
from mtbert_lab.leaderboard import write_predictions
from mtbert_lab.paths import results_dir
from mtbert_lab.report import plots
from mtbert_lab.store import runs
from mtbert_lab.store.loading import load_model
from mtbert_lab.store.runs import load_or_run


@pytest.fixture
def small_disk(tmp_path) -> Path:
    """A file system of one MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_checkpoint_that_has_no_room_is_a_warning(small_disk, caplog):
    model = nn.Linear(100, 500)  # 0.2 MB
    saver = Checkpoint(small_disk / "run.pt", "a", {"model": model})
    saver.save({"step": 1})
    (small_disk / "other").write_bytes(bytes(700_000))
    saver.save({"step": 2})
    assert f"{small_disk / 'run.pt'} cannot be written (No space left on device)" in caplog.text
    assert files(small_disk) == ["other", "run.pt"] and saver.restore() == {"step": 1}
    (small_disk / "other").unlink()
    saver.save({"step": 3})
    assert saver.restore() == {"step": 3}


@pytest.mark.usefixtures("saved_each_step")
def test_training_ends_as_without_the_fault(run, tiny_config, small_disk, caplog):
    with suppress(OSError):
        (small_disk / "other").write_bytes(bytes(2**21))  # as much as there is room for
    whole = run(tiny_config)
    other = run(tiny_config, checkpoint=small_disk / "folder" / "checkpoint.pt")
    assert caplog.text.count("checkpoint.pt cannot be written") == 10
    assert files(small_disk) == ["other"]
    pd.testing.assert_frame_equal(whole.predictions, other.predictions, check_exact=True)


def test_a_store_without_room_is_met_before_the_training(tiny_config, course_data, small_disk, monkeypatch):
    """A file without content would still have room there."""
    (small_disk / "other").write_bytes(bytes(700_000))
    monkeypatch.setattr(runs, "train", lambda *args, **how: pytest.fail("trained for nothing"))
    with pytest.raises(FolderError, match=r"disk: cannot be written to \(No space left on device\)"):
        load_or_run(tiny_config, store=small_disk, device="cpu", progress=False)


def test_a_mapped_array_without_room_is_in_memory(small_disk, caplog):
    array = mapped_array(small_disk / "a.npy", (1000, 1000), lambda array: array.fill(3)).array
    assert not isinstance(array, np.memmap) and (array == 3).all() and not files(small_disk)
    assert "a.npy cannot be written (No space left on device); its 4.0 MB stay in memory" in caplog.text


def test_the_room_of_a_mapped_array_is_reserved(small_disk):
    """What fills the disk meanwhile gets an error; writing to the mapped file would end the process."""

    def fill(array: np.ndarray) -> None:
        with pytest.raises(OSError, match="No space left"):
            (small_disk / "other").write_bytes(bytes(900_000))
        array[:] = 2

    array = mapped_array(small_disk / "a.npy", (100, 1000), fill).array
    assert isinstance(array, np.memmap) and (array == 2).all()


def test_arrays_that_cannot_be_cached_are_computed(small_disk, monkeypatch, caplog):
    monkeypatch.setenv("MTBERT_CACHE", str(small_disk))
    (small_disk / "other").write_bytes(bytes(1_000_000))
    [array] = cached_arrays("kind", ("a",), ["x"], lambda: [np.ones(20_000)])
    assert array.sum() == 20_000 and ".npz cannot be written (No space left on device)" in caplog.text
    assert files(small_disk) == ["other"]


def test_an_error_of_the_disk_names_the_file(small_disk):
    (small_disk / "other").write_bytes(bytes(1_000_000))
    with pytest.raises(OSError, match=r"No space left on device: '.*/table.csv'"):  # noqa: SIM117
        with replacing(small_disk / "table.csv") as partial:
            partial.write_bytes(bytes(200_000))
    assert files(small_disk) == ["other"]


def test_predictions_are_whole_or_not_there(small_disk):
    table = pd.DataFrame({"id": [f"{i:020}" for i in range(20_000)], "predicted": 1})
    with pytest.raises(OSError, match=r"No space left on device: '.*/out/sst-dev-output.csv'"):
        for _ in range(3):  # the first one has room
            path = write_predictions(table, "sst", "dev", small_disk / "out")
            (small_disk / "other").write_bytes(bytes(200_000))
    assert path.read_text().count("\n") == 20_001 and files(small_disk) == ["other", path.name]


@pytest.mark.parametrize("write", ["save", "save_pretrained", "export"])
def test_a_model_without_room_is_an_error_that_names_the_file(small_disk, tiny_config, write):
    model, folder = MultitaskBert(tiny_config), small_disk / "model"
    calls = {
        "save": model.save,
        "save_pretrained": model.encoder.task_encoder("sst").save_pretrained,
        "export": lambda folder: export_task(model, "sst", folder, encoder_only=True),
    }
    with pytest.raises(OSError, match=f"{folder}/model.safetensors: cannot be written .*No space left on device"):
        calls[write](folder)
    assert files(small_disk) == []


def test_a_tokenizer_without_room_is_an_error_that_names_the_folder(small_disk):
    (small_disk / "other").write_bytes(bytes(1_000_000))
    with pytest.raises(OSError, match=f"{small_disk}.*No space left on device"):
        write_tokenizer(locate("minilm"), small_disk, 512)
    with pytest.raises(OSError, match=f"No space left on device: '{small_disk}/copy/tokenizer.json'"):
        copy_tokenizer(locate("minilm"), small_disk / "copy")


@pytest.mark.parametrize("umask, mode", [(0o022, 0o644), (0o007, 0o660), (0o077, 0o600)])
def test_files_have_the_mode_that_the_umask_gives(tiny_config, tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        MultitaskBert(tiny_config).save(tmp_path / "model")
        export_task(MultitaskBert(tiny_config), "sst", tmp_path / "exported", encoder_only=True)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*") if path.is_file()}
    assert modes["model.safetensors"] == mode and set(modes.values()) == {mode}


@pytest.mark.usefixtures("saved_each_step")
def test_after_the_umask_that_the_docs_name_a_run_is_its_users_alone(tiny_config, course_data, isolated, monkeypatch):
    [umask] = re.findall(r"`umask (\d+)`", (REPOSITORY / "docs" / "store.md").read_text(encoding="utf8"))
    monkeypatch.setattr(runs, "remove_checkpoints", lambda folder: None)
    before = os.umask(int(umask, 8))
    try:
        load_or_run(tiny_config.but(frozen=True), device="cpu", progress=False)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in isolated.rglob("*")}
    assert {"checkpoint.pt", "model.safetensors", "run.json", "scores.csv"} <= modes.keys()
    assert {name for name, mode in modes.items() if mode & 0o077} == set()


@pytest.mark.parametrize("fault", ["read-only", "not a folder"])
def test_a_cache_that_cannot_be_written_is_named_before_training(
    tiny_config, course_data, small_disk, monkeypatch, fault
):
    monkeypatch.setenv("MTBERT_CACHE", str(small_disk))
    if fault == "read-only":
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    else:
        (small_disk / "file").write_text("")
        monkeypatch.setenv("MTBERT_CACHE", str(small_disk / "file"))
    monkeypatch.setattr(runs, "train", None)
    with pytest.raises(FolderError, match=f"{cache_dir()}/models/.*cannot be written to .*MTBERT_CACHE for all else"):
        load_or_run(tiny_config.but(frozen=True), device="cpu", progress=False)


def test_a_full_cache_loses_no_run(tiny_config, course_data, small_disk, monkeypatch, caplog):
    monkeypatch.setenv("MTBERT_CACHE", str(small_disk))
    (small_disk / "other").write_bytes(bytes(1_000_000))
    run = load_or_run(tiny_config.but(frozen=True), device="cpu", progress=False)
    assert f"{run.run_id}, which is stored, cannot be kept in {cache_dir() / 'models' / run.run_id}" in caplog.text
    assert "; MTBERT_CACHE names another folder" in caplog.text
    assert files(results_dir() / "runs") == ["SHA256SUMS", "predictions.parquet", "run.json"]
    again = load_or_run(run.config, train_missing=False)
    pd.testing.assert_frame_equal(run.predictions, again.predictions)


@pytest.mark.usefixtures("saved_each_step")
def test_a_model_without_room_is_saved_in_that_of_the_checkpoints(tiny_config, course_data, monkeypatch):
    save, saved = MultitaskBert.save, []

    def full(self, folder):
        saved.append(len(list(folder.glob("*.pt"))))
        if saved[-1]:
            raise OSError(errno.ENOSPC, "No space left on device", str(folder))
        save(self, folder)

    monkeypatch.setattr(MultitaskBert, "save", full)
    run = load_or_run(tiny_config.but(frozen=True), device="cpu", progress=False)
    assert saved == [2, 0] and load_model(run.run_id) and run.scores["n"].tolist() == [20, 20]


# --- the command line -------------------------------------------------------------------------------------------------


def test_an_error_of_a_file_is_one_line_with_its_path(tmp_path, monkeypatch):
    grid = tmp_path / "grid.yaml"
    grid.write_text("runs: {one: {}}")
    monkeypatch.setattr("mtbert_lab.store.grids.read_yaml", lambda path: (tmp_path / "file").read_text())
    monkeypatch.setattr(sys, "argv", ["mtbert", "train", str(grid), "--dry-run"])
    with pytest.raises(SystemExit, match=f"^error: .*'{tmp_path / 'file'}'$"):
        main()


@pytest.mark.parametrize("home", ["read-only", "gone"])
def test_where_the_cache_cannot_be_written_the_message_says_what_to_set(tmp_path, monkeypatch, home):
    """/proc is read-only for root, too; a run asks for its store before it trains."""
    for name in ("MTBERT_CACHE", "MTBERT_RESULTS", "MTBERT_FIGURES", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/proc/nobody")
    if home == "read-only":
        monkeypatch.setenv("MTBERT_CACHE", "/proc")
    grid = REPOSITORY / "params" / "demo" / "single_task.yaml"
    monkeypatch.setattr(sys, "argv", ["mtbert", "train", str(grid)])
    with pytest.raises(SystemExit, match=r"^error: /proc\S*: cannot be written to \(.*MTBERT_CACHE for all else$"):
        main()
    with pytest.raises(FolderError, match="MTBERT_FIGURES for figures"):
        plots.save(plt.figure(), "figure")


def test_without_a_home_folder_the_cache_is_asked_for(monkeypatch):
    def none():
        raise RuntimeError("Could not determine home directory.")

    for name in ("MTBERT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", none)
    with pytest.raises(RuntimeError, match="no home folder: set MTBERT_CACHE") as error:
        cache_dir()
    assert type(error.value).__module__.startswith("mtbert.")
