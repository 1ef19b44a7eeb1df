"""The command line: what it prints, what it writes, how it fails."""

import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from mtbert import cli, sweep
from mtbert.data import load_table
from mtbert.paths import REPOSITORY
from mtbert.results import load_or_run
from mtbert.train import TrainingError


def mtbert(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


@pytest.fixture
def faulty_data(course_folder, tmp_path) -> Path:
    """The tiny data set with one bad row."""
    folder = shutil.copytree(course_folder, tmp_path / "faulty")
    with open(folder / "ids-sst-dev.csv", "a") as file:
        file.write("20\tx20\ta fine end\t9\n")
    return folder


def test_data_check_counts_rows_and_lists_rejects(faulty_data):
    result = mtbert("data", "check", "--data", faulty_data)
    assert result.exit_code == 0
    assert "ids-sst-train.csv: 40 rows, 40 accepted, 0 rejected" in result.stdout
    reject = "ids-sst-dev.csv: 21 rows, 20 accepted, 1 rejected\n  ids-sst-dev.csv:22 sentiment: 9 is outside 0..4"
    assert reject in result.stdout
    assert "sts-test-student.csv: 10 rows" in result.stdout


def test_data_check_strict_fails_on_a_reject(faulty_data, course_folder):
    assert mtbert("data", "check", "--data", faulty_data, "--strict").exit_code == 1
    assert mtbert("data", "check", "--data", course_folder, "--strict").exit_code == 0


def test_data_check_goes_on_after_a_missing_file(faulty_data):
    (faulty_data / "quora-train.csv").unlink()
    result = mtbert("data", "check", "--data", faulty_data)
    assert result.exit_code == 1
    assert "quora train: " in result.stderr and "quora-train.csv" in result.stderr
    assert "sts-dev.csv: 20 rows" in result.stdout


def test_data_check_without_data_checks_the_demo_corpus(monkeypatch):
    monkeypatch.setattr("mtbert.data.find_data", lambda path=None: None)
    result = mtbert("data", "check")
    assert result.exit_code == 0 and "checking the embedded demo corpus" in result.stdout
    assert result.stdout.count(" 0 rejected") == 12


def write_grid(folder: Path, config) -> Path:
    fields = ", ".join(f"{name}: {value}" for name, value in dict(encoder=config.encoder, batch_size=8).items())
    path = folder / "grid.yaml"
    path.write_text(f"base: {{corpus: course, epochs: 1, frozen: true, {fields}}}\nruns: {{one: {{}}, two: {{}}}}\n")
    return path


def test_train_trains_the_runs_that_were_asked_for(tiny_config, course_folder, tmp_path):
    grid = write_grid(tmp_path, tiny_config)
    result = mtbert("train", grid, "--only", "one", "--data", course_folder, "--threads", 1, "--device", "cpu")
    [config] = sweep.read_grid(grid)["one"]
    run = load_or_run(config, train_missing=False)
    assert result.stdout == f"one, seed 1: dev {run.score():.4f}\n"
    assert result.exit_code == 0


def test_train_reports_a_failed_run_and_fails(tiny_config, tmp_path, monkeypatch):
    grid = write_grid(tmp_path, tiny_config)

    def run_grid(runs, *args, **kwargs):
        assert list(runs) == ["one", "two"]
        yield "one", tiny_config, TrainingError("the loss is nan")
        yield "two", tiny_config, 0.0

    monkeypatch.setattr(sweep, "run_grid", run_grid)
    result = mtbert("train", grid)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "one, seed 1: failed: TrainingError('the loss is nan')", "two, seed 1: dev 0.0000"
    ]  # fmt: skip


def test_train_needs_a_run_of_that_name(tiny_config, tmp_path):
    result = mtbert("train", write_grid(tmp_path, tiny_config), "--only", "three")
    assert result.exit_code == 2 and "'three'" in result.stderr


@pytest.fixture
def calibrated(tiny_config, monkeypatch):
    """No machine is calibrated: an operation of a matrix product takes a nanosecond, the rest nothing."""
    from mtbert import speed

    prices = pd.Series(0.0, index=speed.KINDS)
    prices["products"] = 1e-9
    made = speed.Calibration(prices, pd.DataFrame(), {"base_mib": 300.0, "holes": 0.5, "variety": 1.0})
    monkeypatch.setattr(speed, "load_or_calibrate", lambda config, device, threads: made)


