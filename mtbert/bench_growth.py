"""How cost grows: ours at its largest size against ours at smaller ones, scaled as the arithmetic grows.

A ratio of 1 is growth like the arithmetic's; above 1 the cost grows more slowly, because what does not depend on the
size is spread over more work. Slopes are of the logarithms, between the smaller size and the largest.
"""

import time
import tracemalloc
from collections.abc import Callable

import numpy as np
import torch

from mtbert.bench import Contest, Peer, Run, Setting
from mtbert.bench_steps import Training, one, violating_gradients, words_table
from mtbert.bert import BertConfig, BertModel
from mtbert.gradients import FlatGradients, gem_project, pcgrad
from mtbert.samplers import training_steps
from mtbert.tokens import Ragged, TokenizedTable, load_tokenizer, train_batches

REACH = 0.9  # a tenth for what a machine does beside
MIB = 2**20


def _growth(
    name: str,
    sizes: tuple[int, ...],
    build: Callable[[int], Run],
    arithmetic: Callable[[int], float],
    **options: object,
) -> Contest:
    """A contest of the largest size against each smaller one; arithmetic: size -> operations, in any unit."""
    *smaller, largest = sizes
    peers = {}
    for size in smaller:
        scale = arithmetic(largest) / arithmetic(size)
        peers[f"ours at {size}, scaled"] = Peer(build(size), reach=REACH, scale=scale, span=largest / size)
    return Contest(f"{name} {smaller[0]} to {largest}", build(largest), peers, **options)


def length(setting: Setting, sizes: tuple[int, ...], B: int) -> Contest:
    """A training step by tokens of a sequence: T (4 d^2 + 2 d d_i) + 2 T^2 d in every layer."""
    config = _step(setting, B, 8).model.encoder.config
    d, d_i = config.hidden_size, config.intermediate_size

    def build(T: int) -> Run:
        return one(_step(setting, B, T).step)

    return _growth(f"{B} sequences of", sizes, build, lambda T: T * (4 * d * d + 2 * d * d_i) + 2 * T * T * d)


def batch(setting: Setting, sizes: tuple[int, ...], T: int) -> Contest:
    """A training step by examples: linear."""
    return _growth("examples", sizes, lambda B: one(_step(setting, B, T).step), float)


def layers(setting: Setting, sizes: tuple[int, ...], d: int, B: int, T: int) -> Contest:
    """A training step by layers of a narrow encoder with random weights: linear."""

    def build(L: int) -> Run:
        config = BertConfig(
            hidden_size=d, num_attention_heads=4, intermediate_size=4 * d, num_hidden_layers=L, vocab_size=30522
        )
        torch.manual_seed(1)
        return one(_step(setting, B, T, BertModel(config)).step)

    return _growth("layers", sizes, build, float)


def _step(setting: Setting, B: int, T: int, encoder: BertModel | None = None) -> Training:
    return Training(setting, {"sst": words_table("sst", B, T, setting.encoder)}, encoder=encoder)


def pcgrad_tasks(setting: Setting, sizes: tuple[int, ...], parameters: int) -> Contest:
    """PCGrad on given gradients by tasks: T^2 products for the Gram matrix, T for the combination."""

    def build(T: int) -> Run:
        _, G = violating_gradients(parameters, T, setting.device)
        generator = torch.Generator().manual_seed(1)
        return one(pcgrad, G, generator)

    return _growth("PCGrad, tasks", sizes, build, lambda T: T * T + T)


def gem_memories(setting: Setting, sizes: tuple[int, ...], parameters: int) -> Contest:
    """GEM's projection by memories: (K + 1)^2 products for the Gram matrix, K + 1 for the combination."""

    def build(K: int) -> Run:
        g, M = violating_gradients(parameters, K, setting.device)
        return one(gem_project, g, M)

    return _growth("GEM, memories", sizes, build, lambda K: (K + 1) ** 2 + K + 1)


