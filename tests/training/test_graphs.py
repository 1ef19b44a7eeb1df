"""Steps on rows in tensors, padded to one length, as CUDA graphs run them; the graphs themselves where a GPU is."""

import copy
import logging
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mtbert.config import RunConfig
from mtbert.data import FlatSequences, demo
from mtbert.data.tokens import tokenize
from mtbert.multitask.model import MultitaskBert
from mtbert.training import TrainingError, train
from mtbert.training.graphs import StepGraphs, _Captured, can_be_captured, graphs_are_on
from mtbert.training.step import Trainer
from mtbert.training.task_data import load_corpus, prepare_task
from mtbert.training.task_order import training_steps

THREE = ("sst", "quora", "sts")
CPU = torch.device("cpu")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CASES = {
    "1-bert": {},
    "1-bert, one task a step": {"scheme": "sampled"},
    "two sentences apart": {"pairs": "concat"},
    "mean": {"pooling": "mean"},
    "hybrid-1": {"plan": "S1 I1"},
    "3-bert": {"plan": "I2"},
    "soft sharing": {"plan": "I2", "soft_sharing": "l2", "soft_strength": 0.1},
    "frozen": {"plan": "F2"},
    "pal": {"adapter": "pal", "adapter_size": 8, "adapter_heads": 2},
    "pals in groups": {"adapter": "pal", "adapter_size": 8, "adapter_heads": 2, "plan": "S2(sst,sts|quora)"},
    "houlsby": {"adapter": "houlsby", "adapter_size": 8},
    "pcgrad": {"gradients": "pcgrad"},
    "cagrad": {"gradients": "cagrad"},
    "gem": {"gradients": "gem", "memory_size": 16, "memory_batch": 8, "scheme": "sampled"},
    "agem": {"gradients": "agem", "memory_size": 16, "memory_batch": 8},
    "uncertainty": {"weighting": "uncertainty"},
    "r_drop and ema": {"r_drop": 1.0, "ema": 0.9},
    "cosines": {"cosine_every": 2},
    "cosines, pcgrad": {"cosine_every": 2, "gradients": "pcgrad"},
    "fed heads": {"feeds": ["sst>quora"], "head_norm": True},
    "slow upstream heads": {"feeds": ["sst>quora"], "upstream": "slow"},
    "parts": {"accumulation": 2},
    "clipped, layers decay": {"max_grad_norm": 0.5, "layer_decay": 0.8, "weight_decay": 0.1},
    "truncated": {"max_length": 12},
}


def config_of(encoder: str, **fields) -> RunConfig:
    base = dict(tasks=THREE, encoder=encoder, batch_size=8, scheme="unified", train_rows=40, learning_rate=1e-3)
    return RunConfig.from_params({**base, "epochs": 4, "head_dropout": 0.0, **fields})


def trainers(config: RunConfig, device: torch.device, *graphs: bool) -> Iterator[Trainer]:
    """Trainers of the same model in float64 on a CPU, with and without graphs."""
    torch.manual_seed(1)
    model = MultitaskBert(config)
    corpus = load_corpus(config, demo.root())
    for is_graphed in graphs:
        own = copy.deepcopy(model).to(device)
        if device.type == "cpu" and not own.encoder.frozen_depth:  # what frozen layers give is kept in float32
            own = own.double()
        tables = {task: prepare_task(own, task, table, device, passes=4) for task, table in corpus.train.items()}
        yield Trainer(own, tables, total_steps=20, graphs=is_graphed)


def test_graphs_that_hold_the_gradients_of_every_task_are_fewer(monkeypatch):
    device = SimpleNamespace(total_memory=400)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda place: device)
    graphs = StepGraphs([], {}, 16)
    parameter = torch.zeros(5)
    of_sum = _Captured(None, parameter, {"sst": parameter}, [(parameter, parameter)])  # 20 bytes
    of_tasks = _Captured(None, parameter, ({}, torch.zeros(2, 5), parameter), [])  # 40 bytes
    assert graphs._most_graphs(of_sum, CPU) == 5
    assert graphs._most_graphs(of_tasks, CPU) == 2


