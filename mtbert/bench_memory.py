"""The benchmark of the memory that a training process holds on a real dataset, in a process of its own."""

import json

import numpy as np
import torch

from mtbert.bench import Contest, Peer, Setting, started_process
from mtbert.config import RunConfig
from mtbert.heap import Trimmer, keep_freed_memory
from mtbert.multitask import MultitaskBert
from mtbert.profiling import PeakMemory
from mtbert.results import data_root
from mtbert.rows import Corpus, TaskRows
from mtbert.samplers import training_steps
from mtbert.trainer import Trainer
from mtbert.updates import batch_shapes

SCRIPT = """
import json, sys
from mtbert.bench_memory import training_peak
print(training_peak(**json.loads(sys.argv[1])))
"""


def training(setting: Setting, task: str, precision: str, longest: int, others: int, limit: float = 2048.0) -> Contest:
    """Peak of a fresh process that trains on some steps of a pass over a task: the longest ones among others, in MiB.

    limit: MiB that it may hold. Raises DataError without the data.
    """
    fields = dict(corpus="course", tasks=[task], batch_size=32, epochs=1, precision=precision)
    config = RunConfig.from_params(fields | dict(encoder=setting.encoder, weights=setting.weights))
    data = data_root(config, setting.data)
    arguments = dict(fields=config.model_dump(mode="json"), data=str(data), longest=longest, others=others)

    def peak(repeat: int) -> float:
        return float(started_process(SCRIPT, json.dumps(arguments)))

    peers = {f"limit {limit / 1024:g} GiB": Peer(limit, reach=1.0)}
    return Contest(f"{task}, 32 a batch", peak, peers, unit="MiB", timed=False, precision=precision)


def training_peak(fields: dict, data: str, longest: int, others: int) -> float:
    """MiB at the peak of this process while it trains on these steps, in random order; reads and tokenizes first."""
    keep_freed_memory()
    device = torch.device("cpu")
    memory = PeakMemory(device)
    config = RunConfig.from_params(fields)
    model = MultitaskBert(config)
    tables = {task: TaskRows(model, task, table, device) for task, table in Corpus.load(config, data).train.items()}
    lengths = {task: table.tokens.lengths for task, table in tables.items()}
    steps = list(training_steps(config, lengths))
    by_length = np.argsort([-max(T for _, T in batch_shapes(step, lengths).values()) for step in steps])
    random = np.random.default_rng(1)
    chosen = random.permutation(np.append(by_length[:longest], random.permutation(by_length[longest:])[:others]))
    trainer, trim = Trainer(model, tables, len(steps)), Trimmer()
    for number, i in enumerate(chosen, start=1):
        trainer.step(number, steps[i])
        trim()
    return memory.mib()
