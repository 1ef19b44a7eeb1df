"""There: pack what has been trained since the last call: `python3 bring_back.py ROOT OUT [--again]`.

At most three files, as few may come back: OUT/runs.tar.xz, OUT/dev.tar.xz, OUT/logs.tar.xz. The second has the ids and
labels of dev examples, which a store has already: it is for an empty one. See README.md.
"""

import argparse
import tarfile
from pathlib import Path


def write(path: Path, folder: Path, names: list[str]) -> None:
    """Pack files or folders under their names in `folder`; no file where there are none."""
    if not names:
        return
    with tarfile.open(path, "w:xz", preset=1) as tar:
        for name in names:
            tar.add(folder / name, name)
    print(f"{path.name}: {len(names)} of {names[0].rpartition('/')[0] or '.'}, {path.stat().st_size / 1e6:.1f} MB")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--again", action="store_true", help="also what was packed before")
    args = parser.parse_args()
    results = args.root / "results"
    marks = args.root / "packed.txt"
    packed = set()
    if marks.exists() and not args.again:
        packed = set(marks.read_text().split())
    runs = {path.parent.name for path in (results / "runs").glob("[!.]*/run.json")}
    args.out.mkdir(parents=True, exist_ok=True)
    write(args.out / "runs.tar.xz", results, [f"runs/{name}" for name in sorted(runs - packed)])
    write(args.out / "dev.tar.xz", results, [f"dev/{path.name}" for path in sorted(results.glob("dev/[!.]*"))])
    write(args.out / "logs.tar.xz", args.root, [path.name for path in sorted(args.root.glob("log*.txt"))])
    marks.write_text("\n".join(sorted(runs | packed)))
    print(f"{len(runs)} runs are stored, {len(runs - packed)} were not packed before")


if __name__ == "__main__":
    main()
