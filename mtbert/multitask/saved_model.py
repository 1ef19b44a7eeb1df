"""The folder of a saved model: all that its predictions depend on."""

import logging
from dataclasses import asdict
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from mtbert.bert import (
    NAMED_ENCODERS,
    BertConfig,
    CheckpointError,
    copy_tokenizer,
    has_tokenizer,
    locate,
    write_tensors,
)
from mtbert.config import RunConfig
from mtbert.data import TASKS, changed_tasks
from mtbert.files import checksum_faults, read_json, replacing, write_checksums, write_json

log = logging.getLogger(__name__)
DEFINITIONS = "tasks.json"
FILES = ("run_config.json", "encoder.json", "model.safetensors", DEFINITIONS)
TOKENIZER = "tokenizer"  # a folder inside, where the encoder had a tokenizer


def write_model(
    folder: Path, config: RunConfig, encoder: BertConfig, tensors: dict[str, Tensor], tokenizer: str
) -> None:
    """Write the weights, the encoder's sizes, its tokenizer, the configuration and the definitions of the tasks.

    tokenizer: the checkpoint that has it.
    """
    (folder / "run_config.json").unlink(missing_ok=True)  # without it this is no model: it is written last
    write_tensors(folder / "model.safetensors", tensors)
    write_json(folder / "encoder.json", asdict(encoder))
    write_json(folder / DEFINITIONS, {task: TASKS[task].definition for task in config.scored})
    names = ["encoder.json", "model.safetensors", DEFINITIONS, *_write_tokenizer(folder, tokenizer)]
    with replacing(folder / "run_config.json") as partial:
        write_json(partial, config.model_dump(mode="json"))
        write_checksums(folder, names, {"run_config.json": partial})


def _write_tokenizer(folder: Path, tokenizer: str) -> list[str]:
    """Write the tokenizer next to the weights; returns the names of its files."""
    try:
        names = copy_tokenizer(locate(tokenizer), folder / TOKENIZER)
    except CheckpointError as error:
        log.warning("%s: the model is saved without its tokenizer: %s", folder, error)
        names = []
    for path in (folder / TOKENIZER).glob("*"):
        if path.name not in names:  # of another tokenizer that was saved here before
            path.unlink()
    return [f"{TOKENIZER}/{name}" for name in names]


def check_files(folder: Path) -> None:
    """Raise CheckpointError unless all files of a saved model are there, and are those that were written."""
    missing = [name for name in FILES if not (folder / name).exists()]
    if missing:
        raise CheckpointError(f"{folder}: no trained model; {', '.join(missing)} missing")
    tokenizer = [f"{TOKENIZER}/{path.name}" for path in (folder / TOKENIZER).glob("[!.]*")]
    faults = checksum_faults(folder, [*FILES, *tokenizer])
    if faults:
        raise CheckpointError(f"{folder}: {'; '.join(faults)}; delete the folder, train again")


def read_model(folder: Path) -> tuple[RunConfig, BertConfig, dict[str, Tensor]]:
    """The configuration, the encoder's sizes and the weights.

    Raises CheckpointError for tasks that were changed, other errors for names that are not known here and for what this
    version cannot read.
    """
    config = RunConfig.from_params(read_json(folder / "run_config.json"))
    _check_tasks(folder, config)
    tensors = load_file(folder / "model.safetensors")
    return config, BertConfig(**read_json(folder / "encoder.json")), tensors


def _check_tasks(folder: Path, config: RunConfig) -> None:
    """Raise CheckpointError if a task was changed since the model was saved."""
    stored = read_json(folder / DEFINITIONS)
    changed = changed_tasks({task: stored[task] for task in config.scored})
    if changed:
        raise CheckpointError(
            f"{folder}: the model was trained with other tasks than those here: {changed}; restore the file "
            "of the task, or give the changed task another name and train it"
        )


def saved_tokenizer(folder: Path, config: RunConfig) -> str:
    """The folder of a saved model's tokenizer; where it was saved without one its encoder, with a warning."""
    if has_tokenizer(folder / TOKENIZER):
        return str(folder / TOKENIZER)
    if config.encoder not in NAMED_ENCODERS:
        log.warning("%s: was saved without a tokenizer; that of %s is used as it is now", folder, config.encoder)
    return config.encoder
