"""Products and combinations of gradients: Gram matrices, cosines between tasks.

Every method of this room is a linear combination of gradients whose coefficients follow from their Gram matrix.
Products and combinations are computed in float64 where the gradients lie, a chunk of columns at a time; only the Gram
matrix, a few numbers, comes to the CPU. T tasks, K memories, R rows, P parameters; any float dtype, products of norms
up to 1e300.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

CPU_CHUNK = 2**16  # columns; a few rows of them in float64 stay near the cache
DEVICE_CHUNK = 2**20  # columns, on any other device
SLIM = 8  # rows, up to which a matrix product on a CPU takes longer than a product for each row


def in_double(*parts: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Stacked parts (R_i, P) in float64, chunk by chunk: columns and their (R, c), in a buffer used again."""
    rows = sum(len(part) for part in parts)
    P = parts[0].shape[1]
    device = parts[0].device
    chunk = CPU_CHUNK if device.type == "cpu" else DEVICE_CHUNK
    buffer = torch.empty(rows, min(chunk, P), dtype=torch.float64, device=device)
    for start in range(0, P, chunk):
        stop = min(start + chunk, P)
        columns = slice(start, stop)
        block = buffer[:, : stop - start]  # (R, c)
        row = 0
        for part in parts:
            block[row : row + len(part)] = part[:, columns]
            row += len(part)
        yield columns, block


def gram_matrix(*parts: Tensor) -> Tensor:
    """Gram matrix (R, R) of the rows of stacked parts (R_i, P), float64, on their device."""
    rows = sum(len(part) for part in parts)
    gram = torch.zeros(rows, rows, dtype=torch.float64, device=parts[0].device)
    for _, block in in_double(*parts):
        if rows > SLIM:
            gram.addmm_(block, block.T)
            continue
        for i, row in enumerate(block):
            gram[i, i:].addmv_(block[i:], row)  # the upper triangle
    return gram.triu() + gram.triu(1).T


def combine(weights: ndarray, *parts: Tensor) -> Tensor:
    """Sum of the rows of stacked parts (R_i, P), weighted (R,): (P,) in their dtype."""
    coefficients = torch.as_tensor(weights, dtype=torch.float64, device=parts[0].device)
    total = torch.empty_like(parts[0][0])
    for columns, block in in_double(*parts):
        total[columns] = coefficients @ block
    return total


def products_of(g: Tensor, M: Tensor) -> tuple[ndarray, float]:
    """Products of g (P,) with the rows of M (K, P), and the norm of g."""
    products = torch.zeros(1 + len(M), dtype=torch.float64, device=g.device)
    for _, block in in_double(g[None], M):
        products.addmv_(block, block[0])
    square, *others = products.tolist()
    return np.array(others), math.sqrt(square)


def check_matrix(name: str, matrix: Tensor) -> None:
    """Raises ValueError for anything but a matrix of floats."""
    if matrix.ndim != 2 or not matrix.is_floating_point():
        raise ValueError(f"{name} is one gradient a row, (rows, P), of floats; got {describe(matrix)}")


def describe(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"


def check_finite(gram: Tensor, names: Sequence[str]) -> None:
    """Raises ValueError for gradients that are not finite.

    A row with an infinity or nan has a norm that is one, and float64 squares every finite float32.
    """
    bad = []
    for name, square in zip(names, gram.diagonal().tolist(), strict=True):
        if not math.isfinite(square):
            bad.append(name)
    if bad:
        raise ValueError(f"gradients must be finite, with norms below 1e150; not so: {', '.join(bad)}")


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
