"""`python -m tools.make_demo_corpus FOLDER`, in the root of a checkout, made the files of mtbert/data/demo."""

import csv
import random
import sys
from pathlib import Path
from types import ModuleType

from tools.make_demo_corpus import cfimdb, quora, sst, sts
from tools.make_demo_corpus.words import Draw

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


def write(folder: Path) -> None:
    """Write the twelve files into `folder`; the same bytes on every machine."""
    for name, grammar, columns, sizes, held_out in TASKS:
        rng = random.Random(f"{SEED} {name}")  # a task's rows do not depend on the other tasks
        seen = set()  # over the splits: no row of dev or test occurs in train
        for split, size in zip(SPLITS, sizes, strict=True):
            rows = _different_rows(grammar, Draw(rng, 0.0 if split == "train" else held_out), size, seen)
            _write_csv(folder / f"{name}-{split}.csv", columns, rows, rng, labelled=split != "test-student")


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


if __name__ == "__main__":
    write(Path(sys.argv[1]))
