"""What the tests of the laboratory share."""

import logging
from contextlib import contextmanager

import pytest
import torch

from mtbert.config import RunConfig
from mtbert.data.corpus import Corpus
from mtbert_lab.cost.time import Speed


@pytest.fixture(autouse=True)
def no_line_a_minute(monkeypatch):
    """A sweep prints none where the machine is slow."""
    monkeypatch.setattr("mtbert_lab.sweep.NEWS_SECONDS", 3600.0)


class FixedSpeeds:
    """Stands for timing: a token takes a microsecond in training, a third of it in an evaluation."""

    def __init__(self) -> None:
        self.speed = Speed(1e-6, 1e-6 / 3)
        self.by_precision: dict[str, Speed] = {}
        self.asked = []  # the configurations

    def measure(self, samples, *how) -> dict[RunConfig, Speed]:
        self.asked += list(samples)
        return {config: self.by_precision.get(config.precision, self.speed) for config in samples}


@pytest.fixture
def speeds(monkeypatch) -> FixedSpeeds:
    """A machine on which nothing is timed."""
    speeds = FixedSpeeds()
    monkeypatch.setattr("mtbert_lab.cost.forecast.measure_speeds", speeds.measure)
    return speeds


@pytest.fixture
def threads_as_workers(monkeypatch):
    """A cluster whose one worker is a thread of this process, which starts in no time."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr("mtbert_lab.sweep.RETRIES", 1)
    torch.set_num_threads(1)

    @contextmanager
    def open_cluster(workers: int, scheduler: str | None):
        local = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": "127.0.0.1:0"}
        with distributed.LocalCluster(**local) as cluster, distributed.Client(cluster) as client:
            yield client

    monkeypatch.setattr("mtbert_lab.sweep.open_cluster", open_cluster)
    # Their logger is that of this process.
    monkeypatch.setattr(logging.getLogger(Corpus.__module__), "setLevel", lambda level: None)
