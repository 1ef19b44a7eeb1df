"""Outputs that a reader can use without a kernel: HTML with a script in it, in JupyterLab and on the built page."""

from pathlib import Path

from IPython.display import HTML, display

SITE = Path(__file__).parent / "site"


def show(content: str, script: str = "") -> None:
    """Display HTML with the style and a script of site/, which work in both places; data are attributes in the HTML."""
    parts = [f"<style>{_read('embedded.css')}</style>", content]
    if script:
        parts.append(f"<script>{_read(f'{script}.js')}</script>")
    display(HTML("\n".join(parts)))


def _read(name: str) -> str:
    return (SITE / name).read_text(encoding="utf8")
