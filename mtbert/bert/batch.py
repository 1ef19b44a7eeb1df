"""Batches of token ids, padded; and the tokens of several batches as one tensor."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

# (B, 1, 1, T), True = attend, or (B, h, T, T), added to the scores; None: all; a list: one for each of several batches
Mask = Tensor | list[Tensor] | None


@dataclass(frozen=True)
class Batch:
    """A padded batch. B sequences: where pairs are two sequences, all first sentences, then all second ones."""

    input_ids: Tensor  # (B, T) int64
    attention_mask: Tensor = None  # (B, T) bool, or 1 and 0; None: every token is one
    token_type_ids: Tensor | None = None  # (B, T) int64; None where every token is of type 0

    def __post_init__(self) -> None:
        mask = self.attention_mask
        if mask is None:
            mask = torch.ones_like(self.input_ids, dtype=torch.bool)
        if mask.shape != self.input_ids.shape:
            raise ValueError(f"attention_mask has shape {tuple(mask.shape)}, input_ids {tuple(self.input_ids.shape)}")
        if mask.dtype != torch.bool:
            mask = mask.bool()
        object.__setattr__(self, "attention_mask", mask)  # the class is frozen

    def to(self, device: torch.device) -> "Batch":
        """The batch on another device."""
        types = self.token_type_ids
        if types is not None:
            types = types.to(device, non_blocking=True)
        return Batch(
            self.input_ids.to(device, non_blocking=True),
            self.attention_mask.to(device, non_blocking=True),
            types,
        )


def apart(tokens: Tensor, masks: list[Tensor]) -> list[Tensor]:
    """The tokens of several batches (N, ...) -> each batch's (B, T, ...), of the size of its mask (B, ..., T)."""
    sizes = [(mask.size(0), mask.size(-1)) for mask in masks]
    parts = tokens.split([B * T for B, T in sizes])  # (B T, ...) of each batch
    return [part.unflatten(0, size) for part, size in zip(parts, sizes, strict=True)]


def together(batches: Iterable[Tensor]) -> Tensor:
    """(B, T, ...) of several batches -> (N, ...), all their tokens; a single batch is not copied."""
    tokens = [batch.flatten(0, 1) for batch in batches]
    return torch.cat(tokens) if len(tokens) > 1 else tokens[0]


def can_be_stacked(masks: list[Tensor]) -> bool:
    """Whether batches with these masks can be one batch: their sequences have one length."""
    return len({mask.shape[1:] for mask in masks}) == 1
