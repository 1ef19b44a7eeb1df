"""Checked tables -> token ids, cached on disk -> padded batches of similar length.

Sentences are tokenized once, without special tokens, into one flat array a column ("ragged" storage); [CLS], [SEP]
(RoBERTa: <s>, </s>), truncation and padding are applied when a batch is made, so that one cache serves every pair
encoding and length.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from tokenizers import AddedToken, Tokenizer

from mtbert.bert import Batch, CheckpointError, has_token_types, locate
from mtbert.data.array_cache import file_of, read_arrays, write_arrays
from mtbert.data.tasks import TASKS

SPECIAL = {  # start of a sequence, end of a sentence, padding
    "BERT": ("[CLS]", "[SEP]", "[PAD]"),
    "RoBERTa": ("<s>", "</s>", "<pad>"),
}


@dataclass(frozen=True)
class Ragged:
    """N token sequences in one array: sequence i is ids[offsets[i]:offsets[i + 1]]."""

    ids: np.ndarray  # (total tokens,) int32
    offsets: np.ndarray  # (N + 1,) int64

    def __getitem__(self, i: int) -> np.ndarray:
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """(N,) tokens of each sequence."""
        return np.diff(self.offsets)


def load_tokenizer(encoder: str | Path) -> Tokenizer:
    """The tokenizer of a checkpoint, without padding or truncation; raises CheckpointError where there is none.

    From tokenizer.json; else WordPiece from vocab.txt; else byte-level BPE from vocab.json and merges.txt.
    """
    folder = locate(encoder)
    if (folder / "tokenizer.json").exists():
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer
    if (folder / "vocab.txt").exists():
        from tokenizers.implementations import BertWordPieceTokenizer

        try:
            return BertWordPieceTokenizer(str(folder / "vocab.txt"))._tokenizer
        except TypeError as error:  # [CLS] or [SEP] is not in it
            raise CheckpointError(f"{folder / 'vocab.txt'}: {error}; a BERT vocabulary is needed") from error
    if (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        from tokenizers.implementations import ByteLevelBPETokenizer

        tokenizer = ByteLevelBPETokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))._tokenizer
        special = [*SPECIAL["RoBERTa"], "<unk>", AddedToken("<mask>", lstrip=True)]
        tokenizer.add_special_tokens([token for token in special if tokenizer.token_to_id(str(token)) is not None])
        return tokenizer
    raise CheckpointError(f"{folder}: holds neither tokenizer.json nor vocab.txt, nor vocab.json and merges.txt")


class TokenizedTable:
    """One split of one task as token ids; makes batches of any rows.

    joint: a pair becomes one sequence, [CLS] a [SEP] b [SEP] or, with RoBERTa's special tokens, <s> a </s></s> b </s>;
    otherwise each sentence is a sequence of its own. token_types: whether the encoder tells b from a by them; RoBERTa
    never does.
    """

    def __init__(
        self, columns: list[Ragged], tokenizer: Tokenizer, joint: bool, max_length: int, token_types: bool = True
    ) -> None:
        self.columns = columns
        self.joint = joint and len(columns) == 2
        self.max_length = max_length
        roberta = tokenizer.token_to_id("[CLS]") is None and tokenizer.token_to_id("<s>") is not None
        self.cls, self.sep, self.pad = special_ids(tokenizer, "RoBERTa" if roberta else "BERT")
        self.mask = tokenizer.token_to_id("<mask>" if roberta else "[MASK]")  # None: not made for pretraining
        self.between = [self.sep] * (2 if roberta else 1)  # what parts a pair
        self.token_types = self.joint and token_types and not roberta
        lengths = [column.lengths for column in columns]
        if self.joint:
            self.counts = np.minimum(lengths[0] + lengths[1] + 2 + len(self.between), max_length)
            self.lengths = self.counts
        else:
            sentences = np.minimum(np.stack(lengths) + 2, max_length)  # (sentences, N)
            self.counts = sentences.sum(0)  # (N,) tokens that are encoded of an example
            self.lengths = sentences.max(0)  # (N,) of its longest sequence, to which a batch is padded

    def __len__(self) -> int:
        return len(self.columns[0])

    def sequences(self, rows: np.ndarray) -> np.ndarray:
        """The numbers of these rows' sequences, in the order of `batch`: N or, with pairs encoded apart, 2N in all."""
        return rows if self.joint else np.concatenate([rows + i * len(self) for i in range(len(self.columns))])

    @property
    def sequence_lengths(self) -> np.ndarray:
        """Tokens of every sequence, in the order of `sequences`."""
        if self.joint:
            return self.lengths
        return np.concatenate([np.minimum(column.lengths + 2, self.max_length) for column in self.columns])

    def batch(self, rows: np.ndarray) -> Batch:
        """The batch of these rows, padded to its longest sequence."""
        if self.joint:
            sequences = [self._pair(self.columns[0][i], self.columns[1][i]) for i in rows]
        else:
            sequences = [(self._single(column[i]), 0) for column in self.columns for i in rows]
        width = max(len(ids) for ids, _ in sequences)
        input_ids = np.full((len(sequences), width), self.pad, dtype=np.int64)
        mask = np.zeros((len(sequences), width), dtype=bool)
        types = np.zeros((len(sequences), width), dtype=np.int64)
        for row, (ids, second) in enumerate(sequences):
            input_ids[row, : len(ids)] = ids
            mask[row, : len(ids)] = True
            if second:
                types[row, second : len(ids)] = 1
        token_types = torch.from_numpy(types) if self.token_types else None
        return Batch(torch.from_numpy(input_ids), torch.from_numpy(mask), token_types)

    def _single(self, ids: np.ndarray) -> np.ndarray:
        return np.concatenate(([self.cls], ids[: self.max_length - 2], [self.sep]))

    def _pair(self, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, int]:
        """The pair as one sequence and where b starts; over the limit, the longer sentence loses tokens at its end."""
        room = self.max_length - 2 - len(self.between)
        if len(first) + len(second) > room:
            keep_first = min(len(first), max(room - len(second), (room + 1) // 2))
            first, second = first[:keep_first], second[: room - keep_first]
        ids = np.concatenate(([self.cls], first, self.between, second, [self.sep]))
        return ids, 1 + len(first) + len(self.between)


def special_ids(tokenizer: Tokenizer, kind: str) -> list[int]:
    """The ids of a kind's SPECIAL tokens; raises CheckpointError where the vocabulary lacks one."""
    ids = [tokenizer.token_to_id(token) for token in SPECIAL[kind]]
    for token, index in zip(SPECIAL[kind], ids, strict=True):
        if index is None:
            raise CheckpointError(f"the tokenizer has no {token}; a {kind} vocabulary is needed")
    return ids


def tokenize(
    task: str, table: pd.DataFrame, encoder: str, pairs: str = "joint", max_length: int = 512
) -> TokenizedTable:
    """Token ids of a checked table; each text column is tokenized once and cached by the hash of its content."""
    return _tokenize([table[column].tolist() for column in TASKS[task].sentence_columns], encoder, pairs, max_length)


def tokenize_texts(texts: list[str], encoder: str, max_length: int = 512) -> TokenizedTable:
    """Token ids of single sentences that belong to no task, cached likewise."""
    return _tokenize([texts], encoder, "joint", max_length)


def _tokenize(columns: list[list[str]], encoder: str, pairs: str, max_length: int) -> TokenizedTable:
    folder = locate(encoder)
    tokenizer = load_tokenizer(folder)
    vocabulary = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
    ids = [_cached_ids(texts, tokenizer, vocabulary) for texts in columns]
    return TokenizedTable(ids, tokenizer, pairs == "joint", max_length, has_token_types(folder))


def _cached_ids(texts: list[str], tokenizer: Tokenizer, vocabulary: str) -> Ragged:
    path = file_of(texts, "tokens", made_with=vocabulary)
    cached = _read_ids(path, len(texts))
    if cached is None:
        cached = _encode(texts, tokenizer)
        _write_ids(path, cached)
    return cached


def _encode(texts: list[str], tokenizer: Tokenizer) -> Ragged:
    encodings = (tokenizer.encode_batch_fast(texts[i : i + 4096], add_special_tokens=False)
                 for i in range(0, len(texts), 4096))  # fmt: skip
    arrays = [np.asarray(encoding.ids, dtype=np.int32) for part in encodings for encoding in part]
    offsets = np.concatenate(([0], np.cumsum([len(array) for array in arrays], dtype=np.int64)))
    return Ragged(np.concatenate(arrays), offsets)


def _read_ids(path: Path, rows: int) -> Ragged | None:
    """The cached ids, or None where there are none that fit."""
    arrays = read_arrays(path, "ids", "offsets")
    if arrays is None:
        return None
    ragged = Ragged(*arrays)
    return ragged if len(ragged) == rows and ragged.offsets[-1] == len(ragged.ids) else None


def _write_ids(path: Path, ragged: Ragged) -> None:
    write_arrays(path, ids=ragged.ids, offsets=ragged.offsets)
