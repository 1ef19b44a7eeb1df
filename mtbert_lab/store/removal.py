"""Delete stored runs, or the models of runs that can be trained again; list the content of the cache."""

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from filelock import Timeout

from mtbert.config import RunConfig
from mtbert.files import remove_leftovers
from mtbert.paths import cache_dir
from mtbert_lab.paths import stores
from mtbert_lab.store.corpora import is_of_code_here, is_of_files_here
from mtbert_lab.store.folders import run_folder, store_lock, stored_runs
from mtbert_lab.store.models import (
    has_model,
    model_file,
    model_folder,
    remove_checkpoints,
    remove_model,
    run_lock,
    size_of,
)
from mtbert_lab.store.run import StoreError
from mtbert_lab.store.tables import update_tables
from mtbert_lab.store.teachers import TEACHERS

ARRAYS = ("tokens", "pos", "frozen")  # folders of the cache whose arrays can be computed again
DAY = 86_400  # seconds
CONTENTS = {
    "models": "trained models and checkpoints, a folder for each run; --clear removes the oldest",
    "results": "stored runs and tables; `mtbert runs --delete` removes one",
    "encoders": "what `mtbert data encoder` has fetched, which nothing removes",
    "figures": "figures of notebooks",
    "tokens": "token ids, computed again when needed; --clear removes unread ones",
    "frozen": "features of frozen layers, computed again when needed; --clear removes unread ones",
    "pos": "part-of-speech tags, computed again when needed; --clear removes unread ones",
    "speed": "times of training steps on this machine",
    "compiled": "what torch.compile has made for the benchmarks",
}


def cache_contents() -> list[tuple[str, int, str]]:
    """Name, bytes and meaning of everything in the cache folder, the largest first."""
    found = []
    for path in cache_dir().glob("*"):
        found.append((path.name, size_of(path), CONTENTS.get(path.name, "")))
    return sorted(found, key=lambda entry: -entry[1])


def remove_unused(days: float) -> tuple[int, int]:
    """Remove the arrays that nobody has read for so many days, and what killed processes left in the cache.

    Returns the number of removed arrays and the freed bytes. A process that has one of them mapped keeps it.
    """
    count, freed = 0, 0
    for folder in model_folder("").glob("*"):
        freed += remove_leftovers(folder)
        if not has_model(folder.name):  # its run goes on from its checkpoint
            continue
        before = size_of(folder)
        with suppress(OSError), run_lock(folder.name, blocking=False):  # else another process trains it
            remove_checkpoints(folder)
        freed += before - size_of(folder)
    for kind in ARRAYS:
        freed += remove_leftovers(cache_dir() / kind)
        for path in (cache_dir() / kind).glob("[!.]*.np[yz]"):
            with suppress(FileNotFoundError):  # another process has removed it
                about = path.stat()
                if time.time() - about.st_mtime >= days * DAY:
                    path.unlink()
                    count += 1
                    freed += about.st_size
    return count, freed


def clear_models(limit: float) -> dict[str, int]:
    """Remove models of stored runs, the oldest first, until the cache has at most `limit` bytes; run id -> its bytes.

    A model stays if its run could not be trained again: if it is not stored, its code or encoder has changed, or the
    data here are not those that it was trained on. A model also stays while another process trains its run.
    """
    excess = sum(size for _, size, _ in cache_contents()) - limit
    removed = {}
    if excess <= 0:
        return removed
    for run_id, config in _with_model():
        if excess <= 0:
            break
        if not is_of_files_here(run_id, config):
            continue
        try:
            with run_lock(run_id, blocking=False):
                size = size_of(model_folder(run_id))
                remove_model(run_id)
        except OSError:  # it is locked, or the cache cannot be written
            continue
        removed[run_id] = size
        excess -= size
    return removed


def _with_model() -> list[tuple[str, RunConfig]]:
    """The stored runs that have a model, and whose code and encoder are as they were, the oldest model first."""
    found = []
    for folder, content in stored_runs(stores()):
        config = content["config"]
        if has_model(folder.name) and is_of_code_here(folder.name, config):
            changed = model_file(folder.name).stat().st_mtime_ns
            found.append((changed, folder.name, config))
    return [(run_id, config) for _, run_id, config in sorted(found, key=lambda one: one[:2])]


def forget(run_id: str) -> list[Path]:
    """Delete a run, its outputs as a teacher and what was computed with its model from the store that is written to.

    Its model is deleted from the cache, too. Returns the folders deleted. Raises StoreError for a run of a store that
    is only read, and for one that is being trained.
    """
    own, *only_read = stores()
    for store in only_read:
        if run_folder(run_id, [store]):
            raise StoreError(f"{run_id}: is in {store}, which is only read; MTBERT_RESULTS={store} lets it be changed")
    in_store = [own / "runs" / run_id, own / TEACHERS / run_id]
    folders = [folder for folder in (*in_store, model_folder(run_id)) if folder.exists()]
    try:
        with run_lock(run_id, blocking=False):
            with store_lock(own):
                for folder in filter(Path.exists, in_store):
                    _remove_at_once(folder, own)
                for table in own.glob(f"*/{run_id}-*.parquet"):
                    table.unlink()
            remove_model(run_id)
    except Timeout:
        raise StoreError(f"{run_id}: is being trained by another process; stop that first") from None
    except OSError as error:
        rest = f"; then delete {model_folder(run_id)} by hand" if model_folder(run_id).exists() else ""
        raise StoreError(f"{run_id}: cannot be deleted as a whole ({error}){rest}") from error
    update_tables(own)
    return folders


def _remove_at_once(folder: Path, store: Path) -> None:
    """Remove a folder of a store so that no reader finds a part of it; `store_lock` removes what an end here leaves."""
    gone = store / "runs" / f".{folder.parent.name}-{folder.name}.{os.getpid()}"
    os.replace(folder, gone)
    shutil.rmtree(gone)
