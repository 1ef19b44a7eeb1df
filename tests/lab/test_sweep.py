"""Runs are looked up, and trained by the workers of a cluster."""

import asyncio
import os
import re
import shutil
import signal
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from filelock import FileLock

from mtbert.config import ConfigError, RunConfig
from mtbert.data.corpus import Corpus
from mtbert.training.checkpoint import Stop
from mtbert_lab.cluster import _check_processes
from mtbert_lab.paths import results_dir
from mtbert_lab.store.corpora import Corpora, read_corpus, run_id_of
from mtbert_lab.store.models import has_model, model_folder
from mtbert_lab.sweep import (
    Status,
    SweepError,
    SweepRun,
    describe,
    duration,
    generation,
    look_up,
    minutes_left,
    open_cluster,
    train_missing,
    train_on,
)
from mtbert_lab.workers import StepReports, Sweep


def test_a_field_without_effect_is_told(tiny_config, course_data, caplog):
    pairs = [("plain", tiny_config), ("wide", tiny_config.but(adapter_size=32)), ("again", tiny_config)]
    assert [run.name for run in look_up(pairs)] == ["plain"]
    assert "wide is the same run as plain, whatever it says of adapter_size" in caplog.text
    assert "again" not in caplog.text


def test_teachers_without_a_model_are_runs_of_the_sweep(tiny_config, course_data, isolated, threads_as_workers, run_of):
    """The one is stored without its model, the other in the grid and not stored: both come first and are trained."""
    base = tiny_config.but(epochs=1, frozen=True)
    stored, missing = run_of(base), base.but(seed=2)
    student = base.but(teachers=[base, missing])
    pairs = [("student", student), ("in the grid", missing), ("alone", base)]
    assert [run.name for run in look_up(pairs)] == ["in the grid", "alone", "student"]
    shutil.rmtree(model_folder(stored.run_id))
    runs = look_up(pairs)
    assert [(run.name, run.is_stored, run.needs_model) for run in runs] == [
        ("in the grid", False, True), ("alone", False, True), ("student", False, False),
    ]  # fmt: skip
    assert [run.name for run in look_up(pairs[:1])] == ["teacher of student", "teacher of student", "student"]
    assert train_missing(runs[1:2], device="cpu") == {}
    assert has_model(stored.run_id)
    assert train_missing(look_up(pairs), workers=2, device="cpu") == {}
    shutil.rmtree(model_folder(stored.run_id))
    assert all(run.is_stored for run in look_up(pairs)), "a stored student needs no teacher"


def test_runs_are_looked_up_and_the_data_read_once(tiny_config, course_data, isolated, monkeypatch, run_of):
    base = tiny_config.but(epochs=1, frozen=True)
    stored = run_of(base)
    load, loaded = Corpus.load, []

    def counted(root, tasks, *others):
        loaded.append(tasks)
        return load(root, tasks, *others)

    monkeypatch.setattr(Corpus, "load", counted)
    few = base.but(train_rows=10)
    pairs = [("a", base), ("b", base.but(seed=2)), ("the same", base), ("sts", base.but(tasks=("sts",)))]
    pairs += [("few", few), ("few", few.but(seed=2)), ("few, twice as fast", few.but(learning_rate=2e-3))]
    runs = look_up(pairs)
    assert [run.name for run in runs] == ["a", "b", "sts", "few", "few", "few, twice as fast"]
    assert [run.is_stored for run in runs] == [True] + 5 * [False]
    assert runs[0].run_id == stored.run_id
    assert loaded == [("sst",), ("sts",), ("sst",), ("sst",)]  # whole, of another task, two draws of 10 rows
    trained = run_of(few.but(seed=2))
    assert [run.run_id for run in look_up(pairs) if run.is_stored] == [stored.run_id, trained.run_id]
    monkeypatch.setenv("MTBERT_RESULTS", str(isolated / "another"))
    assert not any(run.is_stored for run in look_up(pairs))


def test_runs_with_other_tables_do_not_share_them(tiny_config, course_data):
    base = tiny_config.but(tasks=("sts",), epochs=1)
    few = base.but(train_rows=8)
    configs = [
        base,
        base.but(augment="swap"),
        base.but(score_tasks=("sst",)),
        few,
        few.but(seed=2),
        base.but(corpus="demo"),
    ]
    corpora = Corpora(None)
    assert [corpora.run_id(config) for config in configs] == [
        run_id_of(config, read_corpus(config)) for config in configs
    ]


