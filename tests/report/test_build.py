"""mtbert.report on tiny notebooks: execution, errors, what is up to date, and pages that read offline."""

import os
import re
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from mtbert.report.build import MathTokens, ReportError, _select, build_report

CARD = """# A tiny notebook

It adds $a_1 * b < c$ for \\$5.

## Where $h^2$ is
$$\\mathrm{softmax}\\left(\\frac{QK^\\top}{\\sqrt{d_k}}\\right)V$$

`echo $HOME and $PATH`
"""
COUNT = """import os, sys
from pathlib import Path
Path("executions").open("a").write("x")
print(seed + 1, sys.executable, os.environ.get("MTBERT_RESULTS"), Path.cwd().name, data_dir)"""


def write_notebook(root, name, *sources, card=CARD):
    parameters = new_code_cell(
        "seed: int = 1  # random seed\ndata_dir: str = ''  # the datasets", metadata={"tags": ["parameters"]}
    )
    cells = [new_markdown_cell(card), parameters, *map(new_code_cell, sources)]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    (root / "notebooks").mkdir(exist_ok=True)
    nbformat.write(new_notebook(cells=cells, metadata=kernel), root / "notebooks" / f"{name}.ipynb")


@pytest.fixture
def root(tmp_path):
    """A project with the profiles demo and cpu, one package file, and no notebook yet."""
    for folder in ("params/demo", "params/cpu", "mtbert", "results"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "mtbert" / "code.py").write_text("ANSWER = 42\n")
    return tmp_path


def executions(root):
    return len((root / "build/report/executions").read_text())


def printed(root, name):
    cells = nbformat.read(root / "build/report" / f"{name}.ipynb", as_version=4).cells
    return "".join(out.get("text", "") for cell in cells for out in cell.get("outputs", []))


def test_executes_with_parameters_and_exports_pages_that_read_offline(root, capsys):
    write_notebook(root, "01_tiny", COUNT)
    (root / "params/demo/01_tiny.yaml").write_text("seed: 40\n")
    (root / "my data").mkdir()
    before = os.environ["MTBERT_RESULTS"]
    index = build_report(data=root / "my data", root=root)

    assert index == root / "build/report/index.html"
    output = root / "build/report"
    expected = f"41 {sys.executable} {output / 'results'} report {root / 'my data'}\n"
    assert printed(root, "01_tiny") == expected
    assert os.environ["MTBERT_RESULTS"] == before
    shown = capsys.readouterr().out
    assert re.match(r"\[1/1\] 01_tiny \.\.\. \d+ s\nThe report: .*index\.html\n$", shown)

    page = (output / "01_tiny.html").read_text()
    assert "<title>A tiny notebook</title>" in page
    assert page.count("<math") == 3 and page.count('display="block"') == 1
    assert "<mfrac>" in page and "<msqrt>" in page
    assert "echo $HOME and $PATH" in page
    assert not re.search(r"""<(script|link|img)[^>]+(src|href)=["'](https?:)?//""", page)
    assert not re.search(r"mathml\d+token(?![^<>]*>)", page)
    listing = index.read_text()
    assert '<a href="01_tiny.html">A tiny notebook</a>' in listing
    assert "It adds <math" in listing and "profile demo" in listing and "torch 2" in listing


def test_what_is_up_to_date_is_not_executed_again(root):
    write_notebook(root, "01_tiny", COUNT)
    build_report(root=root)
    build_report(root=root)
    assert executions(root) == 1
    (root / "params/demo/01_tiny.yaml").write_text("seed: 2\n")
    build_report(root=root)
    assert executions(root) == 2
    (root / "mtbert/code.py").write_text("ANSWER = 43\n")
    build_report(root=root)
    assert executions(root) == 3
    build_report(root=root, force=True)
    assert executions(root) == 4


