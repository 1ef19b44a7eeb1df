"""A task's encoder, and where transformers can run it its head, as a checkpoint in Hugging Face layout."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from mtbert.bert import write_tensors
from mtbert.data import TASKS
from mtbert.files import read_json, write_checksums, write_json
from mtbert.multitask.model import MultitaskBert

WITH_HEAD = "BertForSequenceClassification"
PLAIN = {"pooling": "pooler", "head_layers": 1, "head_norm": False, "pos_features": False}  # what that class computes


class ExportError(ValueError):
    """A part of a model that other code cannot run."""


def export_task(model: MultitaskBert, task: str | None, folder: str | Path, encoder_only: bool = False) -> str:
    """Write a task's encoder, its head and its tokenizer for transformers; returns the class to read it.

    That is `BertForSequenceClassification`, which computes what our head does: a linear layer on the pooler's output
    of one sequence. A binary task has two logits there, 0 and ours; a number is in its range, not cut at the ends.
    encoder_only: leave out the head. Raises ConfigError for a task that the model does not have, and ExportError,
    before a file is written, where the task has an adapter, or the head is one that transformers does not have, unless
    `encoder_only`.
    """
    folder = Path(folder)
    task = model.resolve_task(task)
    if task in model.encoder.adapters:
        kind = type(model.encoder.adapters[task]).__name__
        raise ExportError(f"{task} has an adapter ({kind}), without which its encoder gives other hidden states")
    reasons = [] if encoder_only else _why_without_head(model, task)
    if reasons:
        raise ExportError(
            f"transformers has no head like the one of {task}: {'; '.join(reasons)}. Train with other values, or leave "
            "the head out with encoder_only=True; transformers would put random weights in its place"
        )
    encoder = model.encoder.task_encoder(task)
    encoder.save_pretrained(folder, tokenizer=model.tokenizer_source, max_length=model.run_config.max_length)
    if not encoder_only:
        _add_head(model, task, folder)
    [architecture] = read_json(folder / "config.json")["architectures"]
    return architecture


def _why_without_head(model: MultitaskBert, task: str) -> list[str]:
    """Why `BertForSequenceClassification` cannot compute a task's head; empty where it can."""
    config = model.run_config
    reasons = []
    for name, plain in PLAIN.items():
        value = getattr(config, name)
        if value != plain:
            reasons.append(f"{name} is {value!r}, not {plain!r}")
    if config.encodings(task) == 2:
        reasons.append(f"pairs is {config.pairs!r}, not 'joint'")
    if task in model.heads.upstreams:
        reasons.append("feeds show it the outputs of other heads")
    model_type = model.encoder.config.model_type
    if model_type != "bert":
        reasons.append(f"the encoder is a {model_type}, not a bert")
    return reasons


def _add_head(model: MultitaskBert, task: str, folder: Path) -> None:
    """Add a task's head to its encoder in the folder."""
    about = TASKS[task]
    [linear] = model.heads.by_task[task].layers
    weight, bias = linear.weight.detach(), linear.bias.detach()  # (logits, d), (logits,)
    if about.kind == "binary":
        weight = torch.cat((torch.zeros_like(weight), weight))  # (2, d)
        bias = torch.cat((torch.zeros_like(bias), bias))  # (2,)
    if about.is_number:
        low, high = about.label_range
        weight = (high - low) * weight
        bias = (high - low) * bias + low
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors["classifier.weight"] = weight
    tensors["classifier.bias"] = bias
    write_tensors(folder / "model.safetensors", tensors)
    names = [task] if about.is_number else about.names
    content = read_json(folder / "config.json")
    content["architectures"] = [WITH_HEAD]
    content["id2label"] = dict(enumerate(names))
    content["label2id"] = {name: i for i, name in enumerate(names)}
    # Without it pipelines apply a sigmoid to a number.
    content["problem_type"] = "regression" if about.is_number else "single_label_classification"
    write_json(folder / "config.json", content)
    write_checksums(folder)
