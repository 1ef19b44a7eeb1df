"""Heads that see other heads' logits: values, gradients, attention, all against formulas."""

import math

import pytest
import torch

from mtbert.config import RunConfig
from mtbert.data.tasks import TASKS
from mtbert.multitask.heads import TaskHeads, pair_features
from mtbert.multitask.progressive_heads import UpstreamAttention, all_upstream, upstream_tasks

TASK_NAMES = ("sst", "quora", "sts")
CHAIN = ("sst>quora", "sst>sts", "quora>sts")  # of paper 004
B, D = 4, 8
MODES = ("frozen", "slow", "free")
JOINT_OR_APART = pytest.mark.parametrize("pairs", ["joint", "concat+product"])
COMBINE = pytest.mark.parametrize("combine", ["concat", "attention"])


def build(**fields) -> TaskHeads:
    """Heads with weights large enough to tell their outputs apart."""
    torch.manual_seed(0)
    heads = TaskHeads(
        RunConfig(**{"tasks": TASK_NAMES, "feeds": CHAIN, "head_layers": 2, "head_width": 6, **fields}), D
    )
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.normal_(std=0.5)
    return heads.eval()


def embeddings_of(task: str, pairs: str) -> torch.Tensor:
    k = 2 if TASKS[task].is_pair and pairs != "joint" else 1
    return torch.randn(B, k, D, generator=torch.Generator().manual_seed(5))


def gradients(heads: TaskHeads, task: str, embeddings: torch.Tensor) -> dict[str, torch.Tensor]:
    heads.zero_grad()
    embeddings = embeddings.clone().requires_grad_()
    heads(task, embeddings).square().sum().backward()
    found = {name: torch.zeros(()) if p.grad is None else p.grad for name, p in heads.named_parameters()}
    return {"embeddings": embeddings.grad, **found}


def test_feeds_by_task():
    upstreams = upstream_tasks(("quora>sts", "sst>quora", "cfimdb>sts"))
    assert upstreams == {"sts": ["quora", "cfimdb"], "quora": ["sst"]}
    assert all_upstream("sts", upstreams) == {"quora", "cfimdb", "sst"}
    assert all_upstream("sst", upstreams) == set()


def test_values_where_a_pair_is_one_sequence():
    heads, e = build(), embeddings_of("sts", "joint")
    head, x = heads.by_task, embeddings_of("sts", "joint")[:, 0]
    sst = head["sst"](x)  # (B, 5)
    quora = head["quora"](torch.cat((x, sst), 1))[:, None]  # (B, 1)
    torch.testing.assert_close(heads("sst", e), sst)
    torch.testing.assert_close(heads("quora", e), quora[:, 0])
    torch.testing.assert_close(heads("sts", e), head["sts"](torch.cat((x, sst, quora), 1)))


def test_values_where_sentences_are_encoded_apart():
    pairs = "difference+cosine"
    heads, e = build(pairs=pairs, feeds=("quora>sts", "sst>sts", "cfimdb>sst", "sst>quora"),
                     tasks=(*TASK_NAMES, "cfimdb")), embeddings_of("sts", pairs)  # fmt: skip
    head, first, second, x = heads.by_task, e[:, 0], e[:, 1], pair_features(e, pairs)

    def sst(sentence: torch.Tensor) -> torch.Tensor:
        return head["sst"](torch.cat((sentence, head["cfimdb"](sentence)), 1))

    each = torch.cat((sst(first), sst(second)), 1)  # (B, 10)
    quora = head["quora"](torch.cat((x, each), 1))[:, None]
    torch.testing.assert_close(heads("quora", e), quora[:, 0])
    torch.testing.assert_close(heads("sts", e), head["sts"](torch.cat((x, quora, each), 1)))
    torch.testing.assert_close(heads("sst", e[:, :1]), sst(first))


@JOINT_OR_APART
@COMBINE
@pytest.mark.parametrize("task", TASK_NAMES)
def test_values_are_equal_whatever_becomes_of_the_gradient(pairs, combine, task):
    modes = [build(pairs=pairs, combine=combine, upstream=mode) for mode in MODES]
    modes[1].add_offsets()
    frozen, slow, free = (heads(task, embeddings_of(task, pairs)) for heads in modes)
    assert frozen.shape == ((B, 5) if task == "sst" else (B,))
    assert torch.equal(frozen, slow)
    assert torch.equal(frozen, free)
    dropped = []
    for heads in modes:  # with dropout, too
        heads.train()
        torch.manual_seed(1)
        dropped.append(heads(task, embeddings_of(task, pairs)))
    assert not torch.equal(dropped[0], frozen)
    assert torch.equal(dropped[0], dropped[1])
    assert torch.equal(dropped[0], dropped[2])