def test_results_that_a_notebook_stores_itself_do_not_make_it_stale(root, monkeypatch):
    monkeypatch.setenv("MTBERT_RESULTS", str(root / "results"))
    store = "\nPath(os.environ['MTBERT_RESULTS'], 'run.csv').write_text('0.5')"
    write_notebook(root, "01_stores", COUNT + store)
    build_report("cpu", root=root)
    build_report("cpu", root=root)
    assert executions(root) == 1
    (root / "results/run.csv").write_text("0.6")
    build_report("cpu", root=root)
    assert executions(root) == 2


def test_demo_results_of_other_code_are_thrown_away(root):
    write_notebook(root, "01_tiny", "import os\nprint(os.listdir(os.environ['MTBERT_RESULTS']))")
    build_report(root=root)
    (root / "build/report/results/old_run.csv").write_text("0.5")
    build_report(root=root)
    assert printed(root, "01_tiny") == "['old_run.csv']\n"
    (root / "mtbert/code.py").write_text("ANSWER = 43\n")
    build_report(root=root)
    assert printed(root, "01_tiny") == "[]\n"


def test_stops_at_the_first_failing_cell_and_shows_it(root):
    write_notebook(root, "01_tiny", COUNT)
    write_notebook(root, "02_fails", "x = 1", "numbers = [1, 2]\nnumbers[seed + 1]")
    write_notebook(root, "03_never", COUNT)
    for _ in range(2):  # the second time: the first notebook is up to date, the failed one is not
        with pytest.raises(ReportError) as caught:
            build_report(root=root)
        assert str(caught.value).splitlines()[:4] == [
            "02_fails.ipynb failed in cell [3]:",
            "    numbers = [1, 2]",
            "    numbers[seed + 1]",
            "IndexError: list index out of range",
        ]
    assert executions(root) == 1
    assert not (root / "build/report/index.html").exists()


def test_only_selects_by_number_or_name(root):
    write_notebook(root, "01_tiny")
    write_notebook(root, "03_single_task")
    build_report(only="03", root=root)
    listing = (root / "build/report/index.html").read_text()
    assert "03_single_task.html" in listing and "01_tiny" not in listing

    paths = sorted((root / "notebooks").glob("*.ipynb"))
    for only in ("3", "03_sing", "single_task"):
        assert _select(paths, only) == paths[1:]
    assert _select(paths, None) == paths
    with pytest.raises(ReportError, match="no notebook '07' found; there are: 01_tiny, 03_single_task"):
        _select(paths, "07")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sed: 2\n", r"demo/01_tiny\.yaml: sed is not in .* which has: data_dir, seed"),
        ("- seed\n", r"demo/01_tiny\.yaml: expected lines 'name: value', found a list"),
    ],
)
def test_wrong_parameters_are_errors_before_anything_runs(root, text, message):
    write_notebook(root, "01_tiny", COUNT)
    (root / "params/demo/01_tiny.yaml").write_text(text)
    with pytest.raises(ReportError, match=message):
        build_report(root=root)
    assert not (root / "build").exists()


def test_unknown_profile_and_missing_data_are_named(root):
    write_notebook(root, "01_tiny", COUNT)
    with pytest.raises(ReportError, match="unknown profile 'gpux'; params/ has: cpu, demo"):
        build_report("gpux", root=root)
    with pytest.raises(ReportError, match=r"there is no folder .*nowhere"):
        build_report(data=root / "nowhere", root=root)


@pytest.mark.parametrize(
    ("markdown", "formulas"),
    [
        ("$x$ and $y_1$", 2),
        ("$$\na = b\n$$", 1),
        ("costs $5 and $6", 0),
        (r"an escaped \$x\$", 0),
        ("`$x$` and ``a ` $y$``", 0),
        ("```\n$x$\n```\nthen $z$", 1),
        ("| $|x|$ | $\\alpha$ |", 2),
    ],
)
def test_math_is_told_from_dollar_signs(markdown, formulas):
    math = MathTokens()
    text = math.take(markdown)
    assert len(math.formulas) == formulas
    assert (text == markdown) == (formulas == 0)
    assert math.put(text).count("<math") == formulas


def test_an_unreadable_formula_is_shown_as_written():
    math = MathTokens()
    assert math.put(math.take(r"see $\left( <$ here")) == r"see <code>$\left( &lt;$</code> here"
