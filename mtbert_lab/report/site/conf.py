"""The site of the report: Sphinx renders the executed notebooks of a folder; no kernel starts.

`mtbert report` calls it; by hand: `sphinx-build -c mtbert_lab/report/site build/executed build/report`.
"""

import html
import json
import os
import re
import shutil
from itertools import chain
from pathlib import Path
from xml.etree import ElementTree

from docutils import nodes
from jinja2 import Environment, FileSystemLoader
from latex2mathml.converter import convert_to_element
from sphinx.addnodes import download_reference
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util.docutils import SphinxTranslator

from mtbert.config import field_table
from mtbert.names import escaped, fence
from mtbert.paths import REPOSITORY
from mtbert_lab.report.notebook import SYNTHETIC, versions

project = html_title = "mtbert report"
extensions = ["myst_nb", "sphinx.ext.autodoc"]
html_theme = "furo"
html_theme_options = {"top_of_page_buttons": []}
html_static_path = ["site.css", "site.js", "math.woff", "math.LICENSE.txt"]
html_css_files, html_js_files = ["site.css"], [("site.js", {"defer": "defer"})]
templates_path = ["."]  # page.html
html_sourcelink_suffix = ""  # _sources/ has the notebooks under their own names
html_show_copyright = html_use_index = html_domain_indices = False
html_math_renderer = "mathml"  # Sphinx's own loads MathJax from another host
pygments_dark_style = "github-dark"
nb_execution_mode = "off"
nb_merge_streams = True
nb_code_prompt_show, nb_code_prompt_hide = "Show code", "Hide code"
nb_render_markdown_format = "myst"
nb_ipywidgets_js = {}  # by default two other hosts, for notebooks that were saved with the state of widgets
myst_enable_extensions = ["attrs_block", "deflist", "dollarmath"]
myst_heading_anchors = 3
default_role = "code"  # of `names` in docstrings
add_module_names = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True  # a default that is a path would be this machine's
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
suppress_warnings = ["myst.xref_missing"]  # links to notebooks that are still being executed

START = "00_start"  # the notebook with a section "Paper 00N" for each paper
PAGES = ("index.md", "params.md", "fields.md", "api.md")  # templates
LIVE = (nodes.raw, nodes.image, download_reference)
CODE_IS_SHOWN = ("01_implement", "04_sharing_methods")  # where code stands beside the equations; elsewhere it is folded


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (write_math, None), (write_math, None))
    app.connect("config-inited", write_pages)
    app.connect("builder-inited", forbid_other_files)
    app.connect("autodoc-process-docstring", as_plain_text)
    app.connect("source-read", prepare)
    app.connect("doctree-read", show_as_written, priority=100)  # before Sphinx looks for images and downloads
    app.connect("html-page-context", link_sections)
    app.connect("html-page-context", link_papers)


def forbid_other_files(app: Sphinx) -> None:
    """No page includes a file: names of runs that are written into Markdown could ask for one."""
    app.env.settings["file_insertion_enabled"] = False


def write_pages(app: Sphinx, config: Config) -> None:
    """Write the pages made of templates and those of docs/ beside the notebooks that have a record."""
    folder = Path(app.srcdir)
    docs = [Path(shutil.copy(page, folder)).name for page in sorted((REPOSITORY / "docs").glob("*.md"))]
    pareto = Path(os.environ.get("MTBERT_FIGURES") or REPOSITORY / "figures", "05_pareto.svg")
    context = config.html_context = {"records": {}, "versions": versions(), "docs": docs, "fields": field_table()}
    context["pareto"] = os.path.relpath(pareto, folder) if pareto.exists() else ""
    for file in sorted(folder.glob("*.record")):
        context["records"][file.stem] = json.loads(file.read_text("utf8")) | read_card(file.with_suffix(".ipynb"))
    context["is_demo"] = any(record["profile"] == "demo" for record in context["records"].values())
    templates = Environment(loader=FileSystemLoader(app.confdir), trim_blocks=True)
    templates.filters |= {"escaped": escaped, "fence": fence, "anchor": anchor}
    for page in PAGES:
        text = templates.get_template(page).render(context)
        if not (folder / page).exists() or (folder / page).read_text("utf8") != text:  # else Sphinx reads it again
            (folder / page).write_text(text, encoding="utf8")
    config.include_patterns = [*PAGES, *docs, *(f"{name}.ipynb" for name in context["records"])]


def read_card(notebook: Path) -> dict:
    """What the site says of an executed notebook; its answer is the one it printed, else that of its card.

    It is synthetic if it says so itself: some notebooks show the numbers of the real data in the demo profile as well.
    """
    content = json.loads(notebook.read_text("utf8"))
    title, question, *rest = [*"".join(content["cells"][0]["source"]).strip().split("\n\n"), ""]
    texts = [*chain(*map(_said, content["cells"])), *rest]
    answer = next((text for text in texts if text.startswith("**Answer")), "")
    about = {"title": title.lstrip("# "), "question": question, "answer": answer, "is_synthetic": SYNTHETIC in texts}
    return content["metadata"]["papermill"] | about


def _said(cell: dict) -> list[str]:
    """The Markdown that a cell has shown."""
    return ["".join(output.get("data", {}).get("text/markdown", "")) for output in cell.get("outputs", ())]


