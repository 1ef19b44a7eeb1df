"""The one training loop: seeded, resumable, the best model on dev kept.

A run is a function of its RunConfig, its data and the machine: two runs of one configuration give the same bits.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy import ndarray
from torch import Tensor

from mtbert import __version__
from mtbert.bert import BertConfig, BertModel, CheckpointError
from mtbert.config import RunConfig
from mtbert.data import TASKS, Corpus, TokenizedTable, pos_features, tokenize_texts
from mtbert.gradients import GradientError
from mtbert.metrics import VARYING
from mtbert.multitask import MultitaskBert, build_encoder, meta_model, parameter_counts
from mtbert.runtime import PeakMemory, Trimmer, keep_freed_memory, pick_device
from mtbert.training.checkpoint import Checkpoint, TrainingError
from mtbert.training.masked_lm import pretrain, pretraining_texts, rows_to_mask
from mtbert.training.metrics import metrics_of, overall, score_rows
from mtbert.training.progress import Progress
from mtbert.training.step import Trainer
from mtbert.training.task_data import TaskData, prepare_task
from mtbert.training.task_order import Losses, Rows, expected_passes, steps_per_epoch, training_steps, turn_ends

TRAIN_ROWS = 2000  # training examples of a task that are scored at the end
PRETRAINING = "{}_pretraining_{}.pt"  # next to the checkpoint of a run that of its pretraining before or after
Predictions = dict[str, pd.DataFrame]  # by task: task, split, id, label, predicted, confidence
_Step = tuple[int, float, Rows, Losses]  # its number, learning rate, rows and losses


@dataclass
class TrainedRun:
    """The result of training: the kept model, its dev predictions by task, the learning curve, and the cost."""

    model: MultitaskBert
    predictions: pd.DataFrame  # task, split, id, label, predicted, confidence
    curve: pd.DataFrame  # step, epoch, tokens, seconds, cpu_seconds, train_loss, dev_score, by task of several
    step_scores: pd.DataFrame  # a score of the last step or a task's best point: task, split, metric, ..., at, step
    cosines: pd.DataFrame  # step, layer, first, second, cosine: of the tasks' gradients, where recorded
    cost: dict[str, float]


@dataclass
class _RunProgress(Progress):
    """The part of a run that a checkpoint has besides the model and the trainer; the clock does not run in evaluation.

    best: "overall" and every task -> score and step of its best point of the curve, and of a task what was predicted.
    kept: the best weights so far, as `keep` of the configuration says.
    """

    losses: list[Losses] = field(default_factory=list)  # of the steps since the last evaluation
    unread: list[_Step] = field(default_factory=list)  # steps whose losses nobody has read yet; none in a checkpoint
    best: dict[str, dict] = field(default_factory=dict)
    kept: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class _Splits:
    """The data of every task that is trained, and of every task that is scored."""

    train: dict[str, TaskData]
    dev: dict[str, TaskData]


def train(
    config: RunConfig,
    corpus: Corpus,
    device: str = "auto",
    checkpoint: str | Path | None = None,
    progress: bool | None = None,
    teachers: dict[str, Tensor] | None = None,
) -> TrainedRun:
    """Train as the configuration says and score the model that `keep` names on dev.

    The tables are taken as they are: `Corpus.check` says whether a class has no row, or many rows are rejected. Seeds
    torch's global generator; on Linux the process then keeps freed memory, until `runtime.free_by_default`.
    checkpoint: a file written every MTBERT_CHECKPOINT_SECONDS and on SIGINT or SIGTERM (`Checkpoint.guard`), from which
    the same call goes on after an interruption, bit for bit as if there had been none; the caller removes it, and
    beside NAME.pt also NAME_pretraining_*.pt.
    progress: show a bar; None: on a terminal.
    teachers: where the configuration has some, for every task their `mean_logits` for the rows of the training table.
    Raises TrainingError at the first loss, or outputs for dev, that are not finite, with a method that reads gradients
    (on a GPU not PCGrad) also at the first such gradient; and for a corpus of other tasks. What pretraining lacks is
    said before any training: TrainingError for texts without a token to mask, CheckpointError for a tokenizer without a
    mask token that the encoder knows. So are ConfigError, with a checkpoint, for code of your own without a source that
    could name the run, ValueError for a sampler of your own that gives no valid weights, and TrainingError where the
    dev examples of `curve_rows` have one label, so that no point is the best.
    """
    path = Path(checkpoint) if checkpoint else None
    run = _Run(config, corpus, pick_device(device), path, progress)
    run.check_corpus()
    run.check_teachers(teachers or {})
    identity = run.identity()
    torch.manual_seed(config.seed)
    memory = PeakMemory(run.device)
    keep_freed_memory()

    cost = {}
    encoder = build_encoder(config)
    run.check_pretraining(encoder.config)
    if run.has_pretraining("before"):
        cost |= run.run_pretraining("before", encoder)
    model = MultitaskBert(config, encoder).to(run.device)

    splits = run.read_splits(model, teachers or {})
    trainer = Trainer(model, splits.train, run.total_steps)
    state, latest = run.take_steps(trainer, splits, identity)

    trainer.finish()
    if config.curve_rows is not None:  # the evaluations saw only some examples
        latest = {}
    predictions = _dev_predictions(model, splits, known=latest)
    step_scores = _step_scores(model, state, predictions, splits)

    if config.keep != "last":
        model.load_state_dict(state.kept, strict=False)
    if run.has_pretraining("after"):
        cost |= run.run_pretraining("after", model.encoder.task_encoder(config.tasks[0]))  # the one encoder of 1-bert

    if not run.keeps_last_step(state):
        predictions = _dev_predictions(model, splits, known={})

    cost["peak_memory_mib"] = round(memory.mib(), 1)
    cost |= run.costs(state, splits) | parameter_counts(model)
    cost |= {f"constraints_{name}": count for name, count in trainer.constraint_counts.items()}
    return TrainedRun(
        model=model.eval(),
        predictions=pd.concat(predictions.values(), ignore_index=True),
        curve=pd.DataFrame(state.curve),
        step_scores=step_scores,
        cosines=pd.DataFrame(trainer.cosines),
        cost=cost,
    )


@dataclass(frozen=True)
class _Run:
    """The arguments of a call of `train`, and its phases."""

    config: RunConfig
    corpus: Corpus
    device: torch.device
    checkpoint: Path | None
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

    def identity(self) -> str:
        """What a checkpoint is of; empty where none is written."""
        if self.checkpoint is None:
            return ""
        tasks = {task: TASKS[task].definition | {"metric": TASKS[task].metric} for task in self.config.scored}
        definitions = json.dumps(tasks, sort_keys=True)
        names = " ".join(one.name for one in fields(_RunProgress))  # a checkpoint with other fields cannot go on
        return f"{__version__} {self.config.digest} {self.corpus.fingerprint} {definitions} {names}"

    def check_corpus(self) -> None:
        """Raises TrainingError unless the corpus has the tables of the configuration, in its order.

        Also where no point of the curve could be the best, as the labels of the rows that it reads are all equal, and
        ValueError for a sampler that gives no valid weights.
        """
        given = tuple(self.corpus.train), tuple(self.corpus.dev)
        needed = self.config.tasks, self.config.scored
        if given != needed:
            text = f"corpus: has tables of {given}, but needs {needed} (training, dev), as `load_corpus` reads"
            raise TrainingError(text)
        expected_passes(self.config, self.sizes)
        if self.config.keep != "last" and self.config.curve_rows is not None:
            for task in self.config.tasks:
                self.check_curve_rows(task)

    def check_curve_rows(self, task: str) -> None:
        """Raises TrainingError where a correlation with the labels of the curve's rows is not defined."""
        labels = self.corpus.dev[task]["label"].to_numpy()
        chosen = labels[_subset(self.config.curve_rows, len(labels))]
        if TASKS[task].metric in VARYING and np.ptp(chosen) == 0 < np.ptp(labels):
            raise TrainingError(
                f"curve_rows: the {len(chosen)} dev examples of {task} that a point of the curve reads have one label. "
                f"Without a {TASKS[task].metric} no point is the best; set more, or keep: last"
            )

    def check_teachers(self, teachers: dict[str, Tensor]) -> None:
        """Raises TrainingError unless there are logits for all training rows where there are teachers.

        They are (rows, classes), or (rows,) for binary tasks and numbers.
        """
        needed = {}
        for task, table in self.corpus.train.items() if self.config.teachers else ():
            about = TASKS[task]
            needed[task] = (len(table), about.num_classes) if about.kind == "classes" else (len(table),)
        given = {task: tuple(logits.shape) for task, logits in teachers.items()}
        if given != needed:
            raise TrainingError(f"teachers: logits for all training rows are needed, {needed}; given are {given}")

    def has_pretraining(self, stage: str) -> bool:
        """Whether the encoder is pretrained "before" or "after" training."""
        return self.config.pretrain in (stage, "both")

    @cached_property
    def pretraining_tokens(self) -> TokenizedTable:
        """The texts that the encoder is pretrained on."""
        texts = pretraining_texts(self.corpus.train)
        return tokenize_texts(texts, self.config.encoder, self.config.max_length)

    def check_pretraining(self, encoder: BertConfig) -> None:
        """Fail before any training on what would fail hours later.

        A tokenizer without a mask token that the encoder knows, texts without a token to mask; with pretraining before
        training also an encoder that does not fit the configuration, or missing data of the tagger.
        """
        if self.config.pretrain == "none":
            return
        rows_to_mask(self.pretraining_tokens)
        mask = self.pretraining_tokens.mask
        if mask >= encoder.vocab_size:
            size = encoder.vocab_size
            raise CheckpointError(f"{self.config.encoder}: its mask token is {mask}, but the encoder has {size} tokens")
        if self.has_pretraining("before"):
            meta_model(self.config)
            if self.config.pos_features:
                for task, table in (*self.corpus.train.items(), *self.corpus.dev.items()):
                    pos_features(task, table)

    def run_pretraining(self, stage: str, encoder: BertModel) -> dict[str, float]:
        """Masked language modelling on the training texts, in place; its cost and last loss."""
        path = None
        if self.checkpoint is not None:
            path = self.checkpoint.with_name(PRETRAINING.format(self.checkpoint.stem, stage))
        curve = pretrain(encoder, self.pretraining_tokens, self.config, self.device, path, self.progress)
        last = curve.iloc[-1]
        cost = {f"pretrain_{stage}_{name}": float(last[name]) for name in ("tokens", "loss", "accuracy")}
        cost[f"pretrain_{stage}_seconds"] = round(curve.attrs["seconds"], 2)
        return cost

    def read_splits(self, model: MultitaskBert, teachers: dict[str, Tensor]) -> _Splits:
        """The data of every task, with its features.

        The outputs of frozen layers are computed here, before the clock of training starts: else a run that computes
        them would seem slower than one that finds them on disk.
        """
        passes = expected_passes(self.config, self.sizes)
        points = len(evaluation_steps(self.config, self.sizes))
        train = {}
        dev = {}
        for (task, table), times in zip(self.corpus.train.items(), passes, strict=True):
            train[task] = prepare_task(model, task, table, self.device, times, teachers.get(task))
        for task, table in self.corpus.dev.items():
            times = dev_passes(self.config, task, len(table), points)
            dev[task] = prepare_task(model, task, table, self.device, times)
        return _Splits(train, dev)

    def take_steps(self, trainer: Trainer, splits: _Splits, identity: str) -> tuple[_RunProgress, Predictions]:
        """All steps that are left; returns the run so far, and the predictions of the last evaluation."""
        config = self.config
        parts = {"model": trainer.model, "trainer": trainer}
        saver = Checkpoint(self.checkpoint, identity, parts)
        state = _RunProgress(**(saver.restore() or {}))
        lengths = {task: data.tokens.lengths for task, data in splits.train.items()}
        steps = training_steps(config, lengths)
        for drawn in islice(steps, state.step):  # of the part before an interruption only the memory is made again
            trainer.remember(drawn)

        marks = evaluation_steps(config, self.sizes)
        predictions = {}

        def settled() -> dict[str, Any]:
            with state.clocked():  # on a GPU this waits for the steps
                self.read_losses(state)
            return vars(state)

        trim = Trimmer()
        with state.bar(self.total_steps, self.progress) as bar:
            for drawn in saver.guard(steps, settled, self.total_steps):
                with state.clocked():
                    self.take_step(trainer, splits, drawn, state)
                    if state.step in marks or not trainer.is_on_gpu:
                        self.read_losses(state)
                if state.step in marks:
                    trainer.swap_average()
                    predictions = self.evaluate(trainer.model, splits, state)
                    trainer.swap_average()
                    point = state.curve[-1]
                    bar.set_postfix_str(f"loss {point['train_loss']:.3f} dev {point['dev_score']:.3f}")
                bar.update()
                trim()
        return state, predictions

    def take_step(self, trainer: Trainer, splits: _Splits, drawn: Rows, state: _RunProgress) -> None:
        """Train on the rows drawn and note it in the state; the losses are read by `read_losses`."""
        step = state.step + 1
        rate = trainer.learning_rate
        try:
            losses = trainer.step(step, drawn)
        except GradientError as error:
            self.read_losses(state)  # on a GPU a loss may have been the first that is not finite
            text = f"step {step}: {error}; its learning rate is {rate:.3g}, a lower one or max_grad_norm may help"
            raise TrainingError(text) from error
        state.unread.append((step, rate, drawn, losses))
        state.step = step
        for task, part in drawn.items():
            tokens = splits.train[task].tokens.token_counts[part]
            state.tokens += int(tokens.sum())

    def read_losses(self, state: _RunProgress) -> None:
        """Note the losses of the steps since the last call; raises TrainingError for the first that is not finite.

        On a GPU the host waits here for these steps; with the plain sum or PCGrad, without a moving average, soft
        sharing, recorded cosines or loss-ratio weights, nowhere else.
        """
        for step, rate, drawn, losses in state.unread:
            losses = {task: float(loss) for task, loss in losses.items()}
            for task, loss in losses.items():
                if not math.isfinite(loss):
                    raise TrainingError(self.nonfinite_message(step, task, loss, drawn[task], rate))
            state.losses.append(losses)
        state.unread.clear()

    def nonfinite_message(self, step: int, task: str, loss: float, rows: ndarray, rate: float) -> str:
        """What is said of a loss that is not finite; rate: the learning rate of the step."""
        epoch = (step - 1) // self.epoch_steps + 1
        ids = ", ".join(map(str, self.corpus.train[task]["id"].iloc[rows[:4]]))
        more = ", ..." if len(rows) > 4 else ""
        is_kept = self.checkpoint is not None and self.checkpoint.exists()
        kept = "; the checkpoint before this step is kept" if is_kept else ""
        return (
            f"the loss of {task} is {loss} at step {step} (epoch {epoch}, batch of {len(rows)} rows, ids {ids}{more}), "
            f"learning rate {rate:.2e}. Lower learning_rate, lengthen the warm-up or set max_grad_norm{kept}."
        )

    def evaluate(self, model: MultitaskBert, splits: _Splits, state: _RunProgress) -> Predictions:
        """Append a point of the learning curve and note what is best so far; returns the model's predictions."""
        config = self.config
        predictions = {}
        scores = {}
        for task in config.tasks:
            chosen = _subset(config.curve_rows, len(splits.dev[task]))
            try:
                table = splits.dev[task].predictions(model, "dev", chosen)
            except TrainingError as error:
                raise TrainingError(f"after step {state.step}: {error}") from error
            metric = next(iter(metrics_of(TASKS[task]).values()))
            score = metric(table["predicted"].to_numpy(float), table["label"].to_numpy(float))
            predictions[task] = table
            scores[task] = float(score)
        several = len(scores) > 1
        by_step = [np.mean(list(by_task.values())) for by_task in state.losses]
        point = {
            "step": state.step,
            "epoch": round(state.step / self.epoch_steps, 4),
            "tokens": state.tokens,
            "seconds": round(state.seconds, 2),
            "cpu_seconds": round(state.cpu_seconds, 2),
            "train_loss": float(np.mean(by_step)),  # the mean over steps of the mean of their tasks
            "dev_score": overall(scores),
        }
        if several:
            point |= {f"dev_{task}": score for task, score in scores.items()}
            point |= {f"train_loss_{task}": _mean_loss_of(task, state.losses) for task in scores}
        state.curve.append(point)
        state.losses = []
        self.note_best(model, {"overall": point["dev_score"], **scores}, predictions, state)
        return predictions

    def note_best(
        self, model: MultitaskBert, scores: dict[str, float], predictions: Predictions, state: _RunProgress
    ) -> None:
        """Note which scores, "overall" and of each task, are the best so far; keep the weights as `keep` says."""
        for name, score in scores.items():
            best = state.best.get(name)
            is_better = best is None or math.isnan(best["score"]) or score > best["score"]
            if not is_better:
                continue
            state.best[name] = {"score": score, "step": state.step}
            if name == "overall":
                is_kept = self.config.keep == "best"
            else:
                state.best[name]["predicted"] = torch.tensor(predictions[name]["predicted"].to_numpy())
                is_kept = self.config.keep == "best_per_task"
            if is_kept:
                names = _changing(model)
                if name != "overall" and state.kept:  # the first point keeps all of them
                    names &= model.own_weights(name)
                state.kept |= {key: value.clone() for key, value in model.state_dict().items() if key in names}

    def keeps_last_step(self, state: _RunProgress) -> bool:
        """Whether the kept model is the one that the last step left."""
        if self.has_pretraining("after"):
            return False
        if self.config.keep == "last":
            return True
        names = ["overall"] if self.config.keep == "best" else self.config.tasks
        return all(state.best[name]["step"] == self.total_steps for name in names)

    def costs(self, state: _RunProgress, splits: _Splits) -> dict[str, float]:
        """The cost of the steps: seconds of the clock and of the processor, tokens."""
        feature_seconds = sum(data.feature_seconds for data in splits.train.values())
        feature_cpu_seconds = sum(data.feature_cpu_seconds for data in splits.train.values())
        return {
            "train_seconds": round(state.seconds, 2),
            "train_cpu_seconds": round(state.cpu_seconds, 2),
            "feature_seconds": round(feature_seconds, 2),
            "feature_cpu_seconds": round(feature_cpu_seconds, 2),
            "tokens": state.tokens,
            "tokens_per_cpu_second": round(state.tokens / max(state.cpu_seconds, 1e-9), 1),
            "best_step": state.best["overall"]["step"],
            "steps": self.total_steps,
        }


