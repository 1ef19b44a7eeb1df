"""The site of the report, built from the committed notebooks without executing them, and looked at in Chromium."""

import html
import http.server
import importlib
import inspect
import json
import re
import subprocess
import threading
from functools import partial
from html.parser import HTMLParser

import nbformat
import pandas as pd
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from mtbert.paths import REPOSITORY
from mtbert_lab.fields import field_table
from mtbert_lab.report import board, notebook
from mtbert_lab.report.build import _build_site
from mtbert_lab.report.notebook import SYNTHETIC
from mtbert_lab.report.tables import Grid, compare, verdicts
from mtbert_lab.store.grids import read_grid

WIDGETS = {  # what a notebook has that was saved in JupyterLab with a slider in it
    "application/vnd.jupyter.widget-state+json": {
        "state": {"1": {"model_name": "IntSliderModel", "model_module": "@jupyter-widgets/controls", "state": {}}},
        "version_major": 2,
        "version_minor": 0,
    }
}
RECORD = {"profile": "cpu", "params": {"hybrids": "runs: {}\n"}}
START = """# 00 - Start

Which papers?

## Paper 002

It shares *and* splits layers.
"""
CARD = r"""# 01 - A tiny notebook

It adds $a_1 * b < c$ for \$5, says paper 002. Does it?

**Answer in a line:** see `paper 002`, paper 009, [paper 002](https://example.org) and [this](00_start.ipynb#Paper-002).

$$\mathrm{softmax}\left(\frac{QK^\top}{\sqrt{d_k}}\right)V \qquad \lVert x \rVert$$

An unreadable one, $\left( <$, and `echo $HOME and $PATH`. Once a placeholder: mathml99token.
"""
FIGURE = '<img class="figure" alt="a red pixel" src="data:image/svg+xml;base64,PHN2Zy8+">'


def output(**data):
    return new_output("display_data", {name.replace("_", "/", 1): text for name, text in data.items()})


def write(folder, name, cells, **record):
    folder.mkdir(exist_ok=True)
    executed = {"start_time": "2026-01-31T12:00", "duration": 12.3}
    about = {"language_info": {"name": "python"}, "papermill": executed, "widgets": WIDGETS, "mtbert": RECORD | record}
    nbformat.write(new_notebook(cells=cells, metadata=about), folder / f"{name}.ipynb")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, without_api):
    """The pages of two notebooks: name -> HTML."""
    folder = tmp_path_factory.mktemp("tiny") / "executed"
    answer = output(text_markdown="**Answer.** 42, $x$, mathml0token")
    cells = [
        new_markdown_cell(CARD),
        new_code_cell("import os", metadata={"tags": ["hide-input"]}, outputs=[answer]),
        new_code_cell("plot()", outputs=[output(text_html=FIGURE)]),
        new_markdown_cell("## By plan"),
        new_code_cell("by_plan()", metadata={"tags": ["hide-input"]}, outputs=[output(text_html=FIGURE)]),
        new_code_cell("set_up = 1", metadata={"tags": ["hide-input"]}),
        new_code_cell("shown = 1"),
    ]
    write(folder, "00_start", [new_markdown_cell(START)], params={})
    params = {"01_tiny": "seed: 40"} | dict.fromkeys(["heads", "hybrids"], "runs: {}")
    write(folder, "01_tiny", cells, params=params)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mtbert_lab.report.build.__file__", without_api)
        front = _build_site(folder)
    return {path.stem: path.read_text(encoding="utf8") for path in front.parent.glob("*.html")}


def test_formulas_are_mathml(tiny):
    page = tiny["01_tiny"]
    assert page.count("<math") == 4 and page.count('display="block"') == 2  # cut at \qquad; one in an output
    assert "<mfrac>" in page and "<msqrt>" in page
    assert page.count('<mo stretchy="false">‖') == 2
    assert r"<code>\left( &lt;</code>" in page
    text = re.sub(r"<[^>]+>", "", page)
    assert "echo $HOME and $PATH" in text and "for $5" in text
    assert "mathml99token" in text and "mathml0token" in text  # which stood for formulas until they were rendered


