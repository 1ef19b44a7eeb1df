"""Batches of token ids, padded; and the tokens of several batches packed into one tensor."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Which tokens a token attends to, as torch's `scaled_dot_product_attention` has it: a tensor that is broadcast to
# (B, h, T, T), of truth values, True = attend, or of numbers that are added to the scores. None: to all of them.
Mask = Tensor | None


@dataclass(frozen=True, eq=False)
class Batch:
    """A batch, padded on the right; where pairs are two sequences, all first sentences, then all second ones."""

    input_ids: Tensor  # (B, T) int64
    attention_mask: Tensor | None = None  # (B, T) bool, or 1 and 0; None: every token is one
    token_type_ids: Tensor | None = None  # (B, T) int64; None where every token is of type 0

    def __post_init__(self) -> None:
        check_shapes(self.input_ids, self.attention_mask, self.token_type_ids)
        mask = self.attention_mask
        if mask is None:
            mask = torch.ones_like(self.input_ids, dtype=torch.bool)
        if mask.dtype != torch.bool:
            mask = mask.bool()
        object.__setattr__(self, "attention_mask", mask)  # the class is frozen

    @property
    def mask(self) -> Tensor:
        """The padding as a `Mask` of attention: (B, 1, 1, T), True = attend."""
        return self.attention_mask[:, None, None, :]

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


def check_shapes(input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None) -> None:
    """Raises ValueError for a mask or token types of another shape than the ids."""
    for name, tensor in (("attention_mask", attention_mask), ("token_type_ids", token_type_ids)):
        if tensor is not None and tensor.shape != input_ids.shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, input_ids {tuple(input_ids.shape)}")


def pack(batches: Iterable[Tensor]) -> Tensor:
    """(B, T, ...) of several batches -> (N, ...), all their tokens; a single batch is not copied."""
    tokens = [batch.flatten(0, 1) for batch in batches]
    return torch.cat(tokens) if len(tokens) > 1 else tokens[0]


def unpack(tokens: Tensor, sized: Sequence[Tensor]) -> list[Tensor]:
    """Packed tokens (N, ...) -> (B, T, ...) of each batch; sized: a tensor (B, ..., T) of each, such as its mask."""
    sizes = [(one.size(0), one.size(-1)) for one in sized]
    parts = tokens.split([B * T for B, T in sizes])  # (B T, ...) of each batch
    return [part.unflatten(0, size) for part, size in zip(parts, sizes, strict=True)]


def stacked(masks: list[Tensor]) -> list[Tensor]:
    """The masks of packed batches as one, where their sequences have one length: then the batches are one batch."""
    have_one_length = len({mask.shape[1:] for mask in masks}) == 1
    return [torch.cat(masks)] if have_one_length and len(masks) > 1 else masks
