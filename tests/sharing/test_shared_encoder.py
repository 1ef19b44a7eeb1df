"""One pass through a plan against separate whole models, one for every task, run one by one."""

import copy

import pytest
import torch

from mtbert.bert import BertConfig, BertModel
from mtbert.bert.batch import Batch
from mtbert.sharing.adapters import ADAPTERS, AdapterSizes
from mtbert.sharing.plan import PlanError, SharingPlan
from mtbert.sharing.shared_encoder import SharedEncoder

SIZES = BertConfig(
    vocab_size=60, hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=24,
    max_position_embeddings=20, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.2,
)  # fmt: skip
THREE = ("sst", "quora", "sts")
FOUR = ("sst", "cfimdb", "quora", "sts")
# text -> for embeddings, four layers and pooler: which copy each task uses, written out by hand
PLANS = [
    (THREE, "S4", ["000"] * 6),
    (THREE, "I4", ["012"] * 6),
    (THREE, "F4", ["000"] * 6),
    (THREE, "S2 I2", ["000", "000", "000", "012", "012", "012"]),
    (THREE, "I2 S2", ["012", "012", "012", "000", "000", "000"]),
    (THREE, "F1 S2 I1", ["000", "000", "000", "000", "012", "012"]),
    (THREE, "S1 F2 I1", ["000", "000", "000", "000", "012", "012"]),
    (THREE, "I1 S1 I1 S1", ["012", "012", "000", "012", "000", "000"]),
    (THREE, "S2(sst,quora|sts) I2", ["001", "001", "001", "012", "012", "012"]),
    (THREE, "S4(sst,sts|quora)", ["010"] * 6),
    (THREE, "emb:F S3(sst|quora,sts) S1 pool:I", ["000", "011", "011", "011", "000", "012"]),
    (THREE, "emb:I S4 pool:I", ["012", "000", "000", "000", "000", "012"]),
    (FOUR, "S4", ["0000"] * 6),
    (FOUR, "I4", ["0123"] * 6),
    (FOUR, "S1 S1(sst,cfimdb|quora,sts) I2", ["0000", "0000", "0011", "0123", "0123", "0123"]),
    (FOUR, "S2(sst,cfimdb|quora,sts) S2(sst,quora|cfimdb,sts)", ["0011", "0011", "0011", "0101", "0101", "0101"]),
    (FOUR, "F1 I1 S1(sst|cfimdb,quora,sts) F1", ["0000", "0000", "0123", "0111", "0000", "0000"]),
    (FOUR, "emb:S I2 S2(cfimdb|sts|sst,quora)", ["0000", "0123", "0123", "2021", "2021", "2021"]),
]


def batch_of(task: str, rows: int, width: int) -> Batch:
    random = torch.Generator().manual_seed(len(task) * 100 + rows)
    lengths = torch.randint(1, width + 1, (rows,), generator=random)
    lengths[0] = width
    mask = torch.arange(width) < lengths[:, None]
    ids = torch.randint(1, 60, (rows, width), generator=random) * mask
    types = torch.randint(0, 2, (rows, width), generator=random) if task in ("quora", "sts") else None
    return Batch(ids, mask, types)


def batches_of(tasks: tuple[str, ...]) -> dict[str, Batch]:
    return {task: batch_of(task, 2 + i, 11 - 2 * i) for i, task in enumerate(tasks)}


def encoder_of(text: str, tasks: tuple[str, ...], adapter: str = "none") -> SharedEncoder:
    """The plan's encoder, its copies made different from one another."""
    torch.manual_seed(7)
    adapters = {}
    if adapter != "none":
        adapters = {task: ADAPTERS[adapter](SIZES, AdapterSizes(8, 2)) for task in tasks}
    encoder = SharedEncoder(BertModel(SIZES), SharingPlan.parse(text, tasks, 4), adapters)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return encoder


def separate_models(encoder: SharedEncoder, copies: list[str], tasks: tuple[str, ...]) -> dict[str, BertModel]:
    """A whole model for every task, put together from deep copies of what the plan's text says."""
    models = {}
    for i, task in enumerate(tasks):
        model = BertModel(SIZES)
        numbers = [int(level[i]) for level in copies]
        model.embeddings = copy.deepcopy(encoder.embeddings[numbers[0]])
        for depth in range(4):
            model.layers[depth] = copy.deepcopy(encoder.layers[depth][numbers[depth + 1]])
        model.pooler = copy.deepcopy(encoder.poolers[numbers[5]])
        models[task] = model
    return models


def loss_of(hidden: torch.Tensor, pooled: torch.Tensor, mask: torch.Tensor, weight: float) -> torch.Tensor:
    return weight * ((hidden * mask[..., None]).square().sum() + pooled.sum())


