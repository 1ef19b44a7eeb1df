"""Grids: a file of runs is read with its seeds and teachers, and what is wrong in it is named."""

import pytest

from mtbert.config import ConfigError, RunConfig
from mtbert.paths import REPOSITORY
from mtbert_lab.store.grids import named_runs, read_grid, read_grids

GRID = """
base: {learning_rate: 1e-3, epochs: 2}
seeds: [1, 2]
runs:
  SST: {tasks: [sst]}
  SST, plain: &plain {tasks: [sst], schedule: none, learning_rate: 2e-3}
  STS: {<<: *plain, tasks: [sts], seeds: [7]}
  1:  # empty, under a name that YAML reads as a number
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
        "1": [RunConfig(**base), RunConfig(**base, seed=2)],
    }


def test_a_name_may_end_as_a_seed_does(grid_file):
    path = grid_file("seeds: [1, 2]\nruns: {'ratio 1:3': {epochs: 2}, a: {}}")
    assert named_runs(f"{path.name}:ratio 1:3", path.parent) == [RunConfig(epochs=2), RunConfig(epochs=2, seed=2)]
    assert named_runs(f"{path.name}:ratio 1:3:2", path.parent) == [RunConfig(epochs=2, seed=2)]
    assert named_runs(f"{path.name}:a:2", path.parent) == [RunConfig(seed=2)]


@pytest.mark.parametrize(
    "text, message",
    [
        ("runs: {a: {epoch: 2}}", r"grid\.yaml, run 'a': epoch: unknown key; did you mean epochs\?"),
        ("base: {epochs: two}\nruns: {a: {}}", r"grid\.yaml, run 'a': epochs: .*'two'"),
        ("runs: {a: {}, b: {learning_rate: -1}}", r"grid\.yaml, run 'b': learning_rate: .*greater than 0"),
        ("runs: {a: {seeds: [one]}}", r"grid\.yaml, run 'a': seed: .*'one'"),
        ("runs: {a: {seeds: 3}}", r"grid\.yaml, run 'a': seeds: a list .*got 3"),
        (
            "seeds: [1, 2, 1]\nruns: {a: {}}",
            r"seeds: a list with at least one seed is needed, each once, got \[1, 2, 1\]",
        ),
        ("seeds: []\nruns: {a: {}}", r"grid\.yaml, run 'a': seeds: a list with at least one"),
        ("runs: {a: {seed: 3}}", r"grid\.yaml, run 'a': seed: .*write seeds: \[3\]"),
        ("runs: [a, b]", r"grid\.yaml: a grid needs a mapping `runs`"),
        ("runs: {a: {}}\nseed: [1]", r"grid\.yaml: unknown key seed; known are base, seeds, runs"),
    ],
)
def test_what_is_wrong_is_named(grid_file, text, message):
    with pytest.raises(ConfigError, match=message):
        read_grid(grid_file(text))


def test_several_grids(tmp_path):
    for name, runs in (("one", "{a: {epochs: 2}, b: {}}"), ("two", "{a: {}, c: {epochs: 5, seeds: [3]}}")):
        (tmp_path / f"{name}.yaml").write_text(f"runs: {runs}")
    paths = [tmp_path / "one.yaml", tmp_path / "two.yaml"]
    named = [("one: a", RunConfig(epochs=2)), ("one: b", RunConfig()), ("two: a", RunConfig())]
    assert read_grids(paths) == [*named, ("two: c", RunConfig(epochs=5, seed=3))]
    assert read_grids(paths, only="a") == [named[0], named[2]]
    assert read_grids(paths[:1]) == [("a", RunConfig(epochs=2)), ("b", RunConfig())]


TEACHERS = "runs: {one: {seeds: [1, 2]}, two: {tasks: [sst, sts]}}"


def test_teachers_are_named_by_their_grid(tmp_path):
    (tmp_path / "teachers.yaml").write_text(TEACHERS)
    (tmp_path / "grid.yaml").write_text("""
runs:
  all seeds: {teachers: "teachers.yaml:one"}
  one seed: {teachers: ["teachers.yaml:one:2", "teachers.yaml:two"]}
  born again: {seeds: [4], teachers: "grid.yaml:all seeds"}
""")
    one, two = (RunConfig(), RunConfig(seed=2)), RunConfig(tasks=("sst", "sts"))
    grid = {name: configs[0] for name, configs in read_grid(tmp_path / "grid.yaml").items()}
    assert grid["all seeds"].teachers == one and grid["one seed"].teachers == (one[1], two)
    assert grid["born again"].teachers == (grid["all seeds"],)


@pytest.mark.parametrize(
    "teachers, message",
    [
        ("teachers.yaml:three", r"teachers\.yaml: has no run 'three'; it has one, two"),
        ("teachers.yaml:one:7", r"teachers\.yaml: 'one' has no seed 7; it has 1, 2"),
        ("none.yaml:one", r"none\.yaml: no such file"),
        ("", r"teachers: '' fits 0 stored runs"),
        ("12345", r"teachers: '12345' fits 0 stored runs; name a run as GRID\.yaml:NAME"),
        ("grid.yaml:a", r"teachers: 'a' of grid\.yaml is among its own teachers"),
        ("grid.yaml:b", r"teachers: 'a' of grid\.yaml is among its own teachers"),
    ],
)
def test_a_wrong_teacher_is_named(tmp_path, teachers, message):
    (tmp_path / "teachers.yaml").write_text(TEACHERS)
    (tmp_path / "grid.yaml").write_text(f'runs: {{a: {{teachers: "{teachers}"}}, b: {{teachers: "grid.yaml:a"}}}}')
    with pytest.raises(ConfigError, match=rf"grid\.yaml, run 'a': .*{message}"):
        read_grid(tmp_path / "grid.yaml")


def test_a_stored_run_teaches_by_its_id(tiny_config, course_data, grid_file, run_of):
    stored = run_of(tiny_config.but(epochs=1))
    text = f"runs: {{a: {{corpus: course, teachers: [{stored.run_id}]}}}}"
    [config] = read_grid(grid_file(text))["a"]
    assert config.teachers == (stored.config,)


def test_every_problem_has_a_line(tmp_path):
    (tmp_path / "one.yaml").write_text("runs: {a: {epoch: 2}, fine: {}, b: {epochs: 0}}")
    (tmp_path / "two.yaml").write_text("run: {}")
    (tmp_path / "three.yaml").write_text("runs: {c: {tasks: [imdb]}}")
    with pytest.raises(ConfigError) as error:
        read_grids([tmp_path / f"{name}.yaml" for name in ("one", "two", "three", "four")])
    lines = str(error.value).splitlines()
    assert [line.split(":")[0] for line in lines[:2] + lines[3:4]] == [
        "one.yaml, run 'a'", "one.yaml, run 'b'", "three.yaml, run 'c'",
    ]  # fmt: skip
    assert "two.yaml: a grid needs" in lines[2] and "four.yaml: no such file" in lines[4] and len(lines) == 5


NOTEBOOKS = {path.stem for path in REPOSITORY.glob("notebooks/*.ipynb")}


@pytest.mark.parametrize(
    "path",
    # A file named after a notebook holds papermill parameters, any other a grid of runs.
    [path for path in sorted(REPOSITORY.glob("params/*/*.yaml")) if path.stem not in NOTEBOOKS],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_grids_of_params_are_valid(path):
    grid = read_grid(path)
    assert grid
    configs = [config for configs in grid.values() for config in configs]
    assert len({config.digest for config in configs}) == len(configs), "two names for one run"
