"""Baselines without training: the most frequent label, and the cosine of sentence embeddings as the encoder comes.

They put the scores of trained models into perspective: the answer "no duplicate" is right for five eighths of Quora,
and an encoder that was tuned on sentence pairs by its makers has a high score on STS before any training. Those of the
course's tasks are in baselines.csv of a store, which `python -m benchmarks predictions` writes.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from numpy import ndarray

from mtbert.config import RunConfig
from mtbert.data import TASKS
from mtbert.multitask import MultitaskBert
from mtbert.runtime import pick_device
from mtbert.training import prepare_task
from mtbert_lab.store import read_corpus, score_table

THRESHOLD_ROWS = 20_000  # training pairs that the threshold of a binary task is chosen on
BASELINES = "baselines.csv"
LABELS = {"most frequent": "most frequent label", "cosine": "cosine of the encoder before training"}


def baseline_table(config: RunConfig, data: str | Path | None = None, device: str = "auto") -> pd.DataFrame:
    """Dev scores of every task of the configuration: baseline, task, split, metric, value, low, high (95 %), n.

    most frequent: the most frequent label of the training split, for similarity the mean. cosine: of the two sentences'
    mean-pooled embeddings; the threshold of a binary task is the best one on training pairs. Raises DataError as
    `data_root` does.
    """
    corpus = read_corpus(config, data)
    tables = []
    for task in config.tasks:
        about = TASKS[task]
        train = corpus.train[task]
        dev = corpus.dev[task]
        constant = train["label"].mean() if about.is_number else train["label"].mode()[0]
        predicted = {"most frequent": np.full(len(dev), constant)}
        if about.is_pair and about.kind != "classes":
            predicted["cosine"] = _cosines(config, task, dev, device)
        if about.is_pair and about.kind == "binary":
            chosen = train.sample(min(len(train), THRESHOLD_ROWS), random_state=0)
            threshold = best_threshold(_cosines(config, task, chosen, device), chosen["label"].to_numpy())
            predicted["cosine"] = (predicted["cosine"] > threshold).astype(int)
        for baseline, values in predicted.items():
            scores = score_table(task, "dev", values, dev["label"].to_numpy())
            scores.insert(0, "baseline", baseline)
            tables.append(scores)
    return pd.concat(tables, ignore_index=True)


def best_threshold(scores: ndarray, labels: ndarray) -> float:
    """Scores (N,), labels (N,) of 0 and 1 -> the t for which `score > t` agrees with most labels."""
    zeros = np.sort(scores[labels == 0])
    ones = np.sort(scores[labels == 1])
    thresholds = np.concatenate(([-np.inf], np.unique(scores)))
    right_zeros = np.searchsorted(zeros, thresholds, "right")
    wrong_ones = np.searchsorted(ones, thresholds, "right")
    return float(thresholds[np.argmax(right_zeros - wrong_ones)])


def _cosines(config: RunConfig, task: str, table: pd.DataFrame, device: str) -> ndarray:
    """Cosine (N,) of the two sentences of every pair."""
    place = pick_device(device)
    untrained = RunConfig(corpus=config.corpus, encoder=config.encoder, tasks=(task,), plan="frozen", pairs="cosine")
    model = MultitaskBert(untrained).to(place)
    rows = prepare_task(model, task, table.reset_index(drop=True), place)
    with torch.no_grad():
        first, second = rows.fixed_embeddings(model, np.arange(len(table))).unbind(1)
    return F.cosine_similarity(first, second, dim=-1).cpu().numpy()
