"""Predictions as files: ids and classes, or as the course's own code writes them for its leaderboard."""

import math
from pathlib import Path

import pandas as pd

from mtbert.data import TASKS, DataError, Task
from mtbert.files import write_text

COURSE_COLUMNS = {  # spelt as there
    "sst": "Predicted_Sentiment",
    "cfimdb": "Predicted_Sentiment",
    "quora": "Predicted_Is_Paraphrase",
    "sts": "Predicted_Similiary",
}
FORMATS = {"classes": "d", "binary": ".1f", "similarity": ".4f"}  # kind of task -> format of a prediction there


def decimals(task: Task) -> int:
    """Decimals of a written prediction: four, or as many as tell apart ten thousandths of a number's range."""
    if not task.is_number:
        return 4
    low, high = task.label_range
    return max(4, 4 - math.floor(math.log10(high - low)))


def write_predictions(
    predictions: pd.DataFrame, task: str, split: str, folder: Path, course_format: bool = False
) -> Path:
    """Write `<task>-<split>-output.csv` with the columns id, predicted, in the data file's order.

    course_format: with the header and the separators of the CS224N default project's own code (evaluation.py and
    classifier.py), where quora is named para and a paraphrase is 1.0. Raises DataError for another task.
    """
    if not course_format:
        path = folder / f"{task}-{split}-output.csv"
        about = TASKS[task]
        table = predictions.assign(predicted=about.as_written(predictions["predicted"]))
        text = table[["id", "predicted"]].to_csv(index=False, float_format=f"%.{decimals(about)}f", lineterminator="\n")
        write_text(path, text)
        return path
    if task not in COURSE_COLUMNS:
        raise DataError(f"{task} is not a task of the course and has no file in its format")
    path = folder / f"{'para' if task == 'quora' else task}-{split}-output.csv"
    lines = [f"id \t {COURSE_COLUMNS[task]} \n"]
    for name, value in zip(predictions["id"], predictions["predicted"], strict=True):
        lines.append(f"{name} , {value:{FORMATS[TASKS[task].kind]}} \n")
    write_text(path, "".join(lines))
    return path
