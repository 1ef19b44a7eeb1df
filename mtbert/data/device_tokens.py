"""The sequences of a table on a device, where batches are made without the host.

A training step in a CUDA graph reads its rows from a tensor; no Python runs between the rows and the padded batch.
"""

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from mtbert.bert import Batch
from mtbert.data.tokens import TokenizedTable


class DeviceTokens:
    """All sequences of a table (N examples), special tokens included, one after the other on a device."""

    def __init__(self, tokens: TokenizedTable, device: torch.device) -> None:
        ids, seconds = tokens.flat()
        lengths = tokens.sequence_lengths

        def on_device(numbers: ndarray) -> Tensor:
            return torch.from_numpy(numbers.astype(np.int64)).to(device)

        self.pad = tokens.pad
        self.has_types = tokens.token_types
        self.examples = len(tokens)  # N
        self.sentences = len(lengths) // max(len(tokens), 1)  # sequences of an example
        self.ids = on_device(ids)
        self.starts = on_device(tokens.sequence_starts)
        self.lengths = on_device(lengths)
        self.seconds = on_device(seconds)  # places where a pair's second sentence starts

    def batch(self, rows: Tensor, length: int) -> Batch:
        """The batch of these rows (B,), int64 on the device, padded to `length` tokens, which no sequence exceeds.

        Its sequences are in the order of `TokenizedTable.batch`.
        """
        sequences = torch.cat([rows + i * self.examples for i in range(self.sentences)])
        places = torch.arange(length, device=rows.device)
        mask = places < self.lengths[sequences, None]  # (sequences, T)
        sources = self.starts[sequences, None] + places
        ids = self.ids[torch.where(mask, sources, 0)]
        types = None
        if self.has_types:
            types = (mask & (places >= self.seconds[sequences, None])).long()
        return Batch(torch.where(mask, ids, self.pad), mask, types)
