"""Token ids against transformers' tokenizer; the cache."""

import functools
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, BertTokenizerFast

from mtbert.bert.hub import CheckpointError, content_digest, locate
from mtbert.data import array_cache, tokens
from mtbert.data.tokens import Ragged, TokenizedTable, load_tokenizer, tokenize
from mtbert.paths import cache_dir

TEXTS = [
    "A quiet film, with one loud joke.",
    "Ünïcödé naïveté – 東京 and Ελλάδα… “quoted”?!",
    "emoji 🙂 zero​width and\ttab, 3.14159 & 1e-5",
    "[CLS] the brackets are [SEP] text [MASK]",
    "antidisestablishmentarianism supercalifragilistic " + "x" * 120,
    "many words that go on " * 40,
    "?",
    "CAPITALS and don't, isn't; co-operate/and/or",
]
OTHERS = TEXTS[3:] + TEXTS[:3]


@pytest.fixture(scope="module")
def reference() -> BertTokenizerFast:
    return BertTokenizerFast(tokenizer_file=str(locate("minilm") / "tokenizer.json"))


def assert_equal(batch: tokens.Batch, expected) -> None:
    assert batch.input_ids.tolist() == expected["input_ids"].tolist()
    assert batch.attention_mask.long().tolist() == expected["attention_mask"].tolist()
    types = expected["token_type_ids"].tolist()
    if batch.token_type_ids is None:
        assert not np.any(types)
    else:
        assert batch.token_type_ids.tolist() == types


@pytest.mark.parametrize("max_length", [512, 64, 17, 4])
def test_singles_equal_transformers(reference, tiny_encoder, max_length, singles):
    table = tokenize("sst", singles(TEXTS), tiny_encoder, max_length=max_length)
    rows = np.array([3, 0, 5, 1, 2, 7, 4, 6])
    options = dict(padding="longest", truncation=True, max_length=max_length, return_tensors="pt")
    expected = reference([TEXTS[i] for i in rows], **options)
    assert_equal(table.batch(rows), expected)
    assert table.lengths[rows].tolist() == expected["attention_mask"].sum(1).tolist()


@pytest.mark.parametrize("max_length", [512, 101, 100, 17, 16, 5, 4])
def test_joint_pairs_equal_transformers(reference, tiny_encoder, max_length, pairs):
    table = tokenize("quora", pairs(TEXTS, OTHERS), tiny_encoder, max_length=max_length)
    rows = np.array([5, 2, 0, 1, 3, 4, 7, 6])
    options = dict(padding="longest", truncation="longest_first", max_length=max_length, return_tensors="pt")
    expected = reference([TEXTS[i] for i in rows], [OTHERS[i] for i in rows], **options)
    assert_equal(table.batch(rows), expected)
    assert table.lengths[rows].tolist() == expected["attention_mask"].sum(1).tolist()


def test_pairs_apart_are_all_first_then_all_second(reference, tiny_encoder, pairs):
    table = tokenize("sts", pairs(TEXTS, OTHERS), tiny_encoder, pairs="sum", max_length=20)
    rows = [4, 0, 6]
    options = dict(padding="longest", truncation=True, max_length=20, return_tensors="pt")
    expected = reference([TEXTS[i] for i in rows] + [OTHERS[i] for i in rows], **options)
    batch = table.batch(np.array(rows))
    assert_equal(batch, expected)
    longer = expected["attention_mask"].sum(1).view(2, 3).max(0).values
    assert table.lengths[rows].tolist() == longer.tolist()


@given(st.integers(0, 30), st.integers(0, 30), st.integers(4, 40))
def test_a_long_pair_loses_tokens_from_its_longer_sentence(n_first, n_second, max_length):
    first, second = np.arange(100, 100 + n_first), np.arange(200, 200 + n_second)
    offsets = [np.array([0, n]) for n in (n_first, n_second)]
    columns = [Ragged(ids, offset) for ids, offset in zip((first, second), offsets, strict=True)]
    table = TokenizedTable(columns, minilm_tokenizer(), joint=True, max_length=max_length)
    a, b = first.tolist(), second.tolist()
    while len(a) + len(b) > max_length - 3:  # the loop of the original BERT, but for the last token
        a.pop() if (len(a), n_second) > (len(b), n_first - 1) else b.pop()
    batch = table.batch(np.array([0]))
    assert batch.input_ids[0].tolist() == [table.cls, *a, table.sep, *b, table.sep]
    assert batch.token_type_ids[0].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert table.lengths.tolist() == [len(a) + len(b) + 3]


@functools.cache
def minilm_tokenizer():
    return load_tokenizer("minilm")


