"""`load_or_run`: find the stored result of a run, or train it and write it into a store.

Who trains a run holds its lock, so that processes that ask for the same run train it once. What happens to a run:

- `run_id_of` names it by its configuration and its tables (corpora.py).
- `run_folder` and `read_run` find it (folders.py).
- `Training.once` trains it, with the lock and the kept model of models.py and the teachers' outputs of teachers.py.
- `write_run` stores it (folders.py), and `update_tables` lists it (tables.py).
"""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd
from numpy import ndarray
from safetensors import SafetensorError

from mtbert.config import ConfigError, RunConfig
from mtbert.data import TASKS, Corpus
from mtbert.multitask import MultitaskBert
from mtbert.paths import OTHER_CACHE
from mtbert.runtime import environment, pick_device
from mtbert.training import TrainedRun, metrics_of, score_rows, train
from mtbert_lab.own_code import imported
from mtbert_lab.paths import check_writable, stores
from mtbert_lab.statistics import Scored, seed_mean
from mtbert_lab.store.corpora import data_digest, is_of_files_here, read_corpus, run_id_of
from mtbert_lab.store.folders import read_run, run_folder, run_folders, write_run
from mtbert_lab.store.models import has_model, model_folder, remove_checkpoints, run_lock, tell_limit
from mtbert_lab.store.run import MissingRun, Run
from mtbert_lab.store.tables import update_tables
from mtbert_lab.store.teachers import TeacherOutputs

log = logging.getLogger(__name__)
RUN_SIZE = 2**20  # bytes, more than a stored run takes
REPAIR = "Repair the file, or train on the rows that are left with accept_rejects=True."
Seeds = dict[Path, RunConfig]  # folders of the stored seeds of a configuration, all on one version of the data


def load_or_run(
    config: RunConfig,
    data: str | Path | None = None,
    store: str | Path | None = None,
    device: str = "auto",
    train_missing: bool = True,
    progress: bool | None = None,
    needs_model: bool = False,
    accept_rejects: bool = False,
) -> Run:
    """The stored result of a run; if there is none, train and store it, and keep the model in the cache.

    data: the folder of the course's files, see `data_root`. store: default `stores()`; the first is written to.
    train_missing: if False, nothing is trained and no data are needed; the run is found by its configuration, and
    MissingRun is raised if it is not stored. needs_model: train a stored run whose model is not in the cache; the
    stored result stays. accept_rejects: train although many rows are rejected or a class has no row, which raises
    DataError. Teachers are trained before their student in the same way. If another process trains the run, this call
    waits for it. Raises FolderError, before it trains, if the store or the cache cannot be written to.
    """
    if not isinstance(config, RunConfig):
        raise ConfigError(f"a RunConfig is needed, as RunConfig.from_params makes it, not a {type(config).__name__}")
    among = [Path(store)] if store else stores()
    if not train_missing:
        if found := stored_seeds([config], data, store):
            return found[0]
        raise MissingRun(
            f"no stored run of configuration {config.digest} (tasks {', '.join(config.tasks)}, seed {config.seed}) in "
            f"{' or '.join(map(str, among))}; train it with train_missing=True or `mtbert train`"
        )
    corpus = read_corpus(config, data)
    run_id = run_id_of(config, corpus)
    if not is_done(run_id, among, needs_model):
        corpus.warn()
        Training(among, data, device, progress, accept_rejects=accept_rejects).once(config, corpus, needs_model)
    update_tables(among[0])
    return read_run(run_folder(run_id, among), config)


# --- find -------------------------------------------------------------------------------------------------------------


def stored_seeds(
    configs: Sequence[RunConfig], data: str | Path | None = None, store: str | Path | None = None
) -> list[Run]:
    """The stored runs of some seeds of a configuration, all on one version of the training data.

    It is that of the files here, if a seed was trained on it, else the one that most seeds have. With `train_rows`
    every seed has training data of its own. data, store: as in `load_or_run`.
    """
    if len(configs) > 1 and configs[0].train_rows:
        return [run for config in configs for run in stored_seeds([config], data, store)]
    among = [Path(store)] if store else stores()
    versions: dict[str, Seeds] = {}
    for config in configs:
        for run_id, folder in run_folders(among, f"{config.digest}-").items():
            _, _, version = run_id.partition("-")
            versions.setdefault(version, {})[folder] = config

    chosen = of_one_version(list(versions.values()), data)
    return [read_run(folder, config) for folder, config in chosen.items()]


def of_one_version(versions: Sequence[Seeds], data: str | Path | None = None) -> Seeds:
    """The seeds on the data of the files here, else on the version that most have; for one version no data are read."""

    def rank(seeds: Seeds) -> tuple[bool, int]:
        folder, config = next(iter(seeds.items()))
        return is_of_files_here(folder.name, config, data), len(seeds)

    if len(versions) < 2:
        return next(iter(versions), {})
    return max(versions, key=rank)


def is_done(run_id: str, among: Sequence[Path], needs_model: bool) -> bool:
    """Whether one of these stores has the run, and with `needs_model` the cache its model."""
    return run_folder(run_id, among) is not None and (has_model(run_id) or not needs_model)


