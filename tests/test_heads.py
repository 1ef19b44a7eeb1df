"""Pooling, pair features, losses and predictions against loops and formulas."""

import math

import pytest
import torch

from mtbert.bert import BertOutput
from mtbert.data import TASKS
from mtbert.heads import TaskHead, pair_features, predict, sentence_embedding, task_loss

B, T, D = 5, 7, 3
LENGTHS = [7, 1, 3, 6, 2]


@pytest.fixture
def output() -> BertOutput:
    generator = torch.Generator().manual_seed(0)
    return BertOutput(torch.randn(B, T, D, generator=generator), torch.randn(B, D, generator=generator))


@pytest.fixture
def mask() -> torch.Tensor:
    return torch.arange(T) < torch.tensor(LENGTHS)[:, None]  # (B, T)


def test_mean_pooling_is_over_the_tokens_alone(output, mask):
    embeddings = sentence_embedding(output, mask, "mean")
    for row, length in enumerate(LENGTHS):
        expected = sum(output.last_hidden_state[row, t] for t in range(length)) / length
        torch.testing.assert_close(embeddings[row], expected)
    output.last_hidden_state[~mask] = 1e6
    torch.testing.assert_close(sentence_embedding(output, mask, "mean"), embeddings)


def test_cls_and_pooler(output, mask):
    assert torch.equal(sentence_embedding(output, mask, "cls"), output.last_hidden_state[:, 0, :])
    assert torch.equal(sentence_embedding(output, mask, "pooler"), output.pooler_output)


def test_pair_features_join_row_i_with_row_i():
    embeddings = torch.arange(12.0).view(6, 2)  # three first sentences, three second
    for i in range(3):
        first, second = embeddings[i], embeddings[3 + i]
        assert pair_features(embeddings, "sum")[i].tolist() == (first + second).tolist()
        assert pair_features(embeddings, "concat")[i].tolist() == [*first.tolist(), *second.tolist()]


@pytest.mark.parametrize(
    "task, pairs, width, shape",
    [
        ("sst", "joint", 8, (4, 5)),
        ("cfimdb", "concat", 8, (4, 2)),
        ("quora", "joint", 8, (4,)),
        ("quora", "concat", 16, (4,)),
        ("sts", "sum", 8, (4,)),
        ("sts", "concat", 16, (4,)),
    ],
)
def test_head_widths_and_logits(task, pairs, width, shape):
    head = TaskHead(TASKS[task], pairs, hidden_size=8, dropout=0.1)
    assert head.linear.in_features == width
    assert head(torch.zeros(4, width)).shape == shape
    assert head(torch.zeros(1, width)).shape == (1, *shape[1:])


def test_head_drops_out_in_training_alone():
    head = TaskHead(TASKS["sst"], "joint", hidden_size=64, dropout=0.5)
    features = torch.ones(4, 64)
    assert not torch.equal(head.train()(features), head(features))
    expected = features @ head.linear.weight.T + head.linear.bias
    torch.testing.assert_close(head.eval()(features), expected)


def test_losses_are_the_formulas():
    generator = torch.Generator().manual_seed(1)
    logits, labels = torch.randn(6, 5, generator=generator), torch.tensor([0, 4, 2, 2, 1, 3])
    rows = [-row[label] + math.log(sum(math.exp(x) for x in row)) for row, label in zip(logits, labels, strict=True)]
    torch.testing.assert_close(task_loss(TASKS["sst"], logits, labels), sum(rows) / 6)

    logits, labels = torch.tensor([2.0, -1.0, 0.5]), torch.tensor([1, 0, 0])
    p = [1 / (1 + math.exp(-x)) for x in logits.tolist()]
    expected = -(math.log(p[0]) + math.log(1 - p[1]) + math.log(1 - p[2])) / 3
    assert task_loss(TASKS["quora"], logits, labels).item() == pytest.approx(expected)

    logits, labels = torch.tensor([0.2, 0.9]), torch.tensor([2.5, 5.0])
    expected = ((0.2 - 0.5) ** 2 + (0.9 - 1.0) ** 2) / 2
    assert task_loss(TASKS["sts"], logits, labels).item() == pytest.approx(expected)


def test_the_loss_of_a_fresh_classifier_is_ln_classes():
    for task, classes in (("sst", 5), ("cfimdb", 2)):
        loss = task_loss(TASKS[task], torch.zeros(3, classes), torch.tensor([0, 1, 1]))
        assert loss.item() == pytest.approx(math.log(classes))
    assert task_loss(TASKS["quora"], torch.zeros(3), torch.ones(3)).item() == pytest.approx(math.log(2))


def test_class_predictions():
    label, confidence = predict(TASKS["sst"], torch.tensor([[0.0, 1.0, 0.0, 3.0, 0.0], [2.0, 0.0, 0.0, 0.0, 0.0]]))
    assert label.tolist() == [3, 0]
    expected = [math.exp(3) / (math.exp(3) + math.e + 3), math.exp(2) / (math.exp(2) + 4)]
    assert confidence.tolist() == pytest.approx(expected)


def test_binary_predictions():
    label, confidence = predict(TASKS["quora"], torch.tensor([3.0, -3.0, 0.1]))
    assert label.tolist() == [1, 0, 1]
    sure = 1 / (1 + math.exp(-3))
    assert confidence.tolist() == pytest.approx([sure, sure, 1 / (1 + math.exp(-0.1))])


def test_similarity_predictions_stay_in_range():
    score, confidence = predict(TASKS["sts"], torch.tensor([-0.3, 0.0, 0.5, 1.0, 7.0]))
    assert score.tolist() == confidence.tolist() == [0.0, 0.0, 2.5, 5.0, 5.0]


def test_half_precision_logits_are_scored_in_full():
    logits = torch.tensor([[0.0, 0.001, 0.0, 0.0, 0.0]])
    assert task_loss(TASKS["sst"], logits.bfloat16(), torch.tensor([1])).dtype == torch.float32
    assert predict(TASKS["sts"], torch.tensor([0.5]).bfloat16())[0].dtype == torch.float32
