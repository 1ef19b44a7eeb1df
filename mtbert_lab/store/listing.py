"""Stored runs found by the start of their id or by their name in a grid, and listed."""

import logging
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from mtbert.config import RunConfig
from mtbert.data import TASKS, Corpus, DataError
from mtbert.names import composed
from mtbert.paths import REPOSITORY
from mtbert.training import load_corpus
from mtbert_lab.paths import stores
from mtbert_lab.store.folders import MissingRun, read_run, run_folder, run_folders, stored_runs
from mtbert_lab.store.grids import IN_GRID, named_runs, read_grids
from mtbert_lab.store.models import has_model, model_folder
from mtbert_lab.store.runs import data_digest, data_root, is_without_encoder

log = logging.getLogger(__name__)


def find_run(text: str) -> str:
    """The id of a run that is stored or whose model is in the cache: from its start, or from its name in a grid.

    text: the first characters of the id, or 'GRID.yaml:NAME' or 'GRID.yaml:NAME:SEED'; of the same run on several
    versions of the data that of the files that are here. Raises MissingRun unless one run fits, and ConfigError for a
    grid that cannot be read.
    """
    ids = set(run_folders(stores()))
    ids |= {path.parent.name for path in model_folder("").glob("*/run_config.json")}
    if named := IN_GRID.fullmatch(text):
        file, name, _ = named.groups()
        remedy = f"`mtbert train {file} --only {name!r}` trains it"
        found = []
        for config in named_runs(text):
            if is_without_encoder(config):
                remedy = (
                    f"the folder {config.encoder} of its encoder is not here; `mtbert runs --grid {file}` has its id"
                )
            own = sorted(run_id for run_id in ids if run_id.startswith(f"{config.digest}-"))
            found += [run_id for run_id in own if len(own) > 1 and is_of_files_here(run_id, config)] or own
        found.sort()
    else:
        remedy = "`mtbert runs` lists them"
        found = sorted(run_id for run_id in ids if run_id.startswith(text))
    if not found:
        raise MissingRun(f"{text!r} fits 0 runs; {remedy}")
    if len(found) > 1:
        raise MissingRun(f"{text!r} fits {len(found)} runs: {', '.join(found)}; name one")
    return found[0]


def is_of_files_here(run_id: str, config: RunConfig) -> bool:
    """Whether a run was trained on the data files as they are here; False where they cannot be read.

    Rejected rows are not told, as nothing is trained on them.
    """
    of_corpus = logging.getLogger(Corpus.__module__)
    level = of_corpus.level
    of_corpus.setLevel(logging.ERROR)
    try:
        digest = data_digest(load_corpus(config, data_root(config)))
    except DataError:
        return False
    finally:
        of_corpus.setLevel(level)
    return run_id.partition("-")[2] == digest


def list_runs(grids: Sequence[str | Path] = (), text: str = "") -> pd.DataFrame:
    """The stored runs, a row each, as text: run id, name, tasks, plan, adapter, gradients, seed, dev scores, model.

    adapter and gradients are empty where they are none and sum; model is yes where it is in the cache. Names are those
    in `grids`, whose runs alone are listed; without grids, in those of params/. text: a part of any column. Where a
    run is stored for several versions of its data, a column `data` says which fits the files that are here.
    """
    known = grids or sorted(path for path in REPOSITORY.glob("params/*/[a-z]*.yaml") if path.parent.name != "tasks")
    named = list(reversed(read_grids(known)))
    names = {config.digest: name for name, config in named}
    without_encoder = {_by_folder(config): name for name, config in named if is_without_encoder(config)}
    lost = {config.digest: config.encoder for _, config in named if grids and is_without_encoder(config)}
    rows = []
    for folder, content in stored_runs(stores(), logging.INFO if grids else logging.WARNING):
        digest = folder.name.partition("-")[0]
        lost.pop(digest, None)  # of a name on the hub
        name = names.get(digest, "")
        if not name and without_encoder:  # their digests are others
            name = without_encoder.get(_by_folder(content["config"]), "")
        if grids and not name:
            continue
        config = content["config"]
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
    for encoder in sorted({*lost.values()}):
        log.warning("the encoder %s is not here; its runs are listed by the last part of its path", encoder)
    if not rows:
        return pd.DataFrame()
    versions = Counter(row["run id"].partition("-")[0] for row in rows)
    if max(versions.values()) > 1:
        for row in rows:
            is_one_of_several = versions[row["run id"].partition("-")[0]] > 1
            row["data"] = _version(row["run id"]) if is_one_of_several else ""
    return pd.DataFrame(rows).sort_values(["name", "seed", "run id"], ignore_index=True)


def _by_folder(config: RunConfig) -> RunConfig:
    """A configuration that has the last part of the path of its encoder's folder only: paths depend on where one is."""
    return config.but(encoder=Path(config.encoder).name)


def _version(run_id: str) -> str:
    folder = run_folder(run_id)
    return "of the files here" if is_of_files_here(run_id, read_run(folder).config) else "of other files"


def _scores(rows: list[dict]) -> str:
    """The dev scores of a run, each with its metric: of a task the one that it has today, where that is stored."""
    chosen = {}
    for row in rows:
        if row["metric"] == TASKS[row["task"]].metric:
            chosen[row["task"]] = row
        chosen.setdefault(row["task"], row)
    return ", ".join(f"{row['task']} {row['metric']} {row['value']:.3f}" for row in chosen.values())