def test_a_vocabulary_file_serves_as_well(tiny_encoder, tmp_path):
    vocabulary = load_tokenizer(tiny_encoder).get_vocab()
    words = sorted(vocabulary, key=vocabulary.get)
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf8")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    for text in TEXTS:
        encoded = [load(text, add_special_tokens=False).ids for load in
                   (load_tokenizer(tiny_encoder).encode, load_tokenizer(tmp_path).encode)]  # fmt: skip
        assert encoded[0] == encoded[1]


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"neither tokenizer\.json nor vocab\.txt"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("missing", ["[CLS]", "[SEP]", "[PAD]"])
def test_a_vocabulary_without_a_special_token_is_refused(tmp_path, missing, singles):
    """The tokenizer puts it behind the tokens of the encoder."""
    words = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "word"]
    words.remove(missing)
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    (tmp_path / "config.json").write_text('{"model_type": "bert", "vocab_size": 4}')
    with pytest.raises(CheckpointError, match="but the encoder has 4 tokens"):
        tokenize("sst", singles(["word"]), str(tmp_path))


def as_saved(tiny_encoder: str, folder: Path, names: list[str], **settings) -> str:
    """A folder with these files of a tokenizer, and with these settings."""
    for name in ("config.json", *names):
        shutil.copy(Path(tiny_encoder if name == "config.json" else locate("minilm")) / name, folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return str(folder)


@pytest.mark.parametrize(
    "settings",
    [{"do_lower_case": False}, {"strip_accents": False}, {"tokenize_chinese_chars": False}, {"do_lower_case": True}],
)
def test_a_vocabulary_is_read_as_transformers_reads_it(tiny_encoder, tmp_path, settings):
    """As a slow tokenizer saves it, with what decides its tokens in tokenizer_config.json."""
    folder = as_saved(tiny_encoder, tmp_path, ["vocab.txt"], **settings)
    theirs = AutoTokenizer.from_pretrained(folder)
    for text in (*TEXTS, "Café NAÏVE GOOD good"):
        assert load_tokenizer(folder).encode(text, add_special_tokens=False).ids == theirs.encode(
            text, add_special_tokens=False
        )
    digest = content_digest(folder)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert content_digest(folder) != digest, "another tokenizer, another run"


def test_a_tokenizer_that_transformers_reads_in_another_way_is_refused(tiny_encoder, tmp_path):
    """An export would not give the numbers of the trained model."""
    folder = as_saved(tiny_encoder, tmp_path, ["tokenizer.json"], do_lower_case=False)
    with pytest.raises(CheckpointError, match="do_lower_case and the like have to fit"):
        load_tokenizer(folder)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    assert load_tokenizer(folder).encode("GOOD").ids == load_tokenizer(folder).encode("good").ids


@pytest.fixture
def few_texts(monkeypatch):
    """Also a few texts are cached."""
    monkeypatch.setattr(array_cache, "FEWEST", 1)


def cache_files():
    return sorted((cache_dir() / "tokens").glob("*"))


def ids_of(table: TokenizedTable) -> list:
    found = []
    for column in table.columns:
        found.append([part.tolist() for part in np.split(column.ids, column.offsets[1:-1])])
    return found


def refuse(*args):
    raise AssertionError("tokenized again")


def test_the_cache_is_used(tiny_encoder, monkeypatch, few_texts, singles):
    fresh = ids_of(tokenize("sst", singles(TEXTS), tiny_encoder))
    monkeypatch.setattr(tokens, "_encode", refuse)
    assert ids_of(tokenize("sst", singles(TEXTS), tiny_encoder)) == fresh
    tokenize("sst", singles(TEXTS), tiny_encoder, max_length=8)  # one cache for every length
    with pytest.raises(AssertionError, match="again"):
        tokenize("sst", singles(TEXTS[::-1]), tiny_encoder)


def test_columns_are_cached_apart_and_shared_by_all_pair_encodings(tiny_encoder, monkeypatch, few_texts, pairs):
    tokenize("quora", pairs(TEXTS, OTHERS), tiny_encoder)
    assert len(cache_files()) == 2
    monkeypatch.setattr(tokens, "_encode", refuse)
    tokenize("sts", pairs(OTHERS, TEXTS), tiny_encoder, pairs="concat")


def test_another_tokenizer_makes_another_file(tiny_encoder, tmp_path, few_texts, singles):
    shutil.copy(f"{tiny_encoder}/tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text(encoding="utf8").replace('"lowercase":true', '"lowercase":false')
                    .replace('"lowercase": true', '"lowercase": false'), encoding="utf8")  # fmt: skip
    lower = ids_of(tokenize("sst", singles(["GOOD good"]), tiny_encoder))[0][0]
    cased = ids_of(tokenize("sst", singles(["GOOD good"]), str(tmp_path)))[0][0]
    assert len(cache_files()) == 2
    assert lower[0] == lower[1] and cased[0] != cased[-1]


def test_random_texts_equal_transformers(reference, tiny_encoder, singles):
    """Any characters that the data loader lets through."""
    draw = random.Random(1)
    alphabet = [chr(c) for c in range(32, 0x3000) if chr(c).isprintable()] + list("abc   .,'")
    texts = ["".join(draw.choices(alphabet, k=draw.randrange(1, 60))) for _ in range(100)]
    batch = tokenize("sst", singles(texts), tiny_encoder).batch(np.arange(100))
    assert_equal(batch, reference(texts, padding="longest", return_tensors="pt"))
