"""Arrays that can be made again, on disk under the hash of what they come from."""

import hashlib
import logging
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mtbert.paths import cache_dir

log = logging.getLogger(__name__)
BLOCK = 2**24  # bytes that a checksum reads at once


def file_of(texts: list[str], kind: str, made_with: str = "") -> Path:
    """Where the arrays of these texts lie, in the cache's folder `kind`; made_with: what else decides their content."""
    digest = hashlib.sha256(made_with.encode())
    for text in texts:
        digest.update(text.encode() + b"\0")
    return cache_dir() / kind / f"{digest.hexdigest()[:32]}.npz"


def read_arrays(path: Path, *names: str) -> list[np.ndarray] | None:
    """The named arrays, or None where there are none or the file is damaged (a zip member carries its checksum)."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return [file[name] for name in names]
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile):
        return None


def write_arrays(path: Path, **arrays: np.ndarray) -> None:
    """Replace the file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as file:
        np.savez(file, **arrays)
    os.replace(file.name, path)


def mapped_array(path: Path, shape: tuple[int, ...], fill: Callable[[np.ndarray], None]) -> np.ndarray:
    """A float32 array of this shape, memory-mapped from disk; writes to it stay in memory.

    Where there is no such file, or where it is damaged (another shape or checksum), `fill` makes the array anew. On a
    disk without room for it, the array is made in memory, with a warning.
    """
    checksum = path.with_suffix(".crc32")
    if path.exists():
        if checksum.exists() and checksum.read_text() == _checksum(path):
            array = np.load(path, mmap_mode="c", allow_pickle=False)
            if array.shape == shape and array.dtype == np.float32:
                return array
        log.warning("%s is damaged; it is made again", path.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    size = 4 * int(np.prod(shape))
    if shutil.disk_usage(path.parent).free < 2 * size:
        log.warning("no room for %.1f GB in the cache's folder; they stay in memory", size / 1e9)
        array = np.empty(shape, dtype=np.float32)
        fill(array)
        return array
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    array = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=shape)
    try:
        fill(array)
        array.flush()
        checksum.unlink(missing_ok=True)
        text = _checksum(partial)
        os.replace(partial, path)
        checksum.write_text(text)
    finally:
        partial.unlink(missing_ok=True)
    return np.load(path, mmap_mode="c", allow_pickle=False)


def _checksum(path: Path) -> str:
    value = 0
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            value = zlib.crc32(block, value)
    return f"{value:08x}"
