"""MPNet's special tokens against transformers' tokenizer: a vocabulary of BERT's with RoBERTa's tokens in front."""

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from mtbert.bert import BertConfig, BertModel
from mtbert.bert.hub import locate
from mtbert.data.tokens import tokenize

TEXTS = [
    "A quiet film, with one loud joke.",
    "Ünïcödé naïveté – 東京 and Ελλάδα… “quoted”?!",
    "<s> the brackets are </s> text <mask> here [CLS] [SEP]",
    "many words that go on " * 20,
    "?",
]
OTHERS = TEXTS[2:] + TEXTS[:2]
ROWS = np.array([3, 2, 0, 1, 4])


@pytest.fixture(scope="module")
def mpnet(tmp_path_factory) -> Path:
    """A tiny MPNet: random weights, and the packaged BERT vocabulary behind <s>, <pad>, </s> and <unk>."""
    folder = tmp_path_factory.mktemp("mpnet")
    content = json.loads(Tokenizer.from_file(str(locate("minilm") / "tokenizer.json")).to_str())
    words = sorted(content["model"]["vocab"], key=content["model"]["vocab"].get)
    words = ["<s>", "<pad>", "</s>", "<unk>", *words, "<mask>"]
    content["model"]["vocab"] = {word: i for i, word in enumerate(words)}
    flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    added = [dict(flags, id=words.index(word), content=word) for word in ("<s>", "<pad>", "</s>", "[UNK]")]
    added.append(dict(flags, id=len(words) - 1, content="<mask>", lstrip=True))
    content["added_tokens"] = added
    content["post_processor"] = dict(
        type="RobertaProcessing", sep=("</s>", 2), cls=("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    content["padding"] = content["truncation"] = None
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf8")
    about = dict(tokenizer_class="MPNetTokenizer", do_lower_case=True, unk_token="[UNK]", model_max_length=512)
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    shape = dict(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=48)
    config = BertConfig(
        **shape, model_type="mpnet", vocab_size=len(words), pad_token_id=1, max_position_embeddings=514,
        type_vocab_size=0,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("max_length", [512, 61, 60, 6])
def test_joint_pairs_equal_transformers(mpnet, max_length, pairs):
    table = tokenize("quora", pairs(TEXTS, OTHERS), str(mpnet), max_length=max_length)
    reference = AutoTokenizer.from_pretrained(mpnet)
    options = dict(padding="longest", truncation="longest_first", max_length=max_length, return_tensors="pt")
    expected = reference([TEXTS[i] for i in ROWS], [OTHERS[i] for i in ROWS], **options)
    batch = table.batch(ROWS)
    assert batch.token_type_ids is None
    assert batch.input_ids.tolist() == expected["input_ids"].tolist()
    assert batch.attention_mask.long().tolist() == expected["attention_mask"].tolist()


def test_singles_equal_transformers_and_the_mask_is_mpnets(mpnet, singles):
    table = tokenize("sst", singles(TEXTS), str(mpnet))
    reference = AutoTokenizer.from_pretrained(mpnet)
    expected = reference([TEXTS[i] for i in ROWS], padding="longest", return_tensors="pt")
    batch = table.batch(ROWS)
    assert batch.input_ids.tolist() == expected["input_ids"].tolist()
    special = (table.cls, table.sep, table.pad, table.mask)
    assert special == tuple(map(reference.convert_tokens_to_ids, ("<s>", "</s>", "<pad>", "<mask>")))
    BertModel.from_pretrained(mpnet)(batch.input_ids, batch.attention_mask, batch.token_type_ids)
