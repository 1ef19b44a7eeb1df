"""Memory of a step, by formula: what autograd keeps is counted and compared; the course over a step adds up."""

import pytest

from mtbert.config import RunConfig
from mtbert.measure import Stepper
from mtbert.peak import PARTS, at_peak, kept_tensors, operations, step_passes, step_timeline
from mtbert.profiling import MIB
from mtbert.sizes import count_parameters

THREE = ("sst", "quora", "sts")
SHAPES = {"sst": (3, 20), "quora": (4, 28), "sts": (5, 24)}
PAL = {"adapter": "pal", "adapter_size": 8, "adapter_heads": 2}
SMALL = {"adapter_size": 6}

CONFIGS = [
    {},
    {"attention_dropout": 0.0},
    {"layers": 1},
    {"plan": "3-bert"},
    {"plan": "hybrid-1"},
    {"plan": "F1 S1"},
    {"plan": "S1 F1"},
    {"plan": "emb:F S2"},
    {"plan": "I1 S1"},
    {"plan": "S1(sst|quora,sts) I1"},
    PAL,
    {"plan": "F1 I1", **PAL, "adapter_layers": (2,)},
    {"plan": "frozen", **PAL},
    {"adapter": "low_rank", **SMALL},
    {**PAL, "adapter_heads": 3},
    {"adapter": "houlsby", **SMALL},
    {"adapter": "houlsby_pals", **SMALL},
    {"plan": "F1 I1", "adapter": "houlsby_pals", **SMALL},
    {"plan": "frozen", "adapter": "lhuc"},
    {"pairs": "concat"},
    {"pooling": "pooler"},
    {"head_layers": 2, "dropout_place": "inside"},
]


