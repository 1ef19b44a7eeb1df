"""The checkout, and the folder of what can be computed again."""

import os
from pathlib import Path

_here = Path(__file__).resolve().parent.parent
CHECKOUT = _here if (_here / "params").is_dir() else None  # with params/, notebooks/ and results/; None: a wheel
REPOSITORY = CHECKOUT or Path.cwd()  # the working directory, where the package is installed without its checkout
OTHER_CACHE = "MTBERT_CACHE names another folder"  # behind a warning that the cache cannot be written


class FolderError(RuntimeError):
    """A folder that cannot be written to, or is not there; the message names it or what to set."""


def folder_of(variable: str) -> Path | None:
    """The folder that an environment variable names, with the home folder for ~; None where it is not set or empty."""
    name = os.environ.get(variable)
    try:
        return Path(name).expanduser() if name else None
    except RuntimeError as error:
        raise FolderError(f"{variable} is {name!r}, and {Path(name).parts[0]} is no user's home folder here") from error


def cache_dir() -> Path:
    """The folder of files that can be computed again (tokens, checkpoints, models): MTBERT_CACHE, else XDG's cache."""
    if folder := folder_of("MTBERT_CACHE"):
        return folder
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mtbert"
    except RuntimeError as error:
        raise FolderError("this user has no home folder: set MTBERT_CACHE to a folder for what can be kept") from error
