"""The drawings: well-formed, nothing outside their edges, legible in light and dark."""

import base64
import re
import subprocess
from xml.etree import ElementTree

import pytest

from mtbert_lab.report import diagrams, plots
from tools import draw_diagrams

DRAWINGS = ("hybrid", "pal", "one_or_two", "progressive", "pcgrad_projection", "distillation")
WIDTH = 8.4  # pixels that a letter of the text takes at most, on average; a small one 7.1


def read(name: str) -> str:
    return (diagrams.SITE / f"04_{name}.svg").read_text(encoding="utf8")


def test_the_committed_drawings_are_those_that_are_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(draw_diagrams, "REPOSITORY", tmp_path)
    site = tmp_path / "mtbert_lab" / "report" / "site"
    site.mkdir(parents=True)
    draw_diagrams.main()
    assert {path.name for path in site.iterdir()} == {f"04_{name}.svg" for name in DRAWINGS}
    for name in DRAWINGS:
        assert (site / f"04_{name}.svg").read_text(encoding="utf8") == read(name), "run python tools/draw_diagrams.py"


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_keeps_within_its_edges(name):
    root = ElementTree.fromstring(read(name))
    _, _, whole_width, whole_height = map(float, root.attrib["viewBox"].split())
    places = [(0.0, 0.0)]
    for element in root.iter():
        kind = element.tag.partition("}")[2]
        about = element.attrib
        if kind == "rect":
            x, y, width, height = (float(about[key]) for key in ("x", "y", "width", "height"))
            places += [(x, y), (x + width, y + height)]
        elif kind in ("polyline", "polygon"):
            places += [tuple(map(float, point.split(","))) for point in about["points"].split()]
        elif kind == "text":
            looks = about.get("class", "")
            width = len("".join(element.itertext())) * (7.1 if "small" in looks else WIDTH)
            left = 0 if "left" in looks else width if "right" in looks else width / 2
            x, y = float(about["x"]), float(about["y"])
            places += [(x - left, y - 12), (x - left + width, y + 4)]
    assert min(x for x, _ in places) >= 0 and max(x for x, _ in places) <= whole_width
    assert min(y for _, y in places) >= 0 and max(y for _, y in places) <= whole_height


def test_a_drawing_has_a_dark_side_and_a_label():
    svg = read("pal")
    assert "prefers-color-scheme: dark" in svg and "currentcolor" in svg
    assert ElementTree.fromstring(svg).attrib["aria-label"]


def test_a_shown_drawing_needs_no_other_file(monkeypatch):
    shown = []
    monkeypatch.setattr(diagrams, "display", lambda output: shown.append(output.data))
    monkeypatch.setattr(plots, "_shown", [])
    diagrams.show("04_pal", "What <b>to see</b>.")
    diagrams.show("04_hybrid", "Point at it.")
    for html, svg in zip(shown, map(read, ("pal", "hybrid")), strict=True):
        assert base64.b64encode(svg.encode()).decode() in html and "http" not in re.sub(r'base64,[^"]+', "", html)
    assert "<object" not in shown[0] and "<figcaption><b>Figure 4.1.</b> What <b>to see</b>.</figcaption>" in shown[0]
    assert "<object" in shown[1] and "<img" in shown[1], "an image where no object is allowed"


def test_every_task_of_the_hybrid_has_a_path_to_point_at():
    svg = read("hybrid")
    assert svg.count('<g class="path" tabindex="0">') == 3
    assert ":hover" in svg and ":focus" in svg and "<script" not in svg


LOOK = """<body>SVG<script>
const paths = [...document.querySelectorAll(".path")];
for (const path of paths) path.style.transition = "none"; // virtual time would stop within one
paths[1].focus();
setTimeout(() => document.body.innerText = paths.map(path => getComputedStyle(path).opacity).join(), 1000);
</script>"""


def test_in_chromium_one_path_lights_up_and_the_others_fade(tmp_path, chromium):
    """By the keyboard, or a tap; the rule for a pointer is the same."""
    page = tmp_path / "page.html"
    page.write_text(LOOK.replace("SVG", read("hybrid")), encoding="utf8")
    command = [*chromium, "--virtual-time-budget=3000", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert re.search(r"0\.13,1,0\.13", done.stdout), done.stdout[-500:]
