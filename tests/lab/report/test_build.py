"""mtbert_lab.report on tiny notebooks: execution, errors, what is up to date, what an interruption leaves."""

import inspect
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import nbformat
import papermill
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from mtbert.config import ConfigError
from mtbert.paths import REPOSITORY
from mtbert_lab.report import build
from mtbert_lab.report.build import ReportError, build_report

COUNT = """import os, sys
from pathlib import Path
Path("executions").open("a").write("x")
threads = os.environ.get("OMP_NUM_THREADS")
print(seed + 1, sys.executable, os.environ.get("MTBERT_RESULTS"), Path.cwd().name, data_dir, threads)"""


def write_notebook(root, name, *sources):
    declared = "seed: int = 1  # random seed\ndata_dir: str = ''  # the datasets\ntrain_missing: bool = False  # train"
    parameters = new_code_cell(declared, metadata={"tags": ["parameters"]})
    cells = [new_markdown_cell("# A tiny notebook\n\nDoes it add?"), parameters, *map(new_code_cell, sources)]
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


@pytest.fixture
def no_site(monkeypatch):
    """Sphinx takes seconds: the notebooks are executed alone."""
    monkeypatch.setattr(build, "_build_site", lambda output: output.parent / "report" / "index.html")


@pytest.fixture
def in_process(monkeypatch):
    """A kernel takes a second: the cells are executed in this process."""

    def execute(notebook, output, values, **how):
        content, names = nbformat.read(notebook, as_version=4), {}
        for cell in content.cells:
            if cell.cell_type == "code":
                exec(cell.source, names)
                if "parameters" in cell.metadata.get("tags", []):
                    names |= values
        content.metadata["papermill"] = {}
        nbformat.write(content, output)

    monkeypatch.setattr(papermill, "execute_notebook", execute)


def later(file, text):
    """Write a file after the next tick of the file system's clock, which comes every 4 ms."""
    time.sleep(0.02)
    file.write_text(text)


def executions(root):
    return len((root / "build/executed/executions").read_text())


def executed(root):
    pages = sorted((root / "build/executed").glob("*.ipynb"))
    return [page.stem for page in pages if "papermill" in nbformat.read(page, as_version=4).metadata]


def printed(root, name):
    cells = nbformat.read(root / "build/executed" / f"{name}.ipynb", as_version=4).cells
    return "".join(out.get("text", "") for cell in cells for out in cell.get("outputs", []))


def test_executes_with_parameters_and_builds_the_site(root, quick_site, capsys):
    write_notebook(root, "01_tiny", COUNT)
    (root / "params/demo/01_tiny.yaml").write_text("seed: 40\n")
    (root / "my data").mkdir()
    before = os.environ["MTBERT_RESULTS"]
    index = build_report("demo", data=root / "my data", root=root)

    assert index == root / "build/report/index.html"
    assert printed(root, "01_tiny") == f"41 {sys.executable} build/executed/results executed my data 1\n"
    assert str(root) not in (root / "build/report/_sources/01_tiny.ipynb").read_text()
    assert os.environ["MTBERT_RESULTS"] == before
    shown = capsys.readouterr().out
    first = r"The site: .*index\.html; notebooks to execute: 1"
    assert re.fullmatch(first + r"\n\[1/1\] after \d+ s: 01_tiny\n", shown)

    assert "profile demo" in (root / "build/report/01_tiny.html").read_text()
    assert ">40<" in (root / "build/report/params.html").read_text()
    front = index.read_text()
    assert 'href="01_tiny.html">' in front and "Does it add?" in front and "torch 2" in front


def test_the_committed_outputs_are_a_site_before_a_notebook_is_executed(root, quick_site, monkeypatch):
    write_notebook(root, "01_tiny", COUNT)
    write_notebook(root, "02_fails", "1 / 0")
    committed = nbformat.read(root / "notebooks/01_tiny.ipynb", as_version=4)
    committed.cells[2].outputs = [nbformat.v4.new_output("stream", text="as committed")]
    nbformat.write(committed, root / "notebooks/01_tiny.ipynb")
    page, seen = root / "build/report/01_tiny.html", []
    with monkeypatch.context() as patch:
        patch.setattr(build, "_execute_pages", lambda *how: seen.append(page.read_text()) or [])
        build_report("cpu", root=root)
    assert "as committed" in seen[0] and "with the outputs that the repository holds" in seen[0]
    assert "All of these pages show the outputs that the repository holds" in (page.parent / "index.html").read_text()
    with pytest.raises(ReportError, match="ZeroDivisionError"):
        build_report("cpu", root=root)
    assert "as committed" not in page.read_text() and "with profile cpu in" in page.read_text()
    front = (page.parent / "index.html").read_text()
    assert "1 of these pages show the outputs that the repository holds" in front and 'href="02_fails.html"' in front


