"""AdamW against the formula and against torch; learning-rate schedules."""

import copy
import math
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

from mtbert import optim
from mtbert.optim import AdamW, make_schedule


def reference_adamw(
    p, gradients, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0, correct_bias=True
) -> list[float]:
    """The course's update in float64, number by number; p (N,), gradients (steps, N) -> p after the last step."""
    p, gradients = p.double().tolist(), gradients.double().tolist()
    for i in range(len(p)):
        m = v = 0.0
        for t, g in enumerate((gradient[i] for gradient in gradients), start=1):
            m = betas[0] * m + (1 - betas[0]) * g
            v = betas[1] * v + (1 - betas[1]) * g * g
            step_size = lr
            if correct_bias:
                step_size = lr * math.sqrt(1 - betas[1] ** t) / (1 - betas[0] ** t)
            p[i] = p[i] - step_size * m / (math.sqrt(v) + eps)
            p[i] = p[i] - lr * weight_decay * p[i]
    return p


def problem(shape=(7,), steps=10, dtype=torch.float64) -> tuple[nn.Parameter, torch.Tensor]:
    """A parameter and one gradient for each step, of very different sizes."""
    generator = torch.Generator().manual_seed(3)
    scale = 10 ** torch.linspace(-6, 2, math.prod(shape), dtype=dtype).view(shape)
    gradients = torch.randn(steps, *shape, generator=generator, dtype=dtype) * scale
    return nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)), gradients


def run(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, gradients: torch.Tensor) -> torch.Tensor:
    """The parameter after one step a gradient."""
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


SETTINGS = [
    dict(),
    dict(lr=0.05, betas=(0.8, 0.95), eps=1e-3),
    dict(lr=0.05, weight_decay=0.1),
    dict(lr=0.01, weight_decay=0.01, correct_bias=False),
    dict(lr=0.01, betas=(0.0, 0.0)),
    dict(lr=0.0, weight_decay=0.5),
    dict(lr=1.0, weight_decay=1.0),  # all that is left is 0
    dict(lr=1.0, weight_decay=1.5),
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_equals_the_formula(settings):
    parameter, gradients = problem()
    expected = reference_adamw(parameter.detach(), gradients, **settings)
    result = run(AdamW([parameter], **settings), parameter, gradients)
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-14)


def test_equals_torch_without_epsilon_and_decay():
    settings, results = dict(lr=0.01, eps=1e-30, weight_decay=0.0), []
    for optimizer in (AdamW, torch.optim.AdamW):
        parameter, gradients = problem()
        results.append(run(optimizer([parameter], **settings), parameter, gradients))
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-14)


def test_parameter_groups_keep_their_own_settings():
    (first, gradients), (second, _) = problem(), problem()
    groups = [dict(params=[first], lr=0.1, weight_decay=0.0), dict(params=[second], weight_decay=0.2)]
    optimizer = AdamW(groups, lr=0.01)
    start = first.detach().clone()
    for gradient in gradients:
        first.grad, second.grad = gradient.clone(), gradient.clone()
        optimizer.step()
    np.testing.assert_allclose(first.detach(), reference_adamw(start, gradients, lr=0.1), rtol=1e-12)
    expected = reference_adamw(start, gradients, lr=0.01, weight_decay=0.2)
    np.testing.assert_allclose(second.detach(), expected, rtol=1e-12)


