"""Executes the notebooks with papermill, some at a time, and renders them with Sphinx into pages for offline use.

`out/executed` has a notebook for each page, whose metadata `mtbert` say what it was made with: at first the committed
outputs, then what papermill executed. The site is rendered at the beginning, and again whenever a notebook has ended.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import nbformat
import papermill
import psutil
import torch
from dask.system import CPU_COUNT
from papermill.exceptions import PapermillExecutionError
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace
from traitlets.config import Config

from mtbert.files import write_text
from mtbert.paths import REPOSITORY, folder_of
from mtbert.runtime import pick_device
from mtbert.strict_yaml import read_yaml
from mtbert_lab import sweep
from mtbert_lab.cost import predict_runs
from mtbert_lab.own_code import imported
from mtbert_lab.paths import results_dir
from mtbert_lab.store import read_grids

FOLDERS = ("MTBERT_DATA", "MTBERT_RESULTS", "MTBERT_CACHE", "MTBERT_FIGURES", "MTBERT_TASKS")  # variables that name one
MOST_WORKERS = 4  # by default; a run takes up to 1.5 GiB of memory
ATTEMPTS = 3  # to execute a notebook whose kernel dies
PROFILES = ("cpu", "demo", "gpu")  # the folders of params/ with parameters of notebooks
COMMITTED = "cpu"  # the profile of the outputs that the repository holds


class ReportError(RuntimeError):
    """The report could not be built; the message names the notebook or option and what is wrong with it."""


@dataclass(frozen=True)
class _Page:
    """A notebook to execute, for a grid of the user's own or for those of its profile."""

    notebook: Path
    file: Path  # what the site shows
    values: dict[str, Any]  # its parameters
    grids: list[Path]  # that it reads
    record: dict[str, Any]  # what it is made with

    @property
    def name(self) -> str:
        return self.file.stem

    def is_made(self, changed: float, **more: object) -> bool:
        """Whether the page is there, with the record it would get now, and newer than its notebook.

        changed: when the rest of what it shows was, in seconds since 1970. more: entries of its record.
        """
        changed = max(changed, self.notebook.stat().st_mtime)
        return _record(self.file) == self.record | more and self.file.stat().st_mtime >= changed


def build_report(
    profile: str,
    only: str = "",
    data: str | Path | None = None,
    force: bool = False,
    workers: int | None = None,
    grids: Sequence[Path] = (),
    root: str | Path = REPOSITORY,
    out: str | Path | None = None,
) -> Path:
    """Execute `root/notebooks/*.ipynb` with `root/params/<profile>/*.yaml`, build the site `out/report`.

    workers: notebooks and runs at a time, of one thread each; default: the cores, at most MOST_WORKERS. grids: every
    notebook is executed once for each of them, named by its parameter `grid`, as `<notebook>-<grid>.ipynb`. A page is
    up to date, and not executed again unless `force`, if its parameters are the same and neither its notebook, nor the
    packages, nor imported files, nor the results have changed since. Where a notebook has `train_missing: true`, the
    runs of its grids are trained before. The demo profile keeps its own results and figures in `out/executed`, and
    trains again when the code has changed or with `force`. out: default root/build. Returns the path of index.html.
    Raises ReportError: unknown profile, notebook, parameter or data folder, or failing runs and cells, when the other
    notebooks have ended; and ConfigError for runs that could not start, before one does.
    """
    root = Path(root).resolve()
    folder = Path(out or root / "build").resolve() / "executed"
    workers = workers or min(CPU_COUNT, MOST_WORKERS)
    params = _params_folder(root, profile)
    notebooks = sorted((root / "notebooks").glob("*.ipynb"))
    pages = _read_pages(_select(notebooks, only), params, folder, data, grids)
    folder.mkdir(parents=True, exist_ok=True)
    environment = {"JUPYTER_PATH": f"{sys.prefix}/share/jupyter", "OMP_NUM_THREADS": "1"}  # no kernel of the user's
    for name in FOLDERS:
        if named := folder_of(name):
            environment[name] = str(named.resolve())  # pages are executed in another folder
    if profile == "demo":
        store = _demo_store(root, folder, force)
        environment |= {"MTBERT_RESULTS": str(store), "MTBERT_FIGURES": str(folder / "figures")}
    with patch.dict(os.environ, environment):
        changed = _newest([*_packages(root), *_results(root), *map(Path, imported)])
        stale = [page for page in pages if force or not page.is_made(changed)]
        _remove_others(notebooks, folder, profile)
        if profile == COMMITTED:
            for page in _read_pages(notebooks, params, folder):
                _show_committed(page)
        index = _build_site(folder)
        print(f"The site: {os.path.relpath(index)}; notebooks to execute: {len(stale)}", flush=True)
        failures = _train(stale, profile, workers)
        failures += _execute_pages(stale, folder, workers)
    if failures:
        raise ReportError("\n\n".join(failures))
    return index