def test_where_one_more_graph_is_too_many_all_go(monkeypatch):
    """With torch after 2.11 a graph that goes alone takes the workspace of the others with it."""
    synchronized = []
    monkeypatch.setattr(torch.cuda, "synchronize", synchronized.append)
    monkeypatch.setattr(StepGraphs, "_most_graphs", lambda self, captured, device: 2)
    graphs = StepGraphs([], {}, 16)
    graphs._make_room(CPU)
    graphs.pools["sum"] = (0, 1)
    for length in (16, 32):
        graphs._make_room(CPU)
        assert not synchronized
        graphs.graphs["sum", length, ()] = None
    graphs._make_room(CPU)
    assert not graphs.graphs and not graphs.pools and synchronized == [CPU]


def take_steps(trainer: Trainer, count: int) -> list[dict[str, float]]:
    lengths = {task: table.tokens.lengths for task, table in trainer.data.items()}
    steps = training_steps(trainer.config, lengths)
    losses = []
    for number in range(1, count + 1):
        by_task = trainer.step(number, next(steps))
        losses.append({task: float(loss) for task, loss in by_task.items()})
    return losses


def assert_same_weights(first: Trainer, second: Trainer, tolerance: float) -> None:
    others = second.model.state_dict()
    for name, weight in first.model.state_dict().items():
        if weight.is_floating_point():
            torch.testing.assert_close(weight, others[name], rtol=0, atol=tolerance, msg=name)


@pytest.mark.parametrize("fields", CASES.values(), ids=CASES)
def test_rows_in_tensors_train_as_rows_on_the_host_do(fields, calm_encoder):
    config = config_of(calm_encoder, **fields)
    usual, padded = trainers(config, CPU, False, True)
    for first, second in zip(take_steps(usual, 8), take_steps(padded, 8), strict=True):
        assert second == pytest.approx(first, abs=1e-6)
    assert len(padded.graphs.seen) >= 2 or config.max_length < 16, "batches of several shapes"
    assert_same_weights(usual, padded, 1e-6)


@pytest.mark.parametrize("gradients", ["sum", "pcgrad"])
@pytest.mark.parametrize("graphs", [False, True])
def test_an_encoder_that_was_just_read_drops_out_from_the_first_step_on(graphs, gradients, tiny_encoder):
    config = config_of(tiny_encoder, plan="F1 S1", frozen=False, gradients=gradients, pooling="mean")
    [trainer] = trainers(config, CPU, graphs)
    encoder = trainer.model.encoder
    encoder.eval()  # as from_pretrained gives it
    take_steps(trainer, 1)
    assert all(module.training for module in encoder.layers[1].modules())
    assert not any(module.training for module in encoder.layers[0][0].modules()), "a frozen level does not"


@pytest.mark.parametrize("pairs", ["joint", "concat"])
@pytest.mark.parametrize("max_length", [512, 11, 8])
def test_a_batch_made_on_the_device_is_the_usual_one(pairs, max_length, calm_encoder):
    corpus = load_corpus(RunConfig(tasks=THREE, train_rows=30), demo.root())
    for task, table in corpus.train.items():
        tokens = tokenize(task, table, calm_encoder, pairs, max_length)
        rows = np.random.default_rng(0).permutation(len(table))[:9]
        usual = tokens.batch(rows)
        length = usual.input_ids.size(1) + 3
        made = FlatSequences(tokens, CPU).batch(torch.from_numpy(rows), length)
        for before, after in zip(vars(usual).values(), vars(made).values(), strict=True):
            if before is None:
                assert after is None
                continue
            assert torch.equal(before, after[:, :-3])
            assert (after[:, -3:] == (tokens.pad if before is usual.input_ids else 0)).all()


def test_what_depends_on_the_host_cannot_be_captured(calm_encoder):
    assert not graphs_are_on(CPU)
    for fields, expected in [
        ({"weighting": "loss_ratio"}, False),
        ({"plan": "F1 S1"}, False),
        ({"teachers": [{"tasks": THREE}], "distil": "annealed"}, False),
        ({"teachers": [{"tasks": THREE}], "distil": 0.5}, True),
        ({}, True),
        ({"plan": "F2"}, True),
    ]:
        [trainer] = trainers(config_of(calm_encoder, **fields), CPU, False)
        assert can_be_captured(trainer.model, trainer.data) is expected, fields


