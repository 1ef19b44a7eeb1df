"""Run All, and Run All again in the same kernel: no error, and the same texts."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from mtbert.paths import REPOSITORY

NOTEBOOKS = REPOSITORY / "notebooks"
SHORTER = {"10_demo": "steps = 2\nplans = plans[:1]"}  # behind the parameters of a notebook that trains
TEXTS = ("text/markdown", "text/plain")


def code_of(name: str) -> list[NotebookNode]:
    """The notebook's cells of code, with an own one behind its parameters where it would train for long."""
    cells = [cell for cell in nbformat.read(NOTEBOOKS / f"{name}.ipynb", 4).cells if cell.cell_type == "code"]
    if name in SHORTER:
        [place] = [i for i, cell in enumerate(cells) if "parameters" in cell.metadata.get("tags", [])]
        cells.insert(place + 1, nbformat.v4.new_code_cell(SHORTER[name]))
    return cells


def texts(cell: NotebookNode) -> list[str]:
    """What a cell prints and shows as text; nothing where nbval does not compare it either."""
    if "nbval-ignore-output" in cell.metadata.get("tags", []):
        return []
    found = []
    for output in cell.outputs:
        if output.output_type == "stream":
            found.append(output.text)
        else:
            found += [output.data[kind] for kind in TEXTS if kind in output.data]
    return found


NAMES = [
    "01_implement",
    "04_sharing_methods",
    pytest.param("08_error_analysis", marks=pytest.mark.slow),
    pytest.param("10_demo", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_says_the_same_when_it_runs_again_in_its_kernel(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MTBERT_RESULTS", str(REPOSITORY / "results"))
    monkeypatch.setenv("MTBERT_FIGURES", str(tmp_path / "figures"))
    monkeypatch.setenv("MTBERT_CACHE", str(tmp_path / "cache"))
    once, again = code_of(name), code_of(name)
    for i, cell in enumerate(once + again):
        cell.id = f"cell-{i}"
    both = nbformat.v4.new_notebook(cells=once + again)
    resources = {"metadata": {"path": str(tmp_path)}}
    # A kernel on a slow machine sends what a cell prints in parts.
    NotebookClient(both, kernel_name="python3", resources=resources, coalesce_streams=True).execute()
    for first, second in zip(once, again, strict=True):
        assert texts(second) == texts(first), first.source
