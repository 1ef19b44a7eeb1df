"""The folder of what can be computed again, and how files are written as a whole and checked when read.

What is read back is checked by a SHA-256, which is stored in one of two places:

- SHA256SUMS, for a folder that is written as a whole, and that people copy, commit and check with `sha256sum -c`:
  models, encoders, exports and the stored runs of `mtbert_lab`.
- A seal at the end of the file, for single files that many processes write into one folder, where a common list would
  be a race: checkpoints, token ids, tags and features in the cache.
"""

import hashlib
import json
import os
import re
import secrets
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from mtbert.names import CONTROL

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_here = Path(__file__).resolve().parent.parent
CHECKOUT = _here if (_here / "params").is_dir() else None  # with params/, notebooks/ and results/; None: a wheel
REPOSITORY = CHECKOUT or Path.cwd()  # the working directory, where the package is installed without its checkout
CHECKSUMS = "SHA256SUMS"  # `sha256sum -c SHA256SUMS` checks a folder by hand
SEAL = 32  # bytes of a SHA-256
BLOCK = 2**22  # bytes read at a time for it
MOST_VALUES = 20_000  # in a YAML file, which is read in two seconds
NUMBERS = {  # YAML's tag -> how such a number is written
    "tag:yaml.org,2002:int": r"-?(0|[1-9][0-9]*)$",
    "tag:yaml.org,2002:float": r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?$",
}
MERGE = "tag:yaml.org,2002:merge"  # tag of the key <<, which includes another mapping
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


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


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
            mode = partial.stat().st_mode  # as the umask says; some writers, such as safetensors, set another one
            yield partial
            with open(partial, "rb+") as file:
                os.fsync(file.fileno())  # else a crash of the machine may leave an empty file of this name
            partial.chmod(mode)
            os.replace(partial, path)
    except OSError as error:
        if error.errno and error.filename in (None, str(partial)):  # a full disk, while writing
            error.filename = str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> int:
    """Remove the partial files of `replacing` whose process was killed from a folder; returns their bytes.

    The system has released their locks, on whichever host the process was. Without such locks they stay, and so does an
    empty file: its process may be about to lock it.
    """
    size = 0
    for path in folder.glob(".*.[0-9]*-*"):
        with suppress(OSError), open(path, "rb+") as file:
            about = os.fstat(file.fileno())
            if about.st_size and _is_locked(file):
                size += about.st_blocks * 512
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
    """Whether a file is there, and ends with the SHA-256 of what is before: no byte of it is changed or missing."""
    if not path.exists():
        return False
    digest = hashlib.sha256()
    end = max(0, path.stat().st_size - SEAL)
    with open(path, "rb") as file:
        while block := file.read(min(BLOCK, end - file.tell())):
            digest.update(block)
        return file.read() == digest.digest()


def write_text(path: Path, text: str) -> None:
    """Write a whole text file, or none, as `replacing` does."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf8")


def write_json(path: Path, content: Any) -> None:
    """Write a whole JSON file, or none."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def write_checksums(folder: Path, names: Iterable[str] = (), unnamed: dict[str, Path] | None = None) -> None:
    """Write the SHA-256 of these files of a folder into its SHA256SUMS; default: of the files that it lists.

    unnamed: files that get their name afterwards, by this name.
    """
    files = {name: folder / name for name in names or _listed_sums(folder)}
    files |= unnamed or {}
    lines = [f"{sha256(path)}  {name}\n" for name, path in files.items()]
    write_text(folder / CHECKSUMS, "".join(lines))


def checksum_faults(
    folder: Path, expected: Iterable[str], digests: Callable[[Path], list[str]] | None = None
) -> list[str]:
    """The faults of the files of a folder according to its SHA256SUMS, a phrase each.

    expected: files that it has to list. All that it lists must be there and unchanged. digests: those of which one has
    to be listed for a file; default: that of its bytes. Raises OSError for a file that is there and may not be read.
    """
    digests = digests or (lambda path: [sha256(path)])
    if not (folder / CHECKSUMS).exists():
        return [f"{CHECKSUMS} is missing"]
    sums = _listed_sums(folder)
    missing = [name for name in dict.fromkeys(expected) if name not in sums]
    faults = [f"{CHECKSUMS} does not list {name}" for name in missing]
    for name, digest in sums.items():
        try:
            path = folder / name
            if not path.is_file():
                faults.append(f"{name} is missing" if digest else f"{CHECKSUMS} has a line that is no checksum")
            elif digest not in digests(path):
                faults.append(f"{name} is damaged or was changed: its checksum is not that of {CHECKSUMS}")
        except ValueError:  # no name of a file
            faults.append(f"{CHECKSUMS} has a line that is no checksum")
    return faults


def _listed_sums(folder: Path) -> dict[str, str]:
    """Name -> SHA-256 in hex digits, as SHA256SUMS lists them; for a line without both, the line -> no digest."""
    text = (folder / CHECKSUMS).read_text(encoding="utf8", errors="replace")
    sums = {}
    for line in text.splitlines():
        digest, _, name = line.partition("  ")
        if name:
            sums[name] = digest
        else:
            sums[digest] = ""
    return sums


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hex digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class YamlError(ValueError):
    """A file that cannot be read as YAML; the message names it and says why in one line."""


def read_yaml(path: Path) -> Any:
    """The content of a YAML file: plain values, no key of a mapping twice, none with control characters.

    Raises YamlError. A key is often a name that is shown: in a terminal an escape sequence would be obeyed.
    Numbers are written as in YAML 1.2's JSON schema. Other numbers of YAML 1.1 are read as text: 010, 1:30, 1_0.
    """
    if path.exists() and not path.is_file():  # a device or a pipe, which may never end
        raise YamlError(f"{path}: not a regular file")
    try:
        return yaml.load(path.read_text(encoding="utf8"), Loader=_Loader)
    except Exception as error:  # of many types: YAML's own, a date or number that is none, too deep for Python
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 200)
        raise YamlError(f"{path}: not a readable YAML file ({reason})") from error


class _Loader(yaml.SafeLoader):
    """Counts the values, those that aliases repeat included: a few lines of aliases can stand for billions."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in NUMBERS]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.values, self.sizes = 0, {}  # so far; of a node that is complete

    def compose_node(self, parent: yaml.Node, index: Any) -> yaml.Node:
        before = self.values
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        self.values += self.sizes.get(node, MOST_VALUES) if is_alias else 1
        self.sizes[node] = self.values - before
        if self.values > MOST_VALUES:
            raise yaml.YAMLError(f"more than {MOST_VALUES} values, or an alias inside of what it stands for")
        return node

    def compose_mapping_node(self, anchor: str) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        texts = set()  # keys as they are written: 5 and '5' are one name of a run
        read = {}  # a key as it is read -> as it is written: 1, 1.0 and true are one key of a dictionary
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == MERGE:
                continue
            if CONTROL.search(key.value):
                raise yaml.YAMLError(f"the key {key.value!r} has a control character, {node.start_mark}")
            if key.value in texts:
                raise yaml.YAMLError(f"{key.value} is given twice, {node.start_mark}")
            texts.add(key.value)
            value = "=" if key.value == "=" else self.construct_object(key)  # = alone has no value in YAML 1.1
            other = read.setdefault(value, key.value)
            if other != key.value:
                raise yaml.YAMLError(f"{other} and {key.value} are the same key, {node.start_mark}")
        return node


for _tag, _pattern in NUMBERS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(_pattern), list("-+.0123456789"))