def test_closure_is_called_with_gradients_and_its_loss_returned():
    parameter = nn.Parameter(torch.tensor([3.0]))
    optimizer = AdamW([parameter], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = parameter.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 9.0
    assert parameter.item() == pytest.approx(2.9, abs=1e-5)
    assert AdamW([parameter]).step() is None


def test_non_contiguous_parameter_and_gradient():
    start, gradients = problem((4, 6))
    expected = reference_adamw(start.detach().flatten(), gradients.flatten(1), lr=0.01, weight_decay=0.1)
    transposed = nn.Parameter(start.detach().t().contiguous().t())
    assert not transposed.is_contiguous()
    result = run(AdamW([transposed], lr=0.01, weight_decay=0.1), transposed, gradients)
    np.testing.assert_allclose(result.flatten(), expected, rtol=1e-12)

    optimizer = AdamW([start], lr=0.01, weight_decay=0.1)
    for gradient in gradients:
        start.grad = gradient.t().contiguous().t()
        optimizer.step()
    np.testing.assert_allclose(start.detach().flatten(), expected, rtol=1e-12)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_fused_walk_equals_the_formula_as_written(monkeypatch, settings):
    with mock.patch.object(optim, "adamw", wraps=optim.adamw) as kernel:
        fused = [run(AdamW([p], **settings), p, g) for p, g in [problem((5, 7), steps=20, dtype=torch.float32)]]
    has_kernel = settings.get("lr", 1e-3) * settings.get("weight_decay", 0.0) < 1
    assert kernel.call_count == (20 if has_kernel else 0)
    monkeypatch.setattr(optim, "_is_dense", lambda parameter, state: False)
    plain = [run(AdamW([p], **settings), p, g) for p, g in [problem((5, 7), steps=20, dtype=torch.float32)]]
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-6)


def test_parameters_that_missed_steps_keep_their_own_count():
    (first, gradients), (second, _) = problem(dtype=torch.float32), problem(dtype=torch.float32)
    optimizer = AdamW([first, second], lr=0.01)
    for i, gradient in enumerate(gradients):
        first.grad, second.grad = gradient.clone(), gradient.clone() if i >= 4 else None
        optimizer.step()
    late, _ = problem(dtype=torch.float32)
    torch.testing.assert_close(second.detach(), run(AdamW([late], lr=0.01), late, gradients[4:]))
    assert [optimizer.state[p]["step"] for p in (first, second)] == [10, 6]


def test_sparse_gradient_is_named():
    embedding = nn.Embedding(5, 2, sparse=True)
    embedding(torch.tensor([1, 3])).sum().backward()
    with pytest.raises(RuntimeError, match="dense gradients"):
        AdamW(embedding.parameters()).step()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(lr=-1e-3), r"lr is -0\.001"),
        (dict(betas=(1.0, 0.999)), r"betas are \(1\.0, 0\.999\)"),
        (dict(betas=(0.9, -0.1)), r"betas are \(0\.9, -0\.1\)"),
        (dict(eps=-1.0), r"eps is -1\.0"),
        (dict(weight_decay=-0.1), r"weight_decay is -0\.1"),
        (dict(lr=math.nan), "lr is nan; it must be finite"),
        (dict(eps=math.inf), "eps is inf; it must be finite"),
        (dict(betas=(0.9,)), r"betas are \(0\.9,\); there are two"),
    ],
)
def test_hyper_parameters_out_of_range_are_named(settings, message):
    weights = nn.Parameter(torch.zeros(1))
    with pytest.raises(ValueError, match=message):
        AdamW([weights], **settings)
    with pytest.raises(ValueError, match=message):
        AdamW([{"params": [weights], **settings}])
    optimizer = AdamW([nn.Parameter(torch.zeros(1))])
    with pytest.raises(ValueError, match=message):
        optimizer.add_param_group({"params": [weights], **settings})
    assert len(optimizer.param_groups) == 1


def test_a_state_of_torchs_optimizer_goes_on():
    pairs = []
    for optimizer in (torch.optim.AdamW, AdamW):
        weights = nn.Parameter(torch.tensor([1.0, -2.0]))
        pairs.append((weights, optimizer([weights], lr=0.1, eps=1e-12)))
    (theirs, before), (ours, after) = pairs
    theirs.grad = torch.tensor([0.3, -0.2])
    before.step()
    after.load_state_dict(copy.deepcopy(before.state_dict()))
    ours.data.copy_(theirs.data)
    for weights, optimizer in pairs:
        weights.grad = torch.tensor([-0.1, 0.4])
        optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=0)  # the decay comes after the step, theirs before
    with pytest.raises(ValueError, match="amsgrad or maximize"):
        after.load_state_dict(torch.optim.AdamW([nn.Parameter(torch.zeros(2))], amsgrad=True).state_dict())


