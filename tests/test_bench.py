"""The benchmarks: what is measured in which order, what is written, and that every row runs."""

import itertools
import math

import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from mtbert import bench, bench_rows, bench_start, cli
from mtbert.bench import BenchError, Benchmark, Contest, Missing, Peer, Setting
from mtbert.bench_growth import _growth
from mtbert.bench_steps import survey, violating_gradients, words_table
from mtbert.bert import BertConfig
from mtbert.data import DataError
from mtbert.paths import REPOSITORY
from mtbert.sweep import read_grid
from mtbert.tokens import load_tokenizer, tokenize

CPU = torch.device("cpu")


class Clock:
    """Stands for `time`: it moves on when a run says so."""

    def __init__(self):
        self.now, self.calls = 0.0, []

    def perf_counter(self) -> float:
        return self.now

    def run(self, name: str, *seconds: float, work: float | None = None):
        """A run that takes these seconds, call by call, the last for ever."""
        later = itertools.chain(seconds, itertools.repeat(seconds[-1]))

        def run(repeat: int) -> float | None:
            self.calls.append((name, repeat))
            self.now += next(later)
            return work

        return run


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(bench, "time", clock)
    return clock


def test_contenders_take_turns_and_the_order_turns_round(clock):
    contest = Contest("", clock.run("ours", 1), {name: Peer(clock.run(name, 1)) for name in ("a", "b")})
    bench.compare(contest, Setting(CPU, repeats=3))
    warm_up, counted = clock.calls[:6], clock.calls[6:]
    assert set(warm_up) == {(name, bench.WARM_UP) for name in ("ours", "a", "b")}
    assert counted == [
        *(("ours", 0), ("a", 0), ("b", 0)),
        *(("b", 1), ("a", 1), ("ours", 1)),
        *(("ours", 2), ("a", 2), ("b", 2)),
    ]


def test_another_programs_code_runs_with_the_defaults_of_the_c_library(clock, monkeypatch):
    for name in ("keep_freed_memory", "free_by_default"):
        monkeypatch.setattr(bench, name, lambda name=name: clock.calls.append((name, None)))
    peers = {"other": Peer(clock.run("other", 1), package="torch"), "also ours": Peer(clock.run("also ours", 1))}
    bench.compare(Contest("", clock.run("ours", 1), peers), Setting(CPU, repeats=2))
    assert clock.calls[6:] == [
        *(("ours", 0), ("free_by_default", None), ("other", bench.WARM_UP), ("other", 0)),
        *(("keep_freed_memory", None), ("also ours", bench.WARM_UP), ("also ours", 0), ("also ours", 1)),
        *(("free_by_default", None), ("other", bench.WARM_UP), ("other", 1)),
        *(("keep_freed_memory", None), ("ours", bench.WARM_UP), ("ours", 1), ("keep_freed_memory", None)),
    ]


def test_the_medians_their_ratio_and_the_range_of_the_pairs(clock):
    ours, peer = clock.run("ours", 9, 1, 2, 6), clock.run("peer", 9, 4, 4, 6)  # one of each to warm up
    [row] = bench.compare(Contest("s", ours, {"p": Peer(peer, reach=2.5)}), Setting(CPU, repeats=3))
    assert (row["ours"], row["theirs"], row["unit"]) == (2000, 4000, "ms")
    assert (row["ratio"], row["low"], row["high"]) == (2, 1, 4)
    assert row["reached"] is False and row["repeats"] == 3 and row["peer"] == "p" and row["size"] == "s"


@pytest.mark.parametrize("reach, reached", [(2.0, True), (2.01, False), (None, None)])
def test_reached_is_a_ratio_of_at_least_the_reach(clock, reach, reached):
    contest = Contest("", clock.run("ours", 1), {"p": Peer(clock.run("peer", 2), reach=reach)})
    assert bench.compare(contest, Setting(CPU))[0]["reached"] is reached


def test_what_is_short_is_called_until_it_can_be_measured(clock):
    contest = Contest("", clock.run("ours", bench.LEAST_SECONDS / 4), {"p": Peer(clock.run("peer", 1))})
    [row] = bench.compare(contest, Setting(CPU, repeats=1))
    assert [name for name, repeat in clock.calls if repeat == 0] == ["ours"] * 4 + ["peer"]
    assert row["ours"] == pytest.approx(1000 * bench.LEAST_SECONDS / 4)


def test_the_parts_of_a_whole_are_summed_for_each_unit_of_work(clock):
    ours = clock.run("ours", 5, 1, 2, work=10)  # one warm-up
    peers = {"p": Peer(clock.run("peer", 5, 4, 4, work=20))}
    [row] = bench.compare(Contest("", ours, peers, is_total=True), Setting(CPU, repeats=2))
    assert row["ours"] == pytest.approx(3000 / 20) and row["theirs"] == pytest.approx(8000 / 40)
    assert (row["low"], row["high"]) == pytest.approx((1, 2))


