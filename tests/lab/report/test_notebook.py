"""The notebooks as committed, and what they share (`mtbert_lab.report.notebook`)."""

import ast
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import pandas as pd
import papermill
import pytest
import yaml
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook
from traitlets.config import Config

from mtbert.bert import BertConfig, BertModel
from mtbert.config import ConfigError
from mtbert.data.tasks import TASKS, read_tasks
from mtbert.paths import REPOSITORY
from mtbert_lab.paths import stores
from mtbert_lab.report import notebook, plots
from mtbert_lab.store import read_grids

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
WITHOUT_HISTORY = Config({"HistoryManager": {"enabled": False}})  # its database would outlive its folder
every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def namespace(**values):
    """A notebook's globals behind a parameters cell `seed: int = 1; rate: float = 0.1; name: str = "a"`, and values
    that papermill has injected.
    """
    declared = {"seed": int, "rate": float, "name": str}
    injected = "\n".join(["# Parameters", *(f"{name} = {value!r}" for name, value in values.items())])
    cells = ["", "seed: int = 1", injected, "notebook.parameters(globals())"]
    hidden = {"In": cells, "_": 3, "__name__": "__main__", "RATES": [1], "found": "of a later cell", "Path": Path}
    return {"__annotations__": declared, "seed": 1, "rate": 0.1, "name": "a", **hidden, **values}


def test_a_float_may_be_an_int_or_a_yaml_string():
    assert notebook.parameters(namespace(rate="1e-5"))["rate"] == 1e-5
    assert notebook.parameters(namespace(rate=1))["rate"] == 1.0


def test_a_truth_value_may_be_written_as_in_yaml():
    """Papermill's -p gives true and false as texts."""
    given = namespace() | {"again": "true"}
    given["__annotations__"] = {**given["__annotations__"], "again": bool}
    assert notebook.parameters(given)["again"] is True
    with pytest.raises(ConfigError, match="again: expected bool, got 'yes'"):
        notebook.parameters(given | {"again": "yes"})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sed": 2}, "sed: no parameter of this notebook; it has seed, rate, name"),
        ({"seed": "2"}, "seed: expected int, got '2'"),
        ({"seed": True}, "seed: expected int, got True"),
        ({"rate": "fast"}, "rate: expected float, got 'fast'"),
        ({"name": None}, "name: expected str, got None"),
        ({"SEED": 2}, "SEED: no parameter of this notebook"),
        ({"_seed": 2}, "_seed: no parameter of this notebook"),
        ({"rate": float("nan")}, "rate: expected float, got nan"),
        ({"rate": "inf"}, "rate: expected float, got inf"),
    ],
)
def test_unknown_and_wrong_parameters_are_named(values, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        notebook.parameters(namespace(**values))


@pytest.fixture
def run_cells(isolated, monkeypatch) -> Iterator[Callable[[Path, dict], str]]:
    """Runs the cells of a notebook with papermill's parameters; gives what they print and show.

    They run in this process, as a kernel would import all again. An error of a cell is raised.
    """
    monkeypatch.setenv("IPYTHONDIR", str(isolated / "ipython"))
    monkeypatch.setattr(plots, "_shown", [])

    def run_cells(path: Path, values: dict) -> str:
        given = parameterize_notebook(load_notebook_node(str(path)), values)
        InteractiveShell.clear_instance()
        shell = InteractiveShell.instance(config=WITHOUT_HISTORY)
        with capture_output() as captured:
            for cell in given.cells:
                shell.run_cell(cell.source, store_history=True).raise_error()
        return "\n".join([captured.stdout, *(shown_text({"data": output.data}) for output in captured.outputs)])

    with plt.rc_context(), pd.option_context("display.max_colwidth", pd.get_option("display.max_colwidth")):
        yield run_cells
    InteractiveShell.clear_instance()


def shown_text(output: dict) -> str:
    """What a reader sees of a cell's output, or what it printed."""
    data = output.get("data", {})
    return data.get("text/markdown", "") or data.get("text/html", "") or output.get("text", "")


def test_papermill_injects_declared_parameters_and_others_are_refused(run_cells, tmp_path):
    cells = [
        new_code_cell("seed: int = 1  # a number", metadata={"tags": ["parameters"]}),
        new_code_cell("from mtbert_lab.report import notebook\nprint(notebook.parameters(globals()))"),
    ]
    kernel = {"kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"}}
    nbformat.write(new_notebook(cells=cells, metadata=kernel), tmp_path / "a.ipynb")
    assert run_cells(tmp_path / "a.ipynb", {"seed": 2}).strip() == "{'seed': 2}"
    with pytest.raises(ConfigError, match="sed: no parameter of this notebook; it has seed"):
        run_cells(tmp_path / "a.ipynb", {"sed": 2})


