"""The results store: a folder for each run, written as a whole and checked when it is read.

results/runs/<run id>/run.json             configuration, tasks, scores, learning curve, cost, provenance
results/runs/<run id>/predictions.parquet  a row per dev example: task, predicted, confidence
results/runs/<run id>/cosines.parquet      if recorded: step, layer, first, second, cosine of the tasks' gradients
results/runs/<run id>/SHA256SUMS           checksums of these files
results/dev/                               ids and labels of the dev examples, see `examples`
results/teachers/<run id>/                 what a run predicts as a teacher, see `teachers`
results/scores.csv                         a row per run, task, split and metric, see `tables`

A run id is `<configuration>-<data>`: the digests of the RunConfig and of its tables. Without the data, a run is found
by its configuration. `.lock` is held by the process that writes runs or the table of them.
"""

import glob
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
from filelock import FileLock

from mtbert.config import ConfigError, RunConfig
from mtbert.data import TASKS, changed_tasks
from mtbert.files import CHECKSUMS, checksum_faults, flush, write_checksums
from mtbert_lab.hints import for_command_line
from mtbert_lab.paths import stores
from mtbert_lab.store.examples import read_examples, read_parquet, write_examples
from mtbert_lab.store.run import Run, StoreError

log = logging.getLogger(__name__)
CONTENT, PREDICTIONS, COSINES = "run.json", "predictions.parquet", "cosines.parquet"
NEEDED = {"run_id", "config", "scores", "curve", "cost", "provenance", "examples"}  # in run.json
SCORES = "scores.csv"
REMEDY = "restore it from a backup or git, or delete the run's folder and train the run again"


