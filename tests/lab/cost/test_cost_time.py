"""Steps are timed once for each kind, a kind is all that decides what a step computes, and timing ends in time."""

import pytest
import torch

from mtbert.multitask import MultitaskBert
from mtbert.training.graphs import StepGraphs
from mtbert_lab.cost import time
from mtbert_lab.cost.steps import Steps, padded_tokens
from mtbert_lab.cost.time import Kind, Speed, kind_of, measure_beside_mib, measure_speeds

STEPS = [{"sst": (8, T)} for T in (10, 40, 20, 30, 50)]


def kind(config, name="run", steps=STEPS, known=(), training=3.0, **fields) -> Kind:
    config = config.but(**fields)
    return kind_of(config, steps, name=name, memory={}, known=known, training=training, evaluation=1.0)


class Here:
    """Stands for a pool of processes, which monkeypatch does not reach."""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def submit(self, function, *arguments):
        self.value = function(*arguments)
        return self

    def result(self):
        return self.value


@pytest.fixture
def timed(monkeypatch) -> list:
    """Nothing is timed; a list of (kind, device, threads) that would be."""
    calls = []

    def token_seconds(kind, device, threads):
        calls.append((kind, device, threads))
        return [len(calls) / 1000, len(calls) / 3000]

    monkeypatch.setattr(time, "_process", Here)
    monkeypatch.setattr(time, "_token_seconds", token_seconds)
    return calls


def measure(*kinds, threads=1, again=False) -> dict[str, Speed]:
    return measure_speeds(kinds, "cpu", threads, again)


def test_a_kind_of_steps_is_timed_once(tiny_config, timed, capsys):
    one, longer = kind(tiny_config), kind(tiny_config, seed=2, epochs=9, learning_rate=1e-5)
    assert measure(one, longer) == {one.key: Speed(1 / 1000, 1 / 3000)}
    assert measure(longer) == {one.key: Speed(1 / 1000, 1 / 3000)}, "from the cache"
    assert capsys.readouterr().err == "timing steps of run\n"
    [(some, *machine)] = timed
    assert [shapes["sst"][1] for shapes in some.steps] == [50, 20, 40] and machine == ["cpu", 1]


def test_memory_beside_the_allocator_is_measured_once(timed, monkeypatch):
    found = iter([400.0, 500.0])
    monkeypatch.setattr(time, "_beside_mib", lambda: next(found))
    assert [measure_beside_mib(again=again) for again in (False, False, True)] == [400.0, 400.0, 500.0]


def test_what_changes_a_step_is_timed_again(tiny_config, timed):
    changes = ({"precision": "bf16"}, {"batch_size": 4}, {"plan": "F1 S1"}, {"pooling": "cls"}, {"r_drop": 1.0})
    kinds = [kind(tiny_config), *(kind(tiny_config, **fields) for fields in changes)]
    kinds.append(kind(tiny_config, plan="F1 S1", known=("sst",)))
    assert len(measure(*kinds)) == len(timed) == 7
    measure(kinds[0], threads=2)
    measure(kinds[0], threads=2, again=True)
    assert len(timed) == 9


def test_kinds_that_are_left_when_time_is_up_are_estimated(tiny_config, timed, monkeypatch, capsys):
    """By the work of a token; the next call times them."""
    one, half = kind(tiny_config, "one"), kind(tiny_config, "half", plan="F1 S1", training=1.5)
    measure(one)
    with monkeypatch.context() as patch:
        patch.setattr(time, "TIMING_SECONDS", -1.0)
        found = measure(one, half)
        assert found == {one.key: Speed(1 / 1000, 1 / 3000), half.key: Speed(0.5 / 1000, 1 / 3000)}
        assert capsys.readouterr().err.splitlines()[-1] == "not timed, but estimated: half"
        measure(one, half, again=True)
        assert [call[0].name for call in timed] == ["one", "one", "half"]
    assert measure(half) == {half.key: Speed(3 / 1000, 3 / 3000)}


def test_steps_that_fail_are_estimated(tiny_config, timed, monkeypatch, caplog):
    one, large = kind(tiny_config), kind(tiny_config, "large", batch_size=4)
    token_seconds = time._token_seconds
    monkeypatch.setattr(
        time, "_token_seconds", lambda one, *how: 1 / 0 if one.name == "large" else token_seconds(one, *how)
    )
    found = measure(one, large)
    assert found[large.key] == found[one.key] and "large: steps cannot be timed (Zero" in caplog.text
    assert str(measure(large)[large.key]) == "Speed(training=nan, evaluation=nan)"


def test_a_damaged_time_is_measured_again(tiny_config, timed, isolated):
    measure(kind(tiny_config))
    for file in (isolated / "cache" / "speed").iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    measure(kind(tiny_config))
    assert len(timed) == 2


def test_the_first_step_does_not_count(tiny_config, monkeypatch):
    """By a clock that moves by given seconds with a step, and with an evaluation."""
    now = 0.0
    seconds = iter([1000, 10, 1, 20, 2])

    def spend(*args):
        nonlocal now
        now += next(seconds)

    monkeypatch.setattr(time.time, "process_time", lambda: now)
    monkeypatch.setattr(Steps, "train", spend)
    monkeypatch.setattr(Steps, "evaluate", spend)
    steps = [{"sst": (1, T)} for T in (50, 10, 20)]
    some = Kind("run", tiny_config, steps, {}, (), 3.0, 1.0)
    assert time._token_seconds(some, "cpu", 1) == pytest.approx([30 / 30, 3 / 30])


def test_real_steps_are_timed(tiny_config):
    config = tiny_config.but(gradients="gem", tasks=("sst", "sts"), scheme="unified", pairs="sum")
    steps = [{"sst": (8, 12), "sts": (8, 16)}] * 3
    some = Kind("run", config, steps, {"sst": 12, "sts": 16}, (), 3.0, 1.0)
    training, evaluation = time._token_seconds(some, "cpu", 1)
    assert training > evaluation > 0
    assert padded_tokens(config, steps[0]) == 8 * 12 + 2 * 8 * 16


def test_a_step_trains(tiny_config):
    model = MultitaskBert(tiny_config)
    before = {name: p.clone() for name, p in model.named_parameters()}
    Steps(model, {"sst": 9}).train({"sst": (8, 9)})
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert any("layers.0" in name for name in changed) and any("heads" in name for name in changed)


@pytest.mark.parametrize("fields", [{}, {"plan": "frozen"}, {"gradients": "pcgrad"}, {"gradients": "gem"}], ids=str)
def test_rows_of_a_graph_are_made_on_the_device(tiny_config, fields, monkeypatch):
    """As on a GPU, without the capture: rows are tensors, and all tasks have one length, a multiple of 16."""
    config = tiny_config.but(tasks=("sst", "sts"), scheme="unified", pairs="sum", pos_features=True, **fields)
    run = Steps(MultitaskBert(config), {"sst": 9, "sts": 9}, graphs=True)
    asked = []
    ask = StepGraphs.__call__
    monkeypatch.setattr(StepGraphs, "__call__", lambda *args: asked.append(args[1]) or ask(*args))
    run.train({"sst": (4, 9), "sts": (4, 20)})
    assert asked and {table.is_on_device(run.model) for table in run.tables.values()} == {True}
