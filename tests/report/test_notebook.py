"""The notebooks as committed, and what they share (`mtbert.notebook`)."""

import re
from pathlib import Path

import nbformat
import pandas as pd
import papermill
import pytest
import yaml

from mtbert.config import ConfigError
from mtbert.paths import REPOSITORY
from mtbert.report import notebook

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def namespace(**values):
    """A notebook's globals behind a parameters cell `seed: int = 1; rate: float = 0.1; name: str = "a"`."""
    declared = {"seed": int, "rate": float, "name": str}
    return {"__annotations__": declared, "seed": 1, "rate": 0.1, "name": "a", "In": [], "_": 3, "Path": Path, **values}


def test_declared_parameters_come_back_with_injected_values():
    assert notebook.parameters(namespace(seed=2)) == {"seed": 2, "rate": 0.1, "name": "a"}


def test_a_float_may_be_an_int_or_a_yaml_string():
    assert notebook.parameters(namespace(rate="1e-5"))["rate"] == 1e-5
    assert notebook.parameters(namespace(rate=1))["rate"] == 1.0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sed": 2}, "sed: no parameter of this notebook; it has seed, rate, name"),
        ({"seed": "2"}, "seed: expected int, got '2'"),
        ({"seed": True}, "seed: expected int, got True"),
        ({"rate": "fast"}, "rate: expected float, got 'fast'"),
        ({"name": None}, "name: expected str, got None"),
    ],
)
def test_unknown_and_wrong_parameters_are_named(values, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        notebook.parameters(namespace(**values))


def test_findings_and_tables_are_shown_unless_empty(monkeypatch):
    shown = []
    monkeypatch.setattr(notebook, "display", shown.append)
    table = pd.DataFrame({"claim": ["a < b"], "number": [None]})
    notebook.say("")
    notebook.listing(table.iloc[:0])
    assert not shown
    notebook.say("**Finding.** 3 of 4")
    notebook.listing(table)
    notebook.folded(table, "1 claim & more")
    said, listed, folded = (output.data for output in shown)
    assert said == "**Finding.** 3 of 4" and "a &lt; b" in listed and ">nan<" not in listed.lower()
    assert folded.startswith("<details><summary>1 claim &amp; more</summary>") and "a &lt; b" in folded


@every_notebook
def test_notebook_is_committed_executed_and_clean(path):
    assert path.stat().st_size < 1_000_000
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not re.search(r"(?<![\w.:/<-])/(home|root|work|tmp|Users)/", path.read_text(encoding="utf8"))


@every_notebook
def test_notebook_takes_a_seed_and_its_profiles_name_its_parameters(path):
    declared = papermill.inspect_notebook(path)
    assert "seed" in declared
    [cell] = [cell for cell in nbformat.read(path, 4).cells if "parameters" in cell.metadata.get("tags", [])]
    assert all(re.fullmatch(r"\w+: \w+ = .+  # .+", line) for line in cell.source.splitlines())
    for file in sorted((REPOSITORY / "params").glob(f"*/{path.stem}.yaml")):
        unknown = yaml.safe_load(file.read_text(encoding="utf8")).keys() - declared.keys()
        assert not unknown, f"{file.relative_to(REPOSITORY)}: {unknown}"
