"""Outputs that a reader can use without a kernel: HTML with a script in it, in JupyterLab and on the built page."""

import json
from pathlib import Path

from IPython.display import HTML, display

SITE = Path(__file__).parent / "site"


def show(content: str, script: str = "", data: object = None) -> None:
    """Display HTML with the style and a script of site/, which work in both places.

    data: what the script reads, as JSON, from the element of class `data` behind the content.
    """
    parts = [f"<style>{_read('embedded.css')}</style>", content]
    if data is not None:
        text = json.dumps(data, separators=(",", ":")).replace("</", r"<\/")  # a text in it must not end the element
        parts.append(f'<script type="application/json" class="data">{text}</script>')
    if script:
        parts.append(f"<script>{_read(f'{script}.js')}</script>")
    display(HTML("\n".join(parts)))


def _read(name: str) -> str:
    return (SITE / name).read_text(encoding="utf8")
