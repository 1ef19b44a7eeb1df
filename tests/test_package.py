"""The shape of the package: short files, imports in one direction, nothing heavy that is not needed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mtbert
from mtbert.paths import REPOSITORY

PACKAGE = Path(mtbert.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
# From the bottom up: each imports, at least by a detour, all before it and nothing behind it.
ORDER = ("bert", "adapters", "trunk", "multitask", "rows", "updates", "train", "results", "sweep", "cli")
PARTS = (
    "sharing",
    "adapters",
    "heads",
    "gradients",
    "memory",
    "samplers",
    "soft",
    "pos",
)  # methods: they know of no model


def imports(path: Path) -> set[str]:
    """Names of the package's modules that a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name.split(".")[1] for name in found if name.startswith("mtbert.")}


def import_graph() -> dict[str, set[str]]:
    """Module -> the modules it imports; the demo package counts as one."""
    graph = {}
    for path in MODULES:
        name = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        graph.setdefault(name, set()).update(imports(path) - {name})
    return graph


GRAPH = import_graph()


def reachable(name: str) -> set[str]:
    seen, todo = set(), [name]
    while todo:
        new = GRAPH.get(todo.pop(), set()) - seen
        seen |= new
        todo += new
    return seen


def test_the_graph_is_that_of_the_package():
    assert "heads" in reachable("sweep") and "words" not in GRAPH and "demo" in reachable("results")


@pytest.mark.parametrize("name", sorted(GRAPH))
def test_no_module_imports_itself_by_a_detour(name):
    assert name not in reachable(name)


def test_imports_go_one_way():
    for place, name in enumerate(ORDER):
        assert set(ORDER[:place]) <= reachable(name) | {name}
        assert not reachable(name) & set(ORDER[place + 1 :])


@pytest.mark.parametrize("name", PARTS)
def test_a_method_stands_below_the_model(name):
    assert name in reachable("train")
    assert not reachable(name) & {"trunk", *ORDER[ORDER.index("multitask") :]}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_is_one_idea(path):
    assert len(path.read_text(encoding="utf8").splitlines()) <= 400


@pytest.mark.parametrize(
    "module, unwanted",
    [("sweep", ("transformers", "matplotlib", "papermill", "huggingface_hub")), ("cli", ("torch", "pandas"))],
)
def test_nothing_heavy_is_imported_in_vain(module, unwanted):
    script = f"import sys, mtbert.{module}; print([name for name in {unwanted} if name in sys.modules])"
    process = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True)
    assert process.stdout.strip() == "[]", process.stderr
