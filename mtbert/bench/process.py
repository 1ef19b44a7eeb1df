"""Benchmarks of fresh processes: importing the package, showing a stored run, the memory of training."""

import subprocess
import sys
import time

import numpy as np
import torch

from mtbert.bench.harness import BenchError, Contest, Run, Setting
from mtbert.config import RunConfig
from mtbert.multitask import MultitaskBert
from mtbert.paths import results_dir
from mtbert.results import data_root, stored_runs
from mtbert.runtime import PeakMemory, Trimmer, keep_freed_memory
from mtbert.training import TaskRows, Trainer, batch_shapes, load_corpus, training_steps

NOTEBOOK = """import mtbert.report.notebook, mtbert.report.plots
from mtbert.config import RunConfig
from mtbert.results import load_or_run
load_or_run(RunConfig.from_params({config!r}), train_missing=False)"""
TRAINING = "from mtbert.bench.process import training_peak; print(training_peak(**{arguments!r}))"


def started(script: str) -> str:
    """What a fresh Python prints that runs this script; raises RuntimeError with the last line of its error."""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError(process.stderr.strip().splitlines()[-1])
    return process.stdout


def _milliseconds(script: str) -> Run:
    def run(repeat: int) -> float:
        before = time.perf_counter()
        started(script)
        return 1000 * (time.perf_counter() - before)

    return run


def imports(setting: Setting, module: str) -> Contest:
    """A fresh Python that imports the command line and a module of the package."""
    return Contest(module, _milliseconds(f"import mtbert.cli, mtbert.{module}"))


def stored_run(setting: Setting) -> Contest:
    """A fresh Python that imports what a notebook does and reads a stored run; raises BenchError without one."""
    configs: dict[str, list[dict]] = {}
    for run in stored_runs(results_dir()):
        configs.setdefault(run["run_id"].partition("-")[0], []).append(run["config"])
    for same in configs.values():
        if len(same) == 1:  # of several the data would decide
            return Contest("load_or_run", _milliseconds(NOTEBOOK.format(config=same[0])))
    raise BenchError(f"{results_dir().name}/ holds no run; train some: mtbert train params/demo/single_task.yaml")


def memory(setting: Setting, task: str, precision: str, longest: int, others: int) -> Contest:
    """Peak of a fresh process that trains on some steps of a pass over a task: the longest ones among others, in MiB.

    Raises DataError without the data.
    """
    fields = dict(corpus="course", tasks=[task], epochs=1, precision=precision, encoder=setting.encoder, batch_size=32)
    data = str(data_root(RunConfig.from_params(fields), setting.data))
    script = TRAINING.format(arguments=dict(fields=fields, data=data, longest=longest, others=others))
    return Contest(f"{task}, 32 a batch", lambda repeat: float(started(script)), unit="MiB")


def training_peak(fields: dict, data: str, longest: int, others: int) -> float:
    """MiB at the peak of this process while it trains on these steps, in random order; reads and tokenizes first."""
    keep_freed_memory()
    device = torch.device("cpu")
    memory = PeakMemory(device)
    config = RunConfig.from_params(fields)
    model = MultitaskBert(config)
    tables = {task: TaskRows(model, task, table, device) for task, table in load_corpus(config, data).train.items()}
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
