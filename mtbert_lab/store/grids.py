"""Grids of runs, read from YAML files.

`base` has the fields that all runs share, `runs` maps a name to the fields that differ, and `seeds` (of the file, or of
one run) repeats a run. `encoder` may be a folder, relative to that of the grid. `teachers` names runs, one or a list:
'GRID.yaml:NAME' (all its seeds) or 'GRID.yaml:NAME:SEED', of a grid in the same folder, or the start of a stored run's
id.
"""

import re
import reprlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mtbert.config import ConfigError, RunConfig
from mtbert.names import composed
from mtbert.strict_yaml import YamlError, read_yaml
from mtbert_lab.paths import stores
from mtbert_lab.store.folders import read_run, run_folders
from mtbert_lab.store.run import MissingRun

IN_GRID = re.compile(r"(.+\.ya?ml):(.+?)(?::(\d+))?")  # GRID.yaml:NAME or GRID.yaml:NAME:SEED

MOST_RUNS = 10_000
TOO_MANY = f"a grid has at most {MOST_RUNS} runs, all seeds counted; split it into several files"


def read_grid(path: str | Path) -> dict[str, list[RunConfig]]:
    """Name -> the configurations of its seeds; raises ConfigError with a line for each run that is wrong."""
    path = Path(path)
    content = _read_content(path)
    grid, errors = {}, []
    for name in content["runs"]:
        try:
            grid[str(name)] = _read_run(path, content, name, ())
        except (ConfigError, MissingRun) as error:
            errors.append(f"{path.name}, run {reprlib.repr(name)}: {error}")
        number = sum(len(configs) for configs in grid.values())
        if number > MOST_RUNS:
            raise ConfigError(f"{path}: {TOO_MANY}")
    if errors:
        raise ConfigError("\n".join(errors))
    return grid


def named_runs(text: str, folder: Path = Path(), students: tuple[str, ...] = ()) -> list[RunConfig]:
    """The configurations that IN_GRID names: of a run in a grid of this folder, all its seeds or one.

    students: the runs that it is to teach, which it cannot learn from. Raises MissingRun if there is none, and
    ConfigError if it cannot be read.
    """
    file, name, seed = IN_GRID.fullmatch(text).groups()
    content = _read_content(folder / file)
    names = {str(known): known for known in content["runs"]}
    if seed and f"{name}:{seed}" in names:  # a name that ends like a seed
        name = f"{name}:{seed}"
        seed = None
    spelt = {composed(known): known for known in names} | {known: known for known in names}
    own = spelt.get(name) or spelt.get(composed(name))
    if own is None:
        raise MissingRun(f"{file}: has no run {name!r}; it has {', '.join(names)}")
    configs = _read_run(folder / file, content, names[own], students)
    seeds = {str(config.seed): config for config in configs}
    if seed not in (None, *seeds):
        raise MissingRun(f"{file}: {name!r} has no seed {seed}; it has {', '.join(seeds)}")
    return [seeds[seed]] if seed else configs


def _read_content(path: Path) -> dict:
    """The mapping in a grid's file, with the keys that a grid has."""
    if not path.exists():
        raise ConfigError(f"{path}: no such file; a grid is a YAML file such as params/cpu/hybrids.yaml")
    try:
        content = read_yaml(path)
    except YamlError as error:
        raise ConfigError(str(error)) from error
    if not isinstance(content, dict) or not isinstance(content.get("runs"), dict) or not content["runs"]:
        raise ConfigError(f"{path}: a grid needs a mapping `runs` with a run, and may have `base` and `seeds`")
    if unknown := ", ".join(sorted(map(str, content.keys() - {"base", "seeds", "runs"}))):
        raise ConfigError(f"{path}: unknown key {unknown[:200]}; known are base, seeds, runs")
    return content


def _read_run(path: Path, content: dict, name: Any, students: tuple[str, ...]) -> list[RunConfig]:
    """The configurations of one run of a grid's content, one per seed; students: as in `named_runs`."""
    if not isinstance(name, str | int) or isinstance(name, bool):
        raise ConfigError("YAML does not read this name as text; write it in quotes")
    student = f"{path.resolve()}:{name}"
    if student in students:
        raise ConfigError(f"teachers: {reprlib.repr(name)} of {path.name} is among its own teachers")
    fields = {"seeds": content.get("seeds", [1])}
    for part in (content.get("base"), content["runs"][name]):
        if not isinstance(part, dict | None):
            raise ConfigError("`base` and every run must be mappings from fields to values")
        fields |= part or {}
    seeds = fields.pop("seeds")
    if not isinstance(seeds, list) or not seeds or len({*map(str, seeds)}) < len(seeds):
        raise ConfigError(f"seeds: a list with at least one seed is needed, each once, got {reprlib.repr(seeds)}")
    if len(seeds) > MOST_RUNS:
        raise ConfigError(f"seeds: {len(seeds)} are given; {TOO_MANY}")
    if "seed" in fields:
        raise ConfigError(f"seed: a grid names its seeds in a list; write seeds: [{reprlib.repr(fields['seed'])}]")
    if isinstance(fields.get("encoder"), str):
        folder = path.parent / Path(fields["encoder"]).expanduser()
        if folder.is_dir():
            fields["encoder"] = str(folder)
    if "teachers" in fields:
        fields["teachers"] = _teachers(fields["teachers"], path.parent, (*students, student))
    return [RunConfig.from_params({**fields, "seed": seed}) for seed in seeds]


def _teachers(value: Any, folder: Path, students: tuple[str, ...]) -> Any:
    """What a grid says of a run's teachers, with configurations in place of the names of runs."""
    if not isinstance(value, str | list):
        return value
    names = [value] if isinstance(value, str) else value
    teachers = []
    for name in names:
        if not isinstance(name, str):
            teachers.append(name)
        elif IN_GRID.fullmatch(name):
            teachers += named_runs(name, folder, students)
        else:
            found = list(run_folders(stores(), name).values()) if name else []
            if len(found) != 1:
                named = reprlib.repr(name)
                raise MissingRun(f"teachers: {named} fits {len(found)} stored runs; name a run as GRID.yaml:NAME")
            teachers.append(read_run(found[0]).config)
    return teachers


def read_grids(paths: Sequence[str | Path], only: str | None = None) -> list[tuple[str, RunConfig]]:
    """Name and configuration of every run of some grids whose name contains `only`, in their order.

    With several grids, names begin with that of the file. Raises ConfigError with a line for each problem in any file.
    """
    runs, errors = [], []
    for path in paths:
        try:
            grid = read_grid(path)
        except ConfigError as error:
            errors.append(str(error))
        else:
            prefix = f"{Path(path).stem}: " if len(paths) > 1 else ""
            for name, configs in grid.items():
                if only is None or composed(only) in composed(name):
                    runs += [(prefix + name, config) for config in configs]
    if errors:
        raise ConfigError("\n".join(errors))
    return runs