def test_what_is_up_to_date_is_not_executed_again(root, no_site, in_process):
    write_notebook(root, "01_tiny", COUNT + '\ngrid = "sweep"')
    grid = root / "params/demo/sweep.yaml"
    grid.write_text("runs: {}\n")
    (root / "params/demo/other.yaml").write_text("runs: {}\n")
    build_report("demo", root=root)
    later(root / "params/demo/other.yaml", "runs: {a: {}}\n")
    build_report("demo", root=root)
    assert executions(root) == 1
    changes = {root / "params/demo/01_tiny.yaml": "seed: 2\n", root / "mtbert/code.py": "ANSWER = 43\n"}
    changes |= {grid: "runs: {a: {}}\n", root / "results/claims.csv": "verdict\n", root / "mtbert/demo.csv": "id\n"}
    for count, (file, text) in enumerate(changes.items(), start=2):
        later(file, text)
        build_report("demo", root=root)
        assert executions(root) == count, file.name
    build_report("demo", root=root, force=True)
    assert executions(root) == count + 1
    (root / "notebooks/01_tiny.ipynb").rename(root / "notebooks/02_tiny.ipynb")
    build_report("demo", root=root)
    assert executed(root) == ["02_tiny"]


@pytest.mark.parametrize("content", [b"", b"\xff", b"[1]"])
def test_a_damaged_page_is_made_again(root, no_site, in_process, content):
    write_notebook(root, "01_tiny", COUNT)
    build_report("demo", root=root)
    (root / "build/executed/01_tiny.ipynb").write_bytes(content)
    build_report("demo", root=root)
    assert executions(root) == 2


def test_results_that_a_notebook_stores_itself_do_not_make_it_stale(root, monkeypatch, no_site, in_process):
    monkeypatch.setenv("MTBERT_RESULTS", str(root / "results"))
    store = "\nPath(os.environ['MTBERT_RESULTS'], 'run.csv').write_text('0.5')"
    write_notebook(root, "01_stores", COUNT + store)
    build_report("cpu", root=root)
    build_report("cpu", root=root)
    assert executions(root) == 1
    later(root / "results/run.csv", "0.6")
    build_report("cpu", root=root)
    assert executions(root) == 2


def test_notebooks_are_stale_when_a_later_one_stores_results(root, monkeypatch, no_site, in_process):
    monkeypatch.setenv("MTBERT_RESULTS", str(root / "results"))
    write_notebook(root, "01_counts", COUNT)
    build_report("cpu", root=root)
    write_notebook(root, "02_stores", "import os, time\nfrom pathlib import Path\ntime.sleep(0.02)\n"
                   "Path(os.environ['MTBERT_RESULTS'], 'run.csv').write_text('0.5')")  # fmt: skip
    build_report("cpu", root=root)
    assert executions(root) == 1, "it was up to date"
    build_report("cpu", root=root)
    assert executions(root) == 2, "and is not any more"


def test_folders_that_variables_name_are_those_of_the_caller(root, monkeypatch, no_site, in_process):
    """Pages are executed in another folder."""
    monkeypatch.chdir(root)
    for name in build.FOLDERS:
        monkeypatch.setenv(name, "mine")
    monkeypatch.delenv("MTBERT_CACHE")
    write_notebook(root, "01_tiny", f"import os\nseen = [os.environ.get(name) for name in {build.FOLDERS}]\n"
                   f"open({str(root / 'seen')!r}, 'w').write(str(seen))")  # fmt: skip
    build_report("cpu", root=root)
    folders = [None if name == "MTBERT_CACHE" else str(root / "mine") for name in build.FOLDERS]
    assert (root / "seen").read_text() == str(folders)
    assert os.environ["MTBERT_DATA"] == "mine"


def test_demo_results_of_other_code_are_thrown_away(root, no_site, in_process):
    write_notebook(root, "01_tiny")
    build_report("demo", root=root)
    results = root / "build/executed/results"
    (results / "old_run.csv").write_text("0.5")
    build_report("demo", root=root)
    assert (results / "old_run.csv").exists()
    build_report("demo", root=root, force=True)
    assert not (results / "old_run.csv").exists()
    (results / "old_run.csv").write_text("0.5")
    later(root / "mtbert/code.py", "ANSWER = 43\n")
    build_report("demo", root=root)
    assert not (results / "old_run.csv").exists()


