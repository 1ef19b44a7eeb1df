"""The peers compute what ours computes, where they should: then only the time differs."""

import pytest
import torch

from benchmarks import peers
from benchmarks.harness import Setting
from benchmarks.ours import Training, on_words
from benchmarks.peers import OriginalPals, TransformersModel
from benchmarks.steps import THREE, violating_gradients
from mtbert.bert.hf_checkpoints import hf_name
from mtbert.gradients.gem import gem_project


@pytest.fixture
def training(tiny_encoder, monkeypatch):
    """A run of ours on random words, in evaluation mode: no dropout."""

    def training(tasks=THREE, **fields) -> Training:
        ours = on_words(Setting(encoder=tiny_encoder), 6, 12, tasks, **fields)
        with torch.no_grad():  # heads and adapters start near zero; here their part must show
            for name, parameter in ours.model.named_parameters():
                if name.startswith("heads.") or ".adapters." in name:
                    parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
        ours.model.eval()
        monkeypatch.setattr(ours.model, "train", lambda mode=True: ours.model)  # which a step would call
        return ours

    return training


def gradients(ours: Training) -> dict[str, torch.Tensor]:
    """Of the encoder, under transformers' names."""
    names = dict(ours.model.encoder.task_encoder(ours.config.tasks[0]).named_parameters())
    return {hf_name(n): p.grad for n, p in names.items() if p.grad is not None}


def changed_by(step, model: TransformersModel, optimizer, rows) -> set[str]:
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    step(model, optimizer, rows)
    return {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}


@pytest.mark.parametrize("merged", [False, True])
def test_transformers_gives_the_same_losses_and_gradients(training, merged):
    ours = training()
    theirs = TransformersModel(ours.model, ours.tables).eval()
    losses = ours.trainer.compute_gradients(1, ours.all_rows)
    if merged:
        their_losses = theirs.merged_losses(ours.all_rows)[1]
    else:
        their_losses = [theirs.loss(task, rows) for task, rows in ours.all_rows.items()]
    assert [loss.item() for loss in their_losses] == pytest.approx([losses[task] for task in ours.all_rows], rel=1e-5)
    sum(their_losses).backward()
    expected = gradients(ours)
    found = dict(theirs.encoder.named_parameters())
    assert set(expected) == set(found)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name].grad, gradient, rtol=1e-3, atol=1e-6)


def test_a_step_of_the_usual_loop_changes_every_parameter(training):
    ours = training()
    theirs = TransformersModel(ours.model, ours.tables)
    changed = changed_by(peers.usual_step, theirs, peers.adamw(theirs, fused=True), ours.all_rows)
    assert changed == {name for name, _ in theirs.named_parameters()}
    assert all(p.grad is None for p in theirs.parameters())


def test_the_model_that_is_compiled_is_one_graph_and_computes_the_same(training):
    ours = training(("sst",))
    theirs = TransformersModel(ours.model, ours.tables).eval()
    expected = theirs.loss("sst", ours.all_rows["sst"])
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    theirs.compile(dynamic=False, backend="aot_eager")  # without code in C++, which takes a minute
    found = theirs.loss("sst", ours.all_rows["sst"])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    counts = torch._dynamo.utils.counters
    assert counts["stats"]["unique_graphs"] == 1 and not counts["graph_break"], "it has to be one graph"


@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_gem_on_the_host_is_our_projection(margin):
    pytest.importorskip("quadprog")
    g, M = violating_gradients(50_000, 3)
    before = g.clone()
    projected = peers.gem_on_the_host(g, M, margin)
    assert projected.dtype == torch.float32 and torch.equal(g, before)
    torch.testing.assert_close(projected, gem_project(g, M, margin), rtol=1e-3, atol=1e-4)


def test_torchjd_gives_our_pcgrad(training, monkeypatch):
    """Of two tasks: the order of more is drawn from another generator."""
    pytest.importorskip("torchjd")
    ours = training(("quora", "sts"), gradients="pcgrad")
    ours.trainer.compute_gradients(1, ours.all_rows)
    theirs = TransformersModel(ours.model, ours.tables).eval()
    monkeypatch.setattr(peers, "_update", lambda optimizer, losses: None)
    peers.torchjd_step(theirs, None, ours.all_rows)
    expected, found = gradients(ours), dict(theirs.encoder.named_parameters())
    plain = training(("quora", "sts"))
    plain.trainer.compute_gradients(1, plain.all_rows)
    name = "encoder.layer.0.intermediate.dense.weight"
    assert not torch.allclose(gradients(plain)[name], expected[name], rtol=1e-3), "the tasks do not conflict here"
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name].grad, gradient, rtol=1e-3, atol=1e-6)
    for task in ours.all_rows:
        head = ours.model.heads.by_task[task].layers[0]
        torch.testing.assert_close(theirs.heads[task][1].weight.grad, head.weight.grad, rtol=1e-3, atol=1e-6)


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
    changed = changed_by(peers.usual_step, theirs, theirs.optimizer(), ours.all_rows)
    assert changed == {name for name, _ in theirs.named_parameters()}


def test_the_imitation_clips_each_gradient_by_itself(pals):
    theirs, norms = pals[1], []
    for parameter in theirs.parameters():
        parameter.grad = torch.full_like(parameter, 5.0)
    optimizer = theirs.optimizer()
    optimizer.register_step_pre_hook(lambda *_: norms.extend(p.grad.norm().item() for p in theirs.parameters()))
    optimizer.step()
    assert norms == pytest.approx([1.0] * len(norms), rel=1e-3)
