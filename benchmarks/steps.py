"""Benchmarks of training: steps of one and of several tasks, plans, adapters, PCGrad and GEM, an epoch.

But for `epoch`, tokens are random words of the vocabulary, lengths 80 to 100 % of the longest, as in
batches that are sorted by length; both sides get the same ones, and dropout is on.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.utils.benchmark import timer

from benchmarks import peers
from benchmarks.harness import Contest, Peer, Run, Setting, timed
from benchmarks.ours import Training, on_words
from benchmarks.peers import TransformersModel
from mtbert.config import RunConfig
from mtbert.gradients import gem_project
from mtbert.paths import REPOSITORY
from mtbert.runtime import Trimmer
from mtbert.training import training_steps
from mtbert_lab.store import read_corpus, read_grid

THREE = ("sst", "quora", "sts")
PLANS = REPOSITORY / "params" / "cpu" / "memory_time.yaml"
BATCH = 32  # of an epoch
WARM_UP = 3  # batches before those of an epoch that are not counted


def _against(ours: Training, step: Callable = peers.usual_step, compiled: bool = False) -> Run:
    """A step of transformers' model on the same batches, from the weights of ours; compiled for this one shape."""
    theirs = TransformersModel(ours.model, ours.tables)
    optimizer = peers.adamw(theirs, fused=True)
    if compiled:
        torch.compiler.reset()  # the sizes before this one would count as recompilations
        theirs.compile(dynamic=False)
    return timed(lambda: step(theirs, optimizer, ours.all_rows))


def training_step(setting: Setting, B: int, T: int) -> Contest:
    """One task: batch assembly, forward, backward, AdamW and the loss as a number, against transformers."""
    ours = on_words(setting, B, T)
    others = {
        "transformers sdpa, fused AdamW": Peer(_against(ours), "transformers"),
        "transformers sdpa compiled, fused AdamW": Peer(_against(ours, compiled=True), "transformers"),
    }
    return Contest(f"{B}x{T}", timed(ours.step), others)


def pal(setting: Setting, B: int, T: int, s: int, heads: int) -> Contest:
    """A unified step with a PAL of each of three tasks on all layers."""
    ours = on_words(setting, B, T, THREE, adapter="pal", adapter_size=s, adapter_heads=heads)
    theirs = peers.OriginalPals(ours.model, ours.tables)
    optimizer = theirs.optimizer()
    their_run = timed(lambda: peers.usual_step(theirs, optimizer, ours.all_rows))
    without = Peer(timed(on_words(setting, B, T, THREE).step))
    others = {"ours, without PAL": without, "imitation of the original code": Peer(their_run, "torch")}
    return Contest(f"3x{B}x{T}, s={s}", timed(ours.step), others)


def pcgrad_step(setting: Setting, B: int, T: int) -> Contest:
    """A unified step with PCGrad on three tasks."""
    ours = on_words(setting, B, T, THREE, gradients="pcgrad")
    theirs = Peer(_against(ours, peers.torchjd_step), "torchjd")
    return Contest(f"3x{B}x{T}", timed(ours.step), {"TorchJD, one task at a time": theirs})


def busy_cores(setting: Setting, B: int, T: int, programs: bool) -> Contest:
    """A training step beside another program on each core, or none; the peer waits as libgomp does by default.

    How threads wait is read when torch is imported, so that every measurement is a process of its own.
    """
    arguments = dict(B=B, T=T, encoder=setting.encoder)
    script = f"import mtbert; from benchmarks.ours import words_step; print(words_step(**{arguments!r}))"
    cores = os.cpu_count() or 1

    def waiting(**variables: str) -> Run:
        environment = same_threads()
        for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):  # with either, `import mtbert` leaves waiting as it is
            environment.pop(name, None)
        environment |= variables

        def run(repeat: int) -> float:
            others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(cores * programs)]
            try:
                command = [sys.executable, "-c", script]
                return float(subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment).stdout)
            finally:
                for other in others:
                    other.kill()
                    other.wait()

        return run

    size = f"{B}x{T}, {f'{cores} other programs' if programs else 'no other program'}"
    return Contest(size, waiting(), {"ours, libgomp's default": Peer(waiting(GOMP_SPINCOUNT="300000"))})


