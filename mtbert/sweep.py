"""A grid of runs: read from a YAML file, trained by worker processes, resumable.

The file names every run: `base` holds the fields that all runs share, `runs` maps a name to the fields that differ,
`seeds` (of the file, or of one run) repeats a run.
"""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch
import yaml

from mtbert.config import ConfigError, RunConfig
from mtbert.results import load_or_run


def read_grid(path: str | Path) -> dict[str, list[RunConfig]]:
    """Name -> the configurations of its seeds; raises ConfigError naming the file, the run and the key."""
    path = Path(path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: not a readable YAML file ({error})") from error
    if not isinstance(content, dict) or not isinstance(content.get("runs"), dict):
        raise ConfigError(f"{path}: a grid needs a mapping `runs`, and may have `base` and `seeds`")
    if unknown := set(content) - {"base", "seeds", "runs"}:
        raise ConfigError(f"{path}: unknown key {', '.join(sorted(unknown))}; known are base, seeds, runs")
    grid = {}
    base = content.get("base") or {}
    for name, fields in content["runs"].items():
        try:
            grid[str(name)] = _read_run(base, fields or {}, content.get("seeds", [1]))
        except ConfigError as error:
            raise ConfigError(f"{path.name}, run {name!r}: {error}") from None
    return grid


def _read_run(base: dict, fields: dict, seeds: list[int]) -> list[RunConfig]:
    """The configurations of one run, one a seed."""
    if not isinstance(base, dict) or not isinstance(fields, dict):
        raise ConfigError("`base` and every run must be mappings from fields to values")
    fields = {**base, **fields}
    seeds = fields.pop("seeds", seeds)
    if not isinstance(seeds, list) or not seeds:
        raise ConfigError(f"seeds: a list with at least one seed is needed, got {seeds!r}")
    if "seed" in fields:
        raise ConfigError(f"seed: a grid names its seeds in a list; write seeds: [{fields['seed']}]")
    return [RunConfig.from_params({**fields, "seed": seed}) for seed in seeds]


def run_grid(
    grid: dict[str, list[RunConfig]],
    workers: int = 1,
    threads: int | None = None,
    data: str | Path | None = None,
    store: str | Path | None = None,
    device: str = "auto",
) -> Iterator[tuple[str, RunConfig, float | Exception]]:
    """Train every run that the store lacks, each in a process of its own; yields (name, config, score or error).

    workers processes of `threads` threads each (default: the cores shared out evenly). A failed run does not stop
    the others. An interrupted sweep goes on from its checkpoints when it is called again.
    """
    threads = threads or max(1, torch.get_num_threads() // workers)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=1) as pool:
        jobs = {
            pool.submit(_train_one, config, threads, data, store, device): (name, config)
            for name, configs in grid.items()
            for config in configs
        }
        for job in as_completed(jobs):
            yield *jobs[job], job.exception() or job.result()


def _train_one(config: RunConfig, threads: int, data, store, device: str) -> float:
    torch.set_num_threads(threads)
    return load_or_run(config, data=data, store=store, device=device).score()
