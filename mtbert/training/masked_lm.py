"""Further pretraining: masked language modelling on the texts of the tasks.

Source: Devlin et al. 2018, section 3.1, task 1 and appendix A.1 (what is masked, and how); paper 001, section 4.4 (the
training texts of the tasks, of a pair the first sentence alone; before or after training on the tasks). The head is
new: a checkpoint's own, where it has one, is not read.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from numpy import ndarray
from torch import Tensor, nn

from mtbert import __version__
from mtbert.batches import train_batches
from mtbert.bert import BertModel, CheckpointError, Linear
from mtbert.config import RunConfig
from mtbert.data import TASKS, TokenizedTable
from mtbert.multitask import autocast
from mtbert.optim import AdamW, make_schedule
from mtbert.runtime import Trimmer
from mtbert.training.checkpoint import Checkpoint, TrainingError
from mtbert.training.frozen_features import features_digest
from mtbert.training.progress import Progress

UNPREDICTED = -100  # the target of a position that is not predicted: cross_entropy's ignore_index
MASK_RATE = 0.15  # of the tokens are predicted (Devlin et al. 2018, section 3.1)
WEIGHT_DECAY = 0.01  # Devlin et al. 2018, appendix A.2
POINTS = 10  # of the curve, an epoch


class MaskedLanguageHead(nn.Module):
    """Hidden states -> logits over the vocabulary: dense, GELU, layer norm, and the word embeddings, transposed.

    The decoder's weight is the encoder's word embedding, one tensor with two uses; only its bias is new.
    """

    def __init__(self, encoder: BertModel) -> None:
        super().__init__()
        config = encoder.config
        words = encoder.embeddings.word.weight
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = Linear(config.hidden_size, config.vocab_size)
        nn.init.normal_(self.dense.weight, std=config.initializer_range)
        nn.init.zeros_(self.dense.bias)
        nn.init.zeros_(self.decoder.bias)
        self.to(words.device)
        self.decoder.weight = words

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden (..., d) -> logits (..., V)."""
        hidden = F.gelu(self.dense(hidden))
        return self.decoder(self.norm(hidden))