def passes(setting: Setting, sizes: tuple[int, ...], B: int, T: int) -> Contest:
    """A pass, a backward pass and a flat gradient for each task, and PCGrad on them.

    The arithmetic: 3 B T multiply-adds with every number in the layers' matrices for a task, and the Gram matrix. There
    are four task names: the same one comes again and again, each time with rows of its own.
    """
    tables = {"sst": words_table("sst", B * max(sizes), T, setting.encoder)}
    encoder = Training(setting, tables).model.encoder
    matrices = sum(p.numel() for p in encoder.layers.parameters())
    everything = sum(p.numel() for p in encoder.parameters())

    def arithmetic(tasks: int) -> float:
        return tasks * 3 * B * T * matrices + tasks**2 * everything

    def build(tasks: int) -> Run:
        training = Training(setting, tables)
        flat = FlatGradients({name: p for name, p in training.model.named_parameters() if p.requires_grad})
        generator = torch.Generator().manual_seed(1)

        def run(repeat: int) -> None:
            G = flat.empty(tasks)
            for row, part in zip(G, np.split(training.all_rows["sst"][: B * tasks], tasks), strict=True):
                training.trainer.updates.gradients(1, {"sst": part})
                used = flat.take(row)[1]
            flat.put(pcgrad(G, generator), used)
            training.trainer.update(training.all_rows)

        return run

    return _growth("passes, tasks", sizes, build, arithmetic)


def sampled_tasks(setting: Setting, sizes: tuple[int, ...], rows: int) -> Contest:
    """Which task comes next and on which rows, for a step of an epoch, by tasks of `rows` examples: constant."""
    config = _step(setting, 2, 8).config

    def build(tasks: int) -> Run:
        lengths = np.random.default_rng(1).integers(5, 60, rows)
        named = {f"task {i}": lengths for i in range(tasks)}

        def run(repeat: int) -> int:
            return sum(1 for _ in training_steps(config.but(epochs=1), named))

        return run

    return _growth("the next step, tasks", sizes, build, _constant, unit="ms/step")


def dataset(setting: Setting, sizes: tuple[int, ...], part: str, B: int = 32, batches: int = 200) -> Contest:
    """Cost of a training batch by rows of the dataset.

    part 'time': to assemble it and, shared out, to draw the epoch's order, constant; 'memory': what assembling it
    allocates, constant; 'order': what the epoch's order holds, linear.
    """
    unit, arithmetic = {"time": ("ms/batch", _constant), "memory": ("MiB", _constant), "order": ("MiB", float)}[part]

    def build(rows: int) -> Run:
        table = _synthetic_tokens(rows, setting.encoder)

        def order(repeat: int) -> list[np.ndarray]:
            return train_batches(table.lengths, B, 1, repeat + 1)

        def milliseconds(repeat: int) -> float:
            started = time.perf_counter()
            drawn = order(repeat)
            ordered = time.perf_counter()
            for some in drawn[:batches]:
                table.batch(some)
            assembled = time.perf_counter()
            return 1000 * ((ordered - started) / len(drawn) + (assembled - ordered) / len(drawn[:batches]))

        longest = np.argsort(-table.lengths, kind="stable")[:B]
        return {
            "time": milliseconds,
            "memory": lambda repeat: _allocated(lambda: table.batch(longest)),
            "order": lambda repeat: _allocated(lambda: order(repeat)),
        }[part]

    return _growth(f"{part}, rows", sizes, build, arithmetic, unit=unit, timed=False)


def _constant(size: int) -> float:
    return 1.0


def _synthetic_tokens(rows: int, encoder: str) -> TokenizedTable:
    """Random token ids of 3 to 60 tokens a row."""
    random = np.random.default_rng(1)
    offsets = np.concatenate(([0], np.cumsum(random.integers(3, 61, rows))))
    ids = random.integers(1000, 30000, offsets[-1], dtype=np.int32)
    return TokenizedTable([Ragged(ids, offsets)], load_tokenizer(encoder), joint=True, max_length=512)


def _allocated(make: Callable[[], object]) -> float:
    """Peak of what Python and numpy allocate meanwhile, in MiB."""
    tracemalloc.start()
    try:
        make()
        return tracemalloc.get_traced_memory()[1] / MIB
    finally:
        tracemalloc.stop()
