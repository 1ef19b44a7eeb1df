"""The faster forms of linear layers, dropout and attention against the plain ones."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from mtbert import optim
from mtbert.bert import BertConfig, BertModel
from mtbert.bert import cpu_ops as fast
from mtbert.bert import model as bert
from mtbert.bert.batch import Batch
from mtbert.bert.cpu_ops import Dropout, Linear, attend, dropout, keep_mask, linear
from mtbert.bert.model import BertLayer
from mtbert.config import RunConfig
from mtbert.data.tasks import TASKS
from mtbert.multitask.losses import task_loss
from mtbert.multitask.model import MultitaskBert
from mtbert.optim import AdamW

B, H, T, D_K = 3, 4, 9, 8


def passes(
    layers: list[torch.nn.Linear], data: torch.Tensor, trained: str, loss: Callable, autocast: bool = False
) -> tuple[list[list], list[str]]:
    """Forward and backward through each layer: its numbers, and the function that its output has in the graph.

    The numbers are the output and the gradients of the input, the weight and the bias, None where there is none.
    """
    found, functions = [], []
    for layer in layers:
        x = data.clone(memory_format=torch.preserve_format).requires_grad_(trained in ("all", "input"))
        layer.requires_grad_(trained in ("all", "weight"))
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = layer(x)
        if y.requires_grad:
            loss(y).backward()
        found.append([y.detach(), x.grad, *(parameter.grad for parameter in layer.parameters())])
        functions.append(type(y.grad_fn).__name__)
    return found, functions


@pytest.mark.parametrize("trained", ["all", "input", "weight", "none"])
@pytest.mark.parametrize("shape", [(B, T, 24), (B * T, 24), (0, 24), (24,)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_is_that_of_torch(trained, shape, bias, monkeypatch):
    """Values and every gradient, of an input and of a gradient that are not contiguous."""
    if torch.backends.mkldnn.is_available():
        assert fast.HAS_PRODUCT, "_linear_pointwise is gone: products on AMD with AVX-512 take twice the time"
    monkeypatch.setattr(fast, "ONEDNN", fast.HAS_PRODUCT)
    ours = Linear(24, 40, bias=bias)
    theirs = torch.nn.Linear(24, 40, bias=bias)
    theirs.load_state_dict(ours.state_dict())
    data = torch.randn(shape[::-1]).permute(*reversed(range(len(shape))))
    factors = torch.arange(40.0).view(-1, *[1] * (len(shape) - 1))
    found, functions = passes([ours, theirs], data, trained, lambda y: (y.transpose(0, -1) * factors).sum())
    for mine, exact in zip(*found, strict=True):
        assert (mine is None) == (exact is None)
        if exact is not None:
            torch.testing.assert_close(mine, exact)
    has_rows = len(shape) > 1 and 0 not in shape
    assert (functions[0] == "_LinearBackward") == (fast.ONEDNN and has_rows and trained != "none")


def test_linear_without_onednn_is_torch_s_own(monkeypatch):
    monkeypatch.setattr(fast, "ONEDNN", False)
    layer, x = Linear(24, 40), torch.randn(5, 24)
    assert type(layer(x).grad_fn).__name__ != "_LinearBackward"
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_linear_of_another_precision_is_torch_s_own(dtype, monkeypatch):
    monkeypatch.setattr(fast, "ONEDNN", True)
    monkeypatch.setattr(fast, "WITHOUT_BFLOAT16", False)
    layer = Linear(24, 40)
    x = torch.randn(5, 24)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        y = layer(x) if dtype == torch.bfloat16 else layer.double()(x.double())
    assert y.dtype == dtype and type(y.grad_fn).__name__ not in ("_LinearBackward", "_Bfloat16LinearBackward")


@pytest.mark.parametrize("trained", ["all", "input", "weight", "none"])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_in_bfloat16_is_that_of_torch_without_avx512_too(trained, bias, monkeypatch):
    """Values and gradients, of the same types: they differ by a rounding or two, 1 / 256 each."""
    monkeypatch.setattr(fast, "WITHOUT_BFLOAT16", True)
    ours = Linear(24, 40, bias=bias)
    theirs = torch.nn.Linear(24, 40, bias=bias)
    theirs.load_state_dict(ours.state_dict())
    data, factors = torch.randn(B, T, 24), torch.randn(B, T, 40)
    found, functions = passes([ours, theirs], data, trained, lambda y: (y * factors).sum(), autocast=True)
    assert [name == "_Bfloat16LinearBackward" for name in functions] == [trained != "none", False]
    for mine, exact in zip(*found, strict=True):
        assert (mine is None) == (exact is None)
        if exact is not None:
            torch.testing.assert_close(mine, exact, rtol=0.01, atol=0.02 * float(exact.abs().max()))


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5, 0.9])
def test_dropout_zeroes_the_fraction_p_and_keeps_the_mean(p):
    x = torch.ones(200_000)
    y = dropout(x, p)
    fraction = (y == 0).float().mean().item()
    assert fraction == pytest.approx(p, abs=5 * (p * (1 - p) / len(x)) ** 0.5)
    assert y[y != 0].unique().tolist() == pytest.approx([1 / (1 - p)], rel=1e-3)
    assert y.mean().item() == pytest.approx(1, abs=5 * (p / (1 - p) / len(x)) ** 0.5)


def test_neighbours_are_dropped_independently():
    """Four elements share a random word: the fraction of pairs that fall together is p squared, at every distance."""
    dropped = ~keep_mask(torch.Size([400_000]), 0.3)
    for distance in (1, 2, 3, 4, 64):
        both = (dropped[:-distance] & dropped[distance:]).float().mean().item()
        assert both == pytest.approx(0.09, abs=0.003)


def test_the_gradient_passes_where_the_value_passed():
    x = torch.randn(40, 7, dtype=torch.float64, requires_grad=True)
    y = dropout(x, 0.4)
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.where(y == 0, 0.0, (y / x).detach()))


def by_ours(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(1)  # one mask in every call
    hidden = linear(x, torch.linspace(-1, 1, 12).view(4, 3), torch.ones(4))
    return dropout(hidden.sin(), 0.5).square().sum()


@pytest.mark.parametrize("onednn", [True, False])
def test_second_derivatives_and_torch_func(onednn, monkeypatch):
    """Nested gradients, by autograd and by torch.func, agree with a difference of two first ones."""
    monkeypatch.setattr(fast, "ONEDNN", onednn and fast.HAS_PRODUCT)
    x = torch.linspace(-1, 1, 15).view(5, 3).requires_grad_()
    [first] = torch.autograd.grad(by_ours(x), x, create_graph=True)
    [second] = torch.autograd.grad(first.square().sum(), x)
    torch.testing.assert_close(torch.func.grad(by_ours)(x.detach()), first.detach())
    torch.testing.assert_close(
        torch.func.grad(lambda x: torch.func.grad(by_ours)(x).square().sum())(x.detach()), second
    )
    h = 1e-2 * torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    up, down = (torch.func.grad(by_ours)(x.detach() + step).square().sum() for step in (h, -h))
    assert float(up - down) / 2 == pytest.approx(float((second * h).sum()), rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_keeps_shape_and_type_and_follows_the_seed(dtype):
    x = torch.randn(5, 3, 11).to(dtype).transpose(0, 2)
    torch.manual_seed(4)
    first = dropout(x, 0.5)
    assert first.shape == x.shape and first.dtype == dtype
    second = dropout(x, 0.5)
    torch.manual_seed(4)
    assert torch.equal(dropout(x, 0.5), first) and not torch.equal(first, second)


@pytest.mark.parametrize("p, training", [(0.0, True), (0.5, False)])
def test_dropout_that_is_off_draws_nothing(p, training):
    x, state = torch.randn(6), torch.get_rng_state()
    assert torch.equal(Dropout(p).train(training)(x), x)
    assert torch.equal(torch.get_rng_state(), state)


def test_dropout_of_everything_is_zero():
    assert torch.equal(dropout(torch.ones(9), 1.0), torch.zeros(9))


def heads(dtype=torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(B, T, H, D_K).to(dtype).transpose(1, 2).requires_grad_() for _ in range(3)]  # as views


def masks() -> list[torch.Tensor | None]:
    lengths = torch.tensor([9, 4, 1])
    return [None, (torch.arange(T) < lengths[:, None])[:, None, None, :]]


@pytest.mark.parametrize("mask", masks(), ids=["whole", "padded"])
def test_attention_with_dropout_is_softmax_dropout_product(mask, monkeypatch):
    """The same mask of dropout in both: values and gradients agree."""
    keep = keep_mask(torch.Size([B, H, T, T]), 0.25)
    monkeypatch.setattr(fast, "keep_mask", lambda shape, p: keep.view(shape))
    found, expected = heads(), heads()
    out = attend(*found, mask, 0.25)
    q, k, v = expected
    scores = q @ k.transpose(-1, -2) / D_K**0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    plain = (scores.softmax(-1) * keep / 0.75) @ v
    torch.testing.assert_close(out, plain, rtol=1e-5, atol=1e-6)
    weight = torch.randn(out.shape)
    (out * weight).sum().backward()
    (plain * weight).sum().backward()
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mask", masks(), ids=["whole", "padded"])
def test_attention_in_bfloat16_computes_in_float32(mask):
    q, k, v = heads(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        out = attend(q, k, v, mask, 0.0)
    plain = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask=mask)
    torch.testing.assert_close(out, plain.bfloat16(), rtol=1e-2, atol=1e-6)  # the last bit of bfloat16
    out.sum().backward()
    assert q.grad.dtype == torch.bfloat16


def test_attention_in_bfloat16_without_a_graph_computes_in_float32_without_avx512(monkeypatch):
    monkeypatch.setattr(fast, "WITHOUT_BFLOAT16", True)
    q, k, v = heads(torch.bfloat16)
    with torch.no_grad():
        out = attend(q, k, v, None, 0.0)
        plain = F.scaled_dot_product_attention(q.float(), k.float(), v.float())
    assert torch.equal(out, plain.bfloat16())


@pytest.mark.parametrize("is_old", [False, True])
def test_an_encoder_with_bfloat16_weights_trains_without_autocast(is_old, monkeypatch):
    monkeypatch.setattr(fast, "WITHOUT_BFLOAT16", is_old)
    sizes = BertConfig(vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    encoder = BertModel(sizes).bfloat16()
    states = encoder(torch.randint(1, 50, (2, 5))).last_hidden_state
    states.sum().backward()
    assert states.dtype == encoder.layers[0].attention.query.weight.grad.dtype == torch.bfloat16


def test_attention_in_float64_stays_there():
    out = attend(*heads(torch.float64), masks()[1], 0.5)
    assert out.dtype == torch.float64 and out.requires_grad


def test_evaluation_is_torchs_attention():
    q, k, v = heads()
    with torch.no_grad():
        assert torch.equal(attend(q, k, v, None, 0.0), F.scaled_dot_product_attention(q, k, v))


def losses_of_20_steps(model: MultitaskBert, batches: list[dict[str, Batch]]) -> list[float]:
    optimizer, losses = AdamW(model.parameters(), lr=1e-3, weight_decay=0.01), []
    for batch in batches:
        logits = model(batch)
        loss = sum(task_loss(TASKS[task], part, torch.ones(len(part))) for task, part in logits.items())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("plan", ["1-bert", "3-bert", "S1 I1", "F1 S1"])
def test_the_fast_and_the_plain_path_agree_over_20_steps(tiny_encoder, plan, monkeypatch):
    """Plain: every task alone, torch's attention, AdamW parameter by parameter."""

    packed = BertLayer.forward

    def one_by_one(layer, hidden, masks, hooks):
        parts = zip(bert.unpack(hidden, masks), masks, strict=True)
        return bert.pack(packed(layer, part, mask) for part, mask in parts)

    torch.manual_seed(0)
    config = RunConfig(tasks=["sst", "quora", "sts"], plan=plan, encoder=tiny_encoder, head_dropout=0.0,
                       attention_dropout=0.0)  # fmt: skip
    model = MultitaskBert(config).train()
    for module in model.modules():
        if isinstance(module, Dropout):
            module.p = 0.0
    twin = copy.deepcopy(model)
    batches = []
    for _ in range(20):
        mask = torch.arange(12) < torch.randint(1, 13, (5, 1))
        batches.append({t: Batch(torch.randint(5, 900, (5, 12)) * mask, mask, None) for t in config.tasks})
    fast_losses = losses_of_20_steps(model, batches)
    monkeypatch.setattr(BertLayer, "forward", one_by_one)
    monkeypatch.setattr(bert, "attend", lambda q, k, v, m, p: F.scaled_dot_product_attention(q, k, v, attn_mask=m))
    monkeypatch.setattr(optim, "_is_dense", lambda parameter, state: False)
    plain_losses = losses_of_20_steps(twin, batches)
    assert fast_losses[-1] < fast_losses[0]
    assert fast_losses == pytest.approx(plain_losses, abs=1e-5)
