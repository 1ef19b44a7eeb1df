"""Steps are timed once for each kind, and a kind is all that decides what a step computes."""

import pytest
import torch

from mtbert.multitask import MultitaskBert
from mtbert_lab.cost import time
from mtbert_lab.cost.steps import Steps, padded_tokens
from mtbert_lab.cost.time import Speed, Speeds

STEPS = [{"sst": (8, T)} for T in (10, 40, 20, 30, 50)]


class Here:
    """Stands for a pool of processes, which monkeypatch does not reach."""

    def __init__(self, *args, **options):
        pass

    def shutdown(self):
        pass

    def submit(self, function, *arguments):
        self.value = function(*arguments)
        return self

    def result(self):
        return self.value


@pytest.fixture
def timed(monkeypatch) -> list:
    """Nothing is timed; a list of (configuration, steps, device, threads) that would be."""
    calls = []

    def token_seconds(config, steps, memory, known, device, threads):
        calls.append((config, steps, device, threads))
        return [len(calls) / 1000, len(calls) / 3000]

    monkeypatch.setattr(time, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(time, "_token_seconds", token_seconds)
    monkeypatch.setattr(time, "_beside_mib", lambda: [400.0])
    return calls


def test_a_kind_of_steps_is_timed_once(tiny_config, timed, capsys):
    with Speeds(threads=1) as speeds:
        first = speeds.of(tiny_config, STEPS, {}, ())
        assert first == Speed(1 / 1000, 1 / 3000) and speeds.beside_mib() == 400
        assert speeds.of(tiny_config.but(seed=2, epochs=9, learning_rate=1e-5), STEPS[:2], {}, ()) == first
    assert Speeds(threads=1).of(tiny_config, STEPS, {}, ()) == first  # from the cache
    assert len(timed) == 1 and capsys.readouterr().err.count("timing steps on this machine") == 1
    [(_, steps, *machine)] = timed
    assert [shapes["sst"][1] for shapes in steps] == [50, 20, 40] and machine == ["cpu", 1]


def test_what_changes_a_step_is_timed_again(tiny_config, timed):
    speeds = Speeds(threads=1)
    speeds.of(tiny_config, STEPS, {}, ())
    for fields in ({"precision": "bf16"}, {"batch_size": 4}, {"plan": "F1 S1"}, {"pooling": "cls"}, {"r_drop": 1.0}):
        speeds.of(tiny_config.but(**fields), STEPS, {}, ())
    speeds.of(tiny_config.but(plan="F1 S1"), STEPS, {}, ("sst",))
    assert len(timed) == 7
    Speeds(threads=2).of(tiny_config, STEPS, {}, ())
    again = Speeds(threads=2, again=True)
    again.of(tiny_config, STEPS, {}, ())
    again.of(tiny_config, STEPS, {}, ())
    assert len(timed) == 9


def test_a_damaged_time_is_measured_again(tiny_config, timed, isolated):
    Speeds(threads=1).of(tiny_config, STEPS, {}, ())
    for file in (isolated / "cache" / "speed").iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    Speeds(threads=1).of(tiny_config, STEPS, {}, ())
    assert len(timed) == 2


def test_the_first_step_does_not_count(tiny_config, monkeypatch):
    """By a clock that moves by given seconds with a step, and with an evaluation."""
    now = 0.0
    seconds = iter([1000, 10, 1, 20, 2])

    def spend(*args):
        nonlocal now
        now += next(seconds)

    monkeypatch.setattr(time.time, "process_time", lambda: now)
    monkeypatch.setattr(Steps, "gradients", spend)
    monkeypatch.setattr(Steps, "update", lambda self: None)
    monkeypatch.setattr(Steps, "evaluate", spend)
    steps = [{"sst": (1, T)} for T in (50, 10, 20)]
    assert time._token_seconds(tiny_config, steps, {}, (), "cpu", 1) == pytest.approx([1.0, 0.1])


def test_real_steps_are_timed(tiny_config):
    config = tiny_config.but(gradients="gem", tasks=("sst", "sts"), scheme="unified", pairs="sum")
    steps = [{"sst": (8, 12), "sts": (8, 16)}] * 3
    training, evaluation = time._token_seconds(config, steps, {"sst": 12, "sts": 16}, (), "cpu", 1)
    assert training > evaluation > 0
    assert padded_tokens(config, steps[0]) == 8 * 12 + 2 * 8 * 16


def test_a_step_trains(tiny_config):
    model = MultitaskBert(tiny_config)
    before = {name: p.clone() for name, p in model.named_parameters()}
    run = Steps(model, {"sst": 9})
    run.gradients({"sst": (8, 9)})
    run.update()
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert any("layers.0" in name for name in changed) and any("heads" in name for name in changed)
