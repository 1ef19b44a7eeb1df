"""An encoder under a sharing plan with a head for every task, and the losses."""

from mtbert.multitask.heads import TaskHead
from mtbert.multitask.losses import SIMILARITY_SCALE, divergence, predict, task_loss
from mtbert.multitask.model import MultitaskBert, autocast, build_encoder, encoder_config, parameter_counts

__all__ = [
    "SIMILARITY_SCALE",
    "MultitaskBert",
    "TaskHead",
    "autocast",
    "build_encoder",
    "divergence",
    "encoder_config",
    "parameter_counts",
    "predict",
    "task_loss",
]
