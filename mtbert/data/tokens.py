"""Checked tables -> token ids, cached on disk -> the sequences of all examples in one array -> padded batches.

Sentences are tokenized once, without special tokens, into one flat array per column; special tokens and truncation come
afterwards, so that one cache serves every pair encoding and length.
"""

import functools
import json
import textwrap
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy import ndarray
from tokenizers import Tokenizer
from torch import Tensor

from mtbert.bert import Batch, BertConfig, CheckpointError, has_packaged_tokenizer, has_tokenizer, locate
from mtbert.data.array_cache import arrays_of_texts
from mtbert.data.tasks import TASKS

SPECIAL = {  # start of a sequence, end of a sentence, padding
    "BERT": ("[CLS]", "[SEP]", "[PAD]"),
    "RoBERTa": ("<s>", "</s>", "<pad>"),
}
# A text of what tokenizers treat in different ways: letters, accents, signs, spaces, another script.
PROBE = "Café NAÏVE's  two-fold, don't 東京 3.14…\tend"


@dataclass(frozen=True)
class Ragged:
    """N token sequences in one array: sequence i is ids[offsets[i]:offsets[i + 1]]."""

    ids: ndarray  # (total tokens,) int32
    offsets: ndarray  # (N + 1,) int64

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> ndarray:
        """(N,) tokens of each sequence."""
        return np.diff(self.offsets)


def load_tokenizer(encoder: str | Path) -> Tokenizer:
    """The tokenizer of a checkpoint, without padding or truncation; raises CheckpointError if it has no sound one.

    It is what transformers' AutoTokenizer makes of the folder, with its tokenizer_config.json. A tokenizer.json of
    which AutoTokenizer makes another tokenizer is an error, as an export would not give the trained model's numbers.
    """
    folder = locate(encoder)
    try:
        tokenizer = _read_tokenizer(folder)
    except CheckpointError:
        raise
    except Exception as error:  # the tokenizers' own are of no type of their own
        raise CheckpointError(
            f"{folder}: the tokenizer cannot be read ({textwrap.shorten(str(error), 200)})"
        ) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _read_tokenizer(folder: Path) -> Tokenizer:
    if not has_tokenizer(folder):
        raise FileNotFoundError("it has neither tokenizer.json nor vocab.txt, nor vocab.json and merges.txt")
    path = folder / "tokenizer.json"
    written = Tokenizer.from_file(str(path)) if path.exists() else None
    if written and has_packaged_tokenizer(folder):  # both ways to read it are the same, and this is the faster one
        return written
    from transformers import AutoTokenizer  # slow to import

    options = {"local_files_only": True, "trust_remote_code": False}
    tokenizer = AutoTokenizer.from_pretrained(folder, **options).backend_tokenizer
    if written is None:
        return tokenizer
    if _normalizer(written) != _normalizer(tokenizer) or _tokens(written) != _tokens(tokenizer):
        raise CheckpointError(
            f"{folder}: tokenizer.json is not the tokenizer that transformers' AutoTokenizer makes of this folder, for "
            f"example of {PROBE!r}. In tokenizer_config.json, do_lower_case and the like have to fit tokenizer.json; "
            '"tokenizer_class": "TokenizersBackend" there takes tokenizer.json as it is'
        )
    return written


def _normalizer(tokenizer: Tokenizer) -> Any:
    """The normalization of a text before it is cut into tokens, such as lower case, as JSON."""
    return json.loads(tokenizer.to_str())["normalizer"]


def _tokens(tokenizer: Tokenizer) -> list[str]:
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer.encode(PROBE, add_special_tokens=False).tokens


