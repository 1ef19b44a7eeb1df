"""Errors of stored runs, example by example."""

import numpy as np
import pandas as pd

from mtbert.analysis.calibration import log_loss
from mtbert.data import TASKS
from mtbert.results import Run, stack_predictions

WIDE = 1.5  # points of similarity: a residual beyond it is an error of its own kind


def dev_errors(runs: list[Run], task: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Errors (S, N), predictions (S, N) and labels (N,) of the seeds of a configuration.

    An error is 1 for a wrong label, of similarity the absolute residual in points.
    """
    predicted, labels = stack_predictions(runs, task)
    wrong = np.abs(predicted - labels) if TASKS[task].is_number else (predicted != labels).astype(float)
    return wrong, predicted, labels


def losses(predicted: np.ndarray, p: np.ndarray | None, labels: np.ndarray) -> np.ndarray:
    """(S, N): log loss in nats where there are probabilities p (S, N, C), else the squared residual in points."""
    return np.square(predicted - labels) if p is None else log_loss(p, labels)


def error_kinds(task: str, predicted: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """A word for each error, "" where there is none: both (N,)."""
    gap = predicted - labels
    if TASKS[task].is_number:
        return np.select([gap > WIDE, gap < -WIDE], ["too high", "too low"], "")
    if TASKS[task].kind == "binary":
        return np.select([gap > 0, gap < 0], ["false positive", "missed"], "")
    return np.select([np.abs(gap) > 1, gap != 0], ["far off", "next class"], "")


def worst(run: Run, task: str, words: pd.Series | None = None) -> pd.DataFrame:
    """The dev examples of a run, the worst first: task, id, label, predicted, confidence, kind, words.

    The worst are those farthest off, of these the most confident; confidence is nan for similarity.
    """
    table = run.predictions[run.predictions["task"] == task].reset_index(drop=True)
    table["kind"] = error_kinds(task, table["predicted"].to_numpy(), table["label"].to_numpy())
    table["words"] = np.nan if words is None else words
    if TASKS[task].is_number:
        table["confidence"] = np.nan
    order = table.assign(gap=(table["predicted"] - table["label"]).abs())
    order = order.sort_values(["gap", "confidence", "id"], ascending=[False, False, True]).index
    return table.loc[order, ["task", "id", "label", "predicted", "confidence", "kind", "words"]].reset_index(drop=True)
