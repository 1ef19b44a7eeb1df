"""Cosines between the gradients of tasks, layer by layer."""

import math

import pytest
import torch

from mtbert.training.cosines import layer_cosines


def test_layer_cosines_are_those_of_torch():
    G = torch.randn(3, 60, generator=torch.Generator().manual_seed(0)) * torch.tensor([[1e-25], [1.0], [1e25]])
    G[1, 20:40] = 0
    spans = {"low": [slice(0, 10), slice(40, 60)], "middle": [slice(20, 40)], "high": [slice(10, 20)]}
    rows = layer_cosines(G, spans, ("sst", "quora", "sts"))
    assert [(row["layer"], row["first"], row["second"]) for row in rows] == [
        (layer, *pair) for layer in spans for pair in (("sst", "quora"), ("sst", "sts"), ("quora", "sts"))
    ]
    for row in rows:
        i, j = (("sst", "quora", "sts").index(row[which]) for which in ("first", "second"))
        parts = torch.cat([G[:, span] for span in spans[row["layer"]]], dim=1).double()
        if row["layer"] == "middle" and 1 in (i, j):
            assert math.isnan(row["cosine"])
        else:
            expected = torch.nn.functional.cosine_similarity(parts[i], parts[j], dim=0, eps=0).item()
            assert row["cosine"] == pytest.approx(expected, abs=1e-12)
    same = layer_cosines(torch.stack([G[0], 3 * G[0], -G[0]]), {"all": [slice(0, 60)]}, "abc")
    assert [row["cosine"] for row in same] == pytest.approx([1, -1, -1]) and all(-1 <= r["cosine"] <= 1 for r in same)


def test_layer_cosines_of_gradients_that_are_not_finite():
    rows = layer_cosines(torch.tensor([[1.0], [math.nan], [math.inf]]), {"all": [slice(0, 1)]}, "abc")
    assert all(math.isnan(row["cosine"]) for row in rows)
