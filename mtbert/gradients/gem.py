"""GEM and A-GEM: a step must not raise the loss on memories of other tasks.

Sources: Lopez-Paz and Ranzato 2017 (GEM, equations 8 to 11), Chaudhry et al. 2019 (A-GEM, equation 11), paper 003,
section 2.2.2. K memories, P parameters.
"""

import logging
import math

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from mtbert.gradients.gram import check_finite, check_matrix, combine, describe, gram_matrix, in_double

log = logging.getLogger(__name__)
EPS = 1e-13  # smallest eigenvalue in GEM's dual, of MM' with rows of length 1: below are angles of 3e-7, rounding
FEASIBLE = 5e-7  # g~ . m_k >= -FEASIBLE |g~| |m_k| is accepted as 0; a caller may rely on 1e-6
ROUNDING = 1e-13  # a g~ shorter than this fraction of its summands is their rounding error, so 0
ATTEMPTS = 4  # a g~ that violates a constraint is projected again, this often in all


def _check_gradient(g: Tensor, M: Tensor) -> None:
    check_matrix("M", M)
    is_alike = isinstance(g, Tensor) and g.dtype == M.dtype and g.device == M.device
    if not is_alike or g.shape != M.shape[1:]:
        raise ValueError(f"g is (P,) where M is (K, P), like it; got g {describe(g)}, M {describe(M)}")


@torch.no_grad()
def gem(g: Tensor, M: Tensor, *, margin: float = 0.0) -> tuple[Tensor, Tensor]:
    """The projected gradient g~ = M'v + g (P,), and v (K,), float64 on the CPU: 0 where a memory took no part.

    g (P,) is the step's gradient, M (K, P) one gradient for each memory. v minimises 1/2 v'(MM' + eps I)v + (Mg)'v
    subject to v >= margin, so that g~ . m_k >= 0 for every k, which is verified to 1e-6 |g~| |m_k|, rounding included,
    and in half precision to the rounding of the type. With margin 0, g~ is the vector closest to g that meets the
    constraints, and g itself where g does; a margin acts in every step, also where the authors' code, which asks for a
    violation first, would not. eps is relative to the gradients: only eigenvalues of MM', its rows scaled to length 1,
    below 1e-13 are lifted. Memories that are zero are left out.

    Where no v is found, g~ is 0, which meets every constraint, and v is nan; a warning is logged. Raises ValueError for
    other shapes, a negative margin or a gradient that is not finite.
    """
    _check_gradient(g, M)
    if not 0 <= margin < math.inf:
        raise ValueError(f"margin is {margin}; it must be finite and at least 0")
    gram = gram_matrix(g[None], M).cpu()  # (K + 1, K + 1)
    names = [f"row {k} of M" for k in range(len(M))]
    check_finite(gram, ["g", *names])
    gram = gram.numpy()
    is_zero = gram.diagonal()[1:] == 0
    is_met = gram[0, 1:] >= 0  # g . m_k >= 0
    if is_zero.all() or (margin == 0 and is_met.all()):
        return g, torch.zeros(len(M), dtype=torch.float64)
    found = _project(g, M, gram, margin)
    if found is None:
        log.warning("GEM: no projection was found; the gradient of this step is 0")
        found = torch.zeros_like(g), np.full(len(M), np.nan)
    projected, v = found
    return projected, torch.from_numpy(v)


def gem_project(g: Tensor, M: Tensor, margin: float = 0.0) -> Tensor:
    """The gradient closest to g that meets g~ . m_k >= 0 for every row m_k of M: g (P,), M (K, P) -> g~ (P,).

    So a plain step raises the loss of no memory to first order. A margin asks for more, as in `gem`, which also returns
    the weights v. Raises ValueError for other shapes, a negative margin or a gradient that is not finite.
    """
    projected, _ = gem(g, M, margin=margin)
    return projected