def _params_folder(root: Path, profile: str) -> Path:
    """The folder of the profile's parameters."""
    known = [name for name in PROFILES if (root / "params" / name).is_dir()]
    if profile not in known:
        raise ReportError(f"unknown profile {profile!r}; params/ has: {', '.join(known)}")
    return root / "params" / profile


def _select(notebooks: list[Path], only: str) -> list[Path]:
    """Those whose number or name, or the start of it, is `only`."""
    selected = [path for path in notebooks if re.match(rf"(0?|\d+_){re.escape(only)}", path.stem)]
    if not selected:
        raise ReportError(f"no notebook {only!r} found; there are: {', '.join(path.stem for path in notebooks)}")
    return selected


def _read_pages(
    notebooks: list[Path], params: Path, folder: Path, data: str | Path | None = None, grids: Sequence[Path] = ()
) -> list[_Page]:
    """The notebooks, each once for every grid of the user's own. params: of the profile, folder: of the pages."""
    if data is not None and not Path(data).is_dir():
        raise ReportError(f"--data: there is no folder {data}")
    pages = []
    for notebook in notebooks:
        for grid in grids or [None]:
            pages.append(_read_page(notebook, params, folder, data, grid))
    if len({page.name for page in pages}) < len(pages):
        raise ReportError(f"--grid: two of {', '.join(map(str, grids))} have one name, which is that of their pages")
    if data is not None and not any("data_dir" in page.values for page in pages):
        raise ReportError("--data: none of the notebooks chosen has a parameter data_dir")
    return pages


def _read_page(notebook: Path, params: Path, folder: Path, data: str | Path | None, grid: Path | None) -> _Page:
    """A notebook with what decides its content."""
    name = notebook.stem
    if grid:
        name += "-" + re.sub(r"[^\w.-]", "-", grid.stem)  # of a page, in paths and links
    values = _parameters(notebook, params, data, grid)
    own = values.get("grid")
    grids = [notebook.parents[1] / own] if own else _named_grids(notebook, params)
    files = [params / f"{notebook.stem}.yaml", *grids]
    inputs = [sorted(values.items()), *map(os.environ.get, FOLDERS)]
    record = {
        "profile": params.name,
        "params": {file.stem: file.read_text("utf8") for file in files if file.exists()},
        "inputs": hashlib.sha256(repr(inputs).encode()).hexdigest(),  # no folder of this machine, as others may read it
    }
    return _Page(notebook, folder / f"{name}.ipynb", values, grids, record)


def _parameters(notebook: Path, params: Path, data: str | Path | None, grid: Path | None) -> dict[str, Any]:
    """What the profile's folder has for the notebook, `grid`, and `data` and imported files where it takes them."""
    declared = papermill.inspect_notebook(notebook).keys()
    file = params / f"{notebook.stem}.yaml"
    where = f"params/{params.name}/{file.name}"
    values = {}
    if file.exists():
        values = read_yaml(file) or {}  # None: an empty file
    if not isinstance(values, dict):
        raise ReportError(f"{where}: expected lines 'name: value', found a {type(values).__name__}")
    if grid:
        if "grid" not in declared:
            raise ReportError(f"--grid: {notebook.name} has no parameter grid; --only names a notebook that has one")
        values["grid"] = str(grid.resolve())
        if imported:
            values["imports"] = ",".join(str(Path(file).resolve()) for file in imported)
    if unknown := sorted(map(str, values.keys() - declared)):
        raise ReportError(
            f"{where}: {', '.join(unknown)} is not in the notebook's cell tagged 'parameters', "
            f"which has: {', '.join(sorted(declared)) or 'nothing'}"
        )
    if data is not None and "data_dir" in declared:
        values["data_dir"] = str(Path(data).resolve())
    return values


