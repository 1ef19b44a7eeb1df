"""The cache: what was computed is read again for the same input only, and not from a damaged file."""

import logging
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from mtbert.data.array_cache import FEWEST, arrays_of_texts, cached_arrays, mapped_array
from mtbert.files import LEFTOVER_AGE, remove_leftovers
from mtbert.paths import REPOSITORY, cache_dir


def cached(texts: list[str], value: float, made_with: str = "") -> float:
    """The value that the cache has for these texts, or this one."""
    a, b = cached_arrays("kind", ("a", "b"), texts, lambda: [np.full(3, value), np.arange(2)], made_with)
    assert a.shape == (3,) and b.tolist() == [0, 1]
    return a[0]


def test_arrays_are_computed_once_for_the_same_input():
    assert [cached(["x", "y"], 1.0), cached(["x", "y"], 2.0)] == [1.0, 1.0]
    assert [file.suffix for file in (cache_dir() / "kind").iterdir()] == [".npz"]
    others = [(["y", "x"], ""), (["xy"], ""), (["x\0y"], ""), (["x", "y", "x"], ""), (["x", "y"], "made otherwise")]
    assert [cached(texts, i, made_with) for i, (texts, made_with) in enumerate(others)] == list(range(len(others)))


def test_a_few_texts_leave_nothing_on_disk():
    def values(count: int) -> list[float]:
        found = []
        for value in (1.0, 2.0):
            [array] = arrays_of_texts("kind", ("a",), ["x"] * count, lambda value=value: [np.full(3, value)])
            found.append(array[0])
        return found

    assert values(FEWEST - 1) == [1.0, 2.0]
    assert not (cache_dir() / "kind").exists()
    assert values(FEWEST) == [1.0, 1.0]


@pytest.mark.parametrize("damage", [lambda content: b"", lambda content: b"text", lambda content: content[:-1],
                                    lambda content: content[: len(content) // 2]])  # fmt: skip
def test_a_damaged_file_is_computed_again(damage):
    cached(["x"], 1.0)
    [path] = (cache_dir() / "kind").iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert [cached(["x"], 2.0), cached(["x"], 3.0)] == [2.0, 2.0]


def test_no_flipped_bit_is_read():
    """Whatever byte of a file is damaged: what is read is right, or it is computed again."""
    cached(["x"], 1.0)
    [path] = (cache_dir() / "kind").iterdir()
    content, again = path.read_bytes(), 0
    for place in range(0, len(content), 3):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x80]) + content[place + 1 :])
        value = cached(["x"], 2.0)
        assert value in (1.0, 2.0)
        again += value == 2.0
    assert again > len(content) / 6


def counting(value: float):
    """A `fill` for `mapped_array`, and how often it was called."""
    calls = []

    def fill(array: np.ndarray) -> None:
        calls.append(array.shape)
        array[:] = value

    return fill, calls


def test_two_hosts_with_the_same_process_id_do_not_mix_their_files(tmp_path):
    path = tmp_path / "a.npy"
    other, _ = counting(2.5)

    def fill(array: np.ndarray) -> None:
        array[0] = 2.5
        assert (mapped_array(path, (2, 3), other).array == 2.5).all()  # by the other host, meanwhile
        array[1:] = 2.5

    assert (mapped_array(path, (2, 3), fill).array == 2.5).all()


def test_a_mapped_array_is_computed_once(tmp_path):
    fill, calls = counting(2.5)
    path = tmp_path / "folder" / "a.npy"
    for _ in range(2):
        array = mapped_array(path, (3, 4), fill).array
        assert isinstance(array, np.memmap) and array.dtype == np.float32 and (array == 2.5).all()
        array[0] = 7  # stays in memory
    assert calls == [(3, 4)]
    assert sorted(file.name for file in path.parent.iterdir()) == ["a.npy"]


def test_a_mapped_array_tells_how_long_it_took_also_to_who_reads_it_later(tmp_path):
    def fill(array: np.ndarray) -> None:
        time.sleep(0.2)
        array[:] = 1

    made = mapped_array(tmp_path / "a.npy", (3, 4), fill)
    assert made.seconds >= 0.2 > made.cpu_seconds >= 0
    assert mapped_array(tmp_path / "a.npy", (3, 4), fill)[1:] == made[1:]


@pytest.mark.parametrize("damage", ["a byte", "cut", "another shape"])
def test_a_damaged_mapped_array_is_computed_again(tmp_path, damage, caplog):
    path = tmp_path / "a.npy"
    mapped_array(path, (3, 4), counting(1.0)[0])
    content = bytearray(path.read_bytes())
    if damage == "a byte":
        content[-1] ^= 1
        path.write_bytes(bytes(content))
    if damage == "cut":
        path.write_bytes(bytes(content[:-8]))
    fill, calls = counting(2.0)
    with caplog.at_level(logging.WARNING):
        array = mapped_array(path, (3, 5) if damage == "another shape" else (3, 4), fill).array
    assert len(calls) == 1 and (array == 2.0).all() and "damaged" in caplog.text


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("the input cannot be read")], ids=["stop", "OSError"])
def test_a_fill_that_fails_leaves_nothing(tmp_path, error):
    """And its error is none of the disk."""

    def fill(array: np.ndarray) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        mapped_array(tmp_path / "a.npy", (3, 4), fill)
    assert caught.value is error
    assert not list(tmp_path.iterdir())


INTERRUPTED = """
import os, sys
from pathlib import Path
from mtbert.data.array_cache import mapped_array

mapped_array(Path(sys.argv[1]), (1000, 1000), lambda array: os._exit(9))
"""


def test_the_reserved_file_of_a_killed_process_is_removed_after_a_day(tmp_path):
    path = tmp_path / "a.npy"
    killed = subprocess.run([sys.executable, "-c", INTERRUPTED, str(path)], cwd=REPOSITORY)
    [left] = tmp_path.iterdir()
    assert killed.returncode == 9 and left.stat().st_size > 4_000_000

    def fill(array: np.ndarray) -> None:
        mapped_array(tmp_path / "b.npy", (2, 3), lambda array: array.fill(1))  # by another run, meanwhile
        assert len(list(tmp_path.glob(".a.npy.*"))) == 1, "the file that is being filled stays"
        array.fill(2)

    assert remove_leftovers(tmp_path) == 0, "another process may be writing it"
    yesterday = time.time() - LEFTOVER_AGE
    os.utime(left, (yesterday, yesterday))
    assert (mapped_array(path, (2, 3), fill).array == 2).all()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.npy", "b.npy"]
