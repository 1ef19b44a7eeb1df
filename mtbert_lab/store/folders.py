"""The results store: a folder for each run, and two tidy tables of all runs.

results/runs/<run id>/run.json             configuration, tasks, scores, learning curve, cost, provenance
results/runs/<run id>/predictions.parquet  a row per dev example: task, predicted, confidence
results/dev/<task>-<digest>.parquet        id and label of these examples, in their order, shared by all runs
results/runs/<run id>/SHA256SUMS           checksums of these files; runs of versions before 0.5.0 have none
results/runs/<run id>/cosines.parquet      if recorded: step, layer, first, second, cosine of the tasks' gradients
results/teachers/<run id>/                 what a run predicts as a teacher, see `teachers`
results/scores.csv, results/curves.csv     a row per run, task, split and metric; a row per point of a learning curve
results/SHA256SUMS                         checksums of these two tables

A run id is `<configuration>-<data>`: the digests of the RunConfig and of its tables. Without the data, a run is found
by its configuration. `.lock` is held by the process that writes runs or these two tables.
"""

import functools
import glob
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from filelock import FileLock

from mtbert.config import RunConfig, unknown_names
from mtbert.data import TASKS, changed_tasks
from mtbert.files import CHECKSUMS, checksum_faults, replacing, write_checksums
from mtbert.training import metrics_of, overall
from mtbert_lab.hints import for_command_line
from mtbert_lab.paths import stores

log = logging.getLogger(__name__)
SPENT = ("steps", "tokens", "train_seconds", "peak_memory_mib", "parameters", "trained_parameters")
COSINES = "cosines.parquet"  # the one file that not every run has
NEEDED = {"run_id", "config", "scores", "curve", "cost", "provenance", "examples"}  # in run.json
TABLES = ("scores.csv", "curves.csv")
REMEDY = "restore it from a backup or git, or delete the run's folder and train the run again"
CHECKSUMS_SINCE = (0, 5)  # the version from which on runs have them
COLUMNS = (  # the fields of a configuration that are columns of scores.csv
    "corpus", "encoder", "weights", "frozen", "plan", "adapter", "pooling", "pairs", "scheme", "sampling", "gradients",
    "precision", "seed",
)  # fmt: skip


class StoreError(ValueError):
    """A damaged file of the store; the message names it and says what to do."""


class UnknownName(StoreError):
    """A run of a task, or with registered code, that is not known here."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(f"{folder}: {reason}")
        self.reason = reason


class MissingRun(LookupError):
    """A run that is not in the store, and that was not to be trained."""


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run, as stored."""

    run_id: str
    config: RunConfig
    scores: pd.DataFrame  # of the kept model: task, split, metric, value, low, high, n
    curve: pd.DataFrame  # step, epoch, tokens, seconds, train_loss, metric, dev_score; for several tasks also by task
    predictions: pd.DataFrame  # task, split, id, label, predicted, confidence
    cost: dict
    provenance: dict
    step_scores: pd.DataFrame = field(default_factory=pd.DataFrame)  # scores of the last step, each task's best point
    cosines: pd.DataFrame = field(default_factory=pd.DataFrame)  # step, layer, first, second, cosine, if recorded

    def __repr__(self) -> str:
        config = self.config
        about = f"{'+'.join(config.tasks)}, plan {config.plan_text}, seed {config.seed}"
        return f"<Run {self.run_id}: {about}, dev {self.score():.4f}>"

    def score(self, task: str | None = None) -> float:
        """The dev score of a task in the metric that it has today; by default the training tasks' overall score.

        A metric that the run has not stored, as it was named later, is computed from the predictions.
        """
        if task is None:
            return overall({name: self.score(name) for name in self.config.tasks})
        metric = TASKS[task].metric
        stored = self.scores[(self.scores["task"] == task) & (self.scores["metric"] == metric)]
        if len(stored) and not np.isnan(value := float(stored["value"].iloc[0])):
            return value
        table = self.predictions_of(task)
        return float(
            metrics_of(TASKS[task])[metric](table["predicted"].to_numpy(float), table["label"].to_numpy(float))
        )

    def predictions_of(self, task: str) -> pd.DataFrame:
        """The rows of `predictions` of one task, numbered from 0."""
        return self._by_task.get(task, self.predictions[:0]).copy(deep=False)

    @functools.cached_property  # comparisons ask for the same task many times
    def _by_task(self) -> dict[str, pd.DataFrame]:
        groups = self.predictions.groupby("task", sort=False)
        return {task: part.reset_index(drop=True) for task, part in groups}


