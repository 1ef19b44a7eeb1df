"""Prices are found again where they are known. Nothing is timed here."""

import numpy as np
import pandas as pd
import pytest

from mtbert.cost import time
from mtbert.cost.dry_run import KINDS
from mtbert.cost.time import Calibration, load_or_calibrate

PRICES = np.array([2e-12, 3e-10])


def measured(prices: np.ndarray) -> pd.DataFrame:
    """Steps that take exactly what the prices say."""
    random = np.random.default_rng(0)
    work = pd.DataFrame({kind: random.uniform(0.2, 1, 12) / price for kind, price in zip(KINDS, PRICES, strict=True)})
    return work.assign(seconds=work.to_numpy() @ prices, beside_mib=500.0)


def test_known_prices_are_found_again():
    found = Calibration(measured(PRICES))
    assert found.prices.tolist() == pytest.approx(PRICES.tolist(), rel=1e-6)
    assert found.seconds(pd.Series(1 / PRICES, index=KINDS)) == pytest.approx(2)


def test_prices_are_not_negative():
    steps = measured(PRICES * [1, 0])
    steps["seconds"] *= np.random.default_rng(0).uniform(0.8, 1.2, len(steps))
    prices = Calibration(steps).prices
    assert (prices >= 0).all() and prices["flops"] > 0


def test_a_machine_is_calibrated_once(tiny_config, monkeypatch, capsys):
    calls = []

    class Here:
        """Stands for a pool of processes, which monkeypatch does not reach."""

        def __init__(self, *args, **options):
            pass

        __enter__, __exit__ = (lambda self: self), (lambda self, *error: None)

        def submit(self, function, fields, device, threads):
            calls.append((fields["precision"], device, threads))
            return self

        def result(self):
            return measured(PRICES).to_dict("records")

    monkeypatch.setattr(time, "ProcessPoolExecutor", Here)
    first, second = load_or_calibrate(tiny_config, threads=1), load_or_calibrate(tiny_config, threads=1)
    assert calls == [("fp32", "cpu", 1)]
    said = capsys.readouterr().err
    assert said.count("calibrating this machine") == 1 and "long texts" in said and "minute" in said
    assert second.prices.tolist() == pytest.approx(first.prices.tolist())
    load_or_calibrate(tiny_config.but(precision="bf16"), threads=1)
    load_or_calibrate(tiny_config, threads=2)
    load_or_calibrate(tiny_config, threads=2, again=True)
    assert calls[1:] == [("bf16", "cpu", 1), ("fp32", "cpu", 2), ("fp32", "cpu", 2)]


def test_steps_are_measured(tiny_config, monkeypatch):
    """With the encoder and the precision asked for."""
    monkeypatch.setattr(time, "MEASURED", ("1-bert, few tokens", "PCGrad"))
    rows = time._measure_steps({"encoder": tiny_config.encoder, "precision": "bf16"}, "cpu", 1)
    assert [row["step"] for row in rows] == ["1-bert, few tokens", "PCGrad"]
    weights = 2 * (4 * 32 * 32 + 2 * 32 * 48)
    assert rows[0]["flops"] == pytest.approx(6 * weights * 3 * 8 * (15 + 14 + 13 + 12), rel=0.15)  # and attention
    assert rows[1]["flops"] > rows[0]["flops"] and all(row["seconds"] > 0 and row["beside_mib"] > 0 for row in rows)