def make(tiny_encoder, **fields) -> RunConfig:
    return RunConfig.from_params(
        {"tasks": THREE, "scheme": "unified", "encoder": tiny_encoder, "max_length": 64, **fields}
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("fields", CONFIGS, ids=str)
def test_what_autograd_keeps(tiny_encoder, fields, precision):
    config = make(tiny_encoder, precision=precision, **fields)
    counted = Stepper(config, SHAPES).kept_bytes()
    assert kept_tensors(config, SHAPES)["bytes"].sum() == pytest.approx(counted, rel=0.005)


def test_of_one_task_alone(tiny_encoder):
    config = make(tiny_encoder, plan="hybrid-1", scheme="sampled")
    shapes = {"quora": (6, 40)}
    assert kept_tensors(config, shapes)["bytes"].sum() == pytest.approx(Stepper(config, shapes).kept_bytes(), rel=0.005)


def test_frozen_layers_keep_nothing(tiny_encoder):
    kept = kept_tensors(make(tiny_encoder, plan="F1 S1"), SHAPES)
    assert set(kept["level"]) == {"layer 2", "pooling", "head"}
    assert set(kept_tensors(make(tiny_encoder, plan="frozen"), SHAPES)["level"]) == {"head"}


def test_a_layer_of_ones_own_keeps_ones_own_rows(tiny_encoder):
    kept = kept_tensors(make(tiny_encoder, plan="3-bert"), SHAPES)
    mask = kept[(kept["level"] == "layer 1") & (kept["operation"] == "attention dropout")]
    mask = mask[mask["tensor"] == "dropout mask"].set_index("tasks")["bytes"]
    assert mask.to_dict() == {task: B * T * 32 for task, (B, T) in SHAPES.items()}
    shared = kept_tensors(make(tiny_encoder), SHAPES)
    shared = shared[(shared["operation"] == "attention dropout") & (shared["tensor"] == "dropout mask")]
    assert set(shared["tasks"]) == {"sst, quora, sts"} and shared["bytes"].iloc[0] == mask.sum()


def test_known_states_below_are_not_computed(tiny_encoder):
    config = make(tiny_encoder, plan="F1 S1")
    levels = {op.level for op in operations(config, SHAPES, known=THREE)}
    assert levels == {"layer 2", "pooling", "head"}
    some = [op for op in operations(config, SHAPES, known=("sst", "sts")) if op.level == "layer 1"]
    assert {op.tasks for op in some} == {("quora",)}


def test_an_evaluation_keeps_nothing(tiny_encoder):
    for fields in CONFIGS:
        steps = operations(make(tiny_encoder, **fields), SHAPES, training=False)
        assert {"layer 1", "pooling"} <= {op.level for op in steps}
        assert not any(op.kept or op.gradients or op.backward for op in steps)


def test_the_course_of_a_step(tiny_encoder):
    config = make(tiny_encoder)
    table, counts = step_timeline(config, SHAPES), count_parameters(config)
    assert table["phase"].drop_duplicates().tolist() == ["forward", "backward", "update"]
    assert table["total"].tolist() == pytest.approx(table[PARTS].sum(axis=1).tolist())
    assert set(table["weights"]) == {counts["parameters"] * 4 / MIB}
    pooler = 32 * 33  # mean pooling: its parameters never get a gradient, so that AdamW has no moments of them
    assert table["moments"].iloc[0] * MIB == 8 * (counts["trained_parameters"] - pooler)
    assert table["gradients"].iloc[-1] * MIB == 4 * (counts["trained_parameters"] - pooler)
    forward = table[table["phase"] == "forward"]["activations"]
    assert forward.is_monotonic_increasing and table["activations"].iloc[-1] == 0
    assert forward.iloc[-1] * MIB == kept_tensors(config, SHAPES)["bytes"].sum()
    assert at_peak(table)["total"] == table["total"].max()


def test_parts_of_a_batch_need_less(tiny_encoder):
    config, shapes = make(tiny_encoder), dict.fromkeys(THREE, (10, 60))
    whole, parts = step_timeline(config, shapes), step_timeline(config.but(accumulation=4), shapes)
    assert parts["activations"].max() < 0.35 * whole["activations"].max()  # three of ten rows
    passes = step_passes(config.but(accumulation=4), shapes)
    assert [part["sst"] for part in passes.examples[0]] == [(3, 60), (3, 60), (2, 60), (2, 60)]


@pytest.mark.parametrize("gradients, rows", [("pcgrad", 4), ("gem", 8)])
def test_flat_gradients(tiny_encoder, gradients, rows):
    """PCGrad: T and what they become; GEM has K memories' and its sum beside them."""
    config = make(tiny_encoder, gradients=gradients, plan="hybrid-1")
    passes = step_passes(config, SHAPES)
    shared = sum(passes.shared.values())
    levels = step_timeline(config, SHAPES)
    assert set(passes.shared) == {"embeddings.0"} | {name for name in passes.shared if name.startswith("layer 1.0 ")}
    assert levels["task gradients"].max() * MIB == rows * shared
    assert levels["gradients"].iloc[-1] * MIB == sum(passes.trained.values())


def test_steps_of_one_task_have_the_other_tasks_memories(tiny_encoder):
    config = make(tiny_encoder, gradients="agem", scheme="sampled")
    passes = step_passes(config, {"sst": (4, 20)}, memory=SHAPES)
    assert passes.memory == [[{"quora": (4, 28)}], [{"sts": (5, 24)}]] and passes.examples == [[{"sst": (4, 20)}]]


def test_soft_sharing_stacks_the_copies(tiny_encoder):
    table = step_timeline(make(tiny_encoder, plan="3-bert", soft_sharing="l2"), SHAPES)
    assert table[table["phase"] == "pull"]["temporary"].item() * MIB == 3 * 3 * 30522 * 32 * 4


def test_a_task_of_another_run(tiny_encoder):
    with pytest.raises(ValueError, match="cfimdb: not a task of the run"):
        operations(make(tiny_encoder), {"cfimdb": (2, 30)})
