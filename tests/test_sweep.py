"""Grids: what is wrong in a file is named; runs are trained in processes of their own."""

import pytest

from mtbert.config import ConfigError, RunConfig
from mtbert.results import load_or_run
from mtbert.sweep import read_grid, run_grid

GRID = """
base: {learning_rate: 1e-3, epochs: 2}
seeds: [1, 2]
runs:
  SST: {tasks: [sst]}
  SST, plain: &plain {tasks: [sst], schedule: none, learning_rate: 2e-3}
  STS: {<<: *plain, tasks: [sts], seeds: [7]}
  empty:
"""


@pytest.fixture
def grid_file(tmp_path):
    def write(text: str):
        path = tmp_path / "grid.yaml"
        path.write_text(text)
        return path

    return write


def test_base_runs_and_seeds(grid_file):
    grid = read_grid(grid_file(GRID))
    base = dict(learning_rate=1e-3, epochs=2)
    assert grid == {
        "SST": [RunConfig(**base), RunConfig(**base, seed=2)],
        "SST, plain": [RunConfig(epochs=2, schedule="none", learning_rate=2e-3, seed=seed) for seed in (1, 2)],
        "STS": [RunConfig(tasks=("sts",), epochs=2, schedule="none", learning_rate=2e-3, seed=7)],
        "empty": [RunConfig(**base), RunConfig(**base, seed=2)],
    }


def test_names_are_text_and_the_default_is_one_seed(grid_file):
    assert read_grid(grid_file("runs: {1: {epochs: 2}}")) == {"1": [RunConfig(epochs=2)]}


@pytest.mark.parametrize(
    "text, message",
    [
        ("runs: {a: {epoch: 2}}", r"grid\.yaml, run 'a': epoch: unknown key; did you mean epochs\?"),
        ("base: {epochs: two}\nruns: {a: {}}", r"grid\.yaml, run 'a': epochs: .*'two'"),
        ("runs: {a: {}, b: {learning_rate: -1}}", r"grid\.yaml, run 'b': learning_rate: .*greater than 0"),
        ("runs: {a: {seeds: [one]}}", r"grid\.yaml, run 'a': seed: .*'one'"),
        ("runs: {a: {seeds: 3}}", r"grid\.yaml, run 'a': seeds: a list .*got 3"),
        ("seeds: []\nruns: {a: {}}", r"grid\.yaml, run 'a': seeds: a list with at least one"),
        ("runs: {a: {seed: 3}}", r"grid\.yaml, run 'a': seed: .*write seeds: \[3\]"),
        ("runs: {a: [sst]}", r"grid\.yaml, run 'a': .*mappings"),
        ("base: [sst]\nruns: {a: {}}", r"grid\.yaml, run 'a': .*mappings"),
        ("run: {a: {}}", r"grid\.yaml: a grid needs a mapping `runs`"),
        ("runs: [a, b]", r"grid\.yaml: a grid needs a mapping `runs`"),
        ("- a", r"grid\.yaml: a grid needs a mapping `runs`"),
        ("", r"grid\.yaml: a grid needs a mapping `runs`"),
        ("runs: {a: {}}\nseed: [1]", r"grid\.yaml: unknown key seed; known are base, seeds, runs"),
        ("runs: {a: ", r"grid\.yaml: not a readable YAML file"),
    ],
)
def test_what_is_wrong_is_named(grid_file, text, message):
    with pytest.raises(ConfigError, match=message):
        read_grid(grid_file(text))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml: not a readable YAML file"):
        read_grid(tmp_path / "none.yaml")


def test_all_are_trained_whatever_fails_and_only_once(tiny_config, course_data, isolated):
    good = tiny_config.but(epochs=1, frozen=True)
    grid = {
        "explodes": [good.but(frozen=False, learning_rate=1e30, schedule="none")],
        "good": [good, good.but(seed=2)],
    }
    outcomes = {(name, config.seed): outcome for name, config, outcome in run_grid(grid, workers=2, threads=1)}
    assert set(outcomes) == {("explodes", 1), ("good", 1), ("good", 2)}
    assert "the loss of sst is nan at step" in str(outcomes["explodes", 1])
    for seed in (1, 2):
        stored = load_or_run(good.but(seed=seed), train_missing=False)
        assert outcomes["good", seed] == stored.score() and stored.provenance["threads"] == 1

    def state() -> dict:
        return {path: path.stat().st_mtime_ns for path in (isolated / "results").rglob("*")}

    before = state()
    [(name, config, score)] = run_grid({"good": [good]}, workers=1, threads=1)
    assert (name, config, score) == ("good", good, outcomes["good", 1])
    assert state() == before, "the second call trains nothing"
