"""Executes the notebooks with papermill, several at a time, and renders them with Sphinx into pages for offline use."""

import hashlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import nbformat
import papermill
import torch
import yaml
from papermill.exceptions import PapermillExecutionError
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace
from traitlets.config import Config

from mtbert.config import RunConfig
from mtbert.paths import REPOSITORY, replacing, results_dir
from mtbert.results import load_or_run, read_grids, sweep
from mtbert.runtime import free_by_default

MOST_WORKERS = 4  # by default; a run takes up to 1.5 GiB of memory
ATTEMPTS = 3  # to execute a notebook whose kernel dies: kernels that start together may race for a port
STAGGER = 0.5  # seconds between the first starts


class ReportError(RuntimeError):
    """The report could not be built; the message names the notebook or option and what is wrong with it."""


def build_report(
    profile: str = "demo",
    only: str = "",
    data: str | Path | None = None,
    force: bool = False,
    workers: int | None = None,
    root: str | Path = REPOSITORY,
) -> Path:
    """Execute `root/notebooks/*.ipynb` with `root/params/<profile>/*.yaml`, build the site `root/build/report`.

    workers: processes of one thread each; default: the cores, at most MOST_WORKERS. A notebook that is up to date is
    not executed again unless `force`; those with `train_missing: true` come last, when the runs of their grids are
    stored. The demo profile keeps its own results and figures beside the executed notebooks in `root/build/executed`,
    and trains again when the code has changed or with `force`. The site is built whenever a notebook has ended. Returns
    the path of index.html. Raises ReportError: unknown profile, notebook, parameter or data folder, or failing cells,
    when the other notebooks have ended.
    """
    root = Path(root).resolve()
    output = root / "build" / "executed"
    all_notebooks = sorted((root / "notebooks").glob("*.ipynb"))
    notebooks = {path.stem: path for path in _select(all_notebooks, only)}
    folder = root / "params" / profile
    if not folder.is_dir():
        known = ", ".join(sorted(path.name for path in folder.parent.glob("*") if path.is_dir()))
        raise ReportError(f"unknown profile {profile!r}; params/ has: {known}")
    if data is not None and not Path(data).is_dir():
        raise ReportError(f"--data: there is no folder {data}")
    parameters = {name: _parameters(path, folder / f"{name}.yaml", data) for name, path in notebooks.items()}
    if data is not None and not any("data_dir" in values for values in parameters.values()):
        raise ReportError("--data: none of the notebooks chosen has a parameter data_dir")
    code = _digest((root / "mtbert").rglob("*.py"))
    output.mkdir(parents=True, exist_ok=True)
    environment = {"JUPYTER_PATH": f"{sys.prefix}/share/jupyter"}  # this environment's kernel, not a user's
    results = results_dir()
    if profile == "demo":
        results = output / f"results-{code[:8]}"  # a run's id does not name the code
        for other in output.glob("results-*"):
            if force or other != results:
                shutil.rmtree(other)
        results.mkdir(exist_ok=True)
        environment |= {"MTBERT_RESULTS": str(results), "MTBERT_FIGURES": str(output / "figures")}

    for file in output.glob("*.record"):
        if not (root / "notebooks" / f"{file.stem}.ipynb").exists():
            file.unlink()
    records, early, runs, late = {}, [], {}, []  # records and jobs: a label, a function, its arguments
    before, all_grids = _digest_results(results, root), sorted(folder.glob("[a-z]*.yaml"))
    for name, path in notebooks.items():
        source, values = _source(path), parameters[name]
        grids = [file for file in all_grids if re.search(rf'"{file.stem}"(?!:)|{file.name}', source)]  # it names them
        params = {file.stem: file.read_text("utf8") for file in [folder / f"{name}.yaml", *grids] if file.exists()}
        inputs = repr([source, sorted(values.items()), profile, code, os.environ.get("MTBERT_DATA"), params])
        about = {"inputs": hashlib.sha256(inputs.encode()).hexdigest(), "profile": profile, "params": params}
        file = output / f"{name}.record"
        record = json.loads(file.read_text()) if file.exists() else {}
        if not force and record.items() >= {**about, "results": before}.items():
            print(f"{name} is up to date")
            records[name] = record
            continue
        file.unlink(missing_ok=True)
        trains = values.get("train_missing", False)
        (late if trains else early).append((name, _execute, path, output, values, about))
        for run, config in read_grids(grids) if trains else ():
            how = values.get("data_dir") or None, values.get("device", "auto")
            runs.setdefault(config, (f"run {run}, seed {config.seed}", _train, config, *how))

    index, failures, workers = _build_site(output), [], workers or _cores()
    if early or late:
        print(
            f"{len(early + late)} notebooks to execute, {len(runs)} runs to train or look up, {workers} at a time",
            flush=True,
        )
    for name, future in _work([[*early, *runs.values()], late], environment, workers):
        if name in notebooks:
            try:
                records[name] = future.result()
            except ReportError as error:
                failures.append(str(error))
        _write_records(output, records, _digest_results(results, root))
        if name in records:
            index = _build_site(output)
    if failures:
        raise ReportError("\n\n".join(failures))
    print(f"The report: {os.path.relpath(index)}")
    return index


