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


class _Log:
    """The rows of a run's log: a CSV file that grows as it trains, and TensorBoard where the configuration asks."""

    def __init__(self, checkpoint: Path | None, config: RunConfig, rows: list[dict]) -> None:
        self.file, self.rows, self.board = checkpoint and checkpoint.with_name(LOG), rows, None
        if self.file and config.tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                log.warning("tensorboard is not installed; the points of the run are in %s", self.file)
            else:
                done = rows[-1]["step"] if rows else 0
                self.board = SummaryWriter(self.file.with_name("tensorboard"), purge_step=done + 1)

    def write(self, row: dict) -> None:
        self.rows.append(row)
        if self.file:
            try:
                with replacing(self.file) as partial:
                    pd.DataFrame(self.rows).to_csv(partial, index=False, float_format="%.6g")
            except OSError as error:
                log.warning("%s cannot be written (%s); training goes on", self.file, error.strerror)
        if self.board:
            for name in row.keys() - {"metric"}:
                self.board.add_scalar(name, row[name], row["step"])
            self.board.flush()


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
    place = pick_device(device)
    processes = connect(place)
    progress = progress if processes.is_main else False
    teachers = teachers or {}
    if {task: len(rows) for task, rows in teachers.items()} != {
        t: len(corpus.train[t]) for t in config.teachers_by_task
    }:
        raise TrainingError(f"teachers: logits for all training rows of {list(config.teachers_by_task)} are needed")
    torch.manual_seed(config.seed)
    memory = PeakMemory(place)
    keep_freed_memory()
    trim = Trimmer()
    cost: dict[str, float] = {}

    def pretrained(stage: str, encoder: BertModel) -> None:
        if processes.is_main:
            cost.update(_pretrain(stage, encoder, config, corpus, place, checkpoint, checkpoint_seconds, progress))

    encoder = build_encoder(config)
    if config.pretrain in ("before", "both"):
        meta_model(config)  # what does not fit together is said here, not after hours of pretraining
        pretrained("before", encoder)
    model = MultitaskBert(config, encoder).to(place)
    processes.copy_from_main(model)
    tables, dev, feature_times = _read_rows(model, corpus, place, processes, teachers)

    sizes = [len(table) for table in corpus.train.values()]
    epoch_steps = steps_per_epoch(config, sizes)
    total_steps = config.epochs * epoch_steps
    trainer = Trainer(model, tables, total_steps, processes)
    marks = evaluation_steps(config, sizes)
    parts = {"model": model, "trainer": trainer}
    saver = Checkpoint(checkpoint, f"{config.digest} {corpus.fingerprint}", parts, checkpoint_seconds, processes)
    state = _Progress(**(saver.restore() or {"processes": processes.count}))
    if len(set(processes.gather([state.step]))) > 1:
        raise TrainingError("the processes do not read the same checkpoint: the cache (MTBERT_CACHE) must be shared")
    if state.processes != processes.count:
        log.warning("processes that go on: %d; that saved the checkpoint: %d", processes.count, state.processes)
        state.processes = max(state.processes, processes.count)

    points = _Log(checkpoint if processes.is_main else None, config, state.log)
    bar = tqdm(total=total_steps, initial=state.step, disable=None if progress is None else not progress, unit="step")
    latest, log_every = {}, math.ceil(total_steps / LOG_POINTS)
    lengths = {task: table.tokens.lengths for task, table in tables.items()}
    steps = enumerate(training_steps(config, lengths, state.epoch_averages), start=1)
    for step, rows in saver.guard(steps, lambda: vars(state), total_steps):
        if step <= state.step:  # of the part before an interruption only the memory of examples is made again
            trainer.remember(rows)
            continue
        started, cpu_started = time.perf_counter(), time.process_time()
        losses = trainer.step(step, rows)
        if not all(math.isfinite(loss) for loss in losses.values()):
            raise TrainingError(_broken(losses, step, epoch_steps, corpus, rows, trainer.schedule))

        state.step = step
        state.tokens += sum(int(tables[task].tokens.counts[part].sum()) for task, part in rows.items())
        state.losses.append(losses)
        state.averages |= {task: moving_average(state.averages.get(task), loss) for task, loss in losses.items()}
        if step % epoch_steps == 0:
            state.epoch_averages.append(dict(state.averages))
        state.seconds += time.perf_counter() - started
        state.cpu_seconds += time.process_time() - cpu_started
        bar.update()
        if step in marks:
            trainer.swap_average()
            latest = _evaluate(state, model, config, dev, step / epoch_steps)
            trainer.swap_average()
            points.write(state.curve[-1])
            bar.set_postfix_str(f"loss {state.curve[-1]['train_loss']:.3f} dev {state.curve[-1]['dev_score']:.3f}")
        elif step % log_every == 0:
            recent = [np.mean(list(by_task.values())) for by_task in state.losses[-log_every:]]
            spent = {name: getattr(state, name) for name in ("tokens", "seconds", "cpu_seconds")}
            points.write({"step": step, "epoch": step / epoch_steps, **spent, "train_loss": float(np.mean(recent))})
        trim()
    bar.close()

    started = time.perf_counter()
    trainer.swap_average()
    known = latest if config.curve_rows is None else {}
    predictions = {task: known[task] if task in known else dev[task].predictions("dev") for task in dev}
    step_scores = _step_scores(config, state, predictions, dev, tables)
    if config.keep != "last":
        model.load_state_dict(state.kept, strict=False)
    if config.pretrain in ("after", "both"):
        paused = time.perf_counter()
        pretrained("after", model.encoder.task_encoder(config.tasks[0]))  # the one encoder of plan 1-bert
        started += time.perf_counter() - paused
    processes.copy_from_main(model)
    kept = {"last": (), "best": ("overall",), "best_per_task": config.tasks}[config.keep]
    if config.pretrain in ("after", "both") or any(state.best[name]["step"] < total_steps for name in kept):
        predictions = {task: dev[task].predictions("dev") for task in dev}
    cpu_seconds = sum(processes.gather([state.cpu_seconds]))
    cost |= {
        "train_seconds": round(state.seconds, 2),
        "train_cpu_seconds": round(cpu_seconds, 2),
        "feature_seconds": round(sum(seconds for seconds, _ in feature_times), 2),
        "feature_cpu_seconds": round(sum(seconds for _, seconds in feature_times), 2),
        "score_seconds": round(time.perf_counter() - started, 2),
        "tokens": state.tokens,
        "tokens_per_cpu_second": round(state.tokens / max(cpu_seconds, 1e-9), 1),
        "peak_memory_mib": round(memory.mib(), 1),
        "best_step": state.best["overall"]["step"],
        "steps": total_steps,
        **parameter_counts(model),
        **({"processes": state.processes} if state.processes > 1 else {}),
        **{f"constraints_{name}": count for name, count in trainer.constraints.items()},
    }
    return TrainedRun(
        model=model.eval(),
        predictions=pd.concat(predictions.values(), ignore_index=True),
        curve=pd.DataFrame(state.curve),
        step_scores=step_scores,
        cosines=pd.DataFrame(trainer.cosines),
        cost=cost,
    )