def _named_grids(notebook: Path, params: Path) -> list[Path]:
    """The grids of the profile that the cells of a notebook name, as "hybrids" or hybrids.yaml."""
    source = "\n".join(cell.source for cell in nbformat.read(notebook, as_version=4).cells)
    files = sorted(params.glob("[a-z]*.yaml"))
    return [file for file in files if re.search(rf'"{re.escape(file.stem)}"(?!:)|{re.escape(file.name)}', source)]


def _packages(root: Path) -> list[Path]:
    """The files of both packages that decide what notebooks show."""
    files = [file for package in ("mtbert", "mtbert_lab") for file in (root / package).rglob("*.*")]
    return [file for file in files if file.suffix in (".py", ".csv", ".json", ".yaml", ".svg", ".css", ".js")]


def _newest(files: Iterable[Path]) -> float:
    """When the last of these files was written, in seconds since 1970."""
    return max((file.stat().st_mtime for file in files), default=0.0)


def _results(root: Path) -> set[Path]:
    """What notebooks read of the store and of the committed results, without the tables that 08 makes itself."""
    files = set()  # names with a dot are still being written
    for store in (results_dir(), root / "results"):
        for pattern in ("[!.]*.csv", "predictions/*.csv", "runs/[!.]*/run.json"):
            files.update(store.glob(pattern))
    return files


def _demo_store(root: Path, folder: Path, force: bool) -> Path:
    """The demo's own store, emptied with `force` or when the code has changed, which the id of a run does not name."""
    store = folder / "results"
    begun = store / "begun"
    if not force and begun.exists() and _newest([begun]) >= _newest(_packages(root)):
        return store
    shutil.rmtree(store, ignore_errors=True)
    store.mkdir(parents=True)
    begun.touch()
    return store


def _record(file: Path) -> dict[str, Any]:
    """What a page was made with; nothing where there is none, or a damaged one."""
    try:
        return dict(json.loads(file.read_text("utf8"))["metadata"]["mtbert"])
    except (OSError, ValueError, TypeError, KeyError):
        return {}


def _write_page(page: _Page, text: str, **more: object) -> None:
    """Write the JSON of a notebook as the page, with its record; no folder of this machine, as others may read it."""
    for folder in (page.notebook.parents[1], page.file.parents[1]):
        text = text.replace(f"{folder}/", "")
    content = json.loads(text)
    content["metadata"]["mtbert"] = page.record | more
    write_text(page.file, json.dumps(content))


def _show_committed(page: _Page) -> None:
    """Make the committed outputs the page, unless it has been executed or they are there already."""
    found = _record(page.file)
    is_executed = found and "is_committed" not in found
    if not is_executed and not page.is_made(0.0, is_committed=True):
        _write_page(page, page.notebook.read_text("utf8"), is_committed=True)


def _remove_others(notebooks: list[Path], folder: Path, profile: str) -> None:
    """Remove the pages of other profiles, damaged ones, and those of notebooks that are gone."""
    for file in folder.glob("*.ipynb"):
        is_known = any(f"{file.stem}-".startswith(f"{notebook.stem}-") for notebook in notebooks)
        if not is_known or _record(file).get("profile") != profile:
            file.unlink()


