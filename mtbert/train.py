"""The one training loop: seeded, resumable, the best model on dev kept.

A run is a function of its RunConfig, its data and the machine: two runs of one configuration give the same bits.
"""

import copy
import math
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from mtbert.bert import BertModel
from mtbert.checkpoint import Checkpoint
from mtbert.config import RunConfig
from mtbert.data import TASKS
from mtbert.evaluate import metrics_of, overall
from mtbert.gradients import fallbacks
from mtbert.heap import Trimmer, keep_freed_memory
from mtbert.multitask import MultitaskBert, build_encoder, parameter_counts, pick_device
from mtbert.pretrain import pretrain, pretraining_texts
from mtbert.profiling import PeakMemory
from mtbert.rows import Corpus, TaskRows
from mtbert.samplers import expected_passes, steps_per_epoch, training_steps
from mtbert.tokens import tokenize_texts
from mtbert.trainer import Trainer
from mtbert.updates import LossWeights

CHECKPOINT_SECONDS = 300.0
PRETRAINING = "pretraining.pt"  # its checkpoint, beside that of the run


class TrainingError(RuntimeError):
    """Training broke down; the message names the step, the rows and what to change."""


@dataclass
class TrainedRun:
    """What training gives: the best model, its dev predictions by task, the learning curve, and the cost."""

    model: MultitaskBert
    predictions: pd.DataFrame  # task, split, id, label, predicted, confidence
    curve: pd.DataFrame  # step, epoch, tokens, seconds, cpu_seconds, train_loss, metric, dev_score, dev_TASK of several
    cosines: pd.DataFrame  # step, layer, first, second, cosine: of the tasks' gradients, where recorded
    cost: dict[str, float]


