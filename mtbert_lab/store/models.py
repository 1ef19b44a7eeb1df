"""The models of runs. They are kept in the cache, as they are too large to commit."""

import logging
import os
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from filelock import FileLock
from safetensors import SafetensorError

from mtbert.multitask import MultitaskBert
from mtbert.paths import OTHER_CACHE, cache_dir

log = logging.getLogger(__name__)
GB = 10**9
CACHE_LIMIT = 10 * GB  # bytes of the cache folder; a run that brings it there says so


def model_folder(run_id: str) -> Path:
    """The folder of a run's best model, in the cache."""
    return cache_dir() / "models" / run_id


def has_model(run_id: str) -> bool:
    """Whether a run's model is in the cache."""
    return (model_folder(run_id) / "run_config.json").exists()  # written last


def run_lock(run_id: str, blocking: bool = True) -> AbstractContextManager:
    """The lock of a run, in the cache. Its owner trains the run and writes its checkpoint and model.

    With `blocking` this waits for the lock; otherwise filelock.Timeout is raised if another process has it. The system
    releases the lock when the process ends, even if it is killed. Processes on several machines share it if they share
    the cache, on a file system with locks: NFS 4, or NFS 3 with its lock daemon. A cache that cannot be written to is a
    warning, and there is no lock.
    """
    path = model_folder(run_id) / "lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        text = "%s cannot be written (%s); the run is trained without a lock; %s"
        log.warning(text, path, error.strerror, OTHER_CACHE)
        return nullcontext()
    return FileLock(path).acquire(blocking=blocking)


def keep_model(model: MultitaskBert, folder: Path) -> bool:
    """Save a model in the cache; returns False, with a warning, if that is impossible."""
    try:
        model.save(folder)
    except (OSError, SafetensorError) as error:
        log.warning("the model cannot be kept in %s (%s); %s", folder, error, OTHER_CACHE)
        return False
    return True


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
