"""Arrays that can be made again, on disk under the hash of the texts that they come from."""

import hashlib
import os
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from mtbert.paths import cache_dir


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