def test_plan_lists_what_fits(tiny_config, course_folder, tmp_path, calibrated):
    grid = write_grid(tmp_path, tiny_config)
    limits = ("--memory", "10GB", "--minutes", 30, "--data", course_folder)
    result = mtbert("plan", "--profile", grid, *limits)
    assert result.exit_code == 0
    first, header, *plans = result.stdout.splitlines()
    assert first.endswith("plans fit into 10GB and 30.0 minutes") or first.endswith(
        "plans fit into 10GB and 30 minutes"
    )
    assert header.split()[:3] == ["plan", "expected", "score"]
    assert {"one", "1-bert", "F1"} <= {line.split()[0] for line in plans}
    few = mtbert("plan", "--profile", grid, "--tasks", "sst,sts", "--memory", "1MB", "--data", course_folder)
    assert few.exit_code == 0 and few.stdout.startswith("0 of ") and few.stdout.count("\n") == 1


@pytest.fixture
def trained(tiny_config, course_data):
    return load_or_run(tiny_config.but(epochs=1, score_tasks=("quora",), pairs="sum"), device="cpu", progress=False)


def test_predict_writes_the_leaderboard_files(trained, course_data, tmp_path):
    out = tmp_path / "out"
    result = mtbert("predict", trained.run_id[:6], "--out", out, "--device", "cpu")
    assert result.exit_code == 0
    names = ["sst-dev-output.csv", "sst-test-output.csv", "para-dev-output.csv", "para-test-output.csv"]
    assert result.stdout.split() == [str(out / name) for name in names]
    for task, name in (("sst", "sst"), ("quora", "para")):
        for split in ("dev", "test"):
            written = pd.read_csv(out / f"{name}-{split}-output.csv")
            assert list(written.columns) == ["id", "predicted"]
            assert written["id"].tolist() == load_table(task, split, course_data)[0]["id"].tolist()
        dev = trained.predictions[trained.predictions["task"] == task]
        assert pd.read_csv(out / f"{name}-dev-output.csv")["predicted"].tolist() == dev["predicted"].tolist()


@pytest.mark.parametrize("prefix, message", [("zz", "none starts so; train it first"), ("", "2 start so: ")])
def test_predict_needs_one_model(trained, isolated, prefix, message):
    shutil.copytree(isolated / "cache" / "models" / trained.run_id, isolated / "cache" / "models" / "another")
    result = mtbert("predict", prefix)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["train", "none.yaml"], "error: none.yaml: not a readable YAML file"),
        (["data", "check", "--data", "no/such/folder"], "error: the data folder is 'no/such/folder'"),
        (["predict", "RUN", "--device", "cuda"], "error: device 'cuda': no GPU is available here"),
        (["plan", "--memory", "2XB"], "error: memory is '2XB'; write a number and a unit, such as 2GB"),
        (["plan", "--minutes", "0"], "error: minutes is 0.0; a number above 0 is needed"),
        (["plan", "--tasks", "sst,imdb"], "error: tasks: "),
        (["plan", "--profile", "none.yaml"], "error: none.yaml: not a readable YAML file"),
    ],
)
def test_errors_are_messages(trained, monkeypatch, arguments, message):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["mtbert", *(trained.run_id if word == "RUN" else word for word in arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert str(stop.value.code).startswith(message)


def test_errors_of_the_program_itself_keep_their_traceback(monkeypatch):
    def fault(path=None):
        raise ValueError("a fault")

    monkeypatch.setattr("mtbert.data.find_data", fault)
    monkeypatch.setattr(sys, "argv", ["mtbert", "data", "check"])
    with pytest.raises(ValueError, match="a fault"):
        cli.main()


def test_a_process_fails_with_one_line():
    command = [sys.executable, "-m", "mtbert", "data", "check", "--data", "no/such/folder"]
    process = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert process.returncode == 1 and process.stdout == ""
    assert process.stderr.count("\n") == 1 and process.stderr.startswith("error: the data folder is 'no/such/folder'")