def test_the_switch_turns_graphs_off(monkeypatch):
    assert graphs_are_on(torch.device("cuda"))
    monkeypatch.setenv("MTBERT_GRAPHS", "0")
    assert not graphs_are_on(torch.device("cuda"))


GPU_CASES = {name: CASES[name] for name in CASES if name not in ("frozen", "truncated", "mean")}


@needs_gpu
@pytest.mark.parametrize("fields", GPU_CASES.values(), ids=GPU_CASES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_replay_gives_the_bits_of_the_step(precision, fields, tiny_encoder, monkeypatch):
    """With dropout: the same draws."""
    config = config_of(tiny_encoder, precision=precision, **fields)
    place = torch.device("cuda")
    eager, graphed = trainers(config, place, True, True)
    monkeypatch.setattr(StepGraphs, "_capture", None)
    eager.graphs.seen = _Nothing()
    torch.manual_seed(7)
    first = take_steps(eager, 12)
    monkeypatch.undo()
    torch.manual_seed(7)
    second = take_steps(graphed, 12)
    assert graphed.graphs.graphs, "some steps were captured"
    assert first == second
    assert_same_weights(eager, graphed, 0.0)


class _Nothing(set):
    """Remembers nothing, so that no step is captured."""

    def add(self, item: object) -> None:
        pass


@needs_gpu
@pytest.mark.parametrize("name", ["1-bert", "pal", "pcgrad", "gem"])
def test_a_graphed_step_is_that_of_a_cpu(name, calm_encoder):
    config = config_of(calm_encoder, **CASES[name])
    [graphed] = trainers(config, torch.device("cuda"), True)
    [usual] = trainers(config, CPU, False)
    usual.model.float()
    for first, second in zip(take_steps(usual, 12), take_steps(graphed, 12), strict=True):
        assert second == pytest.approx(first, abs=2e-3)


@needs_gpu
@pytest.mark.parametrize("name", ["1-bert", "hybrid-1", "pal", "pcgrad", "clipped, layers decay"])
def test_the_host_does_not_wait_for_a_replayed_step(name, tiny_encoder):
    [trainer] = trainers(config_of(tiny_encoder, **CASES[name]), torch.device("cuda"), True)
    rows = {task: np.arange(8) for task in THREE}
    for number in (1, 2, 3):  # on the tensors of the graph, captured, replayed
        trainer.step(number, rows)
    torch.cuda.set_sync_debug_mode("error")
    try:
        trainer.step(4, rows)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_gpu
@pytest.mark.parametrize("name", ["1-bert", "gem"])
def test_an_interrupted_run_goes_on_bit_for_bit(name, tiny_encoder, tmp_path, monkeypatch):
    config = config_of(tiny_encoder, epochs=2, evals_per_epoch=2, **CASES[name])
    corpus = load_corpus(config, demo.root())
    whole = train(config, corpus, "cuda", progress=False)
    path = tmp_path / "checkpoint.pt"
    monkeypatch.setenv("MTBERT_CHECKPOINT_SECONDS", "0")
    step = Trainer.step

    def stop(self, number, rows):
        if number == 8:
            raise KeyboardInterrupt
        return step(self, number, rows)

    monkeypatch.setattr(Trainer, "step", stop)
    with pytest.raises(KeyboardInterrupt):
        train(config, corpus, "cuda", path, progress=False)
    monkeypatch.setattr(Trainer, "step", step)
    resumed = train(config, corpus, "cuda", path, progress=False)
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name


@needs_gpu
def test_a_loss_that_is_not_finite_names_its_step(tiny_encoder, caplog):
    caplog.set_level(logging.ERROR)
    config = config_of(tiny_encoder, learning_rate=1e30, schedule="none")
    with pytest.raises(TrainingError, match=r"at step [23] "):
        train(config, load_corpus(config, demo.root()), "cuda", progress=False)
