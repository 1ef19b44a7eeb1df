"""The README's numbers are those of the results store."""

import re
import shutil
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import yaml

from benchmarks.harness import read_rows
from mtbert.paths import REPOSITORY
from mtbert_lab.report import students
from mtbert_lab.report.plots import TASK_LABELS
from mtbert_lab.report.students import best
from mtbert_lab.report.tables import read_runs
from mtbert_lab.statistics import MEAN_MARGIN, margin_of
from tools.write_readme import write_tables

README = (REPOSITORY / "README.md").read_text(encoding="utf8")
TEXT = " ".join(README.split())


def test_its_sentences_and_tables_are_those_of_notebook_00():
    """Which nbval executes again; `python tools/write_readme.py` writes them."""
    said = []
    for cell in nbformat.read(REPOSITORY / "notebooks" / "00_start.ipynb", 4).cells:
        said += [output.data.get("text/markdown", "") for output in cell.get("outputs", ()) if "data" in output]
    blocks = dict(re.findall(r"<!-- ([a-z ]+) -->\n(.*?)\n<!-- end -->", README, flags=re.DOTALL))
    assert list(blocks) == ["recommendation", "limits", "findings", "plans"]
    assert [name for name, text in blocks.items() if not any(text in one for one in said)] == []


@pytest.mark.slow
def test_its_sentences_and_tables_are_what_the_store_gives(committed, tmp_path):
    written = write_tables(Path(shutil.copy(REPOSITORY / "README.md", tmp_path)))
    assert written.read_text(encoding="utf8") == README


def test_a_mark_without_a_table_is_named(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("<!-- plan -->\n<!-- end -->\n<!-- plan -->\nx\n<!-- end -->\n")
    with pytest.raises(ValueError, match="<!-- plan --> names no table; known are recommendation, limits"):
        write_tables(path)


@pytest.mark.parametrize("task, baseline, number", [
    ("sst", "most frequent", "0.253"), ("quora", "most frequent", "0.625"), ("sts", "cosine", "0.838"),
])  # fmt: skip
def test_baselines_in_the_text_are_those_of_the_store(task, baseline, number):
    table = pd.read_csv(REPOSITORY / "results" / "baselines.csv")
    first = table[(table["task"] == task) & (table["baseline"] == baseline)].iloc[0]
    assert f"{first['value']:.3f}" == number
    assert number in README


def test_the_best_model_in_the_text_is_that_of_the_store(committed):
    models = read_runs("cpu", "best_model")
    ids = [run.run_id.partition("-")[0] for run in models.runs[best(models)]]
    [predicted] = [one for one in ids if f"(`results/predictions/{one}`)" in TEXT]
    scores = pd.read_csv(REPOSITORY / "results" / "predictions" / "test-scores.csv", dtype=str)
    overall = scores[scores["task"] == "overall"].set_index("run")["score"]
    folder = students.PREDICTIONS["22.7 M from the best"]
    student = overall[Path(folder).name]
    assert f"On test it has {overall[predicted]} (`results/predictions/{predicted}`)" in TEXT
    assert f"a student of half its size {student}." in TEXT


def test_it_is_short():
    """1,200 words outside of code and tables."""
    prose = re.sub(r"```.*?```|<!--.*?-->|^\|.*?$", "", README, flags=re.DOTALL | re.MULTILINE)
    assert len([word for word in prose.split() if re.search(r"\w", word)]) <= 1200


def test_the_margins_in_the_text_are_those_of_the_rule():
    margins = ", ".join(f"{margin_of(task):g} on {TASK_LABELS[task]}" for task in ("sst", "quora", "sts"))
    notebook = (REPOSITORY / "notebooks" / "00_start.ipynb").read_text(encoding="utf8")
    for text in (TEXT, notebook):
        assert f"{margins}, {MEAN_MARGIN:g} overall" in text


def test_its_figure_is_drawn_by_notebook_00():
    [name] = re.findall(r"\]\(figures/(\w+)\.svg\)", README)
    assert (REPOSITORY / "figures" / f"{name}.svg").exists()
    assert f'\\"{name}\\"' in (REPOSITORY / "notebooks" / "00_start.ipynb").read_text(encoding="utf8")


def test_the_site_is_published_by_the_commands_of_the_readme():
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "pages.yml").read_text(encoding="utf8"))
    steps = workflow["jobs"]["build"]["steps"]
    commands = [step["run"] for step in steps if "run" in step]
    printed = re.findall(r"^(\./run_all\.sh.*?) +#", README, re.MULTILINE)
    assert commands == printed[::-1] == ["./run_all.sh test", "./run_all.sh"]  # a site that was not tested stays away
    [published] = [step["with"]["path"] for step in steps if "pages-artifact" in step.get("uses", "")]
    assert f"builds {published}/index.html" in README
    assert workflow["jobs"]["deploy"]["needs"] == "build"


