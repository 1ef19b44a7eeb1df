"""The benchmarks by name, and those of growth: ours at its largest size against ours at smaller ones.

The cost at a smaller size is multiplied by the ratio of the numbers of operations. At a ratio of 1 the cost grows as
they do; above 1 it grows more slowly, because fixed costs are spread over more work. A row's slope is that of a line
through its size and all larger ones on log-log axes.
"""

from collections.abc import Callable
from pathlib import Path

import torch

from mtbert.bench import steps, sweeps
from mtbert.bench.harness import Benchmarks, Contest, Peer, Setting, timed
from mtbert.bench.steps import on_words, violating_gradients
from mtbert.bert import BertModel
from mtbert.gradients import pcgrad


def growth(name: str, sizes: tuple[int, ...], build: Callable, arithmetic: Callable[[int], float]) -> Contest:
    """build: size -> the call that is timed; arithmetic: size -> operations, in any unit."""
    *smaller, ours = (timed(build(size)) for size in sizes)
    peers = {f"ours at {size}, scaled": Peer(run) for size, run in zip(sizes, smaller, strict=False)}
    operations = tuple(arithmetic(size) for size in sizes)
    return Contest(f"{name} {sizes[0]} to {sizes[-1]}", ours, peers, sizes=sizes, arithmetic=operations)


def growth_length(setting: Setting, sizes: tuple[int, ...], B: int) -> Contest:
    """A training step by tokens of a sequence: T (4 d^2 + 2 d d_i) + 2 T^2 d in every layer."""
    config = BertModel.from_pretrained(setting.encoder).config
    d, d_i = config.hidden_size, config.intermediate_size

    def arithmetic(T: int) -> float:
        return T * (4 * d * d + 2 * d * d_i) + 2 * T * T * d

    return growth(f"{B} sequences of", sizes, lambda T: on_words(setting, B, T).step, arithmetic)


def growth_batch(setting: Setting, sizes: tuple[int, ...], T: int) -> Contest:
    """A training step by examples: linear."""
    return growth("examples", sizes, lambda B: on_words(setting, B, T).step, float)


def growth_tasks(setting: Setting, sizes: tuple[int, ...], parameters: int) -> Contest:
    """PCGrad on given gradients by tasks: T^2 products for the Gram matrix, T for the combination."""

    def build(T: int) -> Callable[[], torch.Tensor]:
        _, G = violating_gradients(parameters, T, setting.device)
        generator = torch.Generator().manual_seed(1)
        return lambda: pcgrad(G, generator)

    return growth("PCGrad, tasks", sizes, build, lambda T: T * T + T)


THREE = dict(B=16, T=30)  # a batch of each of three tasks
QUORA = dict(task="quora", longest=20, others=40)

BENCHMARKS: Benchmarks = {
    "step": (steps.training_step, (dict(B=32, T=26), dict(B=16, T=128), dict(B=8, T=512))),
    "epoch": (steps.epoch, (dict(task="sst"), dict(task="quora", rows=20_000))),
    "plans": (steps.plans, (dict(B=32, T=31, precision="bf16"),)),
    "pal": (steps.pal, (THREE | dict(s=96, heads=12),)),
    "pcgrad": (steps.pcgrad_step, (THREE,)),
    "distillation": (steps.distillation_step, (THREE,)),
    "gem": (steps.gem_projection, (dict(parameters=22_700_000, memories=3),)),
    "growth-length": (growth_length, (dict(sizes=(16, 128, 512), B=4),)),
    "growth-batch": (growth_batch, (dict(sizes=(4, 32, 256), T=26),)),
    "growth-pcgrad": (growth_tasks, (dict(sizes=(3, 8, 24), parameters=2_000_000),)),
    "memory": (steps.memory, (QUORA | dict(precision="fp32"), QUORA | dict(precision="bf16"))),
    "sweep": (sweeps.throughput, (dict(count=200, workers=2),)),
}


def settings(device: torch.device, repeats: int, data: Path | None = None) -> list[Setting]:
    """MiniLM in fp32; on a GPU also in bf16."""
    precisions = ("fp32",) if device.type == "cpu" else ("fp32", "bf16")
    return [Setting(device, precision, data=data, repeats=repeats) for precision in precisions]
