"""Our side of the benchmarks: runs on random words."""

import numpy as np
import pandas as pd
import torch

from benchmarks.harness import CPU, Setting, timed
from mtbert.config import RunConfig
from mtbert.data import TASKS, load_tokenizer
from mtbert.multitask import MultitaskBert
from mtbert.runtime import keep_freed_memory
from mtbert.training import Trainer, prepare_task

MANY_STEPS = 1_000_000  # of the schedule: more than a benchmark takes


class Training:
    """A run of ours, step by step. passes: see `prepare_task`; fields: of its RunConfig."""

    def __init__(
        self, setting: Setting, tables: dict[str, pd.DataFrame], passes: float = 1.0, **fields: object
    ) -> None:
        fields = dict(encoder=setting.encoder, learning_rate=1e-5) | fields
        fields["scheme"] = "unified" if len(tables) > 1 else "sampled"
        self.config = RunConfig.from_params({"tasks": list(tables)} | fields)
        torch.manual_seed(self.config.seed)
        self.model = MultitaskBert(self.config).train()
        self.tables = {t: prepare_task(self.model, t, table, CPU, passes) for t, table in tables.items()}
        self.all_rows = {task: np.arange(len(table)) for task, table in tables.items()}
        self.trainer = Trainer(self.model, self.tables, MANY_STEPS)

    def step(self, rows: dict[str, np.ndarray] | None = None) -> None:
        """One optimizer step on the examples at these indices, by default on all."""
        losses = self.trainer.step(1, self.all_rows if rows is None else rows)
        if not np.isfinite([float(loss) for loss in losses.values()]).all():  # then there was no update
            raise FloatingPointError(f"a loss is not finite: {losses}")


def words_table(task: str, rows: int, T: int, encoder: str, seed: int = 1) -> pd.DataFrame:
    """A table of random words like those of `load_table`: an example has 0.8 T to T tokens, the first one T.

    Special tokens are counted; a pair's tokens are divided evenly.
    """
    random, about = np.random.default_rng([seed, rows, T]), TASKS[task]
    words = [w for w in load_tokenizer(encoder).get_vocab() if w.isascii() and w.isalpha() and len(w) > 2]
    words, columns = np.array(sorted(words)), about.sentence_columns
    lengths = random.integers(max(5, int(0.8 * T)), T + 1, rows)
    lengths[0] = T
    labels = random.integers(about.label_range[0], about.label_range[1] + 1, rows)
    table = {"id": np.arange(rows).astype(str), "label": labels.astype(float if about.kind == "similarity" else int)}
    for i, column in enumerate(columns):
        counts = (lengths - 1 - len(columns) + i) // len(columns)  # [CLS] and a [SEP] behind each sentence
        table[column] = [" ".join(random.choice(words, count)) for count in counts]
    return pd.DataFrame(table)


def on_words(setting: Setting, B: int, T: int, tasks: tuple[str, ...] = ("sst",), **options: object) -> Training:
    """A run of ours whose step takes B examples of random words of each task."""
    tables = {task: words_table(task, B, T, setting.encoder, seed) for seed, task in enumerate(tasks)}
    return Training(setting, tables, **options)


def words_step(B: int, T: int, encoder: str) -> float:
    """Milliseconds of a training step of this process."""
    keep_freed_memory()
    return timed(on_words(Setting(encoder=encoder), B, T).step)(0)