def _cores() -> int:
    """Those this process may use, at most MOST_WORKERS."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_WORKERS)


def _select(notebooks: list[Path], only: str) -> list[Path]:
    """Those whose number or name, or the start of it, is `only`."""
    selected = [path for path in notebooks if re.match(rf"(0?|\d+_){re.escape(only)}", path.stem)]
    if not selected:
        raise ReportError(f"no notebook {only!r} found; there are: {', '.join(path.stem for path in notebooks)}")
    return selected


def _parameters(notebook: Path, file: Path, data: str | Path | None) -> dict:
    """What `file` has for the notebook, and `data` where it has a parameter data_dir."""
    declared = papermill.inspect_notebook(notebook).keys()
    values = (yaml.safe_load(file.read_text(encoding="utf8")) if file.exists() else None) or {}
    where = "/".join(file.parts[-3:])
    if not isinstance(values, dict):
        raise ReportError(f"{where}: expected lines 'name: value', found a {type(values).__name__}")
    if unknown := sorted(map(str, values.keys() - declared)):
        raise ReportError(
            f"{where}: {', '.join(unknown)} is not in the notebook's cell tagged 'parameters', "
            f"which has: {', '.join(sorted(declared)) or 'nothing'}"
        )
    return values if data is None or "data_dir" not in declared else {**values, "data_dir": str(Path(data).resolve())}


def _work(phases: list[list[tuple]], environment: dict[str, str], workers: int) -> Iterator[tuple[str, Future]]:
    """Do the jobs of each phase side by side; yields label and future of each that has ended, prints what is left."""
    total, done, started = sum(map(len, phases)), 0, time.monotonic()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _set_up_worker, (environment,)) as pool:
        try:
            for jobs in phases:
                labels = {}
                for label, *job in jobs:
                    labels[pool.submit(*job)] = label
                    time.sleep(STAGGER if len(labels) <= workers else 0)
                for future in as_completed(labels):
                    done, label, error = done + 1, labels[future], future.exception()
                    if isinstance(error, BrokenProcessPool):
                        raise ReportError("a process was killed; is memory short? --workers 1 needs the least")
                    minutes = (time.monotonic() - started) / 60
                    left = minutes / (done + workers / 2) * (total - done)  # the jobs begun are half done on average
                    why = " failed: " + str(error).partition("\n")[0] if error else ""
                    rest = f"; {sweep.duration(left)} left" if done < total else ""
                    print(f"[{done}/{total}] {label}{why}{rest}", flush=True)
                    yield label, future
        except BaseException:  # Ctrl-C; kernels end with the process that started them
            for process in multiprocessing.active_children():
                process.kill()
            raise


def _set_up_worker(environment: dict[str, str]) -> None:
    """One thread for this process and its kernels; Ctrl-C is for the parent, without which the worker ends."""
    os.environ.update(environment, OMP_NUM_THREADS="1")  # threads of torch wait by spinning
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end_with_parent() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _train(config: RunConfig, data: str | None, device: str) -> None:
    """Train a run that is not stored; its memory goes back, as the worker goes on to other work."""
    load_or_run(config, data, device=device, progress=False)
    free_by_default()


def _execute(notebook: Path, output: Path, parameters: dict, about: dict) -> dict:
    """Execute into `output`, which is also the working directory; returns the record."""
    executed = output / notebook.name
    # Kernels warn on stderr when others on this machine could read their traffic.
    config = Config(KernelManager={"transport_encryption": "auto"})
    for attempt in range(1, ATTEMPTS + 1):
        try:
            papermill.execute_notebook(
                notebook, executed, parameters, kernel_name="python3", cwd=output, progress_bar=False, config=config
            )
            text = executed.read_text(encoding="utf8")  # others may read it: it does not tell this machine's folders
            executed.write_text(text.replace(f"{notebook.parents[1]}/", ""), encoding="utf8")
            return about
        except PapermillExecutionError as error:
            source = "\n".join(f"    {line}" for line in error.source.strip().splitlines()[:8])
            raise ReportError(
                f"{notebook.name} failed in cell [{error.exec_count}]:\n{source}\n{error.ename}: {error.evalue}\n"
                f"The traceback is in {os.path.relpath(executed)}."
            ) from None
        except RuntimeError as error:  # the kernel died or did not start
            if attempt == ATTEMPTS:
                raise ReportError(f"{notebook.name} failed: {error}") from None
            time.sleep(attempt)


def _write_records(output: Path, records: dict[str, dict], results: str) -> None:
    """Write the records, which the results as they are now belong to."""
    for name, record in records.items():
        with replacing(output / f"{name}.record") as file:
            file.write_text(json.dumps(record | {"results": results}, indent=1), encoding="utf8")


def _build_site(output: Path) -> Path:
    """Render the notebooks that have a record; returns the path of the front page."""
    site = output.parent / "report"
    with docutils_namespace():
        Sphinx(output, Path(__file__).parent / "site", site, output / ".doctrees", "html", status=None).build()
    return site / "index.html"


def _source(notebook: Path) -> str:
    """The cells without their outputs."""
    cells = nbformat.read(notebook, as_version=4).cells
    return "\n".join(f"{cell.cell_type} {cell.metadata.get('tags')} {cell.source}" for cell in cells)


def _digest(files: Iterable[Path]) -> str:
    """One digest of the files' names and contents."""
    contents = sorted((path.name, path.read_bytes()) for path in files)
    return hashlib.sha256(repr(contents).encode()).hexdigest()


def _digest_results(results: Path, root: Path) -> str:
    """Of what notebooks read of the store and of the committed tables; names with a dot are still being written."""
    tables = {*results.glob("[!.]*.csv"), *(root / "results").glob("[!.]*.csv")}
    return _digest(tables.union(results.glob("runs/[!.]*/run.json")))
