"""The folders that the laboratory reads and writes by default: data, stores of results, figures, the checkout's files.

A checkout is only read: what its user trains and draws goes to the cache, unless MTBERT_RESULTS and MTBERT_FIGURES name
other folders. With MTBERT_RESULTS=results, in the checkout, a run is added to the committed ones.
"""

import tempfile
from pathlib import Path

from mtbert.data import GET_DATA, DataError
from mtbert.paths import REPOSITORY, FolderError, cache_dir, folder_of

OTHER_FOLDERS = "MTBERT_RESULTS names another folder for results, MTBERT_FIGURES for figures, MTBERT_CACHE for all else"
SHARED = REPOSITORY.parent / "shared" / "data"  # next to the repository: where datasets are looked for last


def results_dir() -> Path:
    """The results store that is written to: MTBERT_RESULTS, else `results/` in the cache."""
    return folder_of("MTBERT_RESULTS") or cache_dir() / "results"


def stores() -> list[Path]:
    """The results stores that are read: MTBERT_RESULTS alone, else that in the cache, then the committed one."""
    return [results_dir()] if folder_of("MTBERT_RESULTS") else [results_dir(), REPOSITORY / "results"]


def shipped(name: str) -> Path:
    """A file or folder of the checkout; raises FolderError where the package is installed without it."""
    path = REPOSITORY / name
    if not path.exists():
        raise FolderError(f"{path}: not here, as mtbert is installed alone; run this in a checkout of its repository")
    return path


def find_result(name: str) -> Path:
    """The path of the newest file of this name in `stores()`; where none has it, its path in the first one."""
    return _newest([store / name for store in stores()])


def find_figure(name: str) -> Path:
    """The path of the newest figure of this name: in MTBERT_FIGURES alone, else in the cache or a committed one."""
    folders = [figures_dir()] if folder_of("MTBERT_FIGURES") else [figures_dir(), REPOSITORY / "figures"]
    return _newest([folder / name for folder in folders])


def _newest(paths: list[Path]) -> Path:
    """The newest of the files that are there; where none is, the first path."""
    found = [path for path in paths if path.exists()]
    return max(found, key=lambda path: path.stat().st_mtime, default=paths[0])


def figures_dir() -> Path:
    """Where figures are written to: MTBERT_FIGURES, else `figures/` in the cache."""
    return folder_of("MTBERT_FIGURES") or cache_dir() / "figures"


def find_data(path: str | Path | None = None) -> Path | None:
    """The datasets' folder: `path`, else MTBERT_DATA, else ../shared/data next to the repository, else None.

    Raises DataError if `path` or MTBERT_DATA names a folder that does not exist.
    """
    for folder, source in ((path, "the data folder"), (folder_of("MTBERT_DATA"), "MTBERT_DATA")):
        if folder:
            if not Path(folder).is_dir():
                raise DataError(f"{source} is {str(folder)!r}, which is no folder.{GET_DATA}")
            return Path(folder)
    return SHARED if SHARED.is_dir() else None


def check_writable(folder: Path, remedy: str = OTHER_FOLDERS, size: int = 0) -> None:
    """Raises FolderError for a folder that cannot be made, or takes no file of so many bytes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(size))
            file.flush()
    except OSError as error:
        raise FolderError(f"{folder}: cannot be written to ({error.strerror}); {remedy}") from error
