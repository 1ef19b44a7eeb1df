"""The gradients of tasks as flat vectors, their Gram matrix, and combinations of them.

Every method of this package is a linear combination of gradients whose coefficients follow from their Gram matrix.
Products and combinations are computed in float64 where the gradients lie, a chunk of columns at a time. The Gram
matrix, a few numbers, comes to the CPU, but for PCGrad, whose few operations need not wait for it. T tasks, K memories,
R rows, P parameters; any float dtype, products of norms up to 1e300.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from numpy import ndarray
from torch import Tensor

CPU_CHUNK = 2**16  # columns; a few rows of them in float64 stay near the cache
DEVICE_CHUNK = 2**23  # columns, on any other device: few kernels, in a buffer of 64 MiB a row


class FlatGradients:
    """The gradients of named parameters as one vector (P,), and back. `spans`: name -> its place in the vector."""

    def __init__(self, parameters: dict[str, Tensor]) -> None:
        self.parameters = dict(parameters)
        self.spans: dict[str, slice] = {}
        self.size = 0  # P
        for name, parameter in self.parameters.items():
            start = self.size
            self.size += parameter.numel()
            self.spans[name] = slice(start, self.size)

    def empty(self, rows: int) -> Tensor:
        """Room for the gradients of several tasks, float32 (rows, P), on the parameters' device."""
        device = next((parameter.device for parameter in self.parameters.values()), None)
        return torch.empty(rows, self.size, dtype=torch.float32, device=device)

    def take(self, flat: Tensor) -> Tensor:
        """Move every `.grad` into flat (P,), zeros where there is none; every `.grad` is None after.

        Returns which parameters had one: bool, on the CPU.
        """
        used = torch.zeros(len(self.parameters), dtype=torch.bool)
        for i, (name, parameter) in enumerate(self.parameters.items()):
            place = flat[self.spans[name]]
            if parameter.grad is None:
                place.zero_()
            else:
                place.view_as(parameter).copy_(parameter.grad)
                parameter.grad = None
                used[i] = True
        return used

    def put(self, flat: Tensor, used: Tensor) -> None:
        """Make `.grad` of the used parameters a view of flat (P,), and None elsewhere.

        An optimizer leaves a parameter without a gradient alone, its decay and moments included; with a gradient of
        zeros it would not.
        """
        for (name, parameter), is_used in zip(self.parameters.items(), used.tolist(), strict=True):
            parameter.grad = None
            if is_used:
                place = flat[self.spans[name]]
                parameter.grad = place.view_as(parameter).to(parameter.dtype)


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
        for i, row in enumerate(block):  # for few rows faster than the product of the matrices
            gram[i, i:].addmv_(block[i:], row)  # the upper triangle
    return gram.triu() + gram.triu(1).T


def checked_gram_matrix(G: Tensor) -> Tensor:
    """Gram matrix (T, T) of the tasks' gradients G (T, P), as in `gram_matrix`.

    Raises ValueError for another shape and for a gradient that is not finite.
    """
    check_matrix("G", G, least=1)
    gram = gram_matrix(G)
    check_finite(gram, [f"row {i}" for i in range(len(G))])
    return gram


def combine(weights: Tensor | ndarray, *parts: Tensor) -> Tensor:
    """Sum of the rows of stacked parts (R_i, P), weighted (R,): (P,) in their dtype."""
    coefficients = torch.as_tensor(weights, dtype=torch.float64, device=parts[0].device)
    total = torch.empty_like(parts[0][0])
    for columns, block in in_double(*parts):
        total[columns] = coefficients @ block
    return total


def check_matrix(name: str, matrix: Tensor, least: int = 0) -> None:
    """Raises ValueError for anything but a matrix of floats, a tensor with so many rows or more."""
    is_matrix = isinstance(matrix, Tensor) and matrix.ndim == 2 and matrix.is_floating_point()
    if not is_matrix or len(matrix) < least:
        rows = f"{least} row or more" if least else "rows"
        raise ValueError(f"{name} is one gradient a row, a tensor ({rows}, P) of floats; got {describe(matrix)}")


def describe(tensor: Tensor) -> str:
    if not isinstance(tensor, Tensor):
        return f"a {type(tensor).__name__}"
    return f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"


class GradientError(ValueError):
    """Gradients that are not finite; the message says which."""


def check_finite(gram: Tensor, names: Sequence[str]) -> None:
    """Raises GradientError for gradients that are not finite.

    A row with an infinity or nan has a norm that is one, and float64 squares every finite float32.
    """
    bad = []
    for name, square in zip(names, gram.diagonal().tolist(), strict=True):
        if not math.isfinite(square):
            bad.append(name)
    if bad:
        raise GradientError(f"gradients must be finite, with norms below 1e150; not so: {', '.join(bad)}")
