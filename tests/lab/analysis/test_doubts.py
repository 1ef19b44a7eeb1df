"""What makes scores say nothing is told of each run."""

from dataclasses import replace

import numpy as np
import pandas as pd

from mtbert.config import RunConfig
from mtbert_lab.analysis.doubts import doubts
from mtbert_lab.store.run import Run
from mtbert_lab.store.runs import score_table

LABELS = {"sst": np.arange(60) % 3, "sts": np.linspace(0, 5, 60)}
BASELINES = pd.DataFrame(
    [
        ("most frequent", "sst", "accuracy", 0.4),
        ("most frequent", "sst", "macro_f1", 0.9),
        ("cosine", "sts", "pearson", 0.8),
    ],
    columns=["baseline", "task", "metric", "value"],
)


def run_of(seed: int = 1, **predicted: np.ndarray) -> Run:
    """A run with these dev predictions of its tasks."""
    parts, scores = [], []
    for task, values in predicted.items():
        parts.append(pd.DataFrame({"task": task, "split": "dev", "label": LABELS[task], "predicted": values}))
        scores.append(score_table(task, "dev", values, LABELS[task]))
    config = RunConfig(tasks=tuple(predicted), scheme="unified", seed=seed)
    tables = {"scores": pd.concat(scores), "predictions": pd.concat(parts), "curve": pd.DataFrame()}
    return Run("0-0", config, cost={}, provenance={}, **tables)


def told(*runs: Run) -> list[tuple[str, str, str]]:
    return list(doubts({"one": runs}, BASELINES).itertuples(index=False, name=None))


def test_a_run_that_predicts_one_answer_is_told():
    constant = run_of(sst=np.zeros(60))
    assert told(constant) == [
        ("one", "sst", "predicts one answer for every example"),
        ("one", "sst", "is below the most frequent label (0.333 against 0.400)"),
    ]
    right = run_of(2, sst=LABELS["sst"])
    assert told(constant, right) == [("one", "sst", "predicts one answer for every example with seed 1")]
    assert told(right, replace(right)) == []


def test_a_run_below_the_untrained_cosine_is_told():
    noise = np.random.default_rng(0).normal(size=60)
    [(_, task, doubt)] = told(run_of(sts=0.3 * LABELS["sts"] + noise + 1.7))
    assert task == "sts" and doubt.startswith("is below the cosine of the encoder before training (0.")


def test_the_cosine_of_the_pretrained_encoder_says_nothing_of_random_weights():
    low = run_of(sts=0.3 * LABELS["sts"] + np.random.default_rng(0).normal(size=60) + 1.7)
    assert told(replace(low, config=low.config.but(weights="random"))) == []


def test_numbers_of_the_right_order_and_the_wrong_size_are_told():
    """A correlation does not see them."""
    [(_, _, doubt)] = told(run_of(sts=LABELS["sts"] / 10))
    assert doubt.startswith("has the right order and the wrong size of numbers (Pearson's correlation 1.000, R² -")
    assert told(run_of(sst=LABELS["sst"], sts=LABELS["sts"])) == []


def test_numbers_of_a_low_correlation_have_no_right_order():
    noise = np.random.default_rng(0).normal(size=60)
    faults = [doubt for _, _, doubt in told(run_of(sts=0.3 * LABELS["sts"] + 2 * noise))]
    assert any(doubt.startswith("has the wrong size of numbers (Pearson's correlation 0.") for doubt in faults)
