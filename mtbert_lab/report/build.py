"""Executes the notebooks with papermill, several at a time, and renders them with Sphinx into pages for offline use."""

import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import nbformat
import papermill
import torch
from dask.system import CPU_COUNT
from papermill.exceptions import PapermillExecutionError
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace
from traitlets.config import Config

from mtbert.config import ConfigError, RunConfig
from mtbert.paths import REPOSITORY, read_yaml, replacing
from mtbert.runtime import free_by_default, pick_device
from mtbert_lab import sweep
from mtbert_lab.cost import predict_runs
from mtbert_lab.paths import results_dir
from mtbert_lab.store import load_or_run, read_grids

MOST_WORKERS = 4  # by default; a run takes up to 1.5 GiB of memory
ATTEMPTS = 3  # to execute a notebook whose kernel dies: kernels that start together may race for a port


class ReportError(RuntimeError):
    """The report could not be built; the message names the notebook or option and what is wrong with it."""


def build_report(
    profile: str,
    only: str = "",
    data: str | Path | None = None,
    force: bool = False,
    workers: int | None = None,
    scheduler: str | None = None,
    grids: Sequence[Path] = (),
    root: str | Path = REPOSITORY,
    dry_run: bool = False,
    out: str | Path | None = None,
) -> Path:
    """Execute `root/notebooks/*.ipynb` with `root/params/<profile>/*.yaml`, build the site `out/report`.

    workers: processes of one thread each; default: the cores, at most MOST_WORKERS; scheduler: the address of one of
    dask, whose workers are taken instead, and share the folders. grids: every notebook is executed once for each of
    them, named by its parameter `grid`, as `<notebook>-<grid>.ipynb`. A notebook that is up to date is not executed
    again unless `force`; those with `train_missing: true` come last, when the runs of their grids are stored. The demo
    profile keeps its own results and figures beside the executed notebooks in `out/executed`, and trains again when the
    code has changed or with `force`. The site is built whenever a notebook has ended. Returns the path of index.html.
    dry_run: list the runs that would be trained, with predicted minutes, and execute nothing. out: default root/build.
    Raises ReportError: unknown profile, notebook, parameter or data folder, or failing cells, when the other notebooks
    have ended; and ConfigError for runs that could not start, before one does.
    """
    root = Path(root).resolve()
    output = Path(out or root / "build").resolve() / "executed"
    _check_profile(root, profile, data)
    files = [path for package in ("mtbert", "mtbert_lab") for path in (root / package).rglob("*.*")]
    code = _digest([path for path in files if path.suffix in (".py", ".csv")])  # CSV: the demo corpus
    pages = _read_pages(root, profile, only, data, grids, code)
    output.mkdir(parents=True, exist_ok=True)
    results = results_dir()
    environment = {"JUPYTER_PATH": f"{sys.prefix}/share/jupyter"}  # no kernel of the user's
    if profile == "demo":
        results = output / f"results-{code[:8]}"  # a run's id does not name the code
        _start_demo_store(output, results, force, dry_run)
        environment |= {"MTBERT_RESULTS": str(results), "MTBERT_FIGURES": str(output / "figures")}
    _remove_old_records(root, output)
    digest = partial(_digest_results, results, root)
    stale = _stale_pages(pages, output, digest(), force)
    with patch.dict(os.environ, environment):  # the store of the profile
        runs, missing = _runs_to_train(stale, profile)
    workers = workers or min(CPU_COUNT, MOST_WORKERS)
    if stale:
        print(_what_is_done(stale, runs, missing, workers), flush=True)
    index = output.parent / "report" / "index.html"
    if dry_run:
        if missing:
            print(sweep.describe(missing, workers))
        return index

    phases = _phases(stale, runs, output, profile)
    _execute_pages(stale, _work(phases, environment, workers, scheduler), output, digest)
    print(f"The report: {os.path.relpath(index)}")
    return index


@dataclass(frozen=True)
class _Page:
    """A notebook to execute, for a grid of the user's own or for those of its profile."""

    name: str
    notebook: Path
    values: dict[str, Any]  # its parameters
    grids: list[Path]  # that it reads
    about: dict[str, Any]  # its record, but for the results that it read

    @property
    def trains(self) -> bool:
        return self.values.get("train_missing", False)

    @property
    def where(self) -> tuple[str | None, str]:
        """The folder of the datasets, and the device, of the runs that it trains."""
        return self.values.get("data_dir") or None, self.values.get("device", "auto")

    def record_file(self, output: Path) -> Path:
        return output / f"{self.name}.record"


