"""The training loop and its parts: the order of the tasks, steps, metrics, checkpoints, masked language modelling."""

from mtbert.training.checkpoint import ReadProgress, Stop, TrainingError, stopping, watch
from mtbert.training.distillation import mean_logits
from mtbert.training.graphs import graphs_are_on
from mtbert.training.loop import TRAIN_ROWS, TrainedRun, dev_passes, evaluation_steps, train
from mtbert.training.metrics import metrics_of, overall, score_rows
from mtbert.training.micro_batches import Shapes, batch_shapes, micro_batch_count, weighted_tokens
from mtbert.training.step import Trainer
from mtbert.training.task_data import KEPT_FROM, TaskData, load_corpus, predict_table, prepare_task, task_logits
from mtbert.training.task_order import expected_passes, training_steps, turn_ends

__all__ = [
    "KEPT_FROM",
    "TRAIN_ROWS",
    "ReadProgress",
    "Shapes",
    "Stop",
    "TaskData",
    "TrainedRun",
    "Trainer",
    "TrainingError",
    "batch_shapes",
    "dev_passes",
    "evaluation_steps",
    "expected_passes",
    "graphs_are_on",
    "load_corpus",
    "mean_logits",
    "metrics_of",
    "micro_batch_count",
    "overall",
    "predict_table",
    "prepare_task",
    "score_rows",
    "stopping",
    "task_logits",
    "train",
    "training_steps",
    "turn_ends",
    "watch",
    "weighted_tokens",
]