@contextmanager
def store_lock(store: Path) -> Iterator[None]:
    """Inside the block this process alone writes runs and tidy tables; what killed processes left of them is removed.

    On a network the file system has to support locks, as NFS 4 does; see `run_lock`.
    """
    (store / "runs").mkdir(parents=True, exist_ok=True)
    with FileLock(store / ".lock"):
        partial_tables = [f".{name}.*" for name in (*TABLES, CHECKSUMS)]
        for pattern in ("runs/.*.[0-9]*", "dev/.*.[0-9]*", *partial_tables):
            for path in store.glob(pattern):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
        yield


def write_run(run: Run, store: Path) -> Path:
    """Store a finished run, whole or not at all; returns its folder.

    Confidences are stored in half precision, predictions and labels in single precision.
    """
    folder = store / "runs" / run.run_id
    with store_lock(store):
        partial = folder.with_name(f".{run.run_id}.{os.getpid()}")
        partial.mkdir(parents=True)
        try:
            _write_files(run, partial, store)
            if not (folder / "run.json").exists():  # else another process, with a cache of its own, has finished it
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
    """The files of a run's folder, and those of its examples."""
    content = {
        "run_id": run.run_id,
        "config": run.config.model_dump(mode="json"),
        "tasks": {task: TASKS[task].definition for task in run.config.scored},
        "scores": run.scores.to_dict("records"),
        "step_scores": run.step_scores.to_dict("records"),
        "curve": run.curve.to_dict("records"),
        "cost": run.cost,
        "provenance": run.provenance,
        "examples": _write_examples(run.predictions, store),
    }
    (folder / "run.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf8")
    table = run.predictions[["task", "predicted", "confidence"]]
    table = table.astype({"task": "category", "predicted": "float32", "confidence": "float16"})
    table.to_parquet(folder / "predictions.parquet", compression="zstd", index=False)
    if len(run.cosines):
        run.cosines.astype({"cosine": "float32"}).to_parquet(folder / COSINES, index=False)
    write_checksums(folder, sorted(path.name for path in folder.iterdir()))


def _write_examples(predictions: pd.DataFrame, store: Path) -> dict[str, str]:
    """Write the ids and labels of every task's dev split, if they are new; returns task -> name of the file."""
    names = {}
    for task, part in predictions.groupby("task", sort=False):
        table = part[["id", "label"]].astype({"label": "float32"}).reset_index(drop=True)
        names[task] = f"{task}-{_examples_digest(table)}"
        path = store / "dev" / f"{names[task]}.parquet"
        try:
            _read_examples(path)
        except StoreError:  # there is none, or it is damaged
            with replacing(path) as partial:
                table.to_parquet(partial, compression="zstd", index=False)
    return names


def _examples_digest(table: pd.DataFrame) -> str:
    return hashlib.sha256(table.to_csv(index=False).encode()).hexdigest()[:8]


def _read_examples(path: Path) -> pd.DataFrame:
    """Ids and labels of a dev split; raises StoreError unless they have the digest in the file's name."""
    remedy = "restore it from a backup or git, or train a run on the same data, which writes it again"
    table = _read_parquet(path, remedy)
    if not path.stem.endswith(f"-{_examples_digest(table)}"):
        raise StoreError(f"{path} is damaged; {remedy}")
    return table


