"""What the tests of the laboratory share."""

from pathlib import Path

import pytest
import yaml

from mtbert.config import RunConfig
from mtbert_lab.cost.time import Speed


@pytest.fixture(scope="session", autouse=True)
def no_shared_data(isolated_session):
    """The datasets next to the repository are hidden; a test that reads them names their folder (`real_data`)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mtbert_lab.paths.SHARED", isolated_session / "no shared data")
        yield


@pytest.fixture(autouse=True)
def no_line_a_minute(monkeypatch):
    """A sweep prints none where the machine is slow."""
    monkeypatch.setattr("mtbert_lab.sweep.NEWS_SECONDS", 3600.0)


@pytest.fixture
def grid_of(tmp_path):
    """grid_of(config): the file of a grid with this run, of the default seed, under a name; more fields change it."""

    def write(config: RunConfig, name: str = "one", **changed) -> Path:
        path, fields = tmp_path / "grid.yaml", config.model_dump(mode="json", exclude_defaults=True)
        path.write_text(yaml.safe_dump({"runs": {name: fields | changed}}, allow_unicode=True), encoding="utf8")
        return path

    return write


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