def test_a_damaged_run_is_not_taken_for_a_stored_one(tiny_config, course_data, run_of):
    base = tiny_config.but(epochs=1, frozen=True)
    (results_dir() / "runs" / run_of(base).run_id / "run.json").write_text("{")
    with pytest.raises(ConfigError, match=r"a: .*run\.json"):
        look_up([("a", base)])


def test_runs_that_could_not_start_are_named_with_all_their_errors(tiny_config, course_data, tmp_path):
    base = tiny_config.but(epochs=1)
    damaged = tmp_path / "damaged"
    shutil.copytree(tiny_config.encoder, damaged)
    (damaged / "tokenizer.json").write_text("{")
    wrong = {
        "grid: deep": {"plan": "S9"},
        "grid: also deep": {"plan": "S9", "tasks": ["sts"]},
        "grid: many": {"layers": 3},
        "other: damaged": {"encoder": str(damaged)},
    }
    pairs = [(name, base.but(**fields, seed=seed)) for name, fields in wrong.items() for seed in (1, 2)]
    with pytest.raises(ConfigError) as error:
        look_up([("fine", base), *pairs])
    for line in (
        "grid: deep, grid: also deep: 9 layers up to here, but the encoder has 2",
        f"grid: many: layers: 3, but the encoder {base.encoder!r} has 2",
        f"other: damaged: {damaged}: the tokenizer cannot be read",
    ):
        assert str(error.value).count(line) == 1


def sweep_run(number: int, minutes: float | None = None, mib: float | None = None, is_stored=False) -> SweepRun:
    return SweepRun(f"run {number}", RunConfig(seed=number), f"id-{number}", is_stored, minutes, mib)


@pytest.fixture
def pairs(tiny_config, course_data) -> list[tuple[str, RunConfig]]:
    config = tiny_config.but(epochs=1, frozen=True)
    return [("one", config), ("two", config.but(seed=2)), ("three", config.but(seed=3))]


def test_a_sweep_trains_what_is_missing(pairs, threads_as_workers, train_counted, capsys, run_of):
    stored = run_of(pairs[1][1])
    trained = train_counted()
    assert train_missing(look_up(pairs), threads=2, device="cpu") == {}
    assert trained == [1, 3]
    runs = [run_of(config, train_missing=False) for _, config in pairs]
    assert runs[0].provenance["threads"] == 2
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "1 of 3 are stored already"
    for number, (line, run) in enumerate(zip(lines, (runs[0], runs[2]), strict=True), start=1):
        start = f"[{number} of 2] {('one', 'three')[number - 1]}, seed {run.config.seed}: dev {run.score():.4f} ("
        assert line.startswith(f"{start}{run.run_id}, 0.")
    assert set(pd.read_csv(results_dir() / "scores.csv")["run_id"]) == {run.run_id for run in runs}
    (results_dir() / "scores.csv").write_text(f"run_id\n{stored.run_id}\n")  # as a process that was killed leaves it
    os.utime(results_dir() / "scores.csv", (0, 0))
    assert train_missing(look_up(pairs)) == {}
    assert capsys.readouterr().out == "3 of 3 are stored already\n"
    assert set(pd.read_csv(results_dir() / "scores.csv")["run_id"]) == {run.run_id for run in runs}


def test_a_failed_run_stops_no_other_and_is_tried_again_where_that_can_help(
    pairs, threads_as_workers, train_counted, capsys
):
    def fail(config):
        if config.seed == 1:
            raise OSError("the disk is away")

    trained = train_counted(fail)
    explodes = ("explodes", pairs[0][1].but(frozen=False, learning_rate=1e30, schedule="none", seed=4))
    failed = train_missing(look_up([*pairs, explodes]), device="cpu")
    assert sorted(trained) == [1, 1, 2, 3, 4], "an error of mtbert itself comes again"
    reasons = {str(run): why for run, why in failed.items()}
    place, *traceback = reasons["one, seed 1"].splitlines()
    assert re.fullmatch(r"OSError: the disk is away \(test_sweep\.py, line \d+\)", place), "where it was raised"
    assert any("in train_run" in line for line in traceback)
    assert "TrainingError: the loss of sst is nan at step" in reasons["explodes, seed 4"] and len(reasons) == 2
    assert "of 4] one, seed 1: failed: OSError: the disk is away (" in capsys.readouterr().out
    assert [run.is_stored for run in look_up(pairs)] == [False, True, True]


