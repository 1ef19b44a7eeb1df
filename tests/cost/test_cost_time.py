"""Prices are found again where they are known. Nothing is timed here."""

import numpy as np
import pandas as pd
import pytest

from mtbert.cost import time
from mtbert.cost.dry_run import KINDS
from mtbert.cost.time import Calibration, fit, load_or_calibrate

PRICES = np.array([1e-5, 2e-12, 1e-12, 3e-10])


def measured(prices: np.ndarray) -> pd.DataFrame:
    """Steps that take exactly what the prices say."""
    random = np.random.default_rng(0)
    work = pd.DataFrame({kind: random.uniform(0.2, 1, 12) / price for kind, price in zip(KINDS, PRICES, strict=True)})
    return work.assign(step=[str(i) for i in range(12)], seconds=work.to_numpy() @ prices)


def test_known_prices_are_found_again():
    found = fit(measured(PRICES), {"base_mib": 500.0, "holes": 0.5})
    assert found.prices.tolist() == pytest.approx(PRICES.tolist(), rel=1e-6)
    assert found.steps["error"].abs().max() < 1e-6
    assert found.seconds(pd.Series(1 / PRICES, index=KINDS)) == pytest.approx(4)
    assert found.steps["left_out"].abs().max() < 1e-6


def test_prices_are_not_negative():
    steps = measured(PRICES * [1, 0, 1, 0])
    steps["seconds"] *= np.random.default_rng(0).uniform(0.8, 1.2, len(steps))
    assert (fit(steps, {}).prices >= 0).all()


def test_a_kind_that_no_step_has():
    steps = measured(PRICES).assign(**{"bf16 flops": 0.0})
    assert fit(steps, {}).prices["bf16 flops"] == 0


def test_memory_of_the_process_around_a_step():
    """Holes come and go with what comes and goes; weights and moments have none."""
    calibration = Calibration(pd.Series(), pd.DataFrame(), {"base_mib": 400.0, "holes": 0.5})
    moment = pd.Series({"weights": 100.0, "moments": 200.0, "total": 500.0})
    assert calibration.process_mib(moment) == 400 + 300 + 1.5 * 200
    held = [moment, pd.Series({**moment, "total": 1100.0})]
    assert time._process_memory([900.0, 1800.0], held) == {"base_mib": 300.0, "holes": 0.5}


def test_a_machine_is_calibrated_once(tiny_config, monkeypatch, capsys):
    calls = []

    def calibrate(config, device, threads):
        calls.append((config.precision, device, threads))
        return fit(measured(PRICES), {"base_mib": 1.0, "holes": 0.0})

    monkeypatch.setattr(time, "calibrate", calibrate)
    config = tiny_config
    first, second = load_or_calibrate(config, threads=1), load_or_calibrate(config, threads=1)
    assert calls == [("fp32", "cpu", 1)] and capsys.readouterr().err.count("calibrating this machine") == 1
    assert second.prices.tolist() == pytest.approx(first.prices.tolist()) and second.about == first.about
    load_or_calibrate(config.but(precision="bf16"), threads=1)
    load_or_calibrate(config, threads=2)
    assert calls[1:] == [("bf16", "cpu", 1), ("fp32", "cpu", 2)]
