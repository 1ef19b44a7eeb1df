"""Calibration, and decisions other than the most probable class.

Sources: Guo et al. 2017 (expected calibration error, temperature scaling). S seeds, N examples, C classes.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy import ndarray
from scipy.optimize import isotonic_regression, minimize_scalar
from scipy.special import softmax

from mtbert_lab.analysis.baselines import best_threshold
from mtbert_lab.statistics import Estimate, Resamples

BINS = 10  # of equal width
FEW = 30  # predictions, below which a bin says little
Method = Callable[[ndarray, ndarray, ndarray], ndarray]  # values to fit, their labels, values to change


def log_loss(p: ndarray, labels: ndarray) -> ndarray:
    """-log of the probability of the label: p (..., N, C), labels (N,) -> (..., N), in nats."""
    examples = np.arange(len(labels))
    of_label = p[..., examples, labels.astype(int)]
    return -np.log(of_label)


def reliability(resamples: Resamples, p: ndarray, labels: ndarray) -> pd.DataFrame:
    """A row per bin of confidence: confidence (mean), n, and the accuracy's value, low, high (95 %, over examples).

    p (S, N, C): the seeds are pooled. Bins of fewer than FEW predictions are left out.
    """
    confidence = p.max(-1)
    hit = p.argmax(-1) == labels
    rows = []
    for inside in _bins(confidence):
        n = inside.sum()
        if n < FEW:
            continue
        hits = resamples.sums(hit & inside).sum(0)
        total = resamples.sums(inside).sum(0)
        accuracy = Estimate.of(hits / np.maximum(total, 1))
        mean = confidence[inside].mean()
        rows.append({"confidence": mean, "n": n, **accuracy._asdict()})
    return pd.DataFrame(rows)


def _bins(confidence: ndarray) -> list[ndarray]:
    """Which confidences lie in each of BINS bins; a confidence of 1 is in the last one."""
    number = (confidence * BINS).astype(int)
    number = np.minimum(number, BINS - 1)
    return [number == b for b in range(BINS)]


def calibration_error(
    resamples: Resamples,
    system: str,
    p: ndarray,
    labels: ndarray,
) -> ndarray:
    """Expected calibration error (R + 1,) of p (S, N, C): the mean gap of accuracy and confidence over BINS bins.

    Chance alone makes it positive, the more so the fewer the examples: compare it between systems, not with 0.
    """
    confidence = p.max(-1)
    hit = p.argmax(-1) == labels
    surplus = hit - confidence
    gaps = 0.0
    for inside in _bins(confidence):
        gap = resamples.sums(surplus * inside)
        gaps = gaps + np.abs(gap)
    return resamples.over_seeds(system, gaps / len(labels))


def temperature(p: ndarray, labels: ndarray) -> float:
    """The T that gives p ** (1 / T), scaled to a sum of 1, the least log loss on these examples: p (N, C)."""

    def loss(log_T: float) -> float:
        scaled = sharpened(p, np.exp(log_T))
        return log_loss(scaled, labels).mean()

    found = minimize_scalar(loss, bounds=(-3, 3))
    return float(np.exp(found.x))


def sharpened(p: ndarray, T: float) -> ndarray:
    """Probabilities (..., C) at another temperature: the softmax of the logits divided by T."""
    return softmax(np.log(p) / T, axis=-1)


def cross_fitted(method: Method, values: ndarray, labels: ndarray) -> ndarray:
    """Values changed by a method on halves of the examples, each half by a fit on the other.

    values: (S, N, ...), every seed by itself; labels (N,). No example is evaluated with a fit that has seen it.
    """
    shuffled = np.random.default_rng(0).permutation(len(labels))
    one, other = np.array_split(shuffled, 2)
    back = np.argsort(np.concatenate([one, other]))
    changed = []
    for run in values:
        of_one = method(run[other], labels[other], run[one])
        of_other = method(run[one], labels[one], run[other])
        halves = np.concatenate([of_one, of_other])
        changed.append(halves[back])
    return np.stack(changed)


def thresholded(p: ndarray, labels: ndarray, other: ndarray) -> ndarray:
    """Labels 0 or 1 of `other` (M,), at the threshold that gives p (N,) the highest accuracy."""
    threshold = best_threshold(p, labels)
    return (other > threshold).astype(int)


def recalibrated(scores: ndarray, labels: ndarray, other: ndarray) -> ndarray:
    """Scores `other` (M,) by the isotonic regression of labels on scores (N,), linear between its points."""
    x, index, counts = np.unique(scores, return_inverse=True, return_counts=True)  # equal scores get one value
    means = np.bincount(index, labels) / counts
    fitted = isotonic_regression(means, weights=counts).x
    return np.interp(other, x, fitted)