def same_threads() -> dict[str, str]:
    """The environment of a process that takes as many threads as this one."""
    return os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}


def distillation_step(setting: Setting, B: int, T: int) -> Contest:
    """A unified step on three tasks that learns from labels and stored logits of teachers, against labels alone."""
    teacher = RunConfig.from_params({"tasks": list(THREE), "encoder": setting.encoder})
    ours = on_words(setting, B, T, THREE, teachers=[teacher], distil=0.5)
    for table in ours.tables.values():
        table.teachers = torch.zeros_like(table.logits(ours.model))  # all numbers cost the same
    without = Peer(timed(on_words(setting, B, T, THREE).step))
    return Contest(f"3x{B}x{T}", timed(ours.step), {"ours, without teachers": without})


def gem_projection(setting: Setting, parameters: int, memories: int) -> Contest:
    """GEM's projection alone, of gradients that violate every constraint."""
    g, M = violating_gradients(parameters, memories)
    theirs = Peer(timed(lambda: peers.gem_on_the_host(g, M)), "quadprog")
    size = f"{parameters / 1e6:.1f}M, {memories} memories"
    return Contest(size, timed(lambda: gem_project(g, M)), {"float64 on the host, quadprog": theirs})


def violating_gradients(parameters: int, memories: int) -> tuple[torch.Tensor, torch.Tensor]:
    """g (P,) and M (K, P), drawn so that g . m_k is far below 0 for every k."""
    generator = torch.Generator().manual_seed(1)
    M = torch.randn(memories, parameters, generator=generator)
    g = torch.randn(parameters, generator=generator) - M.sum(0)
    return g, M


def plans(setting: Setting, B: int, T: int, precision: str, grid: Path = PLANS) -> Contest:
    """A unified step of 1-bert, and of the other runs of a grid, on three tasks; time per token, without padding.

    The texts are seen once, so that a frozen encoder encodes them in the step.
    """
    runs = {name: configs[0].model_dump() for name, configs in read_grid(grid).items()}

    def steps(name: str) -> Run:
        fields = {key: value for key, value in runs[name].items() if value != runs["1-bert"][key]}
        fields = {"precision": precision} | fields
        training = on_words(setting, fields.get("batch_size", B), T, THREE, passes=0.5, **fields)
        return timed(training.step, sum(table.tokens.lengths.sum() for table in training.tables.values()) / 1000)

    others = {name: Peer(steps(name)) for name in runs if name != "1-bert"}
    return Contest(f"3x{B}x{T}", steps("1-bert"), others, "us/token")


def epoch(setting: Setting, task: str, rows: int | None = None) -> Contest:
    """One epoch over a train split or `rows` examples of it, a part of it in each repeat. Raises DataError.

    ours: batches of similar length and everything that `train` does in a step. The peer: random batches padded to
    their longest, transformers, torch's AdamW with its defaults, the loss read in every step.
    """
    config = RunConfig.from_params(dict(corpus="course", tasks=[task], train_rows=rows))
    tables = read_corpus(config, setting.data).train
    ours = Training(setting, tables, batch_size=BATCH, epochs=1)
    theirs = TransformersModel(ours.model, ours.tables)
    optimizer, trim, size = peers.adamw(theirs), Trimmer(), len(tables[task])
    our_batches = [step[task] for step in training_steps(ours.config, {task: ours.tables[task].tokens.lengths})]
    their_batches = np.split(np.random.default_rng(1).permutation(size), range(BATCH, size, BATCH))

    def our_step(batch: np.ndarray) -> None:
        ours.step({task: batch})
        trim()

    def by_part(step: Callable[[np.ndarray], None], batches: list[np.ndarray]) -> Run:
        def run(repeat: int) -> float:
            part = batches[repeat :: setting.repeats]
            for batch in part[:WARM_UP]:
                step(batch)
            started = timer()
            for batch in part:
                step(batch)
            return 1000 * (timer() - started) / sum(map(len, part))

        return run

    their_run = by_part(lambda batch: peers.usual_step(theirs, optimizer, {task: batch}), their_batches)
    others = {"the usual loop": Peer(their_run, "transformers")}
    return Contest(f"{task}, {size} rows", by_part(our_step, our_batches), others, "ms/row")
