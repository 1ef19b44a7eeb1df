"""`load_or_run`: the stored result of a run, or train and store it."""

from pathlib import Path

import pandas as pd

from mtbert.bert import MINILM
from mtbert.config import RunConfig
from mtbert.data import DataError, demo, find_data
from mtbert.multitask import MultitaskBert
from mtbert.parallel import connect
from mtbert.paths import cache_dir, results_dir
from mtbert.results.store import MissingRun, Run, read_run, stored_runs, write_run
from mtbert.runtime import environment, pick_device
from mtbert.training import PRETRAINING, load_corpus, score_table, train


def data_root(config: RunConfig, data: str | Path | None = None) -> Path:
    """The folder of the run's tables: the embedded demo corpus, or the course's files; DataError if there are none."""
    if config.corpus == "demo":
        return demo.root()
    folder = find_data(data)
    if folder is None:
        raise DataError(
            "corpus is 'course', but its files are not here: name their folder with --data or MTBERT_DATA, "
            "download them with `mtbert data fetch`, or set corpus to 'demo'"
        )
    return folder


def load_or_run(
    config: RunConfig,
    data: str | Path | None = None,
    store: str | Path | None = None,
    device: str = "auto",
    train_missing: bool = True,
    progress: bool | None = None,
) -> Run:
    """The stored result of a run; if there is none, train and store it, and keep the model in the cache.

    data: the folder of the course's files (see `data_root`); store: default `results_dir()`. With
    `train_missing=False` nothing is trained and no data are needed: the run is found by its configuration, and
    MissingRun is raised if it is not stored. Of several processes that torchrun started, which train together, the
    first one stores the run.
    """
    store = Path(store) if store else results_dir()
    if not train_missing:
        return _only_stored(config, data, store)
    processes = connect(pick_device(device))
    with processes.main_first():
        corpus = load_corpus(config, data_root(config, data))
    run_id = f"{config.digest}-{corpus.fingerprint[:8]}"
    if processes.largest((store / "runs" / run_id / "run.json").exists()):
        return read_run(store / "runs" / run_id, config)
    checkpoint = model_folder(run_id) / "checkpoint.pt"
    trained = train(config, corpus, device=device, checkpoint=checkpoint, progress=progress)
    run = Run(
        run_id=run_id,
        config=config,
        scores=_scores(trained.predictions),
        curve=trained.curve,
        step_scores=trained.step_scores,
        predictions=trained.predictions,
        cost=trained.cost,
        cosines=trained.cosines,
        provenance={
            **environment(pick_device(device)),
            "data": corpus.fingerprint,
            "rows": {f"train {task}": len(table) for task, table in corpus.train.items()}
            | {f"dev {task}": len(table) for task, table in corpus.dev.items()},
        },
    )
    if not processes.is_main:
        return run
    trained.model.save(model_folder(run_id))
    folder = write_run(run, store)
    for file in (checkpoint, *checkpoint.parent.glob(PRETRAINING.format("*"))):
        file.unlink(missing_ok=True)
    return read_run(folder)


def model_folder(run_id: str) -> Path:
    """The folder of a run's best model, in the cache, as it is too large to commit."""
    return cache_dir() / "models" / run_id


def load_model(run_id: str) -> MultitaskBert:
    """The best model of a run; raises CheckpointError if it is not in the cache."""
    return MultitaskBert.load(model_folder(run_id))


def _scores(predictions: pd.DataFrame) -> pd.DataFrame:
    tables = [
        score_table(task, split, part["predicted"].to_numpy(), part["label"].to_numpy())
        for (task, split), part in predictions.groupby(["task", "split"], sort=False)
    ]
    return pd.concat(tables, ignore_index=True)


def _only_stored(config: RunConfig, data: str | Path | None, store: Path) -> Run:
    folders = sorted(path.parent for path in (store / "runs").glob(f"{config.digest}-*/run.json"))
    if not folders and config.encoder != MINILM and not Path(config.encoder).is_dir():
        found = [content for content in stored_runs(store) if RunConfig.from_params(content["config"]) == config]
        folders = [store / "runs" / content["run_id"] for content in found]  # without the encoder there is no digest
    if len(folders) > 1:  # the same configuration on other versions of the data: take the version that is here
        fingerprint = load_corpus(config, data_root(config, data)).fingerprint[:8]
        folders = [folder for folder in folders if folder.name.endswith(fingerprint)] or folders[-1:]
    if not folders:
        raise MissingRun(
            f"no stored run of configuration {config.digest} (tasks {', '.join(config.tasks)}, seed {config.seed}) in "
            f"{store.name}/; train it with train_missing=True or `mtbert train`"
        )
    return read_run(folders[0], config)
