"""A task's encoder, and where transformers can run it its head, as a checkpoint in Hugging Face layout."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors.torch import load_file

from mtbert import __version__
from mtbert.bert import write_tensors
from mtbert.config import RunConfig
from mtbert.data import TASKS, Task
from mtbert.files import write_checksums, write_json, write_text
from mtbert.multitask.model import MultitaskBert
from mtbert.names import escaped
from mtbert.sharing import ExportError

WITH_HEAD = "BertForSequenceClassification"
PLAIN = {"pooling": "pooler", "head_layers": 1, "head_norm": False, "pos_features": False}  # what that class computes
CARD = "README.md"
FRONT = "---\nlibrary_name: transformers\n"
USE = """
## Use

```python
from transformers import pipeline

pipeline("{pipeline}", FOLDER)({given}, truncation=True)
```

Longer texts are cut to {max_length} tokens, as in training.
"""


def export_task(
    model: MultitaskBert,
    task: str | None,
    folder: str | Path,
    encoder_only: bool = False,
    run_id: str = "",
    scores: pd.DataFrame | None = None,
) -> str:
    """Write a task's encoder, its head, its tokenizer and a model card for transformers; returns the class to read it.

    That is `BertForSequenceClassification`, which computes what our head does: a linear layer on the pooler's output
    of one sequence. A binary task has two logits there, 0 and ours; a number is in its range, not cut at the ends.
    encoder_only: leave out the head. run_id, scores: of the stored run, for the card. Raises ConfigError for a task
    that the model does not have, and ExportError, before a file is written, where the encoder has adapters, or the head
    is one that transformers does not have, unless `encoder_only`; and where the folder has a README of its own.
    """
    folder = Path(folder)
    task = model.checked(task)
    encoder = model.encoder.task_encoder(task)
    reasons = [] if encoder_only else _why_without_head(model, task)
    if reasons:
        raise ExportError(
            f"transformers has no head like the one of {task}: {'; '.join(reasons)}. Train with other values, or leave "
            "the head out with encoder_only=True; transformers would put random weights in its place"
        )
    card = folder / CARD
    if card.exists() and not card.read_text(encoding="utf8", errors="replace").startswith(FRONT):
        raise ExportError(f"{card} is no model card of an export, and would be overwritten; name another folder")
    encoder.save_pretrained(folder, tokenizer=model.tokenizer, max_length=model.run_config.max_length)
    if not encoder_only:
        _add_head(model, task, folder)
    write_text(card, _card(model.run_config, task, encoder_only, run_id, scores))
    [architecture] = _read_config(folder)["architectures"]
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
    content = _read_config(folder)
    content["architectures"] = [WITH_HEAD]
    content["id2label"] = dict(enumerate(names))
    content["label2id"] = {name: i for i, name in enumerate(names)}
    # Without it pipelines apply a sigmoid to a number.
    content["problem_type"] = "regression" if about.is_number else "single_label_classification"
    write_json(folder / "config.json", content)
    write_checksums(folder)


def _read_config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text(encoding="utf8"))


def _card(config: RunConfig, task: str, encoder_only: bool, run_id: str, scores: pd.DataFrame | None) -> str:
    """The model card: task, plan, scores with intervals, data and licences, in Markdown."""
    about = TASKS[task]
    pipeline = "feature-extraction" if encoder_only else "text-classification"
    head = "without a head: transformers would give one random weights" if encoder_only else "with its head"
    given = '{"text": first, "text_pair": second}' if about.is_pair and not encoder_only else "text"
    rows = {
        "task": f"{task} ({about.kind}): {_answer(about)}",
        "texts": " and ".join(about.sentence_columns),
        "plan": f"{config.plan_text}, trained on {', '.join(config.tasks)}",
        "weights before training": f"{config.encoder} ({config.weights})",
        "run": f"{run_id or config.digest} of mtbert {__version__}",
    }
    lines = [
        f"{FRONT}pipeline_tag: {pipeline}\n---\n",
        f"# {task}, plan {escaped(config.plan_text)}\n",
        f"A BERT encoder for the task {task}, {head}, exported by mtbert.\n",
        "| | |\n|---|---|",
    ]
    lines += [f"| {name} | {escaped(text)} |" for name, text in rows.items()]
    lines += ["\n## Scores on dev\n", _score_table(task, scores)]
    lines.append("\n## Data\n")
    lines += [f"- {name}: {escaped(_data(config, TASKS[name]))}" for name in config.scored]
    lines.append(USE.format(pipeline=pipeline, given=given, max_length=config.max_length))
    return "\n".join(lines)


def _answer(task: Task) -> str:
    """The form of an answer for an example."""
    if not task.is_number:
        return f"one of {', '.join(task.names)}"
    low, high = task.label_range
    return f"a number from {low:g} to {high:g}; outputs may lie a little beyond the ends"


def _score_table(task: str, scores: pd.DataFrame | None) -> str:
    lines = ["| metric | score | 95 % interval | examples |\n|---|---|---|---|"]
    if scores is not None:
        for row in scores[scores["task"] == task].itertuples():
            lines.append(f"| {row.metric} | {row.value:.3f} | {row.low:.3f} to {row.high:.3f} | {row.n} |")
    return "\n".join(lines) if len(lines) > 1 else "Not stored."


def _data(config: RunConfig, task: Task) -> str:
    """Where a task's examples come from."""
    if config.corpus == "demo" and task.folder is None:
        return "synthetic, the demo corpus of mtbert; licence Apache-2.0"
    return f"licence {task.licence or 'not stated'}"
