"""How cost grows: ours at its largest size against ours at smaller ones, scaled as the arithmetic grows.

A ratio of 1 is growth like the arithmetic's; above 1 the cost grows more slowly, because what does not depend on the
size is spread over more work. A row's slope is that of a line through its size and all larger ones, log-log.
"""

from collections.abc import Callable

import torch

from mtbert.bench.harness import Contest, Peer, Setting, timed
from mtbert.bench.steps import on_words, violating_gradients
from mtbert.bert import BertConfig, BertModel
from mtbert.gradients import pcgrad


def growth(
    name: str, sizes: tuple[int, ...], build: Callable[[int], Callable], arithmetic: Callable[[int], float]
) -> Contest:
    """A contest of the largest size against each smaller one; arithmetic: size -> operations, in any unit."""
    *peers, ours = (timed(build(size)) for size in sizes)
    smaller = {f"ours at {size}, scaled": Peer(run) for size, run in zip(sizes, peers, strict=False)}
    operations = tuple(arithmetic(size) for size in sizes)
    return Contest(f"{name} {sizes[0]} to {sizes[-1]}", ours, smaller, sizes=sizes, arithmetic=operations)


def length(setting: Setting, sizes: tuple[int, ...], B: int) -> Contest:
    """A training step by tokens of a sequence: T (4 d^2 + 2 d d_i) + 2 T^2 d in every layer."""
    config = BertModel.from_pretrained(setting.encoder).config
    d, d_i = config.hidden_size, config.intermediate_size

    def arithmetic(T: int) -> float:
        return T * (4 * d * d + 2 * d * d_i) + 2 * T * T * d

    return growth(f"{B} sequences of", sizes, lambda T: on_words(setting, B, T).step, arithmetic)


def batch(setting: Setting, sizes: tuple[int, ...], T: int) -> Contest:
    """A training step by examples: linear."""
    return growth("examples", sizes, lambda B: on_words(setting, B, T).step, float)


def layers(setting: Setting, sizes: tuple[int, ...], d: int, B: int, T: int) -> Contest:
    """A training step by layers of a narrow encoder with random weights: linear."""

    def build(L: int) -> Callable[[], None]:
        shape = dict(hidden_size=d, num_attention_heads=4, intermediate_size=4 * d, num_hidden_layers=L)
        torch.manual_seed(1)
        return on_words(setting, B, T, encoder=BertModel(BertConfig(**shape, vocab_size=30522))).step

    return growth("layers", sizes, build, float)


def pcgrad_tasks(setting: Setting, sizes: tuple[int, ...], parameters: int) -> Contest:
    """PCGrad on given gradients by tasks: T^2 products for the Gram matrix, T for the combination."""

    def build(T: int) -> Callable[[], torch.Tensor]:
        _, G = violating_gradients(parameters, T, setting.device)
        generator = torch.Generator().manual_seed(1)
        return lambda: pcgrad(G, generator)

    return growth("PCGrad, tasks", sizes, build, lambda T: T * T + T)