def _execute_pages(
    pages: list[_Page], outcomes: Iterator[tuple[str, object]], output: Path, digest: Callable[[], str]
) -> None:
    """Record the pages as they end, and build the site each time; ReportError at the end for those that failed.

    outcomes: of `_work`; digest: of the results, which change with every run and notebook.
    """
    for page in pages:
        page.record_file(output).unlink(missing_ok=True)
    _build_site(output)
    executed, failures = [], []
    by_name = {page.name: page for page in pages}
    for label, outcome in outcomes:
        page = by_name.get(label)  # None: a run
        has_failed = isinstance(outcome, Exception)
        if page and has_failed:
            failures.append(str(outcome))
        elif page:
            executed.append(page)
        _write_records(executed, output, digest())
        if page and not has_failed:
            _build_site(output)
    if failures:
        raise ReportError("\n\n".join(failures))


def _check_profile(root: Path, profile: str, data: str | Path | None) -> None:
    known = sorted(path.name for path in (root / "params").glob("*") if path.is_dir())
    if profile not in known:  # "" and .. would be folders, too
        raise ReportError(f"unknown profile {profile!r}; params/ has: {', '.join(known)}")
    if data is not None and not Path(data).is_dir():
        raise ReportError(f"--data: there is no folder {data}")


def _read_pages(
    root: Path, profile: str, only: str, data: str | Path | None, grids: Sequence[Path], code: str
) -> list[_Page]:
    """The chosen notebooks, each once for every grid of the user's own."""
    folder = root / "params" / profile
    pages = []
    for notebook in _select(sorted((root / "notebooks").glob("*.ipynb")), only):
        for grid in grids or [None]:
            pages.append(_read_page(notebook, grid, folder, data, code))
    names = {page.name for page in pages}
    if len(names) < len(pages):
        raise ReportError(f"--grid: two of {', '.join(map(str, grids))} have one name, which is that of their pages")
    if data is not None and not any("data_dir" in page.values for page in pages):
        raise ReportError("--data: none of the notebooks chosen has a parameter data_dir")
    return pages


def _read_page(notebook: Path, grid: Path | None, folder: Path, data: str | Path | None, code: str) -> _Page:
    """A notebook with what decides its content; folder: params/ of the profile."""
    name = notebook.stem
    if grid:
        name += "-" + re.sub(r"[^\w.-]", "-", grid.stem)  # of a page, in paths and links
    source = _source(notebook)
    values = _parameters(folder, notebook, grid, data)
    grids = [grid] if grid else _named_grids(source, folder)
    files = [folder / f"{notebook.stem}.yaml", *grids]
    params = {file.stem: file.read_text("utf8") for file in files if file.exists()}
    inputs = [source, sorted(values.items()), folder.name, code, os.environ.get("MTBERT_DATA"), params]
    digest = hashlib.sha256(repr(inputs).encode()).hexdigest()
    about = {"inputs": digest, "profile": folder.name, "params": params}
    return _Page(name, notebook, values, grids, about)


def _named_grids(source: str, folder: Path) -> list[Path]:
    """The grids of the profile that a notebook names, as "hybrids" or hybrids.yaml."""
    files = sorted(folder.glob("[a-z]*.yaml"))
    return [file for file in files if re.search(rf'"{re.escape(file.stem)}"(?!:)|{re.escape(file.name)}', source)]


def _start_demo_store(output: Path, results: Path, force: bool, dry_run: bool) -> None:
    """The demo's own store, empty with `force`; those of other code are removed."""
    for other in output.glob("results-*"):
        if not dry_run and (force or other != results):
            shutil.rmtree(other)
    results.mkdir(exist_ok=True)


def _remove_old_records(root: Path, output: Path) -> None:
    """Remove damaged records, and those of notebooks that are gone."""
    stems = [path.stem for path in (root / "notebooks").glob("*.ipynb")]
    for file in output.glob("*.record"):
        is_known = any(f"{file.stem}-".startswith(f"{stem}-") for stem in stems)
        if not is_known or not _record(file):
            file.unlink()


def _stale_pages(pages: list[_Page], output: Path, results: str, force: bool) -> list[_Page]:
    """The pages that are not up to date, given the digest of the results."""
    stale = []
    for page in pages:
        record = page.about | {"results": results}
        if not force and _record(page.record_file(output)) == record:
            print(f"{page.name} is up to date")
        else:
            stale.append(page)
    return stale


