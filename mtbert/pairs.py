"""Features of a pair of sentences that are encoded apart, from their two embeddings.

Source: papers 000 (section 3.3: summed), 001 (equations 3 to 5), 002 (section 4.2: concatenated, with their Hadamard
product). B batch, d hidden size, D features.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

# Embeddings h1, h2 (B, d) of the two sentences -> features (B, any width). One of your own needs an entry here.
PAIR_FEATURES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": lambda h1, h2: h1 + h2,
    "concat": lambda h1, h2: torch.cat((h1, h2), dim=-1),
    "product": lambda h1, h2: h1 * h2,
    "difference": lambda h1, h2: (h1 - h2).abs(),
    "cosine": lambda h1, h2: F.cosine_similarity(h1, h2, dim=-1).unsqueeze(-1),
}


def pair_features(embeddings: Tensor, pairs: str) -> Tensor:
    """(B, 2, d) -> (B, D): the parts that `pairs` joins by +, side by side in the order written.

    sum, product (Hadamard) and difference (absolute) are d wide, concat 2d, cosine 1.
    """
    h1, h2 = embeddings.unbind(1)
    parts = [PAIR_FEATURES[part](h1, h2) for part in pairs.split("+")]
    return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]


def pair_width(pairs: str, d: int) -> int:
    """D of `pair_features`."""
    return pair_features(torch.empty(1, 2, d, device="meta"), pairs).size(-1)
