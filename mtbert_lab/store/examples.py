"""Ids and labels of dev examples: a file for each task and version of its data, which all runs on it share.

results/dev/<task>-<digest>.parquet has the columns id and label, in the order of the runs' predictions; the digest is
of its content.
"""

import functools
import hashlib
from pathlib import Path

import pandas as pd

from mtbert.files import replacing
from mtbert_lab.store.run import StoreError

DEV = "dev"  # the folder of a store
_REMEDY = "restore it from a backup or git, or train a run on the same data, which writes it again"


def write_examples(predictions: pd.DataFrame, store: Path) -> dict[str, str]:
    """Write the ids and labels of every task's dev split, if they are new; returns task -> name of the file."""
    names = {}
    for task, part in predictions.groupby("task", sort=False):
        table = part[["id", "label"]].astype({"label": "float32"}).reset_index(drop=True)
        names[task] = f"{task}-{_digest(table)}"
        path = store / DEV / f"{names[task]}.parquet"
        try:
            _read(path)
        except StoreError:  # there is none, or it is damaged
            with replacing(path) as partial:
                table.to_parquet(partial, compression="zstd", index=False)
    return names


def read_examples(names: dict[str, str], store: Path) -> pd.DataFrame:
    """Task, split, id and label of all dev examples of a run. names: as in `write_examples`. Raises StoreError."""
    files = []
    for task, name in names.items():
        if Path(name).name != name:
            raise StoreError(f"{name} is no name of a file in {store / DEV}; {_REMEDY}")
        path = store / DEV / f"{name}.parquet"
        changed = path.stat().st_mtime_ns if path.exists() else 0
        files.append((task, path, changed))
    return _read_together(tuple(files))


@functools.lru_cache  # many runs share these files
def _read_together(files: tuple[tuple[str, Path, int], ...]) -> pd.DataFrame:
    """files: task, path, and when the file was changed."""
    parts = [_read(path).assign(task=task, split="dev") for task, path, _ in files]
    return pd.concat(parts, ignore_index=True)[["task", "split", "id", "label"]]


def _read(path: Path) -> pd.DataFrame:
    """Ids and labels of a dev split; raises StoreError unless they have the digest in the file's name."""
    table = read_parquet(path, _REMEDY)
    if not path.stem.endswith(f"-{_digest(table)}"):
        raise StoreError(f"{path} is damaged; {_REMEDY}")
    return table


def _digest(table: pd.DataFrame) -> str:
    return hashlib.sha256(table.to_csv(index=False).encode()).hexdigest()[:8]


def read_parquet(path: Path, remedy: str) -> pd.DataFrame:
    """A table of the store; raises StoreError with the remedy where the file is missing or damaged."""
    try:
        return pd.read_parquet(path)
    except Exception as error:  # of many types
        problem = "is damaged" if path.exists() else "is missing"
        raise StoreError(f"{path} {problem} ({type(error).__name__}); {remedy}") from error
