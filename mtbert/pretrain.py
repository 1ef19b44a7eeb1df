"""Further pretraining: masked language modelling on the texts of the tasks.

Source: Devlin et al. 2018, section 3.1, task 1 and appendix A.1 (what is masked, and how); paper 001, section 4.4 (the
training texts of the tasks, of a pair the first sentence alone; before or after training on the tasks). The head is
new: a checkpoint's own, where it has one, is not read.
"""

import hashlib
import logging
import math
import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from mtbert.bert import BertModel
from mtbert.data import TASKS
from mtbert.hub import CheckpointError
from mtbert.optim import AdamW, make_schedule
from mtbert.tokens import TokenizedTable, train_batches

log = logging.getLogger(__name__)

UNPREDICTED = -100  # the target of a position that is not predicted: cross_entropy's ignore_index
WEIGHT_DECAY = 0.01  # Devlin et al. 2018, appendix A.2
POINTS = 10  # of the curve, an epoch


class PretrainingError(RuntimeError):
    """Pretraining broke down; the message names the step and what to change."""


class MaskedLanguageHead(nn.Module):
    """Hidden states -> logits over the vocabulary: dense, GELU, layer norm, and the word embeddings, transposed.

    The decoder's weight is the encoder's word embedding, one tensor with two uses; only its bias is new.
    """

    def __init__(self, encoder: BertModel) -> None:
        super().__init__()
        config, words = encoder.config, encoder.embeddings.word.weight
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
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
    draw = torch.rand(input_ids.shape, generator=generator).masked_fill(~can_be_masked, 2.0)
    chosen = draw < max(rate, draw.min().item() + 1e-12) if rate > draw.min() else draw == draw.min()
    targets = input_ids.where(chosen, UNPREDICTED)
    fate = torch.rand(input_ids.shape, generator=generator)
    replacements = torch.randint(vocab_size, input_ids.shape, generator=generator)
    corrupted = input_ids.where(~(chosen & (fate < 0.8)), mask_id)
    corrupted = corrupted.where(~(chosen & (fate >= 0.8) & (fate < 0.9)), replacements)
    return corrupted, targets


def pretraining_texts(tables: dict[str, pd.DataFrame]) -> list[str]:
    """The texts of checked tables by task, of pairs the first sentence (as paper 001), each distinct text once."""
    first = (table[TASKS[task].sentence_columns[0]] for task, table in tables.items())
    return list(dict.fromkeys(text for column in first for text in column))
