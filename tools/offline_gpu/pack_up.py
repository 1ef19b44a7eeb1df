"""Here: all that a machine with a GPU and without a network needs to train some grids, in parts of a given size.

`python -m tools.offline_gpu.pack_up FOLDER GRID.yaml[:TEXT] ...`, in the root of a checkout; TEXT: only runs with it
in their names. Stored runs are left out. Written are, for each encoder, the parts of a zip, that of the first with
code, wheels, tables and the list of runs, and `tools/`, which goes with every part. See README.md.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mtbert.bert import MINILM, MPNET, locate
from mtbert.config import RunConfig
from mtbert.data import tokenize
from mtbert.files import sha256
from mtbert.paths import REPOSITORY
from mtbert.training.task_order import steps_per_epoch
from mtbert_lab.paths import stores
from mtbert_lab.store import Corpora, data_root, read_grids, run_folder, teacher_outputs

WHEELS = ("pydantic", "pydantic-core", "annotated-types", "typing-extensions", "typing-inspection", "filelock")
SMALL_GIB, LARGE_GIB = 7.5, 19.0  # of a GPU's memory, for a run; graphs and their gradients are most of it
BY_TASK_TIMES, R_DROP_TIMES = 1.5, 2.0  # times as much with adapters or a gradient of each task, and with R-Drop
TOOLS = ("README.md", "setup.sh", "driver.py", "bring_back.py")
Files = dict[str, Path]  # the name of a file there -> the file here


def list_runs(grids: Sequence[str], corpora: Corpora) -> list[dict[str, Any]]:
    """The runs of these grids that are not stored, for runs.json; in the order of the grids, then of the seeds."""
    runs = {}
    for text in grids:
        path, _, part = text.partition(":")
        found = read_grids([path], part or None)
        for name, config in sorted(found, key=lambda run: run[1].seed):
            run_id = corpora.run_id(config)
            if run_id in runs or run_folder(run_id, stores()):
                continue
            runs[run_id] = describe(f"{Path(path).stem}: {name}", config, corpora)
    return list(runs.values())


def describe(name: str, config: RunConfig, corpora: Corpora) -> dict[str, Any]:
    """A run as runs.json has it; config: what `RunConfig.from_params` reads.

    cost: in steps of MiniLM, guessed; gib: of the GPU's memory, guessed; is_plain: fit for the driver's check.
    """
    corpus = corpora(config)
    if teacher_outputs(config, corpus, corpora, stores()).missing():
        raise SystemExit(f"{name}: what its teachers predict is in no store: train it here once, or its teachers")
    steps = config.epochs * steps_per_epoch(config, [len(table) for table in corpus.train.values()])
    is_large = config.encoder != MINILM
    is_frozen = any(level.is_frozen for level in config.used_levels.values())
    backwards = 1 if config.gradients == "sum" else len(config.tasks)
    return {
        "name": f"{name}, seed {config.seed}",
        "run_id": corpora.run_id(config),
        "encoder": Path(config.encoder).name,
        "cost": steps * backwards * (3 if is_large else 1),
        "gib": gib(config, is_large),
        "is_plain": backwards == 1 and not config.teachers and not is_frozen,
        "config": config.model_dump(mode="json", exclude_defaults=True),
    }


def gib(config: RunConfig, is_large: bool) -> float:
    """A guess of the GPU memory of a run, in GiB."""
    size = LARGE_GIB if is_large or "cfimdb" in config.tasks else SMALL_GIB
    if config.adapter != "none" or config.gradients != "sum":
        size *= BY_TASK_TIMES
    return R_DROP_TIMES * size if any(config.r_drops.values()) else size


def code() -> Files:
    """The two packages."""
    files = {}
    for package in ("mtbert", "mtbert_lab"):
        for path in sorted((REPOSITORY / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                files[f"code/{path.relative_to(REPOSITORY)}"] = path
    return files


def tables(configs: list[RunConfig], data: Path | None) -> Files:
    """The course's tables for training and scoring; the demo corpus is among the code."""
    files = {}
    for config in configs:
        if config.corpus == "course":
            for split in ("train", "dev"):
                files |= {f"data/{path.name}": path for path in data_root(config, data).glob(f"*-{split}.csv")}
    return files


def teachers(configs: list[RunConfig], corpora: Corpora) -> Files:
    """What the teachers of some runs predict."""
    files = {}
    for config in configs:
        for run_id in teacher_outputs(config, corpora(config), corpora, stores()).run_ids.values():
            for store in reversed(stores()):
                for path in (store / "teachers" / run_id).glob("*.npz"):
                    files[f"results/teachers/{run_id}/{path.name}"] = path
    return files


def encoder_files(encoder: str) -> Files:
    """The files of an encoder, where the machine looks for them; a folder of one's own is not carried."""
    if encoder not in (MINILM, MPNET):
        print(f"{encoder}: is not carried; put it into the same folder there")
        return {}
    folder = locate(encoder)
    place = "cache/encoders/mpnet"
    if encoder == MINILM:
        folder = folder.parent  # the package
        place = f"site/{folder.name}"
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            files[f"{place}/{path.relative_to(folder)}"] = path
    return files


