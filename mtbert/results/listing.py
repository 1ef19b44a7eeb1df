"""Stored runs found by the start of their id or by their name in a grid, and listed."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from mtbert.paths import REPOSITORY, stores
from mtbert.results.grids import IN_GRID, named_runs, read_grids
from mtbert.results.runs import has_model, model_folder
from mtbert.results.store import MissingRun, run_folders, stored_runs


def find_run(text: str) -> str:
    """The id of a run that is stored or whose model is in the cache: from its start, or from its name in a grid.

    text: the first characters of the id, or 'GRID.yaml:NAME' or 'GRID.yaml:NAME:SEED'. Raises MissingRun unless one
    run fits, and ConfigError for a grid that cannot be read.
    """
    starts = [text]
    if named := IN_GRID.fullmatch(text):
        file, name, _ = named.groups()
        starts = [config.digest for config in named_runs(text)]
        how = f"; `mtbert train {file} --only {name!r}` trains it"
    ids = {*run_folders(stores()), *(path.parent.name for path in model_folder("").glob("*/run_config.json"))}
    found = sorted(run_id for run_id in ids if run_id.startswith(tuple(starts)))
    if len(found) != 1:
        few = "; name one" if found else how if named else "; `mtbert runs` lists them"
        raise MissingRun(f"{text!r} fits {len(found)} runs{': ' if found else ''}{', '.join(found)}{few}")
    return found[0]


def list_runs(grids: Sequence[str | Path] = (), text: str = "") -> pd.DataFrame:
    """The stored runs, a row each, as text: run id, name, tasks, plan, adapter, gradients, seed, dev scores, model.

    adapter and gradients are empty where they are none and sum; model is yes where it is in the cache.

    Names are those in `grids`, whose runs alone are listed; without grids, in those of params/. text: a part of any
    column.
    """
    known = grids or sorted(path for path in REPOSITORY.glob("params/*/[a-z]*.yaml") if path.parent.name != "tasks")
    names = {config.digest: name for name, config in reversed(read_grids(known))}
    rows = []
    for folder, content in stored_runs(stores()):
        name = names.get(folder.name.partition("-")[0], "")
        if grids and not name:
            continue
        config = content["config"]
        scores = {}
        for score in content["scores"]:
            scores.setdefault(score["task"], f"{score['task']} {score['value']:.3f}")  # the first metric
        about = {"run id": folder.name, "name": name, "tasks": "+".join(config.tasks), "plan": config.plan_text}
        changed = config.changed_fields
        about |= {field: changed.get(field, "") for field in ("adapter", "gradients")}
        about |= {"seed": str(config.seed), "dev scores": ", ".join(scores.values())}
        rows.append(about | {"model": "yes" if has_model(folder.name) else ""})
    rows = [row for row in rows if text in " ".join(row.values())]
    return pd.DataFrame(rows).sort_values(["name", "seed", "run id"], ignore_index=True) if rows else pd.DataFrame()