def test_a_full_results_disk_is_told_once_and_the_run_goes_on_later(
    pairs, threads_as_workers, train_counted, monkeypatch, caplog
):
    def write(table: pd.DataFrame, path: Path, **options) -> None:
        if path.name == "predictions.parquet":
            raise OSError(28, "Error writing bytes to file")  # as pyarrow, without the name of a file
        to_parquet(table, path, **options)

    to_parquet, trained = pd.DataFrame.to_parquet, train_counted()
    [run] = look_up(pairs[:1])
    with monkeypatch.context() as disk:
        disk.setattr(pd.DataFrame, "to_parquet", write)
        failed = train_missing([run], device="cpu")
    folder = results_dir() / "runs" / run.run_id
    assert failed == {run: f"OSError: [Errno 28] Error writing bytes to file: '{folder}'"}
    assert trained == [1] and "Traceback" not in caplog.text and not list(folder.parent.iterdir())
    assert train_missing(look_up(pairs[:1]), device="cpu") == {}


def test_a_run_that_another_process_trains_comes_last(pairs, threads_as_workers, train_counted, monkeypatch, capsys):
    monkeypatch.setattr("mtbert_lab.sweep.BUSY_SECONDS", 0.01)
    runs = look_up(pairs)
    folder = model_folder(runs[0].run_id)
    folder.mkdir(parents=True)
    lock = FileLock(folder / "lock", thread_local=False).acquire().lock
    trained = train_counted(lambda config: lock.release() if config.seed == 3 else None)
    assert train_missing(runs, device="cpu") == {}
    assert trained == [2, 3, 1]


def test_a_signal_drops_the_queue_and_saves_the_run(pairs, threads_as_workers, monkeypatch, isolated):
    monkeypatch.setattr("mtbert_lab.workers.REPORT_SECONDS", 0.0)
    monkeypatch.setattr("mtbert_lab.sweep.Status.note", lambda status, event: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    pairs = [(name, config.but(steps_per_epoch=1000)) for name, config in pairs]
    with pytest.raises(SystemExit, match="the same command goes on from the checkpoints"):
        train_missing(look_up(pairs), device="cpu")
    assert signal.getsignal(signal.SIGTERM) is before and not any(run.is_stored for run in look_up(pairs))
    [checkpoint] = (isolated / "cache" / "models").glob("*/checkpoint.pt")
    assert 0 < torch.load(checkpoint, weights_only=True)["progress"]["step"] < 1000


@pytest.fixture
def two_workers(monkeypatch):
    """The client of a cluster of two threads of this process, of which one has a GPU; what they train takes a moment.

    It has an attribute `used`: the names of the workers, a run each, and whether they had another run meanwhile.
    """
    distributed = pytest.importorskip("distributed")
    going = []

    def train(sweep, run_id, config, again):
        going.append(run_id)
        sweep.tell(run_id, "7/120", 90.0, 84.0)
        client.used.append((sweep.worker.name, len(going)))
        time.sleep(0.1)
        going.remove(run_id)
        return "trained", "dev 0.5000"

    monkeypatch.setattr("mtbert_lab.workers.Sweep.train", train)
    has = {"gpu": {"GPU": 1}, "none": None}
    workers = {
        name: {"cls": distributed.Worker, "options": {"nthreads": 1, "resources": resources}}
        for name, resources in has.items()
    }
    scheduler = {"cls": distributed.Scheduler, "options": {"dashboard": False}}
    with distributed.SpecCluster(workers, scheduler) as cluster, distributed.Client(cluster) as client:
        client.used = []
        yield client


def test_runs_for_a_gpu_go_one_at_a_time_to_the_workers_that_have_one(pairs, two_workers):
    assert train_on(two_workers, look_up(pairs), Stop(), device="cuda") == {}
    assert two_workers.used == 3 * [("gpu", 1)]
    two_workers.used.clear()
    assert train_on(two_workers, look_up(pairs), Stop(), device="cpu") == {}
    assert {name for name, _ in two_workers.used} == {"gpu", "none"}
    left = two_workers.run(lambda dask_worker: [name for name in dask_worker.plugins if "mtbert" in name])
    assert set(map(tuple, left.values())) == {()}, "a cluster of the user's own goes on without plugins of ended sweeps"


def test_a_log_file_says_what_is_trained_and_what_a_sweep_waits_for(pairs, two_workers):
    runs = look_up(pairs)
    status = Status(two_workers, runs, "cuda")
    assert status.text() == "no run has begun"
    for address in two_workers.scheduler_info()["workers"]:
        if two_workers.scheduler_info()["workers"][address]["name"] == "gpu":
            two_workers.retire_workers([address])
    assert status.text() == "none of the 1 workers has a GPU; start one with --resources GPU=1"
    two_workers.retire_workers()
    assert status.text().startswith("no worker has joined the scheduler tcp://")
    status.note((0.0, {"run_id": runs[0].run_id, "state": "7/120", "minutes": 90.0, "left": 90.0}))
    assert status.text() == f"one, seed 1 ({runs[0].run_id}) 7/120, about 4 h 30 min left"
    status.end(runs[0], 10.0)
    status.end(runs[1], None)
    assert status.left() == ", about 10 min left", "what another process stored is no measure"


def test_a_worker_with_two_threads_trains_nothing(pairs, train_counted):
    """Two runs in one process would share torch's random generator."""
    distributed = pytest.importorskip("distributed")
    trained = train_counted()
    local = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "dashboard_address": None}
    with distributed.LocalCluster(**local) as cluster, distributed.Client(cluster) as client:
        [run] = look_up(pairs[:1])
        failed = train_on(client, [run], Stop(), device="cpu")
    assert failed == {run: "WorkerError: a worker has 2 threads; start it with --nthreads 1"}
    assert trained == [] and not look_up(pairs[:1])[0].is_stored