def token_files(encoder: str, configs: list[RunConfig], corpora: Corpora, cache: Path) -> Files:
    """Token ids of tables for an encoder, made in a cache of their own.

    Not of some thousand rows drawn from a table: they are another file for each seed, and made there in a second.
    """
    locate(encoder)  # found in the cache of here, and remembered
    cache.mkdir(parents=True)
    if encoder == MPNET:
        (cache / "encoders").mkdir()
        (cache / "encoders" / MPNET).symlink_to(locate(encoder).resolve())
    done = set()
    with patch.dict(os.environ, MTBERT_CACHE=str(cache)):
        for config in configs:
            key = (*corpora.key(config), config.pairs, config.max_length)
            if config.encoder == encoder and key not in done:
                done.add(key)
                corpus = corpora(config)
                drawn = [] if config.train_rows else corpus.train.items()
                for task, table in [*drawn, *corpus.dev.items()]:
                    tokenize(task, table, encoder, config.pairs, config.max_length)
    return {f"cache/tokens/{path.name}": path for path in (cache / "tokens").glob("*.npz")}


def download(wheels: Sequence[str], python: str, folder: Path) -> Files:
    """Wheels of these packages, in the versions installed here, for Linux on x86-64."""
    if not wheels:
        return {}
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--platform", "manylinux2014_x86_64", "--python-version", python, "--dest", str(folder)]
    subprocess.run([*command, *(f"{name}=={version(name)}" for name in wheels)], check=True)
    return {f"wheels/{path.name}": path for path in folder.glob("*.whl")}


def write_parts(name: str, files: Files, folder: Path, part_bytes: int) -> None:
    """Zip some files and cut the zip into equal parts, `NAME-00/part`, ...; `tools/NAME.sums` has their SHA-256."""
    path = folder / f"{name}.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, file in files.items():
            is_weights = file.suffix in (".safetensors", ".whl")
            archive.write(file, inside, zipfile.ZIP_STORED if is_weights else zipfile.ZIP_LZMA)
    number = math.ceil(path.stat().st_size / part_bytes)
    size = math.ceil(path.stat().st_size / number)
    sums = []
    with open(path, "rb") as content:
        for i in range(number):
            part = folder / f"{name}-{i:02d}" / "part"
            part.parent.mkdir()
            part.write_bytes(content.read(size))
            sums.append(f"{sha256(part)}  {part.relative_to(folder)}\n")
    path.unlink()
    (folder / "tools" / f"{name}.sums").write_text("".join(sums))
    print(f"{name}: {number} parts of {size / 1e6:.1f} MB")


def pack(runs: list[dict[str, Any]], folder: Path, corpora: Corpora, wheels: Files, part_bytes: int) -> None:
    """Write the folder that is carried."""
    tools = folder / "tools"
    tools.mkdir(parents=True)
    for name in TOOLS:
        shutil.copy(Path(__file__).with_name(name), tools / name)
    configs = [RunConfig.from_params(run["config"]) for run in runs]
    with tempfile.TemporaryDirectory() as scratch:
        listed = Path(scratch) / "runs.json"
        listed.write_text(json.dumps(runs, indent=1))
        files = {"runs.json": listed} | code() | wheels
        files |= tables(configs, corpora.data) | teachers(configs, corpora)
        for encoder in dict.fromkeys(config.encoder for config in configs):
            files |= encoder_files(encoder)
            files |= token_files(encoder, configs, corpora, Path(scratch) / Path(encoder).name)
            write_parts(Path(encoder).name, files, folder, part_bytes)
            files = {}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="is made")
    parser.add_argument("grids", nargs="+", metavar="GRID.yaml[:TEXT]")
    parser.add_argument("--data", type=Path, help="the course's tables; default: as mtbert finds them")
    parser.add_argument("--part-mb", type=float, default=56.0, help="of a part, in 10^6 bytes (default: %(default)g)")
    parser.add_argument("--wheels", nargs="*", default=WHEELS, help="what that machine lacks (default: %(default)s)")
    parser.add_argument("--more-wheels", nargs="*", default=[], metavar="WHEEL", help="what it lacks besides")
    parser.add_argument("--python", default="3.12", help="of that machine (default: %(default)s)")
    args = parser.parse_args()
    if args.folder.exists():
        parser.error(f"{args.folder}: is there already")
    corpora = Corpora(args.data)
    runs = list_runs(args.grids, corpora)
    if not runs:
        parser.error("all runs of these grids are stored")
    with tempfile.TemporaryDirectory() as scratch:
        wheels = download([*args.wheels, *args.more_wheels], args.python, Path(scratch))
        pack(runs, args.folder, corpora, wheels, int(args.part_mb * 1e6))
    print(f"{len(runs)} runs in {args.folder}")


if __name__ == "__main__":
    main()