@pytest.mark.parametrize("tasks, text, copies", PLANS, ids=lambda value: value if isinstance(value, str) else "")
def test_one_pass_is_separate_models(tasks, text, copies):
    encoder = encoder_of(text, tasks)
    models = separate_models(encoder, copies, tasks)
    batches = batches_of(tasks)
    hidden = encoder(batches)
    assert set(hidden) == set(tasks)
    total = 0.0
    for weight, (task, batch) in enumerate(batches.items(), start=1):
        pooled = encoder.pool(task, hidden[task])
        total = total + loss_of(hidden[task], pooled, batch.attention_mask, weight)
        expected = models[task](batch.input_ids, batch.attention_mask, batch.token_type_ids)
        real = batch.attention_mask
        assert (hidden[task] - expected.last_hidden_state)[real].abs().max() <= 1e-5
        assert (pooled - expected.pooler_output).abs().max() <= 1e-5
        if expected.last_hidden_state.requires_grad:
            loss_of(expected.last_hidden_state, expected.pooler_output, real, weight).backward()
    assert encoder(batches)[tasks[0]].requires_grad == (not text.startswith("F4"))
    if text == "F4":
        return
    total.backward()
    for level, (name, modules) in enumerate(encoder.levels().items()):
        for number, module in enumerate(modules):
            users = [task for i, task in enumerate(tasks) if int(copies[level][i]) == number]
            assert users, "no copy is without a task"
            for key, parameter in module.named_parameters():
                theirs = [dict(part_of(models[task], level).named_parameters())[key].grad for task in users]
                expected = sum(grad for grad in theirs if grad is not None)
                if parameter.grad is None:
                    assert not parameter.requires_grad or (torch.as_tensor(expected) == 0).all(), (name, key)
                else:
                    torch.testing.assert_close(parameter.grad, expected, rtol=1e-4, atol=1e-4)


def part_of(model: BertModel, level: int) -> torch.nn.Module:
    return [model.embeddings, *model.layers, model.pooler][level]


@pytest.mark.parametrize("present", [("sts",), ("sst", "sts"), ("quora", "sst")])
@pytest.mark.parametrize("text", ["S4", "S2(sst,quora|sts) I2", "I1 S3"])
def test_a_batch_of_some_tasks(text, present):
    encoder = encoder_of(text, THREE).eval()
    batches = batches_of(THREE)
    everything, some = encoder(batches), encoder({task: batches[task] for task in present})
    assert tuple(some) and set(some) == set(present)
    for task in present:
        torch.testing.assert_close(some[task], everything[task], rtol=1e-5, atol=1e-5)


def test_levels_are_frozen_as_the_plan_says():
    encoder = encoder_of("F1 S1 F1 I1", THREE)
    trains = {name: all(p.requires_grad for p in m.parameters()) for name, m in encoder.levels().items()}
    frozen = {"embeddings": False, "layer 1": False, "layer 3": False}
    assert trains == {**frozen, "layer 2": True, "layer 4": True, "pooler": True}
    encoder.train()
    for name, modules in encoder.levels().items():
        assert all(m.training is (name not in frozen) for copy in modules for m in copy.modules())


def test_a_task_that_the_plan_does_not_have_is_named():
    encoder = encoder_of("S4", ("sst", "sts"))
    named = "the plan has no task quora; it has sst, sts"
    with pytest.raises(PlanError, match=named):
        encoder(batches_of(THREE))
    with pytest.raises(PlanError, match=named):
        encoder.pool("quora", torch.zeros(1, 2, SIZES.hidden_size))
    with pytest.raises(PlanError, match=named):
        encoder.task_encoder("quora")
    with pytest.raises(PlanError, match=named):
        SharedEncoder(BertModel(SIZES), encoder.plan, {"quora": ADAPTERS["lhuc"](SIZES, AdapterSizes(2))})


def test_a_plan_of_another_number_of_layers_is_named():
    with pytest.raises(PlanError, match=r"the plan has 2 layers, the encoder 4; .* takes num_layers"):
        SharedEncoder(BertModel(SIZES), SharingPlan.parse("hybrid-1", THREE), {})


def test_a_sequence_that_is_too_long_is_named():
    encoder = encoder_of("S4", ("sst", "sts"))
    ids = torch.ones(1, SIZES.positions + 1, dtype=torch.long)
    with pytest.raises(ValueError, match=r"sequence of \d+ tokens, but the encoder has"):
        encoder({"sst": Batch(ids, torch.ones_like(ids).bool(), None)})


def test_shared_layers_run_once():
    encoder = encoder_of("S2 S1(sst,quora|sts) I1", THREE)
    calls = []
    for modules in encoder.levels().values():
        for module in modules:
            for part in module.modules():
                if isinstance(part, torch.nn.Linear) and part.out_features == 24:
                    part.register_forward_hook(lambda part, args, out: calls.append(args[0].shape[:-1].numel()))
    batches = batches_of(THREE)
    encoder(batches)
    tokens = {task: batch.input_ids.numel() for task, batch in batches.items()}
    everything = sum(tokens.values())
    pair = tokens["sst"] + tokens["quora"]
    assert calls == [everything, everything, pair, tokens["sts"], *tokens.values()]


