"""The shape of the package: rooms with few short files, imports in one direction, nothing heavy that is not needed."""

import ast
import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

import mtbert
from mtbert.paths import REPOSITORY

PACKAGE = Path(mtbert.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
# From the bottom up: a room imports rooms of the lines above its own.
FLOORS = [
    {"names"},
    {"paths", "runtime", "sources", "statistics"},
    {"bert", "gradients", "metrics", "optim", "pairs", "samplers"},
    {"sharing", "data"},
    {"config"},
    {"multitask"},
    {"training"},
    {"results"},
    {"cost", "analysis"},
    {"report"},
    {"cli"},
    {"__main__"},
    {"__init__"},  # of the package itself: what it exports is imported when it is used
]


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Names of the package's modules that a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            found.add(node.module)
    return {name for name in found if name.startswith("mtbert.")}


def test_every_room_has_its_floor():
    assert {room_of(path) for path in MODULES} == set.union(*FLOORS)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    room = room_of(path)
    below = set().union(*FLOORS[: next((i for i, floor in enumerate(FLOORS) if room in floor), 0)])
    assert {name.split(".")[1] for name in imports(path)} <= below | {room}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_other_rooms_are_entered_by_their_faces(path):
    """What a room's `__init__` exports; but for rooms whose face is empty, and files that are slow to import."""
    private = {"report", "analysis"}, {"mtbert.data.download"}
    for name in imports(path):
        room = name.split(".")[1]
        if room != room_of(path) and room not in private[0]:
            assert name.count(".") == 1 or name in private[1], f"{path.name} imports {name}"


@cache
def import_graph() -> dict[str, set[str]]:
    names = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in MODULES}
    return {name: imports(path) & set(names) for name, path in names.items()}


@pytest.mark.parametrize("name", sorted(import_graph()))
def test_no_file_imports_itself_by_a_detour(name):
    seen, todo = set(), [name]
    while todo:
        new = import_graph()[todo.pop()] - seen
        seen |= new
        todo += new
    assert name not in seen


@pytest.mark.parametrize(
    "room, names",
    {
        "bert": "BertConfig BertModel",
        "optim": "AdamW",
        "samplers": "task_probabilities",
        "sharing": "SharingPlan",
        "gradients": "pcgrad gem_project",
        "config": "RunConfig",
        "multitask": "MultitaskBert",
        "results": "load_or_run",
        "data": "load_table DataError",
    }.items(),
)
def test_names_that_other_code_imports(room, names):
    module = importlib.import_module(f"mtbert.{room}")
    assert all(callable(getattr(module, name)) for name in names.split())


@pytest.mark.parametrize(
    "statement, unwanted",
    [
        ("import mtbert_lab.store", ("transformers", "matplotlib", "papermill", "huggingface_hub", "scipy")),
        ("import mtbert_lab.cli", ("torch", "pandas")),
        ("from mtbert.bert import BertModel; BertModel.from_pretrained()", ("torch._dynamo",)),
    ],
)
def test_nothing_heavy_is_imported_in_vain(statement, unwanted):
    script = f"import sys; {statement}; print([name for name in {unwanted} if name in sys.modules])"
    process = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True)
    assert process.stdout.strip() == "[]", process.stderr


def test_the_package_itself_exports_what_a_user_needs():
    script = "import sys, mtbert as m; print('torch' in sys.modules, all(callable(getattr(m, n)) for n in m.__all__))"
    process = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True)
    assert process.stdout.split() == ["False", "True"], process.stderr
    assert {"RunConfig", "Task", "load_model", "load_or_run", "read_grid"} <= set(dir(mtbert))
    assert mtbert.RunConfig is importlib.import_module("mtbert.config").RunConfig
    with pytest.raises(AttributeError, match="has no attribute 'RunConfg'"):
        _ = mtbert.RunConfg


USER_SCRIPT = """
import pandas as pd

from mtbert import RunConfig, Task
from mtbert_lab import load_model, load_or_run, read_grid

config = RunConfig(tasks=("sst", "sts"), epochs=1, plan="S4 I2")
longer = config.but(epochs=2)
run = load_or_run(longer, train_missing=False)
score: float = run.score("sst")
table: pd.DataFrame = run.predictions
model = load_model(run.run_id)
configs: list[RunConfig] = read_grid("params/demo/sharing.yaml")["x"]
task = Task(name="t", files="{split}.csv", sentence_columns=("text",), label_column="y", kind="binary")
print(task.name, score, configs)
"""


@pytest.mark.parametrize(
    "checker, options",
    [("mypy", ["--follow-imports=silent", "--ignore-missing-imports", "script.py"]), ("pyright", [])],
)
def test_type_checkers_accept_a_users_script(checker, options, tmp_path):
    if find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    (tmp_path / "script.py").write_text(USER_SCRIPT)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(PACKAGE.parent)]}))
    command = [sys.executable, "-m", checker, *options]
    where = {**os.environ, "MYPYPATH": str(PACKAGE.parent)}
    process = subprocess.run(command, cwd=tmp_path, env=where, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout


def test_every_default_is_named_for_type_checkers():
    """`Field(default=...)`: they take a field with `Field(...)` alone for one without a default."""
    for path in (*PACKAGE.glob("config/*.py"), PACKAGE / "data/tasks.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Field":
                assert not node.args, f"{path.name}, line {node.lineno}"


WITHOUT_EXTRAS = """
import sys
import tomllib

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
from mtbert_lab.cli import main
from mtbert.config import RunConfig
from mtbert_lab.store import load_or_run

fields = dict(tasks=["sst"], layers=1, epochs=1, train_rows=16, score_tasks=[], max_length=16)
print(load_or_run(RunConfig.from_params(fields), device="cpu", progress=False).score())
sys.argv = ["mtbert", "train", "{grid}"]
main()
"""


def test_the_library_trains_without_the_packages_of_the_extras(tmp_path, monkeypatch):
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    names = [re.match(r"[\w-]+", entry)[0] for entry in extras["sweep"] + extras["report"]]
    hidden = [name.replace("-", "_") for name in names if name != "mtbert"]
    assert {"dask", "matplotlib", "jupyterlab"} < set(hidden)
    monkeypatch.setenv("MTBERT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MTBERT_RESULTS", str(tmp_path / "results"))
    script = WITHOUT_EXTRAS.format(hidden=hidden, grid=REPOSITORY / "params/demo/sharing.yaml")
    process = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    score = float(process.stdout.split()[0])
    assert 0 <= score <= 1, process.stderr
    assert "is not installed; the extras have it: pip install 'mtbert[sweep,report]'" in process.stderr