def _project(g: Tensor, M: Tensor, gram: ndarray, margin: float) -> tuple[Tensor, ndarray] | None:
    """g~ and v; None where the dual is not solved or g~ violates a constraint.

    gram (K + 1, K + 1) is the Gram matrix of g and the rows of M.
    """
    norms = np.sqrt(gram.diagonal())
    g_norm = norms[0]
    m_norms = norms[1:]
    kept = np.flatnonzero(m_norms)
    lengths = m_norms[kept]
    A = gram[1:, 1:][np.ix_(kept, kept)]
    A = A / lengths[:, None] / lengths  # Gram matrix of the m_k / |m_k|
    feasible = max(FEASIBLE, torch.finfo(g.dtype).eps)  # half precision rounds more
    projected = g
    products = gram[0, 1:]  # of what is projected with the rows of M
    scale = max(g_norm, margin * lengths.max())
    v = np.zeros(len(M))
    for _ in range(ATTEMPTS):
        added = np.zeros(len(M))
        try:
            added[kept] = _dual_weights(A, products[kept], lengths, scale, margin)
        except (RuntimeError, np.linalg.LinAlgError):
            return None
        v += added
        projected = combine(np.append(1, added), projected[None], M)
        products, norm = _measured(projected, M)
        if norm <= ROUNDING * (g_norm + v @ m_norms):
            return torch.zeros_like(g), v
        if (products >= -feasible * norm * m_norms).all():
            return projected, v
        if not math.isfinite(norm):
            return None
        # g~ is far shorter than g: what was rounding error next to g is an error next to g~. Project g~ as well.
        scale = norm
        margin = 0.0
    return None


def _dual_weights(A: ndarray, products: ndarray, lengths: ndarray, scale: float, margin: float) -> ndarray:
    """v (K,) >= margin: how much of each memory's gradient brings a gradient inside the constraints.

    A (K, K): Gram matrix of the memories' gradients, scaled to length 1; lengths (K,): their lengths before that;
    products (K,): of the gradient with them; scale: the dual is solved for the gradient divided by it.
    """
    b = products / lengths / scale
    lowest = margin * lengths / scale
    w = _solve_dual(A, b + A @ lowest)  # what v has above the margin, in these units
    return margin + w * scale / lengths


def _measured(g: Tensor, M: Tensor) -> tuple[ndarray, float]:
    """Products of g (P,) with the rows of M (K, P), and the norm of g."""
    products = torch.zeros(1 + len(M), dtype=torch.float64, device=g.device)
    for _, block in in_double(g[None], M):
        products.addmv_(block, block[0])
    square, *others = products.tolist()
    return np.array(others), math.sqrt(square)


def _solve_dual(A: ndarray, b: ndarray) -> ndarray:
    """w (K,) >= 0 that minimises 1/2 w'Aw + b'w, for a Gram matrix A (K, K) of unit vectors, by an active-set method.

    With A = F'F it is the non-negative least squares problem |F w - d| where F'd = -b (Lawson and Hanson 1974).
    """
    from scipy.optimize import nnls  # here, as it is slow to import

    eigenvalues, Q = np.linalg.eigh(A)
    root = np.sqrt(np.maximum(eigenvalues, EPS))
    F = root[:, None] * Q.T
    d = -(Q.T @ b) / root
    w, _ = nnls(F, d)
    return w


@torch.no_grad()
def agem(g: Tensor, M: Tensor) -> tuple[Tensor, Tensor]:
    """The projected gradient g~ = M'v + g (P,) of A-GEM, and v (K,), float64 on the CPU. g (P,), M (K, P).

    g_ref is the mean of the memories' gradients. Where g . g_ref < 0 and |g_ref|^2 is not 0 in float64,
    g~ = g - (g . g_ref / |g_ref|^2) g_ref; else g~ = g. Raises ValueError for other shapes or a gradient that is not
    finite.
    """
    _check_gradient(g, M)
    K = len(M)
    if not K:
        return g, torch.zeros(0, dtype=torch.float64)
    reference = M.mean(0, keepdim=True)  # g_ref (1, P)
    gram = gram_matrix(g[None], reference).cpu()
    check_finite(gram, ["g", "the mean of M"])
    product = gram[0, 1]  # g . g_ref
    square = gram[1, 1]  # |g_ref|^2
    if product >= 0 or square == 0:  # so small that its square is 0
        return g, torch.zeros(K, dtype=torch.float64)
    factor = -product / square
    projected = combine(np.array([1, factor]), g[None], reference)
    return projected, (factor / K).expand(K)


@torch.no_grad()
def broken_constraints(step: Tensor, M: Tensor) -> int:
    """The number of memories whose loss a step of the weights (P,) raises to first order; M (K, P): their gradients.

    Counted is step . m_k > 1e-4 |step| |m_k|: less may be the rounding of float32 weights. A step of nan raises all.
    """
    gram = gram_matrix(step[None], M).cpu().numpy()
    norms = np.sqrt(gram.diagonal())
    is_kept = gram[0, 1:] <= 1e-4 * norms[0] * norms[1:]  # False for nan
    return int((~is_kept).sum())