class TokenizedTable:
    """One split of one task as token ids (N examples), from which batches are made.

    joint: a pair becomes one sequence, [CLS] a [SEP] b [SEP] or, with the special tokens of RoBERTa and MPNet,
    <s> a </s></s> b </s>; otherwise each sentence is its own sequence. token_types: whether the encoder has them;
    RoBERTa does not use them.
    Raises CheckpointError if the tokenizer lacks a special token.
    """

    def __init__(
        self, columns: list[Ragged], tokenizer: Tokenizer, joint: bool, max_length: int, token_types: bool = True
    ) -> None:
        self.columns = columns
        self.joint = joint and len(columns) == 2
        self.max_length = max_length
        roberta = _has_robertas_tokens(tokenizer)
        kind = "RoBERTa" if roberta else "BERT"
        for token in SPECIAL[kind]:
            if tokenizer.token_to_id(token) is None:
                raise CheckpointError(f"the tokenizer has no {token}; a {kind} vocabulary is needed")
        self.cls, self.sep, self.pad = map(tokenizer.token_to_id, SPECIAL[kind])
        self.mask = tokenizer.token_to_id("<mask>" if roberta else "[MASK]")  # None: no masked language modelling
        self.between = [self.sep] * (2 if roberta else 1)  # between the sentences of a pair
        self.token_types = self.joint and token_types and not roberta
        lengths = [column.lengths for column in columns]
        if self.joint:
            special = 2 + len(self.between)
            self.kept = self._kept(lengths[0], lengths[1])  # tokens of a and of b
            by_sequence = np.minimum(lengths[0] + lengths[1] + special, max_length)[None]  # (1, N)
        else:
            by_sequence = np.minimum(np.stack(lengths) + 2, max_length)  # (sentences, N)
        self.sequence_lengths = by_sequence.ravel()  # tokens of every sequence, in the order of `sequences`
        self.sequence_starts = np.cumsum(self.sequence_lengths) - self.sequence_lengths  # where all are in one array
        self.token_counts = by_sequence.sum(0)  # (N,) tokens of an example in all its sequences
        self.lengths = by_sequence.max(0)  # (N,) tokens of its longest sequence

    def __len__(self) -> int:
        return len(self.columns[0])

    def sequences(self, rows: ndarray) -> ndarray:
        """Indices of these rows' sequences, in the order of `batch`: of pairs apart all first ones, then all others."""
        if self.joint:
            return rows
        return np.concatenate([rows + i * len(self) for i in range(len(self.columns))])

    def batch(self, rows: ndarray) -> Batch:
        """The batch of these rows, padded to the longest sequence (T tokens)."""
        longest = int(self.lengths[rows].max())
        return self._on_host.batch(torch.from_numpy(np.ascontiguousarray(rows)), longest)

    @cached_property
    def _on_host(self) -> "FlatSequences":
        return FlatSequences(self, torch.device("cpu"))

    def flat(self) -> tuple[ndarray, ndarray]:
        """All sequences one after the other (tokens,), in the order of `sequences`, and where in each of them b starts.

        b starts behind the last token of a sequence of one sentence.
        """
        lengths = self.sequence_lengths
        starts = self.sequence_starts
        ids = np.full(lengths.sum(), self.sep, dtype=np.int64)
        ids[starts] = self.cls
        if not self.joint:
            for i, column in enumerate(self.columns):
                own = slice(i * len(self), (i + 1) * len(self))
                _copy_tokens(column, ids, starts[own] + 1, lengths[own] - 2)
            return ids, lengths
        first, second = self.columns
        kept_first, kept_second = self.kept
        second_starts = 1 + kept_first + len(self.between)
        _copy_tokens(first, ids, starts + 1, kept_first)
        _copy_tokens(second, ids, starts + second_starts, kept_second)
        return ids, second_starts

    def _kept(self, first: ndarray, second: ndarray) -> tuple[ndarray, ndarray]:
        """How many tokens of the two sentences of pairs, of these lengths (N,), are kept; both (N,).

        If a pair is too long, the longer sentence is truncated first. Where both are cut, an odd token goes to the
        longer one, and to b where they are equal, as in transformers.
        """
        room = self.max_length - 2 - len(self.between)
        of_shorter = np.minimum(np.minimum(first, second), room // 2)
        of_longer = np.minimum(np.maximum(first, second), room - of_shorter)
        is_longer = first > second
        return np.where(is_longer, of_longer, of_shorter), np.where(is_longer, of_shorter, of_longer)


def _copy_tokens(column: Ragged, to: ndarray, starts: ndarray, counts: ndarray) -> None:
    """Copy the first `counts` tokens of every sequence of a column to the places `starts` of another array."""
    total = np.cumsum(counts)
    within = np.arange(total[-1] if len(total) else 0) - np.repeat(total - counts, counts)
    to[np.repeat(starts, counts) + within] = column.ids[np.repeat(column.offsets[:-1], counts) + within]


class FlatSequences:
    """All sequences of a table (N examples), special tokens included, one after the other on a device.

    All batches are made of it, on the host or there: a training step in a CUDA graph reads its rows from a tensor, and
    no Python runs between the rows and the padded batch.
    """

    def __init__(self, tokens: TokenizedTable, device: torch.device) -> None:
        ids, second_starts = tokens.flat()
        lengths = tokens.sequence_lengths

        def on_device(numbers: ndarray) -> Tensor:
            return torch.from_numpy(numbers.astype(np.int64, copy=False)).to(device)

        self.pad = tokens.pad
        self.has_types = tokens.token_types
        self.examples = len(tokens)  # N
        self.sentences = len(lengths) // max(len(tokens), 1)  # sequences of an example
        self.ids = on_device(ids)
        self.starts = on_device(tokens.sequence_starts)
        self.lengths = on_device(lengths)
        self.second_starts = on_device(second_starts)  # places where a pair's second sentence starts

    def batch(self, rows: Tensor, length: int) -> Batch:
        """The batch of these rows (B,), int64 on the device, padded to `length` tokens, which no sequence exceeds.

        Its sequences are in the order of `TokenizedTable.sequences`.
        """
        sequences = torch.cat([rows + i * self.examples for i in range(self.sentences)])
        places = torch.arange(length, device=rows.device)
        mask = places < self.lengths[sequences, None]  # (sequences, T)
        sources = self.starts[sequences, None] + places
        ids = self.ids[torch.where(mask, sources, 0)]
        types = None
        if self.has_types:
            types = (mask & (places >= self.second_starts[sequences, None])).long()
        return Batch(torch.where(mask, ids, self.pad), mask, types)


def _has_robertas_tokens(tokenizer: Tokenizer) -> bool:
    """Whether sequences start with <s>; MPNet's vocabulary has BERT's [CLS] too, which it never uses."""
    if tokenizer.token_to_id("<s>") is None:
        return False
    return tokenizer.token_to_id("[CLS]") is None or tokenizer.encode("").tokens[:1] == ["<s>"]


def tokenize(
    task: str, table: pd.DataFrame, encoder: str, pairs: str = "joint", max_length: int = 512
) -> TokenizedTable:
    """Token ids of a checked table; each text column is cached by the hash of its content.

    Raises CheckpointError for a tokenizer that cannot be read, or whose tokens the encoder does not have.
    """
    columns = [table[name].tolist() for name in TASKS[task].sentence_columns]
    return _tokenize(columns, encoder, pairs, max_length)


def tokenize_texts(texts: list[str], encoder: str, max_length: int = 512) -> TokenizedTable:
    """Token ids of single sentences without a task, cached in the same way."""
    return _tokenize([texts], encoder, "joint", max_length)


def _tokenize(columns: list[list[str]], encoder: str, pairs: str, max_length: int) -> TokenizedTable:
    folder = locate(encoder)
    changed = tuple(file.stat().st_mtime_ns for file in sorted(folder.iterdir()))
    tokenizer, content = _load_once(folder, changed)
    ids = []
    for texts in columns:
        encode = functools.partial(_encode, texts, tokenizer)
        ids.append(Ragged(*arrays_of_texts("tokens", ("ids", "offsets"), texts, encode, content)))
    about = folder / "config.json"
    encoder_config = BertConfig.from_json(about) if about.exists() else None  # None: a tokenizer alone
    token_types = encoder_config is None or encoder_config.type_vocab_size > 1
    table = TokenizedTable(ids, tokenizer, pairs == "joint", max_length, token_types)
    highest = max(table.cls, table.sep, table.pad)
    for column in ids:
        highest = max(highest, int(column.ids.max(initial=0)))
    if encoder_config and highest >= encoder_config.vocab_size:
        size = encoder_config.vocab_size
        raise CheckpointError(f"{folder}: the tokenizer gives token {highest}, but the encoder has {size} tokens")
    return table


@functools.lru_cache(2)
def _load_once(folder: Path, changed: tuple[int, ...]) -> tuple[Tokenizer, str]:
    """The tokenizer of a checkpoint and its content; changed: when each of its files was, so that it is read again."""
    tokenizer = load_tokenizer(folder)
    return tokenizer, tokenizer.to_str()


def _encode(texts: list[str], tokenizer: Tokenizer) -> list[ndarray]:
    """ids and offsets of `Ragged`."""
    ids = []
    for i in range(0, len(texts), 4096):
        encodings = tokenizer.encode_batch_fast(texts[i : i + 4096], add_special_tokens=False)
        ids += [np.asarray(encoding.ids, dtype=np.int32) for encoding in encodings]
    lengths = [len(array) for array in ids]
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    return [np.concatenate(ids), offsets]
