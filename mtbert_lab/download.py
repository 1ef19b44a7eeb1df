"""Download of the course's datasets, with checksums and retries.

Source: the public course repository gpoesia/minbert-default-final-project, folder `data/`.
"""

import shutil
import sys
import tempfile
from itertools import product
from pathlib import Path

import pooch
import requests

from mtbert.data import COURSE, SPLITS, DataError, load_table
from mtbert.files import replacing, sha256

COURSE_URL = "https://raw.githubusercontent.com/gpoesia/minbert-default-final-project/main/data/"
COURSE_PAGE = "https://github.com/gpoesia/minbert-default-final-project (folder data/)"
# sha256 of the course's files; None: not known, as only pairs that were drawn anew were at hand when the others were
# taken. Such a file is checked by reading it as a table.
CHECKSUMS: dict[str, str | None] = {
    "ids-sst-train.csv": "03b2b625c090f94a6afd59f114cde5282e2053aab0b101e87ed695d8a0c5b1df",
    "ids-sst-dev.csv": "a186ce94577635fbe10beaaddd50f16cccf6c30973221cefdf90deed2a584bfe",
    "ids-sst-test-student.csv": "bdd5a767faa0c26782117e37767ece154c30d5d04fb8727d09c71e3850a55c7b",
    "ids-cfimdb-train.csv": "140fc513045a966109faed46a5c7a898767b96714d71bcb9c15f659129fadcea",
    "ids-cfimdb-dev.csv": "3087f571b66860fe5d035b5a018d08202ad3fd3720e4821c04b2acf6c7ded559",
    "ids-cfimdb-test-student.csv": "7ae611548c9eac879e9ebb406cc9f8ae68ff12f78090e4965af5cbdfa06240f4",
    "quora-train.csv": None,
    "quora-dev.csv": "bfa3cc954a9ba300ae776a980141de65f622a3c1b97e3fd905d63245bc36d5ad",
    "quora-test-student.csv": None,
    "sts-train.csv": "15d12efc2d656fffb1d61ac1f08ec4227f43925fd16f420c037cbd063699c21b",
    "sts-dev.csv": "ce3cad6f16062586ac7ba462c28b010a9be10c530fd5074165860d7b7ab4e93d",
    "sts-test-student.csv": "dee455745b72e9ca3ff74e7c056bd73e34bad5b8d5641045a2c1e7e131866f47",
}
RETRIES = 4
TIMEOUT = 20.0  # seconds without a byte

pooch.get_logger().setLevel("WARNING")  # not a line for every file


def fetch(folder: str | Path, force: bool = False) -> list[Path]:
    """Download the course's files that `folder` lacks; return the paths of all.

    A file gets its name after it has been checked. Raises DataError naming the file and what to do: no network, an
    error of the server, wrong content, or (unless `force`) another file of this name in the folder.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for path in (paths := [folder / name for name in CHECKSUMS]):
        problem = _problem(path) if path.exists() else "is missing"
        if problem and path.exists() and not force:
            raise DataError(f"{path} {problem}. Move the file away, or replace it with --force.")
        if problem:
            _download(path)
    return paths


def is_table_alone(path: Path) -> bool:
    """Whether a file of this name has no known checksum: it was read as a table, and may have other rows."""
    return CHECKSUMS[path.name] is None


def _problem(path: Path) -> str | None:
    """Why a file is not the course's file of this name; None if it is."""
    if expected := CHECKSUMS[path.name]:
        found = sha256(path)
        return f"is not the course's file: sha256 {found}, expected {expected}" if found != expected else None
    by_name = {COURSE[task].path(split, "").name: (task, split) for task, split in product(COURSE, SPLITS)}
    task, split = by_name[path.name]
    try:
        load_table(task, split, path.parent)
    except DataError as error:
        return f"is not the course's file: {error} sha256 {sha256(path)}"
    return None if path.read_bytes().endswith(b"\n") else "ends inside a line: it is truncated"


def _download(path: Path) -> None:
    by_hand = f"get {path.name} by hand from {COURSE_PAGE} and put it into {path.parent}"
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".fetch-") as staging:
        course = pooch.create(staging, COURSE_URL, registry={path.name: None}, retry_if_failed=RETRIES)
        receive = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), timeout=TIMEOUT)
        try:
            new = Path(course.fetch(path.name, downloader=receive))
        except requests.RequestException as error:
            raise DataError(
                f"could not download {COURSE_URL}{path.name} in {1 + RETRIES} tries: {error}. Check the network and "
                f"run this again, or {by_hand}."
            ) from error
        if problem := _problem(new):
            raise DataError(f"what the server sent as {COURSE_URL}{path.name} {problem}; {by_hand}.")
        with replacing(path) as partial:  # a new file, as what pooch has downloaded is readable by its owner alone
            shutil.copyfile(new, partial)