def test_a_run_may_tell_its_measurement_itself():
    contest = Contest("", lambda repeat: 3.0, {"p": Peer(lambda repeat: 6.0)}, unit="MiB", timed=False)
    [row] = bench.compare(contest, Setting(CPU))
    assert (row["ours"], row["theirs"], row["unit"], row["ratio"]) == (3, 6, "MiB", 2)


def test_a_limit_is_not_measured(clock):
    [row] = bench.compare(Contest("", clock.run("ours", 1), {"limit": Peer(1500.0, reach=1.0)}), Setting(CPU))
    assert row["theirs"] == 1500 and row["ratio"] == 1.5 and row["reached"]


def test_growth_is_told_as_slopes():
    contest = _growth("n", (10, 100), lambda n: lambda repeat: n**1.5, lambda n: n**2, timed=False)
    [row] = bench.compare(contest, Setting(CPU))
    assert row["slope"] == pytest.approx(1.5) and row["arithmetic_slope"] == pytest.approx(2)
    assert row["ratio"] == pytest.approx(10**0.5) and row["reached"]


# --- the table -----------------------------------------------------------------------------------------------------


def row(benchmark="b", size="s", peer="p", ratio=1.5, device="cpu (A)", **more) -> dict:
    return dict(benchmark=benchmark, size=size, peer=peer, ratio=ratio, device=device, encoder="e", precision="fp32",
                reached=True, reach=None) | more  # fmt: skip


def test_a_row_replaces_the_one_of_its_name_and_leaves_the_others_as_they_are(tmp_path):
    path = tmp_path / "folder" / "bench.csv"
    for size in ("1", "2", "3"):
        bench.write_row(path, row(size=size, ratio=1 / 3))
    lines = path.read_text().splitlines()
    bench.write_row(path, row(size="2", ratio=2.0, device="cpu (B)"))
    renewed = path.read_text().splitlines()
    assert [lines[i] == renewed[i] for i in range(4)] == [True, True, False, True] and len(renewed) == 4
    assert pd.read_csv(path)["ratio"].tolist() == [0.333333, 2, 0.333333]
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "other", [dict(peer="q"), dict(precision="bf16"), dict(encoder="f"), dict(device="NVIDIA H100"), dict(size="t")]
)
def test_what_was_measured_otherwise_is_another_row(tmp_path, other):
    bench.write_row(tmp_path / "bench.csv", row())
    bench.write_row(tmp_path / "bench.csv", row(**other))
    assert len(bench.read_rows(tmp_path / "bench.csv")) == 2


# --- the run -------------------------------------------------------------------------------------------------------


def fake(name: str, problem: Exception | None = None, sizes=({},), once=False, **peer) -> Benchmark:
    def build(setting: Setting, **size) -> Contest:
        if problem is not None:
            raise problem
        return Contest(str(size.get("n", "")), lambda repeat: 1.0, {"p": Peer(lambda repeat: 2.0, **peer)}, timed=False)

    return Benchmark(name, build, sizes, once)


def names_in(path) -> list[str]:
    return [row["benchmark"] + row["size"] for row in bench.read_rows(path)]


def test_every_row_is_written_as_soon_as_it_is_finished(tmp_path):
    path = tmp_path / "bench.csv"
    run = bench.run_benchmarks([fake("a", sizes=(dict(n=1), dict(n=2))), fake("b")], [Setting(CPU)], path)
    for expected in (["a1"], ["a1", "a2"], ["a1", "a2", "b"]):
        next(run)
        assert names_in(path) == expected


def test_rows_of_another_choice_are_kept(tmp_path):
    path = tmp_path / "bench.csv"
    for name in ("a", "b", "a"):
        list(bench.run_benchmarks([fake(name)], [Setting(CPU)], path))
    assert names_in(path) == ["a", "b"]


@pytest.mark.parametrize("problem", [Missing("get it there"), DataError("get it there")])
def test_a_row_that_cannot_run_is_told_with_what_to_do(tmp_path, problem):
    first, second = bench.run_benchmarks([fake("a", problem), fake("b")], [Setting(CPU)], tmp_path / "bench.csv")
    assert str(first) == "a: skipped, get it there" and not first.failed
    assert second.row["ratio"] == 2 and names_in(tmp_path / "bench.csv") == ["b"]


