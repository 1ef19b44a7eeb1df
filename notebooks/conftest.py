"""How `pytest --nbval` starts kernels here: they talk over Unix sockets in a folder of their own.

With nbval's default a free TCP port is chosen for a kernel some time before the kernel opens it. Where several workers
start kernels side by side, another may open it first, and the kernel dies.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import nbval.kernel
import pytest
from jupyter_client.manager import KernelManager


def _manager(folder: Path, **options: Any) -> KernelManager:
    # A short path, as that of a Unix socket has at most 107 characters.
    sockets = tempfile.mkdtemp(dir=folder)
    return KernelManager(transport="ipc", ip=f"{sockets}/kernel", **options)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Notebook 10 trains for minutes, and no cell compares what it trains: two steps of one plan run all its code."""
    for item in items:
        if item.path.name == "10_demo.ipynb" and "parameters" in item.cell.metadata.get("tags", []):
            item.cell.source += "\nsteps, plans = 2, plans[:1]"


def pytest_configure(config: pytest.Config) -> None:
    folder = tempfile.TemporaryDirectory()
    config.add_cleanup(folder.cleanup)
    nbval.kernel.KernelManager = partial(_manager, Path(folder.name))
