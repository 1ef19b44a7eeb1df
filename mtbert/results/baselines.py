"""Baselines without training: the most frequent label, and the cosine of an untrained encoder's sentence embeddings.

They put the scores of trained models into perspective: the answer "no duplicate" is right for five eighths of Quora,
and an encoder that was tuned on sentence pairs by its makers has a high score on STS before any training.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F

from mtbert.config import RunConfig
from mtbert.data import TASKS
from mtbert.multitask import MultitaskBert
from mtbert.results.runs import data_root
from mtbert.runtime import pick_device
from mtbert.training import TaskRows, load_corpus, score_table

THRESHOLD_ROWS = 20_000  # training pairs that the threshold of a binary task is chosen on
BASELINES = "baselines.csv"


def baseline_table(config: RunConfig, data: str | Path | None = None, device: str = "auto") -> pd.DataFrame:
    """Dev scores of every task of the configuration: baseline, task, split, metric, value, low, high (95 %), n.

    most frequent: the most frequent label of the training split, for similarity the mean. cosine: of the two sentences'
    mean-pooled embeddings; the threshold of a binary task is the best one on training pairs. Raises DataError as
    `data_root` does.
    """
    corpus = load_corpus(config, data_root(config, data))
    tables = {}
    for task in config.tasks:
        train, dev = corpus.train[task], corpus.dev[task]
        labels = dev["label"].to_numpy()
        constant = train["label"].mean() if TASKS[task].is_number else train["label"].mode()[0]
        tables[task, "most frequent"] = score_table(task, "dev", np.full(len(dev), constant), labels)
        if TASKS[task].is_pair and TASKS[task].kind != "classes":
            cosines = _cosines(config, task, dev, device)
            if TASKS[task].kind == "binary":
                chosen = train.sample(min(len(train), THRESHOLD_ROWS), random_state=0)
                threshold = best_threshold(_cosines(config, task, chosen, device), chosen["label"].to_numpy())
                cosines = (cosines > threshold).astype(int)
            tables[task, "cosine"] = score_table(task, "dev", cosines, labels)
    return pd.concat(tables, names=[None, "baseline"]).reset_index("baseline").reset_index(drop=True)


def best_threshold(scores: np.ndarray, labels: np.ndarray) -> float:
    """Scores (N,), labels (N,) of 0 and 1 -> the t for which `score > t` agrees with most labels."""
    zeros, ones = np.sort(scores[labels == 0]), np.sort(scores[labels == 1])
    thresholds = np.concatenate(([-np.inf], np.unique(scores)))
    right = np.searchsorted(zeros, thresholds, "right") - np.searchsorted(ones, thresholds, "right")  # + len(ones)
    return float(thresholds[right.argmax()])


def _cosines(config: RunConfig, task: str, table: pd.DataFrame, device: str) -> np.ndarray:
    """Cosine (N,) of the two sentences of every pair."""
    place = pick_device(device)
    apart = RunConfig(corpus=config.corpus, encoder=config.encoder, tasks=(task,), plan="frozen", pairs="cosine")
    model = MultitaskBert(apart).to(place)
    rows = TaskRows(model, task, table.reset_index(drop=True), place)
    with torch.no_grad():
        first, second = rows.fixed_embeddings(np.arange(len(table))).unbind(1)
    return F.cosine_similarity(first, second, dim=-1).cpu().numpy()
