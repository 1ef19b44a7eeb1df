"""What the tests of the laboratory share."""

import pytest

from mtbert_lab.cost.time import Speed


@pytest.fixture(autouse=True)
def no_line_a_minute(monkeypatch):
    """A sweep prints none where the machine is slow."""
    monkeypatch.setattr("mtbert_lab.sweep.NEWS_SECONDS", 3600.0)


class FixedSpeeds:
    """Stands for `Speeds`: a token takes so many seconds in training, a third of them in an evaluation."""

    def __init__(self, seconds: float) -> None:
        self.speed = Speed(seconds, seconds / 3)
        self.asked = []  # the configurations

    def __enter__(self) -> "FixedSpeeds":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def of(self, kinds) -> dict[str, Speed]:
        self.asked += [kind.config for kind in kinds]
        return {kind.key: self.speed for kind in kinds}

    def beside_mib(self) -> float:
        return 300.0


@pytest.fixture
def speeds(monkeypatch) -> FixedSpeeds:
    """A machine on which nothing is timed: a token takes a microsecond."""
    speeds = FixedSpeeds(1e-6)
    monkeypatch.setattr("mtbert_lab.cost.forecast.Speeds", lambda device, threads, again: speeds)
    return speeds
