"""The commands and the Python of the README and of docs/ can be used as printed."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from mtbert.config import RunConfig
from mtbert.paths import REPOSITORY
from mtbert_lab import cli

PAGES = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md")] + sorted((REPOSITORY / "docs").glob("*.md"))
TEXT = "\n".join(page.read_text(encoding="utf8") for page in PAGES)
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, flags=re.DOTALL)
LINES = [re.split("  #| [<>|] ", line)[0].strip() for _, block in BLOCKS for line in block.splitlines()]
LINES = [re.sub(r"^(\w+=\S+ )+", "", line) for line in LINES]  # variables in front of a command
WITH_TESTS = [REPOSITORY / "docs" / name for name in ("take_only_this.md", "own_code.md")]
OWN_TEST = "\n".join(page.read_text(encoding="utf8") for page in WITH_TESTS)  # blocks that have tests of their own
FOLDERS = "mtbert|mtbert_lab|params|notebooks|results|figures|benchmarks|tools|tests|docs"
PYTHON = [block for language, block in BLOCKS if language == "python" and block not in OWN_TEST]


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("mtbert ")])
def test_a_command_is_one(line, monkeypatch):
    """Its options are known, and have values of their types; it is not run."""
    monkeypatch.setattr("mtbert_lab.own_code.import_files", lambda files: None)
    _, *words = shlex.split(line)
    command = typer.main.get_command(cli.app)
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context(line, words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_file_that_is_named_is_there(page):
    named = re.findall(rf"(?<![\w/])(?:{FOLDERS})/[\w/*.-]*\w", page.read_text(encoding="utf8"))
    for name in set(named) - {"params/tasks", "params/cpu/GRID.yaml"}:  # which a reader writes
        assert list(REPOSITORY.glob(name)), name


@pytest.mark.parametrize("block", PYTHON, ids=range(len(PYTHON)))
def test_the_python_runs(block, monkeypatch, tmp_path):
    """Each block alone, with two steps of one layer where it trains."""
    quick, from_params = {"epochs": 1, "steps_per_epoch": 2, "layers": 1}, RunConfig.from_params
    monkeypatch.setattr(
        RunConfig, "from_params", lambda params: from_params(params if "plan" in params else params | quick)
    )
    monkeypatch.chdir(tmp_path)
    exec(block, {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_link_leads_to_a_file(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_link_into_a_file_leads_to_a_heading(page, headings_of):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]+)#([^)]+)\)", page.read_text(encoding="utf8")):
        path = page.parent / target
        headings = [heading.replace(" ", "-") for heading in headings_of(path)]
        if path.suffix == ".md":  # as GitHub writes them; Jupyter keeps capitals
            headings = [heading.lower() for heading in headings]
        assert anchor in headings, f"{target}#{anchor}"


def test_the_processes_of_a_cluster_import_from_a_folder_of_their_user_alone(tmp_path):
    """Each shell that reads the settings has another folder, which the user alone enters."""
    pytest.importorskip("distributed")
    [settings] = re.findall(r"<<'END'\n(.*?)END\n", TEXT, flags=re.DOTALL)
    (tmp_path / "env").write_text(settings)
    script = ". ./env; stat --format %a $DASK_TEMPORARY_DIRECTORY; python -c 'import dask; print(dask.config.get("
    script += """"temporary-directory"))'; echo $DASK_TEMPORARY_DIRECTORY"""
    environment = {
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
    }
    folders = set()
    for _ in range(2):
        run = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
        mode, known, folder = run.stdout.split()
        assert mode == "700" and known == folder
        folders.add(folder)
    assert len(folders) == 2
