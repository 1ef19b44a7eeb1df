"""What the tests of faults share: a store and a cache with trained runs, which a test may damage."""

import shutil
from pathlib import Path

import pytest

from mtbert.config import RunConfig
from mtbert_lab.store.run import Run


@pytest.fixture(scope="module")
def trained(request, tiny_encoder, course_folder, tmp_path_factory, isolated_in, run_of) -> tuple[Run, Path]:
    """The first of the runs with the SEEDS of the test's file, and the folder with their store and their cache."""
    folder = tmp_path_factory.mktemp("trained")
    config = RunConfig(corpus="course", encoder=tiny_encoder, batch_size=8, epochs=1, frozen=True)
    with isolated_in(folder):
        runs = [run_of(config.but(seed=seed), course_folder) for seed in request.module.SEEDS]
    return runs[0], folder


@pytest.fixture
def stored(trained, isolated, course_data) -> Run:
    """The first run; this test's own store and cache have a copy of all of them."""
    run, folder = trained
    shutil.copytree(folder, isolated, dirs_exist_ok=True)
    return run
