"""The steps of a run are timed once, and timing ends in time."""

import math
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

import pytest
import torch

from mtbert.multitask import MultitaskBert
from mtbert.training.graphs import StepGraphs
from mtbert_lab.cost import time
from mtbert_lab.cost.steps import Steps, padded_tokens
from mtbert_lab.cost.time import Sample, Speed, measure_speeds, token_seconds


def sample(config, name="run", known=(), **fields) -> Sample:
    steps = [{"sst": (8, T)} for T in (50, 20, 40)]
    return Sample(name, config.but(**fields), steps, {}, known)


class Here:
    """Stands for a pool of processes, which monkeypatch does not reach."""

    def shutdown(self):
        pass

    def submit(self, function, *arguments):
        self.value = function(*arguments)
        return self

    def result(self):
        return self.value


@pytest.fixture
def timed(monkeypatch) -> list:
    """Nothing is timed; a list of (sample, device, threads) that would be."""
    calls = []

    def seconds(sample, device, threads):
        calls.append((sample, device, threads))
        return [len(calls) / 1000, len(calls) / 3000]

    monkeypatch.setattr(time, "ProcessPoolExecutor", lambda *how, **more: Here())
    monkeypatch.setattr(time, "token_seconds", seconds)
    return calls


def measure(*samples, threads=1, seconds=math.inf) -> list[Speed | Exception]:
    found = measure_speeds({sample.config: sample for sample in samples}, "cpu", threads, seconds)
    return [found[sample.config] for sample in samples]


def test_a_run_is_timed_once(tiny_config, timed, capsys):
    run = sample(tiny_config)
    assert measure(run) == measure(run) == [Speed(1 / 1000, 1 / 3000)]
    assert capsys.readouterr().err == "timing steps of run\n"
    assert timed == [(run, "cpu", 1)]
    measure(run, threads=2)
    measure(sample(tiny_config, known=("sst",)))
    measure(replace(run, steps=[{"sst": (8, 300)}] * 3))  # another file of a task's texts
    assert len(timed) == 4


def test_runs_that_are_left_when_time_is_up_are_estimated(tiny_config, timed, capsys):
    """By the mean of the others; the next call times them."""
    one, two, late = sample(tiny_config), sample(tiny_config, batch_size=4), sample(tiny_config, "late", plan="F1 S1")
    measure(one, two)
    assert measure(one, two, late, seconds=-1.0)[-1] == Speed(pytest.approx(1.5 / 1000), pytest.approx(0.5 / 1000))
    assert capsys.readouterr().err.splitlines()[-1] == "not timed, but estimated: late (the time is up)"
    assert len(timed) == 2
    assert measure(late) == [Speed(3 / 1000, 3 / 3000)]


def test_steps_that_fail_are_estimated(tiny_config, timed, monkeypatch, capsys):
    seconds = time.token_seconds
    monkeypatch.setattr(time, "token_seconds", lambda sample, *how: 1 / 0 if sample.known else seconds(sample, *how))
    one, failing = sample(tiny_config), sample(tiny_config, "large", batch_size=4, known=("sst",))
    assert measure(one, failing) == [Speed(1 / 1000, 1 / 3000)] * 2
    assert capsys.readouterr().err.splitlines()[-1] == "not timed, but estimated: large (division by zero)"
    [error] = measure(failing)
    assert isinstance(error, ZeroDivisionError)


def test_a_run_that_kills_its_process_leaves_the_others_timed(tiny_config, timed, monkeypatch, capsys):
    class Killed(Here):
        is_broken = False

        def submit(self, function, sample, *how):
            self.is_broken = self.is_broken or bool(sample.known)
            if self.is_broken:
                raise BrokenProcessPool("killed")
            return super().submit(function, sample, *how)

    monkeypatch.setattr(time, "ProcessPoolExecutor", lambda *how, **more: Killed())
    large, one = sample(tiny_config, "large", known=("sst",)), sample(tiny_config, batch_size=4)
    assert measure(large, one) == [Speed(1 / 1000, 1 / 3000)] * 2
    assert capsys.readouterr().err.splitlines()[-1] == "not timed, but estimated: large (killed)"


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
    some = Sample("run", tiny_config, steps, {}, ())
    assert token_seconds(some, "cpu", 1) == pytest.approx([30 / 30, 3 / 30])


def test_real_steps_are_timed(tiny_config):
    config = tiny_config.but(gradients="gem", tasks=("sst", "sts"), scheme="unified", pairs="sum")
    steps = [{"sst": (8, 12), "sts": (8, 16)}] * 3
    some = Sample("run", config, steps, {"sst": 12, "sts": 16}, ())
    training, evaluation = token_seconds(some, "cpu", 1)
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
    assert asked and not any(table.needs_host(run.model) for table in run.tables.values())