def test_words_are_looked_up_once_for_all_tasks_of_a_copy():
    """The gradient of a look-up is as large as the vocabulary."""
    encoder, calls = encoder_of("emb:S(sst,sts|quora) S4", THREE), []
    for i, embeddings in enumerate(encoder.embeddings):
        embeddings.word.register_forward_hook(lambda module, inputs, output, i=i: calls.append((i, inputs[0].numel())))
    batches = batches_of(THREE)
    encoder(batches)
    tokens = {task: batch.input_ids.numel() for task, batch in batches.items()}
    assert calls == [(0, tokens["sst"] + tokens["sts"]), (1, tokens["quora"])]


def test_copies_start_equal_and_are_of_their_own():
    base = BertModel(SIZES)
    encoder = SharedEncoder(base, SharingPlan.parse("S2 I2", THREE, 4), {})
    assert encoder.layers[0][0] is base.layers[0] and len(encoder.layers[0]) == 1
    first, second, third = encoder.layers[3]
    assert torch.equal(first.feed_forward_in.weight, third.feed_forward_in.weight)
    assert first.feed_forward_in.weight is not second.feed_forward_in.weight


@pytest.mark.parametrize("task", THREE)
def test_task_encoder_is_the_tasks_way_through_the_plan(task):
    encoder = encoder_of("S2(sst,quora|sts) I2", THREE).eval()
    batch = batches_of(THREE)[task]
    plain = encoder.task_encoder(task)
    expected = encoder({task: batch})[task]
    output = plain(batch.input_ids, batch.attention_mask, batch.token_type_ids)
    torch.testing.assert_close(output.last_hidden_state, expected)
    assert plain.layers[3] is encoder.layers[3][THREE.index(task)], "shared by identity"


def test_a_task_encoder_is_saved_with_the_tokenizer_of_its_checkpoint(tiny_encoder, tmp_path):
    base = BertModel.from_pretrained(tiny_encoder)
    plan = SharingPlan.parse("S1 I1", THREE, len(base.layers))
    SharedEncoder(base, plan, {}).task_encoder("sts").save_pretrained(tmp_path)
    assert (tmp_path / "tokenizer.json").exists()


def test_what_is_frozen_before_stays_frozen():
    config = BertConfig(vocab_size=50, hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8)
    base = BertModel(config)
    base.embeddings.requires_grad_(False)
    encoder = SharedEncoder(base, SharingPlan.parse("S1 I1", THREE, 2), {})
    trained = {name for name, p in encoder.named_parameters() if p.requires_grad}
    assert {name.split(".")[0] for name in trained} == {"layers", "poolers"}


def test_task_encoder_leaves_frozen_levels_without_dropout():
    encoder = encoder_of("F2 S2", THREE).train()
    encoder.task_encoder("sst")
    assert [layer.training for [layer] in encoder.layers] == [False, False, True, True]


def naive_layer(layer, hidden, mask, adapter, depth):
    """A BERT layer with the adapter's places written out, on one task's rows."""

    def changed(place, x):
        hook = getattr(adapter, place, None)
        return x if hook is None else hook(depth, x)

    def term(place, x):
        hook = getattr(adapter, place, None)
        return 0 if hook is None else hook(depth, x, mask)

    attended = changed("after_attention", layer.attention_output(layer.attention(hidden, mask)))
    attended = layer.attention_norm(hidden + attended)
    feed_forward = layer.feed_forward_out(torch.nn.functional.gelu(layer.feed_forward_in(attended)))
    feed_forward = changed("after_feed_forward", feed_forward)
    residual = attended + feed_forward + term("parallel", hidden) + term("parallel_feed_forward", attended)
    return changed("after_layer", layer.output_norm(residual))


@pytest.mark.parametrize("text", ["S4", "S2(sst,quora|sts) I2", "F4", "I2 S2"])
@pytest.mark.parametrize("adapter", ["pal", "low_rank", "houlsby", "houlsby_pals", "lhuc"])
def test_adapters_join_where_they_should(adapter, text):
    encoder = encoder_of(text, THREE, adapter).eval()
    hidden = encoder(batches_of(THREE))
    for task, batch in batches_of(THREE).items():
        plain = encoder.task_encoder(task)
        state = plain.embeddings(batch.input_ids, batch.token_type_ids)
        for depth, layer in enumerate(plain.layers):
            state = naive_layer(layer, state, batch.attention_mask[:, None, None, :], encoder.adapters[task], depth)
        torch.testing.assert_close(hidden[task], state, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "text, adapter, depth",
    [("F4", "none", 4), ("F4", "lhuc", 0), ("F1 S3", "none", 1), ("S1 F3", "none", 0), ("emb:S F4", "none", 0),
     ("emb:F S4", "none", 0)],
)  # fmt: skip
def test_depth_of_the_frozen_part(text, adapter, depth):
    """The layers whose states are the same in every step, as embeddings, they and all below are frozen."""
    assert encoder_of(text, THREE, adapter).frozen_depth == depth
