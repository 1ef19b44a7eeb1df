"""What is drawn at random in a run: weights, subsets, batches, tasks, dropout, masked tokens, GEM's memory."""

import hashlib

import numpy as np
import pytest
import torch

from mtbert.batches import train_batches
from mtbert.bert.cpu_ops import keep_mask
from mtbert.config import RunConfig
from mtbert.data import Corpus, demo
from mtbert.gradients import EpisodicMemory
from mtbert.multitask import MultitaskBert
from mtbert.training.loop import _subset
from mtbert.training.masked_lm import mask_tokens
from mtbert.training.task_order import training_steps

LENGTHS = {"sst": np.full(80, 5), "quora": np.full(200, 5), "sts": np.full(40, 5)}


def digest(numbers: np.ndarray | torch.Tensor) -> str:
    values = np.asarray(numbers).astype("<i8")
    return hashlib.sha256(values.tobytes()).hexdigest()[:16]


def test_the_draws_of_a_run_stay_as_they_are():
    """The stored runs rest on them: a run that is trained again is bit-equal only where it draws the same.

    The numbers are those of version 0.22.0. No source has them.
    """
    batches = train_batches(np.arange(200) % 17, 8, 1, 0)
    assert batches[0].tolist() == [47, 13, 31, 99, 65, 66, 135, 101]
    assert digest(np.concatenate(batches)) == "780d0287623b20f4"

    config = RunConfig(tasks=tuple(LENGTHS), batch_size=8, epochs=2, sampling="sqrt", seed=1)
    tasks = [next(iter(step)) for step in training_steps(config, LENGTHS)]
    assert tasks[:8] == ["quora", "sts", "sst", "sts", "quora", "quora", "sts", "quora"]
    assert digest([config.tasks.index(task) for task in tasks]) == "ecbf30fe55970b89"

    torch.manual_seed(0)
    dropped = ~keep_mask(torch.Size([2**18]), 0.1)  # a draw in 65,536 is on the threshold
    assert dropped.nonzero().flatten()[:8].tolist() == [0, 12, 13, 19, 22, 23, 42, 72]
    assert digest(dropped) == "9b58a9c0a1905329"

    ids = torch.arange(1000, 2024).view(8, 128)
    can_be_masked = torch.ones_like(ids, dtype=torch.bool)
    corrupted, targets = mask_tokens(ids, can_be_masked, 103, 30522, generator=torch.Generator().manual_seed(0))
    assert targets[targets != -100][:8].tolist() == [1002, 1003, 1012, 1027, 1035, 1043, 1044, 1057]
    assert digest(targets) == "87c5417008d0411f"
    assert digest(corrupted) == "0224576894efb74c"

    memory = EpisodicMemory(8, 0)
    memory.add("sst", np.arange(100))
    assert memory.rows("sst").tolist() == [67, 33, 68, 93, 4, 87, 94, 26]
    assert memory.sample("sst", 3, step=0).tolist() == [87, 93, 33]


def test_the_subsets_of_a_run_stay_as_they_are():
    """Of the training rows by its seed, and of the rows that a point of its curve reads, the same for every seed."""
    tables = Corpus.load(demo.root(), ("sst", "sts"), ("sst", "sts"), train_rows=5, seed=1).train
    assert [name[:6] for name in tables["sst"]["id"]] == ["828319", "da2a96", "d9288c", "f599e9", "88111f"]
    assert [name[:6] for name in tables["sts"]["id"]] == ["d27b25", "9909f9", "77e3e8", "e463a2", "5800e4"]
    assert _subset(7, 20).tolist() == [2, 3, 4, 6, 13, 16, 19]


def test_the_first_weights_of_a_run_stay_as_they_are():
    """The order in which its parts are drawn: encoder, adapters, heads, their attention."""
    config = RunConfig(
        tasks=tuple(LENGTHS), weights="random", layers=1, adapter="pal", adapter_size=24, adapter_heads=4,
        feeds=("sst>quora", "sst>sts", "quora>sts"), combine="attention", head_norm=True, head_layers=2, head_width=8,
    )  # fmt: skip
    torch.manual_seed(3)
    model = MultitaskBert(config)
    first = {
        "encoder.embeddings.0.position.weight": [0.0421487, 0.0091642],
        "encoder.poolers.0.weight": [0.0044742, -0.0057147],
        "encoder.adapters.sst.encode.weight": [0.0257788, 0.0130147],
        "encoder.adapters.sts.attention.0.value.weight": [0.0150615, -0.0236637],
        "heads.by_task.sst.layers.0.weight": [0.0115658, 0.0078805],
        "heads.by_task.sts.layers.1.weight": [-0.3137824, -0.0375687],
        "heads.attention.sts.values.1.weight": [0.1367425, -0.7506716],
    }
    for name, weights in first.items():
        assert model.get_parameter(name).flatten()[:2].tolist() == pytest.approx(weights, abs=1e-6)
