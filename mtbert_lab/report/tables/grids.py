"""Grids of runs: what is stored of them."""

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import pandas as pd

from mtbert.config import RunConfig
from mtbert.names import composed
from mtbert.paths import REPOSITORY
from mtbert_lab.escapes import code
from mtbert_lab.store import MissingRun, Run, read_grid, stored_seeds

ADAPTER = ("adapter", "adapter_size", "adapter_heads")  # the fields of an adapter
GRADIENTS = ("gradients", "gradient_options", "memory_batch")  # the fields of a gradient method
TOGETHER = ("sst", "quora", "sts")


@dataclass(frozen=True)
class Grid:
    """The runs of grid files by their names there: all configurations, and the stored runs of them."""

    paths: tuple[str, ...]  # such as params/cpu/hybrids.yaml; none where the profile has no such grid
    configs: dict[str, list[RunConfig]]
    runs: dict[str, list[Run]]  # only names with at least one stored seed

    def __or__(self, other: "Grid") -> "Grid":
        """The runs of both; of a name in both the one with more seeds in its file."""
        more = [name for name, group in other.configs.items() if len(group) > len(self.configs.get(name, ()))]
        added = other.only(more)
        runs = {name: some for name, some in self.runs.items() if name not in more}
        paths = dict.fromkeys(self.paths + other.paths)  # each once
        return Grid(tuple(paths), self.configs | added.configs, runs | added.runs)

    @property
    def missing(self) -> set[RunConfig]:
        """The configurations that are not stored."""
        stored = {run.config for run in chain(*self.runs.values())}
        return set(chain(*self.configs.values())) - stored

    def runs_of(self, name: str) -> list[Run]:
        """The stored seeds of a run; raises MissingRun where there is none."""
        if name not in self.runs:
            raise MissingRun(f"{' '.join(self.paths)}: no run {name!r} is stored")
        return self.runs[name]

    def only(self, names: Iterable[str]) -> "Grid":
        """The part with these names, in their order."""
        wanted = list(names)
        configs = {name: self.configs[name] for name in wanted if name in self.configs}
        runs = {name: self.runs[name] for name in wanted if name in self.runs}
        return replace(self, configs=configs, runs=runs)

    def pick(self, where: Callable[[RunConfig], bool]) -> "Grid":
        """The part whose configurations meet a condition."""
        names = [name for name, configs in self.configs.items() if where(configs[0])]
        return self.only(names)

    @property
    def stored_text(self) -> str:
        """One sentence: how many of the runs are stored, and the command that trains the others."""
        if not self.configs:
            return "There are no runs of this question here."
        there = sum(map(len, self.runs.values()))
        wanted = sum(map(len, self.configs.values()))
        files = ", ".join(map(code, self.paths))
        text = f"{there} of {wanted} runs of this question ({files}) are stored"
        if there < wanted:
            others = "the others" if there else "them"
            command = f"mtbert train {shlex.join(map(str, self.paths))}"
            text += f"; {code(command)} trains {others}"
        return f"{text}." if there else f"Not measured yet: {text}."


def read_runs(
    profile: str,
    name: str,
    seed: int = 0,
    params: Path = REPOSITORY / "params",
    only: str = "",
    data: str | Path | None = None,
) -> Grid:
    """The stored runs of params/<profile>/<name>.yaml, an empty grid where there is no such file.

    name: or the absolute path of a grid file. seed: 0 for every seed of the file, another number for this seed alone.
    only: a part of the names of runs; the others are left out. data: as in `load_or_run`.
    """
    path = Path(name)
    if not path.is_absolute():
        path = params / profile / f"{name}.yaml"
        if not path.exists():
            return Grid((), {}, {})
    shown = f"params/{path.relative_to(params)}" if path.is_relative_to(params) else str(path)

    configs, runs = {}, {}
    for run, group in read_grid(path).items():
        if composed(only) not in composed(run):
            continue
        configs[run] = [group[0].but(seed=seed)] if seed else group
        if stored := stored_seeds(configs[run], data):
            runs[run] = stored
    return Grid((shown,), configs, runs)


def varied(grid: Grid) -> pd.DataFrame:
    """A row per run, with the fields in which runs of the grid differ, and its seeds."""
    rows = {}
    for name, group in grid.configs.items():
        rows[name] = group[0].model_dump(mode="json", exclude={"seed"})
    table = pd.DataFrame(rows).T.map(str)
    table = table.loc[:, table.nunique() > 1] if len(table) else table
    seeds = [", ".join(str(config.seed) for config in group) for group in grid.configs.values()]
    return table.assign(seeds=seeds).rename_axis("run").reset_index()


def is_unified(config: RunConfig) -> bool:
    """Whether every step of a run has all tasks."""
    return config.scheme == "unified"


def is_in_turn(config: RunConfig) -> bool:
    """Whether a run trains one task after the other."""
    return config.scheme == "in_turn"


def is_plain(config: RunConfig) -> bool:
    """Whether every step of a run has all tasks, and sums their losses."""
    return is_unified(config) and config.gradients == "sum"
