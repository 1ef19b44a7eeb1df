"""Metrics over a whole split, their bootstrap intervals, and predictions in the course's leaderboard format."""

from pathlib import Path

import numpy as np
import pandas as pd

from mtbert.data import TASKS, Task

RESAMPLES = 1000
LEADERBOARD_NAMES = {"sst": "sst", "cfimdb": "cfimdb", "quora": "para", "sts": "sts"}  # as the course's files
COURSE_COLUMNS = {  # of the files that the course's own code writes, spelt as there
    "sst": "Predicted_Sentiment",
    "cfimdb": "Predicted_Sentiment",
    "quora": "Predicted_Is_Paraphrase",
    "sts": "Predicted_Similiary",
}


def accuracy(predicted: np.ndarray, labels: np.ndarray, axis: int = -1) -> np.ndarray:
    """Fraction of equal entries along `axis`."""
    return (predicted == labels).mean(axis)


def f1(predicted: np.ndarray, labels: np.ndarray, axis: int = -1, positive: int = 1) -> np.ndarray:
    """F1 of one class, 2 TP / (2 TP + FP + FN) along `axis`; 0 where the class is neither there nor predicted."""
    hit = ((predicted == positive) & (labels == positive)).sum(axis)
    total = (predicted == positive).sum(axis) + (labels == positive).sum(axis)
    return 2 * hit / np.maximum(total, 1)


def macro_f1(predicted: np.ndarray, labels: np.ndarray, axis: int = -1, num_classes: int = 2) -> np.ndarray:
    """Mean of the F1 of every class."""
    return np.mean([f1(predicted, labels, axis, positive=c) for c in range(num_classes)], axis=0)


def pearson(predicted: np.ndarray, labels: np.ndarray, axis: int = -1) -> np.ndarray:
    """Pearson correlation along `axis`; nan where one side is constant."""
    p = predicted - predicted.mean(axis, keepdims=True)
    y = labels - labels.mean(axis, keepdims=True)
    constant = (np.ptp(predicted, axis) == 0) | (np.ptp(labels, axis) == 0)  # rounding may leave p or y above 0
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(constant, np.nan, (p * y).sum(axis) / np.sqrt((p * p).sum(axis) * (y * y).sum(axis)))


def metrics_of(task: Task) -> dict:
    """The metrics of a task, name -> function(predicted, labels, axis); the first one selects models."""
    if task.kind == "similarity":
        return {"pearson": pearson}

    def macro(predicted: np.ndarray, labels: np.ndarray, axis: int = -1) -> np.ndarray:
        return macro_f1(predicted, labels, axis, task.num_classes)

    return {"accuracy": accuracy, "macro_f1": macro} | ({"f1": f1} if task.num_classes == 2 else {})


def overall(scores: dict[str, float]) -> float:
    """One score for several tasks: the mean of accuracies and of (1 + Pearson) / 2 (paper 002); of one task its own."""
    if len(scores) == 1:
        return next(iter(scores.values()))
    return float(np.mean([(1 + s) / 2 if TASKS[task].kind == "similarity" else s for task, s in scores.items()]))


def interval(metric, predicted: np.ndarray, labels: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """95 % bootstrap interval of a metric over the examples (percentiles of 1,000 resamples)."""
    if len(labels) < 2:
        return float("nan"), float("nan")
    from scipy import stats  # here, as it takes a third of the time that importing the package takes

    result = stats.bootstrap(
        (predicted, labels), metric, paired=True, vectorized=True, axis=-1, n_resamples=RESAMPLES,
        batch=max(1, 4_000_000 // len(labels)), method="percentile", rng=np.random.default_rng(seed),
    )  # fmt: skip
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def score_table(task: str, split: str, predicted: np.ndarray, labels: np.ndarray) -> pd.DataFrame:
    """One row per metric: task, split, metric, value, low, high (95 %), n (examples)."""
    rows = []
    for name, metric in metrics_of(TASKS[task]).items():
        low, high = interval(metric, predicted, labels)
        value = float(metric(predicted, labels))
        rows.append(dict(task=task, split=split, metric=name, value=value, low=low, high=high, n=len(labels)))
    return pd.DataFrame(rows)


def seed_mean(metric, predicted: np.ndarray, labels: np.ndarray) -> tuple[float, float, float]:
    """Mean of a metric over seeds, and its 95 % interval: predicted (S, N), labels (N,).

    Every resample draws examples and, where there are several, seeds: the interval covers the luck of the dev split
    and the luck of the seed.
    """
    random = np.random.default_rng(0)
    draws = [_resampled_mean(metric, predicted, labels, _draw(random, labels), random) for _ in range(RESAMPLES)]
    low, high = np.nanpercentile(draws, [2.5, 97.5])
    return float(np.mean(metric(predicted, labels))), float(low), float(high)


def seed_difference(metric, first: np.ndarray, second: np.ndarray, labels: np.ndarray) -> tuple[float, float, float]:
    """Mean metric of `first` minus that of `second`, and its 95 % interval: both (seeds, N), on the same examples."""
    random = np.random.default_rng(0)
    draws = []
    for _ in range(RESAMPLES):
        examples = _draw(random, labels)
        means = [_resampled_mean(metric, part, labels, examples, random) for part in (first, second)]
        draws.append(means[0] - means[1])
    low, high = np.nanpercentile(draws, [2.5, 97.5])
    return float(np.mean(metric(first, labels)) - np.mean(metric(second, labels))), float(low), float(high)


def verdict(low: float, high: float) -> str:
    """What the 95 % interval of a difference says."""
    return "better" if low > 0 else "worse" if high < 0 else "not told apart from chance"


def _draw(random: np.random.Generator, labels: np.ndarray) -> np.ndarray:
    return random.integers(len(labels), size=len(labels))


def _resampled_mean(metric, predicted: np.ndarray, labels: np.ndarray, examples: np.ndarray, random) -> float:
    """The metric on these examples, averaged over a fresh draw of the seeds."""
    seeds = random.integers(len(predicted), size=len(predicted))
    return float(np.mean(metric(predicted[np.ix_(seeds, examples)], labels[examples])))


def write_leaderboard(
    predictions: pd.DataFrame, task: str, split: str, folder: Path, course_format: bool = False
) -> Path:
    """Write `<task>-<split>-output.csv` with the columns id, predicted, in the data file's order.

    course_format: with the header and the separators of the CS224N default project's own code (evaluation.py and
    classifier.py), where a paraphrase is 1.0.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{LEADERBOARD_NAMES[task]}-{split}-output.csv"
    if course_format:
        form = {"classes": "d", "binary": ".1f", "similarity": ".4f"}[TASKS[task].kind]
        rows = zip(predictions["id"], predictions["predicted"], strict=True)
        lines = [f"id \t {COURSE_COLUMNS[task]} \n", *(f"{name} , {value:{form}} \n" for name, value in rows)]
        path.write_text("".join(lines), encoding="utf8")
    else:
        predictions[["id", "predicted"]].to_csv(path, index=False, float_format="%.4f")
    return path