def _read_parquet(path: Path, remedy: str) -> pd.DataFrame:
    try:
        return pd.read_parquet(path)
    except Exception as error:  # of many types
        problem = "is damaged" if path.exists() else "is missing"
        raise StoreError(f"{path} {problem} ({type(error).__name__}); {remedy}") from error


@functools.lru_cache
def _known_examples(files: tuple[tuple[str, Path, int], ...]) -> pd.DataFrame:
    """Task, split, id and label of all dev examples in the files of some tasks.

    files: task, path, and when the file was changed, so that those that many runs share are read once.
    """
    parts = []
    for task, path, _ in files:
        parts.append(_read_examples(path).assign(task=task, split="dev"))
    return pd.concat(parts, ignore_index=True)[["task", "split", "id", "label"]]


def _read_predictions(folder: Path, examples: dict[str, str]) -> pd.DataFrame:
    """The predictions of a run, with the ids and labels of its examples."""
    files = []
    for task, name in examples.items():
        path = folder.parent.parent / "dev" / f"{name}.parquet"
        changed = path.stat().st_mtime_ns if path.exists() else 0
        files.append((task, path, changed))
    known = _known_examples(tuple(files))
    predicted = _read_parquet(folder / "predictions.parquet", REMEDY)
    if not np.array_equal(known["task"], predicted["task"]):
        raise StoreError(f"{folder}: the predictions do not fit the examples {', '.join(examples.values())}; {REMEDY}")
    return known.join(predicted[["predicted", "confidence"]].astype("float32"))


def read_run(folder: Path, config: RunConfig | None = None) -> Run:
    """A stored run; raises StoreError if a file of it is damaged or its configuration is not `config`."""
    content = _read_content(folder)
    stored = content["config"]
    if config is not None:
        in_id = config.model_dump(include={"encoder", "teachers"})  # the id names them by the content of the encoders
        if stored.but(**in_id).changed_fields != config.changed_fields:
            raise StoreError(f"{folder.name}: has another configuration, as a default was changed; train it again")
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
        cosines=_read_parquet(folder / COSINES, REMEDY) if has_cosines else pd.DataFrame(),
    )


def _read_content(folder: Path) -> dict:
    """The content of run.json, its `config` a RunConfig; raises StoreError if it or another file is damaged."""
    path = folder / "run.json"
    try:
        is_checked = _check_sums(folder)
        content = json.loads(path.read_text(encoding="utf8"))
        if missing := NEEDED - content.keys():
            raise ValueError(f"it has no {', '.join(sorted(missing))}")
        if content["run_id"] != folder.name:
            raise ValueError(f"it is of run {content['run_id']!r}")
        version = content["provenance"]["mtbert"]
        numbers = tuple(map(int, version.split(".")[:2]))
        if not is_checked and numbers >= CHECKSUMS_SINCE:
            raise StoreError(f"{folder}: {CHECKSUMS} is missing, which runs of version {version} have; {REMEDY}")
        if unknown := unknown_names(content["config"]):
            raise UnknownName(folder, unknown)
        if changed := changed_tasks(content.get("tasks", {})):
            raise StoreError(
                f"{folder}: the run was trained with other tasks than those here: {changed}; restore the file of the "
                "task, or give the changed task another name"
            )
        return content | {"config": RunConfig.from_params(content["config"])}
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{error.filename or path} cannot be read ({error.strerror}); {REMEDY}") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"{path} is damaged ({error}); {REMEDY}") from error


def _check_sums(folder: Path) -> bool:
    """Whether a run has checksums; raises StoreError if they are not those of its files."""
    if not (folder / CHECKSUMS).exists():
        return False
    files = ["run.json", "predictions.parquet"]
    if (folder / COSINES).exists():
        files.append(COSINES)
    if faults := checksum_faults(folder, files):
        raise StoreError(f"{folder}: {'; '.join(faults)}; {REMEDY}")
    if others := {path.name for path in folder.glob("[!.]*")} - {*files, CHECKSUMS}:
        log.warning("%s: no part of the run, and not read: %s", folder, ", ".join(sorted(others)))
    return True


