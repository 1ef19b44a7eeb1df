"""An encoder under a sharing plan with a head for every task, and the losses."""

from mtbert.multitask.export import ExportError, export_task
from mtbert.multitask.heads import TaskHead
from mtbert.multitask.losses import divergence, predict, task_loss
from mtbert.multitask.model import (
    MultitaskBert,
    autocast,
    build_encoder,
    encoder_config,
    in_order,
    meta_model,
    parameter_counts,
)

__all__ = [
    "ExportError",
    "MultitaskBert",
    "TaskHead",
    "autocast",
    "build_encoder",
    "divergence",
    "encoder_config",
    "export_task",
    "in_order",
    "meta_model",
    "parameter_counts",
    "predict",
    "task_loss",
]
