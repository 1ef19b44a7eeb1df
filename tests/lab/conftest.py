"""What the tests of the laboratory share."""

import re
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from typer.testing import CliRunner

from mtbert.config import RunConfig
from mtbert.paths import REPOSITORY
from mtbert.runtime import environment
from mtbert.training.loop import train
from mtbert_lab.cli import app
from mtbert_lab.store.folders import Run
from mtbert_lab.store.runs import load_or_run, score_table


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
def committed(monkeypatch) -> Path:
    """The committed results, as the store of the test."""
    monkeypatch.setenv("MTBERT_RESULTS", str(REPOSITORY / "results"))
    return REPOSITORY / "results"


@pytest.fixture(scope="session")
def run_of():
    """run_of(config): the stored run, trained here, on the processor, where it is not stored."""
    return partial(load_or_run, device="cpu", progress=False)


@pytest.fixture(scope="session")
def mtbert():
    """mtbert(*arguments): what the command gives in this process; options are those of typer's runner."""

    def mtbert(*arguments, **options):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], **options)

    return mtbert


@pytest.fixture
def topics_folder(tmp_path) -> Path:
    """A user's task of two classes, topics, with 24 texts in each split; it has no test split, as users need none."""
    about = dict(name="topics", files="topics-{split}.csv", sentence_columns=["headline"], label_column="topic")
    about |= dict(kind="classes", class_names=["sport", "weather"], id_column=None, separator=",")
    (tmp_path / "topics.yaml").write_text(yaml.safe_dump(about))
    for split in ("train", "dev"):
        rows = 12 * f"the race of {split} is won,sport\nit rains in {split},weather\n"
        (tmp_path / f"topics-{split}.csv").write_text(f"headline,topic\n{rows}")
    return tmp_path


@pytest.fixture
def train_counted(monkeypatch):
    """train_counted(before): the seeds of the runs that are trained from now on; before(config) comes ahead of each."""

    def train_counted(before=lambda config: None) -> list[int]:
        trained = []

        def counted(config, *args, **options):
            trained.append(config.seed)
            before(config)
            return train(config, *args, **options)

        monkeypatch.setattr("mtbert_lab.store.runs.train", counted)
        return trained

    return train_counted


@pytest.fixture(scope="module")
def trained(request, tiny_encoder, course_folder, tmp_path_factory, isolated_in, run_of) -> tuple[Run, Path]:
    """The first of the runs of a test's file, and the folder with their store and their cache.

    The file has the fields of their configuration in RUN, and in SEEDS the seeds where there are several.
    """
    folder = tmp_path_factory.mktemp("trained")
    config = RunConfig(corpus="course", encoder=tiny_encoder, batch_size=8, epochs=1, **request.module.RUN)
    with isolated_in(folder):
        runs = [run_of(config.but(seed=seed), course_folder) for seed in getattr(request.module, "SEEDS", (1,))]
    return runs[0], folder


@pytest.fixture
def stored(trained, isolated, course_data) -> Run:
    """The first of the runs; this test's own store and cache have a copy of all of them."""
    run, folder = trained
    shutil.copytree(folder, isolated, dirs_exist_ok=True)
    return run


@pytest.fixture(scope="session")
def cut():
    """cut(path, rows): take the last rows off a file of data."""

    def cut(path: Path, rows: int) -> None:
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-rows]))

    return cut


@pytest.fixture(scope="session")
def wait_for():
    """wait_for(condition, seconds): go on as soon as it holds; fail where it does not within these seconds."""

    def wait_for(condition: Callable[[], bool], seconds: float = 90.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "this took too long"
            time.sleep(0.05)

    return wait_for


@pytest.fixture
def grid_of(tmp_path):
    """grid_of(config): the file of a grid with this run, of the default seed, under a name; more fields change it."""

    def write(config: RunConfig, name: str = "one", **changed) -> Path:
        path, fields = tmp_path / "grid.yaml", config.model_dump(mode="json", exclude_defaults=True)
        path.write_text(yaml.safe_dump({"runs": {name: fields | changed}}, allow_unicode=True), encoding="utf8")
        return path

    return write


N = 400  # dev examples of a synthetic run


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
def synthetic():
    """Runs for tables and claims, made without training."""
    return synthetic_run


@pytest.fixture
def mostly_rejected(course_folder, tmp_path) -> Path:
    """The tiny data set, in which a class of SST is written in another way."""
    folder = shutil.copytree(course_folder, tmp_path / "rejected")
    text = (folder / "ids-sst-train.csv").read_text()
    (folder / "ids-sst-train.csv").write_text(re.sub(r"\t4\n", "\t9\n", text))
    return folder
