"""What the tests of the report share: rows of verdicts, a site that is built fast, a browser."""

import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import matplotlib

matplotlib.use("Agg")  # no window opens, whichever test imports pyplot first

import matplotlib.pyplot as plt
import pytest


@pytest.fixture(autouse=True)
def closed():
    """No test leaves a figure open."""
    yield
    plt.close("all")


@pytest.fixture
def shown(monkeypatch) -> list:
    """What notebooks display."""
    shown = []
    monkeypatch.setattr("mtbert_lab.report.notebook.display", shown.append)
    return shown


@pytest.fixture(scope="session")
def without_api(tmp_path_factory) -> str:
    """Stands for the file of `build`: beside it Sphinx's configuration, with empty pages of the API, which take 4 s."""
    from mtbert_lab.report import build

    folder = tmp_path_factory.mktemp("configuration")
    shutil.copytree(Path(build.__file__).parent / "site", folder / "site")
    for name in ("api.md", "api_lab.md"):
        (folder / "site" / name).write_text("# API\n")
    return str(folder / "build.py")


@pytest.fixture
def quick_site(monkeypatch, without_api):
    """Sites have empty pages of the API."""
    monkeypatch.setattr("mtbert_lab.report.build.__file__", without_api)


@pytest.fixture
def chromium(tmp_path) -> list[str]:
    """The command of a headless Chromium with a profile of its own, without a page; a test without it is skipped."""
    if not shutil.which("chromium"):
        pytest.skip("chromium is not installed")
    return ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/user"]


@pytest.fixture
def decided():
    """decided(value, verdict): a row of `decide`, with an interval of .01 to either side; more fields change it."""

    def decided(value: float, verdict: str, **about) -> SimpleNamespace:
        fields = dict(value=value, low=value - 0.01, high=value + 0.01, verdict=verdict)
        return SimpleNamespace(**fields | dict(is_small=False, seeds=3, seeds_needed=math.nan) | about)

    return decided
