"""What the packages export, and that nothing heavy is imported or needed in vain."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import mtbert
import mtbert_lab
from mtbert.paths import REPOSITORY

PACKAGE = Path(mtbert.__file__).parent


STAGES = [  # what a program does one after the other, and what it has not imported then
    ("import mtbert, mtbert_lab", ("torch", "pandas")),
    ("import mtbert_lab.cli", ("torch", "pandas")),
    ("import mtbert_lab.store", ("transformers", "matplotlib", "papermill", "huggingface_hub", "scipy")),
    (
        "from mtbert import AdamW, BertModel; AdamW(BertModel.from_pretrained().parameters()).zero_grad()",
        ("torch._dynamo", "matplotlib", "papermill"),
    ),
]


def test_nothing_heavy_is_imported_in_vain():
    """One process for all stages, as each of them would import torch again."""
    lines = ["import sys"]
    for statement, unwanted in STAGES:
        lines += [statement, f"print([name for name in {unwanted} if name in sys.modules])"]
    lines += ["print([n for m in (mtbert, mtbert_lab) for n in m.__all__ if getattr(m, n, None) is None])"]
    command = [sys.executable, "-c", "\n".join(lines)]
    process = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert process.stdout.split("\n") == ["[]"] * 5 + [""], process.stderr


def test_the_packages_export_what_a_user_needs():
    nouns = """BertConfig BertModel SharingPlan SharedEncoder ADAPTERS PAL AdapterSizes Batch AdamW pcgrad cagrad
        gem_project task_probabilities MultitaskBert RunConfig Task TASKS train __version__"""
    assert set(mtbert.__all__) == set(nouns.split()) <= set(dir(mtbert))
    assert {"load_model", "load_or_run", "read_grid"} <= set(dir(mtbert_lab))
    assert mtbert.RunConfig is importlib.import_module("mtbert.config").RunConfig
    with pytest.raises(AttributeError, match="has no attribute 'RunConfg'"):
        _ = mtbert.RunConfg


def test_every_default_is_named_for_type_checkers():
    """`Field(default=...)`: they take a field with `Field(...)` alone for one without a default."""
    for path in (*PACKAGE.glob("config/*.py"), PACKAGE / "data/tasks.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Field":
                assert not node.args, f"{path.name}, line {node.lineno}"


HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
fields = dict(tasks=["sst"], layers=1, epochs=1, train_rows=16, score_tasks=[], max_length=16)
"""
LIBRARY = """
import importlib
import pkgutil

import mtbert
from mtbert import RunConfig, train
from mtbert.data import demo
from mtbert.training import load_corpus

config = RunConfig.from_params(fields)
trained = train(config, load_corpus(config, demo.root()), device="cpu", progress=False)
print((trained.predictions["label"] == trained.predictions["predicted"]).mean())
for found in pkgutil.walk_packages(mtbert.__path__, "mtbert."):
    importlib.import_module(found.name)
assert "mtbert_lab" not in sys.modules
sys.argv = ["mtbert", "train"]
from mtbert_lab.__main__ import main
main()
"""
LAB = """
from mtbert_lab.cli import main
from mtbert.config import RunConfig
from mtbert_lab.store import load_or_run

print(load_or_run(RunConfig.from_params(fields), device="cpu", progress=False).score())
sys.argv = ["mtbert", "train", "{grid}"]
main()
"""


@pytest.mark.parametrize(
    "script, without, message",
    [
        (LIBRARY, ("lab", "sweep", "report"), "is not installed; the command needs pip install 'mtbert[lab]'"),
        (LAB, ("sweep", "report"), "is not installed; the extras have it: pip install 'mtbert[sweep,report]'"),
    ],
    ids=["library", "lab"],
)
def test_a_model_trains_without_the_packages_of_the_extras(script, without, message, tmp_path, monkeypatch):
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = [re.match(r"[\w-]+", entry)[0] for extra in without for entry in extras[extra]]
    hidden = [name.replace("-", "_") for name in names if name != "mtbert"]
    assert {"dask", "matplotlib", "jupyterlab"} < set(hidden)
    monkeypatch.setenv("MTBERT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MTBERT_RESULTS", str(tmp_path / "results"))
    script = (HIDE + script).format(hidden=hidden, grid=REPOSITORY / "params/demo/sharing.yaml")
    process = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert process.stdout, process.stderr
    score = float(process.stdout.split()[0])
    assert 0 <= score <= 1, process.stderr
    assert message in process.stderr
