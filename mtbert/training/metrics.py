"""Metrics over a whole split, their intervals, and predictions in the course's leaderboard format.

Symbols: N examples, S seeds, R samples of the examples. A sample is its weights, how often it holds each example. Every
metric is a function of sums over the examples, so that R samples are a product with their weights, (R, N).
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from mtbert.data import TASKS, DataError, Task
from mtbert.paths import write_text

BLOCK = 2**17  # weights at a time, so that they stay in the processor's cache
COURSE_COLUMNS = {  # of the files that the course's own code writes, spelt as there
    "sst": "Predicted_Sentiment",
    "cfimdb": "Predicted_Sentiment",
    "quora": "Predicted_Is_Paraphrase",
    "sts": "Predicted_Similiary",
}
# (predicted (..., N), labels (..., N), weights (R, N) or None) -> (...,) or (..., R)
Metric = Callable[..., np.ndarray]
# Of a task: its metric, the predictions (S, N) of one or two parts, and the labels (N,).
Scored = tuple[Metric, list[np.ndarray], np.ndarray]


def _total(terms: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Sum over the examples, the last axis: (..., N) -> (...,), or with weights (R, N) -> (..., R)."""
    return terms.sum(-1) if weights is None else terms @ weights.T


def accuracy(predicted: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Fraction of equal entries: (..., N) -> (...,), or with weights (R, N) -> (..., R)."""
    hit = predicted == labels
    return _total(hit, weights) / _total(np.ones(hit.shape[-1]), weights)


def f1(predicted: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None, positive: int = 1) -> np.ndarray:
    """F1 of one class, 2 TP / (2 TP + FP + FN), shapes as of `accuracy`; 0 where it is neither there nor predicted."""
    is_predicted, is_label = predicted == positive, labels == positive
    hits = _total(is_predicted & is_label, weights)
    return 2 * hits / np.maximum(_total(is_predicted, weights) + _total(is_label, weights), 1)


def macro_f1(
    predicted: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None, num_classes: int = 2
) -> np.ndarray:
    """Mean of the F1 of every class, shapes as of `accuracy`."""
    return np.mean([f1(predicted, labels, weights, positive=c) for c in range(num_classes)], axis=0)


def pearson(predicted: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Pearson correlation, shapes as of `accuracy`; nan where one side is constant."""
    p, y = (side - side.mean(-1, keepdims=True) for side in (predicted.astype(float), labels.astype(float)))
    n = _total(np.ones(p.shape[-1]), weights)
    mean_p, mean_y = _total(p, weights) / n, _total(y, weights) / n

    def deviation(x: np.ndarray, mean: np.ndarray, raw: np.ndarray) -> np.ndarray:
        variance, constant, scale = _total(x * x, weights) / n - mean * mean, np.ptp(raw, -1) == 0, np.square(x).max(-1)
        if weights is not None:
            constant, scale = constant[..., None], scale[..., None]
        return np.sqrt(np.where(constant | (variance < 1e-14 * scale), np.nan, variance))  # below it is rounding

    covariance = _total(p * y, weights) / n - mean_p * mean_y
    return covariance / (deviation(p, mean_p, predicted) * deviation(y, mean_y, labels))


def r2(predicted: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Share of the labels' variance that is predicted, 1 - MSE / variance, shapes as of `accuracy`."""
    y = labels - labels.mean(-1, keepdims=True)
    n = _total(np.ones(y.shape[-1]), weights)
    variance = _total(y**2, weights) / n - (_total(y, weights) / n) ** 2
    return 1 - _total((predicted - labels) ** 2, weights) / n / np.where(variance > 0, variance, np.nan)


def metrics_of(task: Task) -> dict[str, Metric]:
    """The metrics of a task, name -> function(predicted, labels, weights=None); the first one selects models."""
    if task.is_number:
        found = {"pearson": pearson} | ({"r2": r2} if task.kind == "regression" else {})
    else:
        macro = functools.partial(macro_f1, num_classes=task.num_classes)
        found = {"accuracy": accuracy, "macro_f1": macro} | ({"f1": f1} if task.num_classes == 2 else {})
    return {task.metric: found[task.metric]} | found


def overall(scores: dict[str, float]) -> float:
    """One score for several tasks: the mean of accuracies and of (1 + Pearson) / 2 (paper 002); of one task its own.

    Other metrics that a task of one's own names enter as they are.
    """
    if len(scores) == 1:
        return next(iter(scores.values()))
    return float(np.mean([(1 + s) / 2 if TASKS[task].metric == "pearson" else s for task, s in scores.items()]))


def score_table(task: str, split: str, predicted: np.ndarray, labels: np.ndarray) -> pd.DataFrame:
    """One row per metric: task, split, metric, value, low, high (95 %, of one seed), n (examples)."""
    predicted, labels, rows = predicted.astype(float), labels.astype(float), []
    for name, metric in metrics_of(TASKS[task]).items():
        _, low, high, _ = seed_mean([(metric, [predicted[None]], labels)])
        value = float(metric(predicted, labels))
        rows.append(dict(task=task, split=split, metric=name, value=value, low=low, high=high, n=len(labels)))
    return pd.DataFrame(rows)


def seed_mean(tasks: Sequence[Scored]) -> tuple[float, float, float, float]:
    """Mean of the tasks' metrics over seeds, of two parts that of the first minus that of the second.

    Returns it, the ends of its 95 % interval, and the two-sided p-value of 0. Seeds and examples are crossed random
    effects. The variance of the examples is the jackknife's (Efron 1982); every part of S > 1 seeds adds 1/S of the
    variance of its scores that the examples do not explain. t has the degrees of freedom of Satterthwaite (1946).
    """
    from scipy.special import stdtr, stdtrit  # here, as it is slow to import

    sizes = [len(part) for part in tasks[0][1]]
    weights = np.repeat([1 / S if i == 0 else -1 / S for i, S in enumerate(sizes)], sizes)  # of each seed's score
    scores = np.mean([metric(np.vstack(parts), labels) for metric, parts, labels in tasks], axis=0)
    covariance = sum(_jackknife(*task) for task in tasks) / len(tasks) ** 2
    value, variance, squares = weights @ scores, weights @ covariance @ weights, 0.0
    several = [seeds for seeds in np.split(np.arange(len(scores)), np.cumsum(sizes)[:-1]) if len(seeds) > 1]
    for seeds in several:
        S, between, block = len(seeds), scores[seeds].var(ddof=1), covariance[np.ix_(seeds, seeds)]
        of_examples = (np.trace(block) - block.sum() / S) / (S - 1)
        variance += max(0.0, between - of_examples) / S
        squares += (between / S) ** 2 / (S - 1)
    freedom = max(variance**2 / squares, min(map(len, several)) - 1) if squares else np.inf
    value, error = round(value, 10), np.sqrt(max(variance, 0.0)).round(10)  # equal scores are equal numbers
    half = error * stdtrit(freedom, 0.975)
    high = value + half if len(sizes) > 1 else min(value + half, 1.0)  # no score is higher
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * stdtr(freedom, -abs(value / error))
    p = 1.0 if np.isnan(p) else p  # of equal predictions, or where a metric is not defined
    return float(value), float(value - half), float(high), float(p)


def _jackknife(metric: Metric, parts: list[np.ndarray], labels: np.ndarray) -> np.ndarray:
    """Covariance of the scores of all S seeds over the examples, from leaving out one example at a time: (S, S)."""
    columns, counts = _kinds(metric, parts, labels)
    left_out = []  # scores (S, B) without one example of each of B kinds
    for kinds in np.array_split(np.arange(len(counts)), len(counts) ** 2 // BLOCK + 1):
        with np.errstate(divide="ignore", invalid="ignore"):  # of a single example nothing is left
            left_out.append(metric(columns[:-1], columns[-1], counts - (kinds[:, None] == np.arange(len(counts)))))
    return (len(labels) - 1) * np.atleast_2d(np.cov(np.hstack(left_out), fweights=counts, bias=True))


def _kinds(metric: Metric, parts: list[np.ndarray], labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Columns of predictions and label that differ, (S + 1, K), and the number of examples of each kind, (K,).

    For a difference of accuracies those examples are alike on which the same predictions are right.
    """
    columns = np.vstack([*parts, labels])
    if metric is accuracy and len(parts) > 1:
        columns = columns == labels
    return np.unique(columns, axis=1, return_counts=True)


def holm(p_values: np.ndarray) -> np.ndarray:
    """p-values of m comparisons (m,), corrected for their number: at most 5 % risk of any false one below 0.05.

    Holm 1979: the k-th smallest times m + 1 - k, at least the one before it and at most 1.
    """
    p_values = np.asarray(p_values, dtype=float)
    order, m = np.argsort(p_values), len(p_values)
    corrected = np.empty(m)
    corrected[order] = np.minimum(1, np.maximum.accumulate(p_values[order] * np.arange(m, 0, -1)))
    return corrected


def verdict(low: float, high: float) -> str:
    """What the 95 % interval of a difference says; where many are compared, correct their p-values with `holm`."""
    return "better" if low > 0 else "worse" if high < 0 else "not distinguishable"


def write_leaderboard(
    predictions: pd.DataFrame, task: str, split: str, folder: Path, course_format: bool = False
) -> Path:
    """Write `<task>-<split>-output.csv` with the columns id, predicted, in the data file's order.

    course_format: with the header and the separators of the CS224N default project's own code (evaluation.py and
    classifier.py), where quora is named para and a paraphrase is 1.0.
    """
    path = folder / f"{'para' if course_format and task == 'quora' else task}-{split}-output.csv"
    if course_format:
        if task not in COURSE_COLUMNS:
            raise DataError(f"{task} is not a task of the course and has no file in its format")
        form = {"classes": "d", "binary": ".1f", "similarity": ".4f"}[TASKS[task].kind]
        rows = zip(predictions["id"], predictions["predicted"], strict=True)
        lines = [f"id \t {COURSE_COLUMNS[task]} \n", *(f"{name} , {value:{form}} \n" for name, value in rows)]
        write_text(path, "".join(lines))
    else:
        table = predictions.assign(predicted=TASKS[task].as_written(predictions["predicted"]))
        write_text(path, table[["id", "predicted"]].to_csv(index=False, float_format="%.4f", lineterminator="\n"))
    return path