def test_code_that_changes_while_a_notebook_is_executed_makes_its_page_stale(root, no_site, in_process):
    touches = f"import time\nfrom pathlib import Path\ntime.sleep(0.02)\nPath({str(root / 'mtbert/code.py')!r}).touch()"
    write_notebook(root, "01_tiny", COUNT, touches)
    build_report("cpu", root=root)
    build_report("cpu", root=root)
    assert executions(root) == 2


def test_a_failing_cell_is_named_and_the_other_notebooks_are_kept(root, no_site, capsys):
    write_notebook(root, "01_tiny", COUNT)
    write_notebook(root, "02_fails", "x = 1", "numbers = [1, 2]\nnumbers[seed + 1]")
    write_notebook(root, "03_tiny", COUNT)
    for _ in range(2):  # the second time: only the failed one is executed
        with pytest.raises(ReportError) as caught:
            build_report("demo", root=root)
        assert str(caught.value).splitlines()[:4] == [
            "02_fails.ipynb failed in cell [3]:",
            "    numbers = [1, 2]",
            "    numbers[seed + 1]",
            "IndexError: list index out of range",
        ]
    assert executions(root) == 2
    assert re.search(r"\[\d/3\] after \d+ s: 02_fails failed: 02_fails\.ipynb failed in cell", capsys.readouterr().out)
    assert executed(root) == ["01_tiny", "03_tiny"]


def test_runs_are_trained_once_before_the_notebooks_that_read_them(
    root, tiny_encoder, no_site, capsys, threads_as_workers
):
    base = f"base: {{encoder: {tiny_encoder}, batch_size: 4, train_rows: 8, epochs: 1}}\n"
    (root / "params/demo/first.yaml").write_text(base + "runs: {a: {}}\n")
    (root / "params/demo/second.yaml").write_text(base + "runs: {the same: {}, b: {pooling: cls}}\n")
    for name, grid in (("01_one", "first"), ("02_two", "second")):
        code = f"import os\nprint(len(os.listdir(os.environ['MTBERT_RESULTS'] + '/runs')))  # of {grid}.yaml"
        write_notebook(root, name, code)
        (root / f"params/demo/{name}.yaml").write_text("train_missing: true\n")
    write_notebook(root, "03_needs_none")
    build_report("demo", root=root, workers=2)
    assert printed(root, "01_one") == printed(root, "02_two") == "2\n"
    shown = capsys.readouterr().out.splitlines()
    assert shown[1] == "0 of 2 are stored already"
    assert {line.split(":")[0].rpartition(" ")[2] for line in shown[2:4]} == {"first", "second"}
    assert {line.rpartition(" ")[2] for line in shown[4:]} == {"01_one", "02_two", "03_needs_none"}
    build_report("demo", root=root)
    assert "are stored already" not in capsys.readouterr().out


@pytest.fixture
def trains(root, tiny_encoder, no_site, monkeypatch) -> Path:
    """A notebook that trains a grid of two runs, of which one is predicted to take 90 minutes, the other 30."""
    write_notebook(root, "01_one", "# grid.yaml")
    (root / "params/gpu").mkdir()
    base = f"base: {{encoder: {tiny_encoder}, batch_size: 4, train_rows: 8, epochs: 1}}\n"
    for profile in ("cpu", "gpu"):
        (root / "params" / profile / "grid.yaml").write_text(base + "runs: {a: {}, b: {pooling: cls}}\n")
        (root / "params" / profile / "01_one.yaml").write_text("train_missing: true\n")

    def predict_runs(runs, *how, **more):
        return [replace(run, minutes=minutes) for run, minutes in zip(runs, (90.0, 30.0), strict=True)]

    monkeypatch.setattr(build, "predict_runs", predict_runs)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    return root


def test_a_report_predicts_how_long_training_takes_before_it_begins(trains, monkeypatch):
    monkeypatch.setattr(build, "_execute_pages", lambda *how: [])
    told = []
    monkeypatch.setattr("mtbert_lab.sweep.train_missing", lambda runs, *how, **more: told.extend(runs) or {})
    build_report("cpu", root=trains, workers=1)
    assert [run.minutes for run in told] == [90.0, 30.0]


