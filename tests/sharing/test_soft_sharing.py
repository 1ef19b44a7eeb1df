"""Soft sharing: the closed-form gradients against autograd, and who is pulled."""

import pytest
import torch

from mtbert.sharing.soft_sharing import soft_gradient


def soft_penalty(copies: torch.Tensor, kind: str) -> torch.Tensor:
    """The penalty whose gradient is tested."""
    if kind == "l2":
        return (copies - copies.mean(0)).square().sum()
    return torch.linalg.svdvals(copies).sum()


@pytest.mark.parametrize("kind", ["l2", "trace"])
@pytest.mark.parametrize("shape", [(2, 7), (3, 40), (4, 4)])
def test_the_gradient_is_that_of_the_penalty(kind, shape):
    copies = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
    soft_penalty(copies, kind).backward()
    torch.testing.assert_close(soft_gradient(copies.detach(), kind), copies.grad, rtol=1e-6, atol=1e-8)


def test_gradients_by_hand():
    copies = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    torch.testing.assert_close(soft_gradient(copies, "l2"), torch.tensor([[3.0, -4.0], [-3.0, 4.0]]))
    torch.testing.assert_close(soft_gradient(copies, "trace"), torch.eye(2))


def test_equal_copies_are_not_pulled_apart():
    copies = torch.ones(3, 5)
    assert soft_gradient(copies, "l2").abs().max() == 0
    trace = soft_gradient(copies, "trace")
    assert torch.isfinite(trace).all()
    torch.testing.assert_close(trace, torch.full((3, 5), 15**-0.5))  # M / |M|, the norm's gradient at rank 1


def drifted(drift: float, n: int = 3, size: int = 100_000) -> torch.Tensor:
    """float32 copies (n, size) that differ by `drift` of their size."""
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(n + 1, size, generator=generator, dtype=torch.float64)
    return (noise[0] + drift * noise[1:]).float()


@pytest.mark.parametrize("drift, tolerance", [(1e-2, 1e-6), (1e-4, 1e-5), (1e-5, 1e-3), (1e-6, 3e-2)])
def test_copies_are_pulled_as_soon_as_they_drift(drift, tolerance):
    """Where copies differ by as little as 1e-6, the gradient is still that of the norm, U V', up to the smoothing."""
    copies = drifted(drift)
    U, _, V = torch.linalg.svd(copies.double(), full_matrices=False)
    gradient = soft_gradient(copies, "trace").double()
    assert (gradient - U @ V).norm() < tolerance * (U @ V).norm()


def test_two_equal_copies_and_a_third():
    """The direction in which two copies do not differ has no pull; the others have their own."""
    first, third = drifted(1e-2, n=2)
    gradient = soft_gradient(torch.stack([first, first, third]), "trace")
    torch.testing.assert_close(gradient[0], gradient[1], rtol=0, atol=1e-7)
    U, _, V = torch.linalg.svd(torch.stack([first, first, third]).double(), full_matrices=False)
    torch.testing.assert_close(gradient.double(), U[:, :2] @ V[:2], rtol=0, atol=1e-7)


@pytest.mark.parametrize("kind", ["l2", "trace"])
def test_zero_copies(kind):
    assert soft_gradient(torch.zeros(2, 4), kind).abs().max() == 0


def test_another_kind_is_named():
    with pytest.raises(ValueError, match="unknown kind 'L2'; known are l2 and trace"):
        soft_gradient(torch.zeros(2, 4), "L2")