def test_code_is_hidden_or_folded_and_figures_described_and_pages_linked_to_their_params(tiny):
    page = tiny["01_tiny"]
    assert "import" not in page and "set_up" not in page, "what sets a notebook up"
    assert "shown" in page
    assert re.search(r"<details.*?by_plan", page, re.DOTALL)
    assert re.findall(r'<img class="figure" alt="(.*?)"', page) == ["a red pixel"] * 2
    links = re.findall(r'href="(params\.html#.*?)"', page)
    assert links == [f"params.html#cpu-{name}" for name in ("01-tiny", "heads", "hybrids")]
    assert all(f'id="{link.partition("#")[2]}"' in tiny["params"] for link in links)
    assert 'href="_sources/01_tiny.ipynb" download' in page


def test_a_site_without_notebooks_says_so(tmp_path, quick_site):
    (tmp_path / "executed").mkdir()
    front = _build_site(tmp_path / "executed").read_text(encoding="utf8")
    assert "The notebooks are being executed" in front
    guides = [page.stem for page in (REPOSITORY / "docs").glob("*.md")]
    assert [name for name in guides if f'href="{name}.html"' not in front] == []


def test_the_api_page_has_signature_and_docstring_of_what_each_room_exports(site):
    page = "".join((site / name).read_text(encoding="utf8") for name in ("api.html", "api_lab.html"))
    rooms = re.findall(r"<h2>(mtbert(?:_lab)?\.\w+)<", page)
    assert {"mtbert.config", "mtbert.bert", "mtbert.optim", "mtbert_lab.store"} <= set(rooms)
    for room in rooms:
        module = importlib.import_module(room)
        things = [getattr(module, name) for name in getattr(module, "__all__", ())]
        documented = [thing for thing in things if inspect.isroutine(thing) or inspect.isclass(thing)]
        assert [thing for thing in documented if f'id="{room}.{thing.__name__}"' not in page] == []
    text = html.unescape(re.sub(r"<[^>]+>|\s", "", page))
    assert "find_run(text:str,data:str|Path|None=None)→str" in text and "isstoredorwhosemodelisinthecache" in text
    assert "default|step||m_k|" not in text and 'class="problematic"' not in page, "docstrings are plain text"
    assert str(REPOSITORY) not in page and " object at 0x" not in page


def test_what_the_api_pages_name_is_there():
    """Sphinx prints a warning alone for a name that is gone."""
    for page in ("api.md", "api_lab.md"):
        text = (REPOSITORY / "mtbert_lab/report/site" / page).read_text(encoding="utf8")
        for name in re.findall(r"^\.\. auto(?:class|function|exception):: ([\w.]+)$", text, re.MULTILINE):
            room, _, thing = name.rpartition(".")
            assert hasattr(importlib.import_module(room), thing), f"{page}: {name}"


def test_the_page_of_fields_has_type_default_description_and_source(tiny):
    def plain(text):
        return re.sub("['\"‘’“”\\s]", "", text)  # the page has quotation marks of books

    text = plain(html.unescape(re.sub(r"<[^>]+>", "", tiny["fields"])))
    for row in field_table():
        assert plain(f"{row.name}: {row.type} = {row.default} {row.description}") in text
        assert plain(row.source) in text


def test_the_front_page_has_questions_and_answers_and_pages_with_synthetic_numbers_a_banner(tiny, tmp_path, quick_site):
    front = tiny["index"]
    assert "Does it?" in front and "42, <math" in front and "torch 2" in front
    assert "Synthetic corpus" not in front + tiny["01_tiny"]
    folder = tmp_path / "executed"
    trained = new_code_cell("", outputs=[output(text_markdown=SYNTHETIC), output(text_markdown="**Answer.** 99 %")])
    real = new_code_cell("", outputs=[output(text_markdown="**Answer.** 42 %")])
    write(folder, "01_trained", [new_markdown_cell(CARD), trained], profile="demo")
    write(folder, "02_real", [new_markdown_cell(CARD), real], profile="demo")
    (folder / "03_failed.ipynb").write_text("{}")
    pages = {path.stem: path.read_text() for path in _build_site(folder).parent.glob("*.html")}
    assert [name for name in sorted(pages) if "Synthetic corpus" in pages[name]] == ["01_trained"]
    assert "42 %" in pages["index"] and "99 %" not in pages["index"] and "03_failed" not in pages


