"""RoBERTa's tokens, of byte-level BPE, and MPNet's against transformers' tokenizers; encoders without token types."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import AddedToken
from tokenizers.implementations import ByteLevelBPETokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase, RobertaTokenizer

from mtbert.bert import BertConfig, BertModel
from mtbert.bert.hub import CheckpointError
from mtbert.data.tokens import Ragged, TokenizedTable, load_tokenizer, tokenize

TEXTS = [
    "A quiet film, with one loud joke.",
    "Ünïcödé naïveté – 東京 and Ελλάδα… “quoted”?!",
    "emoji 🙂  two spaces and\ttab, 3.14159 & 1e-5",
    "<s> the brackets are </s> text <mask> here [CLS] [SEP]",
    "many words that go on " * 20,
    " ?",
    "the lantern in the garden, the violin in the kitchen",
]
OTHERS = TEXTS[3:] + TEXTS[:3]
ROWS = np.array([5, 2, 0, 1, 3, 4, 6])


@pytest.fixture(scope="module")
def roberta(tmp_path_factory) -> Path:
    """A tiny RoBERTa: random weights and a byte-level BPE vocabulary of invented sentences."""
    folder = tmp_path_factory.mktemp("roberta")
    bpe = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", AddedToken("<mask>", lstrip=True)]
    bpe.train_from_iterator(TEXTS * 3, vocab_size=400, show_progress=False, special_tokens=special)
    bpe.save(str(folder / "tokenizer.json"))
    bpe.save_model(str(folder))
    shape = dict(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=48)
    config = BertConfig(
        **shape, model_type="roberta", vocab_size=400, pad_token_id=1, max_position_embeddings=514, type_vocab_size=1
    )
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def mpnet(mpnet_tokenizer, tmp_path_factory) -> Path:
    """A tiny MPNet: random weights, and a vocabulary of BERT's with RoBERTa's tokens in front."""
    folder = Path(shutil.copytree(mpnet_tokenizer, tmp_path_factory.mktemp("mpnet") / "encoder"))
    shape = dict(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=48)
    config = BertConfig(
        **shape, model_type="mpnet", vocab_size=30_527, pad_token_id=1, max_position_embeddings=514, type_vocab_size=0
    )
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(params=["tokenizer.json", "vocab.json and merges.txt", "mpnet"])
def encoder(request, roberta, mpnet, tmp_path) -> str:
    """RoBERTa with either kind of vocabulary file, or MPNet."""
    if request.param == "tokenizer.json":
        return str(roberta)
    if request.param == "mpnet":
        return str(mpnet)
    for name in ("config.json", "vocab.json", "merges.txt"):
        shutil.copy(roberta / name, tmp_path)
    return str(tmp_path)


@pytest.fixture
def reference(roberta, encoder) -> PreTrainedTokenizerBase:
    """What transformers makes of the folder: from vocab.json alone the mask takes no space before it."""
    if encoder != str(roberta):
        return AutoTokenizer.from_pretrained(encoder)
    mask = AddedToken("<mask>", lstrip=True)
    return RobertaTokenizer(vocab=str(roberta / "vocab.json"), merges=str(roberta / "merges.txt"), mask_token=mask)


def assert_equal(table: TokenizedTable, rows: np.ndarray, expected) -> None:
    batch = table.batch(rows)
    assert batch.token_type_ids is None
    assert batch.input_ids.tolist() == expected["input_ids"].tolist()
    assert batch.attention_mask.long().tolist() == expected["attention_mask"].tolist()


@pytest.mark.parametrize("max_length", [512, 17, 4])
def test_singles_equal_transformers(encoder, reference, max_length, singles):
    table = tokenize("sst", singles(TEXTS), encoder, max_length=max_length)
    options = dict(padding="longest", truncation=True, max_length=max_length, return_tensors="pt")
    expected = reference([TEXTS[i] for i in ROWS], **options)
    assert_equal(table, ROWS, expected)
    assert table.lengths[ROWS].tolist() == expected["attention_mask"].sum(1).tolist()


@pytest.mark.parametrize("max_length", [512, 61, 60, 18, 17, 6, 5])
def test_joint_pairs_equal_transformers(encoder, reference, max_length, pairs):
    table = tokenize("quora", pairs(TEXTS, OTHERS), encoder, max_length=max_length)
    options = dict(padding="longest", truncation="longest_first", max_length=max_length, return_tensors="pt")
    expected = reference([TEXTS[i] for i in ROWS], [OTHERS[i] for i in ROWS], **options)
    assert_equal(table, ROWS, expected)
    assert table.lengths[ROWS].tolist() == expected["attention_mask"].sum(1).tolist()


def test_pairs_apart_equal_transformers(encoder, reference, pairs):
    table = tokenize("sts", pairs(TEXTS, OTHERS), encoder, pairs="sum", max_length=20)
    options = dict(padding="longest", truncation=True, max_length=20, return_tensors="pt")
    assert_equal(table, ROWS, reference([column[i] for column in (TEXTS, OTHERS) for i in ROWS], **options))


def test_the_special_tokens_of_mpnet_are_those_of_roberta(mpnet, singles):
    """Its vocabulary has BERT's, too."""
    table = tokenize("sst", singles(TEXTS), str(mpnet))
    special = (table.cls, table.sep, table.pad, table.mask)
    reference = AutoTokenizer.from_pretrained(mpnet)
    assert special == tuple(map(reference.convert_tokens_to_ids, ("<s>", "</s>", "<pad>", "<mask>")))
    batch = table.batch(ROWS)
    BertModel.from_pretrained(mpnet)(batch.input_ids, batch.attention_mask, batch.token_type_ids)


