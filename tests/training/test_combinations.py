"""Any options together: what a step may change follows from the plan and the tasks drawn; what does not fit is refused.

A valid combination is drawn, its model trained for three steps on a few rows of the demo corpus, and every parameter
compared with its value before the step.
"""

import math
from itertools import islice
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mtbert.config import RunConfig
from mtbert.data import TASKS, demo
from mtbert.data.corpus import Corpus
from mtbert.data.tokens import tokenize
from mtbert.multitask.heads import TAG_COUNT
from mtbert.multitask.model import MultitaskBert
from mtbert.multitask.progressive_heads import all_upstream, upstream_tasks
from mtbert.sharing.plan import SharingPlan
from mtbert.training import task_data as rows
from mtbert.training.step import Trainer
from mtbert.training.task_data import load_corpus, prepare_task
from mtbert.training.task_order import training_steps

PLANS = (
    "1-bert", "3-bert", "frozen", "hybrid-1", "S1 I1", "I1 S1", "F1 S1", "F1 I1", "S1 F1", "I2 pool:S",
    "emb:F S1 I1 pool:F", "emb:I F2", "emb:S F2 pool:I",
)  # fmt: skip
GROUPED = (
    "S2({})",
    "S1({}) I1",
    "S1 S1({})",
    "F1 S1({})",
    "emb:S I1 S1({}) pool:I",
    "emb:S({}) F1 S1",
    "S2 pool:S({})",
)
PAIRS = ("joint", "sum", "concat+product", "difference+cosine")


def params_of(random: Random) -> dict:
    """Fields of a configuration for an encoder of two layers, each value as likely as the others."""
    pick, coin = random.choice, lambda: random.random() < 0.5
    tasks = random.sample(list(TASKS), pick([1, 2, 2, 3, 3, 3]))
    scored = random.sample(list(TASKS), pick([0, 0, 1]))
    everyone = list(dict.fromkeys(tasks + scored))
    plan = pick(PLANS + GROUPED)
    if plan in GROUPED:
        number = [random.randrange(3) for _ in everyone]
        groups = {n: ",".join(t for t, m in zip(everyone, number, strict=True) if m == n) for n in number}
        plan = plan.format("|".join(groups.values()))
    params = dict(
        tasks=tasks,
        score_tasks=scored,
        plan=plan,
        frozen=plan == "1-bert" and coin(),
        adapter=pick(["none", "none", "pal", "low_rank", "houlsby", "houlsby_pals", "lhuc"]),
        pooling=pick(["pooler", "cls", "mean"]),
        pairs=pick(PAIRS),
        pos_features=coin(),
        head_layers=pick([1, 2]),
        head_norm=coin(),
        dropout_place=pick(["before", "inside", "after"]),
        scheme=pick(["sampled", "in_turn", "unified", "unified"]),
        sampling=pick(["round_robin", "sqrt", "proportional", "annealed"]),
        batch_size=6,
        accumulation=pick([1, 2, 3]),
        precision=pick(["fp32", "fp32", "bf16"]),
        max_grad_norm=pick([None, 1.0]),
        layer_decay=pick([1.0, 1.0, 0.5]),
        r_drop=pick([0.0, 0.0, 1.0, {tasks[0]: 1.0}]),
        ema=pick([None, None, 0.9]),
        seed=random.randrange(100),
    )
    levels = SharingPlan.parse(plan, everyone).levels
    learning = [name for name, level in levels.items() if level.mode != "F" and not params["frozen"]]
    learning = set(learning) - (set() if params["pooling"] == "pooler" else {"pooler"})
    trains = learning or params["adapter"] != "none" or params["head_norm"]
    if params["pairs"] != "joint" and (trains or "sts" not in tasks):
        params["similarity"] = pick(["mse", "sigmoid_cosine"])
    headless = {"sts"} if params.get("similarity") == "sigmoid_cosine" else set()
    order = random.sample(everyone, len(everyone))  # upstream first: no circle
    params["feeds"] = []
    for i, upstream in enumerate(order):
        for task in order[i + 1 :]:
            one_sentence = params["pairs"] != "joint" and TASKS[upstream].is_pair and not TASKS[task].is_pair
            if not one_sentence and not {upstream, task} & headless and coin():
                params["feeds"].append(f"{upstream}>{task}")
    if params["feeds"]:
        params["pos_features"] = False
        params |= dict(upstream=pick(["frozen", "slow", "free"]), combine=pick(["concat", "attention"]))
    if params["adapter"] != "none":
        params |= dict(adapter_size=8, adapter_heads=2)
    if params["head_layers"] > 1:
        params["head_width"] = 8
    if params["pooling"] != "pooler":
        del levels["pooler"]
    if any(level.mode == "I" for level in levels.values()) and len(tasks) > 1:
        params["soft_sharing"] = pick(["none", "l2", "trace"])
    if len(tasks) > 1 and params["scheme"] != "unified":
        params["gradients"] = pick(["sum", "gem", "agem"])
    elif len(tasks) > 1:
        params["gradients"] = pick(["sum", "pcgrad", "gem", "agem"])
        params["weighting"] = pick(["fixed", "uncertainty", "loss_ratio"])
        if params["weighting"] == "fixed" and coin():
            params["task_weights"] = [0.5, 2.0, 1.0][: len(tasks)]
        params["cosine_every"] = pick([None, 1, 2])
    if params.get("gradients") in ("gem", "agem"):
        params |= dict(memory_size=5, memory_batch=3)
    if params.get("gradients") == "gem" and coin():
        params["gradient_options"] = {"margin": 0.1}
    return params


