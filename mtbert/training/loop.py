"""The one training loop: seeded, resumable, the best model on dev kept.

A run is a function of its RunConfig, its data and the machine: two runs of one configuration give the same bits.
"""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from mtbert.bert import BertModel
from mtbert.config import RunConfig
from mtbert.data import TASKS, Corpus, tokenize_texts
from mtbert.multitask import MultitaskBert, build_encoder, meta_model, parameter_counts
from mtbert.parallel import Processes, connect
from mtbert.paths import replacing
from mtbert.runtime import PeakMemory, Trimmer, keep_freed_memory, pick_device
from mtbert.samplers import moving_average
from mtbert.training.batches import expected_passes, steps_per_epoch, training_steps, turn_ends
from mtbert.training.checkpoint import Checkpoint, TrainingError
from mtbert.training.masked_lm import pretrain, pretraining_texts
from mtbert.training.metrics import metrics_of, overall, score_table
from mtbert.training.step import Trainer
from mtbert.training.task_data import TaskRows

log = logging.getLogger(__name__)
TRAIN_ROWS = 2000  # training examples of a task that are scored at the end
LOG, LOG_POINTS = "log.csv", 100  # next to the checkpoint: the points of the curve, and of the loss between them
PRETRAINING = "pretraining_{}.pt"  # the checkpoint of pretraining before or after, beside that of the run


@dataclass
class TrainedRun:
    """What training gives: the kept model, its dev predictions by task, the learning curve, and the cost."""

    model: MultitaskBert
    predictions: pd.DataFrame  # task, split, id, label, predicted, confidence
    curve: pd.DataFrame  # step, epoch, tokens, seconds, cpu_seconds, train_loss, metric, dev_score, by task of several
    step_scores: pd.DataFrame  # a score of the last step or a task's best point: task, split, metric, ..., at, step
    cosines: pd.DataFrame  # step, layer, first, second, cosine: of the tasks' gradients, where recorded
    cost: dict[str, float]


@dataclass
class _Progress:
    """The part of a run that a checkpoint has besides the model and the trainer."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0  # of training, evaluation not counted
    cpu_seconds: float = 0.0  # the same in processor time, which depends less on other work
    losses: list[dict[str, float]] = field(default_factory=list)  # by task, since the last evaluation
    curve: list[dict] = field(default_factory=list)
    log: list[dict] = field(default_factory=list)  # the rows of LOG
    best: dict[str, dict] = field(default_factory=dict)  # "overall" and each task -> score, step, of a task predicted
    averages: dict[str, float] = field(default_factory=dict)  # task -> moving average of its losses
    epoch_averages: list[dict[str, float]] = field(default_factory=list)  # at the end of each epoch
    kept: dict[str, Tensor] = field(default_factory=dict)  # the best weights so far, by the configuration's `keep`
    processes: int = 1  # that trained together


@dataclass(frozen=True)
class _Rows:
    """The rows of every task, and for each training table the seconds and processor seconds of its features."""

    train: dict[str, TaskRows]
    dev: dict[str, TaskRows]
    feature_times: list[tuple[float, float]]


class _Log:
    """The rows of a run's log, and next to its checkpoint a CSV file of them that grows as it trains."""

    def __init__(self, checkpoint: Path | None, rows: list[dict]) -> None:
        self.file = checkpoint and checkpoint.with_name(LOG)
        self.rows = rows

    def write(self, row: dict) -> None:
        self.rows.append(row)
        if self.file:
            try:
                with replacing(self.file) as partial:
                    pd.DataFrame(self.rows).to_csv(partial, index=False, float_format="%.6g")
            except OSError as error:
                log.warning("%s cannot be written (%s); training goes on", self.file, error.strerror)


