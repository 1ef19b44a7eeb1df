"""The viewers in JupyterLab, used with the keyboard in headless Chromium."""

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import websocket
from nbformat.v4 import new_code_cell, new_notebook

from mtbert.config import RunConfig
from mtbert_lab.analysis.errors import error_table
from mtbert_lab.report.viewers import one_row_an_example

SERVER = """-m jupyterlab --no-browser --allow-root --port=0 --IdentityProvider.token= --expose-app-in-browser
    --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate --LabApp.news_url=None"""
KEYS = {"ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
SECONDS = 60  # at most for a server to start, or for a page to show something


class Page:
    """A page of a Chromium that was started with a debugging port."""

    def __init__(self, target: dict) -> None:
        url = target["webSocketDebuggerUrl"]
        self.socket = websocket.create_connection(url, timeout=SECONDS, suppress_origin=True)
        self.numbers, self.errors = count(), []
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params) -> dict:
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while (message := json.loads(self.socket.recv())).get("id") != number:
            text = json.dumps(message)
            if re.search(r'"Runtime.exceptionThrown"|"type": "error"|"level": "error"', text):
                self.errors.append(text)
        return message["result"]

    def js(self, expression: str):
        return self.send("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def wait(self, expression: str):
        """The value of an expression as soon as it is true."""
        end = time.monotonic() + SECONDS
        while not (value := self.js(expression)):
            if time.monotonic() > end:
                pytest.fail(f"{expression} stays {value!r}; the page: {self.js('document.body.innerText')[-2000:]}")
            time.sleep(0.1)
        return value

    def press(self, where: str, key: str, i: int = 0) -> None:
        """A key on the i-th element of an output that a selector finds."""
        self.js(f"document.querySelectorAll('.jp-OutputArea {where}')[{i}].focus()")
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])


@contextmanager
def process(folder: Path, pattern: str, *command: str) -> Iterator[re.Match]:
    """A running process; yields the first match of a pattern in what it writes."""
    log = folder / f"{Path(command[0]).name}.log"
    with log.open("w") as stream, subprocess.Popen(command, stdout=stream, stderr=stream, cwd=folder) as child:
        try:
            end = time.monotonic() + SECONDS
            while not (found := re.search(pattern, log.read_text())):
                assert child.poll() is None and time.monotonic() < end, log.read_text()[-2000:]
                time.sleep(0.1)
            yield found
        finally:
            child.kill()  # a Jupyter server may not end at SIGTERM while it opens a notebook; its kernels follow it


@pytest.fixture
def lab(tmp_path, chromium, monkeypatch) -> Iterator[Callable[[list[str]], Page]]:
    """Opens a notebook of some cells in JupyterLab and executes it."""
    for name in ("CONFIG", "DATA", "RUNTIME"):
        monkeypatch.setenv(f"JUPYTER_{name}_DIR", str(tmp_path / name))
    monkeypatch.setenv("JUPYTER_PATH", f"{sys.prefix}/share/jupyter")
    browser = [*chromium, "--window-size=1200,2000", "--remote-debugging-port=0"]
    with (
        process(tmp_path, r"http://\S+?:(\d+)/lab", sys.executable, *SERVER.split()) as at,
        process(tmp_path, r"ws://(\S+?)/", *browser) as debugging,
    ):

        def open_notebook(cells: list[str]) -> Page:
            metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
            nbformat.write(new_notebook(cells=list(map(new_code_cell, cells)), metadata=metadata), tmp_path / "x.ipynb")
            with urllib.request.urlopen(f"http://{debugging[1]}/json") as answer:
                page = Page(next(page for page in json.load(answer) if page["type"] == "page"))
            page.send("Emulation.setFocusEmulationEnabled", enabled=True)
            page.send("Page.navigate", url=f"http://127.0.0.1:{at[1]}/lab/tree/x.ipynb")
            page.wait("window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status == 'idle'")
            page.js("jupyterapp.commands.execute('notebook:run-all-cells'); 0")
            return page

        yield open_notebook


ROWS = """[...document.querySelectorAll('.jp-OutputArea table.dataframe tbody tr')]
    .map(row => row.cells[row.cells.length - 1].innerText).join()"""


def test_viewers_are_used_with_the_keyboard(course_data, tiny_encoder, lab, run_of):
    fields = dict(corpus="course", encoder=tiny_encoder, tasks=("sst", "quora"), scheme="unified", plan="1-bert")
    run = run_of(RunConfig(**fields, batch_size=8, epochs=1, steps_per_epoch=2))
    errors = error_table(run.run_id)
    page = lab(
        [
            "from mtbert_lab.analysis.errors import error_table\nfrom mtbert_lab.report import viewers\n"
            "from mtbert_lab.report.tables import Grid",
            f"viewers.error_browser(error_table({run.run_id!r}))",
            "viewers.plan_explorer(Grid((), {}, {}), ('sst', 'quora', 'sts'))",
        ]
    )

    def shows(part: pd.DataFrame, start: int = 0) -> bool:
        ids = one_row_an_example(part)["id"]
        return page.wait(f"{ROWS} == {','.join(ids[start : start + 10])!r}")

    shows(errors)
    assert errors["text"][0] in page.js("document.querySelector('.jp-OutputArea tbody tr').innerText")
    page.js("document.querySelectorAll('.jp-OutputArea .widget-button')[1].click()")  # next
    shows(errors, 10)
    page.js("document.querySelectorAll('.jp-OutputArea .widget-button')[0].click()")  # previous
    shows(errors)
    page.press(".noUi-handle", "ArrowRight")  # the fewest words
    fewest = page.wait("parseInt(document.querySelector('.widget-readout').innerText)")
    errors = errors[errors["words"] >= fewest]
    shows(errors)
    for i, column in enumerate(("task", "model", "kind")):
        page.press("select", "ArrowDown", i)
        errors = errors[errors[column] == errors[column].iloc[0]]
        shows(errors)
    plan = "document.querySelector('.plans input')"
    assert page.wait(f"{plan}.value") == "hybrid-3"
    page.js("document.querySelectorAll('.plans button')[7].click()")  # the embeddings, below six layers and the pooler
    assert page.js(f"{plan}.value") == "emb:I S3 I3"
    assert "million" in page.js("document.querySelector('.plans table').innerText")
    assert not page.errors