def evaluation_steps(config: RunConfig, sizes: Sequence[int]) -> set[int]:
    """The steps after which a run is scored, for training tasks of these sizes (examples).

    Of tasks in turn the end of each task's pass is one, too: what a task then scores tells what it forgets later.
    """
    epoch_steps, points = steps_per_epoch(config, sizes), config.evals_per_epoch
    total = config.epochs * epoch_steps
    if config.eval_spacing == "log":
        marks = {max(1, round(total / 2**i)) for i in range(config.epochs * points)}
    else:
        marks = {e * epoch_steps + round(i * epoch_steps / points) for e in range(config.epochs)
                 for i in range(1, points + 1)}  # fmt: skip
    return marks | set(turn_ends(config, sizes))


def _read_rows(
    model: MultitaskBert, corpus: Corpus, place: torch.device, processes: Processes, teachers: dict[str, Tensor]
) -> tuple[dict[str, TaskRows], dict[str, TaskRows], list[tuple[float, float]]]:
    """The training rows and the dev rows of every task, and the seconds of the training rows' features.

    What frozen layers make of the texts is computed here, before the clock of training starts: else a run that makes
    the features would seem slower than one that finds them.
    """
    config = model.run_config
    passes = expected_passes(config, [len(table) for table in corpus.train.values()])
    evaluations = config.epochs * config.evals_per_epoch
    tables, dev = {}, {}
    with processes.main_first():
        for (task, table), times in zip(corpus.train.items(), passes, strict=True):
            tables[task] = TaskRows(model, task, table, place, times, processes, teachers.get(task))
        for task, table in corpus.dev.items():
            dev[task] = TaskRows(model, task, table, place, evaluations, processes)
        feature_times = [rows.make_features() for rows in tables.values()]
        for rows in dev.values():
            rows.make_features()
    return tables, dev, feature_times


def _pretrain(
    stage: str,
    encoder: BertModel,
    config: RunConfig,
    corpus: Corpus,
    device: torch.device,
    checkpoint: Path | None,
    checkpoint_seconds: float | None,
    progress: bool | None,
) -> dict[str, float]:
    """Masked language modelling on the training texts, in place; what it cost, and its loss at the end."""
    texts = tokenize_texts(pretraining_texts(corpus.train), config.encoder, config.max_length)
    path = checkpoint and checkpoint.with_name(PRETRAINING.format(stage))
    curve = pretrain(encoder, texts, config, device, path, checkpoint_seconds, progress)
    last = curve.iloc[-1]
    cost = {name: float(last[name]) for name in ("tokens", "loss", "accuracy")}
    cost["seconds"] = round(curve.attrs["seconds"], 2)
    return {f"pretrain_{stage}_{name}": value for name, value in cost.items()}


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
    score, several = overall(scores), len(scores) > 1
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
        if name in state.best and not (value > state.best[name]["score"] or math.isnan(state.best[name]["score"])):
            continue
        state.best[name] = {"score": value, "step": state.step}
        if name in predictions:
            state.best[name]["predicted"] = torch.tensor(predictions[name]["predicted"].to_numpy())
        if config.keep == ("best" if name == "overall" else "best_per_task"):
            names = trained if name == "overall" or not state.kept else trained & model.own_weights(name)
            state.kept |= {n: t.clone() for n, t in model.state_dict().items() if n in names}
    return predictions


def _step_scores(
    config: RunConfig,
    state: _Progress,
    last: dict[str, pd.DataFrame],
    dev: dict[str, TaskRows],
    tables: dict[str, TaskRows],
) -> pd.DataFrame:
    """Scores of the last step, on dev and on some training examples, and of each task's best point of the curve."""
    scores = []
    for task in config.tasks:
        chosen = _subset(TRAIN_ROWS, len(tables[task]))
        for split, table in (("dev", last[task]), ("train", tables[task].predictions("train", chosen))):
            found = score_table(task, split, table["predicted"].to_numpy(), table["label"].to_numpy())
            scores.append(found.assign(at="last", step=state.step))
        best, labels = state.best[task], dev[task].table["label"].to_numpy()
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
