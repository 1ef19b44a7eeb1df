"""What to do with the gradients of several tasks: PCGrad, GEM, A-GEM, cosines between tasks.

Sources: Yu et al. 2020 (PCGrad, algorithm 1), Lopez-Paz and Ranzato 2017 (GEM, equations 8 to 11), Chaudhry et al. 2019
(A-GEM, equation 11), papers 002 and 003.

Every method here is a linear combination of gradients whose coefficients follow from their Gram matrix. Products and
combinations are computed in float64 where the gradients lie, a chunk of columns at a time; only the Gram matrix, a few
numbers, comes to the CPU. T tasks, K memories, P parameters; any float dtype, products of norms up to 1e300.
"""

import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

log = logging.getLogger(__name__)

CHUNK = {"cpu": 2**16}  # columns; a few rows of them in float64 stay near the cache
DEVICE_CHUNK = 2**20  # columns, on any other device

SLIM = 8  # rows, up to which a matrix product on a CPU takes longer than a product for each row

EPS = 1e-13  # smallest eigenvalue in GEM's dual, of MM' with rows of length 1: below are angles of 3e-7, rounding
FEASIBLE = 5e-7  # g~ . m_k >= -FEASIBLE |g~| |m_k| is accepted as 0; a caller may rely on 1e-6
CANCELLED = 1e-4  # a g~ shorter than this fraction of its summands is measured; else its Gram matrix tells enough
ROUNDING = 1e-13  # a g~ shorter than this fraction of its summands is their rounding error, so 0
ATTEMPTS = 4  # a g~ that violates a constraint is projected again, this often in all
SWEEPS = 2_000  # of the coordinate descent that GEM falls back to
WARN_EVERY = 100  # fallbacks

# --- products and combinations -----------------------------------------------------------------------------------