def train(
    config: RunConfig,
    corpus: Corpus,
    device: str = "auto",
    checkpoint: Path | None = None,
    checkpoint_seconds: float | None = None,
    progress: bool | None = None,
    teachers: dict[str, Tensor] | None = None,
) -> TrainedRun:
    """Train as the configuration says and score the model that `keep` names on dev.

    checkpoint: a file written every `checkpoint_seconds` (default: as `Checkpoint` says) and on SIGINT or SIGTERM
    (`Checkpoint.guard`), from which the same call goes on after an interruption, bit for bit as if there had been none;
    the caller removes it. LOG is written next to it. progress: show a bar; None: on a terminal.
    teachers: where the configuration has some, by task, their `mean_logits` for the rows of the training table.
    Raises TrainingError at the first loss that is not finite.

    Of several processes (`parallel.py`), which all call this, each computes its part of every batch and every
    evaluation; all get the result. The first one pretrains, saves checkpoints and shows the bar; processor time in the
    cost is of all, the rest of the first.
    """
    teachers = teachers or {}
    _check_teachers(config, corpus, teachers)
    place = pick_device(device)
    processes = connect(place)
    job = _Job(config, corpus, place, processes, checkpoint, checkpoint_seconds, progress)
    torch.manual_seed(config.seed)
    memory = PeakMemory(place)
    keep_freed_memory()

    cost: dict[str, float] = {}
    encoder = build_encoder(config)
    if config.pretrain in ("before", "both"):
        meta_model(config)  # what does not fit together is said here, not after hours of pretraining
        cost |= job.pretrain("before", encoder)
    model = MultitaskBert(config, encoder).to(place)
    processes.copy_from_main(model)
    rows = job.read_rows(model, teachers)
    trainer = Trainer(model, rows.train, job.total_steps, processes)
    state, latest = job.train(trainer, rows)

    started = time.perf_counter()
    trainer.swap_average()
    known = latest if config.curve_rows is None else {}
    predictions = {task: known[task] if task in known else rows.dev[task].predictions("dev") for task in rows.dev}
    step_scores = _step_scores(config, state, predictions, rows)
    if config.keep != "last":
        model.load_state_dict(state.kept, strict=False)
    if config.pretrain in ("after", "both"):
        paused = time.perf_counter()
        cost |= job.pretrain("after", model.encoder.task_encoder(config.tasks[0]))  # the one encoder of plan 1-bert
        started += time.perf_counter() - paused
    processes.copy_from_main(model)
    kept = {"last": (), "best": ("overall",), "best_per_task": config.tasks}[config.keep]
    if config.pretrain in ("after", "both") or any(state.best[name]["step"] < job.total_steps for name in kept):
        predictions = {task: rows.dev[task].predictions("dev") for task in rows.dev}
    cost["score_seconds"] = round(time.perf_counter() - started, 2)
    cost["peak_memory_mib"] = round(memory.mib(), 1)
    cost |= job.costs(state, rows) | parameter_counts(model)
    cost |= {f"constraints_{name}": count for name, count in trainer.constraints.items()}
    return TrainedRun(
        model=model.eval(),
        predictions=pd.concat(predictions.values(), ignore_index=True),
        curve=pd.DataFrame(state.curve),
        step_scores=step_scores,
        cosines=pd.DataFrame(trainer.cosines),
        cost=cost,
    )


def _check_teachers(config: RunConfig, corpus: Corpus, teachers: dict[str, Tensor]) -> None:
    needed = {task: len(corpus.train[task]) for task in config.teachers_by_task}
    if {task: len(logits) for task, logits in teachers.items()} != needed:
        raise TrainingError(f"teachers: logits for all training rows of {list(needed)} are needed")


