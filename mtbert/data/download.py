"""Downloads the course's datasets: checksums where known, retries, resume, nothing half-done in its place.

Source: the public course repository gpoesia/minbert-default-final-project, folder `data/`.
"""

import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import pooch
import requests
from tqdm import tqdm

from mtbert.data.tables import SPLITS, DataError, load_table
from mtbert.data.tasks import TASKS

COURSE_URL = "https://raw.githubusercontent.com/gpoesia/minbert-default-final-project/main/data/"
COURSE_PAGE = "https://github.com/gpoesia/minbert-default-final-project (folder data/)"
# sha256 of the course's files; None: not known, the file is then checked by being read as its table.
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
_TABLES = {task.file_name(split): (name, split) for name, task in TASKS.items() for split in SPLITS}
BACK_OFF = 1.0  # seconds before the second try; doubles with every further one
CHUNK = 4096  # bytes; at most so many are lost when the server breaks off


pooch.get_logger().setLevel("WARNING")  # not a line for every file without a checksum


def fetch(
    folder: str | Path,
    base_url: str = COURSE_URL,
    tasks: Iterable[str] | None = None,
    retries: int = 4,
    timeout: float = 20.0,
    force: bool = False,
) -> list[Path]:
    """Download the files of `tasks` (all by default) into `folder`; return their paths.

    A file appears under its name only once it is checked; an interrupted download stays beside it as `.part`
    and is resumed. `timeout` is in seconds without a byte. Raises DataError naming the file and what to do:
    no network, a server's refusal, wrong content, or (unless `force`) another file already in its place.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    names = _file_names(tasks)
    for name in names:
        if force or not _in_place(folder / name):
            _fetch_file(folder / name, base_url.rstrip("/") + "/" + name, retries, timeout)
    return [folder / name for name in names]


def _file_names(tasks: Iterable[str] | None) -> list[str]:
    wanted = set(TASKS if tasks is None else tasks)
    if unknown := sorted(wanted - set(TASKS)):
        raise DataError(f"no such task: {', '.join(unknown)}; the course has {', '.join(TASKS)}")
    return [name for name in CHECKSUMS if _TABLES[name][0] in wanted]


def _check_table(path: Path) -> None:
    """DataError unless the file is a whole table of the task and split that its name says."""
    load_table(*_TABLES[path.name], path.parent)
    with open(path, "rb") as stream:
        stream.seek(-1, os.SEEK_END)
        if stream.read() != b"\n":
            raise DataError(f"{path} ends inside a line: it is truncated")


def _in_place(target: Path) -> bool:
    """Whether the file is there and right; DataError if something else stands in its place."""
    if not target.exists():
        return False
    what_to_do = "Move it away, or replace it with force=True (on the command line: --force)."
    expected = CHECKSUMS[target.name]
    if expected is None:
        try:
            _check_table(target)
        except DataError as error:
            raise DataError(f"{target} is there and cannot be read: {error}. {what_to_do}") from error
    elif (received := pooch.file_hash(target)) != expected:
        raise DataError(
            f"{target} is there and is not the course's file: sha256 {received}, expected {expected}. {what_to_do}"
        )
    return True


def _fetch_file(target: Path, url: str, retries: int, timeout: float) -> None:
    """Download into a folder beside the target, check there, and move into place."""
    download = ResumingDownloader(target.with_name(target.name + ".part"), retries, timeout)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as staging:
        checked = Path(staging) / target.name
        try:
            _download_and_check(url, checked, download)
        except DownloadError:
            raise
        except DataError:
            if not download.resumed:
                raise
            checked.unlink(missing_ok=True)  # the two parts may be of two versions: start over
            _download_and_check(url, checked, download)
        os.replace(checked, target)


def _download_and_check(url: str, path: Path, download: "ResumingDownloader") -> None:
    expected = CHECKSUMS[path.name]
    hint = f"The server sent other content than the course's file; get it by hand from {COURSE_PAGE}."
    try:
        pooch.retrieve(url, known_hash=expected, fname=path.name, path=path.parent, downloader=download)
        if expected is None:
            _check_table(path)
    except DownloadError:
        raise
    except DataError as error:
        received = pooch.file_hash(path)
        raise DataError(f"{url}: no table of this task (sha256 {received}): {error}. {hint}") from error
    except ValueError as error:  # pooch's message names the file, the expected and the received sha256
        raise DataError(f"{url}: {error} {hint}") from error


class DownloadError(DataError):
    """A file could not be downloaded: no network, or the server refused or broke off."""


class BrokenDownloadError(requests.RequestException):
    """The server's answer does not fit the request; worth another try."""


class ResumingDownloader:
    """A downloader for pooch that goes on where `part` ends and tries again after passing failures."""

    def __init__(self, part: Path, retries: int, timeout: float):
        self.part, self.retries, self.timeout = part, retries, timeout
        self.resumed = False  # whether the file was put together from several answers

    def __call__(self, url: str, output_file: str, _pooch: object = None) -> None:
        """Download `url` into `part`, then move it to `output_file`. Raises DownloadError."""
        for attempt in range(1 + self.retries):
            if attempt:
                time.sleep(BACK_OFF * 2 ** (attempt - 1))
            try:
                self._go_on(url)
                os.replace(self.part, output_file)
                return
            except requests.RequestException as error:
                last = error
                status = getattr(error.response, "status_code", None)
                if status is not None and 400 <= status < 500 and status != 429:
                    break
        if status:
            cause = f"the server answered {status}"
        elif isinstance(last, requests.ConnectionError):
            cause = f"no network connection to the server ({last})"
        else:
            cause = f"the download broke off ({last})"
        raise DownloadError(
            f"could not download {url} after {attempt + 1} tries: {cause}. Check the network and run this "
            f"again (it resumes), or get {self.part.stem} by hand from {COURSE_PAGE} and put it into "
            f"{self.part.parent}."
        ) from last

    def _go_on(self, url: str) -> None:
        """One request for the bytes that `part` lacks, appended to it."""
        have = self.part.stat().st_size if self.part.exists() else 0
        headers = {"Accept-Encoding": "identity"}  # so that lengths and ranges count the file's own bytes
        if have:
            headers["Range"] = f"bytes={have}-"
        with requests.get(url, headers=headers, stream=True, timeout=self.timeout) as response:
            if response.status_code == 416:  # the part is no beginning of what the server has
                self.part.unlink()
                raise BrokenDownloadError("the server has no bytes after those of the partial download")
            response.raise_for_status()
            if response.status_code == 206:
                if not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                    self.part.unlink()
                    raise BrokenDownloadError("the server sent another range than asked for")
                self.resumed = True
            else:  # the whole file: the server does not resume
                have = 0
            size = int(response.headers.get("Content-Length", 0)) + have
            bar = tqdm(desc=self.part.stem, total=size, initial=have, unit="B", unit_scale=True, disable=None)
            with bar, open(self.part, "ab" if have else "wb") as stream:
                for chunk in response.iter_content(CHUNK):
                    stream.write(chunk)
                    bar.update(len(chunk))
