"""The peers compute what ours computes, where they should: then only the time differs."""

import numpy as np
import pytest
import torch

from mtbert import peers
from mtbert.bench import Setting
from mtbert.bench_steps import THREE, Training, violating_gradients, words_table
from mtbert.gradients import gem_project
from mtbert.layouts import their_name
from mtbert.peers import TransformersModel
from mtbert.peers_pals import OriginalPals, PerParameterAdam

CPU = torch.device("cpu")


@pytest.fixture
def training(tiny_encoder):
    """A run of ours on random words, in evaluation mode: no dropout."""

    def training(tasks=THREE, rows=6, **fields) -> Training:
        setting = Setting(CPU, encoder=tiny_encoder)
        tables = {task: words_table(task, rows, 12, tiny_encoder, seed) for seed, task in enumerate(tasks)}
        ours = Training(setting, tables, **fields)
        with torch.no_grad():  # heads and adapters start near zero; here their part must show
            for name, parameter in ours.model.named_parameters():
                if name.startswith("heads.") or ".adapters." in name:
                    parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
        ours.model.eval()
        return ours

    return training


def gradients(ours: Training) -> dict[str, torch.Tensor]:
    """Of the encoder, under transformers' names."""
    names = dict(ours.model.encoder.task_encoder(ours.config.tasks[0]).named_parameters())
    return {their_name(n): p.grad for n, p in names.items() if p.grad is not None}


@pytest.mark.parametrize("merged", [False, True])
def test_transformers_gives_the_same_losses_and_gradients(training, merged):
    ours = training()
    theirs = TransformersModel(ours.model, ours.tables).eval()
    losses = ours.trainer.updates.gradients(1, ours.all_rows)
    if merged:
        their_losses = theirs.losses(*theirs.merged(ours.all_rows), ours.all_rows)
    else:
        their_losses = {task: theirs.loss(task, rows) for task, rows in ours.all_rows.items()}
    assert {task: loss.item() for task, loss in their_losses.items()} == pytest.approx(losses, rel=1e-5)
    sum(their_losses.values()).backward()
    expected = gradients(ours)
    found = dict(theirs.encoder.named_parameters())
    assert set(expected) == set(found)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name].grad, gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("step", [peers.usual_step, peers.merged_step])
def test_a_step_of_the_usual_loop_changes_every_parameter(training, step):
    ours = training()
    theirs = TransformersModel(ours.model, ours.tables)
    before = {name: p.detach().clone() for name, p in theirs.named_parameters()}
    step(theirs, peers.adamw(theirs, fused=True), ours.all_rows)
    assert all(not torch.equal(p, before[name]) for name, p in theirs.named_parameters())
    assert all(p.grad is None for p in theirs.parameters())


def test_random_batches_hold_every_row_once():
    batches = peers.random_batches(10, 4, seed=1)
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert sorted(np.concatenate(batches)) == list(range(10))


def test_the_usual_predictions_are_ours(training):
    ours = training(("quora",), rows=20)
    with torch.no_grad():  # half of the rows on either side
        ours.model.heads.by_task["quora"].layers[0].bias.sub_(ours.tables["quora"].logits().median() + 1e-4)
    theirs = TransformersModel(ours.model, ours.tables)
    predicted = peers.usual_predictions(theirs, "quora", iter(np.split(np.arange(20), 4)))
    expected = ours.tables["quora"].predictions("dev")["predicted"].to_numpy()
    assert (predicted == expected).all() and 0 < expected.mean() < 1


@pytest.mark.parametrize("solver", ["quadprog", "scipy"])
@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_gem_on_the_host_is_our_projection(solver, margin):
    if solver == "quadprog":
        pytest.importorskip("quadprog")
    g, M = violating_gradients(50_000, 3, CPU)
    before = g.clone()
    projected = peers.gem_on_the_host(g, M, margin, solver)
    assert projected.dtype == torch.float32 and torch.equal(g, before)
    torch.testing.assert_close(projected, gem_project(g, M, margin), rtol=1e-3, atol=1e-4)
    assert (M @ projected >= -1e-3 * M.norm(dim=1) * projected.norm()).all()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("chunk", [None, 1])
