"""Errors of stored runs, example by example."""

from pathlib import Path

import numpy as np
import pandas as pd
from numpy import ndarray

from mtbert.data import TASKS, DataError
from mtbert_lab.analysis.groups import known_features
from mtbert_lab.store import MissingRun, Run, dev_table, find_run, read_run, run_folder

WIDE = 0.3  # share of the labels' range, of STS 1.5 points: a residual beyond it counts as an error
COLUMNS = ["model", "task", "id", "label", "predicted", "confidence", "kind", "words", "text"]


def errors_of(task: str, predicted: ndarray, labels: ndarray) -> ndarray:
    """The errors of predictions, both (S, N), labels (N,): 1 for a wrong label, the absolute residual for a number."""
    if TASKS[task].is_number:
        return np.abs(predicted - labels)
    return (predicted != labels).astype(float)


def error_kinds(task: str, predicted: ndarray, labels: ndarray) -> ndarray:
    """A word for each error, "" where there is none: both (N,). Classes without names are taken as ordered."""
    about = TASKS[task]
    gap = predicted - labels
    if about.class_names and about.kind != "binary":
        names = np.array(about.class_names, dtype=object)
        label = names[labels.astype(int)]
        said = names[predicted.astype(int)]
        return np.where(gap == 0, "", label + " as " + said)
    if about.is_number:
        limit = WIDE * np.ptp(about.label_range)
        kinds = {"too high": gap > limit, "too low": gap < -limit}
    elif about.kind == "binary":
        kinds = {"false positive": gap > 0, "missed": gap < 0}
    else:
        kinds = {"far off": np.abs(gap) > 1, "next class": gap != 0}
    return np.select(list(kinds.values()), list(kinds), "")


def confusion(predicted: ndarray, labels: ndarray, classes: int) -> ndarray:
    """(C, C): the share of each label's examples that each class is predicted for; predicted (S, N), labels (N,)."""
    places = classes * labels.astype(int) + predicted.astype(int)  # (S, N)
    counts = np.bincount(places.ravel(), minlength=classes**2).reshape(classes, classes)
    return counts / counts.sum(1, keepdims=True)


def precision_recall_curve(p: ndarray, labels: ndarray) -> tuple[ndarray, ndarray]:
    """Recall and precision, both (N,), of the k most probable examples for k from 1 to N: p, labels (N,)."""
    order = np.argsort(-p, kind="stable")
    is_positive = labels[order] == 1
    hits = is_positive.cumsum()
    k = np.arange(1, len(hits) + 1)
    return hits / hits[-1], hits / k


def error_table(name: str, *others: str, data: str | Path | None = None) -> pd.DataFrame:
    """The dev errors of stored runs: model (the name given), task, id, label, predicted, confidence, kind, words, text.

    name, others: as `find_run` takes them; raises MissingRun for a run that is not stored. The worst of a run and task
    come first: the farthest off, then the most confident (confidence is nan for numbers). label, predicted: as text, as
    in the files. text: the sentences, empty where the data are not here; words: their number, 0 where it is not known.
    """
    parts = []
    for model in dict.fromkeys((name, *others)):
        folder = run_folder(find_run(model, data))
        if folder is None:
            raise MissingRun(f"{model}: its model is in the cache, but the run is not stored; train it again")
        run = read_run(folder)
        for task in run.predictions["task"].unique():
            errors = _errors_of(run, task, data)
            parts.append(errors.assign(model=model))
    table = pd.concat(parts, ignore_index=True)
    return table[COLUMNS].round({"confidence": 3})


def _errors_of(run: Run, task: str, data: str | Path | None) -> pd.DataFrame:
    """The rows of `error_table` for a run and a task."""
    about = TASKS[task]
    table = run.predictions_of(task)
    predicted = table["predicted"].to_numpy()
    labels = table["label"].to_numpy()
    features = known_features(run, task, data)
    table["words"] = 0 if features is None else features["words"].to_numpy()
    texts = _texts(run, task, data)
    table["text"] = [texts.get(name, "") for name in table["id"]]
    table["kind"] = error_kinds(task, predicted, labels)

    if about.is_number:
        table["confidence"] = np.nan
    gap = np.abs(predicted - labels)
    table["gap"] = gap > 0 if about.class_names else gap  # classes with names have no order
    table = table[table["kind"] != ""]
    table = table.sort_values(["gap", "confidence", "id"], ascending=[False, False, True])

    for column in ("label", "predicted"):
        if about.class_names:
            table[column] = about.as_written(table[column])
        else:
            table[column] = table[column].round(2).map("{:g}".format)
    return table


def _texts(run: Run, task: str, data: str | Path | None) -> dict[str, str]:
    """id -> the text of a dev example, with a stroke between two sentences; empty where the data are not here."""
    try:
        table = dev_table(run, task, data)
    except DataError:
        return {}
    columns = list(TASKS[task].sentence_columns)
    texts = table[columns].agg(" | ".join, axis=1)
    return dict(zip(table["id"], texts, strict=True))
