"""The scores of predictions with their intervals."""

import pandas as pd
from numpy import ndarray

from mtbert.data import TASKS
from mtbert.training import metrics_of, score_rows
from mtbert_lab.statistics import seed_mean


def score_table(task: str, split: str, predicted: ndarray, labels: ndarray) -> pd.DataFrame:
    """One row per metric: task, split, metric, value, low, high (95 %, of one seed), n (examples)."""
    table = pd.DataFrame(score_rows(task, split, predicted, labels))
    parts = [predicted[None].astype(float)]
    ends = [seed_mean([(metric, parts, labels.astype(float))])[1:] for metric in metrics_of(TASKS[task]).values()]
    table[["low", "high"]] = ends
    return table[["task", "split", "metric", "value", "low", "high", "n"]]
