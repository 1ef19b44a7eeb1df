"""A killed trainer goes on bit for bit; no damaged or foreign checkpoint is used, nor what it holds executed."""

import errno
import hashlib
import multiprocessing
import os
import pickle
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from mtbert.config import RunConfig
from mtbert.data import Corpus
from mtbert.files import replacing_sealed
from mtbert.training.checkpoint import Checkpoint
from mtbert.training.loop import train
from mtbert.training.task_data import load_corpus

THREE = ("sst", "quora", "sts")
KINDS = {
    "unified": dict(tasks=THREE, scheme="unified", gradients="pcgrad", cosine_every=2, plan="S1 I1"),
    "sampled and annealed": dict(tasks=THREE, sampling="annealed", epochs=3, steps_per_epoch=6, adapter="lhuc"),
    "gem": dict(tasks=THREE, gradients="gem", steps_per_epoch=6, memory_size=12, memory_batch=6),
    "pretraining": dict(pretrain="both", epochs=1),
}
KILLS = 20  # of each kind, in the slow test


def digest(config: RunConfig, corpus: Corpus, path: Path | None) -> str:
    """Of weights, predictions and curve of a run; with `saved_each_step` it writes a checkpoint after every step."""
    run = train(config, corpus, device="cpu", progress=False, checkpoint=path)
    state = {name: tensor.numpy().tobytes() for name, tensor in run.model.state_dict().items()}
    curve = run.curve.drop(columns=["seconds", "cpu_seconds"]).to_csv()
    return hashlib.sha256(pickle.dumps([state, run.predictions.to_csv(), curve, run.cosines.to_csv()])).hexdigest()


def killed(config: RunConfig, corpus: Corpus, path: Path, seconds: float) -> None:
    """A process that trains, and is killed after this time."""
    process = multiprocessing.get_context("fork").Process(target=digest, args=(config, corpus, path))
    process.start()
    time.sleep(seconds)
    process.kill()
    process.join()
    assert process.exitcode in (-signal.SIGKILL, 0)


def resumed_after_kills(config: RunConfig, folder: Path, data: Path, moments: int) -> list[tuple[bool, bool]]:
    """For each of some random moments: whether there was a checkpoint, and whether the run has the same bits."""
    corpus = load_corpus(config, data)
    digest(config, corpus, None)  # fills the cache of token ids
    started = time.monotonic()
    whole = digest(config, corpus, folder / "whole" / "checkpoint.pt")
    duration, draw, found = time.monotonic() - started, random.Random(str(config)), []
    assert whole == digest(config, corpus, None)
    for i in range(moments):
        path = folder / str(i) / "checkpoint.pt"
        killed(config, corpus, path, draw.uniform(0.05, 0.95) * duration)
        found.append((any(path.parent.glob("*.pt")), digest(config, corpus, path) == whole))
    return found


@pytest.mark.usefixtures("saved_each_step")
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_trainer_goes_on_bit_for_bit(tiny_config, course_folder, tmp_path, kind):
    found = resumed_after_kills(tiny_config.but(**KINDS[kind]), tmp_path, course_folder, KILLS)
    equal, with_checkpoint = sum(same for _, same in found), sum(saved for saved, _ in found)
    print(f"{kind}: {equal} of {KILLS} equal, {with_checkpoint} from a checkpoint")
    assert equal == KILLS and with_checkpoint >= KILLS / 2


# --- damaged and foreign files --------------------------------------------------------------------------------------


def saver_of(path: Path, identity: str = "a") -> Checkpoint:
    """A checkpoint of a layer and its optimizer, both with fresh random weights."""
    model = nn.Linear(4, 2)
    return Checkpoint(path, identity, {"model": model, "optimizer": torch.optim.Adam(model.parameters())})


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ (1 << place % 8)]) + content[place + 1 :]


@pytest.fixture
def saved(tmp_path) -> Path:
    """A checkpoint of step 2."""
    saver_of(tmp_path / "run.pt").save({"step": 2})
    return tmp_path / "run.pt"


def test_no_flipped_bit_is_resumed_from(saved, caplog):
    content = saved.read_bytes()
    for place in random.Random(4).sample(range(len(content)), 60):
        saved.write_bytes(flipped(content, place))
        caplog.clear()
        assert saver_of(saved).restore() is None, place
        assert f"{saved} is damaged and is not used; training starts from the beginning" in caplog.text
    saved.write_bytes(content)
    assert saver_of(saved).restore() == {"step": 2}


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(saved, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("mtbert.files.flush", full)
    assert not saver_of(saved).save({"step": 3})
    assert saver_of(saved).restore() == {"step": 2} and list(saved.parent.iterdir()) == [saved]


@pytest.mark.parametrize("plain", [True, False])
def test_a_pickle_in_a_checkpoint_is_not_executed(tmp_path, caplog, plain, trap):
    path = tmp_path / "run.pt"
    content = {"identity": "a", "progress": trap}
    with replacing_sealed(path) as partial:
        if plain:
            partial.write_bytes(pickle.dumps(content, protocol=2))  # as torch.save writes
        else:
            torch.save(content, partial)
    assert saver_of(path).restore() is None
    assert not (tmp_path / "executed").exists() and "is damaged and is not used" in caplog.text
