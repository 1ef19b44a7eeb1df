"""Two processes that train together do what one does; started again as a script, this file is one of the two."""

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import mtbert.multitask.model
from mtbert.bert import BertModel
from mtbert.cli import app
from mtbert.config import RunConfig
from mtbert.multitask import MultitaskBert
from mtbert.parallel import ALONE, LauncherError, Processes, connect
from mtbert.results import load_or_run
from mtbert.training import Trainer, load_corpus, predict_table, train
from mtbert.training.loop import TrainedRun

SIZES = {"sst": 2, "quora": 7, "sts": 3}
COMMON = dict(
    corpus="course", tasks=tuple(SIZES), batch_size=SIZES, steps_per_epoch=10, epochs=2, learning_rate=1e-4, keep="last"
)
METHODS = {
    "sum": {"scheme": "unified", "weighting": "uncertainty", "soft_sharing": "l2", "plan": "S1 I1"},
    "pcgrad": {"scheme": "unified", "gradients": "pcgrad", "max_grad_norm": 1.0, "weighting": "loss_ratio"},
    "gem": {"gradients": "gem", "sampling": "round_robin", "memory_size": 9, "memory_batch": 1},
    "taught": {"scheme": "unified", "teachers": [{"corpus": "course", "tasks": [*SIZES]}], "distil": "annealed"},
}
STOPPED_AT = 7
EVAL_TOKENS = 40  # several batches of each dev split
TOLERANCE = dict(rtol=0, atol=1e-5)


def config_of(encoder: str, method: str) -> RunConfig:
    return RunConfig.from_params(dict(encoder=encoder, head_dropout=0, **COMMON, **METHODS[method]))


def dropping_out(encoder: str) -> RunConfig:
    return RunConfig(encoder=encoder, attention_dropout=0.1, **COMMON, plan="F1 S1", scheme="unified")


def trained(config: RunConfig, data: Path, **options) -> TrainedRun:
    corpus, draw = load_corpus(config, data), torch.Generator().manual_seed(1)
    width = {"sst": (5,)}
    teachers = {
        task: torch.randn(len(corpus.train[task]), *width.get(task, ()), generator=draw)
        for task in config.teachers_by_task
    }
    return train(config, corpus, device="cpu", progress=False, teachers=teachers, **options)


def of_run(run: TrainedRun) -> dict:
    curve = run.curve.drop(columns=["seconds", "cpu_seconds"])
    return {"weights": run.model.state_dict(), "predictions": run.predictions, "curve": curve, "cost": run.cost}


# --- one of the two processes ----------------------------------------------------------------------------------------


def work(folder: Path, encoder: str, data: Path) -> None:
    """Train some runs and write what they gave, a file for each process."""
    index, written, found = int(os.environ["RANK"]), [], {}
    mtbert.multitask.model.EVAL_TOKENS = EVAL_TOKENS

    def audit(event: str, arguments: tuple) -> None:
        is_file = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (is_file or event in ("os.mkdir", "os.rename", "os.remove")) and str(folder) in str(arguments[0]):
            written.append(str(arguments[0]))

    sys.addaudithook(audit)
    grid = folder / f"{index}.yaml"
    grid.write_text(json.dumps({"runs": {"one": dropping_out(encoder).model_dump(mode="json", exclude_defaults=True)}}))
    written.clear()
    app(["train", str(grid), "--data", str(data), "--device", "cpu"], standalone_mode=False)
    found["stored"] = load_or_run(dropping_out(encoder), data, device="cpu")
    found["writes"] = len(written)
    student = dropping_out(encoder).but(teachers=[dropping_out(encoder).but(seed=2)])
    found["student"] = load_or_run(student, data, folder / "others", device="cpu")
    for name in METHODS:
        found[name] = of_run(trained(config_of(encoder, name), data))

    whole = Trainer.step

    def stopped(trainer: Trainer, number: int, rows: dict) -> dict:
        if number == STOPPED_AT and index == 1:
            signal.raise_signal(signal.SIGTERM)
        return whole(trainer, number, rows)

    Trainer.step, checkpoint = stopped, folder / "checkpoint.pt"
    try:
        trained(dropping_out(encoder), data, checkpoint=checkpoint)
    except SystemExit as stop:
        found["stop"] = str(stop)
    Trainer.step = whole
    found["resumed"] = of_run(trained(dropping_out(encoder), data, checkpoint=checkpoint))
    torch.save(found, folder / f"{index}.pt")


@pytest.fixture(scope="module")
def encoder(tiny_encoder, tmp_path_factory) -> str:
    """The tiny encoder without dropout."""
    folder = tmp_path_factory.mktemp("encoder") / "without-dropout"
    shutil.copytree(tiny_encoder, folder)
    sizes = json.loads((folder / "config.json").read_text())
    sizes |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(sizes))
    (folder / "SHA256SUMS").unlink()  # the change is on purpose
    return str(folder)


