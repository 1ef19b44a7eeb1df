"""A full or read-only disk: training goes on, no finished run is lost, no partial file stays, no process dies."""

import errno
import os
import re
import sys

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from mtbert.multitask import MultitaskBert
from mtbert.paths import REPOSITORY, FolderError, cache_dir
from mtbert_lab.cli import main
from mtbert_lab.paths import results_dir
from mtbert_lab.report import plots
from mtbert_lab.store import runs
from mtbert_lab.store.loading import load_model


def test_a_store_without_room_is_met_before_the_training(tiny_config, course_data, small_disk, monkeypatch, run_of):
    """A file without content would still have room there."""
    (small_disk / "other").write_bytes(bytes(700_000))
    monkeypatch.setattr(runs, "train", lambda *args, **how: pytest.fail("trained for nothing"))
    with pytest.raises(FolderError, match=r"disk: cannot be written to \(No space left on device\)"):
        run_of(tiny_config, store=small_disk)


@pytest.mark.usefixtures("saved_each_step")
def test_after_the_umask_that_the_docs_name_a_run_is_its_users_alone(
    tiny_config, course_data, isolated, monkeypatch, run_of
):
    [umask] = re.findall(r"`umask (\d+)`", (REPOSITORY / "docs" / "store.md").read_text(encoding="utf8"))
    monkeypatch.setattr(runs, "remove_checkpoints", lambda folder: None)
    before = os.umask(int(umask, 8))
    try:
        run_of(tiny_config.but(frozen=True))
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in isolated.rglob("*")}
    assert {"checkpoint.pt", "model.safetensors", "run.json", "scores.csv"} <= modes.keys()
    assert {name for name, mode in modes.items() if mode & 0o077} == set()


def test_a_full_cache_loses_no_run(tiny_config, course_data, small_disk, monkeypatch, caplog, run_of):
    monkeypatch.setenv("MTBERT_CACHE", str(small_disk))
    (small_disk / "other").write_bytes(bytes(1_000_000))
    run = run_of(tiny_config.but(frozen=True))
    assert f"{run.run_id}, which is stored, cannot be kept in {cache_dir() / 'models' / run.run_id}" in caplog.text
    assert "; MTBERT_CACHE names another folder" in caplog.text
    folder = results_dir() / "runs" / run.run_id
    assert sorted(path.name for path in folder.iterdir()) == ["SHA256SUMS", "predictions.parquet", "run.json"]
    assert list(folder.parent.iterdir()) == [folder]
    again = run_of(run.config, train_missing=False)
    pd.testing.assert_frame_equal(run.predictions, again.predictions)


@pytest.mark.usefixtures("saved_each_step")
def test_a_model_without_room_is_saved_in_that_of_the_checkpoints(tiny_config, course_data, monkeypatch, run_of):
    save, saved = MultitaskBert.save, []

    def full(self, folder):
        saved.append(len(list(folder.glob("*.pt"))))
        if saved[-1]:
            raise OSError(errno.ENOSPC, "No space left on device", str(folder))
        save(self, folder)

    monkeypatch.setattr(MultitaskBert, "save", full)
    run = run_of(tiny_config.but(frozen=True))
    assert saved == [1, 0] and load_model(run.run_id) and run.scores["n"].tolist() == [20, 20]


# --- the command line -------------------------------------------------------------------------------------------------


def test_a_dry_run_needs_no_room(mtbert, tiny_config, course_data, small_disk, grid_of, speeds, monkeypatch):
    monkeypatch.setenv("MTBERT_RESULTS", str(small_disk))
    (small_disk / "other").write_bytes(bytes(700_000))
    result = mtbert("train", grid_of(tiny_config), "--dry-run")
    assert result.exit_code == 0 and "1 to train" in result.output


def test_an_error_of_a_file_is_one_line_with_its_path(tmp_path, monkeypatch):
    grid = tmp_path / "grid.yaml"
    grid.write_text("runs: {one: {}}")
    monkeypatch.setattr("mtbert_lab.store.grids.read_yaml", lambda path: (tmp_path / "file").read_text())
    monkeypatch.setattr(sys, "argv", ["mtbert", "train", str(grid), "--dry-run"])
    with pytest.raises(SystemExit, match=f"^error: .*'{tmp_path / 'file'}'$"):
        main()


@pytest.mark.parametrize("home", ["read-only", "gone"])
def test_where_the_cache_cannot_be_written_the_message_says_what_to_set(monkeypatch, home):
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
