"""The gradient of one step against `torch.autograd.grad` of every task's own loss, without dropout."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from mtbert.config import RunConfig
from mtbert.data.tasks import TASKS
from mtbert.gradients import WEIGHTS, pcgrad
from mtbert.gradients.gem import agem, gem
from mtbert.multitask.losses import task_loss
from mtbert.multitask.model import MultitaskBert
from mtbert.sharing.soft_sharing import soft_gradient
from mtbert.training import micro_batches
from mtbert.training import step as step_module
from mtbert.training.distillation import distillation_loss
from mtbert.training.step import Trainer
from mtbert.training.task_data import TaskData, load_corpus, prepare_task

THREE = ("sst", "quora", "sts")
ROWS = {"sst": np.arange(5), "quora": np.arange(3, 10), "sts": np.arange(10, 14)}  # a step's; numbers differ
UNIFIED = dict(scheme="unified")


@dataclass
class Step:
    """A model with its rows, and what trains it."""

    model: MultitaskBert
    tables: dict[str, TaskData]
    trainer: Trainer

    @property
    def trained(self) -> dict[str, torch.nn.Parameter]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def loss(self, task: str, rows: np.ndarray) -> Tensor:
        """The plain mean loss of one task, through the model alone."""
        logits = self.model({task: self.tables[task].tokens.batch(rows)})[task]
        return task_loss(TASKS[task], logits, self.tables[task].labels[rows])

    def naive(self, task: str, rows: np.ndarray) -> dict[str, Tensor | None]:
        """The gradient of that loss by parameter; None where it does not reach."""
        gradients = torch.autograd.grad(self.loss(task, rows), list(self.trained.values()), allow_unused=True)
        return dict(zip(self.trained, gradients, strict=True))

    def result(self) -> dict[str, Tensor | None]:
        """What the last step left in `.grad`."""
        return {name: p.grad for name, p in self.trained.items()}


@pytest.fixture
def step_of(calm_encoder, course_folder, shake) -> Callable[..., Step]:
    """Build a step of three tasks; the copies of a level differ from one another."""

    def build(**fields) -> Step:
        base = dict(corpus="course", tasks=THREE, encoder=calm_encoder, batch_size=8, head_dropout=0.0)
        config = RunConfig(**{**base, "adapter_size": 8, "adapter_heads": 2, **fields})
        torch.manual_seed(3)
        model = shake(MultitaskBert(config), 0.05)
        corpus = load_corpus(config, course_folder)
        tables = {task: prepare_task(model, task, table, torch.device("cpu")) for task, table in corpus.train.items()}
        return Step(model.train(), tables, Trainer(model, tables, total_steps=10))

    return build


Gradients = dict[str, Tensor | None]


def summed(parts: list[Gradients], weights: tuple[float, ...] = (1.0, 1.0, 1.0)) -> Gradients:
    """The weighted sum, parameter by parameter, of those that are there."""
    result = {}
    for name in parts[0]:
        there = [w * part[name] for w, part in zip(weights, parts, strict=False) if part[name] is not None]
        result[name] = torch.stack(there).sum(0) if there else None
    return result


def assert_gradients(step: Step, expected: Gradients, tolerance: float = 1e-5) -> None:
    """None where and only where expected; equal to a fraction of the largest entry elsewhere."""
    result = step.result()
    assert {name for name, g in result.items() if g is None} == {name for name, g in expected.items() if g is None}
    for name, gradient in result.items():
        if gradient is not None:
            scale = max(1.0, expected[name].abs().max().item())
            difference = (gradient - expected[name]).abs().max().item()
            assert gradient.dtype == torch.float32 and difference <= tolerance * scale, (name, difference, scale)


def shared_of(by_task: dict[str, Gradients]) -> list[str]:
    """The parameters that the losses of more than one task reach."""
    names = next(iter(by_task.values()))
    return [name for name in names if sum(part[name] is not None for part in by_task.values()) > 1]


def vector(gradients: Gradients, names: list[str], step: Step) -> Tensor:
    """These gradients side by side, float64; zeros where there is none."""
    parts = [torch.zeros_like(step.trained[name]) if gradients[name] is None else gradients[name] for name in names]
    return torch.cat([part.double().flatten() for part in parts])


def with_vector(gradients: Gradients, names: list[str], flat: Tensor, used: set[str], step: Step) -> Gradients:
    """The gradients with those of `names` replaced by parts of flat, None where not used."""
    parts = dict(zip(names, flat.split([step.trained[name].numel() for name in names]), strict=True))
    changed = {name: part.view_as(step.trained[name]) if name in used else None for name, part in parts.items()}
    return {**gradients, **changed}


# --- weighted sums -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", ["1-bert", "3-bert", "S1 I1", "S2(sst,quora|sts)", "F1 S1"])
@pytest.mark.parametrize("weights", [(), (0.5, 2.0, 3.0)])
def test_a_unified_step_is_the_gradient_of_the_weighted_sum(step_of, plan, weights):
    step = step_of(**UNIFIED, plan=plan, task_weights=weights, adapter="houlsby")
    losses = step.trainer.compute_gradients(1, ROWS)
    assert losses == pytest.approx({task: step.loss(task, rows).item() for task, rows in ROWS.items()}, rel=1e-5)
    naive = [step.naive(task, rows) for task, rows in ROWS.items()]
    assert_gradients(step, summed(naive, weights or (1.0, 1.0, 1.0)))


def test_a_sampled_step_is_the_gradient_of_its_task(step_of):
    step = step_of(plan="S1 I1", adapter="lhuc", pairs="concat+product", head_norm=True)
    assert list(step.trainer.compute_gradients(1, {"quora": ROWS["quora"]})) == ["quora"]
    assert_gradients(step, step.naive("quora", ROWS["quora"]))


def test_uncertainty_weights_are_learned(step_of):
    step = step_of(**UNIFIED, weighting="uncertainty")
    s = dict(zip(THREE, (0.3, -0.2, 1.0), strict=True))
    with torch.no_grad():
        for task, value in s.items():
            step.model.log_variances[task].fill_(value)
    losses = step.trainer.compute_gradients(1, ROWS)
    naive = [step.naive(task, rows) for task, rows in ROWS.items()]
    factors = {"sst": 1, "quora": 1, "sts": 0.5}  # sts is a regression
    weights = {task: factors[task] * math.exp(-value) for task, value in s.items()}
    expected = summed(naive, tuple(weights.values()))
    for task, weight in weights.items():  # d/ds (factor exp(-s) L + s / 2)
        expected[f"log_variances.{task}"] = torch.tensor(0.5 - weight * losses[task])
    assert_gradients(step, expected)


@pytest.mark.parametrize("task, likeliest", [("sts", 1), ("sst", 2), ("quora", 2)])
def test_uncertainty_weights_are_those_of_kendall(step_of, task, likeliest):
    """L / (2 sigma^2) + log sigma is least at sigma^2 = L, the variance; L / sigma^2 + log sigma at 2 L."""
    step, loss = step_of(**UNIFIED, weighting="uncertainty"), torch.tensor(0.7)
    s = step.model.log_variances[task]

    def weighted(variance: float) -> float:
        with torch.no_grad():
            s.fill_(math.log(variance))
        return step.trainer.loss_weights(task, loss).item()

    for variance in (0.3, 1.0, 4.0):
        divisor = 2 * variance if task == "sts" else variance
        assert weighted(variance) == pytest.approx(0.7 / divisor + math.log(math.sqrt(variance)), abs=1e-6)
    at_minimum = likeliest * 0.7
    assert weighted(at_minimum) < min(weighted(0.99 * at_minimum), weighted(1.01 * at_minimum))
    s.grad = None
    weighted(at_minimum)
    step.trainer.loss_weights(task, loss).backward()
    assert s.grad.item() == pytest.approx(0, abs=1e-6)


def test_loss_ratios_over_three_steps(step_of):
    step = step_of(**UNIFIED, weighting="loss_ratio")
    history, weights = [], (1.0, 1.0, 1.0)
    for number in range(1, 4):
        step.model.zero_grad()
        losses = step.trainer.compute_gradients(number, ROWS)
        assert_gradients(step, summed([step.naive(task, rows) for task, rows in ROWS.items()], weights))
        history.append(losses)
        roots = [math.sqrt(losses[task] / history[0][task]) for task in THREE]  # weights of the next step
        weights = tuple(3 * root / sum(roots) for root in roots)
        with torch.no_grad():
            for parameter in step.trained.values():
                parameter += 0.02 * torch.randn_like(parameter)
    assert len(set(weights)) == 3 and sum(weights) == pytest.approx(3)
    assert step.trainer.loss_weights.first == history[0] and step.trainer.loss_weights.last == history[2]


# --- teachers and R-Drop -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distil, weight", [(0.3, 0.3), ("annealed", 0.7)])
def test_a_row_learns_from_its_own_teachers(step_of, distil, weight):
    """In step 4 of 10."""
    teacher = RunConfig(corpus="course", tasks=THREE)
    step = step_of(**UNIFIED, teachers=[teacher], distil=distil, temperature=3.0)
    for task, table in step.tables.items():
        classes = (5,) if task == "sst" else ()
        table.teachers = torch.randn(len(table), *classes)
    losses = step.trainer.compute_gradients(4, ROWS)
    for task, rows in ROWS.items():
        table = step.tables[task]
        logits = step.model({task: table.tokens.batch(rows)})[task]
        expected = distillation_loss(TASKS[task], logits, table.labels[rows], table.teachers[rows], weight, 3.0)
        assert losses[task] == pytest.approx(expected.item(), rel=1e-5)


def test_r_drop_adds_its_weight_times_the_divergence(step_of, monkeypatch):
    plain = step_of(**UNIFIED).trainer.compute_gradients(1, ROWS)
    monkeypatch.setattr(step_module, "divergence", lambda task, first, second: 0 * first.sum() + 2.0)
    twice = step_of(**UNIFIED, r_drop={"sst": 0.5, "sts": 3.0}).trainer.compute_gradients(1, ROWS)
    expected = {"sst": plain["sst"] + 1, "quora": plain["quora"], "sts": plain["sts"] + 6}
    assert twice == pytest.approx(expected, rel=1e-5)


def test_a_row_that_passes_twice_without_dropout_does_not_differ_from_itself(step_of):
    plain, twice = step_of(**UNIFIED), step_of(**UNIFIED, r_drop=100.0, accumulation=2)
    assert twice.trainer.compute_gradients(1, ROWS) == pytest.approx(plain.trainer.compute_gradients(1, ROWS), rel=1e-5)
    assert_gradients(twice, plain.result())


# --- accumulation --------------------------------------------------------------------------------------------------

METHODS = {
    "sum": dict(UNIFIED),
    "pcgrad": dict(UNIFIED, gradients="pcgrad"),
    "cagrad": dict(UNIFIED, gradients="cagrad", gradient_options={"c": 0.5}),
    "gem": dict(gradients="gem", memory_batch=7),
    "gem, unified": dict(UNIFIED, gradients="gem", memory_batch=7),
    "agem": dict(gradients="agem", memory_batch=7),
}


def assert_parts_change_nothing(step_of, method: str, rows: int, cut: Callable[[], dict]) -> None:
    """The losses and gradients of a step as it is, and after `cut`, which may give fields for its configuration."""
    numbers = {"sst": np.arange(rows)} if "scheme" not in METHODS[method] else {t: np.arange(rows) for t in THREE}
    results = []
    for prepare in (dict, cut):
        step = step_of(plan="S1 I1", **METHODS[method], **prepare())
        for task in THREE:
            step.trainer.remember({task: np.arange(20, 20 + (1 if task == "sts" else 9))})
        with mock.patch.object(step_module, "task_logits", wraps=step_module.task_logits) as forward:
            losses = step.trainer.compute_gradients(4, numbers)
        results.append((step, losses, forward.call_count))
    (whole, losses, few), (parts, again, many) = results
    assert many > few, "it was cut"
    assert again == pytest.approx(losses, rel=1e-5)
    assert_gradients(parts, whole.result())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("rows", [7, 2])
def test_accumulation_changes_nothing(step_of, method, rows):
    """In three parts, also of fewer rows than parts."""
    assert_parts_change_nothing(step_of, method, rows, lambda: {"accumulation": 3})


def test_long_batches_are_cut_and_that_changes_nothing(step_of, monkeypatch):
    def cut() -> dict:
        monkeypatch.setattr(micro_batches, "UNCUT_TOKENS", 64)
        monkeypatch.setattr(micro_batches, "MICRO_BATCH_TOKENS", 64)
        return {}

    assert_parts_change_nothing(step_of, "gem, unified", 7, cut)


def test_parts_by_tokens(calm_encoder):
    def parts(shapes, cuda=False, **fields):
        fields = dict(tasks=THREE, scheme="unified", encoder=calm_encoder) | fields
        return micro_batches.micro_batch_count(RunConfig.from_params(fields), shapes, cuda)

    assert parts({"sst": (16, 128)}) == 1  # 16 x 128 x 2 = 4096
    assert parts({"sst": (17, 128)}) == 3  # 4352 / 2048
    assert parts({"sst": (17, 128)}, cuda=True) == 1
    assert parts({"sst": (8, 128), "quora": (8, 128)}) == 1
    assert parts({"sts": (8, 128)}, pairs="concat") == 1 and parts({"sts": (9, 128)}, pairs="concat") == 3
    assert parts({"sst": (32, 128)}, accumulation=2) == 2 and parts({"sst": (32, 128)}, accumulation=7) == 7
    assert parts({"sst": (33, 128)}, accumulation=2) == 5


def test_one_loss_that_is_not_finite_leaves_nothing_to_project(step_of):
    for fields in (METHODS["pcgrad"], METHODS["gem, unified"]):
        step = step_of(**fields)
        with torch.no_grad():
            step.model.heads.by_task["quora"].layers[0].bias.fill_(math.nan)
        losses = step.trainer.compute_gradients(1, ROWS)
        assert [task for task, loss in losses.items() if not math.isfinite(loss)] == ["quora"]


# --- PCGrad --------------------------------------------------------------------------------------------------------


def test_the_constants_of_a_method_reach_it(step_of, monkeypatch):
    given = []

    def mine(gram, generator, *, a=1.0):
        given.append(a)
        return torch.full((len(gram),), a, dtype=torch.float64)

    monkeypatch.setitem(WEIGHTS, "mine", mine)
    step = step_of(**UNIFIED, gradients="mine", gradient_options={"a": 0.5})
    given.clear()
    step.trainer.compute_gradients(1, ROWS)
    assert given == [0.5]


@pytest.mark.parametrize(
    "fields",
    [
        dict(plan="1-bert"),
        dict(plan="3-bert"),
        dict(plan="S1 I1", adapter="lhuc"),
        dict(plan="S2(sst,quora|sts)", adapter="houlsby"),
        dict(plan="F1 S1", pooling="pooler"),
        dict(plan="frozen", head_norm=True),
        dict(plan="hybrid-1", feeds=("sst>sts", "quora>sts"), upstream="slow"),
        dict(plan="1-bert", task_weights=(1.0, 0.5, 3.0)),
    ],
    ids=str,
)
def test_pcgrad_is_for_what_tasks_share(step_of, fields):
    step = step_of(**UNIFIED, gradients="pcgrad", seed=5, **fields)
    projected = 0
    for number in (1, 14, 20):
        rows = {task: part + number for task, part in ROWS.items()}
        step.model.zero_grad()
        step.trainer.compute_gradients(number, rows)
        naive = {task: step.naive(task, part) for task, part in rows.items()}
        for task, weight in zip(THREE, fields.get("task_weights", ()), strict=False):
            naive[task] = summed([naive[task]], (weight,))
        plain, shared = summed(list(naive.values())), shared_of(naive)
        assert bool(shared) == (fields["plan"] != "3-bert")
        expected = plain
        if shared:
            G = torch.stack([vector(part, shared, step) for part in naive.values()])
            update = pcgrad(G, torch.Generator().manual_seed(5 * 1_000_003 + number))
            expected = with_vector(plain, shared, update, set(shared), step)
            projected += not torch.allclose(update, G.sum(0))
        assert_gradients(step, expected)
    assert projected or not shared, "some of these rows are in conflict"


# --- GEM and A-GEM -------------------------------------------------------------------------------------------------


def remembered(step: Step) -> None:
    """The rows of earlier steps."""
    for task, start in (("quora", 0), ("sts", 5), ("sst", 8), ("quora", 14), ("sts", 20)):
        step.trainer.remember({task: np.arange(start, start + 12)})


def active_constraints(step: Step, tasks: tuple[str, ...], constraints: list[str]) -> list[set[str]]:
    """Compare five steps with the projection of the whole gradient; returns the constraints active in each."""
    shared = shared_of({task: step.naive(task, np.arange(2)) for task in THREE})
    active = []
    for number in range(1, 6):
        rows = {task: np.arange(6 * number, 6 * number + 4 + i) for i, task in enumerate(tasks)}
        active.append(active_in_step(step, number, rows, constraints, shared))
    return active


def active_in_step(step: Step, number: int, rows: dict, constraints: list[str], shared: list[str]) -> set[str]:
    config, memory = step.model.run_config, {}
    step.model.zero_grad()
    step.trainer.compute_gradients(number, rows)
    for task in constraints:
        examples = step.trainer.memory.sample(task, config.memory_batch, number)
        assert len(examples) == min(config.memory_batch, config.memory_size)
        assert set(examples) <= set(step.trainer.memory.rows(task))
        memory[task] = step.naive(task, examples)
    own = summed([step.naive(task, part) for task, part in rows.items()])
    g = vector(own, shared, step)
    M = torch.stack([vector(part, shared, step) for part in memory.values()])
    expected, v = {"gem": gem, "agem": agem}[config.gradients](g, M)
    active = {constraints[i] for i in v.nonzero().flatten()}
    used = {name for name in shared for part in (own, *(memory[task] for task in active)) if part[name] is not None}
    assert_gradients(step, with_vector(own, shared, expected, used, step))
    if config.gradients == "gem":
        result = vector(step.result(), shared, step)
        assert (M @ result >= -1e-6 * result.norm() * M.norm(dim=1)).all()
    return active


@pytest.mark.parametrize("gradients", ["gem", "agem"])
@pytest.mark.parametrize(
    "fields",
    [
        dict(plan="1-bert", adapter="lhuc"),
        dict(plan="S1 I1"),
        dict(plan="S2(sst,quora|sts)"),
        dict(plan="S1 S1(sst|quora,sts)", head_norm=True),  # the memories share what the step of sst does not use
    ],
    ids=str,
)
def test_other_tasks_memories_constrain_a_sampled_step(step_of, gradients, fields):
    step = step_of(gradients=gradients, memory_size=10, memory_batch=6, **fields)
    remembered(step)
    assert len(step.trainer.memory.rows("quora")) == 10
    active = active_constraints(step, ("sst",), ["quora", "sts"])
    assert any(active), "some of these steps hurt another task"


def test_the_memory_is_drawn_by_the_seed_of_the_run(step_of):
    steps = [step_of(gradients="gem", memory_size=5, seed=seed) for seed in (1, 2)]
    for step in steps:
        step.trainer.remember({"sst": np.arange(20)})
    first, second = (step.trainer.memory.rows("sst").tolist() for step in steps)
    assert first != second


def test_what_the_memories_alone_share_moves_with_an_active_constraint_alone(step_of):
    step = step_of(gradients="gem", plan="S1 S1(sst|quora,sts)", memory_batch=6)
    remembered(step)
    shared = shared_of({task: step.naive(task, np.arange(2)) for task in THREE})
    projected = 0
    for number, start in enumerate((0, 6, 12, 18, 24, 30), start=1):
        rows = {"sst": np.arange(start, start + 6)}
        is_active = bool(active_in_step(step, number, rows, ["quora", "sts"], shared))
        theirs = [p.grad is not None for name, p in step.trained.items() if name.startswith("encoder.layers.1.1.")]
        assert theirs == [is_active] * 16
        projected += is_active
        step.trainer.update(rows)
    assert 0 < projected < 6, "rows of both kinds"
    counts = step.trainer.constraint_counts
    assert (counts["steps"], counts["projected"], counts["checked"]) == (6, projected, 12)


def test_every_memory_constrains_a_unified_step(step_of):
    step = step_of(**UNIFIED, gradients="gem", plan="S1 I1", memory_size=10, memory_batch=6)
    remembered(step)
    assert any(active_constraints(step, THREE, ["quora", "sts", "sst"]))


@pytest.mark.parametrize("gradients", ["gem", "agem"])
def test_without_memories_a_step_is_plain(step_of, gradients):
    step = step_of(gradients=gradients)
    step.trainer.compute_gradients(1, {"sst": ROWS["sst"]})
    assert_gradients(step, step.naive("sst", ROWS["sst"]))
    step.trainer.remember({"sst": ROWS["sst"]})  # its own memory is no constraint
    step.model.zero_grad()
    step.trainer.compute_gradients(2, {"sst": ROWS["sst"]})
    assert_gradients(step, step.naive("sst", ROWS["sst"]))


@pytest.mark.parametrize("fields", [METHODS["pcgrad"], METHODS["gem"], METHODS["gem, unified"]])
def test_autocast_leaves_gradients_in_float32(step_of, fields):
    results = []
    for precision in ("fp32", "bf16"):
        step = step_of(precision=precision, plan="S1 I1", **fields)
        remembered(step)
        rows = ROWS if "scheme" in fields else {"sst": ROWS["sst"]}
        assert all(math.isfinite(loss) for loss in step.trainer.compute_gradients(1, rows).values())
        results.append({name: gradient for name, gradient in step.result().items() if gradient is not None})
    exact, rounded = results
    assert set(exact) == set(rounded)
    assert all(gradient.dtype == torch.float32 and gradient.isfinite().all() for gradient in rounded.values())
    assert any(not torch.equal(gradient, exact[name]) for name, gradient in rounded.items())


# --- cosines -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradients", ["sum", "pcgrad"])
@pytest.mark.parametrize(
    "fields, levels",
    [
        (dict(plan="S1 I1"), {"embeddings": "encoder.embeddings.0.", "layer 1": "encoder.layers.0.0."}),
        (
            dict(plan="emb:F S2(sst,quora|sts)", head_norm=True, pooling="pooler", pairs="sum"),
            {
                "layer 1": "encoder.layers.0.0.",
                "layer 2": "encoder.layers.1.0.",
                "pooler": "encoder.poolers.0.",
                "heads": "heads.norm.",
            },
        ),
    ],
    ids=["S1 I1", "groups"],
)
def test_recorded_cosines(step_of, gradients, fields, levels):
    step = step_of(**UNIFIED, gradients=gradients, cosine_every=2, **fields)
    for number in range(1, 6):
        step.model.zero_grad()
        step.trainer.compute_gradients(number, {task: rows + number for task, rows in ROWS.items()})
    if gradients == "sum":
        assert_gradients(step, summed([step.naive(task, rows + 5) for task, rows in ROWS.items()]))
    pairs = list(itertools.combinations(THREE, 2))
    recorded = {(c["step"], c["layer"], c["first"], c["second"]): c["cosine"] for c in step.trainer.cosines}
    assert list(recorded) == [(number, level, *pair) for number in (2, 4) for level in levels for pair in pairs]
    for (number, level, *pair), cosine in recorded.items():
        naive = {task: step.naive(task, rows + number) for task, rows in ROWS.items()}
        names = [name for name in shared_of(naive) if name.startswith(levels[level])]
        first, second = (vector(naive[task], names, step) for task in pair)
        if first.any() and second.any():
            expected = torch.cosine_similarity(first, second, dim=0).item()
            assert cosine == pytest.approx(expected, abs=1e-5)
        else:
            assert math.isnan(cosine) and "sts" in pair and level != "heads", "one of the two does not share it"


def test_a_step_with_a_loss_that_is_not_finite_leaves_the_weights(step_of):
    step = step_of(**UNIFIED)
    before = {name: p.detach().clone() for name, p in step.model.named_parameters()}
    labels = step.tables["sts"].labels
    step.tables["sts"].labels = torch.full_like(labels, math.nan)
    losses = step.trainer.step(1, ROWS)
    assert math.isnan(losses["sts"]) and math.isfinite(losses["sst"])
    assert all(torch.equal(p, before[name]) for name, p in step.model.named_parameters())
    step.tables["sts"].labels = labels
    step.trainer.step(1, ROWS)
    assert any(not torch.equal(p, before[name]) for name, p in step.model.named_parameters())


@pytest.mark.parametrize("fields", [dict(UNIFIED, cosine_every=1), dict(gradients="gem", memory_batch=4)], ids=str)
def test_gradients_computed_beside_the_step_do_not_reach_offsets(step_of, fields):
    step = step_of(feeds=("sst>quora",), upstream="slow", **fields)
    step.model.heads.add_offsets()
    offsets = step.model.heads.offsets.values()
    step.trainer = Trainer(step.model, step.tables, total_steps=10)
    step.trainer.remember({"quora": ROWS["quora"]})
    rows = ROWS if "scheme" in fields else {"sts": ROWS["sts"]}
    plain = torch.autograd.grad(sum(step.loss(task, part) for task, part in rows.items()), offsets, allow_unused=True)
    step.trainer.compute_gradients(1, rows)
    for offset, gradient in zip(offsets, plain, strict=True):
        torch.testing.assert_close(offset.grad, gradient, rtol=1e-4, atol=1e-6)


# --- soft sharing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["l2", "trace"])
@pytest.mark.parametrize("drawn", [("sst",), ("sts",), THREE])
def test_soft_sharing_pulls_the_copies_in_use(step_of, kind, drawn):
    scheme = dict(UNIFIED) if len(drawn) > 1 else {}
    step = step_of(plan="S1 I1", soft_sharing=kind, soft_strength=0.3, **scheme)
    step.trainer.compute_gradients(1, {task: ROWS[task] for task in drawn})
    expected = summed([step.naive(task, ROWS[task]) for task in drawn])
    for key, _ in step.model.encoder.layers[1][0].named_parameters():
        names = [f"encoder.layers.1.{number}.{key}" for number in range(3)]
        copies = torch.stack([step.trained[name].detach().flatten() for name in names])
        for task, name, pull in zip(THREE, names, soft_gradient(copies, kind), strict=True):
            if task in drawn:
                expected[name] = expected[name] + 0.3 * pull.view_as(step.trained[name])
            else:
                assert expected[name] is None
    assert_gradients(step, expected)


def test_the_copy_of_a_task_that_is_only_scored_pulls_no_other(step_of):
    step = step_of(**UNIFIED, tasks=("sst", "quora"), score_tasks=("sts",), plan="S1 I1", soft_sharing="l2")
    rows = {task: ROWS[task] for task in ("sst", "quora")}
    step.trainer.compute_gradients(1, rows)
    expected = step.result()
    with torch.no_grad():
        for parameter in step.model.encoder.layers[1][2].parameters():
            parameter += 100
    step.model.zero_grad()
    step.trainer.compute_gradients(1, rows)
    assert_gradients(step, expected)
