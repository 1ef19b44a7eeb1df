"""Predicted probabilities of stored runs.

A stored run has the predicted label of every dev example and the model's confidence in it, in half precision. For two
classes that is all there is to know. For more, the model predicts once more, and its probabilities are kept in
results/probabilities/<run id>-<task>.parquet, a column per class, in the order of the run's predictions.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from numpy import ndarray

from mtbert.data import TASKS
from mtbert.runtime import pick_device
from mtbert.training import prepare_task
from mtbert_lab.store import Run, cached_table, dev_table, load_model

DIGITS = 4
SMALLEST = 2.0**-12  # half of the distance from 1 to the next number in half precision


def probabilities(run: Run, task: str, data: str | Path | None = None, device: str = "auto") -> ndarray | None:
    """(N, classes) of the run's dev examples; None where they are neither stored nor can be computed here."""
    if TASKS[task].kind == "binary":
        stored = run.predictions_of(task)
        confidence = stored["confidence"].to_numpy(dtype=float)
        confidence = confidence.clip(0.5 + SMALLEST, 1 - SMALLEST)  # the more probable class stays the one predicted
        second = np.where(stored["predicted"] == 1, confidence, 1 - confidence)
        return np.column_stack([1 - second, second])

    def compute() -> pd.DataFrame:
        table = dev_table(run, task, data)
        place = pick_device(device)
        model = load_model(run.run_id).to(place)
        logits = prepare_task(model, task, table, place).logits(model)
        p = logits.float().softmax(-1).cpu().numpy()
        return pd.DataFrame(p).round(DIGITS).rename(columns=str)

    found = cached_table(f"probabilities/{run.run_id}-{task}", compute)
    if found is None:
        return None
    p = found.to_numpy(dtype=float)
    p = p.clip(10.0**-DIGITS / 2)  # none is 0
    return p / p.sum(1, keepdims=True)