def test_a_missing_peer_leaves_the_others(tmp_path):
    def build(setting: Setting) -> Contest:
        peers = {"gone": Peer(missing="pip install gone"), "there": Peer(lambda repeat: 2.0)}
        return Contest("n", lambda repeat: 1.0, peers, timed=False)

    outcomes = list(bench.run_benchmarks([Benchmark("a", build)], [Setting(CPU)], tmp_path / "bench.csv"))
    assert str(outcomes[0]) == "a n / gone: skipped, pip install gone"
    assert outcomes[1].row["peer"] == "there" and len(outcomes) == 2


def test_a_row_that_fails_does_not_stop_the_others(tmp_path):
    broken = fake("a", ZeroDivisionError("by nought"))
    first, second = bench.run_benchmarks([broken, fake("b")], [Setting(CPU)], tmp_path / "bench.csv")
    assert str(first) == "a: failed, ZeroDivisionError: by nought" and second.row


def test_what_does_not_depend_on_the_encoder_runs_once(tmp_path):
    both = [Setting(CPU), Setting(CPU, precision="bf16")]
    outcomes = bench.run_benchmarks([fake("a"), fake("b", once=True)], both, tmp_path / "bench.csv")
    assert [(o.row["benchmark"], o.row["precision"]) for o in outcomes] == [
        ("a", "fp32"),
        ("b", "fp32"),
        ("a", "bf16"),
    ]


def test_a_name_that_does_not_exist_is_an_error():
    with pytest.raises(BenchError, match="no benchmark 'adam'; did you mean 'adamw'"):
        bench.choose(bench_rows.BENCHMARKS, ["adam"])
    assert [b.name for b in bench.choose(bench_rows.BENCHMARKS, ["gem", "adamw"])] == ["adamw", "gem"]
    assert bench.choose(bench_rows.BENCHMARKS, []) == list(bench_rows.BENCHMARKS)


def test_the_command_prints_and_writes_the_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(bench_rows, "BENCHMARKS", (fake("a", reach=3.0), fake("b", ValueError("no"))))
    out = tmp_path / "bench.csv"
    arguments = ["bench", "--device", "cpu", "--repeats", "2", "--threads", "1", "--out", str(out)]
    result = CliRunner().invoke(cli.app, [*arguments, "--only", "a"])
    assert result.exit_code == 0
    assert "a / p: ours 1 ms, peer 2, ratio 2.000 (2.000 to 2.000), asked for 3.000: NOT reached" in result.stdout
    [row] = bench.read_rows(out)
    assert row["repeats"] == "2" and row["reached"] == "False" and row["threads"] == "1" and row["slope"] == ""
    assert row["torch"] == torch.__version__ and row["transformers"] and row["device"].startswith("cpu")
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 1 and "b: failed, ValueError: no" in result.stdout


# --- the rows ------------------------------------------------------------------------------------------------------

TINY = {
    "step": dict(B=4, T=8, reach=1.0),
    "epoch": dict(task="sst"),
    "evaluation": dict(task="quora"),
    "adamw": {},
    "unified": dict(B=2, T=8),
    "3-bert": dict(B=2, T=8),
    "plans": dict(B=2, T=8, others={"3-bert": {"plan": "3-bert"}, "batch 1": {"batch_size": 1}}, precision="bf16"),
    "frozen": dict(B=2, T=8, batches=2),
    "prefix": dict(plan="F1 S1", B=2, T=8, batches=2),
    "pal": dict(B=2, T=8, s=12, heads=3),
    "pcgrad": dict(B=2, T=8),
    "gem": dict(parameters=4096, memories=3),
    "growth-length": dict(sizes=(6, 12), B=2),
    "growth-batch": dict(sizes=(2, 4), T=8),
    "growth-layers": dict(sizes=(1, 2), d=8, B=2, T=8),
    "growth-pcgrad": dict(sizes=(2, 3), parameters=4096),
    "growth-gem": dict(sizes=(2, 3), parameters=4096),
    "growth-passes": dict(sizes=(2, 3), B=2, T=8),
    "growth-sampler": dict(sizes=(2, 3), rows=50),
    "growth-dataset": dict(sizes=(50, 100), part="time"),
    "memory": dict(task="sst", precision="bf16", longest=1, others=1),
    "import": dict(modules=("paths",)),
}


@pytest.fixture
def tiny(tiny_encoder, course_data, monkeypatch) -> Setting:
    monkeypatch.setattr(bench, "LEAST_SECONDS", 0.0)
    return Setting(CPU, encoder=tiny_encoder, repeats=2)


def test_every_benchmark_has_a_tiny_form():
    assert [b.name for b in bench_rows.BENCHMARKS] == [*TINY, "stored-run"]


