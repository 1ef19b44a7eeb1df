"""How `pytest --nbval` runs the notebooks: over Unix sockets, and some of them twice in their kernel.

With nbval's default a free TCP port is chosen for a kernel some time before the kernel opens it. Where several workers
start kernels side by side, another may open it first, and the kernel dies.
"""

import os
import tempfile
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import nbval.kernel
import pytest
from jupyter_client.manager import KernelManager

TWICE = "03_single_task_baselines"  # Run All, and Run All again, says the same; with MTBERT_SLOW=1 in every notebook


def _manager(folder: Path, **options: Any) -> KernelManager:
    # A short path, as that of a Unix socket has at most 107 characters.
    sockets = tempfile.mkdtemp(dir=folder)
    return KernelManager(transport="ipc", ip=f"{sockets}/kernel", **options)


def _again(cell: pytest.Item) -> pytest.Item:
    """The same cell once more, compared with the same outputs."""
    about = {"cell_num": cell.cell_num, "cell": cell.cell, "options": cell.options}
    return type(cell).from_parent(cell.parent, name=f"{cell.name} again", **about)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Notebook 10 trains for minutes, and no cell compares what it trains: two steps of one plan run all its code."""
    ordered = []
    for path, group in groupby(items, key=lambda item: item.path):
        cells = list(group)
        for item in cells:
            if path.name == "10_demo.ipynb" and "parameters" in item.cell.metadata.get("tags", []):
                item.cell.source += "\nsteps, plans = 2, plans[:1]"
        ordered += cells
        if path.suffix == ".ipynb" and (path.stem == TWICE or os.environ.get("MTBERT_SLOW")):
            ordered += [_again(cell) for cell in cells]
    items[:] = ordered


def pytest_configure(config: pytest.Config) -> None:
    folder = tempfile.TemporaryDirectory()
    config.add_cleanup(folder.cleanup)
    nbval.kernel.KernelManager = partial(_manager, Path(folder.name))