# Drawn through a seed: hypothesis alone prefers the first values of every field.
VALID = st.randoms(use_true_random=True).map(params_of)


def trained_by(config: RunConfig, model: MultitaskBert) -> dict[str, set[str]]:
    """Name of every parameter -> the tasks whose steps train it, from the plan and the heads' feeds."""
    tasks = set(config.tasks)
    parts: dict[str, set[str]] = {"heads.norm.": tasks}
    plan = SharingPlan.parse(config.plan_text, config.scored, 2)
    places = {"embeddings": "embeddings", "layer 1": "layers.0", "layer 2": "layers.1", "pooler": "poolers"}
    for name, level in plan.levels.items():
        if level.mode != "F" and (name != "pooler" or config.pooling == "pooler"):
            parts |= {f"encoder.{places[name]}.{i}.": tasks & set(group) for i, group in enumerate(level.groups)}
    upstreams = upstream_tasks(config.feeds)
    for task in config.scored:
        fed = {other for other in config.tasks if task in all_upstream(other, upstreams)}
        users = ({task} & tasks) | (fed if config.upstream != "frozen" else set())
        if config.upstream == "slow" and len(upstreams.get(task, ())) == 1:
            # A softmax over one upstream head has no gradient, and offsets do not decay.
            parts |= {f"heads.attention.{task}.{part}.": {task} & tasks for part in ("query", "keys")}
        parts |= {f"heads.by_task.{task}.": users, f"heads.attention.{task}.": users}
        parts |= {f"encoder.adapters.{task}.": {task} & tasks, f"log_variances.{task}": {task}}
    found = {}
    for name, _ in model.named_parameters():
        fitting = [users for part, users in parts.items() if name.startswith(part)]
        found[name] = fitting[0] if fitting else set()
    return found


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """Eight training rows of every task of the demo corpus: a batch of six, and one of two."""
    return load_corpus(RunConfig(tasks=tuple(TASKS), train_rows=8), demo.root())


@pytest.fixture(scope="module", autouse=True)
def prepared():
    """Texts are tokenized once a pair encoding; tags are drawn, so that no tagger is needed."""
    kept = {}

    def tokenize_once(task, table, encoder, pairs, max_length):
        key = (task, pairs == "joint")
        if key not in kept:
            kept[key] = tokenize(task, table, encoder, pairs, max_length)
        return kept[key]

    def some_tags(task, table):
        sentences = 2 if TASKS[task].is_pair else 1
        return np.random.default_rng(0).random((len(table), TAG_COUNT * sentences), dtype=np.float32)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "tokenize", tokenize_once)
        patch.setattr(rows, "pos_features", some_tags)
        yield


@settings(max_examples=30, derandomize=True)
@given(params=VALID)
@example(params=params_of(Random(11103)))  # a slow upstream head with attention to one other
def test_a_step_changes_what_the_plan_says(params, tiny_encoder, corpus, shake):
    fixed = {"encoder": tiny_encoder, "max_length": 32, "epochs": 4, "schedule": "none", "weight_decay": 0.1}
    config = RunConfig.from_params({**params, **fixed, "learning_rate": 1e-3})
    torch.manual_seed(config.seed)
    model = shake(MultitaskBert(config), 0.02)  # nowhere 0: weight decay moves whatever a step trains
    tables = {task: prepare_task(model, task, corpus.train[task], torch.device("cpu")) for task in config.tasks}
    trainer = Trainer(model, tables, total_steps=3)
    users, remembered = trained_by(config, model), set()
    lengths = {task: table.tokens.lengths for task, table in tables.items()}
    for step, drawn in enumerate(islice(training_steps(config, lengths), 3), start=1):
        before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        losses = trainer.step(step, drawn)
        assert set(losses) == set(drawn) and all(math.isfinite(loss) for loss in losses.values())
        changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
        expected = {name for name, tasks in users.items() if tasks & set(drawn)}
        assert expected <= changed
        constrained = {name for name, tasks in users.items() if len(tasks) > 1 and tasks & remembered}
        assert changed <= expected | constrained, "of what the step does not use, what an active memory moves"
        assert all(parameter.isfinite().all() for parameter in model.parameters())
        remembered |= set(drawn) if config.gradients in ("gem", "agem") else set()
    assert bool(trainer.cosines) == bool(config.cosine_every and trainer.shared.spans)


@settings(max_examples=15, derandomize=True)
@given(params=VALID)
def test_every_scored_task_gets_predictions(params, tiny_encoder, corpus):
    config = RunConfig.from_params({**params, "encoder": tiny_encoder, "max_length": 32})
    model = MultitaskBert(config)
    for task in config.scored:
        table = corpus.train[task]
        predicted = prepare_task(model, task, table, torch.device("cpu")).predictions(model, "train")
        assert predicted["id"].tolist() == table["id"].tolist()
        assert np.isfinite(predicted["predicted"]).all()
        assert predicted["confidence"].isna().all() == TASKS[task].is_number, "numbers have no confidence"
