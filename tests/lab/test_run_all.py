"""run_all.sh: what is wrong is said before anything is set up. A copy of it runs where nothing can be installed."""

import re
import shutil
import subprocess

import pytest
from typer.main import get_command

from mtbert.paths import REPOSITORY
from mtbert_lab.cli import app


@pytest.fixture
def run_all(tmp_path):
    """Runs a copy without requirements beside it, and without a Python in PATH."""
    script = shutil.copy(REPOSITORY / "run_all.sh", tmp_path)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "cat", "dirname", "rm"):
        (tools / name).symlink_to(shutil.which(name))

    def run(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run([script, *arguments], env={"PATH": str(tools)}, capture_output=True, text=True)

    return run


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["foo"], "unknown command 'foo'; see ./run_all.sh --help"),
        (["test", "x"], "'test' takes no options; see ./run_all.sh --help"),
    ],
)
def test_a_wrong_command_is_named(run_all, arguments, message):
    process = run_all(*arguments)
    assert (process.returncode, process.stdout, process.stderr) == (1, "", f"run_all.sh: {message}\n")


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["test", "--help"], ["--only", "03", "-h"]])
def test_the_options_in_its_help_are_those_of_the_report(run_all, arguments):
    process = run_all(*arguments)
    assert (process.returncode, process.stderr) == (0, "")
    named = set(re.findall(r"--[a-z-]+", process.stdout))
    known = {option for parameter in get_command(app).commands["report"].params for option in parameter.opts}
    assert named and named <= known


def test_without_a_python_the_versions_that_it_needs_are_named(run_all):
    process = run_all("test")
    assert process.returncode == 1
    assert "run_all.sh: no Python 3.11, 3.12 or 3.13 found; install one and run this again" in process.stderr
