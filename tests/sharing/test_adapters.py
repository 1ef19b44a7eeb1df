"""Adapters against their definitions, written with loops."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import gelu

from mtbert.bert import BertConfig
from mtbert.bert.cpu_ops import attend
from mtbert.sharing.adapters import LHUC, PAL, Adapter, AdapterSizes, Houlsby, HoulsbyPals, LowRank, adapter_parameters

B, T, D, S, HEADS, L = 3, 5, 16, 6, 2, 4
LENGTHS = [5, 2, 4]
ENCODER = BertConfig(hidden_size=D, num_attention_heads=4, num_hidden_layers=L, intermediate_size=20)
KINDS = {"pal": PAL, "low_rank": LowRank, "houlsby": Houlsby, "houlsby_pals": HoulsbyPals, "lhuc": LHUC}
HOOKS = {
    "pal": {"parallel"},
    "low_rank": {"parallel"},
    "houlsby": {"after_attention", "after_feed_forward"},
    "houlsby_pals": {"after_attention", "parallel_feed_forward"},
    "lhuc": {"after_layer"},
}
ALL = pytest.mark.parametrize("kind", list(KINDS))


def new(kind: str, encoder: BertConfig = ENCODER, adapter_size: int = S, adapter_heads: int = HEADS) -> Adapter:
    return KINDS[kind](encoder, AdapterSizes(adapter_size, adapter_heads))


def build(kind: str, encoder: BertConfig = ENCODER, **fields) -> Adapter:
    """An adapter in evaluation mode with random biases, which are zero at the start."""
    adapter = new(kind, encoder, **fields).eval()
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.normal_(std=0.5)
    return adapter


def call(adapter: Adapter, hook: str, depth: int, x: torch.Tensor, mask: torch.Tensor | None = None):
    return getattr(adapter, hook)(depth, x, mask) if hook.startswith("parallel") else getattr(adapter, hook)(depth, x)


@pytest.fixture
def hidden() -> torch.Tensor:
    return torch.randn(B, T, D, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def mask() -> torch.Tensor:
    return (torch.arange(T) < torch.tensor(LENGTHS)[:, None])[:, None, None, :]  # (B, 1, 1, T)


def affine(linear: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return linear.weight @ x + linear.bias


def naive_pal(pal: PAL, depth: int, h: torch.Tensor, length: int) -> torch.Tensor:
    """GELU(V_D g(V_E h)) of one sequence (T, d): every head, query and key by itself."""
    attention = pal.attention[depth]
    d_k = pal.encode.out_features // attention.heads
    small = [affine(pal.encode, token) for token in h]
    q, k, v = ([affine(w, x) for x in small] for w in (attention.query, attention.key, attention.value))
    rows = []
    for t in range(len(h)):
        context = []
        for head in range(attention.heads):
            part = slice(head * d_k, (head + 1) * d_k)
            weights = [math.exp(q[t][part] @ k[u][part] / math.sqrt(d_k)) for u in range(length)]
            context.append(sum(w / sum(weights) * v[u][part] for u, w in enumerate(weights)))
        rows.append(gelu(affine(pal.decode, torch.cat(context))))
    return torch.stack(rows)


@pytest.mark.parametrize("size, heads", [(S, HEADS), (S, 4), (11, 3)])
@torch.no_grad()
def test_pal_is_its_definition(hidden, mask, size, heads):
    pal = build("pal", adapter_size=size, adapter_heads=heads).double()
    hidden = hidden.double()
    for depth in range(L):
        masked, unmasked = pal.parallel(depth, hidden, mask), pal.parallel(depth, hidden, None)
        for row, length in enumerate(LENGTHS):
            torch.testing.assert_close(masked[row], naive_pal(pal, depth, hidden[row], length))
            torch.testing.assert_close(unmasked[row], naive_pal(pal, depth, hidden[row], T))
    assert not torch.allclose(pal.parallel(0, hidden, mask), pal.parallel(1, hidden, mask))


def test_more_heads_than_dimensions_are_named():
    with pytest.raises(ValueError, match="a PAL of size 8 has 1 to 8 heads, not 12"):
        PAL(ENCODER, AdapterSizes(8, heads=12))


def test_pal_shares_its_projections_over_the_layers(hidden, mask):
    pal = build("pal")
    assert sum(isinstance(m, torch.nn.Linear) and D in m.weight.shape for m in pal.modules()) == 2
    for depth in range(L):
        pal.zero_grad()
        pal.parallel(depth, hidden, mask).square().sum().backward()
        touched = {name for name, p in pal.named_parameters() if p.grad is not None and p.grad.any()}
        assert {"encode.weight", "decode.weight", "encode.bias", "decode.bias"} < touched
        assert {name.split(".")[1] for name in touched if name.startswith("attention")} == {str(depth)}


@pytest.mark.parametrize("p", [0.0, 0.25])
def test_pal_drops_attention_weights_alone(hidden, p, monkeypatch):
    pal, seen = build("pal", replace(ENCODER, attention_probs_dropout_prob=p)), []

    def watched(q, k, v, mask, dropout_p):
        seen.append(dropout_p)
        return attend(q, k, v, mask, dropout_p)

    monkeypatch.setattr("mtbert.bert.model.attend", watched)
    monkeypatch.setattr("torch.nn.functional.dropout", lambda *args, **kwargs: pytest.fail("another dropout"))
    pal.train().parallel(0, hidden, None)
    pal.eval().parallel(0, hidden, None)
    assert seen == [p, 0.0]


@torch.no_grad()
def test_low_rank_and_houlsby_are_their_definitions(hidden):
    low_rank, houlsby, pals = build("low_rank"), build("houlsby"), build("houlsby_pals")
    for depth in range(L):
        first, second = pals.after_attention(depth, hidden), pals.parallel_feed_forward(depth, hidden, None)

        def naive(block, token):
            return affine(block.decode, gelu(affine(block.encode, token)))

        parallel = low_rank.parallel(depth, hidden, None)
        attention, feed_forward = houlsby.after_attention(depth, hidden), houlsby.after_feed_forward(depth, hidden)
        for b in range(B):
            for t in range(T):
                x = hidden[b, t]
                torch.testing.assert_close(parallel[b, t], naive(low_rank.blocks[depth], x))
                for result, blocks in (
                    (attention, houlsby.attention_blocks),
                    (feed_forward, houlsby.feed_forward_blocks),
                ):
                    torch.testing.assert_close(result[b, t], x + naive(blocks[depth], x))
                torch.testing.assert_close(first[b, t], x + naive(pals.attention_blocks[depth], x))
                torch.testing.assert_close(second[b, t], naive(pals.feed_forward_blocks[depth], x))


@torch.no_grad()
def test_houlsby_starts_near_the_identity(hidden):
    encoder = BertConfig(num_hidden_layers=2)
    x = torch.randn(B, T, encoder.hidden_size)
    adapter = new("houlsby", encoder, adapter_size=64)
    for hook in HOOKS["houlsby"]:
        change = getattr(adapter, hook)(1, x) - x
        assert 0 < change.norm() < 0.02 * x.norm()
    for name, parameter in new("houlsby", BertConfig(num_hidden_layers=1), adapter_size=120).named_parameters():
        if name.endswith("bias"):
            assert not parameter.any()
        else:  # N(0, .01), cut off at two standard deviations
            assert parameter.std().item() == pytest.approx(0.0088, rel=0.05) and parameter.abs().max() <= 0.02


@torch.no_grad()
def test_lhuc_scales_every_unit(hidden):
    start = new("lhuc")
    assert torch.equal(start.after_layer(3, hidden), hidden)
    lhuc = build("lhuc")
    for unit in range(D):
        factor = 2 / (1 + math.exp(-lhuc.a[3][unit]))
        torch.testing.assert_close(lhuc.after_layer(3, hidden)[..., unit], factor * hidden[..., unit])


@ALL
def test_an_adapter_has_the_hooks_of_its_places_alone(hidden, mask, kind):
    adapter = build(kind)
    for hook in ("after_attention", "parallel", "after_feed_forward", "parallel_feed_forward", "after_layer"):
        if hook in HOOKS[kind]:
            result = call(adapter, hook, 0, hidden, mask)
            assert result.shape == (B, T, D)
            assert not torch.equal(result, hidden)
        else:
            assert getattr(adapter, hook) is None


@ALL
@pytest.mark.parametrize("bias", [True, False])
def test_the_number_of_parameters(kind, bias):
    projections = 2 * S * D + bias * (S + D)  # V_E and V_D
    expected = {
        "pal": projections + L * 3 * (S * S + bias * S),
        "low_rank": L * projections,
        "houlsby": 2 * L * projections,
        "houlsby_pals": 2 * L * projections,
        "lhuc": L * D,
    }
    assert adapter_parameters(kind, ENCODER, AdapterSizes(S, HEADS), with_biases=bias) == expected[kind]


def test_the_other_size_of_paper_001():
    """s = 326 with 12 heads: 12 * 27 = 324 numbers from attention, 326 into it."""
    sizes = AdapterSizes(326, 12)
    pal = PAL(BertConfig(num_hidden_layers=1), sizes)
    shapes = {name: tuple(parameter.shape) for name, parameter in pal.named_parameters() if parameter.ndim > 1}
    assert shapes == {
        "encode.weight": (326, 768),
        "decode.weight": (768, 324),
        "attention.0.query.weight": (324, 326),
        "attention.0.key.weight": (324, 326),
        "attention.0.value.weight": (324, 326),
    }
    assert (
        adapter_parameters("pal", BertConfig(), sizes, with_biases=False) == 326 * 768 + 324 * 768 + 12 * 3 * 326 * 324
    )


@pytest.mark.parametrize("kind", ["pal", "low_rank", "houlsby_pals"])
def test_weights_are_drawn_from_a_normal_distribution(kind):
    encoder = BertConfig(num_hidden_layers=1)
    torch.manual_seed(0)
    for name, parameter in new(kind, encoder, adapter_size=120).named_parameters():
        if name.endswith("bias"):
            assert not parameter.any()
        else:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.05)
            assert abs(parameter.mean().item()) < 1e-3


@ALL
def test_gradients_are_finite_and_reach_everything(hidden, mask, kind):
    adapter = new(kind, replace(ENCODER, attention_probs_dropout_prob=0)).train()
    hidden.requires_grad_()
    total = sum(call(adapter, hook, depth, hidden, mask).square().sum() for hook in HOOKS[kind] for depth in range(L))
    total.backward()
    for name, tensor in (("hidden", hidden), *adapter.named_parameters()):
        assert tensor.grad.isfinite().all()
        if not name.endswith("key.bias"):  # it moves all scores of a query alike, which softmax does not see
            assert tensor.grad.any()
