"""Benchmarks on the real data: an epoch of training and the evaluation of a dev split, from token ids to results.

The whole is cut into as many parts as there are repeats, and the parts are interleaved: every row passes through each
loop once, and what is told is milliseconds a row. Both sides start from token ids and weights in memory.
"""

import numpy as np

from mtbert.bench import WARM_UP, Contest, Peer, Setting
from mtbert.bench_steps import Training
from mtbert.config import RunConfig
from mtbert.heap import Trimmer
from mtbert.peers import TransformersModel, adamw, random_batches, usual_predictions, usual_step
from mtbert.results import data_root
from mtbert.rows import Corpus, TaskRows
from mtbert.samplers import training_steps

BATCH = 32
WARM_UP_BATCHES = 3


def epoch(setting: Setting, task: str, rows: int | None = None, reach: float = 2.2) -> Contest:
    """One epoch over a train split or `rows` of it.

    ours: batches of similar length and everything that `train` does in a step. The peer: random batches padded to
    their longest, transformers, torch's AdamW with its defaults, the loss read in every step. Raises DataError.
    """
    config = RunConfig.from_params(dict(corpus="course", tasks=[task], batch_size=BATCH, epochs=1, train_rows=rows))
    corpus = Corpus.load(config, data_root(config, setting.data))
    ours = Training(setting, corpus.train, batch_size=BATCH, epochs=1)
    theirs = TransformersModel(ours.model, ours.tables)
    optimizer = adamw(theirs)
    size = len(corpus.train[task])
    lengths = {task: ours.tables[task].tokens.lengths}
    our_batches = [step[task] for step in training_steps(ours.config, lengths)]
    their_batches = random_batches(size, BATCH, seed=1)
    trim = Trimmer()

    def our_loop(repeat: int) -> int:
        part = _part(our_batches, repeat, setting.repeats)
        for batch in part:
            ours.step({task: batch})
            trim()
        return sum(map(len, part))

    def their_loop(repeat: int) -> int:
        part = _part(their_batches, repeat, setting.repeats)
        for batch in part:
            usual_step(theirs, optimizer, {task: batch})
        return sum(map(len, part))

    peer = Peer(their_loop, reach=reach, package="transformers")
    return Contest(f"{task}, {size} rows", our_loop, {"the usual loop": peer}, unit="ms/row", is_total=True)


def evaluation(setting: Setting, task: str, reach: float = 1.5) -> Contest:
    """The predictions for a dev split of a binary task; the peer takes the rows in file order, 32 at a time.

    Part i is every row whose number is i modulo the number of parts. Raises DataError.
    """
    config = RunConfig.from_params(dict(corpus="course", tasks=[task], score_tasks=[task], train_rows=BATCH))
    corpus = Corpus.load(config, data_root(config, setting.data))
    model = Training(setting, corpus.train).model.eval()
    table = TaskRows(model, task, corpus.dev[task], setting.device)
    theirs = TransformersModel(model, {task: table})

    def part(repeat: int) -> np.ndarray:
        if repeat == WARM_UP:
            return np.arange(min(len(table), BATCH * WARM_UP_BATCHES))
        return np.arange(repeat, len(table), setting.repeats)

    def our_pass(repeat: int) -> int:
        return len(table.predictions("dev", part(repeat)))

    def their_pass(repeat: int) -> int:
        rows = part(repeat)
        return len(usual_predictions(theirs, task, (rows[i : i + BATCH] for i in range(0, len(rows), BATCH))))

    peer = Peer(their_pass, reach=reach, package="transformers")
    peers = {"transformers, file order": peer}
    return Contest(f"{task} dev, {len(table)} rows", our_pass, peers, unit="ms/row", is_total=True)


def _part(batches: list[np.ndarray], repeat: int, repeats: int) -> list[np.ndarray]:
    if repeat == WARM_UP:
        return batches[:WARM_UP_BATCHES]
    bounds = np.linspace(0, len(batches), repeats + 1).astype(int)
    return batches[bounds[repeat] : bounds[repeat + 1]]