def mask_tokens(
    input_ids: Tensor,
    can_be_masked: Tensor,
    mask_id: int,
    vocab_size: int,
    rate: float = MASK_RATE,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Corrupt a batch: input_ids (B, T), can_be_masked bool (B, T) -> corrupted ids (B, T), targets (B, T).

    Each token that can be masked is chosen with probability `rate`, and at least one in a batch. 80 % of the chosen
    tokens become mask_id, 10 % a random token, 10 % stay. Targets are the chosen tokens, and UNPREDICTED elsewhere.
    Raises ValueError if no token can be masked.
    """
    if not can_be_masked.any():
        raise ValueError("no token of the batch can be masked")
    draw = torch.rand(input_ids.shape, generator=generator).masked_fill(~can_be_masked, torch.inf)
    chosen = draw < rate
    if not chosen.any():
        chosen = draw == draw.min()
    targets = input_ids.where(chosen, UNPREDICTED)
    draw_of_kind = torch.rand(input_ids.shape, generator=generator)
    replacements = torch.randint(vocab_size, input_ids.shape, generator=generator)
    becomes_mask = chosen & (draw_of_kind < 0.8)
    becomes_random = chosen & (draw_of_kind >= 0.8) & (draw_of_kind < 0.9)
    corrupted = input_ids.where(~becomes_mask, mask_id).where(~becomes_random, replacements)
    return corrupted, targets


def pretraining_texts(tables: dict[str, pd.DataFrame]) -> list[str]:
    """The texts of checked tables by task, of pairs the first sentence (as paper 001), each distinct text once."""
    texts = []
    for task, table in tables.items():
        column = TASKS[task].sentence_columns[0]
        texts += table[column].tolist()
    return list(dict.fromkeys(texts))


@dataclass
class _PretrainingProgress(Progress):
    """How far pretraining has come."""

    since: list = field(default_factory=lambda: [0.0, 0, 0])  # since the last point: summed loss, right, predicted


def pretrain(
    encoder: BertModel,
    texts: TokenizedTable,
    config: RunConfig,
    device: torch.device | str = "cpu",
    checkpoint: Path | None = None,
    progress: bool | None = None,
) -> pd.DataFrame:
    """Train the encoder in place to predict masked tokens of single sentences (`tokenize_texts`).

    AdamW; the learning rate of `config` is warmed up over a tenth of the steps and then lowered to 0. A batch is as
    large as the largest of the configuration's. Returns the curve: step, epoch, tokens, and, over the masked tokens
    since the point before, loss and accuracy; in its `attrs` the seconds of all steps. The result is a function of the
    encoder, the texts and `config`: torch's generator is seeded inside and put back afterwards.
    checkpoint: a file written as `Checkpoint` says and at the end. After an interruption the same call goes on
    from it, bit for bit; of a finished run it takes the weights from it. Raises CheckpointError for a tokenizer without
    a mask token, TrainingError where no token can be masked and at the first loss that is not finite.
    """
    device = torch.device(device)
    was_training = encoder.training
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(config.seed)
        run = _Pretraining(encoder.to(device), texts, config)
        parts = {"encoder": encoder, "head": run.head, "optimizer": run.optimizer, "schedule": run.schedule}
        identity = features_digest([encoder], texts, f"{__version__} {config.digest}") if checkpoint else ""
        saver = Checkpoint(checkpoint, identity, parts)
        state = _PretrainingProgress(**(saver.restore() or {}))
        encoder.train()
        left = islice(run.batches(), state.step, None)
        trim = Trimmer()
        with state.bar(run.total_steps, progress) as bar:
            for batch in saver.guard(left, lambda: vars(state), run.total_steps):
                with state.clocked():
                    counts = run.step(state.step + 1, batch)
                state.step += 1
                state.tokens += int(texts.lengths[batch].sum())
                state.since = [before + new for before, new in zip(state.since, counts, strict=True)]
                if run.is_point(state.step):
                    loss_sum, right, predicted = state.since
                    point = {
                        "step": state.step,
                        "epoch": round(state.step / run.epoch_steps, 4),
                        "tokens": state.tokens,
                        "loss": loss_sum / predicted,
                        "accuracy": right / predicted,
                    }
                    state.curve.append(point)
                    state.since = [0.0, 0, 0]
                if state.step == run.total_steps:
                    saver.save(vars(state))
                bar.update()
                trim()
    encoder.train(was_training)
    curve = pd.DataFrame(state.curve)
    curve.attrs["seconds"] = state.seconds
    return curve


def _special_tokens(texts: TokenizedTable) -> list[int]:
    """Tokens that are never masked; a text may contain them, written out."""
    return [texts.cls, texts.sep, texts.pad, texts.mask]


def rows_to_mask(texts: TokenizedTable) -> ndarray:
    """The rows with a token that can be masked.

    Raises CheckpointError for a tokenizer without a mask token, TrainingError if there is no such row.
    """
    if texts.mask is None:
        raise CheckpointError("the tokenizer has no mask token ([MASK] or <mask>); pretraining needs one")
    [column] = texts.columns
    can_be_masked = ~np.isin(column.ids, _special_tokens(texts))
    count_before = np.concatenate(([0], np.cumsum(can_be_masked)))
    starts = column.offsets[:-1]
    stops = np.minimum(column.offsets[1:], starts + texts.max_length - 2)
    rows = np.flatnonzero(count_before[stops] > count_before[starts])
    if not len(rows):
        raise TrainingError("there is no text to pretrain on: none holds a token that can be masked")
    return rows


class _Pretraining:
    """An encoder with the head, the optimizer and the schedule of its pretraining, and the texts to train on."""

    def __init__(self, encoder: BertModel, texts: TokenizedTable, config: RunConfig) -> None:
        self.encoder = encoder
        self.texts = texts
        self.rows = rows_to_mask(texts)
        self.config = config
        self.head = MaskedLanguageHead(encoder)
        parameters = chain(encoder.parameters(), self.head.parameters())
        parameters = dict.fromkeys(parameters)  # the word table is in both
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        self.optimizer = AdamW(trained, lr=config.pretrain_learning_rate, weight_decay=WEIGHT_DECAY)
        self.batch_size = max(config.batch_sizes.values())
        self.epoch_steps = math.ceil(len(self.rows) / self.batch_size)
        self.total_steps = config.pretrain_epochs * self.epoch_steps
        self.schedule = make_schedule(self.optimizer, "linear", self.total_steps)

    def batches(self) -> Iterator[ndarray]:
        """The rows of every step."""
        lengths = self.texts.lengths[self.rows]
        for epoch in range(self.config.pretrain_epochs):
            for places in train_batches(lengths, self.batch_size, self.config.seed, epoch):
                yield self.rows[places]

    def is_point(self, step: int) -> bool:
        """Whether the curve has a point after this step, counted from 1."""
        return step * POINTS // self.epoch_steps > (step - 1) * POINTS // self.epoch_steps

    def step(self, number: int, rows: ndarray) -> tuple[float, int, int]:
        """Train on these rows; number: of the step, from 1.

        Returns the summed loss of the predictions, the number of right ones, and that of all. Raises TrainingError
        before the update if the loss is not finite.
        """
        logits, targets = self._predict(number, rows)
        loss = F.cross_entropy(logits.float(), targets)
        right = (logits.argmax(1) == targets).sum()
        value, right = torch.stack([loss.detach(), right]).tolist()
        if not math.isfinite(value):
            raise TrainingError(
                f"the loss of pretraining is {value} at step {number} of {self.total_steps}, learning rate "
                f"{self.schedule.get_last_lr()[0]:.2e}; lower pretrain_learning_rate"
            )
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        return value * len(targets), int(right), len(targets)

    def _predict(self, number: int, rows: ndarray) -> tuple[Tensor, Tensor]:
        """Mask M tokens of these rows; returns the logits at their places (M, V), and the tokens (M,)."""
        batch = self.texts.batch(rows)
        special_tokens = torch.tensor(_special_tokens(self.texts))
        special = torch.isin(batch.input_ids, special_tokens)
        can_be_masked = batch.attention_mask & ~special
        vocab_size = self.encoder.config.vocab_size
        # a seed for every step: what is masked does not depend on where a run was interrupted
        sequence = np.random.SeedSequence([self.config.seed, number - 1])
        [seed] = sequence.generate_state(1).tolist()
        generator = torch.Generator().manual_seed(seed)
        corrupted, targets = mask_tokens(
            batch.input_ids, can_be_masked, self.texts.mask, vocab_size, MASK_RATE, generator
        )  # (B, T)
        device = self.encoder.embeddings.word.weight.device
        targets = targets.flatten()
        places = (targets != UNPREDICTED).nonzero().squeeze(1)  # (M,)
        targets = targets[places].to(device)
        mask = batch.attention_mask.to(device)
        with autocast(self.config, device):
            hidden = self.encoder(corrupted.to(device), mask).last_hidden_state  # (B, T, d)
            masked = hidden.flatten(0, 1).index_select(0, places.to(device))  # (M, d)
            logits = self.head(masked)
        return logits, targets