@dataclass
class _Progress:
    """The part of a run that a checkpoint holds beside model, optimizer and schedule."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0  # of training, evaluation not counted
    cpu_seconds: float = 0.0  # the same in processor time, which depends less on other work
    losses: list[float] = field(default_factory=list)  # since the last evaluation
    first_losses: dict[str, float] = field(default_factory=dict)  # by task, for weighting by loss ratio
    last_losses: dict[str, float] = field(default_factory=dict)
    cosines: list[dict] = field(default_factory=list)  # step, layer, first, second, cosine
    curve: list[dict] = field(default_factory=list)
    best_score: float = -math.inf
    best_step: int = 0
    best_state: dict[str, Tensor] = field(default_factory=dict)


def train(
    config: RunConfig,
    corpus: Corpus,
    device: str = "auto",
    checkpoint: Path | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    progress: bool | None = None,
) -> TrainedRun:
    """Train as the configuration says and score the best model on dev.

    checkpoint: a file written every `checkpoint_seconds` and on SIGINT or SIGTERM (`Checkpoint.guard`), from which the
    same call goes on after an interruption, bit for bit as if there had been none; removed by nobody but the caller.
    progress: show a bar; None: on a terminal.
    Raises TrainingError at the first loss that is not finite.
    """
    place = pick_device(device)
    torch.manual_seed(config.seed)
    memory = PeakMemory(place)
    keep_freed_memory()
    trim = Trimmer()
    encoder, cost = build_encoder(config), {}
    if config.pretrain == "before":
        cost = _pretrain(encoder, config, corpus, place, checkpoint, checkpoint_seconds, progress)
    model = MultitaskBert(config, encoder).to(place)
    passes = expected_passes(config, [len(table) for table in corpus.train.values()])
    tables = {
        task: TaskRows(model, task, table, place, n)
        for (task, table), n in zip(corpus.train.items(), passes, strict=True)
    }
    points = config.epochs * config.evals_per_epoch
    dev = {task: TaskRows(model, task, table, place, points) for task, table in corpus.dev.items()}

    epoch_steps = steps_per_epoch(config, [len(table) for table in tables.values()])
    total_steps = config.epochs * epoch_steps
    trainer = Trainer(model, tables, total_steps)
    marks = {round(i * epoch_steps / config.evals_per_epoch) for i in range(1, config.evals_per_epoch + 1)}
    parts = {"model": model, "optimizer": trainer.optimizer, "schedule": trainer.schedule}
    saver = Checkpoint(checkpoint, config.digest, parts, checkpoint_seconds)
    state = _Progress(**(saver.restore() or {}))
    fallen_back = fallbacks.total()
    updates = trainer.updates
    updates.weights, updates.cosines = LossWeights(state.first_losses, state.last_losses), state.cosines

    bar = tqdm(total=total_steps, initial=state.step, disable=None if progress is None else not progress, unit="step")
    latest = {}
    lengths = {task: table.tokens.lengths for task, table in tables.items()}
    for step, rows in saver.guard(enumerate(training_steps(config, lengths), start=1), lambda: vars(state)):
        if step <= state.step:  # of the part before an interruption only the memory of examples is made again
            updates.remember(rows)
            continue
        started, cpu_started = time.perf_counter(), time.process_time()
        losses = trainer.step(step, rows)
        if not all(math.isfinite(loss) for loss in losses.values()):
            raise TrainingError(_broken(losses, step, epoch_steps, corpus, rows, trainer.schedule))

        state.step = step
        state.tokens += sum(int(lengths[task][part].sum()) for task, part in rows.items())
        state.losses.append(sum(losses.values()) / len(losses))
        state.seconds += time.perf_counter() - started
        state.cpu_seconds += time.process_time() - cpu_started
        bar.update()
        if (step - 1) % epoch_steps + 1 in marks:
            latest = _evaluate(state, model, config, dev, step / epoch_steps)
            bar.set_postfix_str(f"loss {state.curve[-1]['train_loss']:.3f} dev {state.curve[-1]['dev_score']:.3f}")
        trim()
    bar.close()

    model.load_state_dict(state.best_state, strict=False)
    if config.pretrain == "after":
        whole = model.encoder.task_encoder(config.tasks[0])  # the one encoder of plan 1-bert
        cost = _pretrain(whole, config, corpus, place, checkpoint, checkpoint_seconds, progress)
    started = time.perf_counter()
    if state.best_step != state.step or config.pretrain == "after" or config.curve_rows is not None:
        latest = {}  # not those of the model that is kept, or not of all examples
    parts = [latest[task] if task in latest else dev[task].predictions("dev") for task in dev]
    predictions = pd.concat(parts, ignore_index=True)
    cost |= {
        "train_seconds": round(state.seconds, 2),
        "train_cpu_seconds": round(state.cpu_seconds, 2),
        "score_seconds": round(time.perf_counter() - started, 2),
        "tokens": state.tokens,
        "peak_memory_mib": round(memory.mib(), 1),
        "best_step": state.best_step,
        "steps": total_steps,
        **parameter_counts(model),
    }
    if config.gradients == "gem":
        cost["gem_fallbacks"] = fallbacks.total() - fallen_back
    return TrainedRun(model.eval(), predictions, pd.DataFrame(state.curve), pd.DataFrame(state.cosines), cost)


def _pretrain(
    encoder: BertModel,
    config: RunConfig,
    corpus: Corpus,
    device: torch.device,
    checkpoint: Path | None,
    checkpoint_seconds: float,
    progress: bool | None,
) -> dict[str, float]:
    """Masked language modelling on the training texts, in place; what it cost, and its loss at the end."""
    started = time.perf_counter()
    texts = tokenize_texts(pretraining_texts(corpus.train), config.encoder, config.max_length)
    curve = pretrain(
        encoder,
        texts,
        epochs=config.pretrain_epochs,
        learning_rate=config.pretrain_learning_rate,
        batch_size=config.batch_size,
        mask_rate=config.mask_rate,
        seed=config.seed,
        precision=config.precision,
        device=device,
        checkpoint=checkpoint and checkpoint.with_name(PRETRAINING),
        checkpoint_seconds=checkpoint_seconds,
        progress=progress,
    )
    last = curve.iloc[-1]
    seconds = round(time.perf_counter() - started, 2)
    return {f"pretrain_{name}": float(last[name]) for name in ("tokens", "loss", "accuracy")} | {
        "pretrain_seconds": seconds
    }


def _evaluate(
    state: _Progress, model: MultitaskBert, config: RunConfig, dev: dict[str, TaskRows], epoch: float
) -> dict[str, pd.DataFrame]:
    """Append a point of the learning curve; keep the model if it is the best so far; returns its predictions."""
    scores, names = {}, {}
    predictions = {task: dev[task].predictions("dev", _curve_rows(config, len(dev[task]))) for task in config.tasks}
    for task, table in predictions.items():
        names[task], metric = next(iter(metrics_of(TASKS[task]).items()))
        scores[task] = float(metric(table["predicted"].to_numpy(), table["label"].to_numpy()))
    by_task = {f"dev_{task}": score for task, score in scores.items()} if len(scores) > 1 else {}
    score = overall(scores)
    state.curve.append(
        dict(step=state.step, epoch=round(epoch, 4), tokens=state.tokens, seconds=round(state.seconds, 2),
             cpu_seconds=round(state.cpu_seconds, 2), train_loss=float(np.mean(state.losses)),
             metric="overall" if by_task else names[config.tasks[0]],
             dev_score=score, **by_task)
    )  # fmt: skip
    state.losses = []
    if not state.best_state or score > state.best_score or math.isnan(state.best_score):  # no score beats nan
        state.best_score, state.best_step = score, state.step
        kept = {n for n, p in model.named_parameters() if p.requires_grad}
        state.best_state = {n: copy.deepcopy(t) for n, t in model.state_dict().items() if n in kept}
    return predictions


def _curve_rows(config: RunConfig, size: int) -> np.ndarray | None:
    """The dev examples of a point of the learning curve, the same ones for every seed; None: all."""
    if config.curve_rows is None or config.curve_rows >= size:
        return None
    return np.sort(np.random.default_rng(0).permutation(size)[: config.curve_rows])


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