@pytest.mark.parametrize("name", TINY)
def test_every_benchmark_runs(name, tiny, tmp_path):
    [benchmark] = bench.choose(bench_rows.BENCHMARKS, [name])
    tiny_form = Benchmark(name, benchmark.build, (TINY[name],))
    outcomes = list(bench.run_benchmarks([tiny_form], [tiny], tmp_path / "bench.csv"))
    assert outcomes and not [outcome for outcome in outcomes if outcome.failed], outcomes
    assert all("not installed" in outcome.skipped for outcome in outcomes if outcome.skipped)
    for row in (outcome.row for outcome in outcomes if outcome.row):
        assert 0 < row["low"] <= row["ratio"] <= row["high"] < math.inf
        assert (row["slope"] is not None) == name.startswith("growth")


def test_the_plans_are_those_of_the_runs():
    """Notebook 05 prices the runs by their names."""
    grid = read_grid(REPOSITORY / "params" / "cpu" / "memory_time.yaml")
    reference = grid["1-bert"][0]
    assert set(survey()) | {"1-bert"} == set(grid)
    for name, fields in survey().items():
        assert fields and reference.but(**fields) == grid[name][0], name


@pytest.mark.parametrize("name", ["step", "unified", "pal"])
def test_a_step_runs_under_autocast(name, tiny_encoder, tiny, tmp_path):
    [benchmark] = bench.choose(bench_rows.BENCHMARKS, [name])
    setting = Setting(CPU, "bf16", tiny_encoder, "random", repeats=1)
    outcomes = list(
        bench.run_benchmarks([Benchmark(name, benchmark.build, (TINY[name],))], [setting], tmp_path / "bench.csv")
    )
    assert {(o.row["precision"], o.row["encoder"].endswith("(random weights)")) for o in outcomes} == {("bf16", True)}


@pytest.mark.parametrize("part", ["memory", "order"])
def test_memory_by_rows_of_the_dataset(part, tiny):
    [benchmark] = bench.choose(bench_rows.BENCHMARKS, ["growth-dataset"])
    [row] = bench.compare(benchmark.build(tiny, sizes=(3200, 32000), part=part), tiny)
    assert row["slope"] == pytest.approx(row["arithmetic_slope"], abs=0.2) and row["unit"] == "MiB"


def test_a_stored_run_is_read_in_a_fresh_process(tiny_config, course_data):
    from mtbert.results import load_or_run

    with pytest.raises(Missing, match="holds no run; train some"):
        bench_start.stored_run(Setting(CPU))
    load_or_run(tiny_config.but(epochs=1), progress=False)
    [row] = bench.compare(bench_start.stored_run(Setting(CPU)), Setting(CPU, repeats=1))
    assert row["theirs"] == 10_000 and row["unit"] == "ms"


def test_without_the_data_their_rows_are_skipped(tiny_encoder, tmp_path, monkeypatch):
    monkeypatch.setattr("mtbert.results.find_data", lambda path=None: None)
    chosen = bench.choose(bench_rows.BENCHMARKS, ["epoch", "evaluation"])
    outcomes = list(bench.run_benchmarks(chosen, [Setting(CPU, encoder=tiny_encoder)], tmp_path / "bench.csv"))
    assert len(outcomes) == 3 and all("mtbert data fetch" in outcome.skipped for outcome in outcomes)


def test_the_commands_modules_are_found():
    modules = bench_start.command_modules()
    assert {"sweep", "report", "fetch", "demo"} <= set(modules) and not {"bench", "bench_rows"} & set(modules)


@pytest.mark.parametrize("task", ["sst", "quora"])
def test_random_words_have_the_length_that_was_asked_for(task):
    table = words_table(task, 20, 30, "minilm")
    lengths = tokenize(task, table, "minilm").lengths
    assert lengths[0] == 30 and lengths.min() >= 24 and lengths.max() == 30
    assert set(table["label"]) <= set(range(5)) and len(set(table["label"])) > 1


def test_every_constraint_is_violated():
    g, M = violating_gradients(4096, 3, CPU)
    assert (M @ g < 0).all() and M[1] @ M[0] > 0 > M[2] @ M[0]
    with pytest.raises(Missing, match="too few"):
        violating_gradients(2, 8, CPU)


def test_a_gpu_gets_both_precisions_and_the_larger_encoder():
    assert bench_rows.settings(CPU, 5) == [Setting(CPU)]
    minilm, half, large = bench_rows.settings(torch.device("cuda"), 5)
    assert [s.precision for s in (minilm, half, large)] == ["fp32", "bf16", "bf16"]
    assert large.weights == "random" and large.encoder.endswith("bert-base")
    assert BertConfig.from_json(bench_rows.bert_base() / "config.json") == BertConfig()
    assert load_tokenizer(large.encoder).get_vocab_size() == BertConfig().vocab_size