@dataclass(frozen=True)
class _Job:
    """A call of `train`: what it was given, and the parts of it that are long."""

    config: RunConfig
    corpus: Corpus
    place: torch.device
    processes: Processes
    checkpoint: Path | None
    checkpoint_seconds: float | None
    progress: bool | None

    @property
    def sizes(self) -> list[int]:
        """Training examples of each task."""
        return [len(table) for table in self.corpus.train.values()]

    @property
    def epoch_steps(self) -> int:
        return steps_per_epoch(self.config, self.sizes)

    @property
    def total_steps(self) -> int:
        return self.config.epochs * self.epoch_steps

    @property
    def shows_progress(self) -> bool | None:
        """None: on a terminal."""
        return self.progress if self.processes.is_main else False

    def pretrain(self, stage: str, encoder: BertModel) -> dict[str, float]:
        """Masked language modelling on the training texts by the first process, in place; its cost and last loss."""
        if not self.processes.is_main:
            return {}
        texts = tokenize_texts(pretraining_texts(self.corpus.train), self.config.encoder, self.config.max_length)
        path = self.checkpoint and self.checkpoint.with_name(PRETRAINING.format(stage))
        curve = pretrain(encoder, texts, self.config, self.place, path, self.checkpoint_seconds, self.shows_progress)
        last = curve.iloc[-1]
        cost = {name: float(last[name]) for name in ("tokens", "loss", "accuracy")}
        cost["seconds"] = round(curve.attrs["seconds"], 2)
        return {f"pretrain_{stage}_{name}": value for name, value in cost.items()}

    def read_rows(self, model: MultitaskBert, teachers: dict[str, Tensor]) -> _Rows:
        """The rows of every task, with their features.

        What frozen layers make of the texts is computed here, before the clock of training starts: else a run that
        makes the features would seem slower than one that finds them.
        """
        passes = expected_passes(self.config, self.sizes)
        evaluations = self.config.epochs * self.config.evals_per_epoch
        train, dev = {}, {}
        with self.processes.main_first():
            for (task, table), times in zip(self.corpus.train.items(), passes, strict=True):
                train[task] = TaskRows(model, task, table, self.place, times, self.processes, teachers.get(task))
            for task, table in self.corpus.dev.items():
                dev[task] = TaskRows(model, task, table, self.place, evaluations, self.processes)
            feature_times = [rows.make_features() for rows in train.values()]
            for rows in dev.values():
                rows.make_features()
        return _Rows(train, dev, feature_times)

    def train(self, trainer: Trainer, rows: _Rows) -> tuple[_Progress, dict[str, pd.DataFrame]]:
        """All steps that are left; returns the run so far, and the predictions of the last evaluation."""
        config = self.config
        epoch_steps = self.epoch_steps
        total_steps = self.total_steps
        parts = {"model": trainer.model, "trainer": trainer}
        name = f"{config.digest} {self.corpus.fingerprint}"
        saver = Checkpoint(self.checkpoint, name, parts, self.checkpoint_seconds, self.processes)
        state = self.restore(saver)
        points = _Log(self.checkpoint if self.processes.is_main else None, state.log)
        is_hidden = None if self.shows_progress is None else not self.shows_progress
        bar = tqdm(total=total_steps, initial=state.step, disable=is_hidden, unit="step")
        trim = Trimmer()
        latest: dict[str, pd.DataFrame] = {}
        marks = evaluation_steps(config, self.sizes)
        log_every = math.ceil(total_steps / LOG_POINTS)
        lengths = {task: table.tokens.lengths for task, table in rows.train.items()}
        steps = enumerate(training_steps(config, lengths, state.epoch_averages), start=1)
        for step, chosen in saver.guard(steps, lambda: vars(state), total_steps):
            if step <= state.step:  # of the part before an interruption only the memory of examples is made again
                trainer.remember(chosen)
                continue
            started, cpu_started = time.perf_counter(), time.process_time()
            losses = trainer.step(step, chosen)
            if not all(math.isfinite(loss) for loss in losses.values()):
                raise TrainingError(_broken(losses, step, epoch_steps, self.corpus, chosen, trainer.schedule))

            state.step = step
            for task, part in chosen.items():
                state.tokens += int(rows.train[task].tokens.counts[part].sum())
            state.losses.append(losses)
            state.averages |= {task: moving_average(state.averages.get(task), loss) for task, loss in losses.items()}
            if step % epoch_steps == 0:
                state.epoch_averages.append(dict(state.averages))
            state.seconds += time.perf_counter() - started
            state.cpu_seconds += time.process_time() - cpu_started
            bar.update()
            if step in marks:
                trainer.swap_average()
                latest = _evaluate(state, trainer.model, config, rows.dev, step / epoch_steps)
                trainer.swap_average()
                points.write(state.curve[-1])
                bar.set_postfix_str(f"loss {state.curve[-1]['train_loss']:.3f} dev {state.curve[-1]['dev_score']:.3f}")
            elif step % log_every == 0:
                points.write(_log_point(state, step / epoch_steps, log_every))
            trim()
        bar.close()
        return state, latest

    def restore(self, saver: Checkpoint) -> _Progress:
        """The run up to its checkpoint, or its start; raises TrainingError if the processes read different ones."""
        count = self.processes.count
        state = _Progress(**(saver.restore() or {"processes": count}))
        if len(set(self.processes.gather([state.step]))) > 1:
            raise TrainingError(
                "the processes do not read the same checkpoint: the cache (MTBERT_CACHE) must be shared"
            )
        if state.processes != count:
            log.warning("processes that go on: %d; that saved the checkpoint: %d", count, state.processes)
            state.processes = max(state.processes, count)
        return state

    def costs(self, state: _Progress, rows: _Rows) -> dict[str, float]:
        """What the steps cost: seconds of the first process, processor time of all."""
        cpu_seconds = sum(self.processes.gather([state.cpu_seconds]))
        cost = {
            "train_seconds": round(state.seconds, 2),
            "train_cpu_seconds": round(cpu_seconds, 2),
            "feature_seconds": round(sum(seconds for seconds, _ in rows.feature_times), 2),
            "feature_cpu_seconds": round(sum(seconds for _, seconds in rows.feature_times), 2),
            "tokens": state.tokens,
            "tokens_per_cpu_second": round(state.tokens / max(cpu_seconds, 1e-9), 1),
            "best_step": state.best["overall"]["step"],
            "steps": self.total_steps,
        }
        return cost | ({"processes": state.processes} if state.processes > 1 else {})


def evaluation_steps(config: RunConfig, sizes: Sequence[int]) -> set[int]:
    """The steps after which a run is scored, for training tasks of these sizes (examples).

    Of tasks in turn the end of each task's pass is one, too: what a task then scores tells what it forgets later.
    """
    epoch_steps = steps_per_epoch(config, sizes)
    points = config.evals_per_epoch
    total = config.epochs * epoch_steps
    marks = set(turn_ends(config, sizes))
    if config.eval_spacing == "log":
        return marks | {max(1, round(total / 2**i)) for i in range(config.epochs * points)}
    for epoch in range(config.epochs):
        marks |= {epoch * epoch_steps + round(i * epoch_steps / points) for i in range(1, points + 1)}
    return marks