def test_the_pages_of_two_grids_have_two_titles(tmp_path, quick_site):
    folder = tmp_path / "executed"
    for name in ("01_tiny", "01_tiny-mine", "01_tiny-yours"):
        write(folder, name, [new_markdown_cell(CARD)])
    pages = {path.stem: path.read_text("utf8") for path in _build_site(folder).parent.glob("*.html")}
    for name, title in {"01_tiny": "", "01_tiny-mine": ": mine", "01_tiny-yours": ": yours"}.items():
        assert f"<h1>01 - A tiny notebook{title}<" in pages[name]
        assert f">01 - A tiny notebook{title}</a>" in pages["index"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site of the committed notebooks."""
    folder = tmp_path_factory.mktemp("site") / "executed"
    for path in sorted((REPOSITORY / "notebooks").glob("*.ipynb")):
        write(folder, path.stem, nbformat.read(path, as_version=4).cells)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MTBERT_FIGURES", str(REPOSITORY / "figures"))
        return _build_site(folder).parent


class Links(HTMLParser):
    """The ids of a page, its links, what it loads, and the addresses of other hosts in anything but links and text."""

    def __init__(self, page):
        super().__init__()
        self.ids, self.links, self.loaded, self.outside, self.tag = set(), [], [], [], ""
        self.feed(page.read_text(encoding="utf8"))

    def handle_starttag(self, tag, attributes):
        attributes, self.tag = dict(attributes), tag
        self.ids.add(attributes.get("id"))
        self.links += [attributes["href"]] if "href" in attributes else []
        self.loaded += [attributes.get("src") or attributes.get("href")] if tag in ("script", "img", "link") else []
        names = attributes.keys() - {"xmlns", "xmlns:xlink", *(["href"] if tag == "a" else [])}
        self.outside += [attributes[name] for name in names if OUTSIDE.search(attributes[name] or "")]

    def handle_endtag(self, tag):
        self.tag = ""

    def handle_data(self, text):
        self.outside += OUTSIDE.findall(text) if self.tag in ("script", "style") else []


OUTSIDE = re.compile(r"""(?:https?:|^|["'(=])//[\w.-]+\.\w+""")


def test_every_link_leads_somewhere_and_nothing_is_loaded_from_another_host(site):
    pages = {path.name: Links(path) for path in site.glob("*.html")}
    assert pages.keys() >= {f"{path.stem}.html" for path in (REPOSITORY / "notebooks").glob("*.ipynb")}
    assert "_images/00_plans.svg" in pages["index.html"].loaded
    for name, page in pages.items():
        assert not page.outside, name
        for link in page.links:
            if re.match(r"https?:", link):
                continue
            path, _, anchor = link.partition("#")
            path = path.partition("?")[0] or name
            assert (site / path).exists(), f"{name} links {link}"
            assert not anchor or path not in pages or anchor in pages[path].ids, f"{name} links {link}"
    for path in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//|@import", path.read_text(encoding="utf8")), path.name


LOOK = """<!DOCTYPE html><body><script>
const pages = PAGES, found = [];
const look = (page, width) => new Promise(done => {
  const frame = document.createElement("iframe");
  frame.style = `width: ${width}px; height: 900px; border: 0`;
  frame.onload = () => setTimeout(() => {
    const inner = frame.contentDocument, root = inner.documentElement;
    const say = (what, element) => found.push(`${page} at ${width} px: ${what} ${element.outerHTML.slice(0, 120)}`);
    if (root.scrollWidth > width) say(`${root.scrollWidth} px wide`, root);
    const sections = inner.querySelector(".toc-drawer:not(.no-toc)"), right = box => box.getBoundingClientRect().right;
    if (width >= 1280 && sections && right(sections) > width) say("list of sections outside", sections);
    const scrolls = box => ["auto", "scroll"].includes(inner.defaultView.getComputedStyle(box).overflowX);
    for (const table of inner.querySelectorAll("article table")) {
      let box = table.parentElement;
      while (box.tagName !== "ARTICLE" && !scrolls(box)) box = box.parentElement;
      const element = box.tagName === "ARTICLE" ? table : box;
      if (right(element) > right(inner.querySelector("article")) + 1) say("wider than the text", element);
    }
    for (const image of inner.images) if (!image.naturalWidth) say("no image", image);
    for (const box of inner.querySelectorAll("article *, .announcement *")) {
      const clips = ["hidden", "clip"].includes(getComputedStyle(box).overflowX) || box.tagName === "PRE";
      if (clips && box.scrollWidth > box.clientWidth + 1 && box.clientWidth > 1) say("clipped", box);
    }
    for (const { name } of frame.contentWindow.performance.getEntriesByType("resource"))
      if (!name.startsWith(location.origin)) found.push(`${page} requests ${name}`);
    frame.remove();
    done();
  }, 300);
  frame.src = page;
  document.body.append(frame);
});
(async () => {
  for (const page of pages) for (const width of [400, 1280]) await look(page, width);
  document.title = "done";
  document.body.innerText = found.join("\\n");
})();
</script>"""


def in_chromium(chromium, site, script):
    """What a script, given as a page beside those of a site, leaves as its body; and what the browser complains of."""
    (site / "look.html").write_text(script)
    missing = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, text, *values):
            pass

        def log_error(self, text, *values):
            missing.append(self.path)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/look.html"
        command = [*chromium, "--enable-logging=stderr", "--virtual-time-budget=60000", "--dump-dom", url]
        process = subprocess.run(command, capture_output=True, text=True, timeout=120)
        server.shutdown()
    (site / "look.html").unlink()
    assert "<title>done</title>" in process.stdout, process.stderr[-2000:]
    assert [path for path in missing if path != "/favicon.ico"] == []
    assert not re.findall(r".*CONSOLE.*", process.stderr)
    return re.search(r"<body>(.*)</body>", process.stdout, re.DOTALL)[1].replace("<br>", "\n").strip()


def test_pages_in_chromium_fit_into_400_and_1280_pixels_without_errors(site, chromium):
    names = sorted(path.name for path in site.glob("*.html"))
    assert in_chromium(chromium, site, LOOK.replace("PAGES", json.dumps(names))) == ""


USE = """<!DOCTYPE html><body><iframe style="width: 1280px; height: 900px"></iframe><script>
const frame = document.querySelector("iframe"), found = {};
frame.onload = () => setTimeout(() => {
  const inner = frame.contentDocument, box = inner.querySelector(".board"), first = box.querySelector("td");
  const shown = () => [...box.querySelectorAll("tbody tr")].filter(row => !row.hidden);
  const open = () => [...inner.querySelectorAll("details.hide")].map(cell => cell.open);
  if (found.all === undefined) {
    found.code = [open()];
    inner.getElementById("show-code").click();
    found.code.push(open());
    found.all = inner.querySelector(".filters output").textContent;
    found.links = [...inner.querySelectorAll(".board a")].map(link => link.getAttribute("href"));
    const before = first.getBoundingClientRect().left;
    box.scrollLeft = 200;
    found.first = [box.scrollLeft > 0, first.getBoundingClientRect().left - before];
    const choice = inner.querySelectorAll(".filters select")[1];
    choice.value = "contradicted";
    choice.onchange();
    found.chosen = shown().map(row => row.cells[0].innerText.split("\\n")[0]);
    inner.querySelectorAll(".board th")[3].click();
    found.sorted = shown().map(row => row.cells[3].innerText);
    frame.src = "02_board.html?again";
  } else {
    found.code.push(open());
    document.title = "done";
    document.body.innerText = JSON.stringify(found);
  }
}, 300);
frame.src = "02_board.html";
</script>"""


def test_a_board_is_filtered_and_sorted_and_code_is_shown_by_one_switch(tmp_path, quick_site, chromium, shown):
    folder = tmp_path / "executed"
    about = dict(paper="002", place="Table 1", kind="finding", its_number="0.1", words="w" * 200, headline=0)
    rows = [
        about
        | dict(claim="a", verdict="contradicted", found="+0.020", section="01_tiny.ipynb#1-Of-papers'-plans,-all"),
        about | dict(claim="b", verdict="reproduced", found="+0.010", section=""),
        about | dict(claim="c", verdict="contradicted", found="-0.030", section="01_tiny.ipynb#Gone"),
        about | dict(claim="d", verdict="contradicted", found="0.001", section=""),
    ]
    notebook.embed(board.board(pd.DataFrame(rows)), "board")
    write(folder, "00_start", [new_markdown_cell(START)])
    write(folder, "01_tiny", [new_markdown_cell(CARD), new_markdown_cell("## 1 Of papers' plans, all")])
    folded = {"tags": ["hide-input"]}
    cell = new_code_cell("notebook.embed(...)", metadata=folded, outputs=[output(text_html=shown[0].data)])
    other = new_code_cell("print(1)", metadata=folded, outputs=[output(text_plain="1")])
    write(folder, "02_board", [new_markdown_cell("# 02 - A board\n\n## All claims"), cell, other])
    found = json.loads(html.unescape(in_chromium(chromium, _build_site(folder).parent, USE)))
    assert found["all"] == "4 of 4 claims" and found["chosen"] == ["a", "c", "d"]
    assert found["sorted"] == ["-0.030", "0.001", "+0.020"]
    paper = "00_start.html#paper-002"
    sections = ["01_tiny.html#of-papers-plans-all", "01_tiny.html#gone"]
    assert found["links"] == [paper, sections[0], paper, paper, sections[1], paper]
    assert found["first"] == [True, 0], "the first column stays in sight"
    assert found["code"] == [[False, False], [True, True], [True, True]], "folded, shown, and so on the next page"


SORT = """<!DOCTYPE html><body><iframe></iframe><script>
const frame = document.querySelector("iframe");
frame.onload = () => setTimeout(() => {
  const tables = [...frame.contentDocument.querySelectorAll("table.dataframe")];
  const row = row => [...row.cells].map(cell => cell.textContent.trim());
  const heads = tables.map(table => [...table.tHead.rows].map(row));
  tables[0].tHead.rows[0].cells[1].click();
  document.title = "done";
  document.body.innerText = JSON.stringify([heads, [...tables[0].tBodies[0].rows].map(row)]);
}, 300);
frame.src = "01_tables.html";
</script>"""


def test_the_name_of_an_index_heads_its_column_and_a_click_sorts(tmp_path, quick_site, chromium):
    folder = tmp_path / "executed"
    plans = pd.Index(["a", "b", "c"], name="plan")
    plain = pd.DataFrame({"score": [0.3, 0.1, 0.2]}, index=plans)
    by_seed = plain.rename_axis(columns="seed")  # both axes have names: pandas' heading stays as it is
    cells = [new_code_cell("table", outputs=[output(text_html=table.to_html())]) for table in (plain, by_seed)]
    write(folder, "00_start", [new_markdown_cell(START)])
    write(folder, "01_tables", [new_markdown_cell(CARD), *cells])
    heads, rows = json.loads(html.unescape(in_chromium(chromium, _build_site(folder).parent, SORT)))
    assert heads == [[["plan", "score"]], [["seed", "score"], ["plan", ""]]]
    assert rows == [["b", "0.1"], ["c", "0.2"], ["a", "0.3"]]


EVIL = (  # names of runs
    "<script>top.evil = 1</script>",
    "<img src=x onerror=top.evil=1>",
    "![an image](https://example.org/x.png)",
    "$\\text{<script>top.evil = 1</script>}$",
    "```{include} 00_start.ipynb",
    "<iframe srcdoc=x>",
    "{download}`00_start.ipynb`",
    "[a link](https://example.org/evil)",
    "<!doctype x> `x` *y* __z__ &amp; | #",
)
FILE = "a_(b<img src=x onerror=top.evil=1>"  # the name of their grid
LIVE = """<!DOCTYPE html><body><iframe></iframe><script>
const pages = PAGES, frame = document.querySelector("iframe"), found = [];
frame.onload = () => setTimeout(() => {
  const inner = frame.contentDocument;
  for (const element of inner.querySelectorAll("[onerror], [srcdoc], article script, article img:not(.figure)"))
    found.push(`${frame.src} ${element.outerHTML}`);
  if (pages.length) frame.src = pages.pop();
  else {
    document.title = "done";
    document.body.innerText = [...found, ...(top.evil ? ["a script has run"] : [])].join("\\n");
  }
}, 300);
frame.src = pages.pop();
</script>"""


@pytest.fixture(scope="module")
def evil(tmp_path_factory, synthetic, without_api):
    """The site of a notebook about the runs of an evil grid, which are compared as notebooks do it."""
    folder, shown = tmp_path_factory.mktemp("evil"), []
    file = folder / f"{FILE}.yaml"
    plans = ["1-bert", "3-bert", *(f"hybrid-{k}" for k in range(1, 6)), "frozen", "S4 I2"]
    runs = {name: {"plan": plan} for name, plan in zip(EVIL, plans, strict=True)}
    base = {"tasks": ["sst", "quora", "sts"], "scheme": "unified", "keep": "last"}
    grid = yaml.safe_dump({"base": base, "runs": runs}, sort_keys=False)
    file.write_text(f"# ```\n# <script>top.evil = 1</script>\n# ````\n{grid}")
    configs = {name: [config.but(seed=s) for s in (1, 2, 3)] for name, [config] in read_grid(file).items()}
    stored = {
        name: [synthetic(config, 0.5 + i / 20) for config in group] for i, (name, group) in enumerate(configs.items())
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(notebook, "display", shown.append)
        patch.setattr(notebook.plots_sweeps, "differences_by_task", lambda *arguments: None)
        patch.setattr(notebook.plots, "show", lambda *arguments: None)
        compared = compare(Grid((file.name,), configs, stored), "plan")
        notebook.tell_doubts(compared)
        notebook.listing(verdicts(compared.differences))
        notebook.forest(compared.differences, "01_evil", "difference", "What differs.")
        notebook.numbers(compared)
        best = [f"**Answer.** *{name}* is best, then {name}." for name in EVIL]  # as cells write it
        for text in [*best, "\n".join(f"- {name}" for name in EVIL)]:
            notebook.display_markdown(text)
    kinds = {"Markdown": "text_markdown", "HTML": "text_html"}
    outputs = [output(**{kinds[type(one).__name__]: one.data}) for one in shown]
    cells = [
        new_code_cell("differences()", outputs=outputs),
        new_code_cell("plot()", outputs=[output(text_html=FIGURE)]),
    ]
    executed = folder / "executed"
    write(executed, "00_start", [new_markdown_cell(START)], params={})
    for i, answer in enumerate(best):  # each is on the front page, too
        cell = new_code_cell("say()", outputs=[output(text_markdown=answer)])
        write(executed, f"02_answer{i}", [new_markdown_cell("# 02 - An answer\n\nWhich?"), cell], params={})
    write(executed, "01_evil", [new_markdown_cell(CARD), *cells], params={FILE: file.read_text()})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mtbert_lab.report.build.__file__", without_api)
        return _build_site(executed).parent


class Text(HTMLParser):
    """The text of a page, and the tags with an attribute that runs code, but for the sorting of tables."""

    def __init__(self, page):
        super().__init__()
        self.text, self.live = "", []
        self.feed(page.read_text(encoding="utf8"))

    def handle_starttag(self, tag, attributes):
        handlers = [name for name, _ in attributes if name.startswith("on") and tag != "thead"]
        targets = [value or "" for name, value in attributes if name in ("href", "src")]
        if handlers or "srcdoc" in dict(attributes) or any("javascript:" in target for target in targets):
            self.live.append(self.get_starttag_text())

    def handle_data(self, data):
        self.text += data


def test_no_name_of_a_run_or_a_file_is_markup_on_a_page(evil):
    for path in evil.glob("*.html"):
        page, text = path.read_text(encoding="utf8"), Text(path)
        assert not text.live and "<script>top" not in page and "<iframe" not in page and 'src="x"' not in page
        assert "https://example.org/x.png" not in Links(path).loaded, "an image of another host"
        assert '"cell_type"' not in page and '"profile"' not in page, "another file"
    assert not (evil / "_downloads").exists()
    text = Text(evil / "01_evil.html").text
    assert f"{EVIL[-1]} minus {EVIL[0]}, " in text and f"({FILE}.yaml) are stored" in text
    assert all(text.count(name) >= 2 for name in EVIL), "in the tables of differences and scores"
    params = Text(evil / "params.html").text
    assert "# ````" in params and f"cpu/{FILE}.yaml" in params
    [link] = [link for link in Links(evil / "01_evil.html").links if link.startswith("params.html#cpu")]
    assert link.partition("#")[2] in Links(evil / "params.html").ids


def test_no_name_does_anything_in_chromium(evil, chromium):
    names = sorted(path.name for path in evil.glob("*.html"))
    assert in_chromium(chromium, evil, LIVE.replace("PAGES", json.dumps(names))) == ""