def run_folder(run_id: str, among: Iterable[Path] | None = None) -> Path | None:
    """The folder of a run in the first of some stores (default: `stores()`) that has it; None where none has."""
    for store in among or stores():
        folder = store / "runs" / run_id
        if (folder / "run.json").exists():
            return folder
    return None


def run_folders(among: Iterable[Path], start: str = "") -> dict[str, Path]:
    """Run id -> folder of the stored runs whose id has this start, sorted by id; of two stores that of the first."""
    folders = {}
    for store in among:
        for path in (store / "runs").glob(f"{glob.escape(start)}*/run.json"):
            if not path.parent.name.startswith("."):
                folders.setdefault(path.parent.name, path.parent)
    return dict(sorted(folders.items()))


def stored_runs(among: Iterable[Path], level: int = logging.INFO) -> Iterator[tuple[Path, dict]]:
    """The folder of every run of some stores and the content of its run.json (`config`: a RunConfig), sorted by run id.

    A run that is damaged is left out with a warning; all with names that are not known here share a message of this
    level, as they are another grid's concern.
    """
    unknown: dict[str, list[str]] = {}  # reason -> run ids
    for folder in run_folders(among).values():
        try:
            yield folder, _read_content(folder)
        except UnknownName as error:
            unknown.setdefault(error.reason, []).append(folder.name)
        except StoreError as error:
            log.warning("left out: %s", for_command_line(error))
    reasons = []
    for reason, (first, *others) in unknown.items():
        more = f" and {len(others)} more" if others else ""
        reasons.append(f"{first}{more}: {reason}")
    if reasons:
        log.log(level, "left out: %s", for_command_line("; ".join(reasons)))


def write_table(table: pd.DataFrame, path: Path) -> Path:
    """Write a table of the store; returns its path."""
    with replacing(path) as partial:
        table.to_csv(partial, index=False, float_format="%.6g")
    return path


def update_tables(store: Path) -> None:
    """Write the tidy tables again from the folders of all runs, unless both are as they were written, of these runs.

    A store that cannot be written to is a warning: the next call tries again.
    """
    if _has_tables(store):
        return
    try:
        with store_lock(store):
            if not _has_tables(store):  # another process may have written them meanwhile
                _update_tables(store)
    except OSError as error:
        log.warning("%s of %s cannot be written (%s); the next call does it", " and ".join(TABLES), store, error)


def _has_tables(store: Path) -> bool:
    """Whether the tidy tables have just the stored runs, and no byte of them is changed or missing."""
    stored = run_folders([store]).keys()
    paths = [store / name for name in TABLES]
    if not stored and not any(path.exists() for path in paths):
        return True
    try:
        for path in paths:
            _, *rows = path.read_text(encoding="utf8").splitlines()
            if {row.partition(",")[0] for row in rows} != stored:
                return False
        return not checksum_faults(store, TABLES)
    except (OSError, ValueError):
        return False


def _update_tables(store: Path) -> None:
    scores, curves = [], []
    for _, content in stored_runs([store]):
        config, cost, provenance = content["config"], content["cost"], content["provenance"]
        about = {"run_id": content["run_id"], "trained_on": "+".join(config.tasks)}
        about |= {name: getattr(config, name) for name in COLUMNS}
        about["plan"] = config.plan_text
        others = {name: value for name, value in config.changed_fields.items() if name not in (*COLUMNS, "tasks")}
        about["other_fields"] = json.dumps(others) if others else ""
        spent = {name: cost[name] for name in SPENT}
        where = {name: provenance[name] for name in ("device", "mtbert")}
        scores += [about | row | spent | where for row in content["scores"]]
        curves += [{"run_id": content["run_id"]} | row for row in content["curve"]]
    for name, rows in zip(TABLES, (scores, curves), strict=True):
        write_table(pd.DataFrame(rows), store / name)
    write_checksums(store, TABLES)