@pytest.fixture(scope="module")
def two(encoder, course_folder, tmp_path_factory) -> tuple[Path, list[dict]]:
    """What the two processes found, and their folder."""
    folder = tmp_path_factory.mktemp("two")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    together = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    together |= {f"MTBERT_{name}": str(folder / name.lower()) for name in ("CACHE", "RESULTS")}
    processes = []
    for index in ("0", "1"):
        own = os.environ | together | {"RANK": index, "LOCAL_RANK": index}
        command = [sys.executable, __file__, str(folder), encoder, str(course_folder)]
        processes.append(subprocess.Popen(command, env=own, stderr=subprocess.PIPE, text=True))
    try:
        errors = [process.communicate(timeout=300)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    return folder, [torch.load(folder / f"{index}.pt", weights_only=False) for index in (0, 1)]


# --- what the two are compared with ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one(encoder, course_folder) -> dict[str, dict]:
    """What one process trains, by method."""
    return {method: of_run(trained(config_of(encoder, method), course_folder)) for method in METHODS}


@pytest.mark.parametrize("method", METHODS)
def test_two_processes_equal_one(two, one, encoder, method):
    one, (first, second) = one[method], (found[method] for found in two[1])
    moved = (
        one["weights"]["encoder.embeddings.0.word.weight"] - BertModel.from_pretrained(encoder).embeddings.word.weight
    )
    assert moved.abs().max() > 5e-4, "a step of 1e-5 is small beside what 20 steps change"
    torch.testing.assert_close(first["weights"], one["weights"], **TOLERANCE)
    torch.testing.assert_close(second["weights"], first["weights"], rtol=0, atol=0)
    assert first["curve"].equals(second["curve"]) and first["predictions"].equals(second["predictions"])
    numbers = one["curve"].select_dtypes("number").columns
    np.testing.assert_allclose(first["curve"][numbers], one["curve"][numbers], atol=1e-5)
    assert first["cost"]["processes"] == 2 and "processes" not in one["cost"]


@pytest.mark.parametrize("method", METHODS)
def test_accumulated_parts_equal_the_whole_batch(one, encoder, course_folder, method):
    parts = trained(config_of(encoder, method).but(accumulation=2), course_folder)
    torch.testing.assert_close(parts.model.state_dict(), one[method]["weights"], **TOLERANCE)


def test_the_first_process_alone_writes(two):
    folder, (first, second) = two
    assert first["writes"] and not second["writes"]
    assert len(list((folder / "results" / "runs").iterdir())) == 1
    assert first["stored"].run_id == second["stored"].run_id and first["stored"].cost["processes"] == 2
    assert first["stored"].cost["feature_seconds"] == second["stored"].cost["feature_seconds"]  # both read it
    assert first["stored"].scores.equals(second["stored"].scores)


def test_two_processes_train_a_missing_teacher_and_its_student(two):
    folder, (first, second) = two
    [teacher] = first["student"].config.teachers
    stored = {path.name.split("-")[0] for path in (folder / "others" / "runs").iterdir()}
    assert stored == {teacher.digest, first["student"].config.digest}
    assert first["student"].scores.equals(second["student"].scores)


def test_a_signal_to_one_stops_both_and_both_go_on(two):
    folder, processes = two
    undisturbed = MultitaskBert.load(folder / "cache" / "models" / processes[0]["stored"].run_id).state_dict()
    for found in processes:
        assert "goes on from checkpoint.pt" in found["stop"]
        torch.testing.assert_close(found["resumed"]["weights"], undisturbed, rtol=0, atol=0)


def test_another_number_of_processes_goes_on_with_a_warning(two, encoder, course_folder, caplog):
    with caplog.at_level(logging.WARNING):
        run = trained(dropping_out(encoder), course_folder, checkpoint=two[0] / "checkpoint.pt")
    assert "processes that go on: 1; that saved the checkpoint: 2" in caplog.text and run.cost["processes"] == 2


# --- the parts -------------------------------------------------------------------------------------------------------


def test_an_evaluation_takes_each_example_once(run, tiny_config, monkeypatch):
    monkeypatch.setattr(mtbert.multitask.model, "EVAL_TOKENS", 20)
    model, lengths = run(tiny_config).model, np.arange(20, 3, -1)
    shares = [list(model.in_batches(lengths, len, slice(index, None, 3))) for index in range(3)]
    assert all(len(share) > 3 for share in shares)
    assert sorted(row for share in shares for part, _ in share for row in part) == list(range(len(lengths)))


def test_predictions_are_those_of_the_whole_table(two, encoder, course_folder, monkeypatch):
    monkeypatch.setattr(mtbert.multitask.model, "EVAL_TOKENS", EVAL_TOKENS)
    found, config = two[1][1]["sum"], config_of(encoder, "sum")
    model = MultitaskBert(config).eval()
    model.load_state_dict(found["weights"])
    for task, table in load_corpus(config, course_folder).dev.items():
        part = found["predictions"].query("task == @task").reset_index(drop=True)
        assert part.equals(predict_table(model, task, table, "dev", "cpu").astype(part.dtypes))


@pytest.mark.parametrize("size, shares", [(8, [0.5, 0.5]), (7, [4 / 7, 3 / 7]), (1, [1, 0])])
def test_parts_of_a_batch(size, shares):
    rows = np.arange(10, 10 + size)
    parts, found = zip(*(Processes(index, 2).part(rows) for index in (0, 1)), strict=True)
    assert list(found) == shares and all(len(part) for part in parts)
    assert np.concatenate([part for part, share in zip(parts, found, strict=True) if share]).tolist() == rows.tolist()


def test_draws_differ_between_processes_and_steps():
    def draw(process: Processes, step: int) -> float:
        process.seed_step(1, step)
        return torch.rand(()).item()

    draws = [draw(Processes(index, 2), step) for index in (0, 1) for step in (1, 2)]
    assert len(set(draws)) == 4 and draw(Processes(1, 2), 2) == draws[-1]
    before = torch.get_rng_state()
    ALONE.seed_step(1, 1)
    assert torch.equal(torch.get_rng_state(), before)


if __name__ == "__main__":
    work(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))


@pytest.mark.parametrize("left, message", [("2", "WORLD_SIZE is 2, but RANK, MASTER_ADDR, MASTER_PORT of a launcher"),
                                           ("two", "a number of processes is needed, got 'two'")])  # fmt: skip
def test_a_leftover_of_a_launcher_is_named(monkeypatch, left, message):
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", left)
    with pytest.raises(LauncherError, match=message):
        connect(torch.device("cpu"))