def _train(pages: list[_Page], profile: str, workers: int) -> list[str]:
    """Train the runs that are missing in the grids of pages that train; what failed."""
    grids_of: dict[tuple, dict[Path, None]] = {}  # folder of the datasets, device -> grids
    for page in pages:
        if page.values.get("train_missing", False):
            where = (page.values.get("data_dir") or None, page.values.get("device", "auto"))
            grids_of.setdefault(where, {}).update(dict.fromkeys(page.grids))
    failed: dict[sweep.SweepRun, str] = {}
    for (data, device), grids in grids_of.items():
        runs = sweep.look_up(read_grids(list(grids)), data)
        missing = [run for run in runs if not run.is_stored]
        if missing and profile == "gpu" and not torch.cuda.is_available():
            names = ", ".join(run.name for run in missing)[:200]
            raise ReportError(f"the gpu profile has runs to train, and no GPU is available here; not stored: {names}")
        if profile != "demo":
            missing = sweep.longest_first(predict_runs(missing, pick_device(device).type, 1, data, with_memory=False))
        stored = [run for run in runs if run.is_stored]
        failed |= sweep.train_missing([*stored, *missing], workers, data=data, device=device)
    return [f"run {run} failed: {why}" for run, why in failed.items()]


def _execute_pages(pages: list[_Page], folder: Path, workers: int) -> list[str]:
    """Execute these notebooks in threads, and build the site whenever one has ended; what failed.

    10_demo begins, as it trains and takes longest. After an interruption no kernel runs on.
    """
    failures = []
    began = time.monotonic()
    logging.getLogger("papermill").setLevel(logging.WARNING)
    others = psutil.Process().children()
    # The folder is put back at the end: papermill and Sphinx change it for a moment.
    with contextlib.chdir(folder), ThreadPoolExecutor(workers) as pool:
        in_order = sorted(pages, key=lambda page: page.notebook.stem != "10_demo")
        futures = {pool.submit(_execute, page): page for page in in_order}
        try:
            for done, future in enumerate(as_completed(futures), 1):
                failure = future.result()
                seconds = time.monotonic() - began
                how = ""
                if failure:
                    failures.append(failure)
                    how = f" failed: {failure.splitlines()[0]}"
                else:
                    _build_site(folder)
                print(f"[{done}/{len(pages)}] after {seconds:.0f} s: {futures[future].name}{how}", flush=True)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            while not all(future.done() for future in futures):
                for kernel in psutil.Process().children():
                    if kernel not in others:
                        kernel.kill()
                time.sleep(0.1)
    return failures


def _execute(page: _Page) -> str:
    """Execute a notebook in the folder of the pages, and make it the page; returns what failed."""
    unfinished = page.file.parent / "unfinished" / page.file.name
    unfinished.parent.mkdir(exist_ok=True)
    # Kernels warn on stderr when others on this machine could read their traffic.
    config = Config(KernelManager={"transport_encryption": "auto"})
    # The kernel's folder; papermill's own `cwd` would be that of all threads.
    resources = {"metadata": {"path": str(page.file.parent)}}
    how = {"kernel_name": "python3", "progress_bar": False, "config": config, "resources": resources}
    failure = ""
    for _ in range(ATTEMPTS):
        began = time.time()
        try:
            papermill.execute_notebook(page.notebook, unfinished, page.values, **how)
        except PapermillExecutionError as error:
            lines = [f"    {line}" for line in error.source.strip().splitlines()[:8]]
            first = f"{page.file.name} failed in cell [{error.exec_count}]:"
            last = f"The traceback is in executed/unfinished/{unfinished.name}."
            return "\n".join([first, *lines, f"{error.ename}: {error.evalue}", last])
        except RuntimeError as error:  # the kernel died or did not start
            failure = f"{page.file.name} failed: {error}"
            time.sleep(1)
        else:
            _write_page(page, unfinished.read_text("utf8"))
            if _newest(_packages(page.notebook.parents[1])) > began:  # changed meanwhile: the page is stale
                os.utime(page.file, (began, began))
            unfinished.unlink()
            return ""
    return failure


def _build_site(folder: Path) -> Path:
    """Render the pages of a folder; returns the path of the front page."""
    site = folder.parent / "report"
    configuration = Path(__file__).parent / "site"
    with docutils_namespace():
        Sphinx(folder, configuration, site, folder / ".doctrees", "html", status=None).build()
    return site / "index.html"
