"""What a user of a checkout makes stays out of it, and folders that cannot be written to are named before any work."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

import mtbert
import mtbert_lab
from mtbert.data import DataError
from mtbert.paths import REPOSITORY, FolderError, cache_dir
from mtbert_lab.paths import check_writable, figures_dir, find_data, find_figure, find_result, results_dir, stores
from mtbert_lab.report import plots


@pytest.fixture
def defaults(isolated, monkeypatch) -> Path:
    """Neither MTBERT_RESULTS nor MTBERT_FIGURES is set; returns the cache."""
    for name in ("RESULTS", "FIGURES"):
        monkeypatch.delenv(f"MTBERT_{name}")
    return isolated / "cache"


def test_own_runs_and_figures_are_not_written_to_the_checkout(defaults, tiny_config, course_data, monkeypatch, run_of):
    committed = defaults / "checkout"
    monkeypatch.setattr("mtbert_lab.paths.REPOSITORY", committed)
    run = run_of(tiny_config.but(epochs=1, frozen=True))
    assert results_dir() == defaults / "results" and (results_dir() / "runs" / run.run_id / "run.json").exists()
    plots.save(plt.figure(), "figure")
    assert sorted(path.name for path in (defaults / "figures").iterdir()) == ["figure.svg"]
    assert not committed.exists()


def test_committed_runs_are_read_but_not_where_a_store_is_named(
    defaults, tiny_config, course_data, monkeypatch, run_of
):
    config = tiny_config.but(epochs=1, frozen=True)
    committed = defaults / "checkout" / "results"
    run = run_of(config, store=committed)
    monkeypatch.setattr("mtbert_lab.paths.REPOSITORY", committed.parent)
    assert stores() == [defaults / "results", committed]
    assert run_of(config, train_missing=False).run_id == run_of(config).run_id == run.run_id
    assert find_result("scores.csv") == committed / "scores.csv" and not results_dir().exists()
    (committed / "claims.csv").write_text("new")
    (defaults / "results").mkdir()
    (defaults / "results" / "claims.csv").write_text("old")
    os.utime(defaults / "results" / "claims.csv", (1, 1))
    assert find_result("claims.csv") == committed / "claims.csv", "the newest"
    monkeypatch.setenv("MTBERT_RESULTS", str(defaults / "elsewhere"))
    assert stores() == [defaults / "elsewhere"]
    with pytest.raises(LookupError, match="elsewhere"):
        run_of(config, train_missing=False)


def test_the_newest_figure_is_found_but_where_a_folder_is_named_its_own(defaults, monkeypatch):
    committed = defaults / "checkout" / "figures" / "plans.svg"
    monkeypatch.setattr("mtbert_lab.paths.REPOSITORY", committed.parents[1])
    drawn = figures_dir() / "plans.svg"
    for path, when in ((committed, 1), (drawn, 2)):
        path.parent.mkdir(parents=True)
        path.write_text("")
        os.utime(path, (when, when))
    assert find_figure("plans.svg") == drawn
    os.utime(committed, (3, 3))
    assert find_figure("plans.svg") == committed
    monkeypatch.setenv("MTBERT_FIGURES", str(defaults / "elsewhere"))
    assert find_figure("plans.svg") == defaults / "elsewhere" / "plans.svg", "also where it is not there"


def test_find_data_in_order(tmp_path, monkeypatch):
    named, variable, shared = tmp_path / "named", tmp_path / "variable", tmp_path / "shared"
    monkeypatch.setattr("mtbert_lab.paths.SHARED", shared)
    assert find_data() is None
    shared.mkdir()
    assert find_data() == shared
    monkeypatch.setenv("MTBERT_DATA", str(variable))
    with pytest.raises(DataError, match=r"MTBERT_DATA is .*variable.* is no folder"):
        find_data()
    variable.mkdir()
    assert find_data() == variable
    with pytest.raises(DataError, match=r"the data folder is .*named.* is no folder"):
        find_data(named)
    named.mkdir()
    assert find_data(named) == find_data(str(named)) == named


def test_a_tilde_is_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, folder in (("CACHE", cache_dir), ("RESULTS", results_dir), ("FIGURES", figures_dir), ("DATA", find_data)):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(f"MTBERT_{name}", f"~/{name}")
        assert folder() == tmp_path / name
    monkeypatch.setenv("MTBERT_CACHE", "~nobody-of-this-name/x")
    with pytest.raises(FolderError, match=r"MTBERT_CACHE is '~nobody-of-this-name/x', and ~nobody.* is no user's home"):
        cache_dir()


@pytest.mark.parametrize("variable", ["MTBERT_RESULTS", "MTBERT_CACHE"])
def test_a_folder_that_cannot_be_written_to_is_named_before_training(
    tiny_config, course_data, monkeypatch, tmp_path, run_of, variable
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(variable, str(tmp_path / "file" / "below"))
    monkeypatch.setattr("mtbert_lab.store.runs.train", lambda *args, **kwargs: pytest.fail("trained"))
    with pytest.raises(FolderError, match=r"file/below\S*: cannot be written to \(Not a directory\); MTBERT_RESULTS"):
        run_of(tiny_config)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_named(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(FolderError, match="Permission denied"):
        check_writable(tmp_path)


def test_a_package_that_is_installed_alone_needs_no_checkout(tmp_path):
    """As a wheel installs it: nothing is written beside the package, and what is missing is named."""
    site, empty = tmp_path / "site", tmp_path / "empty"
    for package in (mtbert, mtbert_lab):
        folder = Path(package.__file__).parent
        shutil.copytree(folder, site / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    empty.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(site), "MTBERT_CACHE": str(tmp_path / "cache")}
    del environment["MTBERT_RESULTS"], environment["MTBERT_FIGURES"]
    script = (
        "import sys, matplotlib.pyplot as plt, mtbert.paths; from mtbert_lab.cost.planner import read_candidates\n"
        "from mtbert_lab.report import plots; from mtbert_lab.store import list_runs\n"
        "plots.save(plt.figure(), 'figure'); print(mtbert.paths.REPOSITORY, len(list_runs()))\n"
        "read_candidates(None)"
    )
    command = [sys.executable, "-B", "-c", script]
    process = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True)
    assert process.stdout.split() == [str(empty), "0"], process.stderr
    error = process.stderr.splitlines()[-1]
    assert f"{empty}/params/cpu/memory_time.yaml: not here, as mtbert is installed alone; run this in a ch" in error
    assert sorted(path.name for path in site.iterdir()) == ["mtbert", "mtbert_lab"]
    assert {path.parent.name for path in site.rglob("*.csv")} == {"demo"}, "the corpus alone, no table of results"
    assert not list(empty.iterdir()) and (tmp_path / "cache" / "figures" / "figure.svg").exists()


@pytest.mark.parametrize(
    "path",
    ["data/x.csv", "predictions/sst-dev-output.csv", "out.ipynb", "params/tasks/mine.yaml", "exported/config.json"],
)
def test_what_the_readme_makes_is_ignored_by_git(path):
    if not (REPOSITORY / ".git").exists():
        pytest.skip("no git checkout")
    assert subprocess.run(["git", "check-ignore", "-q", path], cwd=REPOSITORY).returncode == 0
    assert subprocess.run(["git", "check-ignore", "-q", f"mtbert/{path}"], cwd=REPOSITORY).returncode == 1
