"""Benchmarks of training steps: one task, several tasks, adapters, surgery on gradients, frozen layers.

Tokens are random words of the vocabulary, lengths 80 to 100 % of the longest, as in batches that are sorted by length;
both sides get the same ones, and dropout is on.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from mtbert import peers
from mtbert.bench import Contest, Missing, Peer, Run, Setting
from mtbert.bert import BertModel
from mtbert.config import RunConfig
from mtbert.data import TASKS
from mtbert.gradients import gem_project
from mtbert.multitask import MultitaskBert
from mtbert.optim import AdamW
from mtbert.paths import REPOSITORY
from mtbert.peers import TransformersModel, adamw, merged_step, usual_step
from mtbert.peers_pals import OriginalPals, PerParameterAdam
from mtbert.rows import TaskRows
from mtbert.sweep import read_grid
from mtbert.tokens import load_tokenizer
from mtbert.trainer import Trainer

THREE = ("sst", "quora", "sts")
MANY_STEPS = 1_000_000  # of the schedule: more than a benchmark takes


class Training:
    """A run of ours, step by step: what `train` does between two evaluations, but for its Trimmer.

    With equal batches that would have nothing to do, were it not for the other contenders' memory.

    passes: how often each row will be used, as `TaskRows` wants to know. fields: of the RunConfig.
    """

    def __init__(
        self,
        setting: Setting,
        tables: dict[str, pd.DataFrame],
        passes: float = 1.0,
        encoder: BertModel | None = None,
        **fields: object,
    ) -> None:
        scheme = {"scheme": "unified"} if len(tables) > 1 else {}
        values = dict(tasks=list(tables), encoder=setting.encoder, weights=setting.weights, learning_rate=1e-5)
        self.config = RunConfig.from_params(values | dict(precision=setting.precision) | scheme | fields)
        torch.manual_seed(self.config.seed)
        self.model = MultitaskBert(self.config, encoder).to(setting.device).train()
        self.tables = {t: TaskRows(self.model, t, table, setting.device, passes) for t, table in tables.items()}
        self.all_rows = {task: np.arange(len(table)) for task, table in tables.items()}
        self.trainer = Trainer(self.model, self.tables, MANY_STEPS)
        self.steps = 0

    def step(self, rows: dict[str, np.ndarray] | None = None) -> None:
        """One optimizer step on these rows, by default on all."""
        self.steps += 1
        losses = self.trainer.step(self.steps, self.all_rows if rows is None else rows)
        if not np.isfinite(list(losses.values())).all():
            raise FloatingPointError(f"a loss is not finite: {losses}")


def words_table(task: str, rows: int, T: int, encoder: str, seed: int = 1) -> pd.DataFrame:
    """A table of random words as `load_table` gives it: every example has 0.8 T to T tokens with its special tokens.

    The first one has T. A pair's tokens are shared out evenly.
    """
    random = np.random.default_rng([seed, rows, T])
    vocabulary = load_tokenizer(encoder).get_vocab()
    words = np.array(sorted(word for word in vocabulary if word.isascii() and word.isalpha() and len(word) > 2))
    lengths = random.integers(max(5, int(0.8 * T)), T + 1, rows)
    lengths[0] = T
    columns = TASKS[task].sentence_columns
    table = {"id": [f"w{i}" for i in range(rows)]}
    room = lengths - 1 - len(columns)  # [CLS] and a [SEP] behind each sentence
    for i, column in enumerate(columns):
        counts = room // len(columns) + (i < room % len(columns))
        table[column] = [" ".join(random.choice(words, count)) for count in counts]
    low, high = TASKS[task].label_range
    is_class = TASKS[task].kind != "similarity"
    labels = random.integers(low, high + 1, rows) if is_class else random.uniform(low, high, rows)
    return pd.DataFrame(table | {"label": labels})


def _three_tables(setting: Setting, B: int, T: int) -> dict[str, pd.DataFrame]:
    return {task: words_table(task, B, T, setting.encoder, seed) for seed, task in enumerate(THREE)}


def one(call: Callable[..., object], *arguments: object) -> Run:
    """A run that makes this call in every repeat: one unit of work."""

    def run(repeat: int) -> None:
        call(*arguments)

    return run


def training_step(setting: Setting, B: int, T: int, reach: float) -> Contest:
    """One task: batch assembly, forward, backward, AdamW and the loss as a number, against transformers."""
    ours = Training(setting, {"sst": words_table("sst", B, T, setting.encoder)})
    theirs = TransformersModel(ours.model, ours.tables)
    step = one(usual_step, theirs, adamw(theirs, fused=True), ours.all_rows)
    peer = Peer(step, reach=reach, package="transformers")
    return Contest(f"{B}x{T}", one(ours.step), {"transformers sdpa, fused AdamW": peer})


def adamw_alone(setting: Setting) -> Contest:
    """One update of all parameters of the encoder."""
    shapes = [p.shape for p in Training(setting, {"sst": words_table("sst", 2, 8, setting.encoder)}).model.parameters()]
    generator = torch.Generator().manual_seed(1)

    def parameters() -> list[torch.nn.Parameter]:
        result = [torch.nn.Parameter(torch.zeros(shape, device=setting.device)) for shape in shapes]
        for parameter in result:
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(setting.device)
        return result

    count = sum(shape.numel() for shape in shapes) / 1e6
    peers_ = {
        "torch foreach": Peer(one(torch.optim.AdamW(parameters(), foreach=True).step), package="torch"),
        "torch fused": Peer(one(torch.optim.AdamW(parameters(), fused=True).step), reach=1.0, package="torch"),
    }
    return Contest(f"{count:.1f}M", one(AdamW(parameters()).step), peers_)


def unified(setting: Setting, B: int, T: int) -> Contest:
    """A step on a batch of each of three tasks, losses summed."""
    ours = Training(setting, _three_tables(setting, B, T))
    peers_ = {}
    for name, step, reach in (("three passes", usual_step, 1.25), ("one merged pass", merged_step, 1.15)):
        theirs = TransformersModel(ours.model, ours.tables)
        run = one(step, theirs, adamw(theirs, fused=True), ours.all_rows)
        peers_[f"transformers, {name}"] = Peer(run, reach=reach, package="transformers")
    return Contest(f"3x{B}x{T}", one(ours.step), peers_)


def three_berts(setting: Setting, B: int, T: int) -> Contest:
    """A step on a batch of each of three tasks, every task with an encoder of its own."""
    tables = _three_tables(setting, B, T)
    ours = Training(setting, tables, plan="3-bert")
    theirs = []
    for task in tables:
        model = TransformersModel(ours.model, {task: ours.tables[task]})
        theirs.append((model, adamw(model, fused=True), {task: ours.all_rows[task]}))

    def steps(repeat: int) -> None:
        for model, optimizer, rows in theirs:
            usual_step(model, optimizer, rows)

    peer = Peer(steps, reach=1.2, package="transformers")
    return Contest(f"3x{B}x{T}", one(ours.step), {"three transformers, each its fused AdamW": peer})


def survey() -> dict[str, dict]:
    """The runs of params/cpu/memory_time.yaml beside 1-bert: the fields of RunConfig in which each differs from it."""
    grid = read_grid(REPOSITORY / "params" / "cpu" / "memory_time.yaml")
    runs = {name: configs[0].model_dump() for name, configs in grid.items()}
    first = runs.pop("1-bert")
    return {name: {key: run[key] for key in run if run[key] != first[key]} for name, run in runs.items()}


def plans(setting: Setting, B: int, T: int, precision: str, others: dict[str, dict] | None = None) -> Contest:
    """A unified step of 1-bert, and of other plans, on three tasks with texts that a run sees once.

    So a frozen encoder encodes them in the step. others: name -> the fields of its RunConfig, by default those of
    `survey`. Time is told per token of the texts, padding left out.
    """
    setting = replace(setting, precision=precision)

    def steps(fields: dict) -> Run:
        training = Training(setting, _three_tables(setting, fields.get("batch_size", B), T), passes=0.5, **fields)
        tokens = sum(int(table.tokens.lengths.sum()) for table in training.tables.values())

        def run(repeat: int) -> float:
            training.step()
            return tokens / 1000  # milliseconds for a thousand of them

        return run

    peers_ = {name: Peer(steps(fields)) for name, fields in (survey() if others is None else others).items()}
    return Contest(f"3x{B}x{T}", steps({}), peers_, unit="us/token", precision=precision)


def frozen(setting: Setting, B: int, T: int, batches: int) -> Contest:
    """A step of the epochs behind the first with a frozen encoder; the peer encodes the batch anew each time."""
    table = {"sst": words_table("sst", B * batches, T, setting.encoder)}
    ours, again = (Training(setting, table, passes=passes, frozen=True) for passes in (2.0, 0.5))
    peer = Peer(epoch(again, batches), reach=50.0)
    return Contest(f"{B}x{T}", epoch(ours, batches), {"ours, encoding each step": peer})


def frozen_prefix(setting: Setting, plan: str, B: int, T: int, batches: int) -> Contest:
    """A step of the epochs behind the first where the lower layers are frozen, with and without what they gave."""
    table = {"sst": words_table("sst", B * batches, T, setting.encoder)}
    ours, without = (Training(setting, table, passes=passes, plan=plan) for passes in (2.0, 1.0))
    peer = Peer(epoch(without, batches), reach=1.6)
    return Contest(f"{plan} {B}x{T}", epoch(ours, batches), {"ours, without the kept states": peer})


def epoch(training: Training, batches: int) -> Run:
    """A run that takes a step on each of so many parts of the rows."""
    parts = np.split(training.all_rows["sst"], batches)

    def run(repeat: int) -> int:
        for rows in parts:
            training.step({"sst": rows})
        return batches

    return run


def pal(setting: Setting, B: int, T: int, s: int, heads: int) -> Contest:
    """A unified step with a PAL of each of three tasks on all layers."""
    tables = _three_tables(setting, B, T)
    ours = Training(setting, tables, adapter="pal", adapter_size=s, adapter_heads=heads)
    without = Training(setting, tables)
    theirs = OriginalPals(ours.model, ours.tables)
    optimizer = PerParameterAdam(theirs.parameters(), lr=1e-5)
    peers_ = {
        "ours, without PAL": Peer(one(without.step), reach=1 / 1.12),
        "imitation of the original code": Peer(one(theirs.step, optimizer, ours.all_rows), reach=1.3, package="torch"),
    }
    return Contest(f"3x{B}x{T}, s={s}", one(ours.step), peers_)


def pcgrad_step(setting: Setting, B: int, T: int) -> Contest:
    """A unified step with PCGrad on three tasks."""
    tables = _three_tables(setting, B, T)
    ours, plain = Training(setting, tables, gradients="pcgrad"), Training(setting, tables)

    def summed() -> None:
        for task, rows in plain.all_rows.items():
            plain.trainer.updates.gradients(1, {task: rows})
        plain.trainer.update(plain.all_rows)

    peers_ = {"ours, a backward pass per task, summed": Peer(one(summed), reach=1 / 1.2)}
    missing = peers.not_installed("torchjd")
    for name, chunk in (("TorchJD", None), ("TorchJD, one task at a time", 1)):
        theirs = TransformersModel(ours.model, ours.tables)
        optimizer = adamw(theirs, fused=True)
        run = one(peers.torchjd_step, theirs, optimizer, ours.all_rows, chunk)
        peers_[name] = Peer(run, reach=2.0, package="torchjd", missing=missing)
    return Contest(f"3x{B}x{T}", one(ours.step), peers_)


def gem_projection(setting: Setting, parameters: int, memories: int) -> Contest:
    """GEM's projection alone, of gradients that violate every constraint."""
    g, M = violating_gradients(parameters, memories, setting.device)
    missing = peers.not_installed("quadprog")
    solver = "scipy" if missing else "quadprog"
    name = f"float64 on the host, {solver}" + (" (quadprog is not installed)" if missing else "")
    peer = Peer(one(peers.gem_on_the_host, g, M, 0.0, solver), reach=5.0, package=solver)
    return Contest(f"{parameters / 1e6:.1f}M, {memories} memories", one(gem_project, g, M), {name: peer})


def violating_gradients(parameters: int, memories: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """g (P,) and M (K, P) with g . m_k < 0 for every k, and memories that agree and disagree among themselves.

    Raises Missing where chance gave none, for a handful of parameters.
    """
    generator = torch.Generator().manual_seed(1)
    M = torch.randn(memories, parameters, generator=generator)
    if memories > 1:
        M[1] += 0.5 * M[0]
        M[-1] -= 0.3 * M[0]
    g = torch.randn(parameters, generator=generator) - 0.4 * M.sum(0)
    if not (M @ g < 0).all():
        raise Missing(f"{parameters} parameters are too few for {memories} constraints that are all violated")
    return g.to(device), M.to(device)