class UnknownConfig(StoreError):
    """A run whose configuration is not accepted here: something in it is unknown, or does not fit together."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(f"{folder}: {reason}")
        self.reason = reason


# --- write ------------------------------------------------------------------------------------------------------------


def write_run(run: Run, store: Path) -> Path:
    """Store a finished run, whole or not at all; returns its folder."""
    folder = store / "runs" / run.run_id
    with store_lock(store):
        partial = folder.with_name(f".{run.run_id}.{os.getpid()}")
        partial.mkdir(parents=True)
        try:
            _write_files(run, partial, store)
            for path in partial.iterdir():
                flush(path)
            if not (folder / CONTENT).exists():  # else another process, with a cache of its own, has finished it
                shutil.rmtree(folder, ignore_errors=True)  # without run.json it is no run
                os.replace(partial, folder)
        except OSError as error:
            if error.errno and not error.filename:  # a full disk, while writing
                error.filename = str(folder)
            raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def _write_files(run: Run, folder: Path, store: Path) -> None:
    """The files of a run's folder, and those of its examples.

    Confidences are stored in half precision, predictions and labels in single precision.
    """
    content = {
        "run_id": run.run_id,
        "config": run.config.model_dump(mode="json"),
        "tasks": {task: TASKS[task].definition for task in run.config.scored},
        "scores": run.scores.to_dict("records"),
        "step_scores": run.step_scores.to_dict("records"),
        "curve": run.curve.to_dict("records"),
        "cost": run.cost,
        "provenance": run.provenance,
        "examples": write_examples(run.predictions, store),
    }
    (folder / CONTENT).write_text(json.dumps(content, indent=1) + "\n", encoding="utf8")
    table = run.predictions[["task", "predicted", "confidence"]]
    table = table.astype({"task": "category", "predicted": "float32", "confidence": "float16"})
    table.to_parquet(folder / PREDICTIONS, compression="zstd", index=False)
    if len(run.cosines):
        run.cosines.astype({"cosine": "float32"}).to_parquet(folder / COSINES, index=False)
    write_checksums(folder, sorted(path.name for path in folder.iterdir()))


@contextmanager
def store_lock(store: Path) -> Iterator[None]:
    """The lock for writing runs and the table of them; files that killed processes left half-written are removed first.

    On a network the file system has to support locks, as NFS 4 does; see `run_lock`.
    """
    (store / "runs").mkdir(parents=True, exist_ok=True)
    with FileLock(store / ".lock"):
        for pattern in ("runs/.*.[0-9]*", "dev/.*.[0-9]*", f".{SCORES}.*"):
            for path in store.glob(pattern):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        yield


# --- find -------------------------------------------------------------------------------------------------------------


def run_folder(run_id: str, among: Iterable[Path] | None = None) -> Path | None:
    """The folder of a run in the first of some stores (default: `stores()`) that has it; None where none has."""
    for store in among or stores():
        folder = store / "runs" / run_id
        if (folder / CONTENT).exists():
            return folder
    return None


def run_folders(among: Iterable[Path], start: str = "") -> dict[str, Path]:
    """Run id -> folder of the stored runs whose id has this start, sorted by id; of two stores that of the first."""
    folders = {}
    for store in among:
        for path in (store / "runs").glob(f"{glob.escape(start)}*/{CONTENT}"):
            if not path.parent.name.startswith("."):
                folders.setdefault(path.parent.name, path.parent)
    return dict(sorted(folders.items()))


# --- read -------------------------------------------------------------------------------------------------------------


def read_run(folder: Path, config: RunConfig | None = None) -> Run:
    """A stored run; raises StoreError if a file of it is damaged or its configuration is not `config`."""
    content = _read_content(folder)
    stored = content["config"]
    if config is not None:
        in_id = config.model_dump(include={"encoder", "teachers"})  # the id names them by the content of the encoders
        if stored.but(**in_id).changed_fields != config.changed_fields:
            raise StoreError(f"{folder}: has another configuration, as a default was changed; {REMEDY}")
    has_cosines = (folder / COSINES).exists()
    return Run(
        run_id=content["run_id"],
        config=config or stored,
        scores=pd.DataFrame(content["scores"]),
        curve=pd.DataFrame(content["curve"]),
        predictions=_read_predictions(folder, content["examples"]),
        step_scores=pd.DataFrame(content.get("step_scores")),
        cost=content["cost"],
        provenance=content["provenance"],
        cosines=read_parquet(folder / COSINES, REMEDY) if has_cosines else pd.DataFrame(),
    )


def stored_runs(among: Iterable[Path], level: int = logging.INFO) -> Iterator[tuple[Path, dict]]:
    """The folder of every run of some stores and the content of its run.json (`config`: a RunConfig), sorted by run id.

    A damaged run is left out with a warning. Runs whose configuration is not accepted here are left out, too; one
    message of this level names them together.
    """
    unknown: dict[str, list[str]] = {}  # reason -> run ids
    for folder in run_folders(among).values():
        try:
            yield folder, _read_content(folder)
        except UnknownConfig as error:
            unknown.setdefault(error.reason, []).append(folder.name)
        except StoreError as error:
            log.warning("left out: %s", for_command_line(error))
    reasons = []
    for reason, (first, *others) in unknown.items():
        more = f" and {len(others)} more" if others else ""
        reasons.append(f"{first}{more}: {reason}")
    if reasons:
        log.log(level, "left out: %s", for_command_line("; ".join(reasons)))


def _read_content(folder: Path) -> dict:
    """The content of run.json, its `config` a RunConfig; raises StoreError if it or another file is damaged."""
    path = folder / CONTENT
    try:
        _check_sums(folder)
        content = json.loads(path.read_text(encoding="utf8"))
        _check_content(content, folder)
        config = _read_config(content["config"], folder)
        _check_tasks(content.get("tasks", {}), folder)
        return content | {"config": config}
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{error.filename or path} cannot be read ({error.strerror}); {REMEDY}") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"{path} is damaged ({error}); {REMEDY}") from error


def _check_sums(folder: Path) -> None:
    """Raises StoreError unless a run has checksums, and they are those of its files."""
    files = [CONTENT, PREDICTIONS]
    if (folder / COSINES).exists():
        files.append(COSINES)
    if faults := checksum_faults(folder, files):
        raise StoreError(f"{folder}: {'; '.join(faults)}; {REMEDY}")
    if others := {path.name for path in folder.glob("[!.]*")} - {*files, CHECKSUMS}:
        log.warning("%s: no part of the run, and not read: %s", folder, ", ".join(sorted(others)))


def _check_content(content: dict, folder: Path) -> None:
    """Raises ValueError unless run.json is complete and of this folder."""
    if missing := NEEDED - content.keys():
        raise ValueError(f"it has no {', '.join(sorted(missing))}")
    if content["run_id"] != folder.name:
        raise ValueError(f"it is of run {content['run_id']!r}")


def _read_config(params: dict, folder: Path) -> RunConfig:
    try:
        return RunConfig.from_params(params)
    except ConfigError as error:  # the checksums are right, so it was accepted where it was written
        raise UnknownConfig(folder, str(error)) from error


def _check_tasks(tasks: dict[str, dict], folder: Path) -> None:
    """Raises StoreError unless the tasks of a run are as they are here."""
    if changed := changed_tasks(tasks):
        raise StoreError(
            f"{folder}: the run was trained with other tasks than those here: {changed}; restore the file of the "
            "task, or give the changed task another name"
        )


def _read_predictions(folder: Path, examples: dict[str, str]) -> pd.DataFrame:
    """The predictions of a run, with the ids and labels of its examples."""
    known = read_examples(examples, folder.parent.parent)
    predicted = read_parquet(folder / PREDICTIONS, REMEDY)
    if not np.array_equal(known["task"], predicted["task"]):
        raise StoreError(f"{folder}: the predictions do not fit the examples {', '.join(examples.values())}; {REMEDY}")
    return known.join(predicted[["predicted", "confidence"]].astype("float32"))