def test_findings_and_tables_are_shown_unless_empty(shown):
    table = pd.DataFrame({"claim": ["a < b"], "number": [None]})
    notebook.display_markdown("")
    notebook.listing(table.iloc[:0])
    assert not shown
    notebook.display_markdown("**Finding.** 3 of 4")
    notebook.listing(table)
    notebook.collapsible(table, "1 claim & more")
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
    assert any('<img class="figure"' in output.get("data", {}).get("text/html", "") for output in outputs)
    assert not re.search(r"(?<![\w.:/<-])/(home|root|work|tmp|Users)/", path.read_text(encoding="utf8"))
    for cell in cells:  # folded in JupyterLab as on the site, but parameters, which a reader changes
        tags = cell.metadata.get("tags", [])
        is_folded = cell.metadata.get("jupyter", {}).get("source_hidden", False)
        assert is_folded == ("hide-input" in tags and "parameters" not in tags)


@every_notebook
def test_code_in_the_text_imports_what_is_there(path):
    """Solutions and examples, which nobody executes with the page."""
    cells = [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "markdown"]
    for block in re.findall(r"```python\n(.*?)```", "\n".join(cells), flags=re.DOTALL):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("mtbert"):
                module = importlib.import_module(node.module)
                for name in node.names:
                    assert hasattr(module, name.name), f"{node.module} has no {name.name}"


@every_notebook
def test_pages_of_the_reports_own_runs_read_them_in_every_profile(path):
    """In the demo profile the store has no run of params/cpu."""
    source = "\n".join(cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "code")
    reads_own = re.search(r'read_runs\(\s*"cpu"|find_result\("claims.csv"\)', source)
    assert bool(reads_own) == ("notebook.use_committed_store(profile)" in source)


@pytest.mark.parametrize("profile, committed", [("demo", True), ("cpu", False)])
def test_in_the_demo_profile_the_committed_runs_are_read(profile, committed):
    notebook.use_committed_store(profile)
    assert (stores() == [REPOSITORY / "results"]) == committed


@every_notebook
def test_no_committed_sentence_contradicts_the_stored_runs(path):
    assert "no longer say this" not in path.read_text(encoding="utf8")


@every_notebook
def test_notebook_takes_a_seed_and_its_profiles_name_its_parameters(path):
    declared = papermill.inspect_notebook(path)
    assert "seed" in declared
    [cell] = [cell for cell in nbformat.read(path, 4).cells if "parameters" in cell.metadata.get("tags", [])]
    assert all(re.fullmatch(r"\w+: \w+ = .+  # .+", line) for line in cell.source.splitlines())
    for file in sorted((REPOSITORY / "params").glob(f"*/{path.stem}.yaml")):
        unknown = yaml.safe_load(file.read_text(encoding="utf8")).keys() - declared.keys()
        assert not unknown, f"{file.relative_to(REPOSITORY)}: {unknown}"


