"""A full disk: training goes on, no partial file stays, and the error of what cannot be written names it."""

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from torch import nn

from mtbert.bert.hub import copy_tokenizer, locate, write_tokenizer
from mtbert.data.array_cache import cached_arrays, mapped_array
from mtbert.files import replacing
from mtbert.multitask import MultitaskBert
from mtbert.multitask.export import export_task
from mtbert.training.checkpoint import Checkpoint


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