def test_torchjd_gives_our_pcgrad(training, chunk):
    """Of two tasks: the order of more is drawn from another generator."""
    pytest.importorskip("torchjd")
    ours = training(("sst", "sts"), gradients="pcgrad")
    ours.trainer.updates.gradients(1, ours.all_rows)
    theirs = TransformersModel(ours.model, ours.tables).eval()
    peers.torchjd_gradients(theirs, ours.all_rows, chunk)
    expected, found = gradients(ours), dict(theirs.encoder.named_parameters())
    plain = training(("sst", "sts"))
    plain.trainer.updates.gradients(1, plain.all_rows)
    name = "encoder.layer.0.intermediate.dense.weight"
    assert not torch.allclose(gradients(plain)[name], expected[name], rtol=1e-3), "the tasks do not conflict here"
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name].grad, gradient, rtol=1e-3, atol=1e-6)
    for task in ours.all_rows:
        head = ours.model.heads.by_task[task].layers[0]
        torch.testing.assert_close(theirs.heads[task][1].weight.grad, head.weight.grad, rtol=1e-3, atol=1e-6)


def test_a_torchjd_step_changes_the_weights(training):
    pytest.importorskip("torchjd")
    ours = training()
    theirs = TransformersModel(ours.model, ours.tables)
    before = {name: p.detach().clone() for name, p in theirs.named_parameters()}
    peers.torchjd_step(theirs, peers.adamw(theirs, fused=True), ours.all_rows)
    assert all(not torch.equal(p, before[name]) for name, p in theirs.named_parameters())


def test_a_package_that_is_not_there_is_named_with_what_to_do():
    assert peers.not_installed("numpy") == ""
    assert peers.not_installed("no_such_package") == (
        "no_such_package is not installed: pip install --no-deps no_such_package"
    )


@pytest.fixture
def pals(training) -> tuple[Training, OriginalPals]:
    ours = training(adapter="pal", adapter_size=12, adapter_heads=3)
    return ours, OriginalPals(ours.model, ours.tables)


def test_the_imitation_of_the_original_pals_computes_our_pals(pals):
    ours, theirs = pals
    theirs.eval()
    batches = {task: table.tokens.batch(ours.all_rows[task]) for task, table in ours.tables.items()}
    with torch.no_grad():
        for task, logits in ours.model(batches).items():
            torch.testing.assert_close(theirs(task, batches[task]), logits, rtol=1e-4, atol=1e-5)
            assert logits.std() > 1e-3


def test_the_imitation_gives_every_parameter_its_gradient(pals):
    ours, theirs = pals
    before = {name: p.detach().clone() for name, p in theirs.named_parameters()}
    theirs.step(PerParameterAdam(theirs.parameters(), lr=1e-3), ours.all_rows)
    assert all(not torch.equal(p, before[name]) for name, p in theirs.named_parameters())


def test_the_per_parameter_adam_is_its_formula():
    parameter, left_alone = torch.nn.Parameter(torch.tensor([3.0, 4.0])), torch.nn.Parameter(torch.ones(1))
    optimizer = PerParameterAdam([parameter, left_alone], lr=0.1, weight_decay=0.01, max_norm=1.0)
    p, m, v = parameter.detach().numpy().astype(np.float64).copy(), 0.0, 0.0
    for gradient in ([30.0, 40.0], [0.1, -0.2]):
        parameter.grad = torch.tensor(gradient)
        g = np.array(gradient) / max(1.0, np.linalg.norm(gradient))
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        p -= 0.1 * (m / (np.sqrt(v) + 1e-6) + 0.01 * p)
        optimizer.step()
    np.testing.assert_allclose(parameter.detach().numpy(), p, rtol=1e-5)
    assert left_alone.item() == 1