def test_other_data_on_a_worker_are_an_error(pairs, threads_as_workers):
    run = replace(look_up(pairs)[0], run_id="0123456789-01234567")
    failed = train_missing([run], device="cpu")
    assert failed == {run: "WorkerError: a worker has other data, another encoder or another version of mtbert"}


def test_two_runs_of_one_name_that_fail_are_both_told(pairs, threads_as_workers, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MTBERT_CACHE", str(tmp_path / "file"))
    config = pairs[0][1]
    runs = look_up([("grid: one", config), ("grid: one", config.but(head_dropout=0.3))])
    assert set(train_missing(runs, device="cpu")) == set(runs)


@pytest.mark.parametrize(
    "address, settings",
    [
        ("tcp://127.0.0.1:9", {}),
        ("tls://127.0.0.1:9", {}),  # without a certificate
        ("tcp://127.0.0.1:9", {"distributed.comm.require-encryption": True}),
        ("nothing", {}),
    ],
)
def test_a_scheduler_that_does_not_answer_is_named(pairs, course_data, address, settings):
    pytest.importorskip("distributed")
    dask = pytest.importorskip("dask")
    no_answer = pytest.raises(SweepError, match=rf"--scheduler {address}: no scheduler answers there")
    with dask.config.set({"distributed.comm.timeouts.connect": "0.1s"} | settings), no_answer:
        train_missing(look_up(pairs), scheduler=address)


def test_a_table_of_runs():
    runs = [
        sweep_run(1),
        sweep_run(2, 90.0, 700.0),
        sweep_run(3, 30.0, 800.0),
        sweep_run(4, 15.0),
        sweep_run(5, is_stored=True),
    ]
    assert describe(runs, None).splitlines()[-1] == "4 to train: 135.0 minutes for the 3 with a forecast"
    header, *rows = describe(runs, 2).splitlines()
    assert header.split() == ["name", "seed", "run", "id", "state", "minutes", "memory", "(MiB)"]
    assert [row.split() for row in rows[:5]] == [
        ["run", "1", "1", "id-1", "to", "train", "unknown", "unknown"],
        ["run", "2", "2", "id-2", "to", "train", "90.0", "700"],
        ["run", "3", "3", "id-3", "to", "train", "30.0", "800"],
        ["run", "4", "4", "id-4", "to", "train", "15.0", "unknown"],
        ["run", "5", "5", "id-5", "stored"],
    ]
    assert rows[5:] == [
        "1 of 5 are stored already",
        "4 to train: 135.0 minutes for the 3 with a forecast, 2 at a time about 1 h 30 min",
        "memory of 2 at a time: at most 1500 MiB",
    ]


def test_the_time_that_is_left():
    runs = [sweep_run(1, 10.0), sweep_run(2, 6.0), sweep_run(3, 2.0), sweep_run(4, 1.0)]
    assert minutes_left(runs, 1) == 19.0
    assert minutes_left(runs, 2) == 10.0  # 10 beside 6 + 2 + 1
    assert minutes_left(runs, 2, {"id-2": 12.0}, {"id-1": 8.0, "id-2": 0.0}) == 8.0  # all take twice as long: 4 + 2
    unknown = [sweep_run(number) for number in range(3)]
    assert minutes_left(unknown, 1) is None
    assert minutes_left(unknown, 1, {"id-0": 4.0}, {"id-0": 0.0}) == 8.0
    ended = {run.run_id: 0.0 for run in runs}
    assert minutes_left(runs, 1, {run.run_id: run.minutes for run in runs}, ended) == 0.0


def test_the_time_that_is_left_is_counted_from_now(monkeypatch):
    """What goes before the first step, and steps that are slower than predicted, do not use it up."""
    clock = [1000.0]
    monkeypatch.setattr("mtbert_lab.sweep.time", SimpleNamespace(monotonic=lambda: clock[0]))
    first, second = sweep_run(1, 3.0), sweep_run(2, 3.0)
    status = Status(SimpleNamespace(nthreads=lambda: {"one": 1}), [first, second], "cpu")
    step = {"run_id": "id-1", "state": "begins", "minutes": None, "left": None}
    status.note((0.0, step))
    clock[0] += 19 * 60
    assert status.left() == ", about 6 min left", "no step is done: all of them lie ahead"
    status.note((0.0, step | {"state": "10/100", "minutes": 30.0, "left": 27.0}))
    assert status.left() == ", about 57 min left", "ten times as slow as predicted, and so will the second run be"
    clock[0] += 7 * 60
    assert status.left() == ", about 50 min left"
    clock[0] += 60 * 60
    assert status.left() == ", about 30 min left", "its steps are done, and it is evaluated"
    status.end(first, 86.0)
    assert status.left() == ", about 1 h 26 min left"


@pytest.fixture
def step_report(monkeypatch) -> Callable[[int, int], list[tuple]]:
    """step_report(step, total): a worker's report of a step, a minute after the one before; gives all that it told."""
    clock, told = [50.0], []
    monkeypatch.setattr("mtbert_lab.workers.time", SimpleNamespace(monotonic=lambda: clock[0]))
    sweep = SimpleNamespace(is_stopped=False, tell=lambda run_id, *state: told.append(state))
    report = StepReports(sweep, "id-1")

    def step_report(step: int, total: int) -> list[tuple]:
        clock[0] += 60
        report(lambda: {"step": step}, total)
        return told

    return step_report


@pytest.mark.parametrize("begins_at", [0, 400])
def test_a_worker_tells_what_lies_ahead_of_a_run(step_report, begins_at):
    """Of one that goes on from a checkpoint, too, the minutes of all its steps are told."""
    step_report(begins_at + 1, 1000)
    assert step_report(begins_at + 101, 1000) == [
        (f"{begins_at + 1}/1000", None, None),
        (f"{begins_at + 101}/1000", 10.0, pytest.approx((899 - begins_at) / 100)),
    ]


def test_steps_of_another_kind_have_a_pace_of_their_own(step_report):
    """Pretraining before the training, or a teacher's steps: their pace says nothing of those that follow."""
    for step, total in ((1, 300), (300, 300), (1, 600), (61, 600)):
        told = step_report(step, total)
    assert told[-2:] == [("1/600", None, None), ("61/600", 10.0, pytest.approx(539 / 60))]


@pytest.mark.parametrize(
    "minutes, text",
    [(0.3, "less than a minute"), (12.4, "about 12 min"), (59.9, "about 1 h 0 min"), (130, "about 2 h 10 min")],
)
def test_durations_are_readable(minutes, text):
    assert duration(minutes) == text


def test_nobody_without_the_certificate_gets_into_the_local_cluster():
    """Every user of the machine reaches its ports, and who gets in runs code on scheduler, nanny and worker."""
    distributed = pytest.importorskip("distributed")
    with open_cluster(1, None) as client:
        [(worker, about)] = client.scheduler_info()["workers"].items()
        assert client.run(os.getpid) != {worker: os.getpid()} and not find_pages(client)
        for address in (client.scheduler.address, worker, about["nanny"]):
            with pytest.raises(OSError):
                asyncio.run(run_at(address.replace("tls://", "tcp://"), distributed.Security()))
            with pytest.raises(OSError):
                asyncio.run(run_at(address, distributed.Security.temporary()))


async def run_at(address: str, security) -> None:
    """Run code at this address, with no certificate or another one; an OSError if it is refused."""
    from distributed.core import rpc
    from distributed.protocol.pickle import dumps

    arguments = security.get_connection_args("client")
    async with rpc(address, timeout=3, connection_args=arguments) as server:
        for operation in (server.run, server.run_function):
            await asyncio.wait_for(operation(function=dumps(os.getpid), wait=True), 3)


def find_pages(client) -> list[int]:
    """The status of dask's pages that tell what runs here."""
    ports = (
        client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.http_server.port),
        *client.run(lambda dask_worker: dask_worker.http_server.port).values(),
    )
    found = []
    for port in ports:
        for page in ("info/main/workers.html", "metrics", "json/counts.json", "health"):
            try:
                found.append(urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=5).status)
            except urllib.error.HTTPError as error:
                assert error.code == 404
    return found


