"""The folders mtbert reads and writes when the caller names none, and files that are written whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent


def cache_dir() -> Path:
    """What can be made again: tokens, the demo corpus, checkpoints, trained models. MTBERT_CACHE, else XDG's place."""
    if folder := os.environ.get("MTBERT_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mtbert"


def results_dir() -> Path:
    """The results store: MTBERT_RESULTS, else `results/` of this checkout."""
    return Path(os.environ.get("MTBERT_RESULTS") or REPOSITORY / "results")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside this one to write into, which takes its place when the block ends without an error."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    yield partial
    os.replace(partial, path)
