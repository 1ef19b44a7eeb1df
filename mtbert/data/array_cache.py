"""Arrays that can be computed again, on disk under the hash of what they are computed from, each sealed by a digest."""

import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from mtbert.files import SEAL, is_sealed, remove_leftovers, replacing_sealed
from mtbert.paths import OTHER_CACHE, cache_dir

log = logging.getLogger(__name__)
TIMES = 16  # bytes: two float64 behind a mapped array, in front of its seal
FEWEST = 500  # texts whose tokens, tags or predictions are kept: fewer are quickly read again


class MappedArray(NamedTuple):
    """An array on disk, and the time that computing it took, whenever that was: of the clock, and of the processor."""

    array: ndarray
    seconds: float
    cpu_seconds: float


def cached_arrays(
    kind: str, names: tuple[str, ...], texts: list[str], compute: Callable[[], list[ndarray]], made_with: str = ""
) -> list[ndarray]:
    """The result of `compute`, a function of `texts` and `made_with`, from the cache's folder `kind` if it is there.

    names: as in `sealed_arrays`.
    """
    digest = hashlib.sha256(json.dumps([made_with, *texts]).encode()).hexdigest()
    path = cache_dir() / kind / f"{digest[:32]}.npz"
    arrays = sealed_arrays(path, names, compute)
    _note_use(path)
    return arrays


def arrays_of_texts(
    kind: str, names: tuple[str, ...], texts: list[str], compute: Callable[[], list[ndarray]], made_with: str = ""
) -> list[ndarray]:
    """As `cached_arrays`, where the texts are many; fewer than FEWEST are not cached."""
    if len(texts) < FEWEST:
        return compute()
    return cached_arrays(kind, names, texts, compute, made_with)


def sealed_arrays(
    path: Path, names: tuple[str, ...], compute: Callable[[], list[ndarray]], remedy: str = OTHER_CACHE
) -> list[ndarray]:
    """The result of `compute` from a file, if it is there.

    names: of the arrays in the file. A damaged file is computed again; a full or read-only folder is a warning, which
    ends with the remedy.
    """
    if is_sealed(path):
        with np.load(path, allow_pickle=False) as file:
            return [file[name] for name in names]
    arrays = compute()
    remove_leftovers(path.parent)
    try:
        with replacing_sealed(path) as partial, open(partial, "wb") as file:
            np.savez(file, **dict(zip(names, arrays, strict=True)))
    except OSError as error:
        log.warning("%s cannot be written (%s); %s", path, error.strerror, remedy)
    return arrays


def mapped_array(path: Path, shape: tuple[int, ...], fill: Callable[[ndarray], None]) -> MappedArray:
    """A float32 array of this shape, memory-mapped from disk; changes to it stay in memory.

    If there is no such file, or it is damaged, `fill` computes the array. The file's room is reserved before, since a
    write to a mapped file on a full disk ends the process; without room the array is in memory, with a warning.
    """
    size = 4 * math.prod(shape)
    whole = size + TIMES + SEAL
    if path.exists():
        if path.stat().st_size == whole and is_sealed(path):
            _note_use(path)
            return _mapped(path, shape)
        log.warning("%s is damaged; it is computed again", path)
    array = None
    remove_leftovers(path.parent)
    try:
        with replacing_sealed(path) as partial:
            with open(partial, "wb+") as file:
                file.truncate(whole)
                if hasattr(os, "posix_fallocate"):  # macOS does not have it
                    os.posix_fallocate(file.fileno(), 0, whole)
                array = np.memmap(file, np.float32, "r+", shape=shape)
            times = _timed(fill, array)
            array.flush()
            with open(partial, "rb+") as file:
                file.seek(size)
                file.write(np.array(times).tobytes())
                file.truncate()
        return _mapped(path, shape)
    except OSError as error:
        if array is not None:  # there was room: an error of `fill`, or of the disk
            raise
        text = "%s cannot be written (%s); its %.1f MB stay in memory; %s"
        log.warning(text, path, error.strerror, size / 1e6, OTHER_CACHE)
    array = np.empty(shape, dtype=np.float32)
    return MappedArray(array, *_timed(fill, array))


def _mapped(path: Path, shape: tuple[int, ...]) -> MappedArray:
    """The array in a whole file of `mapped_array`, and its times."""
    array = np.memmap(path, np.float32, "c", shape=shape)
    seconds, cpu_seconds = np.fromfile(path, np.float64, 2, offset=array.nbytes).tolist()
    return MappedArray(array, seconds, cpu_seconds)


def _timed(fill: Callable[[ndarray], None], array: ndarray) -> tuple[float, float]:
    """Fill an array; the seconds of the clock and of the processor."""
    started = time.perf_counter()
    cpu_started = time.process_time()
    fill(array)
    return time.perf_counter() - started, time.process_time() - cpu_started


def _note_use(path: Path) -> None:
    """Its time of change says when a file was last read, also where the system keeps no time of access."""
    with suppress(OSError):  # a read-only cache, or one that was full
        os.utime(path)
