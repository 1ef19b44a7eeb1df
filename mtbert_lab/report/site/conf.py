"""The site of the report: Sphinx renders the notebooks of a folder that have a record; no kernel starts.

`mtbert report` calls it; by hand: `sphinx-build -c mtbert_lab/report/site build/executed build/report`.
"""

import html
import json
import os
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

from docutils import nodes
from jinja2 import Environment, FileSystemLoader
from latex2mathml.converter import convert_to_element
from sphinx.addnodes import download_reference
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util.docutils import SphinxTranslator

from mtbert.files import write_text
from mtbert.paths import REPOSITORY
from mtbert_lab.escapes import escaped, fence
from mtbert_lab.fields import field_table
from mtbert_lab.paths import find_figure
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

PAGES = ("index.md", "params.md", "fields.md", "api.md", "api_lab.md")  # templates
GUIDES = (  # pages of docs/, in reading order
    "commands.md", "python.md", "take_only_this.md", "own_data.md", "own_code.md", "store.md", "clusters.md",
    "docker.md",
)  # fmt: skip
LIVE = (nodes.raw, nodes.image, download_reference)
records: dict[str, dict] = {}  # what is known of the pages; no value of Sphinx's, which would render all of them again


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (write_math, None), (write_math, None))
    app.connect("config-inited", write_pages)
    app.connect("builder-inited", forbid_other_files)
    app.connect("autodoc-process-docstring", as_plain_text)
    app.connect("source-read", prepare)
    app.connect("doctree-read", show_as_written, priority=100)  # before Sphinx looks for images and downloads
    app.connect("html-page-context", add_to_page)


def forbid_other_files(app: Sphinx) -> None:
    """No page includes a file: names of runs that are written into Markdown could ask for one."""
    app.env.settings["file_insertion_enabled"] = False


def write_pages(app: Sphinx, config: Config) -> None:
    """Read the records, and write the pages made of templates and those of docs/ beside the notebooks."""
    folder = Path(app.srcdir)
    for file in sorted(folder.glob("*.ipynb")):
        if record := read_page(file):
            records[file.stem] = record
    docs = [Path(shutil.copy2(REPOSITORY / "docs" / page, folder)).name for page in GUIDES]
    config.include_patterns = [*PAGES, *docs, *(f"{name}.ipynb" for name in records)]
    context = {"records": records, "versions": versions(), "docs": docs, "fields": field_table()}
    context["hero"] = figure_of_front_page(folder)
    context["is_demo"] = any(record["profile"] == "demo" for record in records.values())
    templates = Environment(loader=FileSystemLoader(app.confdir), trim_blocks=True)
    templates.filters |= {"escaped": escaped, "fence": fence, "anchor": anchor}
    for page in PAGES:
        text = templates.get_template(page).render(context)
        if not (folder / page).exists() or (folder / page).read_text("utf8") != text:  # else Sphinx reads it again
            write_text(folder / page, text)


def figure_of_front_page(folder: Path) -> str:
    """Its path from the folder of the pages; empty where it is not there."""
    figure = find_figure("00_plans.svg")
    return os.path.relpath(figure, folder) if figure.exists() else ""


def read_page(file: Path) -> dict:
    """What the site says of a notebook; nothing without a record. The answer is the one it printed, else its card's.

    It is synthetic if it says so itself: some notebooks show the numbers of the real data in the demo profile as well.
    """
    content = json.loads(file.read_text("utf8"))
    metadata = content.get("metadata", {})
    if "mtbert" not in metadata:
        return {}
    title, question, *rest = [*"".join(content["cells"][0]["source"]).strip().split("\n\n"), ""]
    said = [output.get("data", {}) for cell in content["cells"] for output in cell.get("outputs", ())]
    texts = [*("".join(data.get("text/markdown", "")) for data in said), *rest]
    about = {"title": title.lstrip("# ") + of_grid(file.stem), "question": question, "is_synthetic": SYNTHETIC in texts}
    about["answer"] = next((text for text in texts if text.startswith("**Answer")), "")
    about["findings"] = next((text for text in texts if text.startswith("**Findings.**")), "")
    return metadata["mtbert"] | about | metadata.get("papermill", {})


def of_grid(name: str) -> str:
    """What the title of a page gets that shows a notebook for a grid, `<notebook>-<grid>`; empty for the others."""
    _, _, grid = name.partition("-")
    return f": {escaped(grid)}" if grid else ""


def anchor(profile: str, file: str) -> str:
    """The place of a file on the page of parameters."""
    return nodes.make_id(f"{profile}-{file}")


def prepare(app: Sphinx, name: str, source: list[str]) -> None:
    """Change a page before it is rendered: cells that only set the notebook up are hidden.

    These are the code before its first section, and folded cells that show nothing. Anchors keep capitals in
    JupyterLab, not here: [paper 002](00_start.ipynb#Paper-002).
    """
    source[0] = re.sub(r"\]\([\w.]*#[\w-]+\)", lambda link: link[0].lower(), source[0])
    if name not in records:
        return
    notebook = json.loads(source[0])
    title, *rest = "".join(notebook["cells"][0]["source"]).split("\n")
    notebook["cells"][0]["source"] = "\n".join([title + of_grid(name), *rest])
    is_before_sections = True
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            is_before_sections &= not re.search(r"^## ", "".join(cell["source"]), re.MULTILINE)
        elif cell["cell_type"] == "code":
            tags = cell["metadata"].get("tags", [])
            if "hide-input" in tags and not cell["outputs"]:
                cell["metadata"]["tags"] = ["remove-cell"]
            elif is_before_sections:
                cell["metadata"]["tags"] = ["remove-input"]
    source[0] = json.dumps(notebook)


def show_as_written(app: Sphinx, document: nodes.document) -> None:
    """HTML, images and downloads become text in Markdown that cells have shown, and on the front page, which has some.

    Sentences about runs are such Markdown, and their names may be anything.
    """
    made = [document]
    if app.env.docname in records:
        made = [part for part in document.findall(nodes.container) if part.get("mime_type") == "text/markdown"]
    own = figure_of_front_page(Path(app.srcdir))
    for part in made:
        for node in list(part.findall(lambda node: isinstance(node, LIVE))):
            if own and node.get("uri") == own:
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


def add_to_page(app: Sphinx, name: str, template: str, context: dict, document: nodes.document | None) -> None:
    """Give a page its record; links of HTML outputs to headings of notebooks lead to these on the pages."""
    context["record"] = records.get(name)
    context["anchor"] = anchor
    if "body" in context:

        def link(found: re.Match) -> str:
            return f'href="{found["page"]}.html#{nodes.make_id(html.unescape(found["anchor"]))}"'

        context["body"] = re.sub(r'href="(?P<page>\w+)\.ipynb#(?P<anchor>[^"]+)"', link, context["body"])


def write_math(self: SphinxTranslator, node: nodes.math | nodes.math_block) -> None:
    """Write a formula as MathML; one that cannot be read is shown as it was written.

    A formula is cut at \\qquad, as browsers do not break MathML into lines.
    """
    block = isinstance(node, nodes.math_block)
    latex = node.astext()
    try:
        formula = "".join(_mathml(part, "block" if block else "inline") for part in latex.split(r"\qquad"))
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
        if element.text == "‖":  # the bars of a norm have no partner that says how far they stretch
            element.set("stretchy", "false")
    return ElementTree.tostring(formula, encoding="unicode")
