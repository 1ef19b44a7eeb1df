"""The scores of predictions with their intervals."""

import pandas as pd
from numpy import ndarray

from mtbert.data import TASKS
from mtbert.training import metrics_of, score_rows
from mtbert_lab.statistics import Scored, seed_mean


def score_table(task: str, split: str, predicted: ndarray, labels: ndarray) -> pd.DataFrame:
    """One row per metric: task, split, metric, value, low, high (95 %, of one seed), n (examples)."""
    table = pd.DataFrame(score_rows(task, split, predicted, labels))
    sides = predicted[None].astype(float), labels.astype(float)
    table[["low", "high"]] = [seed_mean([Scored(metric, *sides)])[1:] for metric in metrics_of(TASKS[task]).values()]
    return table[["task", "split", "metric", "value", "low", "high", "n"]]
