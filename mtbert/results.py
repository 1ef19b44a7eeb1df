"""The results store: one folder a run, two tidy tables over all of them, and `load_or_run`.

results/runs/<run id>/run.json             configuration, scores, learning curve, cost, provenance
results/runs/<run id>/predictions.parquet  a row per dev example: task, predicted, confidence
results/dev/<task>-<digest>.parquet        the examples of those rows, in their order, shared by all runs: id, label
results/runs/<run id>/cosines.parquet      where recorded: step, layer, first, second, cosine of the tasks' gradients
results/scores.csv, results/curves.csv     the same for reading: one row per run x task x split x metric; per point

A run id is `<configuration>-<data>`: the digests of the RunConfig and of the tables it reads. Without the data, a run
is found by its configuration alone, so that the report opens anywhere.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from mtbert import demo
from mtbert.config import RunConfig
from mtbert.data import TASKS, DataError, find_data
from mtbert.evaluate import metrics_of, overall, score_table, seed_difference, seed_mean
from mtbert.hub import MINILM
from mtbert.multitask import MultitaskBert, pick_device
from mtbert.paths import cache_dir, replacing, results_dir
from mtbert.profiling import environment
from mtbert.rows import Corpus
from mtbert.samplers import turn_ends
from mtbert.train import PRETRAINING, train

log = logging.getLogger(__name__)

SPENT = ("steps", "tokens", "train_seconds", "peak_memory_mib", "parameters", "trained_parameters")
TOLD = (  # the fields of a configuration that stand in scores.csv
    "corpus", "encoder", "weights", "frozen", "plan", "adapter", "pooling", "pairs", "scheme", "sampling", "gradients",
    "precision", "seed",
)  # fmt: skip


class MissingRun(LookupError):
    """A run that the store does not hold and that the caller did not want trained."""


@dataclass(frozen=True)
class Run:
    """A finished run, as stored."""

    run_id: str
    config: RunConfig
    scores: pd.DataFrame  # of the kept model: task, split, metric, value, low, high, n
    curve: pd.DataFrame  # step, epoch, tokens, seconds, train_loss, metric, dev_score; by task of several tasks
    predictions: pd.DataFrame  # task, split, id, label, predicted, confidence
    cost: dict
    provenance: dict
    step_scores: pd.DataFrame = field(default_factory=pd.DataFrame)  # scores of the last step, each task's best point
    cosines: pd.DataFrame = field(default_factory=pd.DataFrame)  # step, layer, first, second, cosine, where recorded

    def score(self, task: str | None = None, metric: str | None = None) -> float:
        """One dev score of a task, by default its first metric; without a task that of the training tasks together."""
        if task is None:
            return overall({name: self.score(name, metric) for name in self.config.tasks})
        table = self.scores[self.scores["task"] == task]
        return float(table["value"].iloc[0] if metric is None else table.set_index("metric")["value"][metric])


def stack_predictions(runs: list[Run], task: str) -> tuple[np.ndarray, np.ndarray]:
    """Dev predictions of several seeds of one configuration, (S, N), and the labels, (N,)."""
    parts = [run.predictions[run.predictions["task"] == task] for run in runs]
    return np.stack([part["predicted"].to_numpy() for part in parts]), parts[0]["label"].to_numpy()


def summarize(runs: list[Run], task: str | None = None, metric: str | None = None) -> dict:
    """One dev score over the seeds of a configuration: metric, value (mean), low, high (95 %), seeds, n (examples).

    By default the first metric of the first training task. See `seed_mean` for the interval; the lowest and the
    highest seed are beside it.
    """
    task = task or runs[0].config.tasks[0]
    metric = metric or next(iter(metrics_of(TASKS[task])))
    function = metrics_of(TASKS[task])[metric]
    predicted, labels = stack_predictions(runs, task)
    value, low, high = seed_mean(function, predicted, labels)
    by_seed = [float(score) for score in function(predicted, labels)]
    spread = {"lowest seed": min(by_seed), "highest seed": max(by_seed)}
    return {"metric": metric, "value": value, "low": low, "high": high, **spread, "seeds": len(runs), "n": len(labels)}


def difference(first: list[Run], second: list[Run], task: str | None = None) -> tuple[float, float, float]:
    """Mean dev score of one configuration minus that of another, and its 95 % interval, on the same examples."""
    task = task or first[0].config.tasks[0]
    metric = next(iter(metrics_of(TASKS[task]).values()))
    (one, labels), (other, _) = stack_predictions(first, task), stack_predictions(second, task)
    return seed_difference(metric, one, other, labels)


def forgetting(run: Run) -> pd.DataFrame:
    """Dev scores after each task's pass of a run with tasks in turn: a row a pass, named by its task; a column a task.

    What the rows below a task's last pass lose of its score is forgotten (Lopez-Paz and Ranzato 2017, section 3, whose
    backward transfer is the last row minus the diagonal, without the last task). Raises ValueError for other schemes.
    """
    sizes = [run.provenance["rows"][f"train {task}"] for task in run.config.tasks]
    ends = turn_ends(run.config, sizes)
    if not ends:
        raise ValueError(f"{run.run_id}: forgetting is told of several tasks in turn; scheme is {run.config.scheme!r}")
    points = run.curve.set_index("step").loc[list(ends), [f"dev_{task}" for task in run.config.tasks]]
    return points.set_axis(run.config.tasks, axis=1).set_axis(pd.Index(ends.values(), name="after"))


def data_root(config: RunConfig, data: str | Path | None = None) -> Path:
    """The folder of the run's tables: the embedded demo corpus, or the course's files.

    Raises DataError where the configuration asks for the course's files and there are none.
    """
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
    """The stored result of a run, or train, store and return it.

    data: the folder of the course's files (see `data_root`); store: default `results_dir()`. With
    `train_missing=False` nothing is trained: the run is looked up by its configuration, MissingRun is raised where
    it is not stored, and no data are needed. A trained model is kept in the cache (`model_folder`).
    """
    store = Path(store) if store else results_dir()
    if not train_missing:
        return _only_stored(config, data, store)
    corpus = Corpus.load(config, data_root(config, data))
    run_id = f"{config.digest}-{corpus.fingerprint[:8]}"
    if (store / "runs" / run_id / "run.json").exists():
        return read_run(store / "runs" / run_id, config)
    checkpoint = model_folder(run_id) / "checkpoint.pt"
    trained = train(config, corpus, device=device, checkpoint=checkpoint, progress=progress)
    trained.model.save(model_folder(run_id))
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
            "rows": {
                **{f"train {task}": len(table) for task, table in corpus.train.items()},
                **{f"dev {task}": len(t) for task, t in corpus.dev.items()},
            },
        },
    )
    folder = write_run(run, store)
    for file in (checkpoint, *checkpoint.parent.glob(PRETRAINING.format("*"))):
        file.unlink(missing_ok=True)
    return read_run(folder)


def model_folder(run_id: str) -> Path:
    """Where the best model of a run is kept: in the cache, as it is too large to commit."""
    return cache_dir() / "models" / run_id


def load_model(run_id: str) -> MultitaskBert:
    """The best model of a run; raises CheckpointError where the cache does not hold it."""
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
        folders = [store / "runs" / content["run_id"] for content in found]  # its encoder's folder is elsewhere
    if len(folders) > 1:  # the same configuration on several draws of the data: the one at hand decides
        fingerprint = Corpus.load(config, data_root(config, data)).fingerprint[:8]
        folders = [folder for folder in folders if folder.name.endswith(fingerprint)] or folders[-1:]
    if not folders:
        raise MissingRun(
            f"no stored run of configuration {config.digest} (tasks {', '.join(config.tasks)}, seed {config.seed}) in "
            f"{store.name}/; train it with train_missing=True or `mtbert train`"
        )
    return read_run(folders[0], config)


def write_run(run: Run, store: Path) -> Path:
    """Put a finished run into the store, whole or not at all, and renew the tidy tables; returns its folder.

    Of the predictions, what is kept has half precision for confidences and single precision for scores.
    """
    folder = store / "runs" / run.run_id
    partial = folder.with_name(f".{run.run_id}.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)  # left by a process of the same number that was killed here
    partial.mkdir(parents=True)
    content = {
        "run_id": run.run_id,
        "config": run.config.model_dump(mode="json"),
        "scores": run.scores.to_dict("records"),
        "step_scores": run.step_scores.to_dict("records"),
        "curve": run.curve.to_dict("records"),
        "cost": run.cost,
        "provenance": run.provenance,
        "examples": _write_examples(run.predictions, store),
    }
    (partial / "run.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf8")
    table = run.predictions[["task", "predicted", "confidence"]]
    table = table.astype({"task": "category", "predicted": "float32", "confidence": "float16"})
    table.to_parquet(partial / "predictions.parquet", compression="zstd", index=False)
    if len(run.cosines):
        run.cosines.astype({"cosine": "float32"}).to_parquet(partial / "cosines.parquet", index=False)
    if folder.exists():  # left by a process that finished the same run at the same time
        shutil.rmtree(partial)
    else:
        os.replace(partial, folder)
    _renew_tables(store)
    return folder


def _write_examples(predictions: pd.DataFrame, store: Path) -> dict[str, str]:
    """Write the ids and labels of every task's dev split once; returns the name of each task's file."""
    names = {}
    for task, part in predictions.groupby("task", sort=False):
        table = part[["id", "label"]].astype({"label": "float32"}).reset_index(drop=True)
        digest = hashlib.sha256(table.to_csv(index=False).encode()).hexdigest()[:8]
        names[task] = f"{task}-{digest}"
        path = store / "dev" / f"{names[task]}.parquet"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as partial:
                table.to_parquet(partial, compression="zstd", index=False)
    return names


def _read_predictions(folder: Path, examples: dict[str, str]) -> pd.DataFrame:
    """The predictions of a run beside the ids and labels of its examples."""
    store = folder.parent.parent
    parts = [pd.read_parquet(store / "dev" / f"{name}.parquet").assign(task=task) for task, name in examples.items()]
    known, predicted = pd.concat(parts, ignore_index=True), pd.read_parquet(folder / "predictions.parquet")
    if known["task"].tolist() != predicted["task"].tolist():
        raise ValueError(f"{folder.name}: the predictions are not those of the examples {', '.join(examples.values())}")
    columns = known.assign(split="dev")[["task", "split", "id", "label"]]
    return columns.join(predicted[["predicted", "confidence"]].astype("float32"))


def read_run(folder: Path, config: RunConfig | None = None) -> Run:
    """A stored run; with `config`, a stored configuration that differs from it is an error (ValueError)."""
    content = json.loads((folder / "run.json").read_text(encoding="utf8"))
    stored = RunConfig.from_params(content["config"])
    if config is not None and stored.but(encoder=config.encoder) != config:  # of an encoder the content is in the id
        raise ValueError(f"{folder.name}: holds another configuration; a default changed its meaning, train it again")
    return Run(
        run_id=content["run_id"],
        config=stored,
        scores=pd.DataFrame(content["scores"]),
        curve=pd.DataFrame(content["curve"]),
        predictions=_read_predictions(folder, content["examples"]),
        step_scores=pd.DataFrame(content.get("step_scores")),
        cost=content["cost"],
        provenance=content["provenance"],
        cosines=pd.read_parquet(cosines) if (cosines := folder / "cosines.parquet").exists() else pd.DataFrame(),
    )


def stored_runs(store: Path) -> Iterator[dict]:
    """What run.json holds of every run of the store, in the order of their folders, which are named by the run_id."""
    for path in sorted((store / "runs").glob("[!.]*/run.json")):
        yield json.loads(path.read_text(encoding="utf8"))


def write_table(table: pd.DataFrame, path: Path) -> Path:
    """Write a table of the store, whole or not at all; returns its path."""
    with replacing(path) as partial:
        table.to_csv(partial, index=False, float_format="%.6g")
    return path


def _renew_tables(store: Path) -> None:
    scores, curves = [], []
    for content in stored_runs(store):
        config, cost = RunConfig.from_params(content["config"]), content["cost"]
        about = {"run_id": content["run_id"], "trained_on": "+".join(config.tasks)}
        about |= {key: getattr(config, key) for key in TOLD} | {"plan": config.plan_text}
        others = config.model_dump(mode="json", exclude_defaults=True, exclude={*TOLD, "tasks"})
        about |= {"other_fields": json.dumps(others) if others else ""}
        spent = {key: cost[key] for key in SPENT}
        where = {"device": content["provenance"]["device"], "mtbert": content["provenance"]["mtbert"]}
        scores += [about | row | spent | where for row in content["scores"]]
        curves += [{"run_id": content["run_id"], **row} for row in content["curve"]]
    for name, rows in (("scores.csv", scores), ("curves.csv", curves)):
        write_table(pd.DataFrame(rows), store / name)
