"""Interference: which examples of a task would a step for another task make worse?

To first order, a step along another task's gradient raises the loss of an example whose own gradient points against
it. The sign of the cosine says which. Yu et al. 2020 (PCGrad) ask this for batches during training.
"""

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy import ndarray
from scipy.stats import rankdata
from torch import Tensor

from mtbert.data import TASKS, load_table
from mtbert.multitask import MultitaskBert, task_loss
from mtbert.runtime import pick_device
from mtbert.training import TaskData, prepare_task, task_logits
from mtbert_lab.analysis.groups import at_equal_labels
from mtbert_lab.statistics import Estimate, Resamples
from mtbert_lab.store import Run, cached_table, data_root, dev_table, load_model

AT_ONCE = 16  # rows in one pass of a mean gradient


def conflicts(
    run: Run,
    examples: int,
    data: str | Path | None = None,
    device: str = "auto",
) -> pd.DataFrame | None:
    """Cosines of single dev examples' gradients with the mean gradients of the other tasks, of the shared layers.

    A row per task, other task and example: task, other, row (its number on dev), cosine. So many `examples` of every
    task are drawn from dev for the single gradients and from train for the means; the model is the kept one, without
    dropout. The run must share a layer. None where neither the table nor model and data are here.
    """

    return cached_table(f"conflicts/{run.run_id}-{examples}", partial(_conflicts, run, examples, data, device))


def _conflicts(run: Run, examples: int, data: str | Path | None, device: str) -> pd.DataFrame:
    """Compute the table of `conflicts`."""
    random = np.random.default_rng(0)
    model = load_model(run.run_id).to(pick_device(device)).eval()
    parameters = model.shared_parameters().items()
    shared = [parameter for name, parameter in parameters if name.startswith("encoder.layers.")]
    drawn = {}
    means = {}
    for task in run.config.tasks:
        drawn[task] = _draw(dev_table(run, task, data), examples, random)
        train, _ = load_table(task, "train", data_root(run.config, data))
        rows = prepare_task(model, task, _draw(train, examples, random), model.device)
        means[task] = _gradient(model, task, rows, np.arange(len(rows)), shared)
    found = []
    for task, dev in drawn.items():
        rows = prepare_task(model, task, dev, model.device)
        for i, number in enumerate(dev["row"]):
            gradient = _gradient(model, task, rows, np.array([i]), shared)
            for other in run.config.tasks:
                if other != task:
                    cosine = torch.cosine_similarity(gradient, means[other], dim=0).item()
                    found.append((task, other, number, round(cosine, 4)))
    return pd.DataFrame(found, columns=["task", "other", "row", "cosine"])


def _draw(table: pd.DataFrame, examples: int, random: np.random.Generator) -> pd.DataFrame:
    """So many examples of a table, in its order; `row`: their number there."""
    shuffled = random.permutation(len(table))
    chosen = np.sort(shuffled[:examples])
    return table.iloc[chosen].rename_axis("row").reset_index()


def _gradient(
    model: MultitaskBert,
    task: str,
    table: TaskData,
    rows: ndarray,
    shared: list[Tensor],
) -> Tensor:
    """Gradient (P,) of the mean loss of these rows, AT_ONCE or fewer at a time."""
    passes = math.ceil(len(rows) / AT_ONCE)
    total = 0
    for part in np.array_split(rows, passes):
        logits = task_logits(model, {task: table}, {task: part})
        labels = table.labels[part]
        loss = task_loss(TASKS[task], logits[task], labels)
        gradients = torch.autograd.grad(loss, shared, materialize_grads=True)  # some tasks may not read a layer
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        total = total + flat * (len(part) / len(rows))
    return total


@dataclass(frozen=True)
class ConflictEffect:
    """How the loss by sharing depends on the conflict with another task. Correlations are Spearman's."""

    correlation: Estimate
    at_equal_labels: Estimate  # the same among examples with the same label
    in_conflict: Estimate  # share of the examples with a cosine below 0


def conflict_effect(cosine: ndarray, lost: ndarray, labels: ndarray) -> ConflictEffect:
    """cosine: with another task's gradient; lost: the loss with sharing minus the loss without it; all (n,).

    A label alone can cause a correlation, as it decides much of a gradient's direction: hence `at_equal_labels`.
    """
    n = len(cosine)
    draws = Resamples(n, {})
    ranks = np.stack([rankdata(cosine), rankdata(lost)])
    ranks_at_equal_labels = at_equal_labels(ranks, labels)
    return ConflictEffect(
        correlation=Estimate.of(draws.correlation(*ranks)),
        at_equal_labels=Estimate.of(draws.correlation(*ranks_at_equal_labels)),
        in_conflict=Estimate.of(draws.sums(cosine < 0) / n),
    )
