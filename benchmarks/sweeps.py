"""The benchmark of sweeps: what the workers of a cluster train in a second, against one process without a cluster.

The runs are three steps of a random encoder on the demo corpus. What precedes them is not counted: the start of the
cluster, and in every process the first runs, which import libraries.
"""

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch

from benchmarks.harness import Contest, Peer, Setting
from mtbert.bert import MINILM, BertConfig, BertModel
from mtbert.config import RunConfig
from mtbert.training import Stop
from mtbert_lab import sweep
from mtbert_lab.paths import stores
from mtbert_lab.store import Training, read_corpus, read_run, run_folder
from mtbert_lab.sweep import SweepRun

WARM_UP = 3  # runs of each process
SIZES = dict(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=48)


def throughput(setting: Setting, count: int, workers: int) -> Contest:
    """Milliseconds of a run: of `workers` workers the time of the sweep times their number, over the number of runs.

    The ratio is the share of the ideal throughput, which is `workers` times that of one process.
    """

    def ours(repeat: int) -> float:
        with _folders(), sweep.open_cluster(workers, None) as client:

            def train(chosen: Sequence[SweepRun]) -> None:
                if failed := sweep.train_on(client, chosen, Stop(), device="cpu"):
                    raise RuntimeError("; ".join(f"{run}: {why}" for run, why in failed.items()))

            train(_runs(WARM_UP * workers, first=count))
            chosen = _runs(count)
            started = time.perf_counter()
            train(chosen)
            return 1000 * (time.perf_counter() - started) * workers / count

    def theirs(repeat: int) -> float:
        with _folders():
            _train_alone(_runs(WARM_UP, first=count))
            chosen = _runs(count)
            started = time.perf_counter()
            _train_alone(chosen)
            return 1000 * (time.perf_counter() - started) / count

    return Contest(f"{count} runs, {workers} workers", ours, {"one process": Peer(theirs)})


@contextmanager
def _folders() -> Iterator[None]:
    """Inside the block results and cache are temporary, with the encoder, and torch has one thread."""
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        encoder = Path(folder, "encoder")
        torch.manual_seed(1)
        BertModel(BertConfig(**SIZES)).save_pretrained(encoder, tokenizer=MINILM)
        names = {f"MTBERT_{name.upper()}": str(Path(folder, name)) for name in ("results", "cache")}
        torch.set_num_threads(1)
        with patch.dict(os.environ, names):
            yield
    torch.set_num_threads(threads)


def _runs(number: int, first: int = 0) -> list[SweepRun]:
    """The runs of these seeds, in the folders of `_folders`."""
    encoder = Path(os.environ["MTBERT_CACHE"]).with_name("encoder")
    base = dict(corpus="demo", encoder=str(encoder), epochs=1, steps_per_epoch=3, batch_size=8)
    return sweep.look_up([("run", RunConfig(**base, seed=seed)) for seed in range(first, first + number)])


def _train_alone(chosen: Sequence[SweepRun]) -> None:
    """What a worker does, one run after another."""
    for run in chosen:
        Training(stores(), device="cpu", progress=False).once(run.config, read_corpus(run.config))
        read_run(run_folder(run.run_id), run.config).score()
