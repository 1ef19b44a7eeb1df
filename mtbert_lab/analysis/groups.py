"""Groups of examples: what can be said of a text without reading it, and which groups are wrong more often.

Features are numbers and truth values of each example, kept in results/features/, so that the texts are not needed.
"""

import hashlib
import re
from pathlib import Path

import numpy as np
import pandas as pd
from numpy import ndarray

from mtbert.data import TAGS, TASKS, PosError, load_table, pos_features
from mtbert_lab.statistics import Resamples
from mtbert_lab.store import Run, cached_table, data_root, dev_table

WORD = re.compile(r"\w+(?:['’]\w+)?")
NEGATIONS = {"not", "no", "never", "nothing", "nobody", "none", "neither", "nor", "nowhere", "without", "cannot"}
FAR = 0.2  # share of the labels' range, of STS one point: two numbers so far apart differ, as two classes do
ENDS = 1 / 3  # share of the examples in a group of low or of high values
FEWEST = 20  # examples in a group, and outside it
DESCRIBING = [TAGS.index("ADJ"), TAGS.index("ADV")]


def features(task: str, train: pd.DataFrame, dev: pd.DataFrame) -> pd.DataFrame:
    """A row per dev example of checked tables.

    words: their number. negation: one of NEGATIONS or n't; in a pair, in one sentence only. both_labels: a sentence is
    also in another pair of train or dev with another label, FAR away if a number. disputed: so is the whole text.
    overlap (pairs): words that both sentences have, as a share of those that either has. describing (single sentences):
    the share of adjectives and adverbs. tag_distance (pairs): half the summed differences of the two sentences' shares
    of each part of speech. Both are nan without NLTK's data.
    """
    sentences = [_words(dev[column]) for column in TASKS[task].sentence_columns]
    try:
        tags = pos_features(task, dev)
    except PosError:
        width = len(sentences) * len(TAGS)
        tags = np.full((len(dev), width), np.nan)
    lengths = [words.map(len) for words in sentences]
    negated = [words.map(_is_negated) for words in sentences]
    table = pd.DataFrame({"words": sum(lengths)})
    table["negation"] = sum(negated) == 1
    table = table.join(_labels_elsewhere(task, train, dev))
    if len(sentences) == 1:
        table["describing"] = tags[:, DESCRIBING].sum(-1)
    else:
        table["overlap"] = list(map(_overlap, *sentences))
        first, second = np.split(tags, 2, axis=1)
        table["tag_distance"] = np.abs(first - second).sum(-1) / 2
    return table.round(3)


def _words(texts: pd.Series) -> pd.Series:
    return texts.str.lower().map(WORD.findall)


def _is_negated(words: list[str]) -> bool:
    return any(word in NEGATIONS or word.endswith(("n't", "n’t")) for word in words)


def _overlap(first: list[str], second: list[str]) -> float:
    in_both = set(first) & set(second)
    in_either = set(first) | set(second)
    return len(in_both) / max(1, len(in_either))


def _labels_elsewhere(task: str, train: pd.DataFrame, dev: pd.DataFrame) -> pd.DataFrame:
    """both_labels and disputed, see `features`."""
    about = TASKS[task]
    far = FAR * np.ptp(about.label_range) if about.is_number else 1.0
    both = pd.concat([train, dev], ignore_index=True)
    labels = both["label"]
    words = [_words(both[column]) for column in about.sentence_columns]
    texts = [sentence.str.join(" ") for sentence in words]
    codes, _ = pd.factorize(pd.concat(texts))
    codes = codes.reshape(len(texts), -1)  # (k, N), a number per different sentence

    in_order = np.sort(codes, axis=0)  # a pair may stand the other way round elsewhere
    same_text = labels.groupby([*in_order])
    disputed = same_text.transform(np.ptp) >= far
    both_labels = pd.Series(False, index=both.index)
    if len(texts) == 2:
        twice = pd.concat([labels, labels])
        same_sentence = twice.groupby(codes.ravel())
        for extreme in (same_sentence.min(), same_sentence.max()):
            for code in codes:
                distance = (extreme[code].to_numpy() - labels).abs()
                both_labels |= distance >= far
    found = pd.DataFrame({"disputed": disputed, "both_labels": both_labels})
    return found.iloc[len(train) :].reset_index(drop=True)


def known_features(run: Run, task: str, data: str | Path | None = None) -> pd.DataFrame | None:
    """`features` of a run's dev examples, in the order of its predictions; None where they cannot be computed here.

    Those of the course's tasks are found by the ids of dev, whichever version of the training split is here.
    """
    ids = run.predictions_of(task)["id"].str.cat()
    if TASKS[task].id_column is None or TASKS[task].is_own:  # line numbers, or ids whose texts a user may correct
        ids += run.provenance["data"]
    digest = hashlib.sha256(ids.encode()).hexdigest()[:8]

    def compute() -> pd.DataFrame:
        train, _ = load_table(task, "train", data_root(run.config, data))
        dev = dev_table(run, task, data)
        return features(task, train, dev)

    return cached_table(f"features/{task}-{digest}", compute)


def groups(table: pd.DataFrame) -> dict[str, ndarray]:
    """Name -> its examples (N,) bool: each truth value that is true, and the lowest and highest third of each number.

    Groups of fewer than FEWEST examples, or of all but so few, are left out.
    """
    found = {}
    for column, values in table.items():
        name = column.replace("_", " ")
        if values.dtype == bool:
            found[name] = values.to_numpy()
        else:
            rank = values.rank(pct=True).to_numpy()
            found[f"{name}, lowest third"] = rank <= ENDS
            found[f"{name}, highest third"] = rank > 1 - ENDS
    most = len(table) - FEWEST
    sizes = {name: mask.sum() for name, mask in found.items()}
    return {name: found[name] for name, size in sizes.items() if FEWEST <= size <= most}


def at_equal_labels(values: ndarray, labels: ndarray) -> ndarray:
    """Values (S, N) minus their mean over the examples with the same label (N,), which is rounded if a number."""
    by_example = pd.DataFrame(values.T)
    means = by_example.groupby(np.rint(labels)).transform("mean")
    return (by_example - means).to_numpy().T


def inside_minus_outside(
    resamples: Resamples,
    system: str,
    values: ndarray,
    labels: ndarray,
    mask: ndarray,
) -> ndarray:
    """The statistic of the mean of a group, mask (N,), minus the mean of the other examples, adjusted for the label.

    values: (S, N). A group with many examples of a hard label would otherwise seem hard itself.
    """
    values = at_equal_labels(values, labels)
    inside = resamples.mean(system, values, mask)
    outside = resamples.mean(system, values, ~mask)
    return inside - outside