def test_a_missing_gpu_is_named_first(trains):
    with pytest.raises(ReportError, match=r"the gpu profile has runs to train, and no GPU is available here; .*a, b"):
        build_report("gpu", root=trains)
    (trains / "params/gpu/grid.yaml").write_text("runs: {a: {encoder: no/such-encoder}}\n")
    with pytest.raises(ConfigError, match="no/such-encoder"):
        build_report("gpu", root=trains)


def test_a_notebook_whose_kernel_dies_is_executed_again(root, no_site, monkeypatch):
    write_notebook(root, "01_tiny", COUNT)
    execute, deaths = papermill.execute_notebook, ["Kernel died before replying to kernel_info"]

    def dying(*arguments, **options):
        if deaths:
            raise RuntimeError(deaths.pop())
        return execute(*arguments, **options)

    monkeypatch.setattr(papermill, "execute_notebook", dying)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    build_report("demo", root=root)
    assert executions(root) == 1
    deaths += ["it died"] * build.ATTEMPTS
    with pytest.raises(ReportError, match=r"01_tiny\.ipynb failed: it died"):
        build_report("demo", root=root, force=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_what_has_ended_is_kept_after_an_interruption_and_nothing_runs_on(root, no_site, number, wait_for):
    write_notebook(root, "01_tiny", COUNT)
    write_notebook(root, "02_slow", "import os, time\nopen('pid', 'w').write(str(os.getpid()))", "time.sleep(600)")
    output, front = root / "build/executed", root / "build/report/index.html"
    call = f"""
from mtbert_lab.report import build

def front_page(output):
    front = output.parent / "report" / "index.html"
    front.parent.mkdir(exist_ok=True)
    front.write_text("".join(f'href="{{page.stem}}.html"' for page in output.glob("*.ipynb")))
    return front

build._build_site = front_page
build.build_report("demo", workers=1, root={str(root)!r})"""
    unblock = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a background job of a shell ignores it
    process = subprocess.Popen([sys.executable, "-c", call], stderr=subprocess.DEVNULL, preexec_fn=unblock)
    wait_for(lambda: (output / "pid").exists() and front.exists() and 'href="01_tiny.html"' in front.read_text(), 200.0)
    process.send_signal(number)
    process.wait()
    assert executed(root) == ["01_tiny"]
    kernel = int((output / "pid").read_text())
    wait_for(lambda: not is_alive(kernel), 200.0)

    write_notebook(root, "02_slow", "print('fast now')")
    build_report("demo", root=root)
    assert executions(root) == 1 and printed(root, "02_slow") == "fast now\n"


def test_a_notebook_is_executed_for_each_grid(root, no_site, tiny_encoder, capsys, threads_as_workers, speeds):
    write_notebook(root, "01_tiny")
    write_notebook(root, "02_batch", "if 'bad' in grid:\n    raise KeyError(grid)\nprint(grid.split('/')[-1], seed)")
    notebook = root / "notebooks/02_batch.ipynb"
    notebook.write_text(notebook.read_text().replace("seed: int = 1", "grid: str = ''\\nseed: int = 1"))
    (root / "params/cpu/02_batch.yaml").write_text("seed: 7\ntrain_missing: true\n")
    base = f"base: {{encoder: {tiny_encoder}, batch_size: 4, train_rows: 8, epochs: 1, corpus: demo}}\n"
    grids = [root / f"{name}.yaml" for name in ("one", "bad", "two")]
    for number, grid in enumerate(grids, start=2):
        grid.write_text(base + f"runs: {{a: {{batch_size: {number}}}}}\n")
    with pytest.raises(ReportError, match=r"^02_batch-bad\.ipynb failed in cell \[3\]"):
        build_report("cpu", "02", grids=grids, root=root)
    assert printed(root, "02_batch-one") == "one.yaml 7\n" and printed(root, "02_batch-two") == "two.yaml 7\n"
    assert len(list(Path(os.environ["MTBERT_RESULTS"]).glob("runs/*/run.json"))) == 3
    capsys.readouterr()
    build_report("cpu", "02", grids=[grids[0], grids[2]], root=root)
    assert "notebooks to execute: 0" in capsys.readouterr().out
    build_report("cpu", "01", root=root)
    assert (root / "build/executed/02_batch-one.ipynb").exists(), "the pages of grids stay"
    (root / "other").mkdir()
    with pytest.raises(ReportError, match="have one name"):
        build_report("cpu", "02", grids=[grids[0], shutil.copy(grids[0], root / "other" / grids[0].name)], root=root)
    for grid, plan in zip(grids[1:], ("S9", "S7"), strict=True):
        grid.write_text(base + f"runs: {{a: {{plan: {plan}}}}}\n")
    with pytest.raises(ConfigError, match=r"(?s)^bad: a: 9 layers.*\ntwo: a: 7 layers"):
        build_report("cpu", "02", grids=grids, root=root)
    with pytest.raises(ReportError, match=r"--grid: 01_tiny\.ipynb has no parameter grid"):
        build_report("cpu", "01", grids=grids[:1], root=root)


def is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("only", ["03", "3", "03_sing", "single_task"])
def test_only_executes_one_notebook(root, no_site, in_process, only):
    """By its number, its name, or the start of it."""
    write_notebook(root, "01_tiny")
    write_notebook(root, "03_single_task")
    build_report("demo", only=only, root=root)
    assert executed(root) == ["03_single_task"]
    with pytest.raises(ReportError, match="no notebook '07' found; there are: 01_tiny, 03_single_task"):
        build_report("demo", only="07", root=root)


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
        build_report("demo", root=root)
    assert not (root / "build").exists()


def test_unknown_profile_and_missing_data_are_named(root):
    write_notebook(root, "01_tiny", COUNT)
    with pytest.raises(ReportError, match="unknown profile 'gpux'; params/ has: cpu, demo"):
        build_report("gpux", root=root)
    with pytest.raises(ReportError, match=r"there is no folder .*nowhere"):
        build_report("demo", data=root / "nowhere", root=root)


def test_data_that_no_notebook_takes_are_named(root, no_site, in_process):
    write_notebook(root, "01_tiny", "seed + 1")
    write_notebook(root, "02_takes", "seed + 1")
    without = root / "notebooks/01_tiny.ipynb"
    without.write_text(without.read_text().replace("data_dir: str = ''  # the datasets", "rows: int = 3  # rows"))
    with pytest.raises(ReportError, match=r"^--data: none of the notebooks chosen has a parameter data_dir$"):
        build_report("demo", "01", data=root, root=root)
    assert not (root / "build").exists()
    build_report("demo", data=root, root=root)
    assert executed(root) == ["01_tiny", "02_takes"]


def test_a_report_may_be_written_elsewhere(root, tmp_path, no_site, in_process):
    write_notebook(root, "01_tiny", COUNT)
    out = tmp_path / "out"
    assert build_report("demo", root=root, out=out) == out / "report" / "index.html"
    assert not (root / "build").exists()
    assert str(out) not in (out / "executed" / "01_tiny.ipynb").read_text()


def test_the_command_hands_its_options_on(mtbert, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(build, "build_report", lambda *how, **more: told.append(signature.bind(*how, **more)))
    signature = inspect.signature(build_report)
    options = ["--profile", "gpu", "--only", "03", "--data", "there", "--force", "--workers", "3", "--out"]
    grids = ["--grid", "a.yaml", "--grid", "b.yaml"]
    assert mtbert("report", *options, tmp_path, *grids).exit_code == 0
    assert told[0].arguments == {
        "profile": "gpu",
        "only": "03",
        "data": Path("there"),
        "force": True,
        "workers": 3,
        "grids": [Path("a.yaml"), Path("b.yaml")],
        "out": tmp_path,
    }


@pytest.mark.parametrize("inside", [True, False])
def test_the_command_writes_into_the_checkout_only_from_inside_of_it(mtbert, tmp_path, monkeypatch, inside):
    monkeypatch.chdir(REPOSITORY / "docs" if inside else tmp_path)
    asked = {}
    monkeypatch.setattr(build, "build_report", lambda *_, **options: asked.update(options))
    assert mtbert("report").exit_code == 0
    assert asked["out"] == (None if inside else tmp_path)


def test_imported_files_are_a_parameter_of_pages_for_a_grid(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "imported", ["own.py"])
    monkeypatch.chdir(tmp_path)
    notebook, params = REPOSITORY / "notebooks" / "compare_your_runs.ipynb", REPOSITORY / "params" / "cpu"
    [own] = build._read_pages([notebook], params, tmp_path, grids=[tmp_path / "grid.yaml"])
    assert own.values["imports"] == str(tmp_path / "own.py")
    [page] = build._read_pages([notebook], params, tmp_path)
    assert "imports" not in page.values