def _runs_to_train(pages: list[_Page], profile: str) -> tuple[list[tuple], list[sweep.SweepRun]]:
    """The jobs for the runs of pages that train, as `_work` takes them, and the runs of them that are not stored."""
    where_of = {}
    for page in pages:
        if page.trains:
            where_of |= dict.fromkeys(page.grids, page.where)
    jobs, missing = [], []
    for where in dict.fromkeys(where_of.values()):
        data, device = where
        grids = [grid for grid in where_of if where_of[grid] == where]
        runs = _look_up(grids, data, profile)
        jobs += [(f"run {run}", _train, run.config, data, device) for run in runs]
        to_do = [run for run in runs if not run.is_stored]
        if profile != "demo":
            to_do = predict_runs(to_do, pick_device(device).type, 1, data)
        missing += to_do
    return jobs, missing


def _what_is_done(pages: list[_Page], runs: list[tuple], missing: list[sweep.SweepRun], workers: int) -> str:
    text = f"{len(pages)} notebooks to execute, {len(runs)} runs to train or look up"
    if runs and not missing:
        return f"{text}; all are stored"
    left = sweep.minutes_left(missing, {}, workers, 0.0)
    if left is None:  # nothing is predicted
        return text
    return f"{text}; {len(missing)} are not stored, which takes {sweep.duration(left)}"


def _phases(pages: list[_Page], runs: list[tuple], output: Path, profile: str) -> list[list[tuple]]:
    """The jobs in the order of their phases: a label, a function, its arguments.

    In the demo profile a notebook that trains nothing reads nothing of the runs; in the others it waits for them.
    """
    early, late = [], []
    for page in pages:
        job = (page.name, _execute, page.notebook, output / f"{page.name}.ipynb", page.values)
        jobs = late if page.trains else early
        jobs.append(job)
    if profile == "demo":
        return [early + runs, late]
    return [runs, early + late]


def _select(notebooks: list[Path], only: str) -> list[Path]:
    """Those whose number or name, or the start of it, is `only`."""
    selected = [path for path in notebooks if re.match(rf"(0?|\d+_){re.escape(only)}", path.stem)]
    if not selected:
        raise ReportError(f"no notebook {only!r} found; there are: {', '.join(path.stem for path in notebooks)}")
    return selected


def _look_up(grids: list[Path], data: str | None, profile: str) -> list[sweep.SweepRun]:
    """The runs of these grids; a missing GPU is named before what else the runs of the gpu profile lack."""
    lacks_gpu = profile == "gpu" and not torch.cuda.is_available()
    try:
        runs = sweep.look_up(read_grids(grids), data)
        missing = ", ".join(run.name for run in runs if not run.is_stored)[:200]
    except ConfigError as error:
        if not lacks_gpu:
            raise
        missing = str(error)
    if lacks_gpu and missing:
        raise ReportError(f"the gpu profile has runs to train, and no GPU is available here; not stored: {missing}")
    return runs


def _parameters(folder: Path, notebook: Path, grid: Path | None, data: str | Path | None) -> dict:
    """What the profile's folder has for the notebook, `grid`, and `data` where it has a parameter data_dir."""
    declared = papermill.inspect_notebook(notebook).keys()
    file = folder / f"{notebook.stem}.yaml"
    where = "/".join(file.parts[-3:])
    values = {}
    if file.exists():
        values = read_yaml(file) or {}  # None: an empty file
    if not isinstance(values, dict):
        raise ReportError(f"{where}: expected lines 'name: value', found a {type(values).__name__}")
    if grid:
        values["grid"] = str(grid.resolve())
    if unknown := sorted(map(str, values.keys() - declared)):
        raise ReportError(
            f"{where}: {', '.join(unknown)} is not in the notebook's cell tagged 'parameters', "
            f"which has: {', '.join(sorted(declared)) or 'nothing'}"
        )
    if data is not None and "data_dir" in declared:
        values["data_dir"] = str(Path(data).resolve())
    return values


