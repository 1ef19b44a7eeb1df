"""RunConfig refuses what it does not know, and its digest names exactly what it holds."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mtbert.config import ConfigError, RunConfig
from mtbert.data import TASKS
from mtbert.gradients import WEIGHTS
from mtbert.sharing import ADAPTERS, Adapter
from mtbert.strict_yaml import read_yaml

# One value of every field that is not its default.
OTHER_VALUES = dict(
    corpus="course", tasks=["sts"], score_tasks=["sts"], encoder="somewhere", weights="random", frozen=True,
    pooling="cls", pairs="sum", head_dropout=0.5, attention_dropout=0.0, max_length=16, epochs=4, batch_size=8,
    learning_rate=1e-5, schedule="cosine", warmup=0.2, weight_decay=0.01, max_grad_norm=1.0, precision="bf16",
    evals_per_epoch=2, train_rows=10, seed=2,
)  # fmt: skip
# The same for fields that need others beside them, or that not all can have at once.
THREE = dict(tasks=["sst", "quora", "sts"])
UNIFIED = dict(**THREE, scheme="unified")
FEEDS = dict(**THREE, feeds=["sst>quora", "quora>sts"])
GEM = dict(**THREE, gradients="gem")
OTHER_RUNS = dict(
    augment=dict(tasks=["sts"], augment="swap"),
    plan=dict(plan="S4 I2"), soft_sharing=dict(**THREE, plan="3-bert", soft_sharing="l2"),
    soft_strength=dict(**THREE, plan="3-bert", soft_sharing="l2", soft_strength=0.5),
    adapter=dict(adapter="pal"), adapter_size=dict(adapter="pal", adapter_size=96),
    adapter_heads=dict(adapter="pal", adapter_heads=6),
    pos_features=dict(pos_features=True), similarity=dict(tasks=["sts"], pairs="concat", similarity="sigmoid_cosine"),
    head_layers=dict(head_layers=3), head_width=dict(head_layers=2, head_width=8), head_norm=dict(head_norm=True),
    dropout_place=dict(dropout_place="inside"), feeds=FEEDS,
    upstream=dict(**FEEDS, upstream="free"), combine=dict(**FEEDS, combine="attention"),
    scheme=dict(scheme="in_turn"), sampling=dict(**THREE, sampling="sqrt"), steps_per_epoch=dict(steps_per_epoch=7),
    weighting=dict(**UNIFIED, weighting="uncertainty"), task_weights=dict(**UNIFIED, task_weights=[1, 2, 0.5]),
    gradients=dict(**UNIFIED, gradients="pcgrad"),
    gradient_options=dict(**UNIFIED, gradients="cagrad", gradient_options=dict(c=0.5)),
    memory_size=dict(**GEM, memory_size=9), memory_batch=dict(**GEM, memory_batch=9),
    cosine_every=dict(**UNIFIED, cosine_every=5),
    pretrain=dict(pretrain="before"), pretrain_epochs=dict(pretrain="before", pretrain_epochs=2),
    pretrain_learning_rate=dict(pretrain="before", pretrain_learning_rate=1e-4),
    accumulation=dict(accumulation=2), layers=dict(layers=2),
    curve_rows=dict(curve_rows=9),
    layer_decay=dict(layer_decay=0.9), r_drop=dict(r_drop=0.5),
    teachers=dict(teachers=[dict(seed=2)]), distil=dict(teachers=[dict(seed=2)], distil=0.5),
    temperature=dict(teachers=[dict(seed=2)], temperature=2.0),
    ema=dict(ema=0.99), eval_spacing=dict(eval_spacing="log"), keep=dict(keep="last"),
)  # fmt: skip


@pytest.mark.parametrize(
    "params, message",
    [
        ({"epoch": 3}, "epoch: unknown key; did you mean epochs?"),
        ({"learning_rat": 1e-3}, "learning_rat: unknown key; did you mean learning_rate?"),
        ({"zzz": 3}, "zzz: unknown key"),
        ({"tasks": "sst"}, "tasks: a list is needed, got 'sst'"),
        (
            {"tasks": ["imdb"]},
            "tasks: 'imdb' is not known; MTBERT_TASKS names the folder of tasks of your own; did you mean cfimdb?",
        ),
        ({"tasks": []}, "tasks: at least one task to train on is needed"),
        ({"tasks": ["sst", "sst"]}, "tasks: a task is given twice in ['sst', 'sst']"),
        ({"score_tasks": ["sts", "sts"]}, "score_tasks: a task is given twice in ['sts', 'sts']"),
        (
            {"adapter": "gate"},
            "adapter: 'gate' is not known; for one of your own import the file that registers it; known are none, pal, "
            "low_rank, houlsby, houlsby_pals, lhuc",
        ),
        ({"schedule": "steps"}, "schedule: 'steps' is not known; known are none, linear, cosine, onecycle"),
    ],
)
def test_what_is_wrong_is_named(params, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        RunConfig.from_params(params)


@pytest.mark.parametrize(
    "field, value",
    [
        ("epochs", "3"),
        ("epochs", 2.0),
        ("epochs", True),
        ("seed", False),
        ("head_dropout", True),
        ("frozen", 1),
        ("frozen", "false"),
        ("learning_rate", 0),
        ("train_rows", 0),
        ("max_length", 3),
        ("encoder", ""),
    ],
)
def test_a_value_of_another_type_or_out_of_range_is_named(field, value):
    with pytest.raises(ConfigError, match=f"^{field}: .*, got {re.escape(repr(value))}$"):
        RunConfig.from_params({field: value})


APART = dict(**THREE, pairs="concat")


@pytest.mark.parametrize(
    "params, message",
    [
        ({"frozen": True, "plan": "S6"}, "frozen: is the plan 'frozen', and plan is 'S6'; set one of the two"),
        ({"plan": "S2(sst,sts)"}, "plan: unknown task 'sts'; the run's tasks are sst, at character 8"),
        ({"plan": "6"}, "plan: '6' cannot be read"),
        ({**THREE, "soft_sharing": "l2"}, "soft_sharing: the plan '1-bert' has no individual copies"),
        ({"plan": "3-bert", "soft_sharing": "l2"}, "soft_sharing: the plan '3-bert' has no individual copies"),
        (
            {**THREE, "plan": "S6 pool:I", "pooling": "mean", "soft_sharing": "l2"},
            "soft_sharing: the plan 'S6 pool:I' has no individual copies",
        ),
        ({"pairs": "both"}, "pairs: 'both' is neither 'joint' nor some of sum, concat, product"),
        ({"pairs": "concat+joint"}, "pairs: 'concat+joint' is neither"),
        ({"pairs": "sum+sum"}, "pairs: 'sum+sum' is neither"),
        ({"pairs": ""}, "pairs: '' is neither"),
        ({"adapter": "pal", "adapter_size": 11}, "adapter_heads: 12 heads are more than adapter_size 11"),
        ({"similarity": "sigmoid_cosine"}, "similarity: sigmoid_cosine compares two embeddings, but pairs is 'joint'"),
        ({**APART, "similarity": "sigmoid_cosine", "frozen": True}, "similarity: sigmoid_cosine has no parameters"),
        ({**APART, "similarity": "sigmoid_cosine", "plan": "F2"}, "similarity: sigmoid_cosine has no parameters"),
        ({**APART, "similarity": "sigmoid_cosine", "plan": "F2 pool:I"}, "similarity: sigmoid_cosine has no"),
        ({**THREE, "feeds": ["sst-quora"]}, "feeds: 'sst-quora' is not 'upstream>task' with two different tasks of"),
        ({**THREE, "feeds": ["sst>cfimdb"]}, "feeds: 'sst>cfimdb' is not"),
        ({**THREE, "feeds": ["sst>sst"]}, "feeds: 'sst>sst' is not"),
        ({**THREE, "feeds": ["sst>sts", "sst>sts"]}, "feeds: 'sst>sts' is given twice"),
        ({**THREE, "feeds": ["sst>sts", "sts>quora", "quora>sst"]}, "feeds: quora, sst, sts feed one another"),
        ({**THREE, "feeds": ["sst>sts", "sts>sst", "sts>quora"]}, "feeds: sst, sts feed one another"),
        (
            {**APART, "tasks": ["sts"], "similarity": "sigmoid_cosine", "pos_features": True},
            "pos_features: nothing reads them",
        ),
        ({**THREE, "feeds": ["sst>sts"], "pos_features": True}, "feeds: a head that feeds others reads no"),
        ({**APART, "feeds": ["sts>sst"]}, "feeds: 'sts>sst': the head of a pair task needs two sentences"),
        (
            {**APART, "similarity": "sigmoid_cosine", "feeds": ["sst>sts"]},
            "feeds: 'sst>sts': with similarity sigmoid_cosine sts has no head",
        ),
        ({"teachers": ["hybrids.yaml:3-bert"]}, "teachers: a teacher is a RunConfig or its fields, got 'hybrids.yaml"),
        ({"teachers": [{"plam": "S6"}]}, "teachers: plam: unknown key; did you mean plan?"),
        ({"teachers": [{"tasks": ["sts"]}]}, "teachers: 28261d260c is trained on sts, not on sst"),
        ({"teachers": {"sst": [{}]}}, "teachers: a list of configurations is needed"),
        ({"teachers": [{}, {"seed": 1}]}, "teachers: one is given twice"),
        ({"teachers": [{"corpus": "course"}]}, "teachers: 3d6ab2fffb is trained on corpus 'course', not 'demo'"),
        ({"distil": "annealed"}, "distil: needs teachers"),
        ({"temperature": 2.0}, "temperature: needs teachers"),
        ({"scheme": "unified", "gradients": "pcgrad"}, "gradients: pcgrad needs at least two tasks"),
        ({**THREE, "gradients": "pcgrad"}, "gradients: pcgrad needs several tasks in a step; scheme is 'sampled'"),
        ({**THREE, "weighting": "uncertainty"}, "weighting: needs scheme 'unified' and at least two tasks"),
        ({"scheme": "unified", "cosine_every": 5}, "cosine_every: needs scheme 'unified' and at least two tasks"),
        ({**UNIFIED, "task_weights": [1, 2]}, "task_weights: 2 weights for 3 tasks"),
        ({**UNIFIED, "task_weights": [1, 2, 0]}, "task_weights: Input should be greater than 0"),
        (
            {**UNIFIED, "task_weights": [1, 2, 1], "weighting": "loss_ratio"},
            "task_weights: are fixed, but weighting is 'loss_ratio'",
        ),
        ({**THREE, "scheme": "in_turn", "steps_per_epoch": 5}, "steps_per_epoch: an epoch of scheme 'in_turn' is one"),
        ({"batch_size": 4, "accumulation": 5}, "accumulation: 5 parts of a batch of 4 examples"),
        (
            {**UNIFIED, "batch_size": {"sst": 8, "quora": 8}},
            "batch_size: names sst, quora; the tasks are sst,",
        ),
        ({**UNIFIED, "batch_size": {"sst": 8, "quora": 8, "sts": 0}}, "batch_size: for sts: Input should be greater"),
        ({"tasks": ["sst"], "r_drop": {"quora": 1.0}}, "r_drop: names quora; the tasks are sst"),
        (
            {**UNIFIED, "batch_size": {"sst": 4, "quora": 8, "sts": 8}, "accumulation": 5},
            "accumulation: 5 parts of a ba",
        ),
        (
            {**UNIFIED, "keep": "best_per_task"},
            "keep: best_per_task needs tasks that share",
        ),
        ({**UNIFIED, "keep": "best_per_task", "plan": "3-bert", "head_norm": True}, "keep: best_per_task needs tasks"),
        ({"pretrain": "both", "plan": "S4 I2"}, "pretrain: 'both' trains the one encoder of plan '1-bert'"),
        ({"pretrain": "after", "adapter": "lhuc"}, "pretrain: 'after' trains the one encoder of plan '1-bert'"),
        ({"pretrain": "after", "frozen": True}, "pretrain: 'after' trains the one encoder of plan '1-bert'"),
        ({"tasks": ["sts"], "augment": "swap", "pretrain": "before"}, "pretrain: reads the first sentence"),
    ],
)
def test_what_does_not_fit_together_is_named(params, message):
    with pytest.raises(ConfigError) as error:
        RunConfig.from_params(params)
    assert str(error.value).startswith(message)


def test_an_adapter_without_a_method_is_named(monkeypatch):
    """Its name may be misspelt, and it would train as none."""
    misspelt = type("Nothing", (Adapter,), {"after_layr": lambda self, depth, x: x})
    monkeypatch.setitem(ADAPTERS, "nothing", misspelt)
    with pytest.raises(ConfigError, match="adapter: nothing has none of an adapter's methods, after_attention, "):
        RunConfig.from_params({"adapter": "nothing"})
    methods = {"after_layer": lambda self, depth, x: x, "after_atention": lambda self, depth, x: x}
    monkeypatch.setitem(ADAPTERS, "nothing", type("Nothing", (Adapter,), methods))
    with pytest.raises(ConfigError, match="after_atention, which nothing calls; did you mean after_attention"):
        RunConfig.from_params({"adapter": "nothing"})


def test_a_method_of_ones_own_is_tried_before_training(monkeypatch):
    monkeypatch.setitem(WEIGHTS, "mine", lambda gram: gram.diagonal())
    with pytest.raises(ConfigError, match="mine is called with Tensor, Generator and its options: too many positional"):
        RunConfig.from_params({"gradients": "mine", "tasks": ["sst", "sts"], "scheme": "unified"})


def test_a_task_that_is_only_scored_ties_no_tasks():
    assert RunConfig.from_params({"tasks": ["sst"], "score_tasks": ["sts"], "keep": "best_per_task"}).scored == (
        "sst",
        "sts",
    )


def test_a_pooler_that_nothing_reads_ties_no_tasks():
    fields = {**UNIFIED, "keep": "best_per_task", "plan": "I6 pool:S"}
    assert RunConfig.from_params(fields | {"pooling": "mean"}).keep == "best_per_task"
    with pytest.raises(ConfigError, match="sst, quora, sts share pooler under plan 'I6 pool:S'"):
        RunConfig.from_params(fields | {"pooling": "pooler"})


def test_every_fault_is_named_at_once():
    with pytest.raises(ConfigError) as error:
        RunConfig.from_params({"epochs": 0, "batchsize": 8, "pooling": "max"})
    assert all(key in str(error.value) for key in ("epochs:", "batch_size?", "pooling:"))


def test_values_as_yaml_gives_them():
    params = {"learning_rate": "1e-5", "weight_decay": 1, "tasks": ["sts"], "max_grad_norm": None}
    config = RunConfig.from_params(params)
    assert config.learning_rate == 1e-5
    assert isinstance(config.weight_decay, float) and config.weight_decay == 1.0
    assert config.tasks == ("sts",)


def test_a_run_that_overrides_what_it_merges_can_be_merged_from_outside_of_runs(tmp_path):
    """PyYAML merges such a mapping in place, and has then both values of its key."""
    first, merged = "defaults: &defaults {epochs: 2, seed: 1}", "one: &one {<<: *defaults, epochs: 4}"
    (tmp_path / "values.yaml").write_text(f"{first}\nruns: {{{merged}}}\nbase: {{<<: *one}}\n")
    content = read_yaml(tmp_path / "values.yaml")
    assert content["runs"]["one"] == content["base"] == {"epochs": 4, "seed": 1}


@pytest.mark.parametrize(
    "fields, message",
    [
        (dict(gradients="cagrad", gradient_options=dict(d=1)), "cagrad has no constant d; it has c"),
        (dict(gradients="cagrad", gradient_options=dict(c=1)), r"c is 1\.0; CAGrad needs 0 <= c < 1"),
        (dict(gradient_options=dict(c=0.5)), "sum has no constant c; it has none"),
        (dict(gradients="gem", gradient_options=dict(margin=-1)), r"margin is -1\.0; it must be finite and at least 0"),
    ],
)
def test_constants_of_a_gradient_method_are_checked(fields, message):
    with pytest.raises(ConfigError, match=f"^gradient_options: {message}$"):
        RunConfig.from_params(UNIFIED | fields)


def test_constants_are_checked_while_a_model_is_built_without_memory():
    config = RunConfig.from_params(UNIFIED | dict(gradients="cagrad", gradient_options=dict(c=0.5)))
    with torch.device("meta"):
        assert config.but(seed=2).gradient_options == {"c": 0.5}


def test_frozen_and_hashable():
    config = RunConfig()
    with pytest.raises(ValueError, match="frozen"):
        config.epochs = 5
    assert len({config, RunConfig(), RunConfig(seed=2)}) == 2


def test_but_checks_again():
    assert RunConfig().but(seed=3, epochs=1) == RunConfig(seed=3, epochs=1)
    with pytest.raises(ConfigError, match="epochs"):
        RunConfig().but(epochs=-1)


def test_the_training_task_is_scored_first_and_once():
    assert RunConfig(tasks=("sst",), score_tasks=("sts", "sst", "quora")).scored == ("sst", "sts", "quora")
    assert RunConfig(tasks=("sts",)).scored == ("sts",)


def test_digest_ignores_order_and_spelled_out_defaults():
    params = {"tasks": ["sts"], "seed": 2, "learning_rate": 1e-3}
    config = RunConfig.from_params(params)
    assert len(config.digest) == 10
    assert RunConfig.from_params(dict(reversed(params.items()))).digest == config.digest
    assert RunConfig.from_params(config.model_dump()).digest == config.digest
    assert RunConfig.from_params({**params, "learning_rate": "1e-3"}).digest == config.digest


def test_a_plan_has_the_layers_of_the_encoder():
    with pytest.raises(ConfigError, match="plan: hybrid-3: shares 3 layers; an encoder of 3 layers can share 1 to 2"):
        RunConfig.from_params({"layers": 3, "plan": "hybrid-3"})


def test_digests_never_change():
    """Stored runs are found by them."""
    assert RunConfig().digest == "44136fa355"
    assert RunConfig.from_params(OTHER_VALUES).digest == "c0c4f2f023"


def test_teachers_name_a_run_by_their_digests():
    teacher = RunConfig(seed=2)
    taught = RunConfig(teachers=(teacher,), distil="annealed")
    assert taught.changed_fields == {"teachers": [teacher.digest], "distil": "annealed"}
    assert RunConfig.from_params(taught.model_dump(mode="json")) == taught


@pytest.mark.parametrize("name", sorted(RunConfig.model_fields))
def test_digest_changes_with_every_field(name):
    changed = RunConfig.from_params(OTHER_RUNS.get(name) or {name: OTHER_VALUES[name]})
    assert getattr(changed, name) != getattr(RunConfig(), name)
    assert changed.digest != changed.but(**{name: RunConfig.model_fields[name].default}).digest


@pytest.mark.parametrize(
    "fields",
    [
        dict(soft_strength=0.5), dict(pretrain_epochs=2), dict(pretrain_learning_rate=1e-4), dict(head_width=8),
        dict(adapter_size=9), dict(adapter_heads=6), dict(memory_size=9), dict(memory_batch=9), dict(upstream="free"),
        dict(combine="attention"), dict(sampling="sqrt"),
    ],
    ids=str,
)  # fmt: skip
def test_a_field_without_effect_names_no_run(fields):
    base = RunConfig(tasks=("sst", "sts"), scheme="unified")
    assert base.but(**fields).digest == base.digest


def test_a_field_with_an_effect_names_the_run():
    assert RunConfig(adapter_size=96, adapter="pal").digest != RunConfig(adapter="pal").digest
    attention = RunConfig.from_params({**FEEDS, "combine": "attention"})
    assert attention.but(head_width=8).digest != attention.digest, "attention in front of a head has this width"


def test_the_metric_that_chooses_the_kept_model_names_the_run(monkeypatch):
    best, last = RunConfig(), RunConfig(keep="last")
    before = best.digest, last.digest
    monkeypatch.setitem(TASKS, "sst", TASKS["sst"].model_copy(update={"metric": "macro_f1"}))
    assert best.digest != before[0], "another step may be the best one"
    assert last.digest == before[1]


@given(st.dictionaries(st.sampled_from(sorted(OTHER_VALUES)), st.none() | st.integers() | st.floats() | st.text()))
def test_any_parameters_give_a_configuration_or_a_named_error(params):
    try:
        config = RunConfig.from_params(params)
    except ConfigError as error:
        assert any(str(error).startswith(name) or f"; {name}" in str(error) for name in params)
    else:
        assert RunConfig.from_params(config.model_dump(mode="json")) == config


def test_printed_a_field_a_line():
    lines = str(RunConfig(seed=7)).splitlines()
    assert len(lines) == len(RunConfig.model_fields) and "seed: 7" in lines
