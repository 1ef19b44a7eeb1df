"""The work of a step is counted from shapes; prices are found again where they are known. Nothing is timed here."""

import numpy as np
import pandas as pd
import pytest

from mtbert import speed
from mtbert.config import RunConfig
from mtbert.speed import KINDS, STEPS, Calibration, fit, load_or_calibrate, step_work

THREE = ("sst", "quora", "sts")
SHAPES = {"sst": (4, 10), "quora": (4, 20), "sts": (4, 15)}
TOKENS = 4 * (10 + 20 + 15)
LAYER = 4 * 32 * 32 + 2 * 32 * 48  # weights of the matrix products of one layer


def make(tiny_encoder, **fields) -> RunConfig:
    return RunConfig.from_params(
        {"tasks": THREE, "scheme": "unified", "encoder": tiny_encoder, "max_length": 64, **fields}
    )


def test_six_operations_a_weight_and_token(tiny_encoder):
    """2 of the forward pass, 4 of the backward pass; frozen layers below all that is trained have no backward pass."""
    assert step_work(make(tiny_encoder), SHAPES)["products"] == 2 * 6 * LAYER * TOKENS
    frozen = step_work(make(tiny_encoder, plan="F1 S1"), SHAPES)["products"]
    assert frozen == (2 + 6) * LAYER * TOKENS - 2 * 3 * 32 * 32 * TOKENS  # nothing flows on below Q, K and V
    known = step_work(make(tiny_encoder, plan="F1 S1"), SHAPES, known=THREE)["products"]
    assert frozen - known == 2 * LAYER * TOKENS


def test_scores_grow_with_the_square_of_the_length(tiny_encoder):
    once, twice = (step_work(make(tiny_encoder), {"sst": (4, T)})["scores"] for T in (20, 40))
    assert twice == 4 * once == 4 * 2 * 3 * 3 * (4 * 4 * 20 * 20)  # layers, operations, passes, numbers


def test_weights_of_each_plan_are_made_and_updated(tiny_encoder):
    one, three = (step_work(make(tiny_encoder, plan=plan), SHAPES) for plan in ("1-bert", "3-bert"))
    assert three["updates"] == pytest.approx(3 * one["updates"], rel=0.01)
    assert one["gradients"] == one["updates"]  # one look-up of words for all tasks
    parts = step_work(make(tiny_encoder, accumulation=4), SHAPES)
    assert parts["passes"] == 4 and parts["gradients"] > 3.9 * parts["updates"]


def test_flat_gradients_are_counted(tiny_encoder):
    pcgrad, gem = (step_work(make(tiny_encoder, gradients=name), SHAPES) for name in ("pcgrad", "gem"))
    assert pcgrad["passes"] == 3 and gem["passes"] == 6
    assert gem["flat"] / pcgrad["flat"] == pytest.approx(13 / 9)


def measured(prices: np.ndarray, tiny_encoder) -> pd.DataFrame:
    """Steps that take exactly what the prices say."""
    rows = []
    for name, (fields, (examples, tokens)) in STEPS.items():
        small = {
            "plan": {"hybrid-3": "hybrid-1", "F3 S3": "F1 S1"}.get(fields.get("plan", ""), fields.get("plan", "1-bert"))
        }
        layers = {"layers": 1} if "layers" in fields else {}
        config = make(tiny_encoder, **{**fields, **small, **layers, "max_length": 512, "tasks": THREE})
        work = step_work(config, dict.fromkeys(THREE, (examples, tokens)))
        rows.append({"step": name, **work, "seconds": float(work[KINDS] @ prices)})
    return pd.DataFrame(rows)


def test_known_prices_are_found_again(tiny_encoder):
    prices = np.array([2e-12, 1e-9, 3e-10, 1e-9, 8e-10, 1e-9, 1e-4, 1e-3])
    found = fit(measured(prices, tiny_encoder), {"base_mib": 500.0, "holes": 0.5})
    assert found.steps["predicted"].tolist() == pytest.approx(found.steps["seconds"].tolist(), rel=1e-6)
    assert found.steps["error"].abs().max() < 1e-6
    work = step_work(make(tiny_encoder), SHAPES)
    assert found.seconds(work) == pytest.approx(work[KINDS] @ prices, rel=0.02)
    assert 0 <= found.error == found.steps["left_out"].abs().median()


def test_prices_are_not_negative(tiny_encoder):
    steps = measured(np.array([2e-12, 0, 0, 1e-9, 0, 0, 1e-4, 0]), tiny_encoder)
    steps["seconds"] *= np.random.default_rng(0).uniform(0.8, 1.2, len(steps))
    assert (fit(steps, {}).prices >= 0).all()


def test_memory_of_the_process_around_a_step():
    """Holes come and go with what comes and goes; weights and moments have none."""
    calibration = Calibration(pd.Series(), pd.DataFrame(), {"base_mib": 400.0, "holes": 0.5})
    moment = pd.Series({"weights": 100.0, "moments": 200.0, "total": 500.0})
    assert calibration.process_mib(moment) == 400 + 300 + 1.5 * 200
    held = [moment, pd.Series({**moment, "total": 1100.0})]
    assert speed._process_memory([900.0, 1800.0], held) == {"base_mib": 300.0, "holes": 0.5}


def test_a_machine_is_calibrated_once(tiny_encoder, monkeypatch):
    calls = []

    def calibrate(config, device, threads):
        calls.append((config.precision, device, threads))
        return fit(measured(np.full(len(KINDS), 1e-9), tiny_encoder), {"base_mib": 1.0, "holes": 0.0})

    monkeypatch.setattr(speed, "calibrate", calibrate)
    config = make(tiny_encoder)
    first, second = load_or_calibrate(config, threads=1), load_or_calibrate(config, threads=1)
    assert calls == [("fp32", "cpu", 1)]
    assert second.prices.tolist() == pytest.approx(first.prices.tolist()) and second.about == first.about
    load_or_calibrate(config.but(precision="bf16"), threads=1)
    load_or_calibrate(config, threads=2)
    assert calls[1:] == [("bf16", "cpu", 1), ("fp32", "cpu", 2)]
