"""Soft sharing: individual copies of a layer that are pulled together.

Source: paper 001, section 3, and the works it names: L2 distance (Duong et al. 2015), trace norm (Yang and Hospedales
2017). The pull is written as its gradient, added to the copies that a step trains; the others are left alone.
"""

import torch
from torch import Tensor


def soft_penalty(copies: Tensor, kind: str) -> Tensor:
    """The penalty of n copies (n, P) of a tensor.

    'l2': sum over the copies of |p_c - mean|^2. 'trace': sum of the singular values of the n x P matrix.
    """
    if kind == "l2":
        return (copies - copies.mean(0)).square().sum()
    return torch.linalg.svdvals(copies.double()).sum()


def soft_gradient(copies: Tensor, kind: str) -> Tensor:
    """The gradient (n, P) of `soft_penalty`.

    trace: U V' of the singular value decomposition, from the n x n Gram matrix; 0 along singular values of 0, where
    the norm has no gradient (equal copies are rank 1 at the start).
    """
    if kind == "l2":
        return 2 * (copies - copies.mean(0))
    precise = copies.double()
    gram = precise @ precise.T
    squares, vectors = torch.linalg.eigh(gram)
    kept = squares > 1e-10 * squares.max()
    roots = torch.where(kept, squares.clamp_min(torch.finfo(gram.dtype).tiny).rsqrt(), 0.0)
    return (vectors * roots @ vectors.T).to(copies.dtype) @ copies


@torch.no_grad()
def add_pull(copies: list[list[torch.nn.Module]], kind: str, strength: float) -> None:
    """Add strength * gradient of the penalty to the gradients of these levels' copies.

    copies: for each individual level its copies. A parameter without a gradient, unused by the step, keeps none.
    """
    for level in copies:
        for parameters in zip(*(copy.parameters() for copy in level), strict=True):
            if any(p.grad is not None for p in parameters):
                pull = soft_gradient(torch.stack([p.flatten() for p in parameters]), kind)
                for p, gradient in zip(parameters, pull, strict=True):
                    if p.grad is not None:
                        p.grad.add_(gradient.view_as(p), alpha=strength)
