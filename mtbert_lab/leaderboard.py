"""Predictions as files of ids and classes or numbers."""

import math
from pathlib import Path

import pandas as pd

from mtbert.data import TASKS, Task
from mtbert.files import write_text


def decimals(task: Task) -> int:
    """Decimals of a written prediction: four, or as many as tell apart ten thousandths of a number's range."""
    if not task.is_number:
        return 4
    low, high = task.label_range
    return max(4, 4 - math.floor(math.log10(high - low)))


def write_predictions(predictions: pd.DataFrame, task: str, split: str, folder: Path) -> Path:
    """Write `<task>-<split>-output.csv` with the columns id, predicted, in the data file's order."""
    path = folder / f"{task}-{split}-output.csv"
    about = TASKS[task]
    table = predictions.assign(predicted=about.as_written(predictions["predicted"]))
    text = table[["id", "predicted"]].to_csv(index=False, float_format=f"%.{decimals(about)}f", lineterminator="\n")
    write_text(path, text)
    return path