def evaluation_steps(config: RunConfig, sizes: Sequence[int]) -> set[int]:
    """The steps after which a run is scored, for training tasks of these sizes (examples).

    Where tasks come in turn, the end of each task's pass is one, too: what a task then scores tells what it forgets
    later.
    """
    epoch_steps = steps_per_epoch(config, sizes)
    total_steps = config.epochs * epoch_steps
    points = config.evals_per_epoch
    marks = set(turn_ends(config, sizes))
    if config.eval_spacing == "log":
        halvings = range(config.epochs * points)
        return marks | {max(1, round(total_steps / 2**i)) for i in halvings}
    for epoch in range(config.epochs):
        marks |= {epoch * epoch_steps + round(i * epoch_steps / points) for i in range(1, points + 1)}
    return marks - {0}  # where an epoch has more points than steps


def dev_passes(config: RunConfig, task: str, rows: int, points: int) -> float:
    """How often a run reads each of a task's rows of dev, on average and at most. points: of the learning curve."""
    passes = float(points)  # the last one has the scores at the end
    if task not in config.tasks:
        passes = 1.0  # scored at the end alone
    elif config.curve_rows is not None:
        passes = points * min(1.0, config.curve_rows / rows) + 1
    if config.keep != "last" or config.pretrain in ("after", "both"):
        passes += 1  # the kept model is not that of the last step
    return passes


