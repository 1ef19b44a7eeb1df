"""PCGrad: conflicts between the gradients of tasks are projected out (Yu et al. 2020, algorithm 1; paper 002)."""

import torch
from torch import Tensor

from mtbert.gradients.gram import checked_gram_matrix, combine


def pcgrad_weights(gram: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Coefficients (T,), float64, of PCGrad's update in the tasks' gradients, from their Gram matrix (T, T).

    Task after task, the order of the others is one `torch.randperm(T - 1, generator=generator)`. A zero gradient
    changes no other. They are computed where the matrix is, and no number of the host goes there, so that nothing waits
    for a GPU. Where a gradient is not finite, neither is the update.
    """
    T = len(gram)
    gram = gram.detach().double()
    total = torch.zeros_like(gram[0])
    for i, c in enumerate(torch.eye(T, dtype=gram.dtype, device=gram.device)):  # g_i^PC = sum_k c_k g_k
        others = [j for j in range(T) if j != i]
        order = torch.randperm(T - 1, generator=generator).tolist()
        for place in order:
            j = others[place]
            product = c @ gram[:, j]  # g_i^PC . g_j
            square = gram[j, j]  # |g_j|^2
            is_conflict = (product < 0) & (square > 0)  # the square of a tiny gradient may be 0
            factor = torch.where(is_conflict, product / square, torch.zeros_like(square))
            c[j] -= factor  # g_i^PC -= (g_i^PC . g_j / |g_j|^2) g_j
        total += c
    return total


@torch.no_grad()
def pcgrad(G: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Update (P,) from the tasks' gradients G (T, P), each freed of its conflicts with the others, then summed.

    For each task i, over the other tasks j in random order: if g_i . g_j < 0, g_i -= (g_i . g_j / |g_j|^2) g_j with
    the original g_j. The order comes from `generator`, on the CPU. Raises ValueError for another shape or a gradient
    that is not finite.
    """
    weights = pcgrad_weights(checked_gram_matrix(G), generator)
    return combine(weights, G)
