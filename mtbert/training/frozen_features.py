"""The outputs of frozen layers for a table's texts, kept on disk.

They are a function of weights, tokens, precision and the kind of device, and embeddings of the pooling.

Source: the idea that a frozen part of an encoder needs to run once for each text, not once an epoch; a run, its other
seeds and every plan with the same frozen layers read the same file.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import torch
from numpy import ndarray
from torch import Tensor, nn

from mtbert.data import MappedArray, TokenizedTable, mapped_array
from mtbert.paths import cache_dir
from mtbert.sharing import SharedEncoder

VERSION = "2"  # of the files' content; after a change all files are made again


class TokenStates:
    """`SharedEncoder.prefix_states` of a whole table (tokens, d), one sequence after the other.

    batches: rows, their states (B, T, d) and mask (B, T), of the whole table; not computed where they are on disk.
    """

    def __init__(
        self,
        encoder: SharedEncoder,
        tokens: TokenizedTable,
        about: str,
        batches: Iterable[tuple[ndarray, tuple[Tensor, Tensor]]],
    ) -> None:
        lengths = tokens.sequence_lengths
        self.tokens = tokens
        self.starts = tokens.sequence_starts  # places of the sequences' first tokens

        def fill(array: ndarray) -> None:
            for rows, (states, mask) in batches:
                starts = self.starts[tokens.sequences(rows)]
                counts = mask.sum(1).tolist()
                states = states.float().cpu().numpy()
                for sequence, start, count in zip(states, starts, counts, strict=True):
                    array[start : start + count] = sequence[:count]

        depth = encoder.frozen_depth
        frozen_layers = [copies[0] for copies in encoder.layers[:depth]]
        modules = [encoder.embeddings[0], *frozen_layers]
        path = _path(modules, tokens, f"states {depth} {encoder.config} {about}")
        shape = (int(lengths.sum()), encoder.config.hidden_size)
        self.mapped = mapped_array(path, shape, fill)
        self.states = torch.from_numpy(self.mapped.array)

    def batch(self, rows: ndarray, mask: Tensor) -> Tensor:
        """The states of some rows: mask (B, T) of their batch -> (B, T, d); padding repeats a sequence's last token."""
        starts = self.starts[self.tokens.sequences(rows)]
        first = torch.from_numpy(starts)[:, None]  # (B, 1)
        last_place = mask.sum(1, keepdim=True).cpu() - 1  # (B, 1)
        place = torch.arange(mask.size(1)).minimum(last_place)  # (B, T)
        return self.states[first + place].to(mask.device)


def embeddings_of_all_rows(
    encoder: SharedEncoder, tokens: TokenizedTable, k: int, about: str, batches: Iterable[tuple[ndarray, Tensor]]
) -> MappedArray:
    """The sentence embeddings (N, k, d) of a whole table under an encoder that is frozen as a whole.

    batches: rows and their embeddings (B, k, d), of the whole table; not computed where they are on disk.
    """

    def fill(array: ndarray) -> None:
        for rows, embeddings in batches:
            array[rows] = embeddings.cpu().numpy()

    shape = (len(tokens), k, encoder.config.hidden_size)
    path = _path([encoder], tokens, f"embeddings {encoder.config} {about}")
    return mapped_array(path, shape, fill)


def _path(modules: list[nn.Module], tokens: TokenizedTable, about: str) -> Path:
    digest = features_digest(modules, tokens, f"{VERSION} {about}")
    return cache_dir() / "frozen" / f"{digest[:32]}.npy"


def features_digest(modules: list[nn.Module], tokens: TokenizedTable, about: str) -> str:
    """Hex digits of the modules' weights, the token ids and how they become sequences."""
    special = (tokens.cls, tokens.sep, tokens.between, tokens.joint, tokens.token_types, tokens.max_length)
    digest = hashlib.sha256(f"{about} {special}".encode())
    for column in tokens.columns:
        digest.update(column.ids.tobytes())
        digest.update(column.offsets.tobytes())
    for module in modules:
        for name, tensor in module.state_dict().items():
            numbers = tensor.detach().cpu().contiguous().view(-1)
            digest.update(name.encode())
            digest.update(numbers.view(torch.uint8).numpy())
    return digest.hexdigest()
