"""MPNet's relative positions: a bias of the attention scores by the distance of two tokens, in buckets.

Source: Song et al. 2020 (MPNet); Raffel et al. 2020 (the buckets, in T5's bidirectional form).

Symbols: B batch, T tokens, h heads.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from mtbert.bert.batch import Mask

RELATIVE_BUCKETS = 32
MAX_DISTANCE = 128  # tokens; all that are farther away share a bucket
NOT_ATTENDED = -1e30  # a score whose weight is 0; finite in float32 and bfloat16, also with a score added
ALIGNMENT = 8  # elements: a GPU's fused attention copies a mask whose rows start elsewhere, in every layer


def relative_buckets(T: int, device: torch.device) -> Tensor:
    """The bucket of each pair of query and key: (T, T), from 0 to RELATIVE_BUCKETS - 1.

    Half of the buckets are for keys after the query. Of each half, one half has a bucket for every distance, and the
    other grows logarithmically up to MAX_DISTANCE. Computed on the device from T alone, so nothing waits for it.
    """
    half = RELATIVE_BUCKETS // 2
    exact = half // 2
    positions = torch.arange(T, device=device)
    offsets = positions - positions[:, None]  # (T, T) key - query
    distances = offsets.abs()
    steps = (distances.clamp_min(1).float() / exact).log() / math.log(MAX_DISTANCE / exact) * (half - exact)
    far = (exact + steps.long()).clamp_max(half - 1)
    return torch.where(distances < exact, distances, far) + half * (offsets > 0)


def biased_mask(bias: Tensor, mask: Mask) -> Tensor:
    """The bias (h, T, T) where mask (B, 1, 1, T) is True, NOT_ATTENDED elsewhere: (B, h, T, T), added to the scores.

    Without a mask B is 1. On a GPU it has the type that autocast gives to queries and keys.
    """
    added = bias.contiguous()[None]  # (1, h, T, T)
    if mask is not None:
        added = torch.where(mask, added, NOT_ATTENDED)  # (B, h, T, T)
    kind = added.device.type
    if kind == "cpu":
        return added
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        added = added.to(torch.get_autocast_dtype(kind))
    T = added.size(-1)
    return F.pad(added, (0, -T % ALIGNMENT))[..., :T]
