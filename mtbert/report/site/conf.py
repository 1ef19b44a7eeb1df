"""The site of the report: Sphinx renders the executed notebooks of a folder; no kernel starts.

`mtbert report` calls it; by hand: `sphinx-build -c mtbert/report/site build/executed build/report`.
"""

import html
import json
import os
import re
import shutil
from pathlib import Path

from docutils import nodes
from jinja2 import Environment, FileSystemLoader
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util.docutils import SphinxTranslator

from mtbert.paths import REPOSITORY
from mtbert.report.notebook import versions

project = html_title = "mtbert report"
extensions = ["myst_nb"]
html_theme = "furo"
html_theme_options = {"top_of_page_buttons": []}
html_static_path = ["site.css", "math.woff", "math.LICENSE.txt"]
html_css_files = ["site.css"]
templates_path = ["."]  # page.html
html_sourcelink_suffix = ""  # _sources/ has the notebooks under their own names
pygments_dark_style = "github-dark"
html_show_copyright = False
html_math_renderer = "mathml"  # Sphinx's own loads MathJax from another host
nb_execution_mode = "off"
nb_merge_streams = True
nb_render_markdown_format = "myst"
myst_enable_extensions = ["attrs_block", "deflist", "dollarmath"]
myst_heading_anchors = 3

START = "00_start"  # has a section "Paper 00N" for each paper


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (write_math, None), (write_math, None))
    app.connect("config-inited", write_pages)
    app.connect("source-read", prepare)
    app.connect("doctree-resolved", link_papers)


def write_pages(app: Sphinx, config: Config) -> None:
    """Write the front page and the page of parameters beside the notebooks; only notebooks with a record are shown."""
    folder = Path(app.srcdir)
    records = {file.stem: json.loads(file.read_text(encoding="utf8")) for file in sorted(folder.glob("*.record"))}
    pareto = Path(os.environ.get("MTBERT_FIGURES") or REPOSITORY / "figures", "04_pareto.png")
    if pareto.exists():
        shutil.copy(pareto, folder)
    config.html_context = {
        "records": {name: record | read_card(folder / f"{name}.ipynb") for name, record in records.items()},
        "is_demo": any(record["profile"] == "demo" for record in records.values()),
        "params": {
            f"{record['profile']}/{file}": text
            for record in records.values()
            for file, text in record["params"].items()
        },
        "pareto": pareto.name if pareto.exists() else "",
        "versions": versions(),
    }
    templates = Environment(loader=FileSystemLoader(app.confdir), trim_blocks=True)
    for page in ("index.md", "params.md"):
        text = templates.get_template(page).render(config.html_context)
        (folder / page).write_text(text, encoding="utf8")
    config.include_patterns = ["index.md", "params.md", *(f"{name}.ipynb" for name in records)]


def read_card(notebook: Path) -> dict[str, str]:
    """Title, question and answer of an executed notebook, as Markdown; the answer is printed by it, or in its card."""
    cells = json.loads(notebook.read_text(encoding="utf8"))["cells"]
    title, question, *rest = [*"".join(cells[0]["source"]).strip().split("\n\n"), ""]
    shown = [output["data"] for cell in cells for output in cell.get("outputs", ()) if "data" in output]
    texts = ["".join(data["text/markdown"]) for data in shown if "text/markdown" in data] + rest
    answer = next((text for text in texts if text.startswith("**Answer")), "")
    return {"title": title.lstrip("# "), "question": question, "answer": answer}


def prepare(app: Sphinx, name: str, source: list[str]) -> None:
    """Change a notebook before it is rendered: without widgets; with alternative texts and params of its figures."""
    if not (record := app.config.html_context["records"].get(name)):
        return
    notebook = json.loads(source[0])
    notebook["metadata"].pop("widgets", None)
    section = ""
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown" and (headings := re.findall(r"^#+ (.+)", text, re.MULTILINE)):
            section, alt = "", f"Figure of section {headings[-1]!r}"
        section += text
        if cell["cell_type"] == "code":
            outputs, cell["outputs"] = cell["outputs"], []
            for output in outputs:
                data = output.get("data", {})
                if "application/vnd.jupyter.widget-view+json" not in data:  # it needs a kernel
                    cell["outputs"].append(output)
                if "image/png" in data:
                    image = cell["metadata"].setdefault("mystnb", {}).setdefault("image", {})
                    image |= {"alt": alt, "scale": 100} | image  # Sphinx links an image that has a scale
                    cell["outputs"] += made_by(record, name, section)
    source[0] = json.dumps(notebook)


def made_by(record: dict, name: str, section: str) -> list[dict]:
    """An output that links the params of a figure: the notebook's own and those its section names, else all."""
    params = record["params"]
    named = [file for file in params if re.search(rf'"{file}"|{file}\.yaml', section)] or params
    links = [f"[{file}](#{record['profile']}-{file})" for file in params if file == name or file in named]
    text = f"{{.small}}\nParameters: {', '.join(links)}"
    return [{"output_type": "display_data", "metadata": {}, "data": {"text/markdown": text}}] if links else []


def link_papers(app: Sphinx, document: nodes.document, name: str) -> None:
    """Link each "paper 00N" to the section of that title."""
    entries = app.env.tocs[START].findall(nodes.reference) if START in app.env.tocs else ()
    anchors = {found[0]: entry["anchorname"] for entry in entries if (found := re.match("Paper 00.", entry.astext()))}
    for text in [*document.findall(nodes.Text)]:
        if isinstance(text.parent, nodes.title | nodes.reference | nodes.literal | nodes.FixedTextElement):
            continue
        parts = [nodes.Text(part) for part in re.split(r"([Pp]aper 00\d)", text)]
        for i, part in enumerate(parts):
            if anchor := anchors.get(part.capitalize()):
                uri = app.builder.get_relative_uri(name, START) + anchor
                parts[i] = nodes.reference("", "", part, refuri=uri, internal=True)
        if len(parts) > 1:
            text.parent.replace(text, parts)


def write_math(self: SphinxTranslator, node: nodes.math | nodes.math_block) -> None:
    """Write a formula as MathML; one that cannot be read is shown as it was written.

    A formula is cut at \\qquad, as browsers do not break MathML into lines.
    """
    block, latex = isinstance(node, nodes.math_block), node.astext()
    try:
        parts = [convert(part, display="block" if block else "inline") for part in latex.split(r"\qquad")]
        # The bars of a norm have no partner that says how far they stretch.
        formula = "".join(parts).replace("<mo>&#x02016;", '<mo stretchy="false">&#x02016;')
    except Exception:  # latex2mathml raises many kinds
        formula = f"<code>{html.escape(latex)}</code>"
    self.body.append(f'<div class="math">{formula}</div>' if block else formula)
    raise nodes.SkipNode
