"""Errors of stored runs, example by example."""

from pathlib import Path

import numpy as np
import pandas as pd

from mtbert.analysis.groups import known_features
from mtbert.analysis.probabilities import dev_table
from mtbert.data import TASKS, DataError
from mtbert.results import MissingRun, Run, find_run, read_run, run_folder, stack_predictions

WIDE = 0.3  # share of the labels' range, of STS 1.5 points: a residual beyond it counts as an error
COLUMNS = ["model", "task", "id", "label", "predicted", "confidence", "kind", "words", "text"]


def dev_errors(runs: list[Run], task: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Errors (S, N), predictions (S, N) and labels (N,) of the seeds of a configuration.

    An error is 1 for a wrong label, of a number the absolute residual.
    """
    predicted, labels = stack_predictions(runs, task)
    wrong = np.abs(predicted - labels) if TASKS[task].is_number else (predicted != labels).astype(float)
    return wrong, predicted, labels


def error_kinds(task: str, predicted: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """A word for each error, "" where there is none: both (N,). Classes without names are taken as ordered."""
    about = TASKS[task]
    gap = predicted - labels
    if about.is_number:
        limit = WIDE * np.ptp(about.label_range)
        return np.select([gap > limit, gap < -limit], ["too high", "too low"], "")
    if about.kind == "binary":
        return np.select([gap > 0, gap < 0], ["false positive", "missed"], "")
    if about.class_names:
        names = np.array(about.class_names, dtype=object)
        return np.where(gap == 0, "", names[labels.astype(int)] + " as " + names[predicted.astype(int)])
    return np.select([np.abs(gap) > 1, gap != 0], ["far off", "next class"], "")


def confusion(predicted: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """(C, C): the share of each label's examples that each class is predicted for; predicted (S, N), labels (N,)."""
    counts = np.zeros((classes, classes))
    for row in predicted.astype(int):
        np.add.at(counts, (labels.astype(int), row), 1)
    return counts / counts.sum(1, keepdims=True)


def precision_recall_curve(p: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Recall and precision, both (N,), of the k most probable examples for k from 1 to N: p, labels (N,)."""
    is_positive = labels == 1
    hits = is_positive[np.argsort(-p, kind="stable")].cumsum()
    return hits / hits[-1], hits / np.arange(1, len(hits) + 1)


def error_table(*names: str, data: str | Path | None = None) -> pd.DataFrame:
    """The dev errors of stored runs: model (the name given), task, id, label, predicted, confidence, kind, words, text.

    names: as `find_run` takes them; raises MissingRun for a run that is not stored. The worst of a run and task come
    first: the farthest off, then the most confident (confidence is nan for numbers). label, predicted: as text, as in
    the files. text: the sentences, empty where the data are not here; words: their number, 0 where it is not known.
    """
    parts = []
    for name in names:
        folder = run_folder(find_run(name))
        if folder is None:
            raise MissingRun(f"{name}: its model is in the cache, but the run is not stored; train it again")
        run = read_run(folder)
        for task in run.predictions["task"].unique():
            parts.append(_errors_of(run, task, data).assign(model=name))
    return pd.concat(parts, ignore_index=True)[COLUMNS].round({"confidence": 3})


def _errors_of(run: Run, task: str, data: str | Path | None) -> pd.DataFrame:
    """The rows of `error_table` of a run and task."""
    about = TASKS[task]
    table = run.predictions[run.predictions["task"] == task].copy()
    table["kind"] = error_kinds(task, table["predicted"].to_numpy(), table["label"].to_numpy())
    features = known_features(run, task, data)
    table["words"] = 0 if features is None else features["words"].to_numpy()
    texts = _texts(run, task, data)
    table["text"] = [texts.get(name, "") for name in table["id"]]
    gap = (table["predicted"] - table["label"]).abs()
    table["gap"] = (gap > 0) if about.class_names else gap
    if about.is_number:
        table["confidence"] = np.nan
    table = table[table["kind"] != ""].sort_values(["gap", "confidence", "id"], ascending=[False, False, True])
    for column in ("label", "predicted"):
        if about.class_names:
            table[column] = about.as_written(table[column])
        else:
            table[column] = table[column].round(2).map("{:g}".format)
    return table


def _texts(run: Run, task: str, data: str | Path | None) -> dict[str, str]:
    """id -> the text of a dev example, those of a pair with a stroke between; empty where the data are not here."""
    try:
        table = dev_table(run, task, data)
    except DataError:
        return {}
    texts = table[list(TASKS[task].sentence_columns)].agg(" | ".join, axis=1)
    return dict(zip(table["id"], texts, strict=True))
