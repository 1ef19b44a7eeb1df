"""Small tables that are kept beside the results, and the dev tables of stored runs that they are computed from."""

import logging
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from mtbert.bert import CheckpointError
from mtbert.data import DataError, load_table
from mtbert.files import replacing
from mtbert_lab.paths import OTHER_FOLDERS, find_result
from mtbert_lab.store.corpora import data_root
from mtbert_lab.store.examples import read_parquet
from mtbert_lab.store.run import Run

log = logging.getLogger(__name__)


def cached_table(name: str, compute: Callable[[], pd.DataFrame]) -> pd.DataFrame | None:
    """The table of this name in `stores()`; where there is none it is computed.

    It is written, too, unless a column is unknown. None where the data or the model that `compute` needs are not here.
    """
    path = find_result(f"{name}.parquet")
    if path.exists():
        return read_parquet(path, "delete it, and it is computed again")
    try:
        table = compute()
    except (DataError, CheckpointError):
        return None
    if not table.isna().all().any():  # else a column could not be computed here, and may be elsewhere
        try:
            with replacing(path) as partial:
                table.to_parquet(partial, compression="zstd", index=False)
        except OSError as error:
            log.warning("%s cannot be written (%s); %s", path, error.strerror, OTHER_FOLDERS)
    return table


def dev_table(run: Run, task: str, data: str | Path | None = None) -> pd.DataFrame:
    """The dev table of a task that a run was scored on; raises DataError where it is not here, or another one."""
    table, _ = load_table(task, "dev", data_root(run.config, data))
    scored = run.predictions_of(task)
    for name in ("id", "label"):
        there = scored[name]
        here = table[name].astype(there.dtype)
        if here.tolist() != there.tolist():
            raise DataError(f"{run.run_id}: was scored on another dev split of {task} than the one that is here")
    return table
