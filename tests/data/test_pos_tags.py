"""Part-of-speech shares: NLTK's tagger, the cache, and the errors if NLTK or its data are missing."""

import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from mtbert.data import pos_tags as pos
from mtbert.data.pos_tags import TAGS, PosError, pos_features, tag_shares
from mtbert.paths import REPOSITORY, cache_dir

TEXTS = ["The old violin sings softly.", "Who painted the kitchen?", "Bright, witty and lovely!", "3 bicycles"]
OTHERS = TEXTS[1:] + TEXTS[:1]


def data_folders() -> list[str]:
    folders = os.environ.get("NLTK_DATA", "").split(os.pathsep) + [str(REPOSITORY.parent / "shared" / "nltk_data")]
    return [folder for folder in folders if folder and (Path(folder) / "taggers").is_dir()]


@pytest.fixture
def forgotten():
    """The tagger is loaded again in the test, and again after it."""
    pos._tagger.cache_clear()
    yield
    pos._tagger.cache_clear()


@pytest.fixture
def tagger_data(monkeypatch, forgotten):
    """NLTK finds its data."""
    nltk_data = pytest.importorskip("nltk.data")
    if not data_folders():
        pytest.skip("NLTK's tagger data are not here; name their folder with NLTK_DATA")
    monkeypatch.setattr(nltk_data, "path", data_folders())


def share(text: str) -> dict[str, float]:
    return {tag: value for tag, value in zip(TAGS, tag_shares([text])[0].tolist(), strict=True) if value}


def test_shares_of_known_sentences(tagger_data):
    expected = dict.fromkeys(("PRON", "VERB", "NUM", "ADJ", "CONJ", "DET", "."), 1 / 9)
    assert share("She has three old violins and the kitchen .") == pytest.approx(expected | {"NOUN": 2 / 9})
    assert share("she and he") == pytest.approx({"PRON": 2 / 3, "CONJ": 1 / 3})
    assert share("?!") == {".": 1.0}


def test_shares_sum_to_one_in_the_order_of_the_texts(tagger_data):
    shares = tag_shares(TEXTS + TEXTS[::-1])
    assert shares.shape == (8, 12) and shares.dtype == np.float32
    assert np.allclose(shares.sum(1), 1)
    assert np.array_equal(shares[:4], shares[:3:-1])
    assert len({tuple(row) for row in shares.tolist()}) == 4


def test_a_text_without_tokens_has_zeros(tagger_data):
    assert not tag_shares([" "]).any()
    assert tag_shares([]).shape == (0, 12)


def test_every_tag_of_the_tagger_is_one_of_the_universal(tagger_data):
    from nltk.tag import PerceptronTagger, tagset_mapping

    universal = tagset_mapping("en-ptb", "universal")
    assert {universal[tag] for tag in PerceptronTagger(lang="eng").classes} <= set(TAGS)


def test_features_of_a_pair_stand_side_by_side(tagger_data):
    table = pd.DataFrame({"sentence1": TEXTS, "sentence2": OTHERS})
    features = pos_features("quora", table)
    assert features.shape == (4, 24)
    assert np.array_equal(features, np.hstack([tag_shares(TEXTS), tag_shares(OTHERS)]))
    assert pos_features("sst", pd.DataFrame({"sentence": TEXTS})).shape == (4, 12)


def cache_files() -> list[Path]:
    return sorted((cache_dir() / "pos").glob("*"))


def counting(monkeypatch) -> list[str]:
    """The texts that are tagged from now on, with invented shares instead of NLTK's."""
    tagged = []

    def shares(text: str) -> np.ndarray:
        tagged.append(text)
        return np.full(len(TAGS), 1 / len(text), dtype=np.float32)

    monkeypatch.setattr(pos, "_tagger", lambda: shares)
    return tagged


def test_the_cache_is_used_and_a_text_is_tagged_once(monkeypatch):
    monkeypatch.setattr("mtbert.data.array_cache.FEWEST", 1)
    tagged = counting(monkeypatch)
    table = pd.DataFrame({"sentence": TEXTS * 3})
    fresh = pos_features("sst", table)
    assert tagged == TEXTS and len(cache_files()) == 1
    assert np.array_equal(pos_features("sst", table), fresh)
    assert tagged == TEXTS
    pos_features("sst", table[::-1])
    assert len(tagged) == 8 and len(cache_files()) == 2


def test_another_tagger_tags_again(monkeypatch):
    monkeypatch.setattr("mtbert.data.array_cache.FEWEST", 1)
    tagged = counting(monkeypatch)
    table = pd.DataFrame({"sentence": TEXTS})
    pos_features("sst", table)
    monkeypatch.setattr(pos, "TAGGER", "another one")
    pos_features("sst", table)
    assert tagged == TEXTS * 2


def test_missing_package_is_named(monkeypatch, forgotten):
    monkeypatch.setitem(sys.modules, "nltk.tag", None)
    with pytest.raises(PosError, match=r"pip install nltk, then python -m nltk\.downloader"):
        tag_shares(TEXTS)


def test_missing_data_are_named(monkeypatch, forgotten, tmp_path):
    monkeypatch.setattr(pytest.importorskip("nltk.data"), "path", [str(tmp_path)])
    with pytest.raises(PosError, match=r"averaged_perceptron_tagger_eng universal_tagset; .*NLTK_DATA"):
        pos_features("sst", pd.DataFrame({"sentence": TEXTS}))
    assert not cache_files()
