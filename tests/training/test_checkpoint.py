"""A checkpoint puts back all that it was given, passes over what is not its own, and is saved when a signal comes."""

import os
import signal
import threading

import pytest
import torch
from torch import nn

from mtbert.optim import AdamW
from mtbert.training.checkpoint import Checkpoint, TrainingError, stopping

pytestmark = pytest.mark.usefixtures("ctrl_c")


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


def test_without_a_path_nothing_happens(parts, monkeypatch):
    monkeypatch.setenv("MTBERT_CHECKPOINT_SECONDS", "0")
    saver = Checkpoint(None, "a", parts)
    saver.save({"step": 1})
    assert saver.restore() is None and not saver.is_due, "on a GPU to read the progress would wait for the steps"


def test_without_a_file_the_start_is_fresh(parts, tmp_path, caplog):
    assert Checkpoint(tmp_path / "run.pt", "a", parts).restore() is None
    assert not caplog.records


def test_an_interrupted_save_leaves_the_old_file(parts, tmp_path, monkeypatch):
    path = tmp_path / "run.pt"
    saver = Checkpoint(path, "a", parts)
    saver.save({"step": 1})

    def broken(content, target):
        target.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", broken)
    with pytest.raises(KeyboardInterrupt):
        saver.save({"step": 2})
    assert saver.restore()["step"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]


def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(parts, tmp_path, monkeypatch):
    there = []
    monkeypatch.setattr(os, "fsync", lambda file: there.append((tmp_path / "run.pt").exists()))
    Checkpoint(tmp_path / "run.pt", "a", parts).save({"step": 1})
    assert there == [False] and (tmp_path / "run.pt").exists()


# --- stopped by a signal ---------------------------------------------------------------------------------------------

SIGNALS = [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]


def test_a_signal_is_noted_and_raised_after_the_block():
    before = [signal.getsignal(number) for number, _ in SIGNALS]
    for number, error in SIGNALS:
        done = []
        with pytest.raises(error, match="the message"), stopping("the message") as stop:
            signal.raise_signal(number)
            done.append(stop.number)
        assert done == [number]
        assert [signal.getsignal(number) for number, _ in SIGNALS] == before


def test_without_a_signal_or_with_another_error_the_handlers_are_put_back():
    before = [signal.getsignal(number) for number, _ in SIGNALS]
    with stopping(""):
        assert [signal.getsignal(number) for number, _ in SIGNALS] != before
    with pytest.raises(ZeroDivisionError), stopping(""):
        signal.raise_signal(signal.SIGTERM)
        1 / 0  # noqa: B018
    assert [signal.getsignal(number) for number, _ in SIGNALS] == before


def test_a_second_ctrl_c_acts_at_once_but_not_the_echo_of_the_first(monkeypatch):
    clock = iter([0.0, 0.1, 5.0])
    monkeypatch.setattr("mtbert.training.checkpoint.time.monotonic", lambda: next(clock))
    done = []
    with pytest.raises(KeyboardInterrupt), stopping(""):
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
            done.append(1)
    assert len(done) == 2


def test_what_is_ignored_and_other_threads_stay_as_they_are():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stopping("") as stop:
            signal.raise_signal(signal.SIGINT)
        assert stop.number is None
    finally:
        signal.signal(signal.SIGINT, before)
    done = []

    def block():
        with stopping("") as stop:
            done.append((stop.number, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert done == [(None, before)]


def test_where_the_checkpoint_cannot_be_written_a_signal_names_none_to_go_on_from(parts, tmp_path, caplog):
    (tmp_path / "folder").write_text("a file")  # where the folder of the checkpoint would be
    with pytest.raises(KeyboardInterrupt, match=r"run\.pt could not be written.*from the beginning"):
        for _ in Checkpoint(tmp_path / "folder" / "run.pt", "a", parts).guard(range(5), dict):
            signal.raise_signal(signal.SIGINT)
    assert "run.pt cannot be written" in caplog.text and "training goes on" not in caplog.text


def test_steps_without_a_path_are_not_guarded(parts):
    done = []
    with pytest.raises(KeyboardInterrupt):
        for step in Checkpoint(None, "a", parts).guard(range(5), dict):
            signal.raise_signal(signal.SIGINT)
            done.append(step)
    assert done == []


@pytest.mark.parametrize(
    "number, error, fields, after",
    [
        (*SIGNALS[0], {}, 7),
        (*SIGNALS[1], {"pretrain": "before"}, 3),
        (*SIGNALS[0], {"pretrain": "before"}, 9),
    ],
)
def test_training_goes_on_bit_for_bit_after_a_signal(
    run, tiny_config, tmp_path, monkeypatch, number, error, fields, after, assert_same_bits
):
    config, checkpoint = tiny_config.but(**fields), tmp_path / "checkpoint.pt"
    whole, update, steps = run(config), AdamW.step, []

    def counted(self, closure=None):
        steps.append(1)
        if len(steps) == after:
            signal.raise_signal(number)
        update(self, closure)

    monkeypatch.setattr(AdamW, "step", counted)
    with pytest.raises(error, match="the same call goes on"):
        run(config, checkpoint=checkpoint)
    assert len(steps) == after
    resumed = run(config, checkpoint=checkpoint)
    assert len(steps) == 10 + 5 * bool(fields)  # an epoch of pretraining, two of training
    assert_same_bits(whole, resumed)


@pytest.mark.parametrize("text", ["soon", "-1", "nan"])
def test_a_wrong_setting_is_named_before_training(monkeypatch, text):
    monkeypatch.setenv("MTBERT_CHECKPOINT_SECONDS", text)
    with pytest.raises(
        TrainingError, match=f"MTBERT_CHECKPOINT_SECONDS: a number from 0 upwards is needed, got '{text}'"
    ):
        Checkpoint(None, "a", {})


@pytest.mark.parametrize("text, seconds", [(None, 60.0), ("5", 5.0)])
def test_a_checkpoint_is_due_a_minute_after_the_last_one_or_as_it_is_set(parts, tmp_path, monkeypatch, text, seconds):
    monkeypatch.delenv("MTBERT_CHECKPOINT_SECONDS", raising=False)
    if text:
        monkeypatch.setenv("MTBERT_CHECKPOINT_SECONDS", text)
    clock = [1000.0]
    monkeypatch.setattr("mtbert.training.checkpoint.time.monotonic", lambda: clock[0])
    saver = Checkpoint(tmp_path / "run.pt", "a", parts)
    for begun in (1000.0, 1000.0 + seconds):
        clock[0] = begun + seconds - 0.1
        assert not saver.is_due
        clock[0] = begun + seconds
        assert saver.is_due
        saver.save({"step": 1})
        assert not saver.is_due
