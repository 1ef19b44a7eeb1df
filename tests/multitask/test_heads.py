"""Pooling, pair features, heads, losses and predictions against loops and formulas."""

import math

import pytest
import torch
from torch import nn

from mtbert.bert.cpu_ops import Dropout
from mtbert.config import RunConfig
from mtbert.data.tasks import TASKS
from mtbert.multitask.heads import TAG_COUNT, TaskHead, TaskHeads, pair_features, pair_width, sentence_embedding
from mtbert.multitask.losses import predict, task_loss

B, T, D = 5, 7, 3
LENGTHS = [7, 1, 3, 6, 2]
ALL_TASKS = ("sst", "cfimdb", "quora", "sts")


@pytest.fixture
def hidden() -> torch.Tensor:
    return torch.randn(B, T, D, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def mask() -> torch.Tensor:
    return torch.arange(T) < torch.tensor(LENGTHS)[:, None]  # (B, T)


def test_mean_pooling_is_over_the_tokens_alone(hidden, mask):
    embeddings = sentence_embedding(hidden, mask, "mean")
    for row, length in enumerate(LENGTHS):
        torch.testing.assert_close(embeddings[row], sum(hidden[row, t] for t in range(length)) / length)
    hidden[~mask] = 1e6
    torch.testing.assert_close(sentence_embedding(hidden, mask, "mean"), embeddings)


def test_cls_is_the_first_state(hidden, mask):
    assert torch.equal(sentence_embedding(hidden, mask, "cls"), hidden[:, 0, :])


NAIVE = {
    "sum": lambda u, v: [a + b for a, b in zip(u, v, strict=True)],
    "concat": lambda u, v: [*u, *v],
    "product": lambda u, v: [a * b for a, b in zip(u, v, strict=True)],
    "difference": lambda u, v: [abs(a - b) for a, b in zip(u, v, strict=True)],
    "cosine": lambda u, v: [sum(a * b for a, b in zip(u, v, strict=True)) / (math.hypot(*u) * math.hypot(*v))],
}


@pytest.mark.parametrize("pairs", [*NAIVE, "concat+product", "cosine+difference+sum", "product+concat"])
def test_pair_features_are_the_formulas_in_the_order_written(pairs):
    embeddings = torch.randn(4, 2, 6, generator=torch.Generator().manual_seed(3))
    features = pair_features(embeddings, pairs)
    assert features.shape == (4, pair_width(pairs, 6))
    for row, (first, second) in zip(features.tolist(), embeddings.tolist(), strict=True):
        expected = [x for part in pairs.split("+") for x in NAIVE[part](first, second)]
        assert row == pytest.approx(expected, rel=1e-5)


def head_of(task: str, width: int, **fields) -> TaskHead:
    return TaskHead(TASKS[task], width, RunConfig(**fields))


@pytest.mark.parametrize("task, shape", [("sst", (4, 5)), ("cfimdb", (4, 2)), ("quora", (4,)), ("sts", (4,))])
@pytest.mark.parametrize("layers", [1, 3])
def test_logits_have_one_column_a_class(task, shape, layers):
    head = head_of(task, 8, head_layers=layers, head_width=6)
    assert head(torch.zeros(4, 8)).shape == shape
    assert head(torch.zeros(1, 8)).shape == (1, *shape[1:])
    assert [linear.in_features for linear in head.layers] == [8, 6, 6][:layers]


def test_a_head_of_one_layer_is_dropout_then_linear():
    """Drawn and dropped out as by these few lines: stored runs depend on every one of the random numbers."""
    torch.manual_seed(7)
    dropout, linear = Dropout(0.3), nn.Linear(64, 5)
    nn.init.normal_(linear.weight, std=0.02)
    nn.init.zeros_(linear.bias)
    expected = linear(dropout(torch.ones(4, 64)))
    torch.manual_seed(7)
    assert torch.equal(head_of("sst", 64, head_dropout=0.3)(torch.ones(4, 64)), expected)


@torch.no_grad()
def test_a_head_of_three_layers_by_hand():
    torch.manual_seed(0)
    head = head_of("cfimdb", 4, head_layers=3, head_width=3).eval()
    for parameter in head.parameters():
        parameter.normal_()
    for x, logits in zip(features := torch.randn(6, 4), head(features), strict=True):
        for i, linear in enumerate(head.layers):
            weight, bias = linear.weight.tolist(), linear.bias.tolist()
            x = [sum(w * a for w, a in zip(row, x, strict=True)) + b for row, b in zip(weight, bias, strict=True)]
            x = [max(float(a), 0.0) for a in x] if i < 2 else x
        assert logits.tolist() == pytest.approx([float(a) for a in x], rel=1e-5, abs=1e-6)


def test_heads_of_several_layers_start_as_torchs_and_pass_their_signal_on():
    """Drawn from N(0, .02), five layers gave logits of a spread below 1e-4."""
    torch.manual_seed(0)
    features = torch.randn(200, 20)
    deep = head_of("sst", 20, head_layers=5, head_width=20)
    for linear in deep.layers:
        assert linear.weight.abs().max() <= 20**-0.5 and linear.bias.abs().max() > 0
    assert deep.eval()(features).std(dim=0).mean() > 0.003
    flat = head_of("sst", 20, head_layers=1)
    assert flat.layers[0].weight.std().item() == pytest.approx(0.02, rel=0.3) and not flat.layers[0].bias.any()


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("place", ["before", "inside", "after"])
def test_dropout_stands_in_its_place(place, layers):
    """All weights 1 / width: whatever is not dropped is 1 in front of every layer and behind the last."""
    head, p, width = (
        head_of("sst", 20, head_layers=layers, head_width=20, head_dropout=0.5, dropout_place=place),
        0.5,
        20,
    )
    events = []
    head.dropout.register_forward_hook(lambda module, inputs, output: events.append(("dropout", output)))
    for linear in head.layers:
        nn.init.constant_(linear.weight, 1 / width)
        nn.init.zeros_(linear.bias)
        linear.register_forward_hook(lambda module, inputs, output: events.append(("linear", inputs[0])))
    torch.manual_seed(0)
    logits = head.train()(torch.ones(1000, width))
    drop, linear = "dropout", "linear"
    order = {
        "before": [drop] + [linear] * layers,
        "inside": [drop, linear] * layers,
        "after": [linear] * layers + [drop],
    }
    assert [name for name, _ in events] == order[place]
    for (name, dropped), (_, seen) in zip(events, [*events[1:], (None, logits)], strict=True):
        if name == drop:
            assert torch.equal(seen, dropped)
            assert (dropped == 0).float().mean().item() == pytest.approx(p, abs=0.03)
    assert logits.mean().item() == pytest.approx(1, abs=0.05)
    torch.testing.assert_close(head.eval()(torch.ones(2, width)), torch.ones(2, 5))


@pytest.mark.parametrize(
    "pairs, tags, widths",
    [
        ("joint", False, (8, 8, 8, 8)),
        ("joint", True, (20, 20, 32, 32)),
        ("sum", False, (8, 8, 8, 8)),
        ("concat+product", False, (8, 8, 24, 24)),
        ("difference+cosine", True, (20, 20, 33, 33)),
    ],
)
@pytest.mark.parametrize("head_norm", [False, True])
def test_a_head_for_every_scored_task(pairs, tags, widths, head_norm):
    heads = TaskHeads(
        RunConfig(tasks=ALL_TASKS[:2], score_tasks=ALL_TASKS, pairs=pairs, pos_features=tags, head_norm=head_norm), 8
    ).eval()
    assert list(heads.by_task) == list(ALL_TASKS)
    for task, width in zip(ALL_TASKS, widths, strict=True):
        assert heads.by_task[task].layers[0].in_features == width
        k = 2 if TASKS[task].is_pair and pairs != "joint" else 1
        embeddings = torch.randn(3, k, 8)
        shares = torch.rand(3, TAG_COUNT * len(TASKS[task].sentence_columns)) if tags else None
        normed = torch.stack([(e - e.mean()) / e.std(correction=0) for e in embeddings.view(-1, 8)]).view(3, k, 8)
        read = normed if head_norm else embeddings
        features = pair_features(read, pairs) if k == 2 else read[:, 0]
        features = torch.cat((features, shares), dim=1) if tags else features
        torch.testing.assert_close(heads(task, embeddings, shares), heads.by_task[task](features))


def test_the_heads_are_drawn_in_the_order_of_the_tasks():
    torch.manual_seed(0)
    heads = TaskHeads(RunConfig(tasks=("sts", "sst"), head_norm=True), 8)
    torch.manual_seed(0)
    for task in ("sts", "sst"):
        assert torch.equal(heads.by_task[task].layers[0].weight, head_of(task, 8).layers[0].weight)


def test_embeddings_and_tags_of_another_shape():
    heads = TaskHeads(RunConfig(tasks=("sst", "sts"), pairs="sum", pos_features=True), 8)
    with pytest.raises(ValueError, match=r"embeddings of sts are \(3, 1, 8\), not \(B, 2, 8\)"):
        heads("sts", torch.zeros(3, 1, 8), torch.zeros(3, 24))
    with pytest.raises(ValueError, match=r"tags of sts are \(3, 12\), not \(3, 24\)"):
        heads("sts", torch.zeros(3, 2, 8), torch.zeros(3, 12))
    with pytest.raises(ValueError, match="tags of sst are None"):
        heads("sst", torch.zeros(3, 1, 8))


@pytest.mark.parametrize("head_norm", [False, True])
def test_sigmoid_of_the_cosine_has_no_head(head_norm):
    config = RunConfig(tasks=("sst", "sts"), pairs="concat", similarity="sigmoid_cosine", head_norm=head_norm)
    heads = TaskHeads(config, 8)
    assert list(heads.by_task) == ["sst"]
    embeddings = torch.randn(4, 2, 8)
    read = torch.nn.functional.layer_norm(embeddings, (8,)) if head_norm else embeddings
    expected = [5 / (1 + math.exp(-NAIVE["cosine"](*pair)[0])) for pair in read.tolist()]
    logits = heads("sts", embeddings)
    assert predict(TASKS["sts"], logits)[0].tolist() == pytest.approx(expected, rel=1e-5)
    loss = task_loss(TASKS["sts"], logits, torch.tensor([0.0, 2.5, 5.0, 1.0]))
    squares = [(x / 5 - y) ** 2 for x, y in zip(expected, (0, 0.5, 1, 0.2), strict=True)]
    assert loss.item() == pytest.approx(sum(squares) / 4, rel=1e-5)


def test_the_layer_norm_is_shared_by_several_training_tasks():
    def shared(**fields) -> list[str]:
        return list(TaskHeads(RunConfig(**fields), 8).shared_parameters())

    assert shared(tasks=("sst", "sts"), head_norm=True) == ["norm.weight", "norm.bias"]
    assert shared(tasks=("sst",), score_tasks=("sts",), head_norm=True) == []
    assert shared(tasks=("sst", "sts")) == []


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
    assert score.tolist() == [0.0, 0.0, 2.5, 5.0, 5.0]
    assert confidence.isnan().all(), "a number has none"


def test_half_precision_logits_are_scored_in_full():
    logits = torch.tensor([[0.0, 0.001, 0.0, 0.0, 0.0]])
    assert task_loss(TASKS["sst"], logits.bfloat16(), torch.tensor([1])).dtype == torch.float32
    assert predict(TASKS["sts"], torch.tensor([0.5]).bfloat16())[0].dtype == torch.float32
