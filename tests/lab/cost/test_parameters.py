"""Parameters are counted without the model as the model counts them, and as the papers' formulas say."""

import pytest

from mtbert.bert import BertConfig
from mtbert.config import RunConfig
from mtbert.multitask.model import MultitaskBert, meta_model, parameter_counts
from mtbert_lab.cost import compare_parameters

THREE = ("sst", "quora", "sts")

CONFIGS = [
    {},
    {"plan": "3-bert", "adapter": "pal", "adapter_size": 8, "adapter_heads": 2},
    {"plan": "S1 I1", "adapter": "pal", "adapter_size": 8, "adapter_heads": 3},
    {"plan": "hybrid-1", "adapter": "houlsby_pals", "adapter_size": 4},
    {"plan": "F1 S1", "adapter": "houlsby", "adapter_size": 4},
    {"plan": "hybrid-1", "adapter": "low_rank", "adapter_size": 4},
    {"plan": "frozen", "adapter": "lhuc", "head_layers": 3, "head_norm": True},
    {"plan": "S1(sst|quora,sts) I1", "pairs": "concat+product", "pos_features": True},
    {"layers": 1, "plan": "emb:F S1 pool:I", "pooling": "pooler"},
    {"feeds": ("sst>quora", "quora>sts"), "combine": "attention", "similarity": "mse"},
    {"weighting": "uncertainty", "scheme": "unified", "tasks": THREE},
    {"pairs": "sum", "similarity": "sigmoid_cosine"},
]


@pytest.mark.parametrize("fields", CONFIGS, ids=str)
def test_counts_are_the_models(tiny_encoder, fields):
    config = RunConfig.from_params({"tasks": THREE, "encoder": tiny_encoder, **fields})
    model = MultitaskBert(config)
    assert compare_parameters({"": config})[["parameters", "trained"]].values.tolist() == [
        list(parameter_counts(model).values())
    ]


def test_sizes_of_another_encoder_need_no_checkpoint():
    """A PAL of s = 204: 2sd + 12 (3s^2) and biases; the 12 layers: 12 (4d^2 + 2 d d_i) and biases, norms (001)."""
    config = RunConfig(tasks=THREE, adapter="pal")
    table = meta_model(config, BertConfig()).table()["parameters"]
    assert table["adapters"] == 3 * (2 * 204 * 768 + 204 + 768 + 12 * 3 * (204**2 + 204))
    d, d_i = 768, 3072
    assert table.filter(like="layer").sum() == 12 * (4 * d * d + 2 * d * d_i + 4 * d + d_i + d + 4 * d)


def test_configurations_side_by_side(tiny_encoder):
    base = RunConfig(tasks=THREE, encoder=tiny_encoder)
    table = compare_parameters({"1-bert": base, "3-bert": base.but(plan="3-bert"), "frozen": base.but(plan="frozen")})
    assert table.loc["3-bert", "encoder"] == 3 * table.loc["1-bert", "encoder"]
    assert table.loc["frozen", "trained"] == table.loc["frozen", "heads"] == 33 * 5 + 33 + 33
    assert table["times one encoder"].round(1).tolist() == [1.0, 3.0, 1.0]
