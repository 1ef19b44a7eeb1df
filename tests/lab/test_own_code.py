"""Files of one's own that a command imports."""

import json
import os
import re
import subprocess
import sys

import pytest

from mtbert.gradients import WEIGHTS
from mtbert.paths import REPOSITORY
from mtbert.samplers import SAMPLERS
from mtbert.sharing import ADAPTERS
from mtbert.sources import SourceError
from mtbert_lab.own_code import import_files
from mtbert_lab.store.grids import read_grid
from mtbert_lab.store.runs import load_or_run


def test_what_code_of_ones_own_lacks_is_named(tmp_path):
    (tmp_path / "needs_more.py").write_text("import a_package_that_is_not_here\n")
    with pytest.raises(SourceError, match=r"--import .*needs_more\.py: No module named 'a_package_that_is_not_here'"):
        import_files([tmp_path / "needs_more.py"])
    assert "needs_more" not in sys.modules


def test_code_of_ones_own_is_timed_in_another_process(tmp_path, tiny_encoder, monkeypatch):
    (tmp_path / "scales.py").write_text(
        "from mtbert.sharing.adapters import ADAPTERS, LHUC\n\n\n"
        'class Scales(LHUC):\n    """One more name."""\n\n\nADAPTERS["scales"] = Scales\n'
    )
    base = f"corpus: demo, encoder: {tiny_encoder}, train_rows: 16, scheme: sampled, tasks: [sst, cfimdb]"
    (tmp_path / "grid.yaml").write_text(f"base: {{{base}}}\nruns: {{mine: {{adapter: scales}}}}\n")
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "mtbert_lab", "plan", "--grid", "grid.yaml", "--import", "scales.py"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.returncode == 0 and "timing steps of mine" in process.stderr, process.stderr
    assert "mine" in process.stdout and "no prediction" not in process.stdout + process.stderr


def test_code_of_ones_own_is_imported_for_a_command(
    mtbert, tmp_path, tiny_encoder, course_folder, isolated, monkeypatch, caplog
):
    """A worker of another process trains the run; then this process has commands without the file, and with it."""
    (tmp_path / "ext.py").write_text(
        "from mtbert.samplers import SAMPLERS\n\n\n"
        "def cubes(sizes, epoch, epochs):\n    return sizes**3.0\n\n\nSAMPLERS['cubes'] = cubes\n"
    )
    base = f"corpus: course, encoder: {tiny_encoder}, epochs: 1, scheme: sampled, tasks: [sst, cfimdb]"
    (tmp_path / "grid.yaml").write_text(f"base: {{{base}}}\nruns: {{mine: {{sampling: cubes}}}}\n")
    (tmp_path / "other.yaml").write_text(f"base: {{{base}}}\nruns: {{plain: {{}}}}\n")
    monkeypatch.chdir(tmp_path)
    code, data = ["--import", "ext.py"], ["--data", str(course_folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "mtbert_lab", "train", "grid.yaml", *code, *data, "--in-order"]
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    [path] = (isolated / "results").rglob("run.json")
    assert json.loads(path.read_text())["provenance"]["imports"] == ["ext.py"]

    assert mtbert("runs", "--grid", "other.yaml").stdout.startswith("0 runs")
    assert "cubes" not in caplog.text, "another grid's concern"
    mtbert("runs")
    assert "sampling: 'cubes' is not known; --import FILE.py" in caplog.text
    caplog.clear()

    monkeypatch.setattr("mtbert_lab.own_code.imported", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    try:
        listed = mtbert("runs", "--grid", "grid.yaml", *code)
        predicted = mtbert("predict", path.parent.name, "--task", "sst", "--text", "a dull day", *code)
    finally:
        SAMPLERS.pop("cubes", None)
        sys.modules.pop("ext", None)
    assert "mine" in listed.stdout and "cubes" not in caplog.text
    assert predicted.stdout.startswith("predicted,confidence\n"), predicted.stderr


def test_the_file_of_the_docs_trains(tiny_encoder, tmp_path, monkeypatch):
    """As docs/own_code.md prints it, with its grid: an adapter, a sampler, a gradient method."""
    page = (REPOSITORY / "docs" / "own_code.md").read_text(encoding="utf8")
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    [grid] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "own.py").write_text(code)
    (tmp_path / "grid.yaml").write_text(
        grid.replace("epochs: 1", f"epochs: 1, steps_per_epoch: 2, encoder: {tiny_encoder}")
    )
    monkeypatch.setattr("mtbert_lab.own_code.imported", [])
    registries = (ADAPTERS, "gate"), (SAMPLERS, "cube_root"), (WEIGHTS, "normed")
    try:
        import_files([tmp_path / "own.py"])
        configs = read_grid(tmp_path / "grid.yaml")
        runs = {name: load_or_run(config, progress=False) for name, [config] in configs.items()}
    finally:
        sys.modules.pop("own", None)
        for registry, name in registries:
            registry.pop(name, None)
    assert [*runs] == ["my adapter", "my sampler", "my method"]
    assert all(run.cost["steps"] == 2 for run in runs.values())


def test_a_file_is_run_once_however_it_is_named(tmp_path, monkeypatch, capsys):
    """A worker may be in the process that leads the sweep."""
    monkeypatch.setattr("mtbert_lab.own_code.imported", [])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "told.py").write_text("print('run')")
    import_files(["told.py", tmp_path / "told.py"])
    assert capsys.readouterr().out == "run\n"


@pytest.mark.parametrize(
    "name, message",
    [("none.py", "no such file"), ("a b.py", "no name of a Python module"), ("json.py", "'json' already")],
)
def test_a_file_that_cannot_be_imported_is_named(tmp_path, name, message):
    if name != "none.py":
        (tmp_path / name).write_text("")
    with pytest.raises(SourceError, match=message):
        import_files([tmp_path / name])