def _changing(model: MultitaskBert) -> set[str]:
    """The names in the `state_dict` of what training changes: weights that are trained, and buffers."""
    names = set()
    for name, value in model.state_dict(keep_vars=True).items():
        is_buffer = not isinstance(value, torch.nn.Parameter)
        if is_buffer or value.requires_grad:
            names.add(name)
    return names


def _mean_loss_of(task: str, losses: list[Losses]) -> float:
    """A task's mean loss over the steps that trained it; nan where none did."""
    known = [by_task[task] for by_task in losses if task in by_task]
    if not known:
        return math.nan
    return float(np.mean(known))


def _dev_predictions(model: MultitaskBert, splits: _Splits, known: Predictions) -> Predictions:
    """Every task's predictions for dev; those that are known are not computed again."""
    predictions = {}
    for task, data in splits.dev.items():
        predictions[task] = known[task] if task in known else data.predictions(model, "dev")
    return predictions


def _step_scores(model: MultitaskBert, state: _RunProgress, last: Predictions, splits: _Splits) -> pd.DataFrame:
    """Scores of the last step, on dev and on some training examples, and of each task's best point of the curve.

    model: that of the last step; last: its predictions for dev.
    """
    config = model.run_config
    rows = []
    for task in config.tasks:
        chosen = _subset(TRAIN_ROWS, len(splits.train[task]))
        train = splits.train[task].predictions(model, "train", chosen)
        for split, table in (("dev", last[task]), ("train", train)):
            predicted, labels = table["predicted"].to_numpy(), table["label"].to_numpy()
            rows += score_rows(task, split, predicted, labels, at="last", step=state.step)
        best = state.best[task]
        labels = splits.dev[task].table["label"].to_numpy()
        labels = labels[_subset(config.curve_rows, len(labels))]
        rows += score_rows(task, "dev", best["predicted"].numpy(), labels, at="best", step=best["step"])
    return pd.DataFrame(rows)


def _subset(n: int | None, size: int) -> ndarray:
    """Indices of n of `size` examples, the same for every seed; n None: of all."""
    if n is None or n >= size:
        return np.arange(size)
    chosen = np.random.default_rng(0).permutation(size)[:n]
    return np.sort(chosen)
