"""Predicted probabilities of stored runs, and the small tables that are kept beside the results.

A stored run has the predicted label of every dev example and the model's confidence in it, in half precision. For two
classes that is all there is to know. For more, the model predicts once more, and its probabilities are kept in
results/probabilities/<run id>-<task>.parquet, a column per class, in the order of the run's predictions.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from numpy import ndarray

from mtbert.bert import CheckpointError
from mtbert.data import TASKS, DataError, load_table
from mtbert.files import replacing
from mtbert.runtime import pick_device
from mtbert.training import task_rows
from mtbert_lab.paths import find_result
from mtbert_lab.store import Run, data_root, load_model, read_parquet

DIGITS = 4
SMALLEST = 2.0**-12  # half of the distance from 1 to the next number in half precision


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
        with replacing(path) as partial:
            table.to_parquet(partial, compression="zstd", index=False)
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


def probabilities(run: Run, task: str, data: str | Path | None = None, device: str = "auto") -> ndarray | None:
    """(N, classes) of the run's dev examples; None where they are neither stored nor can be computed here."""
    if TASKS[task].kind == "binary":
        stored = run.predictions_of(task)
        confidence = stored["confidence"].to_numpy(dtype=float)
        confidence = confidence.clip(0.5, 1 - SMALLEST)
        second = np.where(stored["predicted"] == 1, confidence, 1 - confidence)
        return np.column_stack([1 - second, second])

    def compute() -> pd.DataFrame:
        table = dev_table(run, task, data)
        place = pick_device(device)
        model = load_model(run.run_id).to(place)
        logits = task_rows(model, task, table, place).logits(model)
        p = logits.float().softmax(-1).cpu().numpy()
        return pd.DataFrame(p).round(DIGITS).rename(columns=str)

    found = cached_table(f"probabilities/{run.run_id}-{task}", compute)
    if found is None:
        return None
    p = found.to_numpy(dtype=float)
    p = p.clip(10.0**-DIGITS / 2)  # none is 0
    return p / p.sum(1, keepdims=True)
