"""The one training loop: seeded, resumable, the best model on dev kept.

A run is a function of its RunConfig, its data and the machine: two runs of one configuration give the same bits.
"""

import copy
import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm

from mtbert.config import RunConfig
from mtbert.data import TASKS, fingerprint, load_table
from mtbert.evaluate import metrics_of
from mtbert.heads import predict, task_loss
from mtbert.multitask import MultitaskBert, parameter_counts, pick_device
from mtbert.optim import AdamW, make_schedule
from mtbert.profiling import PeakMemory
from mtbert.tokens import TokenizedTable, eval_batches, tokenize, train_batches

log = logging.getLogger(__name__)

EVAL_TOKENS = 8192  # padded tokens of an evaluation batch
CHECKPOINT_SECONDS = 300.0


class TrainingError(RuntimeError):
    """Training broke down; the message names the step, the rows and what to change."""


@dataclass(frozen=True)
class Corpus:
    """The checked tables of a run: the training task's train split, every scored task's dev split."""

    train: pd.DataFrame
    dev: dict[str, pd.DataFrame]

    @classmethod
    def load(cls, config: RunConfig, root: Path) -> "Corpus":
        """Read the tables and warn of rejected rows; raises DataError.

        `train_rows` takes a random subset, a function of the seed.
        """
        train = _load(config.train_task, "train", root)
        if config.train_rows is not None and config.train_rows < len(train):
            chosen = np.random.default_rng(config.seed).permutation(len(train))[: config.train_rows]
            train = train.iloc[np.sort(chosen)].reset_index(drop=True)
        return cls(train, {task: _load(task, "dev", root) for task in config.scored})

    @property
    def fingerprint(self) -> str:
        """Hex digits that name the content of the tables."""
        return fingerprint(self.train, *self.dev.values())


def _load(task: str, split: str, root: Path) -> pd.DataFrame:
    table, report = load_table(task, split, root)
    if report.rejects:
        log.warning("%s", report)
    return table


@dataclass
class TrainedRun:
    """What training gives: the best model, its dev predictions by task, the learning curve, and the cost."""

    model: MultitaskBert
    predictions: pd.DataFrame  # task, split, id, label, predicted, confidence
    curve: pd.DataFrame  # step, epoch, tokens, seconds, train_loss, dev_score
    cost: dict[str, float]