# --- train ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Training:
    """Where and how runs are trained, which is the same for a run and for its teachers.

    among: the stores that are read; the first is written to. data: as in `data_root`. wait: for another process that
    trains a run or a teacher; else filelock.Timeout is raised. accept_rejects: of tables that were checked before,
    or as in `load_or_run`.
    """

    among: Sequence[Path]
    data: str | Path | None = None
    device: str = "auto"
    progress: bool | None = None
    wait: bool = True
    accept_rejects: bool = True

    def once(self, config: RunConfig, corpus: Corpus, needs_model: bool = False) -> bool:
        """Train a run and store it, unless that is done; whether this call has trained it.

        A result that is stored stays, and the store's tables are not written. needs_model: also where a stored run has
        no model in the cache. A teacher is trained first if neither its outputs are stored nor its model is in the
        cache. Raises, before it trains, FolderError if the store or the cache cannot be written to, StoreError if a
        stored result is damaged, CheckpointError if a teacher's model is, and DataError for tables that are not
        accepted.
        """
        self._check(corpus)
        run_id = run_id_of(config, corpus)
        folder = model_folder(run_id)
        if not run_folder(run_id, self.among):  # else its model alone is trained again, for the cache
            check_writable(self.among[0], size=RUN_SIZE)
        check_writable(folder)
        with run_lock(run_id, self.wait):
            if is_done(run_id, self.among, needs_model):  # another process may have trained it meanwhile
                return False
            if stored := run_folder(run_id, self.among):
                read_run(stored)  # a damaged result is noticed before the training
            outputs = teacher_outputs(config, corpus, partial(read_corpus, data=self.data), self.among)
            teachers = {teacher: read_corpus(teacher, self.data) for teacher in outputs.missing()}
            for tables in teachers.values():
                self._check(tables)
            for teacher, tables in teachers.items():
                self.once(teacher, tables, needs_model=True)
            device = pick_device(self.device)
            trained = train(
                config,
                corpus,
                device=self.device,
                checkpoint=folder / "checkpoint.pt",
                progress=self.progress,
                teachers=outputs.mean_logits(corpus, device),
            )
            _write(_run_of(trained, config, corpus, run_id, environment(device)), trained.model, self.among)
        return True

    def _check(self, corpus: Corpus) -> None:
        if not self.accept_rejects:
            corpus.warn()
            corpus.check(REPAIR)


def teacher_outputs(
    config: RunConfig, corpus: Corpus, corpus_of: Callable[[RunConfig], Corpus], among: Sequence[Path]
) -> TeacherOutputs:
    """The outputs of a run's teachers in some stores. corpus: of the run; corpus_of: reads the corpus of a teacher."""
    run_ids = {teacher: run_id_of(teacher, corpus_of(teacher)) for teacher in config.teachers}
    return TeacherOutputs(config, data_digest(corpus), run_ids, among)


def _run_of(trained: TrainedRun, config: RunConfig, corpus: Corpus, run_id: str, machine: dict) -> Run:
    """The record of a trained run. machine: its part of the provenance."""
    scores = []
    for (task, split), part in trained.predictions.groupby(["task", "split"], sort=False):
        scores.append(score_table(task, split, part["predicted"].to_numpy(), part["label"].to_numpy()))
    rows = {f"train {task}": len(table) for task, table in corpus.train.items()}
    rows |= {f"dev {task}": len(table) for task, table in corpus.dev.items()}
    provenance = {**machine, "data": corpus.fingerprint, "rows": rows}
    if imported:
        provenance["imports"] = [os.path.relpath(file) for file in imported]
    return Run(
        run_id=run_id,
        config=config,
        scores=pd.concat(scores, ignore_index=True),
        curve=trained.curve,
        step_scores=trained.step_scores,
        predictions=trained.predictions,
        cost=trained.cost,
        cosines=trained.cosines,
        provenance=provenance,
    )


def score_table(task: str, split: str, predicted: ndarray, labels: ndarray) -> pd.DataFrame:
    """One row per metric: task, split, metric, value, low, high (95 %, of one seed), n (examples)."""
    table = pd.DataFrame(score_rows(task, split, predicted, labels))
    sides = predicted[None].astype(float), labels.astype(float)
    table[["low", "high"]] = [seed_mean([Scored(metric, *sides)])[1:] for metric in metrics_of(TASKS[task]).values()]
    return table[["task", "split", "metric", "value", "low", "high", "n"]]


# --- write ------------------------------------------------------------------------------------------------------------


def _write(run: Run, model: MultitaskBert, among: Sequence[Path]) -> None:
    """Write a run into the first store, unless one has it, and its model into the cache; then its checkpoints go."""
    stored = run_folder(run.run_id, among)
    if stored is None:
        write_run(run, among[0])
    else:
        new, old = f"{run.score():.4f}", f"{read_run(stored).score():.4f}"
        if new != old:
            text = "%s: its model of today has dev %s, the stored result, which stays, %s"
            log.warning(text, run.run_id, new, old)
    folder = model_folder(run.run_id)
    problem = _keep(model, folder)
    remove_checkpoints(folder)
    if problem:
        problem = _keep(model, folder)  # in the room of the checkpoints
    if problem:
        text = "the model of %s, which is stored, cannot be kept in %s (%s); %s"
        log.warning(text, run.run_id, folder, problem, OTHER_CACHE)
    tell_limit(folder)


def _keep(model: MultitaskBert, folder: Path) -> Exception | None:
    """Save a model; the error where that is impossible."""
    try:
        model.save(folder)
    except (OSError, SafetensorError) as error:
        return error
    return None
