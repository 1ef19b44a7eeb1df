"""The models of runs. They are kept in the cache, as they are too large to commit."""

import logging
import os
import shutil
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from filelock import FileLock

from mtbert.paths import cache_dir

log = logging.getLogger(__name__)
GB = 10**9
CACHE_LIMIT = 10 * GB  # bytes of the cache folder; a run that brings it there says so


def model_folder(run_id: str) -> Path:
    """The folder of a run's kept model, in the cache."""
    return cache_dir() / "models" / run_id


def model_file(run_id: str) -> Path:
    """The file of a model that is written last and removed first: without it there is no model."""
    return model_folder(run_id) / "run_config.json"


def has_model(run_id: str) -> bool:
    """Whether a run's model is in the cache."""
    return model_file(run_id).exists()


def remove_model(run_id: str) -> None:
    """Remove a model with its checkpoints and its lock, which the caller holds; raises OSError where that fails."""
    model_file(run_id).unlink(missing_ok=True)
    shutil.rmtree(model_folder(run_id))


def run_lock(run_id: str, blocking: bool = True) -> AbstractContextManager:
    """The lock of a run, in the cache. Its owner trains the run and writes its checkpoint and model.

    With `blocking` this waits for the lock; otherwise filelock.Timeout is raised if another process has it. The system
    releases the lock when the process ends, even if it is killed. Processes on several machines share it if they share
    the cache, on a file system with locks: NFS 4, or NFS 3 with its lock daemon.
    """
    path = model_folder(run_id) / "lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path).acquire(blocking=blocking)


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a run whose model is kept, and what killed processes left half-written beside them."""
    for pattern in ("*.pt", ".*.[0-9]*"):
        for path in folder.rglob(pattern):  # also in the tokenizer's folder
            path.unlink(missing_ok=True)


def tell_limit(folder: Path) -> None:
    """Warn if the new model in this folder has brought the cache above its limit."""
    with suppress(OSError):
        total = size_of(cache_dir())
        if total > CACHE_LIMIT >= total - size_of(folder):
            text = "%s has %.1f GB: `mtbert cache --clear` removes models that can be trained again, down to %g GB"
            log.warning(text, cache_dir(), total / GB, CACHE_LIMIT / GB)


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    files = [path]
    if path.is_dir():
        files = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    total = 0
    for file in files:
        with suppress(FileNotFoundError):  # another process removes it meanwhile
            total += file.stat().st_size
    return total
