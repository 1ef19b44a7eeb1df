"""`load_or_run`: find the stored result of a run, or train it and write it into a store.

Who trains a run holds its lock, so that processes that ask for the same run train it once.
"""

import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pandas as pd
from numpy import ndarray
from safetensors import SafetensorError

from mtbert.config import ConfigError, RunConfig
from mtbert.data import TASKS, Corpus, DataError, demo
from mtbert.multitask import MultitaskBert
from mtbert.paths import OTHER_CACHE
from mtbert.runtime import environment, pick_device
from mtbert.training import TrainedRun, load_corpus, metrics_of, score_rows, train
from mtbert_lab.own_code import imported
from mtbert_lab.paths import check_writable, find_data, stores
from mtbert_lab.statistics import Scored, seed_mean
from mtbert_lab.store.folders import read_run, run_folder, run_folders, write_run
from mtbert_lab.store.models import has_model, model_folder, remove_checkpoints, run_lock, tell_limit
from mtbert_lab.store.run import MissingRun, Run
from mtbert_lab.store.tables import update_tables
from mtbert_lab.store.teachers import TeacherOutputs

log = logging.getLogger(__name__)
RUN_SIZE = 2**20  # bytes, more than a stored run takes
REPAIR = "Repair the file, or train on the rows that are left with accept_rejects=True."
StoredSeeds = list[tuple[Path, RunConfig]]  # folders of a configuration's seeds, all on one version of the data


class NoCourseData(DataError):
    """The course's files are not here, and no folder was named."""


def load_or_run(
    config: RunConfig,
    data: str | Path | None = None,
    store: str | Path | None = None,
    device: str = "auto",
    train_missing: bool = True,
    progress: bool | None = None,
    again: bool = False,
    accept_rejects: bool = False,
) -> Run:
    """The stored result of a run; if there is none, train and store it, and keep the model in the cache.

    data: the folder of the course's files, see `data_root`. store: default `stores()`; the first is written to.
    train_missing: if False, nothing is trained and no data are needed; the run is found by its configuration, and
    MissingRun is raised if it is not stored. again: train a stored run whose model is not in the cache; the stored
    result stays. accept_rejects: train although many rows are rejected or a class has no row, which raises DataError.
    Teachers are trained before their student in the same way. If another process trains the run, this call waits for
    it. Raises FolderError, before it trains, if the store or the cache cannot be written to.
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
    if not is_done(run_id, among, again):
        corpus.warn()
        if not accept_rejects:
            corpus.check(REPAIR)
        train_once(config, corpus, among, device, progress, data, again)
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
    versions: dict[str, StoredSeeds] = {}
    for config in configs:
        for run_id, folder in run_folders(among, f"{config.digest}-").items():
            _, _, version = run_id.partition("-")
            versions.setdefault(version, []).append((folder, config))

    chosen = of_one_version(list(versions.values()), data)
    return [read_run(folder, config) for folder, config in chosen]


def of_one_version(versions: Sequence[StoredSeeds], data: str | Path | None = None) -> StoredSeeds:
    """The seeds on the data of the files here, else on the version that most have; for one version no data are read."""

    def rank(seeds: StoredSeeds) -> tuple[bool, int]:
        folder, config = seeds[0]
        return is_of_files_here(folder.name, config, data), len(seeds)

    if len(versions) < 2:
        return next(iter(versions), [])
    return max(versions, key=rank)


def read_corpus(config: RunConfig, data: str | Path | None = None) -> Corpus:
    """The tables of a run; raises DataError where they are not here."""
    return load_corpus(config, data_root(config, data))


class Corpora:
    """The tables of many configurations, each read once; data: as in `data_root`."""

    def __init__(self, data: str | Path | None) -> None:
        self.data = data
        self.read: dict[tuple, Corpus] = {}

    def key(self, config: RunConfig) -> tuple:
        """What the tables of a configuration depend on."""
        drawn_with = config.seed if config.train_rows else None
        return (config.corpus, config.tasks, config.scored, config.train_rows, config.augment, drawn_with)

    def __call__(self, config: RunConfig) -> Corpus:
        """The tables of a configuration."""
        key = self.key(config)
        if key not in self.read:
            self.read[key] = read_corpus(config, self.data)
        return self.read[key]

    def run_id(self, config: RunConfig) -> str:
        """The id of a run."""
        return run_id_of(config, self(config))


def data_root(config: RunConfig, data: str | Path | None = None) -> Path:
    """The folder of the run's tables: the embedded demo corpus, or the course's files; raises NoCourseData without."""
    if config.corpus == "demo" or all(TASKS[task].folder for task in config.scored):  # tasks of one's own have theirs
        return demo.root()
    folder = find_data(data)
    if folder is None:
        raise NoCourseData(
            "corpus is 'course', but its files are not here: name their folder with --data or MTBERT_DATA, "
            "download them with `mtbert data fetch`, or set corpus to 'demo'"
        )
    return folder


def run_id_of(config: RunConfig, corpus: Corpus) -> str:
    """The id of a run, `<configuration>-<data>`, see `folders`."""
    return f"{config.digest}-{data_digest(corpus)}"


def data_digest(corpus: Corpus) -> str:
    """The part of run ids that names the tables."""
    return corpus.fingerprint[:8]


def is_done(run_id: str, among: Sequence[Path], again: bool) -> bool:
    """Whether one of these stores has the run, and with `again` the cache its model."""
    return run_folder(run_id, among) is not None and (has_model(run_id) or not again)


def is_of_files_here(run_id: str, config: RunConfig, data: str | Path | None = None) -> bool:
    """Whether a run was trained on the data files as they are here; False where they cannot be read."""
    try:
        corpus = read_corpus(config, data)
    except DataError:
        return False
    return run_id.endswith(f"-{data_digest(corpus)}")


# --- train ------------------------------------------------------------------------------------------------------------


def train_once(
    config: RunConfig,
    corpus: Corpus,
    among: Sequence[Path],
    device: str,
    progress: bool | None,
    data: str | Path | None = None,
    again: bool = False,
    wait: bool = True,
) -> bool:
    """Train a run and store it in the first of some stores, unless that is done; whether this call has trained it.

    A result that is stored stays, and the store's tables are not written. again: also where a stored run has no model
    in the cache. A teacher is trained first if neither its outputs are stored nor its model is in the cache. wait: for
    another process that trains the run or a teacher; else filelock.Timeout is raised. Raises, before it trains,
    FolderError if the store or the cache cannot be written to, StoreError if a stored result is damaged, and
    CheckpointError if a teacher's model is.
    """
    run_id = run_id_of(config, corpus)
    folder = model_folder(run_id)
    if not run_folder(run_id, among):  # else its model alone is trained again, for the cache
        check_writable(among[0], size=RUN_SIZE)
    check_writable(folder)
    with run_lock(run_id, wait):
        if is_done(run_id, among, again):  # another process may have trained it meanwhile
            return False
        if stored := run_folder(run_id, among):
            read_run(stored)  # a damaged result is noticed before the training
        outputs = teacher_outputs(config, corpus, partial(read_corpus, data=data), among)
        for teacher in outputs.missing():
            train_once(teacher, read_corpus(teacher, data), among, device, progress, data, again=True, wait=wait)
        place = pick_device(device)
        teachers = outputs.mean_logits(corpus, place)
        checkpoint = folder / "checkpoint.pt"
        trained = train(config, corpus, device=device, checkpoint=checkpoint, progress=progress, teachers=teachers)
        _write(_run_of(trained, config, corpus, run_id, environment(place)), trained.model, among)
    return True


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
