"""Further pretraining: masked language modelling on the texts of the tasks.

Source: Devlin et al. 2018, section 3.1, task 1 and appendix A.1 (what is masked, and how); paper 001, section 4.4 (the
training texts of the tasks, of a pair the first sentence alone; before or after training on the tasks). The head is
new: a checkpoint's own, where it has one, is not read.
"""

import hashlib
import math
import time
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from mtbert.bert import BertModel, CheckpointError, Linear
from mtbert.config import RunConfig
from mtbert.data import TASKS, TokenizedTable
from mtbert.optim import AdamW, make_schedule
from mtbert.runtime import Trimmer
from mtbert.samplers import train_batches
from mtbert.training.checkpoint import Checkpoint, TrainingError

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
        config, words = encoder.config, encoder.embeddings.word.weight
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
        return self.decoder(self.norm(F.gelu(self.dense(hidden))))


def mask_tokens(
    input_ids: Tensor,
    can_be_masked: Tensor,
    mask_id: int,
    vocab_size: int,
    rate: float = 0.15,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Corrupt a batch: input_ids (B, T), can_be_masked bool (B, T) -> corrupted ids (B, T), targets (B, T).

    Each token that can be is chosen with probability `rate`, at least one of a batch; of the chosen ones 80 % become
    mask_id, 10 % a random token, 10 % stay. Targets are the chosen tokens, -100 elsewhere.
    Raises ValueError if no token can be masked.
    """
    if not can_be_masked.any():
        raise ValueError("no token of the batch can be masked")
    draw = torch.rand(input_ids.shape, generator=generator).masked_fill(~can_be_masked, torch.inf)
    chosen = draw < rate
    if not chosen.any():
        chosen = draw == draw.min()
    targets = input_ids.where(chosen, UNPREDICTED)
    fate = torch.rand(input_ids.shape, generator=generator)
    replacements = torch.randint(vocab_size, input_ids.shape, generator=generator)
    corrupted = input_ids.where(~(chosen & (fate < 0.8)), mask_id)
    corrupted = corrupted.where(~(chosen & (fate >= 0.8) & (fate < 0.9)), replacements)
    return corrupted, targets


def pretraining_texts(tables: dict[str, pd.DataFrame]) -> list[str]:
    """The texts of checked tables by task, of pairs the first sentence (as paper 001), each distinct text once."""
    columns = [table[TASKS[task].sentence_columns[0]] for task, table in tables.items()]
    return list(dict.fromkeys(chain(*columns)))


def pretrain(
    encoder: BertModel,
    texts: TokenizedTable,
    config: RunConfig,
    device: torch.device | str = "cpu",
    checkpoint: Path | None = None,
    checkpoint_seconds: float | None = None,
    progress: bool | None = None,
) -> pd.DataFrame:
    """Train the encoder in place to predict masked tokens of single sentences (`tokenize_texts`).

    AdamW, the learning rate of `config` warmed up over a tenth of the steps and then lowered to 0; a batch is as large
    as the largest of its tasks. Returns the curve: step, epoch, tokens, and, over the masked tokens since the point
    before, loss and accuracy; in its `attrs` the seconds of all steps. The result is a function of the encoder, the
    texts and `config`: torch's generator is seeded inside and put back afterwards.
    checkpoint: a file written every `checkpoint_seconds` and at the end, from which the same call goes on after an
    interruption bit for bit, or takes the finished weights without training. Raises CheckpointError for a tokenizer
    without a mask token, TrainingError where no token can be masked and at the first loss that is not finite.
    """
    if texts.mask is None:
        raise CheckpointError("the tokenizer has no mask token ([MASK] or <mask>); pretraining needs one")
    rows = _rows_to_mask(texts)
    device = torch.device(device)
    was_training = encoder.training
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(config.seed)
        run = _Run(encoder.to(device), texts, rows, config)
        parts = {name: getattr(run, name) for name in ("encoder", "head", "optimizer", "schedule")}
        identity = _identity(encoder, texts, config.digest) if checkpoint else ""
        saver = Checkpoint(checkpoint, identity, parts, checkpoint_seconds)
        vars(run).update(saver.restore() or {})
        trim = Trimmer()
        encoder.train()
        bar = tqdm(total=run.steps, initial=run.step, disable=None if progress is None else not progress, unit="step")
        lengths = texts.lengths[rows]
        epochs = range(config.pretrain_epochs)
        drawn = (train_batches(lengths, run.batch_size, config.seed, epoch) for epoch in epochs)
        for batch in saver.guard(islice(chain.from_iterable(drawn), run.step, None), run.progress, run.steps):
            run.update(rows[batch])
            trim()
            bar.update()
            if run.step == run.steps:
                saver.save(run.progress())
        bar.close()
    encoder.train(was_training)
    curve = pd.DataFrame(run.curve)
    curve.attrs["seconds"] = run.seconds
    return curve


def _special(texts: TokenizedTable) -> list[int]:
    return [texts.cls, texts.sep, texts.pad, texts.mask]  # a text may contain them, written out


def _rows_to_mask(texts: TokenizedTable) -> np.ndarray:
    """The rows with a token that can be masked; raises TrainingError if there are none."""
    [column] = texts.columns
    before = np.concatenate(([0], np.cumsum(~np.isin(column.ids, _special(texts)))))
    starts = column.offsets[:-1]
    stops = np.minimum(column.offsets[1:], starts + texts.max_length - 2)
    rows = np.flatnonzero(before[stops] > before[starts])
    if not len(rows):
        raise TrainingError("there is no text to pretrain on: none holds a token that can be masked")
    return rows


class _Run:
    """The state of pretraining between two steps."""

    def __init__(self, encoder: BertModel, texts: TokenizedTable, rows: np.ndarray, config: RunConfig) -> None:
        self.encoder, self.texts, self.config = encoder, texts, config
        self.head = MaskedLanguageHead(encoder)
        parameters = dict.fromkeys(chain(encoder.parameters(), self.head.parameters()))  # the word table is in both
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        self.optimizer = AdamW(trained, lr=config.pretrain_learning_rate, weight_decay=WEIGHT_DECAY)
        self.batch_size = max(config.batch_sizes.values())
        self.epoch_steps = math.ceil(len(rows) / self.batch_size)
        self.steps = config.pretrain_epochs * self.epoch_steps
        self.schedule = make_schedule(self.optimizer, "linear", self.steps)
        self.marks = {math.ceil(i * self.epoch_steps / POINTS) for i in range(1, POINTS + 1)}
        self.step = self.tokens = self.seconds = 0
        self.since = [0.0, 0, 0]  # summed loss, right predictions and predictions since the last point
        self.curve: list[dict] = []

    def progress(self) -> dict:
        """What a checkpoint holds beside the parts."""
        return {name: getattr(self, name) for name in ("step", "tokens", "seconds", "since", "curve")}

    def update(self, rows: np.ndarray) -> None:
        """One step on these rows."""
        started = time.perf_counter()
        batch = self.texts.batch(rows)
        texts = self.texts
        special = torch.isin(batch.input_ids, torch.tensor(_special(texts)))
        generator = torch.Generator().manual_seed(_step_seed(self.config.seed, self.step))
        corrupted, targets = mask_tokens(
            batch.input_ids, batch.attention_mask & ~special, texts.mask, self.encoder.config.vocab_size,
            MASK_RATE, generator,
        )  # fmt: skip
        device = self.encoder.embeddings.word.weight.device
        places = (targets.flatten() != UNPREDICTED).nonzero().squeeze(1)  # (M): logits of these alone are computed
        targets, places = targets.flatten()[places].to(device), places.to(device)
        batch = batch.to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
            hidden = self.encoder(corrupted.to(device), batch.attention_mask).last_hidden_state  # (B, T, d)
            logits = self.head(hidden.flatten(0, 1).index_select(0, places))  # (M, V)
        loss = F.cross_entropy(logits.float(), targets)
        right = (logits.argmax(1) == targets).sum()
        value, right = torch.stack([loss.detach(), right]).tolist()
        if not math.isfinite(value):
            raise TrainingError(
                f"the loss of pretraining is {value} at step {self.step + 1} of {self.steps}, learning rate "
                f"{self.schedule.get_last_lr()[0]:.2e}; lower the learning rate of pretraining"
            )
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()

        self.seconds += time.perf_counter() - started
        self.step += 1
        self.tokens += int(texts.lengths[rows].sum())
        of_step = (value * len(targets), int(right), len(targets))
        self.since = [sum(pair) for pair in zip(self.since, of_step, strict=True)]
        if (self.step - 1) % self.epoch_steps + 1 in self.marks:
            loss_sum, right, predicted = self.since
            self.curve.append(
                dict(step=self.step, epoch=round(self.step / self.epoch_steps, 4), tokens=self.tokens,
                     loss=loss_sum / predicted, accuracy=right / predicted)
            )  # fmt: skip
            self.since = [0.0, 0, 0]


def _step_seed(seed: int, step: int) -> int:
    """A seed of its own for every step: what is masked does not depend on where a run was interrupted."""
    return int(np.random.SeedSequence([seed, step]).generate_state(1)[0])


def _identity(encoder: BertModel, texts: TokenizedTable, settings: str) -> str:
    """Hex digits that name where pretraining starts from, its texts and its settings."""
    digest = hashlib.sha256(f"{settings} {texts.max_length}".encode())
    for array in (texts.columns[0].ids, texts.columns[0].offsets):
        digest.update(array.tobytes())
    for tensor in encoder.state_dict().values():
        digest.update(tensor.cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()
