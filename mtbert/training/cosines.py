"""How much the gradients of tasks conflict: their cosines, level by level of the encoder. T tasks, P parameters."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mtbert.gradients import gram_matrix


def by_level(spans: dict[str, slice]) -> dict[str, list[slice]]:
    """Spans of parameters in a vector -> spans of levels: embeddings, layer 1, ..., pooler, heads."""
    levels = {}
    for name, span in spans.items():
        levels.setdefault(_level_of(name), []).append(span)
    return levels


def _level_of(name: str) -> str:
    """encoder.layers.0.1.query.weight -> layer 1; encoder.poolers.0.dense.weight -> pooler; heads.... -> heads."""
    owner, part, number = name.split(".")[:3]
    if owner != "encoder":
        return owner
    if part == "layers":
        return f"layer {int(number) + 1}"
    return "pooler" if part == "poolers" else part


@torch.no_grad()
def layer_cosines(G: Tensor, spans: dict[str, list[slice]], tasks: Sequence[str]) -> list[dict]:
    """Cosine between the gradients G (T, P) of every two tasks, layer by layer: rows of layer, first, second, cosine.

    spans: layer -> its places in the vector. nan where one of the two is zero or not finite there.
    """
    T = len(tasks)
    rows = []
    for layer, places in spans.items():
        gram = torch.zeros(T, T, dtype=torch.float64, device=G.device)
        for span in places:
            gram += gram_matrix(G[:, span])
        gram = gram.cpu().numpy()
        norms = np.sqrt(gram.diagonal())
        is_usable = (norms > 0) & np.isfinite(norms)
        for i, j in itertools.combinations(range(T), 2):
            cosine = math.nan
            if is_usable[i] and is_usable[j]:
                cosine = gram[i, j] / norms[i] / norms[j]
                cosine = float(np.clip(cosine, -1, 1))
            row = {
                "layer": layer,
                "first": tasks[i],
                "second": tasks[j],
                "cosine": cosine,
            }
            rows.append(row)
    return rows