BENCH = read_rows(REPOSITORY / "results" / "bench.csv")
ON_CPU = [row for row in BENCH if row["device"].startswith("cpu")]
SPEEDS = {
    "a training step, 32 texts of 26 tokens": ("step", "32x26", "transformers sdpa, fused AdamW"),
    "a training step, 8 texts of 512 tokens": ("step", "8x512", "transformers sdpa, fused AdamW"),
    "the same, against transformers under `torch.compile`": (
        "step",
        "8x512",
        "transformers sdpa compiled, fused AdamW",
    ),
    "an epoch of SST, against random batches and AdamW's defaults": ("epoch", "sst, 8544 rows", "the usual loop"),
    "an epoch of 20,000 Quora pairs, against the same": ("epoch", "quora, 20000 rows", "the usual loop"),
}


@pytest.mark.parametrize("label", SPEEDS)
def test_a_speed_is_what_was_measured(label):
    [row] = [row for row in ON_CPU if (row["benchmark"], row["size"], row["peer"]) == SPEEDS[label]]
    assert (row["mtbert"], row["threads"], row["repeats"]) == ("0.7.0", "2", "5")
    ratio, low, high = (float(row[name]) for name in ("ratio", "low", "high"))
    assert f"| {label} | {ratio:.2f} ({low:.2f} to {high:.2f}) |" in README


MINILM, BASE = "minilm-random", "bert-base-random"
ONE_PASS, EAGER = "transformers sdpa, one pass", "ours, eager"
GPU_STEPS = {
    "1-bert of MiniLM's size, against transformers in one pass": (MINILM, "1-bert, 8-48-8", ONE_PASS),
    "the same, against transformers in a pass per task": (
        MINILM,
        "1-bert, 8-48-8",
        "transformers sdpa, a pass per task",
    ),
    "1-bert of bert-base's size, against transformers in one pass": (BASE, "1-bert, 8-48-8", ONE_PASS),
    "hybrid-3 of MiniLM's size, against ours without graphs": (MINILM, "hybrid-3, 8-48-8", EAGER),
    "1-bert with PALs of MiniLM's size, against ours without graphs": (MINILM, "PAL, 8-48-8", EAGER),
    "PCGrad of MiniLM's size, against TorchJD": (MINILM, "PCGrad, 3x12x40", "TorchJD"),
    "one task of MiniLM's size, 24 texts, against transformers": (MINILM, "one task, 24x40", ONE_PASS),
    "one task of bert-base's size, 256 texts, against transformers": (BASE, "one task, 256x40", ONE_PASS),
    "hybrid-3 of bert-base's size, against ours without graphs": (BASE, "hybrid-3, 8-48-8", EAGER),
    "1-bert with PALs of bert-base's size, against ours without graphs": (BASE, "PAL, 8-48-8", EAGER),
    "PCGrad of bert-base's size, against TorchJD": (BASE, "PCGrad, 3x12x40", "TorchJD"),
}
ON_GPU = [row for row in BENCH if row["benchmark"] == "gpu" and row["device"].startswith("NVIDIA H100")]


@pytest.mark.parametrize("head, checked", [("| | times as fast |", SPEEDS), ("| a step on a GPU |", GPU_STEPS)])
def test_every_row_of_a_table_of_speeds_is_checked(head, checked):
    table = README.partition(head)[2].partition("\n\n")[0]
    assert {*re.findall(r"^\| (\w[^|]*) \|", table, re.MULTILINE)} == {*checked}


@pytest.mark.parametrize("label", GPU_STEPS)
def test_a_step_on_a_gpu_is_what_was_measured(label):
    [row] = [row for row in ON_GPU if (row["encoder"], row["size"], row["peer"]) == GPU_STEPS[label]]
    ours, theirs, ratio, low, high = (float(row[name]) for name in ("ours", "theirs", "ratio", "low", "high"))
    assert row["repeats"] == "3"
    version = "" if row["mtbert"] == "0.19.0" else f" ({row['mtbert']})"
    assert f"| {label} | {ours:.1f} ms{version} | {theirs:.1f} ms | {ratio:.1f} ({low:.1f} to {high:.1f}) |" in README
