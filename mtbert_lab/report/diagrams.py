"""The drawings of notebook 04: how data and gradients flow. They are SVG files in site/, which need no kernel.

One style, light and dark; a task has the colour that it has in every figure. `tools/draw_diagrams.py` has made them.
"""

import base64
import re
from pathlib import Path

from IPython.display import display

from mtbert_lab.report.plots import captioned

SITE = Path(__file__).parent / "site"


def show(name: str, caption: str) -> None:
    """Show a drawing as an image with its number and caption.

    An image does not react to the pointer, so a drawing that does is a document within the page; the image is there for
    pages that allow none, such as a notebook in JupyterLab that is not trusted.
    """
    svg = (SITE / f"{name}.svg").read_text(encoding="utf8")
    data = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
    width, height, label = re.search(r'viewBox="0 0 (\d+) (\d+)".*aria-label="(.*?)"', svg).groups()
    shown = f'<img class="diagram" alt="{label}" src="{data}" style="max-width: 100%">'
    if ":hover" in svg:
        look = f"width: 100%; max-width: {width}px; aspect-ratio: {width} / {height}"
        shown = f'<object class="diagram" type="image/svg+xml" data="{data}" style="{look}">{shown}</object>'
    display(captioned(name, shown, caption))