@dataclass
class _Progress:
    """The part of a run that a checkpoint holds beside model, optimizer and schedule."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0  # of training, evaluation not counted
    losses: list[float] = field(default_factory=list)  # since the last evaluation
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

    checkpoint: a file written every `checkpoint_seconds`, from which the same call goes on after an interruption, bit
    for bit as if there had been none; removed by nobody but the caller. progress: show a bar; None: on a terminal.
    Raises TrainingError at the first loss that is not finite.
    """
    place = pick_device(device)
    torch.manual_seed(config.seed)
    memory = PeakMemory(place)
    model = MultitaskBert(config).to(place)
    task = config.train_task
    rows = _Rows(model, config, task, corpus.train, place)
    dev = {name: _Rows(model, config, name, table, place) for name, table in corpus.dev.items()}

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = AdamW(trained, lr=config.learning_rate, weight_decay=config.weight_decay)
    steps_per_epoch = math.ceil(len(rows) / config.batch_size)
    total_steps = config.epochs * steps_per_epoch
    schedule = make_schedule(optimizer, config.schedule, total_steps, config.warmup)
    marks = {round(i * steps_per_epoch / config.evals_per_epoch) for i in range(1, config.evals_per_epoch + 1)}
    saver = _Checkpoint(checkpoint, config, model, optimizer, schedule)
    state = saver.restore()

    bar = tqdm(total=total_steps, initial=state.step, disable=None if progress is None else not progress, unit="step")
    last_saved = time.monotonic()
    for step, batch in _batches(rows, config, state.step):
        started = time.perf_counter()
        model.train()
        loss = task_loss(TASKS[task], model.heads[task](rows.features(batch)), rows.labels[batch])
        value = loss.item()
        if not math.isfinite(value):
            raise TrainingError(_broken(value, step, steps_per_epoch, corpus.train, batch, schedule))
        loss.backward()
        if config.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(trained, config.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()

        state.step = step
        state.tokens += int(rows.tokens.lengths[batch].sum())
        state.losses.append(value)
        state.seconds += time.perf_counter() - started
        bar.update()
        if (step - 1) % steps_per_epoch + 1 in marks:
            _evaluate(state, model, config, dev[task], step / steps_per_epoch)
            bar.set_postfix_str(f"loss {state.curve[-1]['train_loss']:.3f} dev {state.curve[-1]['dev_score']:.3f}")
        if time.monotonic() - last_saved >= checkpoint_seconds:
            saver.save(state)
            last_saved = time.monotonic()
    bar.close()

    model.load_state_dict(state.best_state, strict=False)
    started = time.perf_counter()
    predictions = pd.concat([dev[name].predictions("dev") for name in dev], ignore_index=True)
    cost = {
        "train_seconds": round(state.seconds, 2),
        "score_seconds": round(time.perf_counter() - started, 2),
        "tokens": state.tokens,
        "peak_memory_mib": round(memory.mib(), 1),
        "best_step": state.best_step,
        "steps": total_steps,
        **parameter_counts(model),
    }
    return TrainedRun(model.eval(), predictions, pd.DataFrame(state.curve), cost)


class _Rows:
    """One split of one task on a device: labels, tokens, and the features that the task's head sees."""

    def __init__(
        self, model: MultitaskBert, config: RunConfig, task: str, table: pd.DataFrame, device: torch.device
    ) -> None:
        self.model, self.config, self.task, self.table, self.device = model, config, task, table, device
        self.tokens: TokenizedTable = tokenize(task, table, config.encoder, config.pairs, config.max_length)
        self.labels = torch.tensor(table["label"].to_numpy(copy=True), device=device) if "label" in table else None
        self.kept: Tensor | None = None

    def __len__(self) -> int:
        return len(self.table)

    def features(self, rows: np.ndarray) -> Tensor:
        """(B, D) features of these rows; a frozen encoder's depend on the text alone and are computed once for all."""
        if not self.config.frozen:
            return self._encode(rows)
        if self.kept is None:
            self.kept = self._over_all_rows(self._encode)
        return self.kept[rows]

    def _encode(self, rows: np.ndarray) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
            return self.model.features(self.task, self.tokens.batch(rows).to(self.device)).float()

    @torch.no_grad()
    def _over_all_rows(self, compute: Callable[[np.ndarray], Tensor]) -> Tensor:
        """compute(rows) over the whole split, in length-sorted batches; the result is in the table's order."""
        was_training = self.model.training
        self.model.eval()
        order, parts = [], []
        for rows in eval_batches(self.tokens.lengths, EVAL_TOKENS):
            order.append(rows)
            parts.append(compute(rows))
        self.model.train(was_training)
        result = torch.cat(parts)
        return torch.empty_like(result).index_copy_(
            0, torch.as_tensor(np.concatenate(order), device=self.device), result
        )

    def logits(self) -> Tensor:
        """Logits of every row, in the table's order."""
        return self._over_all_rows(lambda rows: self.model.heads[self.task](self.features(rows)))

    def predictions(self, split: str) -> pd.DataFrame:
        """task, split, id, label (where there is one), predicted, confidence: a row an example."""
        predicted, confidence = (part.cpu().numpy() for part in predict(TASKS[self.task], self.logits()))
        table = pd.DataFrame({"task": self.task, "split": split, "id": self.table["id"]})
        if self.labels is not None:
            table["label"] = self.table["label"]
        return table.assign(predicted=predicted, confidence=confidence)


def predict_table(
    model: MultitaskBert, task: str, table: pd.DataFrame, split: str, device: str = "auto"
) -> pd.DataFrame:
    """Predictions of a trained model for a checked table: id, predicted, confidence, and label where it is known."""
    place = pick_device(device)
    return _Rows(model.to(place), model.run_config, task, table, place).predictions(split)


def _batches(rows: _Rows, config: RunConfig, done: int) -> Iterator[tuple[int, np.ndarray]]:
    """(step, row numbers) of all epochs, from the step after `done`: the order is a function of the seed."""
    step = 0
    for epoch in range(config.epochs):
        for batch in train_batches(rows.tokens.lengths, config.batch_size, config.seed, epoch):
            step += 1
            if step > done:
                yield step, batch


def _evaluate(state: _Progress, model: MultitaskBert, config: RunConfig, dev: _Rows, epoch: float) -> None:
    """Append a point of the learning curve; keep the model if it is the best so far."""
    predicted = dev.predictions("dev")
    name, metric = next(iter(metrics_of(TASKS[config.train_task]).items()))
    score = float(metric(predicted["predicted"].to_numpy(), predicted["label"].to_numpy()))
    state.curve.append(
        dict(step=state.step, epoch=round(epoch, 4), tokens=state.tokens, seconds=round(state.seconds, 2),
             train_loss=float(np.mean(state.losses)), metric=name, dev_score=score)
    )  # fmt: skip
    state.losses = []
    if not state.best_state or score > state.best_score or math.isnan(state.best_score):  # no score beats nan
        state.best_score, state.best_step = score, state.step
        kept = {n for n, p in model.named_parameters() if p.requires_grad}
        state.best_state = {n: copy.deepcopy(t) for n, t in model.state_dict().items() if n in kept}


class _Checkpoint:
    """Everything that a run needs to go on after an interruption, in one file that is replaced atomically."""

    def __init__(self, path: Path | None, config: RunConfig, model, optimizer, schedule) -> None:
        self.path, self.config = path, config
        self.parts = {"model": model, "optimizer": optimizer, "schedule": schedule}

    def save(self, state: _Progress) -> None:
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {name: part.state_dict() for name, part in self.parts.items()}
        content |= {"progress": vars(state), "config": self.config.digest, "rng": torch.get_rng_state()}
        if torch.cuda.is_available():
            content["cuda_rng"] = torch.cuda.get_rng_state()
        partial = self.path.with_suffix(".partial")
        torch.save(content, partial)
        os.replace(partial, self.path)

    def restore(self) -> _Progress:
        """The progress of an interrupted run, its model and optimizer put back; a fresh start where there is none."""
        if self.path is None or not self.path.exists():
            return _Progress()
        try:
            content = torch.load(self.path, map_location="cpu", weights_only=True)
        except Exception as error:
            log.warning("%s is damaged (%s); training starts from the beginning", self.path.name, error)
            return _Progress()
        if content["config"] != self.config.digest:
            log.warning("%s belongs to another configuration; training starts from the beginning", self.path.name)
            return _Progress()
        for name, part in self.parts.items():
            part.load_state_dict(content[name])
        torch.set_rng_state(content["rng"])
        if "cuda_rng" in content and torch.cuda.is_available():
            torch.cuda.set_rng_state(content["cuda_rng"])
        return _Progress(**content["progress"])


def _broken(value: float, step: int, steps_per_epoch: int, table: pd.DataFrame, batch: np.ndarray, schedule) -> str:
    ids = ", ".join(table["id"].iloc[batch[:4]])
    return (
        f"the loss is {value} at step {step} (epoch {(step - 1) // steps_per_epoch + 1}, batch of {len(batch)} rows, "
        f"ids {ids}, ...), learning rate {schedule.get_last_lr()[0]:.2e}. Lower learning_rate, lengthen the warm-up "
        "or set max_grad_norm; the checkpoint before this step is kept."
    )
