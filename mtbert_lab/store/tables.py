"""The tidy table of all runs of a store, `scores.csv`, for programs that read no run.json."""

import json
import logging
from pathlib import Path

import pandas as pd

from mtbert.files import replacing
from mtbert_lab.store.folders import SCORES, run_folders, store_lock, stored_runs

log = logging.getLogger(__name__)
# the parts of a run's cost that are columns of scores.csv
SPENT = ("steps", "tokens", "train_seconds", "peak_memory_mib", "parameters", "trained_parameters")
COLUMNS = (  # the fields of a configuration that are columns of scores.csv
    "corpus", "encoder", "weights", "frozen", "plan", "adapter", "pooling", "pairs", "scheme", "sampling", "gradients",
    "precision", "seed",
)  # fmt: skip


def write_table(table: pd.DataFrame, path: Path) -> Path:
    """Write a table of the store; returns its path."""
    with replacing(path) as partial:
        table.to_csv(partial, index=False, float_format="%.6g")
    return path


def update_tables(store: Path) -> None:
    """Write scores.csv from the folders of all runs, unless it is newer than the last run that came or went.

    Whoever changes the file or a run by hand deletes it, and it is written again. If the store cannot be written to, a
    warning says so, and the next call tries again.
    """
    if _is_new(store):
        return
    try:
        with store_lock(store):
            if not _is_new(store):  # another process may have written it meanwhile
                _write_scores(store)
    except OSError as error:
        log.warning("%s of %s cannot be written (%s); the next call does it", SCORES, store, error)


def _is_new(store: Path) -> bool:
    """Whether scores.csv is newer than the folder of the runs, or there are no runs to write."""
    runs, path = store / "runs", store / SCORES
    if not path.exists() or not runs.exists():
        return not run_folders([store])
    return path.stat().st_mtime_ns > runs.stat().st_mtime_ns


def _write_scores(store: Path) -> None:
    scores = []
    unread = set(run_folders([store]))
    for folder, content in stored_runs([store]):
        unread.discard(folder.name)
        config, cost, provenance = content["config"], content["cost"], content["provenance"]
        about = {"run_id": content["run_id"], "trained_on": "+".join(config.tasks)}
        about |= {name: getattr(config, name) for name in COLUMNS}
        about["plan"] = config.plan_text
        others = {name: value for name, value in config.changed_fields.items() if name not in (*COLUMNS, "tasks")}
        about["other_fields"] = json.dumps(others) if others else ""
        spent = {name: cost[name] for name in SPENT}
        where = {name: provenance[name] for name in ("device", "mtbert")}
        scores += [about | row | spent | where for row in content["scores"]]
    table = pd.DataFrame(scores)
    if unread and (store / SCORES).exists():  # damaged, or of tasks or code that this process does not know
        before = pd.read_csv(store / SCORES)
        kept = before[before["run_id"].isin(unread)]
        table = pd.concat([table, kept]).sort_values("run_id", kind="stable")
    if table.empty:
        (store / SCORES).unlink(missing_ok=True)
    else:
        write_table(table, store / SCORES)
