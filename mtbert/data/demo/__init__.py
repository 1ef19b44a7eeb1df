"""The embedded demo corpus: four small tasks in the layout of the course's datasets, written by a grammar.

`root()` is all that most callers need. Every sentence comes from this package's own word lists; sst.py, cfimdb.py,
quora.py and sts.py each say what makes their task hard for counts of words.
"""

import csv
import hashlib
import random
import tempfile
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from mtbert.data.demo import cfimdb, quora, sst, sts
from mtbert.data.demo.words import Draw
from mtbert.paths import cache_dir, check_writable, checksum_faults, write_checksums

SEED = 11
# The course's name for a task's files, its grammar, its columns, the numbers of rows in train, dev and test, and the
# share of words of dev and test, from lists that have such words, that do not occur in train.
TASKS = (
    ("ids-sst", sst, ("sentence", "sentiment"), (800, 240, 200), 0.5),
    ("ids-cfimdb", cfimdb, ("sentence", "sentiment"), (600, 200, 200), 0.3),
    ("quora", quora, ("sentence1", "sentence2", "is_duplicate"), (1200, 240, 200), 0.1),
    ("sts", sts, ("sentence1", "sentence2", "similarity"), (800, 240, 200), 0.3),
)
SPLITS = ("train", "dev", "test-student")


def root() -> Path:
    """The folder of the corpus in the cache; written on first use, and again if a file of it is damaged.

    Raises FolderError if that is impossible.
    """
    sources = sorted(Path(__file__).parent.glob("*.py"))
    version = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    folder = cache_dir() / f"demo-{version}"
    if _is_whole(folder):
        return folder
    check_writable(folder.parent)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="demo-") as temporary:
        new = write(Path(temporary) / "new")
        if folder.exists() and not _is_whole(folder):
            with suppress(FileNotFoundError):  # another process did the same first
                folder.rename(Path(temporary) / "damaged")  # deleted with the temporary folder
        try:
            new.rename(folder)
        except OSError:
            if not _is_whole(folder):  # else another process wrote the same bytes first
                raise
    return folder


def write(folder: str | Path) -> Path:
    """Write the twelve files and their checksums into `folder`; the same bytes on every machine."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for name, grammar, columns, sizes, held_out in TASKS:
        rng = random.Random(f"{SEED} {name}")  # a task's rows do not depend on the other tasks
        seen = set()  # over the splits: no row of dev or test occurs in train
        for split, size in zip(SPLITS, sizes, strict=True):
            rows = _different_rows(grammar, Draw(rng, 0.0 if split == "train" else held_out), size, seen)
            path = folder / f"{name}-{split}.csv"
            _write_csv(path, columns, rows, rng, labelled=split != "test-student")
            names.append(path.name)
    write_checksums(folder, names)
    return folder


def _different_rows(grammar: ModuleType, draw: Draw, size: int, seen: set[tuple]) -> list[tuple]:
    """`size` rows whose text, in a pair in either order, is not in `seen`; adds it there."""
    rows = []
    while len(rows) < size:
        *texts, label = grammar.row(draw)
        if (key := tuple(sorted(texts))) not in seen:
            seen.add(key)
            rows.append((*texts, label))
    return rows


def _write_csv(path: Path, columns: tuple, rows: list[tuple], rng: random.Random, labelled: bool) -> None:
    """In the course's layout: tabs and an unnamed index, in the test files of single sentences two of them."""
    two = not labelled and len(columns) == 2
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow([*(["0", ""] if two else [""]), "id", *(columns if labelled else columns[:-1])])
        for index, row in enumerate(rows):
            row_id = f"{rng.getrandbits(100):025x}"
            place = [index + 1, float(index)] if two else [index]
            writer.writerow([*place, row_id, *(row if labelled else row[:-1])])


def _is_whole(folder: Path) -> bool:
    """Whether every file is there and has its checksum."""
    files = {f"{name}-{split}.csv" for name, *_ in TASKS for split in SPLITS}
    try:
        return not checksum_faults(folder, files)
    except OSError:
        return False
