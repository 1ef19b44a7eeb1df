"""A task's model for transformers with a model card: task, plan, scores with intervals, data and licences."""

import math
from pathlib import Path

import pandas as pd

from mtbert.config import RunConfig
from mtbert.data import TASKS, Task
from mtbert.files import write_text
from mtbert.multitask import ExportError, MultitaskBert, export_task
from mtbert_lab.escapes import escaped
from mtbert_lab.store import Run

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


def export_with_card(
    model: MultitaskBert,
    task: str | None,
    folder: str | Path,
    encoder_only: bool = False,
    run: Run | None = None,
) -> str:
    """As `export_task`, with a model card. run: the stored one, for the card.

    Raises ExportError where the folder has a README of its own or another model, too.
    """
    task = model.resolve_task(task)
    card = Path(folder) / CARD
    if card.exists() and not card.read_text(encoding="utf8", errors="replace").startswith(FRONT):
        raise ExportError(f"{card} is no model card of an export, and would be overwritten; name another folder")
    others = ["run_config.json"] if card.exists() else ["run_config.json", "config.json", "model.safetensors"]
    for name in others:
        if (Path(folder) / name).exists():
            raise ExportError(f"{folder} has another model ({name}), which would be overwritten; name another folder")
    architecture = export_task(model, task, folder, encoder_only)
    write_text(card, _card(model.run_config, task, encoder_only, run))
    return architecture


def _card(config: RunConfig, task: str, encoder_only: bool, run: Run | None) -> str:
    """The model card: task, plan, scores with intervals, data and licences, in Markdown."""
    about = TASKS[task]
    pipeline = "feature-extraction" if encoder_only else "text-classification"
    head = "without a head: transformers would give one random weights" if encoder_only else "with its head"
    given = '{"text": first, "text_pair": second}' if about.is_pair and not encoder_only else "text"
    rows = {
        "task": f"{task} ({about.kind}): {_answer(about)}",
        "texts": " and ".join(about.sentence_columns),
        "plan": f"{config.plan_text}, trained on {', '.join(config.tasks)}",
        "weights before training": f"{_encoder(config)} ({config.weights})",
        "run": f"{run.run_id} of mtbert {run.provenance['mtbert']}" if run else config.digest,
    }
    lines = [
        f"{FRONT}pipeline_tag: {pipeline}\n---\n",
        f"# {task}, plan {escaped(config.plan_text)}\n",
        f"A BERT encoder for the task {task}, {head}, exported by mtbert.\n",
        "| | |\n|---|---|",
    ]
    lines += [f"| {name} | {escaped(text)} |" for name, text in rows.items()]
    lines += ["\n## Scores on dev\n", _score_table(task, run.scores if run else None)]
    lines.append("\n## Data\n")
    lines += [f"- {name}: {escaped(_data(config, TASKS[name]))}" for name in config.scored]
    lines.append(USE.format(pipeline=pipeline, given=given, max_length=config.max_length))
    return "\n".join(lines)


def _encoder(config: RunConfig) -> str:
    """The encoder's name; of a folder, which may be gone, the last part, as the card is read elsewhere."""
    folder = Path(config.encoder)
    is_path = folder.is_absolute() or folder.is_dir() or config.encoder.startswith((".", "~"))
    return folder.name if is_path else config.encoder


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
            interval = "–" if math.isnan(row.low) else f"{row.low:.3f} to {row.high:.3f}"
            lines.append(f"| {row.metric} | {row.value:.3f} | {interval} | {row.n} |")
    return "\n".join(lines) if len(lines) > 1 else "Not stored."


def _data(config: RunConfig, task: Task) -> str:
    """Where a task's examples come from."""
    if config.corpus == "demo" and task.folder is None:
        return "synthetic, the demo corpus of mtbert; licence Apache-2.0"
    return f"licence {task.licence or 'not stated'}"
