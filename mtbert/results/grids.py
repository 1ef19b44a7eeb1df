"""Grids of runs, read from YAML files.

`base` has the fields that all runs share, `runs` maps a name to the fields that differ, and `seeds` (of the file, or of
one run) repeats a run.
"""

from collections.abc import Sequence
from pathlib import Path
from reprlib import repr  # shortened

from mtbert.config import ConfigError, RunConfig
from mtbert.paths import YamlError, read_yaml

MOST_RUNS = 10_000
TOO_MANY = f"a grid has at most {MOST_RUNS} runs, all seeds counted; split it into several files"


def read_grid(path: str | Path) -> dict[str, list[RunConfig]]:
    """Name -> the configurations of its seeds; raises ConfigError with a line for each run that is wrong."""
    path = Path(path)
    try:
        content = read_yaml(path)
    except YamlError as error:
        raise ConfigError(str(error)) from error
    if not isinstance(content, dict) or not isinstance(content.get("runs"), dict) or not content["runs"]:
        raise ConfigError(f"{path}: a grid needs a mapping `runs` with a run, and may have `base` and `seeds`")
    if unknown := ", ".join(sorted(map(str, content.keys() - {"base", "seeds", "runs"}))):
        raise ConfigError(f"{path}: unknown key {unknown[:200]}; known are base, seeds, runs")
    grid, errors = {}, []
    for name, fields in content["runs"].items():
        try:
            if not isinstance(name, str | int) or isinstance(name, bool):
                raise ConfigError("YAML does not read this name as text; write it in quotes")
            grid[str(name)] = _read_run(content.get("base"), fields, content.get("seeds", [1]))
        except ConfigError as error:
            errors.append(f"{path.name}, run {repr(name)}: {error}")
        if sum(map(len, grid.values())) > MOST_RUNS:
            raise ConfigError(f"{path}: {TOO_MANY}")
    if errors:
        raise ConfigError("\n".join(errors))
    return grid


def _read_run(base: dict | None, fields: dict | None, seeds: list[int]) -> list[RunConfig]:
    """The configurations of one run, one per seed."""
    base, fields = ({} if part is None else part for part in (base, fields))
    if not isinstance(base, dict) or not isinstance(fields, dict):
        raise ConfigError("`base` and every run must be mappings from fields to values")
    fields = {**base, **fields}
    seeds = fields.pop("seeds", seeds)
    if not isinstance(seeds, list) or not seeds or len({*map(str, seeds)}) < len(seeds):
        raise ConfigError(f"seeds: a list with at least one seed is needed, each once, got {repr(seeds)}")
    if len(seeds) > MOST_RUNS:
        raise ConfigError(f"seeds: {len(seeds)} are given; {TOO_MANY}")
    if "seed" in fields:
        raise ConfigError(f"seed: a grid names its seeds in a list; write seeds: [{repr(fields['seed'])}]")
    return [RunConfig.from_params({**fields, "seed": seed}) for seed in seeds]


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
            named = [(name, configs) for name, configs in grid.items() if (only or "") in name]
            runs += [(prefix + name, config) for name, configs in named for config in configs]
    if errors:
        raise ConfigError("\n".join(errors))
    return runs
