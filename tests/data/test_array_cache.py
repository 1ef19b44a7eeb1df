"""The cache gives back what was written, for the same texts only, and nothing where a file is damaged."""

import logging
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from mtbert.data.array_cache import file_of, mapped_array, read_arrays, write_arrays


def test_arrays_come_back(tmp_path):
    path = tmp_path / "folder" / "a.npz"
    write_arrays(path, ids=np.arange(5), shares=np.ones((2, 3), dtype=np.float32))
    shares, ids = read_arrays(path, "shares", "ids")
    assert ids.tolist() == [0, 1, 2, 3, 4] and shares.dtype == np.float32 and shares.shape == (2, 3)
    assert [file.name for file in path.parent.iterdir()] == ["a.npz"]


@pytest.mark.parametrize("damage", ["absent", "cut", "no zip", "another name"])
def test_a_file_that_does_not_serve_gives_nothing(tmp_path, damage):
    path = tmp_path / "a.npz"
    if damage != "absent":
        write_arrays(path, ids=np.arange(500))
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-30])
    if damage == "no zip":
        path.write_bytes(b"text")
    assert read_arrays(path, "offsets" if damage == "another name" else "ids") is None


def test_a_file_is_named_by_texts_kind_and_making():
    names = [file_of(["a", "b"], "tokens"), file_of(["ab"], "tokens"), file_of(["a", "b"], "tokens", "vocabulary")]
    assert len(set(names)) == 3 and names[0] == file_of(["a", "b"], "tokens")
    assert names[0].parent.name == "tokens"


def counting(value: float):
    """A `fill` for `mapped_array`, and how often it was called."""
    calls = []

    def fill(array: np.ndarray) -> None:
        calls.append(array.shape)
        array[:] = value

    return fill, calls


def test_a_mapped_array_is_made_once(tmp_path):
    fill, calls = counting(2.5)
    path = tmp_path / "folder" / "a.npy"
    for _ in range(2):
        array = mapped_array(path, (3, 4), fill)
        assert isinstance(array, np.memmap) and array.dtype == np.float32 and (array == 2.5).all()
        array[0] = 7  # stays in memory
    assert calls == [(3, 4)]
    assert sorted(file.name for file in path.parent.iterdir()) == ["a.crc32", "a.npy"]


@pytest.mark.parametrize("damage", ["a byte", "cut", "no checksum", "another shape"])
def test_a_damaged_mapped_array_is_made_again(tmp_path, damage, caplog):
    path = tmp_path / "a.npy"
    mapped_array(path, (3, 4), counting(1.0)[0])
    content = bytearray(path.read_bytes())
    if damage == "a byte":
        content[-1] ^= 1
        path.write_bytes(bytes(content))
    if damage == "cut":
        path.write_bytes(bytes(content[:-8]))
    if damage == "no checksum":
        path.with_suffix(".crc32").unlink()
    fill, calls = counting(2.0)
    with caplog.at_level(logging.WARNING):
        array = mapped_array(path, (3, 5) if damage == "another shape" else (3, 4), fill)
    assert len(calls) == 1 and (array == 2.0).all() and "damaged" in caplog.text


def test_an_interrupted_fill_leaves_nothing(tmp_path):
    def fill(array: np.ndarray) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mapped_array(tmp_path / "a.npy", (3, 4), fill)
    assert not list(tmp_path.iterdir())


def test_without_room_on_the_disk_the_array_is_in_memory(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=50))
    array = mapped_array(tmp_path / "a.npy", (3, 4), counting(1.0)[0])
    assert not isinstance(array, np.memmap) and (array == 1).all() and "no room" in caplog.text
    assert not list(tmp_path.iterdir())