def prepare(app: Sphinx, name: str, source: list[str]) -> None:
    """Change a notebook before it is rendered: code is folded, figures get params.

    The params of a figure are those of its notebook and the grids that its section names, in its source or in what it
    shows; else those that no section names.
    """
    # Anchors keep capitals in JupyterLab: [paper 002](00_start.ipynb#Paper-002).
    source[0] = re.sub(r"\]\([\w.]*#[\w-]+\)", lambda link: link[0].lower(), source[0])
    if not (record := app.config.html_context["records"].get(name)):
        return
    notebook = json.loads(source[0])
    params = record["params"]
    sections = [[]]
    for cell in notebook["cells"]:
        tags = cell["metadata"].get("tags", ())
        is_folded = name not in CODE_IS_SHOWN or "injected-parameters" in tags
        if cell["cell_type"] == "code" and is_folded:
            cell["metadata"]["tags"] = list({*tags, "hide-input"})
        if cell["cell_type"] == "markdown" and re.search(r"^#+ ", "".join(cell["source"]), re.MULTILINE):
            sections.append([])
        sections[-1].append(cell)
    named = []
    for section in sections:
        text = "\n".join("".join([*cell["source"], *_said(cell)]) for cell in section)
        named.append({file for file in params if re.search(rf'"{re.escape(file)}"(?!:)|{re.escape(file)}\.yaml', text)})
    others = params.keys() - set().union(*named[2:])  # the first section is the card with the set-up
    for section, grids in zip(sections, named, strict=True):
        files = [file for file in params if file == name or file in (grids or others)]
        links = ", ".join(f"[{escaped(file)}](#{anchor(record['profile'], file)})" for file in files)
        line = {"text/markdown": f"{{.small}}\nParameters: {links or 'those of the notebook'}"}
        for cell in section:
            shown = ["".join(output.get("data", {}).get("text/html", "")) for output in cell.get("outputs", ())]
            if any('<img class="figure"' in text for text in shown):
                cell["outputs"].append({"output_type": "display_data", "metadata": {}, "data": line})
    source[0] = json.dumps(notebook)


def anchor(profile: str, file: str) -> str:
    """The place of a file on the page of parameters."""
    return re.sub(r"[^\w-]", "-", f"{profile}-{file}")


def show_as_written(app: Sphinx, document: nodes.document) -> None:
    """HTML, images and downloads in Markdown that cells have shown, or that a template holds, become text.

    Sentences about runs are such Markdown, and their names may be anything.
    """
    made = [document]
    if app.env.docname in app.config.html_context["records"]:
        made = [part for part in document.findall(nodes.container) if part.get("mime_type") == "text/markdown"]
    for part in made:
        for node in list(part.findall(lambda node: isinstance(node, LIVE))):
            if node.get("uri") == app.config.html_context["pareto"]:  # the figure of the front page
                continue
            text = nodes.Text(node.get("alt") or node.astext())
            is_in_line = isinstance(node.parent, nodes.TextElement)
            node.replace_self(text if is_in_line else nodes.paragraph("", "", text))


def as_plain_text(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Docstrings are plain text with `code`: what would be markup elsewhere, as in |x| or 2 * x_, is escaped."""
    for i, line in enumerate(lines):
        parts = line.split("`")
        parts[::2] = [re.sub(r"([*|_\\])", r"\\\1", part) for part in parts[::2]]
        lines[i] = "`".join(parts)


def link_sections(app: Sphinx, name: str, template: str, context: dict, document: nodes.document | None) -> None:
    """Links of HTML outputs to headings of notebooks lead to these on the pages."""

    def link(found: re.Match) -> str:
        page = found["page"]
        anchor = html.unescape(found["anchor"])
        slug = re.sub(r"[^\w-]", "", anchor.lower())
        _, target, _ = app.env.metadata[page].get("myst_slugs", {}).get(slug, (0, "", ""))
        return f'href="{page}.html#{target}"' if target else f'href="{page}.html"'

    if "body" in context:
        context["body"] = re.sub(r'href="(?P<page>\w+)\.ipynb#(?P<anchor>[^"]+)"', link, context["body"])


def link_papers(app: Sphinx, name: str, template: str, context: dict, document: nodes.document | None) -> None:
    """Link each "paper 00N" of a page that is not code, heading or link already to the section of that title."""

    def link(found: re.Match) -> str:
        return f'<a href="{START}.html#paper-{found["number"]}">{found[0]}</a>' if found["number"] else found[0]

    pattern = r"<(?P<tag>a|code|pre|script|h\d)\b.*?</(?P=tag)>|<[^>]+>|[Pp]aper\s(?P<number>00\d)"
    if START in context["records"] and "body" in context:
        context["body"] = re.sub(pattern, link, context["body"], flags=re.DOTALL)


def write_math(self: SphinxTranslator, node: nodes.math | nodes.math_block) -> None:
    """Write a formula as MathML; one that cannot be read is shown as it was written.

    A formula is cut at \\qquad, as browsers do not break MathML into lines.
    """
    block = isinstance(node, nodes.math_block)
    latex = node.astext()
    try:
        parts = [_mathml(part, "block" if block else "inline") for part in latex.split(r"\qquad")]
        # The bars of a norm have no partner that says how far they stretch.
        formula = "".join(parts).replace("<mo>‖", '<mo stretchy="false">‖')
    except Exception:  # latex2mathml raises many kinds
        formula = f"<code>{html.escape(latex)}</code>"
    self.body.append(f'<div class="math">{formula}</div>' if block else formula)
    raise nodes.SkipNode


def _mathml(latex: str, display: str) -> str:
    r"""MathML of a formula; the converter's own text would have tags that a \text{} holds, and links, alive."""
    formula = convert_to_element(latex, display=display)
    for element in formula.iter():
        element.text = element.text and html.unescape(element.text)  # the converter writes symbols as entities
        element.attrib.pop("href", None)
    return ElementTree.tostring(formula, encoding="unicode")
