"""The command line: what it prints, what it writes, how it fails."""

import io
import logging
import os
import re
import shutil
import sys
import textwrap
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import typer

from mtbert.bert.hub import CheckpointError
from mtbert.config import RunConfig
from mtbert.data.tables import DataError, load_table
from mtbert.data.tasks import TASKS, read_tasks
from mtbert.paths import REPOSITORY
from mtbert_lab import cli, sweep
from mtbert_lab.cost.forecast import Forecast, cost_key, predict_costs
from mtbert_lab.cost.time import Speed
from mtbert_lab.hints import for_command_line
from mtbert_lab.paths import results_dir
from mtbert_lab.store.grids import read_grid, read_grids
from mtbert_lab.store.loading import load_model
from mtbert_lab.store.models import model_folder

RUN = dict(learning_rate=1e-3, score_tasks=("quora",), pairs="sum")  # of the run in `stored`


def test_version(mtbert):
    assert mtbert("--version").stdout == f"mtbert {version('mtbert')}\n"


@pytest.fixture
def faulty_data(course_folder, tmp_path) -> Path:
    """The tiny data set with one bad row."""
    folder = shutil.copytree(course_folder, tmp_path / "faulty")
    with open(folder / "ids-sst-dev.csv", "a") as file:
        file.write("20\tx20\ta fine end\t9\n")
    return folder


def test_data_check_counts_rows_and_lists_rejects(mtbert, faulty_data):
    result = mtbert("data", "check", "--data", faulty_data)
    assert result.exit_code == 0
    assert "ids-sst-train.csv: 40 rows, 40 accepted, 0 rejected" in result.stdout
    reject = "ids-sst-dev.csv: 21 rows, 20 accepted, 1 rejected\n  ids-sst-dev.csv:22 sentiment: 9 is outside 0..4"
    assert reject in result.stdout
    assert "sts-test-student.csv: 10 rows" in result.stdout


def test_data_check_says_what_labels_there_are(mtbert, course_folder):
    result = mtbert("data", "check", "--data", course_folder, "--task", "quora", "--task", "sts")
    labels = load_table("quora", "dev", course_folder)[0]["label"]
    lines = result.stdout.splitlines()
    assert f"  rows of each class: 0 {(labels == 0).sum()}, 1 {(labels == 1).sum()}" in lines
    numbers = load_table("sts", "dev", course_folder)[0]["label"]
    assert f"  labels: {numbers.min():g} to {numbers.max():g}, mean {numbers.mean():.4g}" in lines
    assert [line.split(":")[0] for line in lines if not line.startswith(" ")] == [
        f"{task} {split}" for task in ("quora", "sts") for split in ("train", "dev", "test")
    ]
    wrong = mtbert("data", "check", "--task", "qora").exception
    assert str(wrong).startswith("unknown task 'qora'; known are sst, ") and "MTBERT_TASKS" in str(wrong)


def test_no_run_trains_where_many_rows_are_rejected(
    mtbert, mostly_rejected, tiny_config, tmp_path, threads_as_workers, run_of
):
    message = (
        r"ids-sst-train.csv: \d+ of 40 rows are rejected, more than 5%; no row is left of class 4\n  sentiment: 9 is"
    )
    check = mtbert("data", "check", "--data", mostly_rejected, "--task", "sst")
    assert check.exit_code == 1 and re.search(message, check.stderr)
    with pytest.raises(DataError, match=message):
        run_of(tiny_config, data=mostly_rejected)
    grid, run = write_grid(tmp_path, tiny_config), ("--only", "one", "--in-order", "--data", mostly_rejected)
    assert re.search(f"one: .*{message}", str(mtbert("train", grid, *run).exception))
    assert mtbert("train", grid, *run, "--accept-rejects", "--device", "cpu", "--threads", 1).exit_code == 0
    assert mtbert("train", grid, *run).stdout == "1 of 1 are stored already\n"


def test_data_check_says_where_dev_is_trained_on(mtbert, course_folder, tmp_path):
    folder = shutil.copytree(course_folder, tmp_path / "leaking")
    train = (folder / "quora-train.csv").read_text().splitlines()
    fields = train[1].split("\t")
    rows = [f"{i}\tq{i}\t{first}\t{second}\t1" for i, (first, second) in enumerate([fields[2:4], "ab", fields[3:1:-1]])]
    (folder / "quora-dev.csv").write_text("\n".join([train[0], *rows, ""]))
    checked = mtbert("data", "check", "--data", folder, "--task", "quora").stdout
    assert "  1 of 3 examples are in train, too, and say little of new ones" in checked.splitlines()
    assert checked.count("in train, too") == 1, "of dev"