def _in_double(*parts: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Stacked parts (R_i, P) in float64, chunk by chunk: columns and their (R, c), in a buffer used again."""
    rows, P, device = sum(len(part) for part in parts), parts[0].shape[1], parts[0].device
    chunk = CHUNK.get(device.type, DEVICE_CHUNK)
    buffer = torch.empty(rows, min(chunk, P), dtype=torch.float64, device=device)
    for start in range(0, P, chunk):
        columns = slice(start, min(start + chunk, P))
        block, row = buffer[:, : columns.stop - start], 0
        for part in parts:
            block[row : row + len(part)] = part[:, columns]
            row += len(part)
        yield columns, block


def _gram(*parts: Tensor) -> Tensor:
    """Gram matrix (R, R) of the rows of stacked parts (R_i, P), float64, on their device."""
    rows = sum(len(part) for part in parts)
    gram = torch.zeros(rows, rows, dtype=torch.float64, device=parts[0].device)
    for _, block in _in_double(*parts):
        if rows > SLIM:
            gram.addmm_(block, block.T)
            continue
        for i, row in enumerate(block):
            gram[i, i:].addmv_(block[i:], row)
    return gram.triu() + gram.triu(1).T


def _combine(weights: np.ndarray, *parts: Tensor) -> Tensor:
    """Sum of the rows of stacked parts (R_i, P), weighted (R,): (P,) in their dtype."""
    coefficients = torch.as_tensor(weights, dtype=torch.float64, device=parts[0].device)
    total = torch.empty_like(parts[0][0])
    for columns, block in _in_double(*parts):
        total[columns] = coefficients @ block
    return total


def _products(g: Tensor, M: Tensor) -> tuple[np.ndarray, float]:
    """Products of g (P,) with the rows of M (K, P), and the norm of g."""
    products = torch.zeros(1 + len(M), dtype=torch.float64, device=g.device)
    for _, block in _in_double(g[None], M):
        products.addmv_(block, block[0])
    square, *others = products.tolist()
    return np.array(others), math.sqrt(square)


def _check_matrix(name: str, matrix: Tensor) -> None:
    if matrix.ndim != 2 or not matrix.is_floating_point():
        raise ValueError(f"{name} is one gradient a row, (rows, P), of floats; got {_describe(matrix)}")


def _check_gradient(g: Tensor, M: Tensor) -> None:
    _check_matrix("M", M)
    if g.ndim != 1 or g.dtype != M.dtype or g.device != M.device or len(g) != M.shape[1]:
        raise ValueError(f"g is (P,) where M is (K, P), like it; got g {_describe(g)}, M {_describe(M)}")


def _describe(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}"


def _check_finite(gram: Tensor, names: Sequence[str]) -> None:
    """A row with an infinity or nan has a norm that is one, and float64 squares every finite float32."""
    bad = [name for name, square in zip(names, gram.diagonal().tolist(), strict=True) if not math.isfinite(square)]
    if bad:
        raise ValueError(f"gradients must be finite, with norms below 1e150; not so: {', '.join(bad)}")


# --- PCGrad --------------------------------------------------------------------------------------------------------


def pcgrad_weights(gram: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Coefficients (T,), float64, of PCGrad's update in the tasks' gradients, from their Gram matrix (T, T).

    Task after task, the order of the others is one `torch.randperm(T - 1, generator=generator)`. A zero gradient
    changes no other. Raises ValueError for another shape or a gradient that is not finite.
    """
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or not len(gram):
        raise ValueError(f"a Gram matrix is (T, T), T at least 1; got {tuple(gram.shape)}")
    T = len(gram)
    gram = gram.detach().to("cpu", torch.float64)
    _check_finite(gram, [f"row {i}" for i in range(T)])
    gram = gram.numpy()
    total = np.zeros(T)
    for i in range(T):
        others = [j for j in range(T) if j != i]
        c = np.zeros(T)  # g_i^PC = sum_k c_k g_k
        c[i] = 1
        for place in torch.randperm(T - 1, generator=generator).tolist():
            j = others[place]
            product = c @ gram[:, j]  # g_i^PC . g_j
            if product < 0 and gram[j, j] > 0:
                c[j] -= product / gram[j, j]
        total += c
    return torch.from_numpy(total)


@torch.no_grad()
def pcgrad(G: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Update (P,) from the tasks' gradients G (T, P), each freed of its conflicts with the others, then summed.

    For each task i, over the other tasks j in random order: if g_i . g_j < 0, g_i -= (g_i . g_j / |g_j|^2) g_j with
    the original g_j. The order comes from `generator`, on the CPU. Raises ValueError for another shape or a gradient
    that is not finite.
    """
    _check_matrix("G", G)
    return _combine(pcgrad_weights(_gram(G), generator).numpy(), G)


# --- GEM and A-GEM -------------------------------------------------------------------------------------------------


def gem(g: Tensor, M: Tensor, margin: float = 0.0, fallbacks: dict[str, int] | None = None) -> tuple[Tensor, Tensor]:
    """The projected gradient g~ = M'v + g (P,), and v (K,), float64 on the CPU: 0 where a memory took no part.

    g (P,) is the step's gradient, M (K, P) one gradient for each memory. v minimises 1/2 v'(MM' + eps I)v + (Mg)'v
    subject to v >= margin, so that g~ . m_k >= 0 for every k, which is verified to 1e-6 |g~| |m_k|, rounding
    included. With margin 0, g~ is the vector closest to g that holds the constraints, and g itself where g does; a
    margin acts in every step, also where the authors' code, which asks for a violation first, would not. eps is
    relative to the gradients: only eigenvalues of MM', its rows scaled to length 1, below 1e-13 are lifted. Memories
    that are zero are left out.

    Where the solver fails, or what it gave, coordinate descent takes over; where that fails too, g~ is 0, which holds
    every constraint, and v is nan. Both are logged and, under "sweeps" and "zero", counted in `fallbacks`, which the
    caller keeps. Raises ValueError for other shapes, a negative margin or a gradient that is not finite.
    """
    _check_gradient(g, M)
    if not 0 <= margin < math.inf:
        raise ValueError(f"margin is {margin}; it must be finite and at least 0")
    fallbacks = {} if fallbacks is None else fallbacks
    with torch.no_grad():
        gram = _gram(g[None], M).cpu()
        _check_finite(gram, ["g", *(f"row {k} of M" for k in range(len(M)))])
        gram = gram.numpy()
        if not gram.diagonal()[1:].any() or (margin == 0 and (gram[0, 1:] >= 0).all()):
            return g, torch.zeros(len(M), dtype=torch.float64)
        for solve, successor in ((_solve_dual, "sweeps"), (_sweep_dual, "zero")):
            found = _project(g, M, gram, margin, solve)
            if found is not None:
                return found
            fallbacks[successor] = count = fallbacks.get(successor, 0) + 1
            if count % WARN_EVERY == 1:
                log.warning("GEM: the dual was not solved; going on with %s, count %d", successor, count)
        return torch.zeros_like(g), torch.full((len(M),), math.nan, dtype=torch.float64)


def gem_project(g: Tensor, M: Tensor, margin: float = 0.0) -> Tensor:
    """g~ (P,) alone of `gem`."""
    return gem(g, M, margin)[0]


def gem_weights(g: Tensor, M: Tensor, margin: float = 0.0) -> Tensor:
    """v (K,) alone of `gem`."""
    return gem(g, M, margin)[1]


def _project(g: Tensor, M: Tensor, gram: np.ndarray, margin: float, solve: Callable) -> tuple[Tensor, Tensor] | None:
    """g~ and v, the dual solved by `solve`; None where that fails or g~ violates a constraint.

    gram (K + 1, K + 1) is that of g and the rows of M.
    """
    norms = np.sqrt(gram.diagonal())
    kept = np.flatnonzero(norms[1:])
    lengths = norms[1:][kept]
    A = gram[1:, 1:][np.ix_(kept, kept)] / lengths[:, None] / lengths  # of m_k / |m_k|
    scale = max(norms[0], margin * lengths.max())
    b = gram[0, 1:][kept] / lengths / scale
    projected, v = g, np.zeros(len(M))
    dtype = torch.finfo(g.dtype)
    for _ in range(ATTEMPTS):
        try:
            w = solve(A, b + A @ (margin * lengths / scale))  # of u = v - margin
        except (RuntimeError, np.linalg.LinAlgError):
            return None
        added = np.zeros(len(M))
        added[kept] = margin + w * scale / lengths
        v += added
        projected = _combine(np.append(1, added), projected[None], M)
        weights, summands = np.append(1, v), norms[0] + v @ norms[1:]
        with_all = gram @ weights  # products of g~ with g and the memories
        products, norm = with_all[1:], math.sqrt(max(weights @ with_all, 0))
        if dtype.eps > FEASIBLE or norm < max(CANCELLED * summands, dtype.tiny * len(g)):  # rounding could matter
            products, norm = _products(projected, M)
        if norm <= ROUNDING * summands:
            return torch.zeros_like(g), torch.from_numpy(v)
        if (products >= -FEASIBLE * norm * norms[1:]).all():
            return projected, torch.from_numpy(v)
        if not math.isfinite(norm):
            return None
        # g~ is far shorter than g, and what was rounding error beside g is not beside g~: project g~ as well
        b, margin, scale = products[kept] / lengths / norm, 0.0, norm
    return None


def _solve_dual(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """w (K,) >= 0 that minimises 1/2 w'Aw + b'w, for a Gram matrix A (K, K) of unit vectors, by an active-set method.

    With A = F'F it is the non-negative least squares problem |F w - d| where F'd = -b (Lawson and Hanson 1974).
    """
    from scipy.optimize import nnls  # here, as it is slow to import

    eigenvalues, Q = np.linalg.eigh(A)
    root = np.sqrt(np.maximum(eigenvalues, EPS))
    return nnls(root[:, None] * Q.T, -(Q.T @ b) / root)[0]


def _sweep_dual(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The same by coordinate descent (Hildreth 1957), which cannot fail but may be slow: nearly parallel vectors."""
    w = np.zeros(len(b))
    for _ in range(SWEEPS):
        before = w.copy()
        for k in range(len(b)):
            w[k] = max(0.0, w[k] - (A[k] @ w + b[k]) / A[k, k])
        if np.abs(w - before).max() <= 1e-15 * np.abs(w).max():
            break
    return w


@torch.no_grad()
def agem(g: Tensor, M: Tensor) -> tuple[Tensor, bool]:
    """The projected gradient g~ (P,) of A-GEM, and whether g had to be projected. g (P,), M (K, P).

    Where g . g_ref < 0, g~ = g - (g . g_ref / |g_ref|^2) g_ref, g_ref the mean of the memories' gradients; else g.
    Raises ValueError for other shapes or a gradient that is not finite.
    """
    _check_gradient(g, M)
    if not len(M):
        return g, False
    reference = M.mean(0, keepdim=True)
    gram = _gram(g[None], reference).cpu()
    _check_finite(gram, ["g", "the mean of M"])
    if not gram[0, 1] < 0:
        return g, False
    return _combine(np.array([1, -gram[0, 1] / gram[1, 1]]), g[None], reference), True


def agem_project(g: Tensor, M: Tensor) -> Tensor:
    """g~ (P,) alone of `agem`."""
    return agem(g, M)[0]


@torch.no_grad()
def broken_constraints(step: Tensor, M: Tensor) -> int:
    """Of how many memories a step of the weights (P,) raises the loss to first order, M (K, P) their gradients.

    Counted is step . m_k > 1e-4 |step| |m_k|: less may be the rounding of float32 weights.
    """
    gram = _gram(step[None], M).cpu().numpy()
    norms = np.sqrt(gram.diagonal())
    return int((gram[0, 1:] > 1e-4 * norms[0] * norms[1:]).sum())


# --- gradients of a model as vectors -------------------------------------------------------------------------------


class FlatGradients:
    """The gradients of named parameters as one vector (P,), and back. `spans`: name -> its place in the vector.

    Raises ValueError for a parameter that has two names.
    """

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        if len({id(parameter) for parameter in parameters.values()}) < len(parameters):
            raise ValueError("a parameter stands under two names; its gradient would count twice")
        self.parameters = dict(parameters)
        ends = list(itertools.accumulate((parameter.numel() for parameter in parameters.values()), initial=0))
        self.spans = {name: slice(*ends[i : i + 2]) for i, name in enumerate(self.parameters)}
        self.size = ends[-1]

    def empty(self, rows: int) -> Tensor:
        """Room for the gradients of several tasks, float32 (rows, P), on the parameters' device."""
        device = next((parameter.device for parameter in self.parameters.values()), None)
        return torch.empty(rows, self.size, dtype=torch.float32, device=device)

    def values(self) -> Tensor:
        """The parameters themselves as one new vector (P,), float32."""
        flat = self.empty(1)[0]
        for name, parameter in self.parameters.items():
            flat[self.spans[name]].view_as(parameter).copy_(parameter.detach())
        return flat

    def take(self, flat: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Move every `.grad` into a float32 vector (P,), zeros where there is none; every `.grad` is None after.

        flat: where to, by default a new vector. Returns it and `used`, bool, on the CPU, a number a parameter: whether
        it had a gradient.
        """
        flat = self.empty(1)[0] if flat is None else flat
        used = torch.zeros(len(self.parameters), dtype=torch.bool)
        for i, (name, parameter) in enumerate(self.parameters.items()):
            place = flat[self.spans[name]]
            if parameter.grad is None:
                place.zero_()
                continue
            place.view_as(parameter).copy_(parameter.grad)
            used[i], parameter.grad = True, None
        return flat, used

    def put(self, flat: Tensor, used: Tensor) -> None:
        """Make `.grad` of the used parameters a view of flat (P,), and None elsewhere: an optimizer then leaves such a
        parameter alone, its decay and moments included, where a gradient of zeros would not. Raises ValueError for
        another shape.
        """
        if flat.shape != (self.size,) or used.shape != (len(self.parameters),):
            shapes = f"({self.size},) and ({len(self.parameters)},)"
            raise ValueError(f"flat and used are {shapes}; got {tuple(flat.shape)} and {tuple(used.shape)}")
        for (name, parameter), is_used in zip(self.parameters.items(), used.tolist(), strict=True):
            parameter.grad = flat[self.spans[name]].view_as(parameter).to(parameter.dtype) if is_used else None


@torch.no_grad()
def layer_cosines(G: Tensor, spans: dict[str, list[slice]], tasks: Sequence[str]) -> list[dict]:
    """Cosine between the gradients G (T, P) of every two tasks, layer by layer: rows of layer, first, second, cosine.

    spans: layer -> its places in the vector. nan where one of the two is zero or not finite there. Raises ValueError
    unless there is a task for each row.
    """
    _check_matrix("G", G)
    if len(tasks) != len(G):
        raise ValueError(f"G has {len(G)} rows for {len(tasks)} tasks: {', '.join(tasks)}")
    none = torch.zeros(len(G), len(G), dtype=torch.float64, device=G.device)
    rows = []
    for layer, places in spans.items():
        gram = sum((_gram(G[:, span]) for span in places), none).cpu().numpy()
        norms = np.sqrt(gram.diagonal())
        for i, j in itertools.combinations(range(len(G)), 2):
            known = 0 < norms[i] < math.inf and 0 < norms[j] < math.inf
            cosine = float(np.clip(gram[i, j] / norms[i] / norms[j], -1, 1)) if known else math.nan
            rows.append({"layer": layer, "first": tasks[i], "second": tasks[j], "cosine": cosine})
    return rows
