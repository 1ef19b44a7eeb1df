"""`load_or_run`: find the stored result of a run, or train it and write it into a store.

Who trains a run holds its lock, so that processes that ask for the same run train it once.
"""

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pandas as pd
from filelock import Timeout

from mtbert.config import RunConfig
from mtbert.data import TASKS, Corpus, DataError, demo
from mtbert.multitask import MultitaskBert
from mtbert.runtime import environment, pick_device
from mtbert.training import TrainedRun, load_corpus, train
from mtbert_lab.own_code import imported
from mtbert_lab.paths import check_writable, find_data, stores
from mtbert_lab.store.folders import read_run, run_folder, run_folders, write_run
from mtbert_lab.store.models import has_model, keep_model, model_folder, run_lock, tell_limit
from mtbert_lab.store.run import MissingRun, Run
from mtbert_lab.store.scores import score_table
from mtbert_lab.store.tables import update_tables
from mtbert_lab.store.teachers import TeacherOutputs

log = logging.getLogger(__name__)
PARTIAL, CHECKPOINT = ".*.[0-9]*", "*.pt"  # files in the folder of a model, and in that of its tokenizer


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
    it. Raises FolderError, before it trains, if the store cannot be written to.
    """
    among = [Path(store)] if store else stores()
    if not train_missing:
        return _find_without_data(config, data, among)
    corpus = load_corpus(config, data_root(config, data))
    run_id = run_id_of(config, corpus)
    if not is_done(run_id, among, again):
        if not accept_rejects:
            corpus.check()
        check_writable(among[0])
        with run_lock(run_id):
            if not is_done(run_id, among, again):  # another process may have trained it meanwhile
                train_and_store(config, corpus, run_id, among, device, progress, data)
    clean_up(run_id, among)
    update_tables(among[0])
    return read_run(run_folder(run_id, among), config)


# --- find -------------------------------------------------------------------------------------------------------------


def data_root(config: RunConfig, data: str | Path | None = None) -> Path:
    """The folder of the run's tables: the embedded demo corpus, or the course's files; DataError if there are none."""
    if config.corpus == "demo" or all(TASKS[task].folder for task in config.scored):  # tasks of one's own have theirs
        return demo.root()
    folder = find_data(data)
    if folder is None:
        raise DataError(
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


def _find_without_data(config: RunConfig, data: str | Path | None, among: Sequence[Path]) -> Run:
    """The stored run of a configuration, if possible the one on the data files as they are here; raises MissingRun."""
    folders = list(run_folders(among, f"{config.digest}-").values())
    if not folders:
        raise MissingRun(
            f"no stored run of configuration {config.digest} (tasks {', '.join(config.tasks)}, seed {config.seed}) in "
            f"{' or '.join(map(str, among))}; train it with train_missing=True or `mtbert train`"
        )
    if len(folders) > 1:
        folders.sort(key=lambda folder: is_of_files_here(folder.name, config, data))
    return read_run(folders[-1], config)


def is_of_files_here(run_id: str, config: RunConfig, data: str | Path | None = None) -> bool:
    """Whether a run was trained on the data files as they are here; False where they cannot be read.

    Rejected rows are not reported, as nothing is trained on them.
    """
    of_corpus = logging.getLogger(Corpus.__module__)
    level = of_corpus.level
    of_corpus.setLevel(logging.ERROR)
    try:
        digest = data_digest(load_corpus(config, data_root(config, data)))
    except DataError:
        return False
    finally:
        of_corpus.setLevel(level)
    return run_id.partition("-")[2] == digest


# --- train ------------------------------------------------------------------------------------------------------------


def train_and_store(
    config: RunConfig,
    corpus: Corpus,
    run_id: str,
    among: Sequence[Path],
    device: str,
    progress: bool | None,
    data: str | Path | None = None,
    wait: bool = True,
) -> Run:
    """For the owner of a run's lock: train it and store it in the first of some stores; a result that is stored stays.

    The store's tables are not written. A teacher is trained first if neither its outputs are stored nor its model is in
    the cache. wait: for a teacher that another process trains; else filelock.Timeout is raised. Raises CheckpointError
    if a teacher's model is damaged.
    """

    def corpus_of(teacher: RunConfig) -> Corpus:
        return load_corpus(teacher, data_root(teacher, data))

    place = pick_device(device)
    outputs = teacher_outputs(config, corpus, corpus_of, among)
    for teacher in outputs.missing():
        teacher_id = outputs.run_ids[teacher]
        with run_lock(teacher_id, wait):
            if not is_done(teacher_id, among, again=True):
                train_and_store(teacher, corpus_of(teacher), teacher_id, among, device, progress, data, wait)
        clean_up(teacher_id, among)
    started = time.perf_counter()
    teachers = outputs.mean_logits(corpus, place)
    teachers_seconds = round(time.perf_counter() - started, 2)

    folder = model_folder(run_id)
    _remove(folder, PARTIAL)  # left by a process that was killed
    checkpoint = folder / "checkpoint.pt"
    trained = train(config, corpus, device=device, checkpoint=checkpoint, progress=progress, teachers=teachers)
    if config.teachers:
        trained.cost["teachers_seconds"] = teachers_seconds
    run = _run_of(trained, config, corpus, run_id, environment(place))
    _write(run, trained.model, among)
    return run


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


# --- write ------------------------------------------------------------------------------------------------------------


def _write(run: Run, model: MultitaskBert, among: Sequence[Path]) -> None:
    """Keep the model in the cache, write the run into the first store unless one has it, and remove its checkpoints."""
    folder = model_folder(run.run_id)
    is_kept = keep_model(model, folder)  # first: a run that is stored is not trained again
    stored = run_folder(run.run_id, among)
    if stored is None:
        write_run(run, among[0])
    else:
        new, old = f"{run.score():.4f}", f"{read_run(stored).score():.4f}"
        if new != old:
            text = "%s: its model of today has dev %s, the stored result, which stays, %s"
            log.warning(text, run.run_id, new, old)
    with suppress(OSError):  # a read-only cache
        _remove(folder, CHECKPOINT)
    if not is_kept and not keep_model(model, folder):  # in the room of the checkpoints
        log.warning("the model of %s is not kept; the run is stored", run.run_id)
    tell_limit(folder)


def clean_up(run_id: str, among: Sequence[Path]) -> None:
    """Remove files that a killed process left in the cache: partial files, and checkpoints of a run that is done.

    Nothing is removed while another process trains the run.
    """
    folder = model_folder(run_id)
    patterns = [PARTIAL]
    if is_done(run_id, among, again=True):
        patterns.append(CHECKPOINT)
    if not any(any(folder.rglob(pattern)) for pattern in patterns):
        return
    with suppress(Timeout, OSError), run_lock(run_id, blocking=False):
        _remove(folder, *patterns)


def _remove(folder: Path, *patterns: str) -> None:
    for pattern in patterns:
        for path in folder.rglob(pattern):
            path.unlink(missing_ok=True)