def test_a_pair_by_hand(roberta):
    tokenizer = load_tokenizer(roberta)
    offsets = np.array([0, 2])
    columns = [Ragged(np.array(ids, dtype=np.int32), offsets) for ids in ([100, 101], [200, 201])]
    start, end = tokenizer.token_to_id("<s>"), tokenizer.token_to_id("</s>")
    for max_length, expected in (
        (8, [start, 100, 101, end, end, 200, 201, end]),
        (7, [start, 100, end, end, 200, 201, end]),
        (4, [start, end, end, end]),
    ):
        table = TokenizedTable(columns, tokenizer, joint=True, max_length=max_length)
        assert table.batch(np.array([0])).input_ids.tolist() == [expected]
        assert table.lengths.tolist() == [max_length]


@pytest.mark.parametrize("missing", ["</s>", "<pad>"])
def test_a_vocabulary_without_a_special_token_is_refused(roberta, tmp_path, missing, singles):
    text = (roberta / "tokenizer.json").read_text(encoding="utf8")
    (tmp_path / "tokenizer.json").write_text(text.replace(f'"{missing}"', '"<other>"'), encoding="utf8")
    with pytest.raises(CheckpointError, match=f"the tokenizer has no {missing}; a RoBERTa vocabulary is needed"):
        tokenize("sst", singles(TEXTS), str(tmp_path))


def test_a_vocabulary_needs_its_merges(roberta, tmp_path):
    shutil.copy(roberta / "vocab.json", tmp_path)
    with pytest.raises(CheckpointError, match=r"nor vocab\.json and merges\.txt"):
        load_tokenizer(tmp_path)


def test_distilbert_has_berts_special_tokens_without_token_types(tiny_encoder, tmp_path, pairs):
    shutil.copy(Path(tiny_encoder) / "tokenizer.json", tmp_path)
    shape = dict(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=48)
    BertModel(BertConfig(**shape, model_type="distilbert", type_vocab_size=0)).save_pretrained(tmp_path)
    ours, berts = (tokenize("quora", pairs(TEXTS, OTHERS), str(folder)) for folder in (tmp_path, tiny_encoder))
    batch, expected = ours.batch(ROWS), berts.batch(ROWS)
    assert batch.token_type_ids is None and expected.token_type_ids is not None
    assert torch.equal(batch.input_ids, expected.input_ids)
    BertModel.from_pretrained(tmp_path)(batch.input_ids, batch.attention_mask, batch.token_type_ids)
