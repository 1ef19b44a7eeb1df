"""Soft sharing: individual copies of a layer that are pulled together.

Source: paper 001, section 3, and the works it names: L2 distance (Duong et al. 2015), trace norm (Yang and Hospedales
2017). The pull is written as its gradient, added to the copies that a step trains; the others are left alone.
"""

import torch
from torch import Tensor, nn

from mtbert.gradients import in_double

SMOOTHING = 1e-7  # of the largest singular value; two float32 copies that differ at all differ by about as much


def soft_gradient(copies: Tensor, kind: str) -> Tensor:
    """The gradient (n, P) of the penalty of n copies (n, P) of a tensor.

    l2: the penalty is the sum over the copies of |p_c - mean|^2. trace: the sum of the singular values of the matrix of
    the copies, smoothed: the sum of sqrt(s^2 + e^2) over the singular values s, with e = SMOOTHING times the largest.
    Its gradient is U s / sqrt(s^2 + e^2) V', computed from the n x n Gram matrix in float64. Where s is far above e
    this is the gradient of the norm itself, U V'. Where copies are equal, s is 0 and nothing pulls them, which is the
    subgradient of least norm. What the copies have in common is pulled towards 0 as well. Raises ValueError for another
    kind.
    """
    if kind == "l2":
        return 2 * (copies - copies.mean(0))
    if kind != "trace":
        raise ValueError(f"unknown kind {kind!r}; known are l2 and trace")
    n = len(copies)
    gram = torch.zeros(n, n, dtype=torch.float64, device=copies.device)
    for _, block in in_double(copies):
        gram += block @ block.T
    squares, U = torch.linalg.eigh(gram)  # s^2, ascending
    smoothed = squares.clamp_min(0) + SMOOTHING**2 * squares[-1]  # s^2 + e^2
    smoothed = smoothed.clamp_min(torch.finfo(gram.dtype).tiny)
    weights = U * smoothed.rsqrt() @ U.T  # (n, n)
    gradient = torch.empty_like(copies)
    for columns, block in in_double(copies):
        gradient[:, columns] = weights @ block
    return gradient


@torch.no_grad()
def add_pull(copies: list[list[nn.Module]], kind: str, strength: float) -> None:
    """Add strength * gradient of the penalty to the gradients of these levels' copies.

    copies: for each individual level its copies. A parameter without a gradient, unused by the step, keeps none.
    """
    for level in copies:
        by_copy = [copy.parameters() for copy in level]
        for parameters in zip(*by_copy, strict=True):  # one parameter of the level in every copy
            if all(p.grad is None for p in parameters):
                continue
            flat = torch.stack([p.flatten() for p in parameters])  # (n, P)
            for p, pull in zip(parameters, soft_gradient(flat, kind), strict=True):
                if p.grad is not None:
                    p.grad.add_(pull.view_as(p), alpha=strength)
