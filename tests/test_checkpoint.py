"""A checkpoint puts back all that it was given, and passes over what is not its own."""

import logging

import pytest
import torch
from torch import nn

from mtbert.checkpoint import Checkpoint
from mtbert.optim import AdamW


@pytest.fixture
def parts() -> dict:
    torch.manual_seed(3)
    model = nn.Linear(4, 2)
    optimizer = AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


def test_parts_generators_and_progress_are_put_back(parts, tmp_path):
    path = tmp_path / "folder" / "run.pt"
    weight = parts["model"].weight.detach().clone()
    first_moment = parts["optimizer"].state[parts["model"].weight]["exp_avg"].clone()
    Checkpoint(path, "a", parts).save({"step": 7, "losses": [0.5], "best": {"w": torch.ones(2)}})
    drawn = torch.rand(3)
    with torch.no_grad():
        parts["model"].weight.zero_()
    parts["optimizer"].state.clear()
    progress = Checkpoint(path, "a", parts).restore()
    assert progress["step"] == 7 and progress["losses"] == [0.5] and progress["best"]["w"].tolist() == [1, 1]
    assert torch.equal(parts["model"].weight, weight)
    assert torch.equal(parts["optimizer"].state[parts["model"].weight]["exp_avg"], first_moment)
    assert torch.equal(torch.rand(3), drawn), "the generator goes on where it was"
    assert [file.name for file in path.parent.iterdir()] == ["run.pt"]


def test_without_a_path_nothing_happens(parts):
    saver = Checkpoint(None, "a", parts)
    saver.save({"step": 1})
    assert saver.restore() is None


def test_without_a_file_the_start_is_fresh(parts, tmp_path, caplog):
    assert Checkpoint(tmp_path / "run.pt", "a", parts).restore() is None
    assert not caplog.records


@pytest.mark.parametrize("damage, reason", [("cut", "is damaged"), ("other", "belongs to another run")])
def test_a_file_that_does_not_serve_is_passed_over(parts, tmp_path, caplog, damage, reason):
    path = tmp_path / "run.pt"
    Checkpoint(path, "b" if damage == "other" else "a", parts).save({"step": 1})
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-50])
    with caplog.at_level(logging.WARNING):
        assert Checkpoint(path, "a", parts).restore() is None
    assert reason in caplog.text


def test_an_interrupted_save_leaves_the_old_file(parts, tmp_path, monkeypatch):
    path = tmp_path / "run.pt"
    saver = Checkpoint(path, "a", parts)
    saver.save({"step": 1})

    def broken(content, target):
        target.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", broken)
    with pytest.raises(KeyboardInterrupt):
        saver.save({"step": 2})
    assert saver.restore()["step"] == 1
