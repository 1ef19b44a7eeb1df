"""Soft sharing: the closed-form gradients against autograd, and who is pulled."""

import pytest
import torch
from torch import nn

from mtbert.soft import add_pull, soft_gradient, soft_penalty


@pytest.mark.parametrize("kind", ["l2", "trace"])
@pytest.mark.parametrize("shape", [(2, 7), (3, 40), (4, 4)])
def test_the_gradient_is_that_of_the_penalty(kind, shape):
    copies = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
    soft_penalty(copies, kind).backward()
    torch.testing.assert_close(soft_gradient(copies.detach(), kind), copies.grad, rtol=1e-6, atol=1e-8)


def test_penalties_by_hand():
    copies = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    assert soft_penalty(copies, "l2").item() == pytest.approx(2 * (1.5**2 + 2**2))
    assert soft_penalty(copies, "trace").item() == pytest.approx(7)


def test_equal_copies_are_not_pulled_apart():
    copies = torch.ones(3, 5)
    assert soft_gradient(copies, "l2").abs().max() == 0
    trace = soft_gradient(copies, "trace")
    assert torch.isfinite(trace).all()
    torch.testing.assert_close(trace, torch.full((3, 5), 15**-0.5))  # M / |M|, the norm's gradient at rank 1


@pytest.mark.parametrize("kind", ["l2", "trace"])
def test_zero_copies(kind):
    assert soft_gradient(torch.zeros(2, 4), kind).abs().max() == 0


@pytest.mark.parametrize("kind", ["l2", "trace"])
def test_the_pull_reaches_the_copies_that_have_a_gradient(kind):
    torch.manual_seed(0)
    copies = [nn.Linear(3, 2) for _ in range(3)]
    copies[0](torch.ones(1, 3)).sum().backward()
    before = copies[0].weight.grad.clone()
    add_pull([copies], kind, strength=0.5)
    assert copies[1].weight.grad is None and copies[2].weight.grad is None
    pull = soft_gradient(torch.stack([c.weight.detach().flatten() for c in copies]), kind)[0].view(2, 3)
    torch.testing.assert_close(copies[0].weight.grad, before + 0.5 * pull)


def test_l2_draws_copies_together():
    torch.manual_seed(0)
    copies = [nn.Linear(3, 2) for _ in range(2)]
    distance = (copies[0].weight - copies[1].weight).norm().item()
    for _ in range(20):
        for copy in copies:
            for p in copy.parameters():
                p.grad = torch.zeros_like(p)
        add_pull([copies], "l2", strength=0.1)
        with torch.no_grad():
            for copy in copies:
                for p in copy.parameters():
                    p -= p.grad
    assert (copies[0].weight - copies[1].weight).norm().item() < 0.05 * distance
