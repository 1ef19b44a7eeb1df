"""Runs for tables and claims, made without training; a site that is built fast."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from mtbert.config import RunConfig
from mtbert.runtime import environment
from mtbert_lab.store.folders import Run
from mtbert_lab.store.runs import score_table

N = 400


def synthetic_run(config: RunConfig, right: float, parameters: float = 10, seconds: float = 1, **changes) -> Run:
    """A run that gets a share of the examples of every task right: classes 0 and 1 of sst and quora, scores of sts."""
    random, parts, points = np.random.default_rng(config.seed), [], []
    for task in config.tasks:
        labels = np.random.default_rng(len(task)).integers(2, size=N).astype(float)
        predicted = np.where(random.permutation(N) < right * N, labels, 1 - labels)
        ids = [f"{task}-{i}" for i in range(N)]
        about = dict(task=task, split="dev", id=ids, label=labels, predicted=predicted, confidence=0.5)
        parts.append(pd.DataFrame(about))
        scores = score_table(task, "dev", predicted, labels)
        points.append(scores.assign(at="last", step=12))
        points.append(scores.assign(split="train", value=scores["value"] + 0.05, at="last", step=12))
        points.append(scores.assign(value=scores["value"] + 0.01, at="best", step=6 * config.seed))
    predictions = pd.concat(parts, ignore_index=True)
    cost = {"steps": 12, "best_step": 12, "parameters": parameters, "trained_parameters": parameters // 2}
    cost |= {"train_seconds": seconds, "tokens": 1, "tokens_per_cpu_second": 100.0, "peak_memory_mib": 1.0}
    fields = dict(
        run_id=f"{config.digest}-synthetic",
        config=config,
        scores=pd.concat([points[i].drop(columns=["at", "step"]) for i in range(0, len(points), 3)]),
        curve=pd.DataFrame([{"step": 12, "dev_score": 0.5, "train_loss": 1 - right + config.seed / 100}]),
        predictions=predictions,
        cost=cost,
        provenance={**environment(torch.device("cpu")), "rows": {"train sst": 8544}},
        step_scores=pd.concat(points, ignore_index=True),
    )
    return Run(**{**fields, **changes})


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


@pytest.fixture(scope="session")
def synthetic():
    return synthetic_run