@JOINT_OR_APART
@COMBINE
def test_what_of_the_gradient_reaches_upstream_heads(pairs, combine):
    e = embeddings_of("sts", pairs)
    heads = {mode: build(pairs=pairs, combine=combine, head_norm=True, upstream=mode) for mode in MODES}
    heads["slow"].add_offsets()
    offsets = heads["slow"].offsets
    frozen, slow, free = (gradients(heads[mode], "sts", e) for mode in MODES)
    assert set(offsets) == {name for name in free if ".sst." in name or ".quora." in name}
    for name in free:
        if name in offsets:  # sst's head also through quora's
            assert not frozen[name].any() and not slow[name].any()
            torch.testing.assert_close(offsets[name].grad, free[name])
        else:
            torch.testing.assert_close(frozen[name], free[name])
            torch.testing.assert_close(slow[name], free[name])
        # quora has one upstream head: the softmax over it is 1 whatever is asked
        if not name.startswith(("attention.quora.query", "attention.quora.keys")):
            assert free[name].any(), name


def test_free_gradients_are_those_of_the_plain_formula():
    heads, e = build(upstream="free"), embeddings_of("quora", "joint")
    found = gradients(heads, "quora", e)
    heads.zero_grad()
    x = e[:, 0]
    heads.by_task["quora"](torch.cat((x, heads.by_task["sst"](x)), 1)).square().sum().backward()
    for name, parameter in heads.named_parameters():
        if ".sts." not in name:
            torch.testing.assert_close(found[name], parameter.grad)


def test_a_frozen_upstream_head_still_trains_on_its_own_task():
    heads = build(upstream="frozen")
    for task in TASK_NAMES:
        trained = {name.split(".")[1] for name, g in gradients(heads, task, embeddings_of(task, "joint")).items()
                   if name != "embeddings" and g.any()}  # fmt: skip
        assert trained == {task}


def test_upstream_heads_drop_out_in_training():
    heads, e = build(head_dropout=0.5, dropout_place="after", feeds=("sst>sts",)).train(), torch.ones(500, 1, D)
    seen = []
    heads.by_task["sts"].layers[0].register_forward_hook(lambda module, inputs, output: seen.append(inputs[0][:, D:]))
    heads("sts", e)
    assert (seen[0] == 0).float().mean().item() == pytest.approx(0.5, abs=0.04)


@torch.no_grad()
def test_attention_is_its_formula():
    torch.manual_seed(0)
    w, sizes = 6, [5, 1, 10]
    attention = UpstreamAttention(D, sizes, w)
    for parameter in attention.parameters():
        parameter.normal_()
    x, outputs = torch.randn(B, D), [torch.randn(B, size) for size in sizes]
    context = attention(x, outputs)
    assert context.shape == (B, w)
    for row in range(B):
        q = attention.query(x[row])
        k = [key(y[row]) for key, y in zip(attention.keys, outputs, strict=True)]
        v = [value(y[row]) for value, y in zip(attention.values, outputs, strict=True)]
        weights = [math.exp(q @ k_u / math.sqrt(w)) for k_u in k]
        expected = sum(a / sum(weights) * v_u for a, v_u in zip(weights, v, strict=True))
        torch.testing.assert_close(context[row], expected)


@torch.no_grad()
def test_attention_puts_one_context_beside_the_features():
    heads, e = build(combine="attention"), embeddings_of("sts", "joint")
    head, attention, x = heads.by_task, heads.attention, e[:, 0]
    sst = head["sst"](x)
    quora = head["quora"](torch.cat((x, attention["quora"](x, [sst])), 1))[:, None]
    torch.testing.assert_close(attention["quora"](x, [sst]), attention["quora"].values[0](sst))  # softmax over one
    expected = head["sts"](torch.cat((x, attention["sts"](x, [sst, quora])), 1))
    torch.testing.assert_close(heads("sts", e), expected)


def test_parameters_that_several_tasks_train():
    def shared(**fields) -> set[str]:
        heads = build(**fields)
        heads.add_offsets()
        named = dict(heads.named_parameters()) | heads.offsets
        found = heads.shared_parameters()
        assert all(named[name] is parameter for name, parameter in found.items())
        return {".".join(name.split(".")[:2]) for name in found}

    assert shared() == set()
    assert shared(upstream="slow") == {"by_task.sst"}, "an offset is trained by the tasks that are fed, quora and sts"
    assert shared(upstream="free") == {"by_task.sst", "by_task.quora"}
    assert shared(upstream="free", feeds=("sst>quora",)) == {"by_task.sst"}
    both = {"by_task.sst", "by_task.quora", "attention.quora"}
    assert shared(upstream="free", combine="attention") == both
    only_sts = dict(tasks=("sts",), score_tasks=("sst", "quora"))
    assert shared(upstream="free", **only_sts) == set()
    assert shared(upstream="free", tasks=("quora", "sts"), score_tasks=("sst",)) == {"by_task.sst", "by_task.quora"}


def test_attention_starts_as_torchs_layers_do():
    """Uniform up to 1 / sqrt(fan_in), far above N(0, .02)."""
    for part in UpstreamAttention(20, [5, 1], 6).modules():
        if isinstance(part, torch.nn.Linear):
            assert part.weight.abs().max() > 0.5 * part.in_features**-0.5 and part.bias.any()
