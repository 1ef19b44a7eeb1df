"""The folders that mtbert reads and writes by default, and files that are replaced as a whole.

A checkout is only read: what its user trains and draws goes to the cache, unless MTBERT_RESULTS and MTBERT_FIGURES name
other folders. With MTBERT_RESULTS=results, in the checkout, a run is added to the committed ones.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# The checkout, with params/, notebooks/ and results/; of a package that was installed alone, the working directory.
REPOSITORY = Path(__file__).resolve().parent.parent
if not (REPOSITORY / "params").is_dir():
    REPOSITORY = Path.cwd()


class FolderError(RuntimeError):
    """A folder that cannot be written to, or is not there; the message names it."""


def cache_dir() -> Path:
    """What can be computed again: token ids, the demo corpus, checkpoints, models. MTBERT_CACHE, else XDG's cache."""
    if folder := os.environ.get("MTBERT_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mtbert"


def results_dir() -> Path:
    """The results store that is written to: MTBERT_RESULTS, else `results/` in the cache."""
    return Path(os.environ.get("MTBERT_RESULTS") or cache_dir() / "results")


def stores() -> list[Path]:
    """The results stores that are read: MTBERT_RESULTS alone, else that in the cache, then the committed one."""
    return [results_dir()] if os.environ.get("MTBERT_RESULTS") else [results_dir(), REPOSITORY / "results"]


def shipped(name: str) -> Path:
    """A file or folder of the checkout; raises FolderError where the package is installed without it."""
    if not (path := REPOSITORY / name).exists():
        raise FolderError(f"{path}: not here, as mtbert is installed alone; run this in a checkout of its repository")
    return path


def find_result(name: str, among: list[Path] | None = None) -> Path:
    """The path of a file in the first of `stores()`, or of other stores, that has it; else that in the first one."""
    among = among or stores()
    return next((store / name for store in among if (store / name).exists()), among[0] / name)


def figures_dir() -> Path:
    """Where figures are written to: MTBERT_FIGURES, else `figures/` in the cache."""
    return Path(os.environ.get("MTBERT_FIGURES") or cache_dir() / "figures")


def check_writable(*folders: Path) -> None:
    """Raises FolderError for the first of these folders that cannot be made or written to."""
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            how = "MTBERT_RESULTS names another folder for results, MTBERT_CACHE one for all else"
            raise FolderError(f"{folder}: cannot be written to ({error.strerror}); {how}") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which replaces `path` when the block ends without an error; makes the folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
