"""Arrays that can be computed again, on disk under the hash of what they are computed from."""

import hashlib
import json
import logging
import shutil
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mtbert.paths import cache_dir, replacing

log = logging.getLogger(__name__)
BLOCK = 2**24  # bytes read at a time for a checksum


def cached_arrays(
    kind: str, names: tuple[str, ...], texts: list[str], compute: Callable[[], list[np.ndarray]], made_with: str = ""
) -> list[np.ndarray]:
    """The result of `compute`, a function of `texts` and `made_with`, from the cache's folder `kind` if it is there.

    names: of the arrays in the file, each of which has a checksum; a damaged file is computed again.
    """
    digest = hashlib.sha256(json.dumps([made_with, *texts]).encode()).hexdigest()
    path = cache_dir() / kind / f"{digest[:32]}.npz"
    try:
        with np.load(path, allow_pickle=False) as file:
            return [file[name] for name in names]
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile):
        arrays = compute()
    with replacing(path) as partial, open(partial, "wb") as file:
        np.savez(file, **dict(zip(names, arrays, strict=True)))
    return arrays


def mapped_array(path: Path, shape: tuple[int, ...], fill: Callable[[np.ndarray], None]) -> np.ndarray:
    """A float32 array of this shape, memory-mapped from disk; changes to it stay in memory.

    If there is no such file, or it is damaged (another shape or checksum), `fill` computes the array. Without room on
    the disk the array is in memory, with a warning.
    """
    checksum = path.with_suffix(".crc32")
    if path.exists():
        if checksum.exists() and checksum.read_text() == _checksum(path):
            array = np.load(path, mmap_mode="c", allow_pickle=False)
            if array.shape == shape and array.dtype == np.float32:
                return array
        log.warning("%s is damaged; it is computed again", path.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    size = 4 * int(np.prod(shape))
    if shutil.disk_usage(path.parent).free < 2 * size:
        log.warning("no room for %.1f GB in the cache's folder; they stay in memory", size / 1e9)
        array = np.empty(shape, dtype=np.float32)
        fill(array)
        return array
    with replacing(path) as partial:
        array = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=shape)
        fill(array)
        array.flush()
        text = _checksum(partial)
        checksum.unlink(missing_ok=True)
    checksum.write_text(text)
    return np.load(path, mmap_mode="c", allow_pickle=False)


def _checksum(path: Path) -> str:
    value = 0
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            value = zlib.crc32(block, value)
    return f"{value:08x}"