def learning_rates(name: str, total_steps: int, warmup: float) -> list[list[float]]:
    """The learning rate of each step, for two groups with peaks 1 and 0.1; one more than there are steps."""
    groups = [dict(params=[nn.Parameter(torch.zeros(1))], lr=lr) for lr in (1.0, 0.1)]
    optimizer = AdamW(groups)
    schedule = make_schedule(optimizer, name, total_steps, warmup)
    rates = [[group["lr"] for group in optimizer.param_groups]]
    for _ in range(total_steps):
        optimizer.step()
        schedule.step()
        rates.append([group["lr"] for group in optimizer.param_groups])
    return rates


@pytest.mark.parametrize(
    ("name", "start", "halfway_up", "halfway_down", "end", "tolerance"),
    [
        ("none", 1.0, 1.0, 1.0, 1.0, 0.0),
        ("linear", 1 / 21, 11 / 21, 0.5, 0.0, 1e-9),
        ("cosine", 1 / 21, 11 / 21, 0.5, 0.0, 1e-9),
        ("onecycle", 1 / 25, 0.5, 0.5, 0.0, 0.06),  # torch puts the peak a step earlier
    ],
)
def test_schedule_at_start_peak_and_end(name, start, halfway_up, halfway_down, end, tolerance):
    rates = learning_rates(name, total_steps=100, warmup=0.2)
    first = [rate for rate, _ in rates]
    expected = [start, halfway_up, 1.0, halfway_down, end]
    assert [first[step] for step in (0, 10, 20, 60, 100)] == pytest.approx(expected, abs=tolerance)
    assert max(first) == pytest.approx(1.0, abs=1e-2)
    assert all(rate > 0 for rate in first[:100])  # no step is lost
    assert all(second == pytest.approx(rate / 10) for rate, second in rates)


def test_onecycle_moves_beta1_against_the_learning_rate():
    """Our AdamW gets the betas that torch's schedule sets in its groups."""
    optimizer = AdamW([nn.Parameter(torch.zeros(1))], lr=1.0, betas=(0.9, 0.999))
    schedule = make_schedule(optimizer, "onecycle", total_steps=100, warmup=0.2)
    by_rate = {}
    for _ in range(100):
        by_rate[optimizer.param_groups[0]["lr"]] = optimizer.param_groups[0]["betas"]
        optimizer.step()
        schedule.step()
    assert by_rate[max(by_rate)] == pytest.approx((0.85, 0.999), abs=1e-3)
    assert by_rate[min(by_rate)] == pytest.approx((0.95, 0.999), abs=1e-3)


@pytest.mark.parametrize("name", ["linear", "cosine", "onecycle"])
def test_schedule_without_warm_up_starts_at_its_peak(name):
    rates = [rate for rate, _ in learning_rates(name, 10, 0.0)]
    assert rates == sorted(rates, reverse=True)
    assert rates[1] < 1.0
    if name != "onecycle":
        assert rates[0] == 1.0


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0.5), (9, 0.1), (19, 0.05)])
def test_onecycle_whose_rise_rounds_to_no_step(steps, warmup):
    rates = [rate for rate, _ in learning_rates("onecycle", steps, warmup)]
    assert rates[0] == pytest.approx(1) and rates == sorted(rates, reverse=True)


@pytest.mark.parametrize("name", optim.SCHEDULES)
@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.9])
def test_schedule_of_one_step(name, warmup):
    (first, _), _ = learning_rates(name, 1, warmup)
    assert 0 < first <= 1.0


@pytest.mark.parametrize(
    ("name", "warmup", "message"),
    [
        ("step", 0.1, "schedule is 'step'; known are none, linear, cosine, onecycle"),
        ("linear", 1.0, r"warmup is 1\.0"),
        ("linear", -0.1, r"warmup is -0\.1"),
    ],
)
def test_bad_schedules_are_named(name, warmup, message):
    with pytest.raises(ValueError, match=message):
        make_schedule(AdamW([nn.Parameter(torch.zeros(1))]), name, 10, warmup)
