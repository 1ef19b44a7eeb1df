"""The Dockerfile names files, scripts and versions that exist; no image is built here."""

import json
import os
import re
import shlex
from importlib.util import find_spec

from mtbert.paths import REPOSITORY

INSTRUCTIONS = re.findall(r"^([A-Z]+) (.+)$", (REPOSITORY / "Dockerfile").read_text(encoding="utf8"), re.MULTILINE)


def all_of(instruction: str) -> list[str]:
    return [rest for name, rest in INSTRUCTIONS if name == instruction]


def test_what_is_copied_is_there_and_not_left_out():
    copied = [name for rest in all_of("COPY") for name in shlex.split(rest)[:-1] if not name.startswith("--")]
    assert "." in copied and all((REPOSITORY / name).exists() for name in copied)
    left_out = set((REPOSITORY / ".dockerignore").read_text(encoding="utf8").split())
    assert left_out >= {".git", ".venv", "build", "data"}
    assert not left_out & {"mtbert", "notebooks", "params", "results", "docs", "figures", "pyproject.toml", "README.md"}


def test_what_is_run_exists():
    scripts = [command for command in all_of("RUN") if command.startswith("./")]
    assert scripts == ["./run_all.sh"] and os.access(REPOSITORY / scripts[0], os.X_OK)
    [pattern] = re.findall(r"grep '(.+?)' requirements\.lock", " ".join(all_of("RUN")))
    lock = (REPOSITORY / "requirements.lock").read_text(encoding="utf8")
    assert len(re.findall(pattern, lock, re.MULTILINE)) == 1  # torch's version
    [command] = map(json.loads, all_of("CMD"))
    assert command[:2] == ["python", "-m"] and find_spec(command[2])


def test_it_runs_as_a_user_without_rights():
    [user] = all_of("USER")
    assert user != "root" and f"useradd --create-home {user}" in " ".join(all_of("RUN"))
