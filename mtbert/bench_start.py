"""Benchmarks of the start: what a fresh process needs to import the package and to show a stored run."""

import ast
import json
from pathlib import Path

import mtbert
from mtbert.bench import Contest, Missing, Peer, Run, Setting, started_process
from mtbert.paths import results_dir
from mtbert.results import stored_runs

NOTEBOOK = """
import json, sys
import mtbert.notebook, mtbert.plots
from mtbert.config import RunConfig
from mtbert.results import load_or_run
load_or_run(RunConfig.from_params(json.loads(sys.argv[1])), train_missing=False)
"""


def imports(setting: Setting, modules: tuple[str, ...] = (), limit: float = 2.0) -> Contest:
    """A fresh Python that imports the CLI and some modules of the package, by default all that its commands import.

    limit: seconds that it may take.
    """
    chosen = modules or command_modules()
    script = "import mtbert.cli, " + ", ".join(f"mtbert.{name}" for name in chosen)
    return Contest(", ".join(modules) or "all commands", _process(script), _limit(limit))


def stored_run(setting: Setting, limit: float = 10.0) -> Contest:
    """A fresh Python that imports what a notebook does and reads a stored run; limit: seconds that it may take.

    Raises Missing where the results store holds no run that is found by its configuration alone.
    """
    by_config: dict[str, list[dict]] = {}
    for run in stored_runs(results_dir()):
        by_config.setdefault(run["run_id"].partition("-")[0], []).append(run["config"])
    single = [configs[0] for configs in by_config.values() if len(configs) == 1]  # of several the data would decide
    if not single:
        raise Missing(f"{results_dir().name}/ holds no run; train some: mtbert train params/demo/single_task.yaml")
    return Contest("load_or_run", _process(NOTEBOOK, json.dumps(single[0])), _limit(limit))


def command_modules() -> list[str]:
    """The modules that the commands of the CLI import when they are called, those of `mtbert bench` left out."""
    tree = ast.parse(Path(mtbert.__file__).with_name("cli.py").read_text(encoding="utf8"))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "mtbert":
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module.startswith("mtbert."):
            names.add(node.module.removeprefix("mtbert."))
    return sorted(name for name in names if not name.startswith("bench"))


def _limit(seconds: float) -> dict[str, Peer]:
    return {f"limit {seconds:g} s": Peer(seconds * 1000, reach=1.0)}


def _process(script: str, *arguments: str) -> Run:
    def run(repeat: int) -> None:
        started_process(script, *arguments)

    return run
