"""The folders that mtbert reads and writes by default, and files that are replaced as a whole."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def cache_dir() -> Path:
    """What can be computed again: token ids, the demo corpus, checkpoints, models. MTBERT_CACHE, else XDG's cache."""
    if folder := os.environ.get("MTBERT_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mtbert"


def results_dir() -> Path:
    """The results store: MTBERT_RESULTS, else `results/` of this checkout."""
    return Path(os.environ.get("MTBERT_RESULTS") or REPOSITORY / "results")


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