@pytest.fixture
def planted(tmp_path, monkeypatch) -> Path:
    """A file of the user's; another user has made dask's usual scratch folder, with a module and a link to the file."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)  # the folder of before
    usual = tmp_path / "dask-scratch-space"
    usual.mkdir(mode=0o777)
    (usual / "planted.py").touch()
    file = tmp_path / "precious"
    file.write_text("kept")
    (usual / "global.lock").symlink_to(file)
    return file


def test_nobody_puts_a_module_or_a_link_before_a_sweep(planted):
    """Dask imports from its scratch folder, and empties the file `global.lock` in it."""
    pytest.importorskip("distributed")
    with open_cluster(1, None) as client:
        [private] = planted.parent.glob("mtbert-*")
        assert private.stat().st_mode & 0o777 == 0o700
        assert [*client.run(find_spec, "planted").values(), find_spec("planted")] == [None, None]
    assert planted.read_text() == "kept" and not private.exists()


def test_workers_that_never_start_are_an_error(monkeypatch, caplog):
    distributed = pytest.importorskip("distributed")
    started = []

    def fail(**local):
        started.append(local)
        raise RuntimeError("Cluster failed to start") from OSError("Cannot assign requested address")

    monkeypatch.setattr(distributed, "LocalCluster", fail)
    expected = r"the workers cannot be started \(Cannot assign requested address\)"
    with pytest.raises(SweepError, match=expected), open_cluster(1, None):
        pass
    assert len(started) == 1


@pytest.mark.parametrize("most, workers", [(16, 1), (64, 4)])
def test_too_few_open_files_are_an_error(monkeypatch, most, workers):
    """With too few of them dask's processes wait for each other, some limits for ever."""
    monkeypatch.setattr("resource.getrlimit", lambda kind: (most, most))
    files = 30 + 10 * workers
    message = f"need {files} open files, and {most} are allowed; `ulimit -n {files}` allows them"
    with pytest.raises(SweepError, match=message), open_cluster(workers, None):
        pass


