"""Find stored runs by the start of their id or by their name in a grid, and list them."""

import logging
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from mtbert.config import ConfigError, RunConfig
from mtbert.data import TASKS
from mtbert.names import composed
from mtbert.paths import REPOSITORY
from mtbert_lab.paths import stores
from mtbert_lab.store.corpora import is_of_files_here
from mtbert_lab.store.folders import run_folders, stored_runs
from mtbert_lab.store.grids import IN_GRID, named_runs, read_grids
from mtbert_lab.store.models import has_model, model_folder
from mtbert_lab.store.run import MissingRun

log = logging.getLogger(__name__)
MOST_SHOWN = 10  # of the runs that a name fits


def find_run(text: str, data: str | Path | None = None) -> str:
    """The id of a run that is stored or whose model is in the cache.

    text: the first characters of the id, or 'GRID.yaml:NAME' or 'GRID.yaml:NAME:SEED'. If the run is stored for several
    versions of its data, the one for the files that are here is taken. data: their folder, as in `data_root`. Raises
    MissingRun unless one run fits, and ConfigError if the grid cannot be read.
    """
    ids = set(run_folders(stores()))
    ids |= {path.parent.name for path in model_folder("").glob("*/run_config.json")}
    if named := IN_GRID.fullmatch(text):
        file, name, _ = named.groups()
        remedy = f"`mtbert train {shlex.quote(file)} --only {shlex.quote(name)}` trains it"
        found = []
        for config in named_runs(text):
            own = sorted(run_id for run_id in ids if run_id.startswith(f"{config.digest}-"))
            here = [run_id for run_id in own if is_of_files_here(run_id, config, data)] if len(own) > 1 else []
            found += here or own
        found.sort()
    else:
        remedy = "`mtbert runs` lists them"
        found = sorted(run_id for run_id in ids if run_id.startswith(text)) if text else []
    if not found:
        raise MissingRun(f"{text!r} fits 0 runs; {remedy}; looked in {' and '.join(map(str, stores()))}")
    if len(found) > 1:
        shown = found if len(found) <= MOST_SHOWN else [*found[:MOST_SHOWN], "..."]
        raise MissingRun(f"{text!r} fits {len(found)} runs: {', '.join(shown)}; name one")
    return found[0]


def list_runs(grids: Sequence[str | Path] = (), text: str = "") -> pd.DataFrame:
    """The stored runs, a row each, as text: run id, name, tasks, plan, adapter, gradients, seed, dev scores, model.

    adapter and gradients are empty if they are none and sum; model is yes if it is in the cache. grids: only their runs
    are listed, under their names; default: all runs, under the names in the grids of params/. text: only rows that
    contain it are listed. If a run is stored for several versions of its data, a column `data` says which is that of
    the files here.
    """
    known = read_grids(grids) if grids else _committed_runs()
    names = {config.digest: name for name, config in reversed(known)}
    rows, configs = [], {}
    for folder, content in stored_runs(stores(), logging.INFO if grids else logging.WARNING):
        name = names.get(folder.name.partition("-")[0], "")
        if grids and not name:
            continue
        config = configs[folder.name] = content["config"]
        changed = config.changed_fields
        row = {
            "run id": folder.name,
            "name": name,
            "tasks": "+".join(config.tasks),
            "plan": config.plan_text,
            "adapter": changed.get("adapter", ""),
            "gradients": changed.get("gradients", ""),
            "seed": str(config.seed),
            "dev scores": _scores(content["scores"]),
            "model": "yes" if has_model(folder.name) else "",
        }
        if composed(text) in composed(" ".join(row.values())):
            rows.append(row)
    if not rows:
        return pd.DataFrame()
    versions = Counter(row["run id"].partition("-")[0] for row in rows)
    if max(versions.values()) > 1:
        for row in rows:
            is_one_of_several = versions[row["run id"].partition("-")[0]] > 1
            row["data"] = _version(row["run id"], configs) if is_one_of_several else ""
    rows.sort(key=lambda row: (row["name"], int(row["seed"]), row["run id"]))
    return pd.DataFrame(rows)


def _committed_runs() -> list[tuple[str, RunConfig]]:
    """The runs of all grids of `params`, where files named after a notebook have its parameters, and `tasks` has tasks.

    A grid that cannot be read is left out with a warning.
    """
    notebooks = {path.stem for path in REPOSITORY.glob("notebooks/*.ipynb")}
    runs = []
    for path in sorted(REPOSITORY.glob("params/*/*.yaml")):
        if path.parent.name == "tasks" or path.stem in notebooks:
            continue
        try:
            found = read_grids([path])
        except ConfigError as error:
            log.warning("the names of runs in %s are left out: %s", path.relative_to(REPOSITORY), error)
        else:
            runs += [(f"{path.stem}: {name}", config) for name, config in found]
    return runs


def _version(run_id: str, configs: dict[str, RunConfig]) -> str:
    return "of the files here" if is_of_files_here(run_id, configs[run_id]) else "of other files"


def _scores(rows: list[dict]) -> str:
    """The dev score of every task of a run, in the metric that the task has today if that is stored."""
    chosen = {}
    for row in rows:
        if row["metric"] == TASKS[row["task"]].metric:
            chosen[row["task"]] = row
        chosen.setdefault(row["task"], row)
    return ", ".join(f"{row['task']} {row['metric']} {row['value']:.3f}" for row in chosen.values())
