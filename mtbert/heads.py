"""What stands on the encoder: sentence embeddings, pair features, task heads, losses, predictions.

Source: papers 000 (section 2: dropout, then linear, on a sentence embedding; section 3.3: pair embeddings summed) and
002 (pairs concatenated, or both sentences in one sequence; mean squared error for similarity).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mtbert.bert import BertOutput
from mtbert.data import Task

SIMILARITY_SCALE = 5.0  # STS labels run from 0 to 5; the head works on 0 to 1


def sentence_embedding(output: BertOutput, attention_mask: Tensor, pooling: str) -> Tensor:
    """(B, d) from hidden states (B, T, d): BERT's pooler, the [CLS] state, or the mean over the tokens."""
    if pooling == "pooler":
        return output.pooler_output
    if pooling == "cls":
        return output.last_hidden_state[:, 0]
    weights = attention_mask.unsqueeze(-1).to(output.last_hidden_state.dtype)  # (B, T, 1)
    return (output.last_hidden_state * weights).sum(1) / weights.sum(1)


def pair_features(embeddings: Tensor, pairs: str) -> Tensor:
    """(2B, d), all first sentences then all second -> (B, d) summed or (B, 2d) concatenated."""
    first, second = embeddings.chunk(2)
    return first + second if pairs == "sum" else torch.cat((first, second), dim=-1)


class TaskHead(nn.Module):
    """Dropout, then linear: (B, D) -> logits (B, classes), or (B,) for binary pairs and similarity."""

    def __init__(self, task: Task, pairs: str, hidden_size: int, dropout: float) -> None:
        super().__init__()
        width = 2 * hidden_size if task.is_pair and pairs == "concat" else hidden_size
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(width, task.num_classes if task.kind == "classes" else 1)
        nn.init.normal_(self.linear.weight, std=0.02)
        nn.init.zeros_(self.linear.bias)

    def forward(self, features: Tensor) -> Tensor:
        """features (B, D) -> logits (B, classes) or (B,)."""
        logits = self.linear(self.dropout(features))
        return logits.squeeze(-1) if self.linear.out_features == 1 else logits


def task_loss(task: Task, logits: Tensor, labels: Tensor) -> Tensor:
    """Mean loss of a batch: cross-entropy (classes), binary cross-entropy, or squared error on the 0-1 scale."""
    logits = logits.float()
    if task.kind == "classes":
        return F.cross_entropy(logits, labels.long())
    if task.kind == "binary":
        return F.binary_cross_entropy_with_logits(logits, labels.float())
    return F.mse_loss(logits, labels.float() / SIMILARITY_SCALE)


def predict(task: Task, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Predicted label (B,) and the model's confidence in it (B,); for similarity both are the score, 0 to 5."""
    logits = logits.float()
    if task.kind == "classes":
        confidence, label = logits.softmax(-1).max(-1)
        return label, confidence
    if task.kind == "binary":
        probability = logits.sigmoid()
        label = (probability > 0.5).long()
        return label, torch.where(label == 1, probability, 1 - probability)
    score = (logits * SIMILARITY_SCALE).clamp(0, SIMILARITY_SCALE)
    return score, score