def _log_point(state: _Progress, epoch: float, n: int) -> dict[str, float]:
    """A row of the log between two evaluations, with the mean loss of the last n steps."""
    recent = [np.mean(list(by_task.values())) for by_task in state.losses[-n:]]
    spent = {name: getattr(state, name) for name in ("tokens", "seconds", "cpu_seconds")}
    return {"step": state.step, "epoch": epoch, **spent, "train_loss": float(np.mean(recent))}


def _evaluate(
    state: _Progress, model: MultitaskBert, config: RunConfig, dev: dict[str, TaskRows], epoch: float
) -> dict[str, pd.DataFrame]:
    """Append a point of the learning curve and note what is best so far; returns the model's predictions."""
    scores, names, losses = {}, {}, {}
    predictions = {
        task: dev[task].predictions("dev", _subset(config.curve_rows, len(dev[task]))) for task in config.tasks
    }
    for task, table in predictions.items():
        names[task], metric = next(iter(metrics_of(TASKS[task]).items()))
        scores[task] = float(metric(table["predicted"].to_numpy(), table["label"].to_numpy()))
        known = [step[task] for step in state.losses if task in step]
        losses[task] = float(np.mean(known)) if known else math.nan  # of a sampled task that was not drawn
    score = overall(scores)
    several = len(scores) > 1
    mean_loss = float(np.mean([np.mean(list(step.values())) for step in state.losses]))
    state.curve.append(
        dict(step=state.step, epoch=round(epoch, 4), tokens=state.tokens, seconds=round(state.seconds, 2),
             cpu_seconds=round(state.cpu_seconds, 2), train_loss=mean_loss,
             metric="overall" if several else names[config.tasks[0]], dev_score=score)
    )  # fmt: skip
    if several:
        state.curve[-1] |= {f"dev_{task}": score for task, score in scores.items()}
        state.curve[-1] |= {f"train_loss_{task}": loss for task, loss in losses.items()}
    state.losses = []
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    for name, value in {"overall": score, **scores}.items():
        best = state.best.get(name, {"score": math.nan})["score"]
        if not (math.isnan(best) or value > best):
            continue
        state.best[name] = {"score": value, "step": state.step}
        if name in predictions:
            state.best[name]["predicted"] = torch.tensor(predictions[name]["predicted"].to_numpy())
        if config.keep == ("best" if name == "overall" else "best_per_task"):
            names = trained if name == "overall" or not state.kept else trained & model.own_weights(name)
            state.kept |= {n: t.clone() for n, t in model.state_dict().items() if n in names}
    return predictions


def _step_scores(config: RunConfig, state: _Progress, last: dict[str, pd.DataFrame], rows: _Rows) -> pd.DataFrame:
    """Scores of the last step, on dev and on some training examples, and of each task's best point of the curve."""
    scores = []
    for task in config.tasks:
        chosen = _subset(TRAIN_ROWS, len(rows.train[task]))
        for split, table in (("dev", last[task]), ("train", rows.train[task].predictions("train", chosen))):
            found = score_table(task, split, table["predicted"].to_numpy(), table["label"].to_numpy())
            scores.append(found.assign(at="last", step=state.step))
        best = state.best[task]
        labels = rows.dev[task].table["label"].to_numpy()
        labels = labels[_subset(config.curve_rows, len(labels))]
        scores.append(score_table(task, "dev", best["predicted"].numpy(), labels).assign(at="best", step=best["step"]))
    return pd.concat(scores, ignore_index=True)


def _subset(n: int | None, size: int) -> np.ndarray:
    """Indices of n of `size` examples, the same for every seed; n None: of all."""
    if n is None or n >= size:
        return np.arange(size)
    return np.sort(np.random.default_rng(0).permutation(size)[:n])


def _broken(
    losses: dict[str, float], step: int, epoch_steps: int, corpus: Corpus, rows: dict[str, np.ndarray], schedule
) -> str:
    task, value = next((task, loss) for task, loss in losses.items() if not math.isfinite(loss))
    ids = ", ".join(corpus.train[task]["id"].iloc[rows[task][:4]])
    return (
        f"the loss of {task} is {value} at step {step} (epoch {(step - 1) // epoch_steps + 1}, batch of "
        f"{len(rows[task])} rows, ids {ids}, ...), learning rate {schedule.get_last_lr()[0]:.2e}. Lower learning_rate, "
        "lengthen the warm-up or set max_grad_norm; the checkpoint before this step is kept."
    )