def test_any_number_of_open_files_is_enough(monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda kind: (-1, -1))
    _check_processes(1000)


def test_a_student_is_of_the_generation_behind_its_teachers():
    """Those of a generation train at once."""
    teacher = RunConfig(seed=2)
    taught = RunConfig(teachers=(teacher,))
    assert [generation(one) for one in (teacher, taught, RunConfig(teachers=(taught, teacher)))] == [0, 1, 2]


def test_the_workers_of_a_running_scheduler_train(pairs):
    distributed = pytest.importorskip("distributed")
    torch.set_num_threads(1)
    local = dict(n_workers=1, threads_per_worker=1, processes=False, protocol="tcp://", dashboard_address="127.0.0.1:0")
    with distributed.LocalCluster(**local) as cluster:
        assert train_missing(look_up(pairs[:1]), scheduler=cluster.scheduler_address, device="cpu") == {}
    [run] = look_up(pairs[:1])
    assert run.is_stored


def test_workers_take_the_gpus_in_turn(pairs, course_data, monkeypatch, run_of):
    [(_, config), *_] = pairs
    run, taken = run_of(config), []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    shared = Sweep("reports", 1, course_data, [results_dir()], "auto")
    for number in range(4):
        shared.setup(SimpleNamespace(name=number, state=SimpleNamespace(nthreads=1)))
        state, _ = copy_context().run(shared.train, run.run_id, config, False)  # which sets who watches the steps
        assert state == "stored"
    assert taken == [0, 1, 0, 1]
