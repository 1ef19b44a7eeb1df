"""How files are written as a whole, and checked when they are read: the one policy of integrity.

A file is written under another name, which it loses when it is whole. What is read back is checked by a SHA-256, which
is stored in one of two places:

- SHA256SUMS, for a folder that is written as a whole, and that people copy, commit and check with `sha256sum -c`:
  models, encoders, exports and the stored runs of `mtbert_lab`.
- A seal at the end of the file, for single files that many processes write into one folder, where a common list would
  be a race: checkpoints, token ids, tags and features in the cache, and the outputs of teachers in a store.
"""

import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

CHECKSUMS = "SHA256SUMS"  # `sha256sum -c SHA256SUMS` checks a folder by hand
SEAL = 32  # bytes of a SHA-256
BLOCK = 2**22  # bytes read at a time for it
LEFTOVER_AGE = 86_400  # seconds


def flush(path: Path) -> None:
    """Wait until a file's content is on the disk; else a crash of the machine may leave an empty file of its name."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which replaces `path` when the block ends without an error; makes the folder if needed.

    The content is on the disk before it gets its name. An OSError of the block names the file. A killed process leaves
    its partial file, for `remove_leftovers`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        partial.touch(exist_ok=False)
        mode = partial.stat().st_mode  # as the umask says; some writers, such as safetensors, set another one
        yield partial
        flush(partial)
        partial.chmod(mode)
        os.replace(partial, path)
    except OSError as error:
        if error.errno and error.filename in (None, str(partial)):  # a full disk, while writing
            error.filename = str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def replacing_sealed(path: Path) -> Iterator[Path]:
    """As `replacing`, with a seal at the end of the file: the SHA-256 of its content, for `is_sealed`.

    Readers of zip archives, such as torch.load and numpy.load, ignore what follows the archive.
    """
    with replacing(path) as partial:
        yield partial
        with open(partial, "rb+") as file:
            file.write(hashlib.file_digest(file, "sha256").digest())


def remove_leftovers(folder: Path) -> int:
    """Remove the partial files of killed processes from a folder; returns their bytes.

    These are the partial files of `replacing` that nobody has written to for LEFTOVER_AGE.
    """
    size = 0
    for path in folder.glob(".*.[0-9]*-*"):
        with suppress(FileNotFoundError):  # its process has finished it, or another one removed it
            about = path.stat()
            if time.time() - about.st_mtime >= LEFTOVER_AGE:
                path.unlink()
                size += about.st_blocks * 512
    return size


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


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    return json.loads(path.read_text(encoding="utf8"))


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
        path = folder / name
        if not digest:
            faults.append(f"{CHECKSUMS} has a line that is no checksum")
        elif not path.is_file():
            faults.append(f"{name} is missing")
        elif digest not in digests(path):
            faults.append(f"{name} is damaged or was changed: its checksum is not that of {CHECKSUMS}")
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