def _work(
    phases: list[list[tuple]], environment: dict[str, str], workers: int, scheduler: str | None = None
) -> Iterator[tuple[str, object]]:
    """Do the jobs of each phase on the workers of a cluster (`sweep.open_cluster`), in these variables of the
    environment; yields label and result or error of each that has ended, prints what is left. If a worker dies, another
    one takes up its job.
    """
    from distributed import as_completed

    total = sum(map(len, phases))
    done = 0
    numbers = count()
    begun = time.monotonic()

    def news() -> str:
        taken = sweep.duration((time.monotonic() - begun) / 60)
        return f"[{done}/{total}] after {taken.removeprefix('about ')}"

    if not total:
        return
    with sweep.open_cluster(min(workers, total), scheduler) as client, sweep.regular_news(news):
        started = time.monotonic()
        workers = len(client.nthreads()) or 1
        for jobs in phases:
            labels = {}
            for label, *job in jobs:
                key = (f"report-{client.id}", next(numbers))
                labels[client.submit(_do, environment, *job, key=key)] = label
            for future in as_completed(labels):
                if future.status == "cancelled":
                    raise ReportError("the scheduler was lost")
                label = labels[future]
                if future.status == "finished":
                    outcome = future.result()
                else:
                    outcome = ReportError(f"{label}: {future.exception()}")
                done += 1
                line = f"[{done}/{total}] {label}"
                if isinstance(outcome, Exception):
                    first, *_ = str(outcome).split("\n")
                    line += f" failed: {first}"
                if done < total:
                    minutes = (time.monotonic() - started) / 60 / (done + workers / 2)  # of a job; those begun: half
                    line += f"; {sweep.duration(minutes * (total - done))} left"
                print(line, flush=True)
                yield label, outcome


def _do(environment: dict[str, str], function: Callable, *arguments: object) -> object:
    """On a worker: the result of a job, or its error; of one thread, as threads of torch wait by spinning."""
    torch.set_num_threads(1)
    with patch.dict(os.environ, environment, OMP_NUM_THREADS="1"):
        try:
            return function(*arguments)
        except Exception as error:  # else dask tries again
            return error
        finally:
            free_by_default()  # the memory goes back, as the worker goes on to other work


def _train(config: RunConfig, data: str | None, device: str) -> None:
    load_or_run(config, data, device=device, progress=False)


def _execute(notebook: Path, executed: Path, parameters: dict) -> None:
    """Execute into the file `executed`, in its folder."""
    # Kernels warn on stderr when others on this machine could read their traffic.
    config = Config(KernelManager={"transport_encryption": "auto"})
    for attempt in range(1, ATTEMPTS + 1):
        try:
            papermill.execute_notebook(
                notebook,
                executed,
                parameters,
                kernel_name="python3",
                cwd=executed.parent,
                progress_bar=False,
                config=config,
            )
            text = executed.read_text(encoding="utf8")  # others may read it: it does not tell this machine's folders
            for folder in (notebook.parents[1], executed.parents[1]):
                text = text.replace(f"{folder}/", "")
            executed.write_text(text, encoding="utf8")
            return
        except PapermillExecutionError as error:
            source = error.source.strip().splitlines()[:8]
            lines = [
                f"{executed.name} failed in cell [{error.exec_count}]:",
                *(f"    {line}" for line in source),
                f"{error.ename}: {error.evalue}",
                f"The traceback is in {os.path.relpath(executed)}.",
            ]
            raise ReportError("\n".join(lines)) from None
        except RuntimeError as error:  # the kernel died or did not start
            if attempt == ATTEMPTS:
                raise ReportError(f"{executed.name} failed: {error}") from None
            time.sleep(attempt)


def _write_records(pages: list[_Page], output: Path, results: str) -> None:
    """Write the records of executed pages; results: the digest of the results as they are now."""
    for page in pages:
        record = page.about | {"results": results}
        with replacing(page.record_file(output)) as file:
            file.write_text(json.dumps(record, indent=1), encoding="utf8")


def _build_site(output: Path) -> Path:
    """Render the notebooks that have a record; returns the path of the front page."""
    site = output.parent / "report"
    configuration = Path(__file__).parent / "site"
    with docutils_namespace():
        Sphinx(output, configuration, site, output / ".doctrees", "html", status=None).build()
    return site / "index.html"


def _record(file: Path) -> dict:
    """What is known of an executed notebook; nothing where there is no record, or a damaged one."""
    try:
        return dict(json.loads(file.read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def _source(notebook: Path) -> str:
    """The cells without their outputs."""
    parts = []
    for cell in nbformat.read(notebook, as_version=4).cells:
        tags = cell.metadata.get("tags")
        parts.append(f"{cell.cell_type} {tags} {cell.source}")
    return "\n".join(parts)


def _digest(files: Iterable[Path]) -> str:
    """One digest of the files' names and contents."""
    contents = sorted((path.name, path.read_bytes()) for path in files)
    return hashlib.sha256(repr(contents).encode()).hexdigest()


def _digest_results(results: Path, root: Path) -> str:
    """One digest of what notebooks read of the store and of the committed tables."""
    files = set()  # names with a dot are still being written
    files.update(results.glob("[!.]*.csv"))
    files.update((root / "results").glob("[!.]*.csv"))
    files.update(results.glob("runs/[!.]*/run.json"))
    return _digest(files)
