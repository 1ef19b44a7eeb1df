"""A task's encoder, and where transformers can run it its head, as a checkpoint in Hugging Face layout."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from mtbert.bert import write_tensors
from mtbert.data import TASKS
from mtbert.multitask.model import MultitaskBert
from mtbert.paths import write_checksums, write_json

WITH_HEAD = "BertForSequenceClassification"
PLAIN = {"pooling": "pooler", "head_layers": 1, "head_norm": False, "pos_features": False}  # what that class computes


def export_task(model: MultitaskBert, task: str | None, folder: str | Path) -> str:
    """Write a task's encoder and its tokenizer for transformers; returns the class that reads them.

    That is `BertForSequenceClassification` where it computes what our head does: a linear layer on the pooler's output
    of one sequence. A binary task has two logits there, 0 and ours; a number is in its range, not cut at the ends. Of
    other configurations the head is left out. Raises ConfigError for a task that the model does not have, and
    ExportError where the encoder has adapters, which transformers does not.
    """
    folder, config, task = Path(folder), model.run_config, model.checked(task)
    about = TASKS[task]
    model.encoder.task_encoder(task).save_pretrained(folder, tokenizer=model.tokenizer)
    content = json.loads((folder / "config.json").read_text(encoding="utf8"))
    is_plain = all(getattr(config, name) == value for name, value in PLAIN.items())
    if not is_plain or task in model.heads.upstreams or config.encodings(task) == 2 or content["model_type"] != "bert":
        return content["architectures"][0]
    [linear] = model.heads.by_task[task].layers
    weight, bias = linear.weight.detach(), linear.bias.detach()  # (logits, d), (logits,)
    if about.kind == "binary":
        weight, bias = (torch.cat((torch.zeros_like(part), part)) for part in (weight, bias))
    if about.is_number:
        low, high = about.label_range
        weight, bias = (high - low) * weight, (high - low) * bias + low
    tensors = {f"bert.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors |= {"classifier.weight": weight, "classifier.bias": bias}
    write_tensors(folder / "model.safetensors", tensors)
    names = [task] if about.is_number else about.class_names or [str(label) for label in range(about.num_classes)]
    content |= {"architectures": [WITH_HEAD], "id2label": dict(enumerate(names))}
    content |= {"label2id": {name: i for i, name in enumerate(names)}}
    write_json(folder / "config.json", content)
    write_checksums(folder)
    return WITH_HEAD
