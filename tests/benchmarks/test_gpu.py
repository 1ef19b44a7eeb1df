"""Steps on a GPU, in a tiny form on a CPU: equal losses on all sides, whole rows, failures that end nothing."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks import gpu, gpu_steps, harness
from benchmarks.gpu import BASE, EAGER, MINILM, ONE_PASS, PER_TASK, TORCHJD, UNIFIED, Work
from benchmarks.gpu_steps import Contender, Start
from mtbert.bert import BertConfig
from mtbert.data import load_tokenizer, tokenize

CPU = torch.device("cpu")
SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
TINY = BertConfig(**SIZES, initializer_range=0.1)
SHAPES = {"sst": (3, 9), "quora": (4, 12), "sts": (2, 14)}


@pytest.fixture
def short(monkeypatch):
    """A measurement is two steps."""
    for name in ("WARM_UP", "BLOCK", "LEAST"):
        monkeypatch.setattr(gpu_steps, name, 2)


@pytest.fixture
def encoder(tmp_path):
    gpu.make_encoder(tmp_path / "encoder", TINY)
    return tmp_path / "encoder"


@pytest.fixture
def start(encoder) -> Start:
    """What contenders begin with."""
    return gpu.make_start(Work("s", MINILM, "fp32", SHAPES, ()), encoder, CPU)


def tiny(work: Work) -> Work:
    """The step with few and short texts."""
    fields = dict(work.fields)
    if "plan" in fields:
        fields["plan"] = fields["plan"].replace("hybrid-3", "hybrid-1")
    if "adapter" in fields:
        fields |= dict(adapter_size=12, adapter_heads=3)
    return replace(work, shapes={task: SHAPES[task] for task in work.shapes}, fields=fields)


def numbers(losses) -> list[float]:
    return [loss.item() if isinstance(loss, torch.Tensor) else loss for loss in losses]


def rows_of(works: list[Work], path, seconds: float = 1e6) -> tuple[list[dict], list[harness.Outcome]]:
    encoders = {work.encoder: TINY for work in works}
    outcomes = list(gpu.run_works(works, encoders, CPU, repeats=1, seconds=seconds, out=path / "bench.csv"))
    rows = harness.read_rows(path / "bench.csv") if (path / "bench.csv").exists() else []
    return rows, outcomes


def test_every_step_gives_rows(short, tmp_path):
    works = [tiny(work) for work in gpu.all_works() if work.encoder == MINILM]
    rows, outcomes = rows_of(works, tmp_path)
    assert not [outcome for outcome in outcomes if outcome.failed], outcomes
    skipped = [outcome.text for outcome in outcomes if "skipped" in outcome.text]
    assert all(TORCHJD in text and "torchjd" in text for text in skipped), skipped
    assert len(rows) == len(outcomes) - len(skipped)
    assert {(row["benchmark"], row["unit"], row["encoder"], row["repeats"]) for row in rows} == {
        ("gpu", "ms", MINILM, "1")
    }
    assert {row["size"] for row in rows} >= {"1-bert, 8-48-8", "hybrid-3, 8-48-8", "PAL, 8-48-8", "3-bert, 8-48-8"}
    for row in rows:
        assert 0 < float(row["ratio"]) < math.inf
        assert row["our_busy"] == ""
    peers = {row["peer"] for row in rows if row["size"] == "1-bert, 8-48-8"}
    assert {ONE_PASS, PER_TASK} <= peers and EAGER in peers


@pytest.mark.parametrize("build", [gpu_steps.one_pass, gpu_steps.pass_per_task, gpu_steps.torchjd])
def test_all_sides_have_the_same_losses(build, tmp_path):
    folder = tmp_path / "encoder"
    gpu.make_encoder(folder, replace(TINY, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    fields = dict(head_dropout=0.0, learning_rate=1e-3)
    if build is gpu_steps.torchjd:
        pytest.importorskip("torchjd")
        fields |= dict(gradients="pcgrad")
    start = gpu.make_start(Work("s", MINILM, "fp32", SHAPES, (), fields), folder, CPU)
    ours, theirs = gpu_steps.ours(start), build(start)
    first = numbers(ours())
    assert numbers(theirs()) == pytest.approx(first, rel=1e-5) and len(set(first)) == 3
    assert numbers(theirs()) != first and numbers(ours()) != first, "nothing was updated"
    before = start.model.state_dict()
    again = gpu.make_start(Work("s", MINILM, "fp32", SHAPES, (), fields), folder, CPU).model.state_dict()
    assert all(torch.equal(before[name], again[name]) for name in again), "the start has been trained"


def test_an_encoder_made_on_the_spot_has_a_token_for_every_word(encoder, start):
    for task, (rows, T) in SHAPES.items():
        lengths = tokenize(task, start.tables[task], str(encoder)).lengths
        assert len(lengths) == rows and lengths[0] == T and lengths.max() == T
    assert load_tokenizer(encoder).encode("bad", add_special_tokens=False).tokens == ["[UNK]"]


def test_one_failing_step_ends_no_other(short, tmp_path):
    bad = Work("bad", MINILM, "fp32", SHAPES, (EAGER,), dict(plan="no plan"))
    good = Work("good", MINILM, "fp32", SHAPES, (EAGER,))
    rows, outcomes = rows_of([bad, good], tmp_path)
    assert [outcome.failed for outcome in outcomes] == [True, False] and "bad: failed, " in outcomes[0].text
    assert [row["size"] for row in rows] == ["good"]


def test_a_peer_that_cannot_be_built_ends_no_row(short, tmp_path, monkeypatch):
    def broken(start):
        raise RuntimeError("no compiler\nat all")

    monkeypatch.setitem(gpu.BUILDERS, PER_TASK, (broken, "transformers"))
    rows, outcomes = rows_of([Work("s", MINILM, "fp32", SHAPES, (PER_TASK, ONE_PASS))], tmp_path)
    assert outcomes[0].text == f"gpu s / {PER_TASK}: skipped, RuntimeError: no compiler"
    assert [row["peer"] for row in rows] == [ONE_PASS]


def test_a_profiler_that_fails_costs_no_time(short, tmp_path, monkeypatch):
    def broken(contender, milliseconds):
        raise RuntimeError("no trace")

    monkeypatch.setattr(Contender, "busy", broken)
    rows, [outcome] = rows_of([Work("s", MINILM, "fp32", SHAPES, (ONE_PASS,))], tmp_path)
    assert outcome.failed and "no trace" in outcome.text
    assert [row["peer"] for row in rows] == [ONE_PASS] and float(rows[0]["ours"]) > 0


def test_without_time_left_no_step_begins(tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(gpu, "measure", lambda work, *others: begun.append(work) or iter(()))
    works = gpu.all_works()
    encoders = {name: TINY for name in gpu.ENCODERS}
    outcomes = list(gpu.run_works(works, encoders, CPU, 1, -1.0, tmp_path / "bench.csv"))
    assert not begun
    assert len(outcomes) == len(works) and all("no time is left" in outcome.text for outcome in outcomes)


def test_no_two_steps_share_a_row():
    works = gpu.all_works()
    keys = [(work.name, work.encoder, work.precision, peer) for work in works for peer in work.peers]
    assert len(set(keys)) == len(keys)
    first = [(work.encoder, work.name.partition(",")[0]) for work in works[:2]]
    assert first == [(MINILM, "1-bert"), (BASE, "1-bert")]
    assert all(work.shapes == UNIFIED for work in works if "8-48-8" in work.name)
    assert all(set(work.peers) <= set(gpu.BUILDERS) for work in works)


def test_the_command_needs_a_gpu(capsys):
    with pytest.raises(SystemExit) as exit:
        gpu.main(["--device", "cpu"])
    assert exit.value.code == 2 and "needs a GPU" in capsys.readouterr().err


def test_kernels_of_a_trace_are_counted_once_where_they_overlap(tmp_path):
    events = [
        dict(cat="kernel", ts=10.0, dur=4.0),
        dict(cat="kernel", ts=12.0, dur=5.0),
        dict(cat="kernel", ts=13.0, dur=1.0),
        dict(cat="gpu_memcpy", ts=17.0, dur=9.0),
        dict(cat="gpu_user_annotation", ts=0.0, dur=99.0),
        dict(cat="kernel", ts=30.0, dur=2.5),
        dict(name="without a category", ts=0.0),
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events[::-1]}))
    assert gpu_steps.covered(gpu_steps.kernel_intervals(tmp_path / "trace.json")) == 7.0 + 2.5
    assert gpu_steps.covered([]) == 0


class FakeProfile:
    """A profiler that saw a kernel of 3 ms."""

    def __init__(self, activities) -> None:
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        pass

    def export_chrome_trace(self, path: str) -> None:
        with open(path, "w") as file:
            json.dump({"traceEvents": [dict(cat="kernel", ts=5.0, dur=3000.0)]}, file)


def test_the_busy_share_is_of_a_step_without_the_profiler(short, start, monkeypatch):
    contender = Contender(lambda start: lambda: [1.0], start)
    contender.is_gpu = True
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(gpu_steps, "profile", FakeProfile)
    assert contender.steps == 2
    assert contender.busy(2.0) == pytest.approx(0.75)
    assert contender.busy(1.0) == 1.0


def test_ours_is_a_graph_and_its_eager_form_a_peer(short, tmp_path, monkeypatch):
    made = []

    class WithGraphs(gpu_steps.Trainer):
        def __init__(self, model, tables, total_steps, graphs=True):
            made.append(graphs)
            super().__init__(model, tables, total_steps)

    monkeypatch.setattr(gpu_steps, "Trainer", WithGraphs)
    rows, _ = rows_of([Work("s", MINILM, "fp32", SHAPES, (EAGER,))], tmp_path)
    assert made == [True, False] and [row["peer"] for row in rows] == [EAGER]


def test_a_loss_that_is_not_finite_is_an_error(short, start):
    with pytest.raises(FloatingPointError, match="not finite"):
        Contender(lambda start: lambda: [torch.tensor(1.0), torch.tensor(np.nan)], start)


def test_a_block_takes_its_steps(short, start):
    taken = []
    contender = Contender(lambda start: lambda: taken.append(1) or [1.0], start)
    assert len(taken) == 4 and contender.steps == 2
    contender.run(0)
    assert len(taken) == 6
    assert contender.busy(1.0) is None
