"""Features of a pair of sentences that are encoded one by one, from their two embeddings.

Source: papers 000 (section 3.3: summed), 001 (equations 3 to 5), 002 (section 4.2: concatenated, with their Hadamard
product). B batch, d hidden size, D features.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

# Embeddings h1, h2 (B, d) of the two sentences -> features (B, any width). To add a feature, add its entry here.
PAIR_FEATURES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": lambda h1, h2: h1 + h2,
    "concat": lambda h1, h2: torch.cat((h1, h2), dim=-1),
    "product": lambda h1, h2: h1 * h2,
    "difference": lambda h1, h2: (h1 - h2).abs(),
    "cosine": lambda h1, h2: F.cosine_similarity(h1, h2, dim=-1).unsqueeze(-1),
}


def pair_features(embeddings: Tensor, pairs: str) -> Tensor:
    """(B, 2, d) -> (B, D): the features that `pairs` joins by +, side by side in the order written.

    sum, product (Hadamard) and difference (absolute) are d wide, concat 2d, cosine 1.
    """
    h1, h2 = embeddings.unbind(1)  # (B, d) each
    parts = [PAIR_FEATURES[name](h1, h2) for name in pairs.split("+")]
    return torch.cat(parts, dim=-1)


def pair_width(pairs: str, d: int) -> int:
    """D of `pair_features`."""
    with torch.device("cpu"):  # a model may be built on the device meta, where a feature cannot read its values
        embeddings = torch.zeros(1, 2, d)
        return pair_features(embeddings, pairs).size(-1)
