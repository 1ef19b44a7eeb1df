"""Part-of-speech features of a text: the share of each universal tag among its tokens.

Source: paper 001, section 5 (its authors tried an NLTK tagger); Petrov et al. 2012 (the universal tags). The tagger is
NLTK's averaged perceptron for English; its data come apart from the package.
"""

import functools
from collections import Counter
from collections.abc import Callable

import numpy as np
import pandas as pd

from mtbert.data.array_cache import file_of, read_arrays, write_arrays
from mtbert.data.tasks import TASKS

TAGS = (".", "ADJ", "ADP", "ADV", "CONJ", "DET", "NOUN", "NUM", "PRON", "PRT", "VERB", "X")
GET_DATA = (
    "python -m nltk.downloader averaged_perceptron_tagger_eng universal_tagset; where the network is closed, copy the "
    "two into a folder's taggers/ and name that folder with NLTK_DATA"
)


class PosError(ValueError):
    """NLTK or its data are missing; the message says what to do."""


def pos_features(task: str, table: pd.DataFrame) -> np.ndarray:
    """(N, 12 k) float32: `tag_shares` of the k sentences of each row side by side, cached by the hash of the texts.

    Raises PosError where texts have to be tagged and NLTK or its data are missing.
    """
    return np.hstack([_cached_shares(table[column].tolist()) for column in TASKS[task].sentence_columns])


def tag_shares(texts: list[str]) -> np.ndarray:
    """(N, 12) float32: the share of each of TAGS among the tokens of each text; zeros for a text without tokens.

    Raises PosError where NLTK or its data are missing.
    """
    tag = _tagger()
    rows = {}  # a text that comes again is tagged once
    for text in texts:
        if text not in rows:
            rows[text] = tag(text)
    return np.array([rows[text] for text in texts], dtype=np.float32).reshape(len(texts), len(TAGS))


@functools.cache
def _tagger() -> Callable[[str], np.ndarray]:
    """text -> (12,) shares; loaded once a process."""
    try:
        from nltk.tag import PerceptronTagger, tagset_mapping
        from nltk.tokenize import NLTKWordTokenizer
    except ImportError as error:
        raise PosError(f"part-of-speech features need NLTK ({error}): pip install nltk, then {GET_DATA}") from error
    try:
        tagger, universal = PerceptronTagger(lang="eng"), tagset_mapping("en-ptb", "universal")
    except (LookupError, OSError, ValueError) as error:  # absent, not readable, damaged
        raise PosError(f"NLTK does not find the data of its tagger: {GET_DATA}") from error
    tokenizer = NLTKWordTokenizer()

    def shares(text: str) -> np.ndarray:
        counts = Counter(universal[tag] for _, tag in tagger.tag(tokenizer.tokenize(text)))
        return np.array([counts[tag] for tag in TAGS], dtype=np.float32) / max(1, counts.total())

    return shares


def _cached_shares(texts: list[str]) -> np.ndarray:
    path = file_of(texts, "pos")
    [shares] = read_arrays(path, "shares") or [None]
    if shares is None or shares.shape != (len(texts), len(TAGS)) or shares.dtype != np.float32:
        shares = tag_shares(texts)
        write_arrays(path, shares=shares)
    return shares
