"""Part-of-speech features of a text: the share of each universal tag among its tokens.

Source: paper 001, section 5 (its authors used an NLTK tagger); Petrov et al. 2012 (the universal tags). The tagger is
NLTK's averaged perceptron for English, whose data are not part of the package.
"""

import functools
from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy import ndarray

from mtbert.data.array_cache import arrays_of_texts
from mtbert.data.tasks import TASKS

TAGS = (".", "ADJ", "ADP", "ADV", "CONJ", "DET", "NOUN", "NUM", "PRON", "PRT", "VERB", "X")
TAGGER = "averaged_perceptron_tagger_eng, universal_tagset"
GET_DATA = (
    "python -m nltk.downloader averaged_perceptron_tagger_eng universal_tagset; without a network, copy the two into "
    "the folder taggers/ of a folder that NLTK_DATA names"
)


class PosError(ValueError):
    """NLTK or its data are missing; the message says what to do."""


def pos_features(task: str, table: pd.DataFrame) -> ndarray:
    """(N, 12 k) float32: `tag_shares` of each of the k sentences of an example, concatenated; cached.

    Raises PosError if texts have to be tagged and NLTK or its data are missing.
    """
    shares = []
    for column in TASKS[task].sentence_columns:
        texts = table[column].tolist()
        shares += arrays_of_texts("pos", ("shares",), texts, lambda texts=texts: [tag_shares(texts)], TAGGER)
    return np.hstack(shares)


def tag_shares(texts: list[str]) -> ndarray:
    """(N, 12) float32: the share of each of TAGS among the tokens of each text; zeros for a text without tokens.

    Raises PosError if NLTK or its data are missing.
    """
    shares_of = functools.cache(_tagger())  # each text is tagged once
    shares = [shares_of(text) for text in texts]
    return np.array(shares, dtype=np.float32).reshape(len(texts), len(TAGS))


@functools.cache
def _tagger() -> Callable[[str], ndarray]:
    """text -> (12,) shares; loaded once per process."""
    try:
        from nltk.tag import PerceptronTagger, tagset_mapping
        from nltk.tokenize import NLTKWordTokenizer
    except ImportError as error:
        raise PosError(f"part-of-speech features need NLTK ({error}): pip install nltk, then {GET_DATA}") from error
    try:
        tagger = PerceptronTagger(lang="eng")
        universal = tagset_mapping("en-ptb", "universal")
    except (LookupError, OSError, ValueError) as error:  # missing, not readable, damaged
        raise PosError(f"NLTK does not find the data of its tagger: {GET_DATA}") from error
    tokenizer = NLTKWordTokenizer()

    def shares(text: str) -> ndarray:
        tags = [universal[tag] for _, tag in tagger.tag(tokenizer.tokenize(text))]
        counts = np.array([tags.count(tag) for tag in TAGS], dtype=np.float32)
        return counts / max(1, len(tags))

    return shares
