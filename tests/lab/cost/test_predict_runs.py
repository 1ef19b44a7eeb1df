"""Runs of a sweep get their minutes and their memory."""

import logging

import pytest

from mtbert_lab.cost import predict_runs
from mtbert_lab.cost.forecast import cost_key, predict_costs
from mtbert_lab.cost.lengths import read_lengths
from mtbert_lab.sweep import SweepRun, describe, look_up, train_missing


def test_what_teachers_predict_is_priced_once(tiny_config, course_data, speeds, threads_as_workers):
    base = tiny_config.but(epochs=1)
    student = base.but(teachers=[base.but(seed=2), base.but(seed=3)])
    runs = predict_runs(look_up([("student", student), ("another", student.but(seed=2)), ("plain", base)]))
    minutes = {run.name: run.minutes for run in runs}
    cost = predict_costs([("base", base)])[cost_key(base)]
    assert minutes["plain"] == minutes["another"] == minutes["teacher of student"] == cost.minutes
    tokens = sum(read_lengths(base).train["sst"])
    assert minutes["student"] - minutes["another"] == pytest.approx(2 * tokens * speeds.speed.evaluation / 60)
    train_missing(look_up([("another", student.but(seed=2))]), device="cpu")
    [taught] = predict_runs(look_up([("student", student)]))
    assert taught.minutes == minutes["plain"], "what its teachers predict is stored"


def test_runs_are_predicted_once_for_all_seeds(tiny_config, course_data, speeds, monkeypatch, caplog):
    config = tiny_config.but(keep="last")
    pairs = [("a", config), ("long", config.but(epochs=20)), ("a", config.but(seed=2))]
    wrong = {"too deep": tiny_config.but(plan="S9"), "no encoder": tiny_config.but(encoder="nowhere/none")}
    monkeypatch.setattr("mtbert.bert.hub._download", lambda name: 1 / 0)
    runs = look_up(pairs) + [SweepRun(name, config, name, False) for name, config in wrong.items()]
    with caplog.at_level(logging.WARNING):
        a, long, again, too_deep, no_encoder = predict_runs(runs, "cpu", 1)
    assert a.minutes == again.minutes > 0 and a.mib == again.mib > 300
    assert long.minutes == pytest.approx(10 * a.minutes, rel=0.1)
    assert too_deep.minutes is too_deep.mib is no_encoder.minutes is no_encoder.mib is None
    assert "too deep, seed 1: no prediction (PlanError" in caplog.text
    assert "no encoder, seed 1: no prediction (ZeroDivisionError" in caplog.text
    assert len(speeds.asked) == 2, "the seeds of a run share a prediction"


def test_memory_is_predicted_where_it_is_asked_for(tiny_config, course_data, speeds):
    runs = predict_runs(look_up([("a", tiny_config)]), "cpu", 1, with_memory=False)
    assert all(run.minutes > 0 and run.mib is None for run in runs)
    assert "memory" not in describe(runs, 1)
