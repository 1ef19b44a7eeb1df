"""Groups of examples: what can be said of a text without reading it, and which groups are wrong more often.

Features are numbers and truth values of each example, kept in results/features/, so that the texts are not needed.
"""

import hashlib
import re
from pathlib import Path

import numpy as np
import pandas as pd

from mtbert.analysis.probabilities import dev_table, kept
from mtbert.data import TAGS, TASKS, PosError, load_table, pos_features
from mtbert.results import Run, data_root
from mtbert.statistics import Resamples

WORD = re.compile(r"\w+(?:['’]\w+)?")
NEGATIONS = {"not", "no", "never", "nothing", "nobody", "none", "neither", "nor", "nowhere", "without", "cannot"}
FAR = 0.2  # share of the labels' range, of STS one point: two numbers so far apart differ, as two classes do
ENDS = 1 / 3  # share of the examples in a group of low or of high values


def features(task: str, train: pd.DataFrame, dev: pd.DataFrame) -> pd.DataFrame:
    """A row per dev example of checked tables.

    words: of all sentences. negation: one of NEGATIONS or n't; of pairs, in one sentence only. both_labels: a sentence
    is also in another pair of train or dev with another label, FAR away if a number. disputed: so is the whole text.
    overlap (pairs): words that both sentences have, of those that either has. Part of speech: describing, the share of
    adjectives and adverbs; of pairs, tag_distance, half the summed differences of the two sentences' shares of each
    tag; nan without NLTK's data.
    """
    first, *second = [dev[column].str.lower().map(WORD.findall) for column in TASKS[task].sentence_columns]
    elsewhere = _labels_elsewhere(task, train, dev)
    try:
        tags = pos_features(task, dev)
    except PosError:
        tags = np.full((len(dev), (1 + len(second)) * len(TAGS)), np.nan)
    if not second:
        table = pd.DataFrame({"words": first.map(len), "negation": first.map(_is_negated)}).join(elsewhere)
        table["describing"] = tags[:, [TAGS.index("ADJ"), TAGS.index("ADV")]].sum(-1)
        return table.round(3)
    [second] = second
    words = first.map(len) + second.map(len)
    negation = first.map(_is_negated) ^ second.map(_is_negated)
    table = pd.DataFrame({"words": words, "negation": negation}).join(elsewhere)
    table["overlap"] = [_overlap(set(one), set(other)) for one, other in zip(first, second, strict=True)]
    first_tags, second_tags = np.split(tags, 2, axis=1)
    table["tag_distance"] = np.abs(first_tags - second_tags).sum(-1) / 2
    return table.round(3)


def _is_negated(words: list[str]) -> bool:
    return any(word in NEGATIONS or word.endswith(("n't", "n’t")) for word in words)


def _overlap(one: set[str], other: set[str]) -> float:
    return len(one & other) / max(1, len(one | other))


def _labels_elsewhere(task: str, train: pd.DataFrame, dev: pd.DataFrame) -> pd.DataFrame:
    """both_labels and disputed, see `features`."""
    both = pd.concat([train, dev], ignore_index=True)
    texts = []
    for column in TASKS[task].sentence_columns:
        words = both[column].str.lower().map(WORD.findall)
        texts.append(words.str.join(" "))
    far = FAR * np.ptp(TASKS[task].label_range) if TASKS[task].is_number else 1.0
    labels = both["label"]
    codes = pd.factorize(pd.concat(texts))[0].reshape(len(texts), -1)  # (k, N), a number per different sentence
    same_text = labels.groupby([*np.sort(codes, axis=0)])
    disputed = same_text.transform(np.ptp) >= far
    both_labels = pd.Series(False, index=both.index)
    if len(texts) == 2:
        same_sentence = pd.concat([labels, labels]).groupby(codes.ravel())
        for extreme in (same_sentence.min(), same_sentence.max()):
            for code in codes:
                both_labels |= (extreme[code].to_numpy() - labels).abs() >= far
    found = pd.DataFrame({"disputed": disputed, "both_labels": both_labels})
    return found.iloc[len(train) :].reset_index(drop=True)


def known_features(run: Run, task: str, data: str | Path | None = None) -> pd.DataFrame | None:
    """`features` of a run's dev examples, in the order of its predictions; None where they cannot be computed here."""
    ids = run.predictions.loc[run.predictions["task"] == task, "id"].str.cat()
    if TASKS[task].id_column is None:  # line numbers, the same in every file
        ids += run.provenance["data"]
    digest = hashlib.sha256(ids.encode()).hexdigest()[:8]

    def compute() -> pd.DataFrame:
        train, _ = load_table(task, "train", data_root(run.config, data))
        return features(task, train, dev_table(run, task, data))

    return kept(f"features/{task}-{digest}", compute)


def groups(table: pd.DataFrame, smallest: int = 20) -> dict[str, np.ndarray]:
    """Name -> its examples (N,) bool: each truth value that is true, and the lowest and highest third of each number.

    Groups of fewer than `smallest` examples, or of all but so few, are left out.
    """
    found = {}
    for name, values in table.items():
        name = name.replace("_", " ")
        if values.dtype == bool:
            found[name] = values.to_numpy()
        else:
            rank = values.rank(pct=True).to_numpy()
            found[f"{name}, lowest third"] = rank <= ENDS
            found[f"{name}, highest third"] = rank > 1 - ENDS
    return {name: mask for name, mask in found.items() if smallest <= mask.sum() <= len(mask) - smallest}


def at_equal_labels(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Values (S, N) minus their mean over the examples with the same label (N,), which is rounded if a number."""
    values = pd.DataFrame(values.T)
    return (values - values.groupby(np.rint(labels)).transform("mean")).to_numpy().T


def inside_minus_outside(
    resamples: Resamples, system: str, values: np.ndarray, labels: np.ndarray, mask: np.ndarray
) -> np.ndarray:
    """The statistic of the mean of a group, mask (N,), minus the mean of the other examples, adjusted for the label.

    values: (S, N). A group with many examples of a hard label would otherwise seem hard itself.
    """
    values = at_equal_labels(values, labels)
    return resamples.mean(system, values, mask) - resamples.mean(system, values, ~mask)
