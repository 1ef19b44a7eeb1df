"""What lies in the cache folder, and models removed from it that stored runs can train again."""

import shutil

from mtbert.paths import cache_dir, size_of
from mtbert_lab.paths import stores
from mtbert_lab.store.folders import stored_runs
from mtbert_lab.store.models import has_model, model_folder, run_lock
from mtbert_lab.store.runs import data_root

CONTENTS = {
    "models": "trained models and checkpoints, a folder for each run; --clear removes the oldest",
    "results": "stored runs and tables, which nothing removes",
    "encoders": "what `mtbert data encoder` has fetched, which nothing removes",
    "figures": "figures of notebooks",
    "tokens": "token ids, computed again when needed; --clear removes unread ones",
    "frozen": "features of frozen layers, computed again when needed; --clear removes unread ones",
    "pos": "part-of-speech tags, computed again when needed; --clear removes unread ones",
    "speed": "times of training steps on this machine",
    "compiled": "what torch.compile has made for `mtbert bench`",
}


def cache_contents() -> list[tuple[str, int, str]]:
    """Name, bytes and meaning of everything in the cache folder, the largest first."""
    found = []
    for path in cache_dir().glob("*"):
        found.append((path.name, size_of(path), CONTENTS.get(path.name, "")))
    return sorted(found, key=lambda entry: -entry[1])


def clear_models(limit: int) -> dict[str, int]:
    """Remove models of stored runs, the oldest first, until the cache has at most `limit` bytes; run id -> its bytes.

    A model stays if its run could not be trained again: it is not stored, its code or encoder has changed, or there are
    no data for it. So does the model of a run that another process trains.
    """
    excess = sum(size for _, size, _ in cache_contents()) - limit
    removed = {}
    if excess <= 0:
        return removed
    for run_id in _trainable_again():
        if excess <= 0:
            break
        try:
            with run_lock(run_id, blocking=False):
                size = size_of(model_folder(run_id))
                shutil.rmtree(model_folder(run_id))
        except OSError:  # it is locked, or the cache cannot be written
            continue
        removed[run_id] = size
        excess -= size
    return removed


def _trainable_again() -> list[str]:
    """The stored runs with a model that training can give again, the oldest model first."""
    found = []
    for folder, content in stored_runs(stores()):
        config = content["config"]
        try:
            data_root(config)
            if has_model(folder.name) and folder.name.startswith(config.digest):
                changed = (model_folder(folder.name) / "run_config.json").stat().st_mtime_ns
                found.append((changed, folder.name))
        except ValueError:  # no data, or code without a source
            continue
    return [run_id for _, run_id in sorted(found)]
