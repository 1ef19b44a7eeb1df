"""PCGrad, CAGrad, GEM and A-GEM against their definitions; gradients as vectors."""

import importlib
import itertools
import logging
import math
import re

import numpy as np
import pytest
import torch
from torch import nn

from mtbert.gradients import gram
from mtbert.gradients.cagrad import cagrad, cagrad_weights
from mtbert.gradients.gem import agem, broken_constraints, gem, gem_project
from mtbert.gradients.gram import FlatGradients
from mtbert.gradients.pcgrad import pcgrad, pcgrad_weights
from mtbert.optim import AdamW

gem_module = importlib.import_module("mtbert.gradients.gem")  # the room has a function of this name


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- PCGrad ----------------------------------------------------------------------------------------------------------


def algorithm_1(G: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Yu et al. 2020 as printed, vector by vector in float64."""
    G = G.double()
    result = torch.zeros_like(G[0])
    for i in range(len(G)):
        others = [j for j in range(len(G)) if j != i]
        g = G[i].clone()
        for j in [others[k] for k in torch.randperm(len(others), generator=generator).tolist()]:
            product = g @ G[j]
            if product < 0:
                g -= product / (G[j] @ G[j]) * G[j]
        result += g
    return result


def tasks_case(seed: int, dtype=torch.float64) -> torch.Tensor:
    """G (T, P), T 2 to 6, mostly in conflict, of mixed lengths; every third has a zero row."""
    generator = seeded(seed)
    T, P = 2 + seed % 5, 3 + seed % 11
    G = torch.randn(T, P, generator=generator, dtype=dtype)
    G -= 0.5 * G.mean(0)
    G *= 10 ** torch.empty(T, 1, dtype=dtype).uniform_(-2, 2, generator=generator)
    if seed % 3 == 0:
        G[seed % T] = 0
    return G


@pytest.mark.parametrize("dtype, rtol", [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_pcgrad_is_algorithm_1(dtype, rtol):
    changed = 0
    for seed in range(200):
        G = tasks_case(seed, dtype)
        expected = algorithm_1(G, seeded(seed))
        result = pcgrad(G, seeded(seed))
        assert result.dtype == dtype
        assert (result - expected).norm() <= rtol * G.norm(), seed
        changed += bool((result.double() - G.double().sum(0)).norm() > 1e-3 * G.norm())
    assert changed > 150  # the cases are ones in which PCGrad does something


def test_two_tasks_by_hand():
    G = torch.tensor([[1.0, 0.0], [-1.0, 1.0]])
    # g_1 . g_2 = -1: g_1 + g_2 / 2 = (1/2, 1/2); g_2 + g_1 = (0, 1)
    torch.testing.assert_close(pcgrad(G), torch.tensor([0.5, 1.5]))
    assert pcgrad_weights(G @ G.T).tolist() == [2.0, 1.5]


def test_pcgrad_without_conflict_is_the_sum():
    G = torch.rand(4, 20, generator=seeded(0))
    assert torch.equal(pcgrad(G), G.double().sum(0).float())
    assert torch.equal(pcgrad(G[:1]), G[0])


@pytest.mark.parametrize(
    "G",
    [
        tasks_case(3, torch.float32) * 1e-25,
        tasks_case(3, torch.float32) * 1e25,
        torch.tensor([[1e25, 1e25], [-2e-25, 1e-25]]),
    ],
    ids=["tiny", "huge", "mixed"],
)
def test_pcgrad_of_tiny_and_huge_float32(G):
    """Squares of these leave the range of float32; of the mixed ones the coefficient itself, 1e50, does."""
    expected = algorithm_1(G, seeded(0))
    assert (pcgrad(G, seeded(0)) - expected).norm() <= 1e-6 * expected.norm()


def test_pcgrad_of_a_gradient_whose_square_is_zero():
    G = torch.tensor([[1.0, 0.0], [-1e-170, 0.0]], dtype=torch.float64)
    assert pcgrad(G).tolist() == [1.0, 0.0]


def test_pcgrad_over_several_chunks(monkeypatch):
    monkeypatch.setattr(gram, "CPU_CHUNK", 4)
    for seed in range(20):
        G = tasks_case(seed)
        torch.testing.assert_close(pcgrad(G, seeded(1)), algorithm_1(G, seeded(1)), rtol=1e-9, atol=1e-9)


def test_the_weights_of_pcgrad_read_nothing_where_the_gradients_are():
    """To read a number of a GPU waits for it; a tensor without content has none to read."""
    G = torch.empty(3, 50, device="meta")
    weights = pcgrad_weights(gram.gram_matrix(G), seeded(0))
    assert gram.combine(weights, G).shape == (50,)


def test_pcgrad_errors():
    with pytest.raises(ValueError, match="row 1"):
        pcgrad(torch.tensor([[1.0, 2.0], [math.nan, 0.0], [0.0, 1.0]]))
    with pytest.raises(ValueError, match="row 0, row 2"):
        pcgrad(torch.tensor([[-math.inf, 2.0], [1.0, 0.0], [math.inf, 1.0]]))


# --- CAGrad ----------------------------------------------------------------------------------------------------------


def simplex(T: int, parts: int) -> torch.Tensor:
    """All weights (N, T) that are multiples of 1 / parts and sum to 1, for T of 2 or 3."""
    rows = [row for row in itertools.product(range(parts + 1), repeat=T - 1) if sum(row) <= parts]
    return torch.tensor([[*row, parts - sum(row)] for row in rows], dtype=torch.float64) / parts


@pytest.mark.parametrize("T, parts", [(2, 4000), (3, 150)])
def test_cagrad_is_algorithm_1(T, parts):
    """Liu et al. 2021 as printed, w by brute force; our update is T times theirs."""
    W = simplex(T, parts)
    for seed in range(40):
        generator = seeded(seed)
        G = torch.randn(T, 6, generator=generator, dtype=torch.float64)
        G = (G - 0.6 * G.mean(0)) * 10 ** torch.randn(T, 1, generator=generator, dtype=torch.float64)
        c = 0.1 + 0.8 * torch.rand((), generator=generator).item()
        g_0 = G.mean(0)
        root_phi = c * g_0.norm()
        g_w = W @ G / T  # (N, P)
        F = g_w @ g_0 + root_phi * g_w.norm(dim=1)
        best = g_w[F.argmin()]
        update = cagrad_weights(G @ G.T, c=c) @ G / T
        scale = g_0.norm() * G.norm()
        assert (update - g_0).norm() <= root_phi * (1 + 1e-9)
        assert abs((G @ update).min() / T - F.min()) <= 5e-4 * scale  # the largest least improvement
        assert (G @ update).min() >= (G @ (g_0 + root_phi / best.norm() * best)).min() - 1e-6 * scale


def test_cagrad_at_c_0_is_the_sum_and_helps_the_task_that_it_helps_least():
    G = torch.tensor([[1.0, 0.0], [-0.6, 0.3]])
    torch.testing.assert_close(cagrad(G, c=0.0), G.sum(0))
    worst = (G @ cagrad(G)).min()
    assert worst > (G @ G.sum(0)).min()


@pytest.mark.parametrize("G", [[[1.0, 0.0], [-1.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]])
def test_cagrad_without_a_direction_is_the_sum(G):
    G = torch.tensor(G, dtype=torch.float64)
    assert cagrad_weights(G @ G.T).tolist() == [1, 1]
    assert cagrad_weights(torch.eye(3, dtype=torch.float64), c=0).tolist() == [1, 1, 1]


def test_cagrad_refuses_what_it_cannot_use():
    with pytest.raises(ValueError, match="c is 1; CAGrad needs 0 <= c < 1"):
        cagrad_weights(torch.eye(2), c=1)
    with pytest.raises(ValueError, match="must be finite"):
        cagrad(torch.tensor([[1.0, math.nan], [0.0, 1.0]]))


# --- GEM -------------------------------------------------------------------------------------------------------------


def closest_in_cone(g: np.ndarray, M: np.ndarray) -> np.ndarray:
    """The x (P,) closest to g among those with M x >= 0, by trying every set of constraints as the binding one.

    The closest point is the projection of g onto the null space of its binding rows; every other candidate that holds
    the constraints is at least as far.
    """
    U = [m / np.linalg.norm(m) for m in M if m.any()]
    best = np.zeros_like(g)
    for size in range(len(U) + 1):
        for chosen in itertools.combinations(U, size):
            x = g
            if chosen:
                _, singular, V = np.linalg.svd(np.array(chosen), full_matrices=False)
                V = V[singular > 1e-10 * singular[0]]
                x = x - V.T @ (V @ x)
                x = x - V.T @ (V @ x)
            holds = all(u @ x >= -1e-10 * np.linalg.norm(x) - 1e-14 * np.linalg.norm(g) for u in U)
            if holds and np.linalg.norm(x - g) < np.linalg.norm(best - g):
                best = x
    return best


def memories_case(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """g (P,), M (K, P): K 1 to 6, P 3 to 50; parallel, opposite, zero, tiny, huge and mixed rows take turns."""
    random = np.random.default_rng(seed)
    K, P = random.integers(1, 7), random.integers(3, 51)
    g, M = random.normal(size=P), random.normal(size=(K, P))
    if random.random() < 0.7:
        M -= random.uniform(0, 1) * g  # more of them in conflict
    kinds = random.choice(["parallel", "opposite", "zero", "same", "against g"], size=2)
    for kind in kinds if K > 1 and seed % 2 else []:
        i, j = random.choice(K, size=2, replace=False)
        if kind == "parallel":  # cosine 1 - 1e-7
            across = random.normal(size=P)
            across -= across @ M[i] / max(M[i] @ M[i], 1e-300) * M[i]
            M[j] = M[i] + np.sqrt(2e-7) * np.linalg.norm(M[i]) * across / np.linalg.norm(across)
        else:
            M[j] = {"opposite": -M[i], "zero": 0 * M[i], "same": M[i], "against g": -g}[kind]
    if seed % 3 == 1:
        M *= 2.0 ** random.integers(-40, 41)  # about 1e-12 to 1e12; opposite rows stay exactly opposite in float32
        g *= 2.0 ** random.integers(-40, 41)
    if seed % 3 == 2:
        M *= 2.0 ** random.integers(-40, 41, size=(K, 1))
    return g, M


def worst_violation(x: np.ndarray, M: np.ndarray) -> float:
    """max_k -x . m_k / |x| / |m_k|; 0 where x or every m_k is 0."""
    norms = np.linalg.norm(M, axis=1) * np.linalg.norm(x)
    return max([0.0, *(-(M @ x)[norms > 0] / norms[norms > 0])])


@pytest.mark.parametrize("dtype, rtol", [(torch.float64, 1e-7), (torch.float32, 2e-6)])
def test_gem_is_the_closest_vector_that_holds_the_constraints(dtype, rtol):
    conflicts = 0
    for seed in range(300):
        g, M = (torch.from_numpy(part).to(dtype) for part in memories_case(seed))
        x, v = gem(g, M)
        exact_g, exact_M = g.double().numpy(), M.double().numpy()
        assert x.dtype == dtype
        assert worst_violation(x.double().numpy(), exact_M) <= 1e-6, seed
        expected = closest_in_cone(exact_g, exact_M)
        assert np.linalg.norm(x.double().numpy() - expected) <= rtol * np.linalg.norm(exact_g), seed
        assert (v >= 0).all()
        assert np.linalg.norm(exact_g + v.numpy() @ exact_M - expected) <= rtol * np.linalg.norm(exact_g), seed
        conflicts += x is not g
    assert conflicts > 180


@pytest.mark.parametrize("margin", [0.01, 0.5, 3.0])
def test_gem_with_a_margin(margin):
    """v = u + margin, u >= 0: the vector closest to g + margin * sum_k m_k that holds the constraints."""
    acting = 0
    for seed in range(0, 300, 3):  # without the scales: v >= margin has the unit of v
        g, M = memories_case(seed)
        x, v = gem(torch.from_numpy(g), torch.from_numpy(M), margin=margin)
        size = np.linalg.norm(g) + margin * np.linalg.norm(M, axis=1).sum()
        assert np.linalg.norm(x.numpy() - closest_in_cone(g + margin * M.sum(0), M)) <= 1e-7 * size, seed
        assert worst_violation(x.numpy(), M) <= 1e-6
        present = M.any(axis=1)
        assert (v.numpy()[present] >= margin).all() and not v.numpy()[~present].any()
        assert np.linalg.norm(g + v.numpy() @ M - x.numpy()) <= 1e-9 * (size + v.numpy() @ np.linalg.norm(M, axis=1))
        acting += np.linalg.norm(x.numpy() - closest_in_cone(g, M)) > 1e-3 * np.linalg.norm(g)
    assert acting > 50


def test_margin_has_the_unit_of_v():
    """With one memory, v = max(margin, -g . m / |m|^2), whatever the length of m."""
    for length in (1e-3, 1.0, 1e3):
        g, M = torch.tensor([-2.0, 1.0]).double(), torch.tensor([[length, 0.0]]).double()
        for margin in (0.5 * 2 / length, 3 * 2 / length):
            v = max(margin, 2 / length)
            torch.testing.assert_close(gem(g, M, margin=margin)[1].tolist(), [v])
            torch.testing.assert_close(gem_project(g, M, margin), g + v * M[0])


def test_gem_leaves_a_gradient_without_conflict():
    g = torch.tensor([1.0, 2.0, 0.0])
    M = torch.tensor([[1.0, 0.0, 5.0], [0.0, 0.0, 0.0], [-2.0, 1.0, 0.0]])
    assert gem_project(g, M) is g and not gem(g, M)[1].any()
    assert gem_project(g, M[:0]) is g
    assert gem_project(g, M[1:2], margin=0.5) is g  # a zero memory takes no part
    assert torch.equal(gem_project(0 * g, M), 0 * g)
    assert gem_project(g, M, margin=0.5) is not g


def test_gem_weights_name_the_memories_that_took_part():
    g = torch.tensor([-1.0, -1.0, 1.0])
    M = torch.tensor([[0.0, 0.0, 2.0], [4.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.5, 0.0]])
    torch.testing.assert_close(gem(g, M)[1], torch.tensor([0.0, 0.25, 0.0, 2.0]).double())
    torch.testing.assert_close(gem_project(g, M), torch.tensor([0.0, 0.0, 1.0]))


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_gem_in_many_dimensions(scale, monkeypatch):
    """Float32, several chunks, memories nearly parallel and nearly opposite to g: g~ is far shorter than g."""
    monkeypatch.setattr(gram, "CPU_CHUNK", 2**12)
    random = np.random.default_rng(1)
    base, P = random.normal(size=50_001), 50_001
    for angle in (1e-1, 1e-3, 1e-5, 1e-7):
        M = scale * (base + angle * random.normal(size=(3, P)))
        g = torch.tensor(-base + angle * random.normal(size=P), dtype=torch.float32)
        M = torch.tensor(M, dtype=torch.float32)
        x, _ = gem(g, M)
        assert worst_violation(x.double().numpy(), M.double().numpy()) <= 1e-6
        expected = closest_in_cone(g.double().numpy(), M.double().numpy())
        error = np.linalg.norm(x.double().numpy() - expected)
        assert error <= (1e-4 * np.linalg.norm(expected) if angle > 1e-6 else 1e-7 * g.norm())


def test_gem_of_memories_opposite_but_for_rounding():
    """They leave a wedge 1e-8 wide, whose exact projection is far off; holding it to 1e-6 costs no more than that."""
    for seed in range(100):
        random = np.random.default_rng(seed)
        g, m = random.normal(size=(2, 20))
        M = np.array([m, -m / 3, random.normal(size=20)]).astype(np.float32)
        x, _ = gem(torch.from_numpy(g).float(), torch.from_numpy(M))
        exact_g, exact_M = g.astype(np.float32).astype(float), M.astype(float)
        assert worst_violation(x.double().numpy(), exact_M) <= 1e-6
        farthest = np.linalg.norm(closest_in_cone(exact_g, exact_M) - exact_g)
        assert np.linalg.norm(x.double().numpy() - exact_g) <= (1 + 1e-5) * farthest


def test_gem_with_nothing_allowed_is_zero():
    """Opposite memories along every axis: only 0 holds the constraints."""
    M = torch.cat([torch.eye(3), -torch.eye(3)]).double()
    assert torch.equal(gem_project(torch.tensor([1.0, -2.0, 3.0]).double(), M), torch.zeros(3).double())
    g = torch.tensor([1.0, -2.0, 3.0])
    assert torch.equal(gem_project(g, -1e-12 * g[None]), torch.zeros(3))


def test_gem_corrects_an_inexact_solution(monkeypatch):
    """A dual solved to 1e-5 violates constraints by more than 1e-6; projecting again does not."""
    solve = gem_module._solve_dual
    monkeypatch.setattr(gem_module, "_solve_dual", lambda A, b: (1 - 1e-5) * solve(A, b))
    for seed in range(100):
        g, M = memories_case(seed)
        x, v = gem(torch.from_numpy(g), torch.from_numpy(M))
        assert worst_violation(x.numpy(), M) <= 1e-6
        assert np.linalg.norm(g + v.numpy() @ M - x.numpy()) <= 1e-9 * np.linalg.norm(g)


def failing(A, b):
    raise RuntimeError("no solution")


@pytest.mark.parametrize("broken", [failing, lambda A, b: np.zeros(len(b))], ids=["fails", "is wrong"])
def test_gem_without_a_solution_is_zero(broken, monkeypatch, caplog):
    monkeypatch.setattr(gem_module, "_solve_dual", broken)
    x, v = gem(torch.tensor([-1.0, 1.0]), torch.tensor([[1.0, 0.0]]))
    assert torch.equal(x, torch.zeros(2)) and v.isnan().all()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_gem_errors():
    g, M = torch.zeros(3), torch.zeros(2, 3)
    for bad_g, bad_M in ((g[:2], M), (M, M), (g, g), (g.double(), M), (g.long(), M.long())):
        for project in (gem, agem):
            with pytest.raises(ValueError, match="got"):
                project(bad_g, bad_M)
    for margin in (-0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match="margin"):
            gem_project(g, M, margin)
    with pytest.raises(ValueError, match="row 1 of M"):
        gem_project(g, torch.tensor([[1.0, 0, 0], [math.inf, 0, 0]]))
    with pytest.raises(ValueError, match=r"not so: g$"):
        gem_project(g * math.nan, M)


# --- A-GEM -----------------------------------------------------------------------------------------------------------


def test_agem_by_hand():
    M = torch.tensor([[2.0, 0.0], [0.0, 2.0]])  # mean (1, 1)
    g = torch.tensor([-3.0, 1.0])
    projected, v = agem(g, M)
    torch.testing.assert_close(projected, torch.tensor([-2.0, 2.0]))
    torch.testing.assert_close(v, torch.tensor([0.5, 0.5]).double())
    tiny = torch.tensor([[1e-163, -1e-163]] * 2, dtype=torch.float64)  # their squares are 0
    zero = (g, 0 * M)
    for kept, memories in ((torch.tensor([-1.0, 3.0]), M), (torch.tensor([-1.0, 1.0]), M), zero, (g.double(), tiny)):
        projected, v = agem(kept, memories)
        assert torch.equal(projected, kept) and v.tolist() == [0, 0]


@pytest.mark.parametrize("project", [gem, agem])
def test_without_a_memory_nothing_is_projected(project):
    g = torch.tensor([-3.0, 1.0])
    projected, v = project(g, torch.empty(0, 2))
    assert torch.equal(projected, g) and v.shape == (0,)


@pytest.mark.parametrize("scale", [1e-25, 1.0, 1e25])
def test_agem_is_gem_with_the_mean_as_its_one_memory(scale):
    for seed in range(0, 60, 2):
        g, M = (torch.from_numpy(part).float() * scale for part in memories_case(3 * seed))
        torch.testing.assert_close(agem(g, M)[0], gem_project(g, M.mean(0)[None]), rtol=1e-6, atol=1e-7 * scale)


# --- gradients as vectors --------------------------------------------------------------------------------------------


def two_heads() -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict({"trunk": nn.Linear(4, 3), "a": nn.Linear(3, 2), "b": nn.Linear(3, 2, bias=False)})


def test_a_step_breaks_the_constraints_of_the_losses_that_it_raises():
    """A step along a memory's gradient raises its loss; less than 1e-4 of both lengths is rounding."""
    M = torch.tensor([[2.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, 0.0]])
    assert broken_constraints(torch.tensor([3.0, 0.0]), M) == 1
    assert broken_constraints(torch.tensor([3.0, 0.1]), M) == 2
    assert broken_constraints(torch.tensor([3.0, 0.0001]), M) == 1
    assert broken_constraints(torch.tensor([0.0, -1.0]), M) == 0
    assert broken_constraints(torch.zeros(2), M) == 0
    assert broken_constraints(torch.full((2,), math.nan), M) == 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gem_projects_in_half_precision(dtype):
    for seed in range(20):
        g, M = (torch.randn(*shape, generator=seeded(seed)).to(dtype) for shape in ((1000,), (2, 1000)))
        projected = gem_project(g, M).double()
        lengths = projected.norm() * M.double().norm(dim=1)
        assert lengths.all() and (M.double() @ projected >= -torch.finfo(dtype).eps * lengths).all()


@pytest.mark.parametrize("combined", [pcgrad, cagrad])
def test_what_is_no_matrix_of_gradients_is_named(combined):
    numbers = torch.zeros(2, 3, dtype=torch.int64)
    for G, got in (([[1.0]], "a list"), (torch.zeros(0, 4), "(0, 4)"), (torch.zeros(3), "(3,)"), (numbers, "(2, 3)")):
        with pytest.raises(ValueError, match=f"a tensor .* of floats; got {re.escape(got)}"):
            combined(G)


def test_flat_gradients_there_and_back():
    model = two_heads()
    flats = FlatGradients(dict(model.named_parameters()))
    model["a"](model["trunk"](torch.ones(5, 4))).square().sum().backward()
    before = {name: parameter.grad for name, parameter in model.named_parameters()}
    flat, again = flats.empty(2)
    used = flats.take(flat)
    assert flat.shape == (15 + 8 + 6,) and flat.dtype == torch.float32
    assert used.tolist() == [True, True, True, True, False]
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, span in flats.spans.items():
        part = flat[span]
        assert torch.equal(part, torch.zeros(6) if name == "b.weight" else before[name].flatten())
    flats.put(2 * flat, used)
    for name, parameter in model.named_parameters():
        assert parameter.grad is None if name == "b.weight" else torch.equal(parameter.grad, 2 * before[name])
    assert torch.equal(flats.take(again), used)
    assert torch.equal(again, 2 * flat)


def test_take_of_a_transposed_gradient():
    weight = nn.Parameter(torch.zeros(2, 3))
    weight.grad = torch.arange(6.0).view(3, 2).T
    flats = FlatGradients({"w": weight})
    [flat] = flats.empty(1)
    flats.take(flat)
    assert flat.tolist() == [0, 2, 4, 1, 3, 5]


def test_an_unused_parameter_is_left_alone():
    """Decay and moments included; with a gradient of zeros both would move it."""
    model = two_heads()
    flats = FlatGradients(dict(model.named_parameters()))
    optimizer = AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    (model["a"](model["trunk"](torch.ones(5, 4))).sum() + model["b"](torch.ones(1, 3)).sum()).backward()
    optimizer.step()  # b has moments now
    optimizer.zero_grad()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    model["a"](model["trunk"](torch.ones(5, 4))).sum().backward()
    [flat] = flats.empty(1)
    flats.put(flat, flats.take(flat))
    optimizer.step()
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed == set(before) - {"b.weight"}
    flats.put(torch.zeros(flats.size), torch.ones(5, dtype=torch.bool))
    optimizer.step()
    assert not torch.equal(model["b"].weight, before["b.weight"])
