"""Executes the notebooks with papermill and builds the HTML report, which reads offline."""

import hashlib
import html
import json
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager
from datetime import datetime
from importlib import metadata
from pathlib import Path

import nbformat
import papermill
import torch
import yaml
from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from nbconvert.filters import markdown2html
from papermill.exceptions import PapermillExecutionError
from traitlets.config import Config

import mtbert
from mtbert.paths import REPOSITORY, results_dir

# The lab template without what it would load from elsewhere: RequireJS, widgets, MathJax, Mermaid.
OFFLINE_TEMPLATE = """{% extends 'index.html.j2' %}
{% block html_head_js %}{% endblock %}
{% block jupyter_widgets %}{% endblock %}
{% block html_head_js_mathjax %}{% endblock %}
{% block html_head_js_mermaidjs %}{% endblock %}"""
# Kernels warn on stderr when others on this machine could read their traffic.
KERNEL_CONFIG = Config(KernelManager={"transport_encryption": "auto"})
INDEX = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>mtbert report</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 3rem auto; color: #222 }}
li {{ margin: 1.2rem 0 }}
li a {{ font-weight: 600 }}
li p {{ margin: 0 }}
.small {{ color: #666; font-size: .85rem }}
</style>
<h1>mtbert report</h1>
<p>minBERT, and every way of sharing it between tasks, measured on the same data under the same budget.</p>
<ul>
{entries}
</ul>
<p class="small">{provenance}</p>
</html>
"""
ENTRY = """<li><a href="{name}.html">{title}</a>
{summary}
<p class="small">{name}, profile {profile}, executed {date} in {seconds:.0f} s</p></li>"""


class ReportError(RuntimeError):
    """The report could not be built; the message names the notebook or option and what is wrong with it."""


def build_report(
    profile: str = "demo",
    only: str | None = None,
    data: str | Path | None = None,
    force: bool = False,
    root: str | Path = REPOSITORY,
) -> Path:
    """Execute `root/notebooks/*.ipynb` with `root/params/<profile>/*.yaml` into `root/build/report`.

    A notebook that is up to date is not executed again unless `force`. The demo profile keeps its own results
    and figures in the report's folder, and trains anew when the code has changed or with `force`. Returns the path of
    index.html. Raises ReportError: unknown profile, notebook, parameter or data folder, or a failing cell.
    """
    root = Path(root).resolve()
    output = root / "build" / "report"
    all_notebooks = sorted((root / "notebooks").glob("*.ipynb"))
    notebooks = _select(all_notebooks, only)
    parameters = _all_parameters(notebooks, _profile_folder(root / "params", profile), data)
    code = _digest_files((root / "mtbert").rglob("*.py"))
    origin = (profile, code, os.environ.get("MTBERT_DATA", ""))
    output.mkdir(parents=True, exist_ok=True)
    environment = {"JUPYTER_PATH": f"{sys.prefix}/share/jupyter"}  # this environment's kernel, not a user's
    results = results_dir()
    if profile == "demo":
        results = output / "results"
        environment |= {"MTBERT_RESULTS": str(results), "MTBERT_FIGURES": str(output / "figures")}
        _renew_demo_results(results, code, force)

    before = _digest_files(results.rglob("*"))
    current = {}  # record file -> record, of the notebooks whose output is right
    try:
        for count, notebook in enumerate(notebooks, start=1):
            label = f"[{count}/{len(notebooks)}] {notebook.stem}"
            record_file = output / f"{notebook.stem}.record"
            record = json.loads(record_file.read_text()) if record_file.exists() else {}
            inputs = _digest(_source(notebook), repr(sorted(parameters[notebook].items())), *origin)
            if not force and record.get("inputs") == inputs and record.get("results") == before:
                print(f"{label} is up to date")
            else:
                record_file.unlink(missing_ok=True)
                with _environment(environment):
                    seconds = _execute(notebook, output, parameters[notebook], label)
                record = {"inputs": inputs, "profile": profile, "seconds": seconds, "date": _now()}
                record |= _export(output / notebook.name)
            current[record_file] = record
    finally:  # the notebooks add to the results themselves: what they are now is what the outputs stand for
        after = _digest_files(results.rglob("*"))
        for record_file, record in current.items():
            record_file.write_text(json.dumps(record | {"results": after}, indent=1))
    index = output / "index.html"
    index.write_text(_index(output, all_notebooks), encoding="utf8")
    print(f"The report: {os.path.relpath(index)}")
    return index


def _select(notebooks: list[Path], only: str | None) -> list[Path]:
    """Those whose number or name, or the start of it, is `only`; all of them for None."""
    if only is None:
        selected = notebooks
    else:
        selected = [path for path in notebooks if path.stem.startswith((only, only.zfill(2)))]
        selected = selected or [path for path in notebooks if path.stem.partition("_")[2].startswith(only)]
    if not selected:
        known = ", ".join(path.stem for path in notebooks) or "none at all"
        raise ReportError(f"no notebook {'' if only is None else repr(only) + ' '}found; there are: {known}")
    return selected


def _profile_folder(params: Path, profile: str) -> Path:
    known = sorted(path.name for path in params.glob("*") if path.is_dir())
    if profile not in known:
        raise ReportError(f"unknown profile {profile!r}; params/ has: {', '.join(known)}")
    return params / profile


def _all_parameters(notebooks: list[Path], folder: Path, data: str | Path | None) -> dict[Path, dict]:
    """The papermill parameters of each notebook; `data` goes to those that have a parameter data_dir."""
    declared = {notebook: papermill.inspect_notebook(notebook).keys() for notebook in notebooks}
    parameters = {n: _read_parameters(folder / f"{n.stem}.yaml", declared[n]) for n in notebooks}
    if data is not None:
        if not Path(data).is_dir():
            raise ReportError(f"--data: there is no folder {data}")
        takers = [notebook for notebook in notebooks if "data_dir" in declared[notebook]]
        if not takers:
            raise ReportError("--data: none of the notebooks chosen has a parameter data_dir")
        for notebook in takers:
            parameters[notebook]["data_dir"] = str(Path(data).resolve())
    return parameters


def _read_parameters(path: Path, declared: Set[str]) -> dict:
    values = (yaml.safe_load(path.read_text(encoding="utf8")) if path.exists() else None) or {}
    where = "/".join(path.parts[-3:])
    if not isinstance(values, dict):
        raise ReportError(f"{where}: expected lines 'name: value', found a {type(values).__name__}")
    if unknown := sorted(map(str, values.keys() - declared)):
        raise ReportError(
            f"{where}: {', '.join(unknown)} is not in the notebook's cell tagged 'parameters', "
            f"which has: {', '.join(sorted(declared)) or 'nothing'}"
        )
    return values


def _renew_demo_results(results: Path, code: str, force: bool) -> None:
    """Throw away demo results of other code: a run's id names its configuration and data only."""
    made_by = results.with_name("results_made_by")
    if force or not made_by.exists() or made_by.read_text() != code:
        shutil.rmtree(results, ignore_errors=True)
    results.mkdir(exist_ok=True)
    made_by.write_text(code)


def _execute(notebook: Path, output: Path, parameters: dict, label: str) -> float:
    """Execute into `output`, which is also the working directory; return the seconds it took."""
    terminal = sys.stderr.isatty()
    print(f"{label} ...", end="\n" if terminal else " ", flush=True)
    begin = time.monotonic()
    try:
        papermill.execute_notebook(
            notebook,
            output / notebook.name,
            parameters,
            kernel_name="python3",
            cwd=output,
            progress_bar=terminal,
            config=KERNEL_CONFIG,
        )
    except PapermillExecutionError as error:
        source = "\n".join(f"    {line}" for line in error.source.strip().splitlines()[:8])
        raise ReportError(
            f"{notebook.name} failed in cell [{error.exec_count}]:\n{source}\n{error.ename}: {error.evalue}\n"
            f"The traceback is in {os.path.relpath(output / notebook.name)}."
        ) from error
    except RuntimeError as error:  # the kernel died or did not start
        raise ReportError(f"{notebook.name} failed: {error}") from error
    seconds = time.monotonic() - begin
    print(f"{seconds:.0f} s", flush=True)
    return seconds


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables for the kernels started inside."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _export(executed: Path) -> dict[str, str]:
    """Write the HTML page of an executed notebook beside it; return what the index says of it."""
    notebook = nbformat.read(executed, as_version=4)
    title, summary = _title_and_summary(notebook, executed.stem)
    notebook.metadata["title"] = title
    math = MathTokens()
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = math.take(cell.source)
        for result in cell.get("outputs", []):
            if text := result.get("data", {}).get("text/markdown"):
                result.data["text/markdown"] = math.take(text)
    exporter = HTMLExporter(template_name="lab", raw_template=OFFLINE_TEMPLATE, embed_images=True)
    resources = {"metadata": {"name": executed.stem, "path": str(executed.parent)}}
    page, _ = exporter.from_notebook_node(notebook, resources=resources)
    executed.with_suffix(".html").write_text(math.put(page), encoding="utf8")
    return {"title": html.escape(title), "summary": math.put(markdown2html(math.take(summary)))}


def _title_and_summary(notebook: nbformat.NotebookNode, name: str) -> tuple[str, str]:
    """The heading and the first paragraph of the first Markdown cell."""
    source = next((cell.source for cell in notebook.cells if cell.cell_type == "markdown"), "")
    heading = re.match(r"\s*#+ (.+)", source)
    paragraphs = source[heading.end() if heading else 0 :].strip().split("\n\n")
    return (heading[1].strip() if heading else name), paragraphs[0]


def _index(output: Path, notebooks: list[Path]) -> str:
    """The page that lists the notebooks executed so far."""
    records = [output / f"{notebook.stem}.record" for notebook in notebooks]
    entries = [
        ENTRY.format(name=record.stem, **json.loads(record.read_text())) for record in records if record.exists()
    ]
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU ({os.cpu_count()} cores)"
    versions = [f"Python {platform.python_version()}", f"mtbert {mtbert.__version__}"]
    versions += [f"{name} {metadata.version(name)}" for name in ("torch", "transformers", "numpy", "pandas")]
    provenance = html.escape(f"Built {_now()}; device: {device}; {', '.join(versions)}.")
    return INDEX.format(entries="\n".join(entries), provenance=provenance)


def _now() -> str:
    return datetime.now().strftime("%Y-%m-%d %H:%M")


def _source(notebook: Path) -> str:
    """The cells without their outputs."""
    cells = nbformat.read(notebook, as_version=4).cells
    return json.dumps([(cell.cell_type, cell.source, cell.metadata.get("tags")) for cell in cells])


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def _digest_files(paths: Iterator[Path]) -> str:
    """One digest of the files' names and contents."""
    files = sorted(path for path in paths if path.is_file())
    return _digest(*(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in files))


# Code comes first, so that a dollar sign in it is left alone; an escaped dollar sign is no delimiter either.
_CODE_OR_MATH = re.compile(
    r"(?P<code>^(?P<fence>```+|~~~+).*?^(?P=fence)|(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)|\\\$)"
    r"|\$\$(?P<display>.+?)\$\$"
    r"|\$(?!\s)(?P<inline>(?:\\.|[^$\\\n]|\n(?!\n))+?)(?<!\s)\$(?!\d)",
    re.DOTALL | re.MULTILINE,
)


class MathTokens:
    """Takes `$...$` and `$$...$$` out of Markdown before it is rendered and puts MathML into the HTML after.

    The renderer sees a plain word in place of each formula and so cannot misread the formula's characters.
    """

    def __init__(self) -> None:
        self.formulas: list[str] = []  # MathML

    def take(self, markdown: str) -> str:
        """The Markdown text with a token for each formula; code stays as it is."""
        return _CODE_OR_MATH.sub(self._token, markdown)

    def put(self, page: str) -> str:
        """The HTML text with the formulas in place of their tokens."""
        # Headings repeat their text in the attributes id and href: a token before a closing `>` stays.
        return re.sub(r"mathml(\d+)token(?![^<>]*>)", lambda match: self.formulas[int(match[1])], page)

    def _token(self, match: re.Match) -> str:
        if match["code"]:
            return match[0]
        latex, display = match["inline"] or match["display"], "inline" if match["inline"] else "block"
        try:
            self.formulas.append(convert(latex.strip(), display=display))
        except Exception:  # latex2mathml raises many kinds; an unreadable formula is shown as it was written
            self.formulas.append(f"<code>{html.escape(match[0])}</code>")
        return f"mathml{len(self.formulas) - 1}token"