@every_notebook
def test_the_parameters_of_a_kernel_that_has_run_the_notebook_are_read_again(path):
    """Every name that a cell of the notebook assigns has a plain value when its first cells run again."""
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    [declaring] = [cell.source for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    kernel = {"In": [cell.source for cell in cells]}
    exec(declaring, kernel)
    before = notebook.parameters(kernel)
    kernel |= dict.fromkeys(assigned(cells), "of the first time")
    exec(next_seed(declaring), kernel)
    after = notebook.parameters(kernel)
    assert after == {**before, "seed": before["seed"] + 1}


def next_seed(source: str) -> str:
    """A parameters cell with another seed."""
    return re.sub(r"(?<=seed: int = )\d+", lambda default: str(int(default[0]) + 1), source)


@pytest.mark.slow  # all of them take minutes
@every_notebook
def test_a_notebook_runs_twice_in_one_kernel_with_a_changed_parameter(path, isolated, monkeypatch):
    monkeypatch.setenv("MTBERT_RESULTS", str(REPOSITORY / "results"))
    monkeypatch.setenv("JUPYTER_PATH", f"{sys.prefix}/share/jupyter")
    once, again = (nbformat.read(path, 4) for _ in range(2))
    [declaring] = [cell for cell in again.cells if "parameters" in cell.metadata.get("tags", [])]
    declaring.source = next_seed(declaring.source)
    for number, cell in enumerate(again.cells):
        cell.id = f"again-{number}"
    once.cells += again.cells
    NotebookClient(once, kernel_name="python3", resources={"metadata": {"path": str(isolated)}}).execute()


OWN_GRID = """
base: {{corpus: demo, encoder: {encoder}, tasks: [sst, quora, sts], scheme: unified, batch_size: 4, epochs: 1,
  steps_per_epoch: 2, train_rows: 40, max_length: 32}}
runs:
  together: {{plan: 1-bert}}
  half: {{plan: hybrid-1}}
  apart: {{plan: 3-bert}}
  sst only: {{tasks: [sst], scheme: sampled}}
  quora only: {{tasks: [quora], scheme: sampled}}
"""


@pytest.fixture
def executed_for_own_grid(run_cells, tiny_encoder, isolated, monkeypatch, run_of):
    """Executes some cells of a notebook for a grid of one's own; gives the texts that they show.

    in_kernel: in a kernel, which trains the runs, too; they are trained before, in this process, otherwise.
    """
    monkeypatch.setenv("JUPYTER_PATH", f"{sys.prefix}/share/jupyter")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    grid = isolated / "mine.yaml"

    def execute(name: str, cells: list[int], own: str = OWN_GRID, in_kernel: bool = False) -> str:
        grid.write_text(own.format(encoder=tiny_encoder))
        content, some = nbformat.read(REPOSITORY / f"notebooks/{name}.ipynb", 4), isolated / "some.ipynb"
        content.cells = [content.cells[i] for i in cells]
        nbformat.write(content, some)
        given = dict(grid=str(grid), train_missing=True, device="cpu")
        if "profile" in papermill.inspect_notebook(some):
            given["profile"] = "demo"
        if not in_kernel:
            for _, config in read_grids([grid]):
                run_of(config)
            return run_cells(some, given)
        about = dict(kernel_name="python3", cwd=isolated, progress_bar=False)
        done = papermill.execute_notebook(some, isolated / "done.ipynb", given, **about)
        shown = [output for cell in done.cells for output in cell.get("outputs", ())]
        return "\n".join(shown_text(output) for output in shown)

    return execute


def test_notebook_08_takes_its_systems_from_a_grid(executed_for_own_grid):
    text = executed_for_own_grid("08_error_analysis", [1, 2, 3, 4])
    assert "*alone* is left out: no run of STS alone is stored." in text
    assert "the plan with the highest overall dev score of the three" in text and "half" in text
    assert "paper" not in text.lower() and notebook.SYNTHETIC not in text


COMPARE = "compare_your_runs"


def test_single_tasks_of_a_grid_have_no_reference_among_several(executed_for_own_grid):
    text = executed_for_own_grid(COMPARE, [1, 2, 3, 5])
    assert "half minus together" in text or "apart minus together" in text
    assert "no other stored run has the same tasks: *sst only* and *quora only*." in text
    assert ">half<" in text and "Figure 1." in text


TWO_ENCODERS = """
base: {{corpus: demo, tasks: [sst, tickets], scheme: unified, batch_size: 4, epochs: 1, steps_per_epoch: 2,
  train_rows: 40, max_length: 32}}
runs:
  first: {{encoder: {encoder}}}
  other: {{encoder: narrow}}
  other and slow: {{encoder: narrow, learning_rate: 1.0e-9}}
"""
TICKETS = """
name: tickets
files: tickets-{split}.csv
sentence_columns: [text]
label_column: topic
id_column: null
kind: classes
class_names: [login, parcel]
metric: macro_f1
separator: ","
"""


@pytest.fixture
def tickets(isolated, monkeypatch):
    """A task of one's own, of whose 99 training rows four have no text; and another encoder, in the folder narrow."""
    (isolated / "tasks").mkdir()
    monkeypatch.setenv("MTBERT_TASKS", str(isolated / "tasks"))
    (isolated / "tasks/tickets.yaml").write_text(TICKETS)
    rows = [f"my {topic} is late {i},{topic}" for i in range(48) for topic in ("login", "parcel")][:95]
    for split, missing in (("train", 4), ("dev", 0)):
        lines = ["text,topic", *rows, *[",login"] * missing]
        (isolated / f"tasks/tickets-{split}.csv").write_text("\n".join(lines) + "\n")
    shape = dict(hidden_size=16, num_attention_heads=2, num_hidden_layers=2, intermediate_size=24)
    BertModel(BertConfig(**shape)).save_pretrained(isolated / "narrow", tokenizer="minilm")
    monkeypatch.setitem(TASKS, "tickets", read_tasks(isolated / "tasks")["tickets"])


def test_the_encoders_of_a_grid_are_compared(executed_for_own_grid, tickets):
    """It had no runs of its questions; rejected rows were told twice, and no metric of the user's was named."""
    text = executed_for_own_grid(COMPARE, [1, 2, 3, 5, 7], TWO_ENCODERS, in_kernel=True)
    assert "Runs that are not stored and are trained now, one after the other: 3." in text
    assert "The score of these runs is accuracy on SST and macro F1 on tickets. *overall* is the mean" in text
    assert "**Answer.**" in text and re.search(r"other( and slow)? minus first, ", text)
    assert ">encoder<" in text and ">learning_rate<" in text and ">warmup<" not in text, "what the runs differ in"
    assert text.count("tickets-train.csv: 99 rows, 95 accepted, 4 rejected") == 1
    assert "tickets-train.csv:97" not in text and "Warning" not in text


def test_runs_of_other_tasks_have_no_difference(executed_for_own_grid, tickets):
    grid = TWO_ENCODERS.replace("{{encoder: narrow}}", "{{encoder: narrow, tasks: [tickets], scheme: sampled}}")
    text = executed_for_own_grid(COMPARE, [1, 2, 3], grid)
    assert "other and slow minus first, " in text and ">other minus" not in text


EQUAL = """
base: {{corpus: demo, encoder: {encoder}, tasks: [sst, sts, tickets], scheme: unified, batch_size: 4, epochs: 1,
  steps_per_epoch: 2, train_rows: 40, max_length: 32, learning_rate: 1.0e-12}}
runs:
  whole: {{plan: 1-bert}}
  half: {{plan: hybrid-1}}
"""


def test_doubts_come_before_the_answer_about_runs_with_equal_scores(executed_for_own_grid, tickets):
    text = executed_for_own_grid(COMPARE, [1, 2, 3, 5], EQUAL)
    assert text.index("**Scores that say little:**") < text.index("**Answer.**")
    assert "half minus whole" in text and "Figure 1." in text


def assigned(cells) -> set[str]:
    """The global names that cells assign, functions and imports left out."""
    nodes = [node for cell in cells for statement in ast.parse(cell.source).body for node in ast.walk(statement)]
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def test_committed_figures_are_small():
    large = [path.name for path in (REPOSITORY / "figures").iterdir() if path.stat().st_size > 300_000]
    assert not large
