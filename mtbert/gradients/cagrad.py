"""CAGrad: the update, near the mean gradient, that helps the task that it helps least (Liu et al. 2021, algorithm 1).

T tasks with gradients g_i, their mean g_0, the simplex W of weights w >= 0 that sum to 1.
"""

import math

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from mtbert.gradients.gram import checked_gram_matrix, combine


def cagrad_weights(gram: Tensor, generator: torch.Generator | None = None, *, c: float = 0.4) -> Tensor:
    """Coefficients (T,), float64, of T times CAGrad's update in the tasks' gradients, from their Gram matrix (T, T).

    The update is g_0 + sqrt(phi) / |g_w| g_w with phi = c^2 |g_0|^2 and g_w = 1/T sum_i w_i g_i, where w in W minimises
    F(w) = g_w . g_0 + sqrt(phi) |g_w|. It is g_0 where g_w is 0. T times that is the sum of the gradients at c = 0; the
    authors' code can also divide it by 1 + c^2, which is not done here. c, in [0, 1), is how far the update may be from
    g_0, 0.4 in their experiments with two and three tasks. Raises ValueError for another c.
    """
    if not 0 <= c < 1:
        raise ValueError(f"c is {c}; CAGrad needs 0 <= c < 1")
    T = len(gram)
    gram = gram.detach().to("cpu", torch.float64)
    A = gram.numpy() / T**2  # Gram matrix of the g_i / T
    scale = A.trace()
    if c == 0 or scale == 0:
        return torch.ones(T, dtype=torch.float64)
    A = A / scale
    root_phi = c * math.sqrt(max(A.sum(), 0))  # c |g_0|
    w = _minimise(A, root_phi)
    norm = math.sqrt(max(w @ A @ w, 0))  # |g_w|
    factor = root_phi / norm if norm > 1e-8 else 0.0
    return torch.from_numpy(1 + factor * w)


@torch.no_grad()
def cagrad(G: Tensor, *, c: float = 0.4) -> Tensor:
    """Update (P,) from the tasks' gradients G (T, P): T times CAGrad's, so that c = 0 gives their sum.

    Nothing in it is random. Raises ValueError for another shape, another c than in [0, 1), or a gradient that is not
    finite.
    """
    weights = cagrad_weights(checked_gram_matrix(G), c=c)
    return combine(weights, G)


def _minimise(A: ndarray, root_phi: float) -> ndarray:
    """w (T,) in W that minimises the convex F(w) = w'A 1 + sqrt(phi) sqrt(w'A w), A the Gram matrix of the g_i / T."""
    from scipy.optimize import minimize  # here, as it is slow to import

    T = len(A)
    products = A.sum(1)  # of the g_i / T with g_0

    def value_and_slope(w: ndarray) -> tuple[float, ndarray]:
        norm = math.sqrt(max(w @ A @ w, 1e-24))  # |g_w|
        value = w @ products + root_phi * norm
        slope = products + root_phi * (A @ w) / norm
        return value, slope

    found = minimize(
        value_and_slope,
        x0=np.full(T, 1 / T),
        jac=True,  # the slope comes with the value
        bounds=[(0, 1)] * T,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-14, "maxiter": 200},
    )
    w = np.clip(found.x, 0, 1)
    return w / w.sum()
