"""The folders that mtbert reads and writes by default, and how files are written as a whole and checked when read.

A checkout is only read: what its user trains and draws goes to the cache, unless MTBERT_RESULTS and MTBERT_FIGURES name
other folders. With MTBERT_RESULTS=results, in the checkout, a run is added to the committed ones.
"""

import hashlib
import os
import secrets
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import yaml

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# The checkout, with params/, notebooks/ and results/; of a package that was installed alone, the working directory.
REPOSITORY = Path(__file__).resolve().parent.parent
if not (REPOSITORY / "params").is_dir():
    REPOSITORY = Path.cwd()
CHECKSUMS = "SHA256SUMS"  # `sha256sum -c SHA256SUMS` checks a folder by hand
SEAL = 32  # bytes of a SHA-256
BLOCK = 2**22  # bytes read at a time for it
MOST_VALUES = 100_000  # of a YAML file


class FolderError(RuntimeError):
    """A folder that cannot be written to, or is not there; the message names it or what to set."""


def cache_dir() -> Path:
    """What can be computed again: token ids, the demo corpus, checkpoints, models. MTBERT_CACHE, else XDG's cache."""
    if folder := os.environ.get("MTBERT_CACHE"):
        return Path(folder)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mtbert"
    except RuntimeError as error:
        raise FolderError("this user has no home folder: set MTBERT_CACHE to a folder for what can be kept") from error


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
    """A path to write to, which replaces `path` when the block ends without an error; makes the folder if needed.

    The content is on the disk before it gets its name. An OSError of the block names the file. What stays where the
    process is killed, `remove_leftovers` removes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with open(partial, "xb") as lock:
            _is_locked(lock)
            yield partial
            with open(partial, "rb+") as file:
                os.fsync(file.fileno())  # else a crash of the machine may leave an empty file of this name
            os.replace(partial, path)
    except OSError as error:
        if error.errno and not error.filename:  # a full disk, while writing
            error.filename = str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> int:
    """Remove the partial files of `replacing` whose process was killed from a folder; returns their bytes.

    The system has released their locks, on whichever host the process was. Without such locks they stay.
    """
    size = 0
    for path in folder.glob(".*.[0-9]*-*"):
        with suppress(OSError), open(path, "rb+") as file:
            if _is_locked(file):
                size += os.fstat(file.fileno()).st_blocks * 512
                path.unlink()
    return size


def _is_locked(file: BinaryIO) -> bool:
    """Lock a file until it is closed or the process ends; False where that is impossible or another process did so."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def seal(path: Path) -> None:
    """Append the SHA-256 of a file to it; readers of zip archives, such as torch.load, ignore what follows them."""
    with open(path, "rb+") as file:
        file.write(hashlib.file_digest(file, "sha256").digest())


def is_sealed(path: Path) -> bool:
    """Whether a file ends with the SHA-256 of what is before: no byte of it is changed or missing."""
    digest, end = hashlib.sha256(), max(0, path.stat().st_size - SEAL)
    with open(path, "rb") as file:
        while block := file.read(min(BLOCK, end - file.tell())):
            digest.update(block)
        return file.read() == digest.digest()


def write_checksums(folder: Path, names: Iterable[str] = ()) -> None:
    """Write the SHA-256 of these files of a folder into its SHA256SUMS; default: of the files that it lists."""
    names = names or [line.partition("  ")[2] for line in (folder / CHECKSUMS).read_text(encoding="utf8").splitlines()]
    lines = [f"{_sha256(folder / name)}  {name}\n" for name in names]
    with replacing(folder / CHECKSUMS) as partial:
        partial.write_text("".join(lines), encoding="utf8")


def damaged_files(folder: Path) -> list[str]:
    """The files of a folder that are missing or differ from its SHA256SUMS; none where there is no such file."""
    if not (folder / CHECKSUMS).exists():
        return []
    lines = (folder / CHECKSUMS).read_text(encoding="utf8", errors="replace").removesuffix("\n").split("\n")
    sums = [line.partition("  ") for line in lines]
    return [name or CHECKSUMS for digest, _, name in sums if _sha256(folder / name) != digest]


def _sha256(path: Path) -> str:
    """In hex digits; nothing for a file that cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):
        return ""


class YamlError(ValueError):
    """A file that cannot be read as YAML; the message names it and says why in one line."""


def read_yaml(path: Path) -> Any:
    """The content of a YAML file: plain values, no key of a mapping twice; raises YamlError."""
    try:
        return yaml.load(path.read_text(encoding="utf8"), Loader=_Loader)
    except Exception as error:  # of many types: YAML's own, a date or number that is none, too deep for Python
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 200)
        raise YamlError(f"{path}: not a readable YAML file ({reason})") from error


class _Loader(yaml.SafeLoader):
    """Counts the values, those that aliases repeat included: a few lines of aliases can stand for billions."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.values, self.sizes = 0, {}  # so far; of a node that is complete

    def compose_node(self, parent: yaml.Node, index: Any) -> yaml.Node:
        before, is_alias = self.values, self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        self.values += self.sizes.get(node, MOST_VALUES) if is_alias else 1
        self.sizes[node] = self.values - before
        if self.values > MOST_VALUES:
            raise yaml.YAMLError(f"more than {MOST_VALUES} values, or an alias inside of what it stands for")
        return node

    def compose_mapping_node(self, anchor: str) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if twice := [name for name, count in names.items() if count > 1 and name != "<<"]:
            raise yaml.YAMLError(f"{', '.join(twice)} is given twice, {node.start_mark}")
        return node
