"""A padded batch of token ids."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """A padded batch. B is the number of sequences: with pairs encoded apart, all first sentences, then all second."""

    input_ids: Tensor  # (B, T) int64
    attention_mask: Tensor  # (B, T) bool
    token_type_ids: Tensor | None  # (B, T) int64; None where every token is of type 0

    def to(self, device: torch.device) -> "Batch":
        """The batch on another device."""
        types = None if self.token_type_ids is None else self.token_type_ids.to(device, non_blocking=True)
        move = [t.to(device, non_blocking=True) for t in (self.input_ids, self.attention_mask)]
        return Batch(*move, types)