def test_data_check_goes_on_after_a_missing_file(mtbert, faulty_data):
    (faulty_data / "quora-train.csv").unlink()
    result = mtbert("data", "check", "--data", faulty_data)
    assert result.exit_code == 1
    assert "quora train: " in result.stderr and "quora-train.csv" in result.stderr
    assert "sts-dev.csv: 20 rows" in result.stdout


def test_data_check_without_data_checks_the_demo_corpus(mtbert):
    result = mtbert("data", "check")
    assert result.exit_code == 0 and "checking the embedded demo corpus" in result.stdout
    assert result.stdout.count(" 0 rejected") == 12


def test_data_check_of_a_task_of_ones_own_needs_no_other_data(mtbert, monkeypatch, topics_folder):
    monkeypatch.setitem(TASKS, "topics", read_tasks(topics_folder)["topics"])
    result = mtbert("data", "check", "--task", "topics")
    assert result.exit_code == 0 and "demo corpus" not in result.stdout
    lines = result.stdout.splitlines()
    assert "topics train: topics-train.csv: 24 rows, 24 accepted, 0 rejected" in lines
    assert lines.count("  rows of each class: sport 12, weather 12") == 2


def test_data_check_runs_the_code_of_ones_own(mtbert, tmp_path):
    code = tmp_path / "own.py"
    code.write_text("raise SystemExit(7)\n")
    assert mtbert("data", "check", "--import", code).exit_code == 7
    assert mtbert("claims", "--import", code).exit_code == 7


def test_help_has_a_line_for_each_command(mtbert):
    *_, commands = mtbert("-h").stdout.partition("Commands:\n")
    lines = commands.splitlines()
    assert [line.split()[0] for line in lines] == list(typer.main.get_command(cli.app).commands)
    assert all(line.endswith(".") and not line.endswith("...") for line in lines), "no sentence is cut"
    assert mtbert("data", "check", "-h").stdout == mtbert("data", "check", "--help").stdout


def test_the_grid_in_the_help_of_train_can_be_read(mtbert, tmp_path):
    text = mtbert("train", "-h").stdout
    grid = text[text.index("  base: ") : text.index("  Fields are")]
    (tmp_path / "grid.yaml").write_text(textwrap.dedent(grid))
    runs = read_grid(tmp_path / "grid.yaml")
    assert [len(configs) for configs in runs.values()] == [2, 1, 2] and runs["student"][0].teachers


def write_grid(folder: Path, config) -> Path:
    fields = ", ".join(f"{name}: {value}" for name, value in dict(encoder=config.encoder, batch_size=8).items())
    path = folder / "grid.yaml"
    path.write_text(f"base: {{corpus: course, epochs: 1, frozen: true, {fields}}}\nruns: {{one: {{}}, two: {{}}}}\n")
    return path


def test_a_deleted_run_is_trained_again(mtbert, tiny_config, course_folder, tmp_path, threads_as_workers, run_of):
    grid = write_grid(tmp_path, tiny_config)
    asked = ("train", grid, "--data", course_folder, "--threads", 1, "--device", "cpu")
    assert mtbert(*asked).exit_code == 0
    [[config], _] = read_grid(grid).values()
    folder = results_dir() / "runs" / run_of(config, train_missing=False).run_id
    refused = mtbert("runs", "sts", "--delete", folder.name)
    assert refused.exit_code == 2 and folder.exists(), "a text beside --delete would be ignored"
    deleted = mtbert("runs", "--delete", folder.name)
    assert f"{folder}: deleted" in deleted.stdout and not folder.exists()
    result = mtbert(*asked, "--only", "one")
    assert "[1 of 1] one, seed 1: dev " in result.stdout and folder.exists()


def test_train_reports_a_failed_run_and_fails(mtbert, tiny_config, course_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("mtbert_lab.sweep.train_missing", lambda *args: {"grid: one, seed 1": "the loss is nan"})
    result = mtbert("train", write_grid(tmp_path, tiny_config), "--in-order", "--data", course_folder)
    assert result.exit_code == 1
    assert result.stderr.splitlines() == ["1 of 1 runs failed:", "grid: one, seed 1: the loss is nan"]


@pytest.mark.parametrize(
    "options, threads",
    [
        ([], 16),
        (["--workers", 2], 8),
        (["--workers", 16], 8),  # no more work than there are runs
        (["--workers", 2, "--only", "one"], 16),
        (["--workers", 2, "--threads", 3], 3),
        (["--scheduler", "tcp://10.0.0.1:8786"], 1),
    ],
    ids=str,
)
def test_workers_share_the_cores(mtbert, tiny_config, course_folder, tmp_path, monkeypatch, options, threads):
    """On 16 cores, with two runs to train."""
    told = []
    monkeypatch.setattr("mtbert_lab.sweep.train_missing", lambda runs, workers, threads, *how: told.append(threads))
    monkeypatch.setattr("torch.get_num_threads", lambda: 16)
    grid = write_grid(tmp_path, tiny_config)
    grid.write_text(grid.read_text().replace("two: {}", "two: {epochs: 2}"))
    assert mtbert("train", grid, "--in-order", "--data", course_folder, *options).exit_code == 0
    assert told == [threads]


@pytest.mark.parametrize(
    ("option", "workers", "scheduler"), [("--workers=2", 2, None), ("--scheduler=there", 1, "there")]
)
def test_train_hands_on_its_options(
    mtbert, tiny_config, course_folder, tmp_path, monkeypatch, option, workers, scheduler
):
    told = []
    monkeypatch.setattr("mtbert_lab.sweep.train_missing", lambda runs, *how: told.append(how) or {})
    options = ["--threads", "3", "--device", "cpu", option]
    grid = write_grid(tmp_path, tiny_config)
    assert mtbert("train", grid, "--in-order", "--data", course_folder, *options).exit_code == 0
    assert told == [(workers, 3, course_folder, "cpu", scheduler)]


def test_the_workers_of_a_scheduler_are_its_own(mtbert, tiny_config, tmp_path):
    options = ["--workers", 2, "--scheduler", "tcp://10.0.0.1:8786"]
    result = mtbert("train", write_grid(tmp_path, tiny_config), *options)
    assert result.exit_code == 2 and "the workers of --scheduler are its own" in result.output


def test_own_code_is_of_the_report_of_a_grid_alone(mtbert, tmp_path, monkeypatch):
    monkeypatch.setattr("mtbert_lab.report.build.build_report", lambda *args, **options: pytest.fail("built"))
    monkeypatch.setattr("mtbert_lab.own_code.imported", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "of_no_grid.py").write_text("")
    result = mtbert("report", "--import", tmp_path / "of_no_grid.py")
    assert result.exit_code == 2 and "is for runs of a --grid" in result.output


def test_a_dry_run_lists_the_runs_and_trains_none(
    mtbert, tiny_config, course_folder, tmp_path, speeds, isolated, run_of
):
    speeds.speed = Speed(0.1, 0.1 / 3)
    grid = write_grid(tmp_path, tiny_config)
    more = tmp_path / "more.yaml"
    more.write_text(grid.read_text().replace("two: {}", "two: {epochs: 9}"))
    [config] = read_grid(grid)["one"]
    run = run_of(config, data=course_folder)
    result = mtbert("train", grid, more, "--dry-run", "--data", course_folder, "--workers", 2)
    assert result.exit_code == 0
    rows = result.stdout.splitlines()[1:]
    [long] = look_up_ids(more, course_folder)[1:]
    [config] = read_grid(more)["two"]
    cost = predict_costs([("two", config)], data=course_folder)[cost_key(config)]
    assert [row.split()[:6] for row in rows[:2]] == [
        ["more:", "two", "1", long, "to", "train"],
        ["grid:", "one", "1", run.run_id, "stored"],
    ]
    assert rows[0].split()[6:] == [f"{cost.minutes:.1f}", f"{cost.mib:.0f}"] and cost.minutes > 1
    assert rows[2] == "1 of 2 are stored already" and rows[3].startswith("1 to train: ")
    assert [path.name for path in (isolated / "results" / "runs").iterdir()] == [run.run_id]


def look_up_ids(grid: Path, data: Path) -> list[str]:
    return [run.run_id for run in sweep.look_up(read_grids([grid]), data)]


def test_the_longest_runs_start_first(mtbert, tiny_config, course_folder, tmp_path, speeds, monkeypatch):
    started = []
    monkeypatch.setattr("mtbert_lab.sweep.train_missing", lambda runs, *args: started.extend(runs))
    monkeypatch.setattr(
        "mtbert_lab.cost.forecast.Forecast", lambda run, *args: 1 / 0 if run.pooling == "cls" else Forecast(run, *args)
    )
    grid = tmp_path / "grid.yaml"
    runs = "{short: {epochs: 1}, unknown: {pooling: cls}, long: {epochs: 9}}"
    grid.write_text(f"base: {{corpus: course, encoder: {tiny_config.encoder}, batch_size: 8}}\nruns: {runs}\n")
    in_order = ["short", "unknown", "long"]
    for options, names in (
        (["--workers", 2], ["unknown", "long", "short"]),
        (["--workers", 2, "--in-order"], in_order),
        ([], in_order),  # one after the other they take as long in any order
        (["--workers", 3], in_order),
        (["--scheduler", "tcp://127.0.0.1:1"], ["unknown", "long", "short"]),
    ):
        started.clear()
        assert mtbert("train", grid, "--data", course_folder, "--threads", 1, *options).exit_code == 0
        assert [run.name for run in started] == names
    speeds.asked.clear()
    one = ("--only", "short", "--scheduler", "tcp://127.0.0.1:1")
    assert mtbert("train", grid, "--data", course_folder, *one).exit_code == 0 and not speeds.asked


def test_rejected_rows_are_logged_once(mtbert, tiny_config, faulty_data, tmp_path, speeds, caplog):
    grid = tmp_path / "grid.yaml"
    fields = f"corpus: course, encoder: {tiny_config.encoder}, train_rows: 10"
    grid.write_text(f"base: {{{fields}}}\nseeds: [1, 2]\nruns: {{one: {{}}}}\n")
    with caplog.at_level(logging.WARNING):
        assert mtbert("train", grid, "--dry-run", "--data", faulty_data).exit_code == 0
    assert caplog.text.count("sentiment: 9 is outside 0..4 (1 row, the first in line 22)") == 1


@pytest.mark.parametrize(
    "stop, code, said",
    [
        (KeyboardInterrupt("the same command goes on"), 130, "the same command goes on"),
        (SystemExit("the same command goes on"), 143, "the same command goes on"),
        (KeyboardInterrupt(), 130, "stopped at once"),
    ],
)
def test_the_exit_code_of_a_stopped_sweep_is_that_of_its_signal(
    mtbert, tiny_config, course_folder, tmp_path, monkeypatch, stop, code, said
):
    def train_missing(*args):
        raise stop

    monkeypatch.setattr("mtbert_lab.sweep.train_missing", train_missing)
    result = mtbert("train", write_grid(tmp_path, tiny_config), "--in-order", "--data", course_folder)
    assert result.exit_code == code and result.stderr == f"{said}\n"


def test_train_needs_a_run_of_that_name(mtbert, tiny_config, tmp_path):
    result = mtbert("train", write_grid(tmp_path, tiny_config), "--only", "three")
    assert result.exit_code == 2 and "'three'" in result.stderr


def test_plan_lists_what_fits(mtbert, tiny_config, course_folder, tmp_path, speeds):
    grid = write_grid(tmp_path, tiny_config)
    limits = ("--memory", "10GB", "--minutes", 30, "--data", course_folder)
    result = mtbert("plan", "--grid", grid, *limits)
    assert result.exit_code == 0
    first, header, *plans = result.stdout.splitlines()
    assert first == "2 of 2 plans fit into 10GB and 30 minutes"
    assert header.split()[:3] == ["plan", "expected", "score"]
    assert {line.split()[0] for line in plans} == {"one", "two"}
    few = mtbert("plan", "--grid", grid, "--memory", "1MB", "--data", course_folder)
    first, *others = few.stdout.splitlines()
    assert few.exit_code == 0 and first.startswith("0 of 2 ")
    assert all(re.search(r"(one|two) does not fit: needs \d\.\d\d GB of memory, 0.00 are allowed", o) for o in others)


def test_predict_writes_the_leaderboard_files(mtbert, stored, course_data, tmp_path):
    out = tmp_path / "out"
    result = mtbert("predict", stored.run_id[:6], "--out", out, "--device", "cpu")
    assert result.exit_code == 0
    names = ["sst-dev-output.csv", "sst-test-output.csv", "quora-dev-output.csv", "quora-test-output.csv"]
    assert result.stdout.split() == [str(out / name) for name in names]
    for task in ("sst", "quora"):
        for split in ("dev", "test"):
            written = pd.read_csv(out / f"{task}-{split}-output.csv")
            assert list(written.columns) == ["id", "predicted"]
            assert written["id"].tolist() == load_table(task, split, course_data)[0]["id"].tolist()
        dev = stored.predictions[stored.predictions["task"] == task]
        assert pd.read_csv(out / f"{task}-dev-output.csv")["predicted"].tolist() == dev["predicted"].tolist()


def test_predict_prints_texts_and_rows_of_a_file(mtbert, stored, tmp_path):
    model = load_model(stored.run_id)
    result = mtbert("predict", stored.run_id[:6], "--task", "sst", "--text", "a dull day", "--text", "a bright day")
    assert result.exit_code == 0, result.output
    expected = model.predict(["a dull day", "a bright day"], "sst")
    written = pd.read_csv(io.StringIO(result.stdout))
    assert written["predicted"].tolist() == expected["predicted"].tolist()
    assert written["confidence"].tolist() == pytest.approx(expected["confidence"].tolist(), abs=1e-4)
    pair = mtbert("predict", stored.run_id[:6], "--task", "quora", "--text", "who is it", "--text", "who was it")
    assert len(pd.read_csv(io.StringIO(pair.stdout))) == 1
    file = tmp_path / "in.csv"
    file.write_text('sentence2,note,sentence1\n"who, then",x,where is it\n,x,why\nwho was it,x,who is it\n')
    result = mtbert("predict", stored.run_id[:6], "--task", "quora", "--file", file)
    assert "in.csv:3 sentence2: missing or empty" in result.stderr and "are predicted as they are" in result.stderr
    rows = pd.read_csv(io.StringIO(result.stdout))
    assert rows["sentence1"].tolist() == ["where is it", "why", "who is it"], "a row for every row"
    pairs = [("where is it", "who, then"), ("why", ""), ("who is it", "who was it")]
    expected = model.predict(pairs, "quora")
    assert rows["predicted"].tolist() == expected["predicted"].tolist()


def test_a_file_is_read_as_lines_where_that_is_asked_for(mtbert, stored, tmp_path):
    (tmp_path / "in.csv").write_text("sentence,note\na dull day,x\n")
    lines = mtbert("predict", stored.run_id, "--task", "sst", "--file", tmp_path / "in.csv", "--lines")
    assert pd.read_csv(io.StringIO(lines.stdout))["sentence"].tolist() == ["sentence,note", "a dull day,x"]


def test_what_is_no_text_is_named_before_anything_is_printed(stored, monkeypatch, capsys):
    capsys.readouterr()
    asked = ["mtbert", "predict", stored.run_id, "--task", "sst", "--text", os.fsdecode(b"a caf\xe9")]
    monkeypatch.setattr(sys, "argv", asked)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == r"error: texts: number 0 has 'a caf\udce9', which is no text in UTF-8"
    assert capsys.readouterr().out == ""


def test_predict_takes_one_source(mtbert, stored, tmp_path):
    (tmp_path / "in.csv").write_text("sentence\na dull day\n")
    result = mtbert("predict", stored.run_id, "--text", "a bright day", "--file", tmp_path / "in.csv")
    assert result.exit_code == 2 and result.stdout == "" and "--text and --file exclude" in result.stderr
    assert mtbert("predict", stored.run_id, "--out", tmp_path, "--probabilities").exit_code == 2


@pytest.fixture
def piped(mtbert):
    """piped(text, run, *options): the table that the command predicts of a text that is piped in."""

    def piped(text: str, run, *options) -> pd.DataFrame:
        result = mtbert("predict", run.run_id, *options, input=text)
        assert result.exit_code == 0, (result.output, result.exception)
        return pd.read_csv(io.StringIO(result.stdout))

    return piped


@pytest.mark.parametrize("options", [[], ["--file", "-"], ["--file", "/dev/stdin"]])
def test_predict_reads_what_is_piped_in(piped, stored, options, monkeypatch, tmp_path):
    """Lines of text, or a table; no file is written."""
    monkeypatch.chdir(tmp_path)
    texts = ['"dull" a day, at least', "a bright day"]
    single = piped("\n".join(texts), stored, "--task", "sst", *options)
    expected = load_model(stored.run_id).predict(texts, "sst")
    assert single["sentence"].tolist() == texts
    assert single["predicted"].tolist() == expected["predicted"].tolist()
    pairs = (
        'sentence2,sentence1\nwhere is he,"where is it"\n',
        '{"sentence2": "where is he", "sentence1": "where is it"}\n',
    )
    tables = [piped("where is it\twhere is he\n", stored, "--task", "quora", *options)]
    tables += [piped(text, stored, "--task", "quora", "--table", *options) for text in pairs]
    assert [table["id"].tolist() for table in tables] == [["test-1"], ["test-2"], ["test-1"]], "line numbers"
    assert all(table.drop(columns="id").equals(tables[0].drop(columns="id")) for table in tables)
    assert not list(tmp_path.iterdir())


def test_a_carriage_return_inside_a_text_begins_no_row(piped, stored):
    lines = ["a cold\rday", 'a "warm" day', "a day, at last"]
    found = piped("\n".join(lines), stored, "--task", "sst")
    assert found["sentence"].tolist() == lines and found["confidence"].dtype == float


def test_the_ids_of_a_table_may_stand_in_another_column(mtbert, piped, stored):
    options = ("--task", "sst", "--table", "--id-column", "ticket")
    found = piped("ticket,sentence\nT 1,a dull day\nT2,\n", stored, *options)
    assert found["id"].tolist() == ["T 1", "T2"] and list(found.columns)[:3] == ["id", "sentence", "predicted"]
    lines = mtbert("predict", stored.run_id, *options[:2], *options[3:], input="a dull day\n")
    assert for_command_line(lines.exception).startswith("--id-column 'ticket' is of a table; lines of text are none")
    for ignored in (["--id-column", "ticket"], ["--table"], ["--lines"]):
        assert mtbert("predict", stored.run_id, "--text", "a dull day", *ignored).exit_code == 2


def test_a_leaderboard_file_has_a_row_for_every_id_and_says_what_training_would_reject(
    mtbert, stored, course_folder, tmp_path
):
    data = shutil.copytree(course_folder, tmp_path / "data")
    file = data / "ids-sst-test-student.csv"
    header = file.read_text().splitlines()[0]
    rows = ["0\ta1\ta dull day", "1\ta2\t", "2\ta3\tNA", "3\ta1\ta dull day"]
    file.write_text("\n".join([header, *rows, ""]))
    result = mtbert("predict", stored.run_id, "--task", "sst", "--out", tmp_path, "--data", data, "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert pd.read_csv(tmp_path / "sst-test-output.csv")["id"].tolist() == ["a1", "a2", "a3", "a1"]
    assert "sst test: ids-sst-test-student.csv: 4 rows, 4 accepted, 0 rejected; 3 of the accepted" in result.stderr
    assert "ids-sst-test-student.csv:5 id: same id as line 2" in result.stderr and "sst dev" not in result.stderr


def test_predict_without_anything_says_what_is_missing(mtbert, stored):
    error = mtbert("predict", stored.run_id, "--task", "sst").exception
    assert for_command_line(error).startswith("nothing is piped in; --text")


@pytest.mark.parametrize(
    "streams",
    [{"stdin": SimpleNamespace(isatty=lambda: True)}, {"stdin": None, "stdout": None}],
    ids=["a terminal", "closed streams"],
)
def test_predict_where_nothing_is_piped_in_says_what_may_be_given(monkeypatch, capsys, streams):
    """No text is waited for."""
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    monkeypatch.setattr(sys, "argv", ["mtbert", "predict", "0123"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert "nothing to predict; give --text, --file or --out, or pipe texts in\n" in capsys.readouterr().err


def test_predict_shows_the_probabilities_of_all_classes(piped, stored):
    found = piped("a dull day\na bright day\n", stored, "--task", "sst", "--probabilities")
    probabilities = found[[f"p_{label}" for label in range(5)]].to_numpy()
    assert probabilities.sum(1) == pytest.approx(np.ones(2), abs=1e-3)
    assert probabilities.argmax(1).tolist() == found["predicted"].tolist()
    assert probabilities.max(1).tolist() == pytest.approx(found["confidence"].tolist())
    pair = piped("where is it\twhere is he\n", stored, "--task", "quora", "--probabilities")
    assert pair["p_1" if pair["predicted"][0] else "p_0"][0] == pytest.approx(pair["confidence"][0], abs=2e-4)


def test_a_number_is_predicted_without_confidence_and_probabilities(mtbert, tiny_config, course_data, run_of):
    run = run_of(tiny_config.but(tasks=("sts",), epochs=1))
    pair = ("predict", run.run_id, "--text", "a dull day", "--text", "a day")
    assert mtbert(*pair).stdout.splitlines()[0] == "predicted"
    assert "sts predicts a number" in str(mtbert(*pair, "--probabilities").exception)


def test_a_missing_task_is_asked_for_with_those_there_are(mtbert, stored):
    error = mtbert("predict", stored.run_id, "--text", "a dull day").exception
    assert for_command_line(error) == "this model has several tasks; name one with --task: sst, quora"


def test_a_run_without_its_model_is_trained_on_request(mtbert, stored, course_data, grid_of, threads_as_workers):
    """A committed run in a fresh clone: its result is stored, its model is in no cache."""
    weights = load_model(stored.run_id).state_dict()
    before = (results_dir() / "scores.csv").read_bytes()
    asked = ("predict", stored.run_id[:8], "--task", "sst", "--text", "a bright day", "--device", "cpu")

    def forget() -> None:
        shutil.rmtree(model_folder(stored.run_id))

    forget()
    result = mtbert(*asked)
    assert isinstance(result.exception, CheckpointError)
    assert "the model is not in the cache" in str(result.exception) and "--train" in str(result.exception)
    assert mtbert(*asked, "--train").exit_code == 0
    assert all(torch.equal(tensor, weights[name]) for name, tensor in load_model(stored.run_id).state_dict().items())
    assert (results_dir() / "scores.csv").read_bytes() == before
    forget()
    assert mtbert("train", grid_of(stored.config)).stdout == "1 of 1 are stored already\n"


def test_runs_lists_the_store(mtbert, stored, grid_of):
    result = mtbert("runs", "--grid", grid_of(stored.config))
    header, row, last = result.stdout.splitlines()
    assert header.split() == [
        "run", "id", "name", "tasks", "plan", "adapter", "gradients", "seed", "dev", "scores", "model",
    ]  # fmt: skip
    scores = [f"sst accuracy {stored.score('sst'):.3f}, quora accuracy", f"{stored.score('quora'):.3f}"]
    assert row.split() == [stored.run_id, "one", "sst", "1-bert", "1", *" ".join(scores).split(), "yes"]
    assert last == f"1 runs in {results_dir()}"
    shutil.rmtree(model_folder(stored.run_id))
    assert mtbert("runs", "hybrid").stdout == f"0 runs in {results_dir()}\n"
    assert "yes" not in mtbert("runs", "1-bert").stdout


def test_a_grid_that_cannot_be_read_hides_no_stored_run(mtbert, stored, tmp_path, monkeypatch, caplog):
    (tmp_path / "params" / "cpu").mkdir(parents=True)
    (tmp_path / "params" / "cpu" / "half.yaml").write_text("base: {adapter: mine}\nruns: {one: {}}\n")
    monkeypatch.setattr("mtbert_lab.store.listing.REPOSITORY", tmp_path)
    assert stored.run_id in mtbert("runs").stdout
    assert "the names of runs in params/cpu/half.yaml are left out" in caplog.text


def test_cache_lists_what_is_there_and_clears_models(mtbert, stored):
    folder = model_folder(stored.run_id)
    assert re.search(r"^ +0\.\d{3} GB  models +trained models", mtbert("cache").stdout, re.MULTILINE)
    assert "removed" not in mtbert("cache", "--clear").stdout and folder.exists()
    unused = mtbert("cache", "--days", 5)
    assert unused.exit_code == 2 and "is of --clear" in unused.output
    tight = mtbert("cache", "--limit", 0)
    assert "above the limit: --clear removes some" in tight.stderr and folder.exists()
    assert f"removed: the model of {stored.run_id}, 0." in mtbert("cache", "--clear", "--limit", 0).stdout
    assert not folder.exists()


def test_a_model_that_could_not_be_trained_again_is_not_cleared(mtbert, stored):
    shutil.rmtree(results_dir() / "runs" / stored.run_id)
    result = mtbert("cache", "--clear", "--limit", 0)
    assert "no more models can go" in result.stderr and model_folder(stored.run_id).exists()


def test_no_run_is_deleted_where_one_of_the_names_fits_none(mtbert, stored):
    result = mtbert("runs", "--delete", stored.run_id, "--delete", "zz")
    assert result.exit_code == 1 and "'zz' fits 0 runs" in str(result.exception)
    assert (results_dir() / "runs" / stored.run_id).exists() and model_folder(stored.run_id).exists()


def test_fields_lists_them(mtbert):
    assert mtbert("fields", "layers").stdout.splitlines() == [
        "layers: int | None = null",
        "    use the first n layers of the encoder; none: all",
    ]
    assert mtbert("fields", "adapter_").stdout.count("\nadapter_") == 1  # behind adapter_size
    assert mtbert("fields").stdout.count(" = ") == len(RunConfig.model_fields)
    assert mtbert("fields", "layerz").exit_code == 2


def test_claims_are_written_into_the_results_folder(mtbert, isolated):
    """Here no run is stored: no claim is compared."""
    path = isolated / "results" / "claims.csv"
    result = mtbert("claims")
    assert result.stdout == f"{path}\n"
    assert "findings of the papers, by our runs: none\n" in result.stderr
    assert re.search(r"not compared, each counted: .*\d+ not measured yet", result.stderr)
    written = pd.read_csv(path)
    text = (REPOSITORY / "params" / "claims.yaml").read_text(encoding="utf8")
    assert len(written) == len(re.findall(r"^ *- {claim:", text, re.MULTILINE))
    assert not written["seeds"].any() and written["p"].isna().all()


def test_export_says_what_it_wrote(mtbert, stored, tmp_path):
    asked = ("export", stored.run_id, tmp_path / "out", "--task", "sst")
    assert "pooling is 'mean', not 'pooler'" in str(mtbert(*asked).exception)
    result = mtbert(*asked, "--encoder-only")
    assert result.stdout == f"{tmp_path}/out: for transformers.BertModel, without the head\n"
    assert (tmp_path / "out" / "tokenizer.json").exists()
    row = stored.scores[stored.scores["task"] == "sst"].iloc[0]
    interval = f"| {row.metric} | {row.value:.3f} | {row.low:.3f} to {row.high:.3f} | {row.n} |"
    assert interval in (tmp_path / "out" / "README.md").read_text()


def test_export_with_a_head_says_so(mtbert, tiny_config, course_data, tmp_path, run_of):
    config = tiny_config.but(pooling="pooler", epochs=1, frozen=True)
    run = run_of(config)
    result = mtbert("export", run.run_id, tmp_path / "out")
    assert result.stdout == f"{tmp_path}/out: for transformers.BertForSequenceClassification, with the head\n"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ["train", "none.yaml"],
            "error: none.yaml: no such file; a grid is a YAML file such as params/cpu/hybrids.yaml",
        ),
        (["data", "check", "--data", "no/such/folder"], "error: the data folder is 'no/such/folder'"),
        (["train", "demo.yaml", "--device", "gpu"], "error: device 'gpu': no GPU is available; use cpu"),
        (["predict", "0123"], "error: '0123' fits 0 runs; `mtbert runs` lists them; looked in "),
        (["predict", "demo.yaml:two"], "error: demo.yaml: has no run 'two'; it has one"),
        (["plan", "--memory", "2XB"], "error: memory is '2XB'; write a number and a unit, such as 2GB"),
        (["plan", "--grid", "none.yaml"], "error: none.yaml: no such file"),
        (["plan", "--grid", ""], "error: .: not a regular file"),
        (["report", "--profile", ""], "error: unknown profile ''; params/ has: cpu, demo, gpu"),
        (["report", "--profile", "base"], "error: unknown profile 'base'; params/ has: cpu, demo, gpu"),
    ],
)
def test_errors_are_messages(monkeypatch, tmp_path, arguments, message):
    (tmp_path / "demo.yaml").write_text("runs: {one: {}}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["mtbert", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert str(stop.value.code).startswith(message)


def test_a_terminal_obeys_nothing_in_an_error(monkeypatch, tmp_path):
    (tmp_path / "grid.yaml").write_text(r'runs: {one: {teachers: "a\e[31m.yaml:two"}, two: {plan: X}}')
    monkeypatch.setattr(sys, "argv", ["mtbert", "train", str(tmp_path / "grid.yaml")])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    first, *others = stop.value.code.splitlines()
    assert r"a\x1b[31m.yaml: no such file" in first and others


def test_a_terminal_without_the_characters_of_a_name_gets_others(
    tiny_config, course_data, tmp_path, monkeypatch, run_of
):
    config = f"{{corpus: course, encoder: {tiny_config.encoder}, epochs: 1, steps_per_epoch: 1}}"
    grid = tmp_path / "grid.yaml"
    grid.write_text(f"runs: {{модель: {config}}}", encoding="utf8")
    run_of(read_grid(grid)["модель"][0])
    terminal = io.TextIOWrapper(io.BytesIO(), "latin-1")
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "argv", ["mtbert", "train", str(grid), "--dry-run", "--device", "cpu"])
    with suppress(SystemExit):
        cli.main()
    terminal.seek(0)
    assert r"\u043c\u043e\u0434\u0435\u043b\u044c" in terminal.read()


def test_errors_of_the_program_itself_keep_their_traceback(monkeypatch):
    def fault(path=None):
        raise ValueError("a fault")

    monkeypatch.setattr("mtbert_lab.paths.find_data", fault)
    monkeypatch.setattr(sys, "argv", ["mtbert", "data", "check"])
    with pytest.raises(ValueError, match="a fault"):
        cli.main()
