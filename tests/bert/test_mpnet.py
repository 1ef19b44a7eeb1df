"""MPNet's relative positions: against transformers, under sharing plans, in training and out of it."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from mtbert.bert import Batch, BertConfig, BertModel, init_empty_weights
from mtbert.bert.cpu_ops import attend
from mtbert.bert.hf_checkpoints import hf_name
from mtbert.bert.relative_positions import biased_mask, relative_buckets
from mtbert.config import RunConfig
from mtbert.multitask.export import ExportError, export_task
from mtbert.multitask.model import MultitaskBert, encoder_config, meta_model
from mtbert.sharing import SharedEncoder, SharingPlan
from mtbert.sharing.adapters import ADAPTERS, AdapterSizes

SIZES = BertConfig(
    model_type="mpnet", vocab_size=60, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=24,
    max_position_embeddings=514, type_vocab_size=0, pad_token_id=1, layer_norm_eps=1e-5, initializer_range=0.2,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
TASKS = ("sst", "quora", "sts")
TEXTS = ["a bright story about a violin", "the dull kitchen", "a garden in winter and a lantern"]


def model_of(config: BertConfig = SIZES) -> BertModel:
    """Random weights; the table of relative positions has large values, so that none is without effect."""
    torch.manual_seed(3)
    model = BertModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        model.embeddings.relative.weight.normal_()
    return model


def batch_of(lengths: list[int], seed: int = 1) -> Batch:
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.randint(2, 60, mask.shape, generator=torch.Generator().manual_seed(seed))
    return Batch(ids.where(mask, 1), mask, None)


@pytest.fixture
def folder(mpnet_tokenizer, tmp_path) -> Path:
    """A small MPNet with its tokenizer."""
    folder = Path(shutil.copytree(mpnet_tokenizer, tmp_path / "mpnet"))
    model_of(replace(SIZES, vocab_size=30_527)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("T", [1, 2, 17, 600])
def test_buckets_are_those_of_transformers(T):
    positions = torch.arange(T)
    expected = MPNetEncoder.relative_position_bucket(positions - positions[:, None])
    assert torch.equal(relative_buckets(T, torch.device("cpu")), expected)


@pytest.mark.parametrize("lengths", [[512, 300], [512], [140, 3, 77]], ids=str)
def test_long_texts_equal_transformers_in_states_and_gradients(tmp_path, lengths):
    ours = model_of()
    ours.save_pretrained(tmp_path)
    theirs = transformers.MPNetModel.from_pretrained(tmp_path).eval()
    assert type(transformers.AutoModel.from_pretrained(tmp_path)) is transformers.MPNetModel
    batch = batch_of(lengths)
    tokens = batch.attention_mask
    weights = torch.randn(*tokens.shape, 16) * tokens.unsqueeze(-1) / tokens.sum()
    states = []
    for model in (ours, theirs):
        output = model(batch.input_ids, batch.attention_mask)
        ((output.last_hidden_state * weights).sum() + output.pooler_output.mean()).backward()
        states.append(output.last_hidden_state[tokens])
    assert (states[0] - states[1]).abs().max() <= 1e-5
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, parameter in ours.named_parameters():
        expected = gradients.pop(hf_name(name, "mpnet"))
        assert (parameter.grad - expected).abs().max() <= 1e-5, name
    assert not gradients
    assert ours.embeddings.relative.weight.grad.any()


def test_no_mask_is_a_mask_of_ones():
    model, batch = model_of(), batch_of([9, 9])
    with torch.no_grad():
        states = [model(batch.input_ids, mask).last_hidden_state for mask in (None, batch.attention_mask)]
    torch.testing.assert_close(*states)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout", [0.0, 1e-9])  # the second is rounded to none, but takes the other way through
def test_numbers_are_added_to_the_scores(dtype, dropout):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 5, 4, dtype=dtype, requires_grad=True) for _ in range(3))
    mask = torch.arange(5) < torch.tensor([5, 2])[:, None]
    bias = torch.randn(3, 5, 5, requires_grad=True)
    found = attend(q, k, v, biased_mask(bias, mask[:, None, None, :]), dropout)
    scores = q.double() @ k.double().mT / 2 + bias
    weights = scores.masked_fill(~mask[:, None, None, :], -torch.inf).softmax(-1)
    expected = weights @ v.double()
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)
    [ours] = torch.autograd.grad(found.double().square().sum(), bias)
    [theirs] = torch.autograd.grad(expected.square().sum(), bias)
    assert (ours - theirs).abs().max() < 2 * tolerance * theirs.abs().max()


@pytest.mark.parametrize("plan", ["1-bert", "3-bert", "S2 I1", "F1 S1 I1", "emb:I S3", "emb:F S3", "S3(sst,quora|sts)"])
def test_a_plan_gives_what_each_tasks_own_encoder_gives(plan):
    """Batches of different lengths together; every copy of the table is another one."""
    encoder = SharedEncoder(model_of(), SharingPlan.parse(plan, TASKS, 3), {})
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    batches = {"sst": batch_of([9, 4, 2], 1), "quora": batch_of([30, 21], 2), "sts": batch_of([5], 3)}
    states = encoder(batches)
    sum(hidden.square().sum() for hidden in states.values()).backward()
    gradients = {name: parameter.grad for name, parameter in encoder.named_parameters()}
    encoder.zero_grad()
    alone = 0.0
    for task, batch in batches.items():
        expected = encoder.task_encoder(task)(batch.input_ids, batch.attention_mask).last_hidden_state
        torch.testing.assert_close(states[task], expected)
        alone = alone + expected.square().sum()
    alone.backward()
    for name, parameter in encoder.named_parameters():
        if parameter.requires_grad and "pooler" not in name:
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-4)
    tables = [name for name in gradients if "relative" in name]
    assert len(tables) == len(encoder.plan.embeddings.groups)
    assert all((gradients[name] is None) == (encoder.plan.embeddings.mode == "F") for name in tables)


def test_what_is_known_of_frozen_layers_gives_the_same():
    encoder = SharedEncoder(model_of(), SharingPlan.parse("F2 S1", TASKS, 3), {}).eval()
    batches = {"sst": batch_of([9, 4]), "sts": batch_of([12])}
    with torch.no_grad():
        known = encoder.prefix_states({"sst": batches["sst"]})
        assert torch.equal(encoder(batches, known)["sst"], encoder(batches)["sst"])


def test_pals_see_no_relative_positions():
    """Their attention has heads of its own."""
    adapters = {task: ADAPTERS["pal"](SIZES, AdapterSizes(9, 3)) for task in TASKS}
    encoder = SharedEncoder(model_of(), SharingPlan.parse("S2 I1", TASKS, 3), adapters).eval()
    batches = {"sst": batch_of([9, 4]), "quora": batch_of([12]), "sts": batch_of([3, 2])}
    with torch.no_grad():
        together = encoder(batches)
        for task, batch in batches.items():
            torch.testing.assert_close(encoder({task: batch})[task], together[task])
            mask = batch.attention_mask[:, None, None, :]
            hidden = encoder.embeddings[0](batch.input_ids)
            for depth, layer in enumerate(encoder.task_encoder(task).layers):
                biased = encoder.embeddings[0].attention_mask(mask, mask.size(-1))
                attended = layer.attention_norm(hidden + layer.attention_output(layer.attention(hidden, biased)))
                fed = layer.feed_forward_out(torch.nn.functional.gelu(layer.feed_forward_in(attended)))
                hidden = layer.output_norm(attended + fed + adapters[task].parallel(depth, hidden, mask))
            torch.testing.assert_close(hidden, together[task])


def test_nothing_in_the_forward_pass_needs_numbers():
    """Shapes alone are enough on torch's device meta, so on a GPU nothing waits for the device."""
    with torch.device("meta"):
        model = BertModel(SIZES)
        ids = torch.zeros(2, 40, dtype=torch.long)
        mask = torch.ones(2, 40, dtype=torch.bool)
        assert model(ids, mask).last_hidden_state.shape == (2, 40, 16)


def test_a_run_is_trained_saved_used_and_exported(folder, course_data, run, tmp_path):
    config = RunConfig(
        corpus="course", encoder=str(folder), tasks=TASKS, plan="S2 I1", adapter="pal", adapter_size=8, adapter_heads=2,
        scheme="unified", epochs=1, steps_per_epoch=3, batch_size=4, max_length=64, learning_rate=1e-3,
    )  # fmt: skip
    trained = run(config).model
    start = BertModel.from_pretrained(folder).embeddings.relative.weight
    assert not torch.equal(trained.encoder.embeddings[0].relative.weight, start)
    trained.save(tmp_path / "model")
    loaded = MultitaskBert.load(tmp_path / "model")
    assert torch.equal(loaded.encoder.embeddings[0].relative.weight, trained.encoder.embeddings[0].relative.weight)
    pairs = list(zip(TEXTS, reversed(TEXTS), strict=True))
    assert loaded.predict(pairs, "sts").equals(trained.eval().predict(pairs, "sts"))
    assert meta_model(config).encoder.embeddings[0].relative.weight.is_meta

    plain = run(config.but(plan="1-bert", adapter="none")).model.eval()
    assert export_task(plain, "quora", tmp_path / "exported", encoder_only=True) == "MPNetModel"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    batch = tokenizer(TEXTS, TEXTS[::-1], padding=True, return_tensors="pt")
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "exported").eval()
    with torch.no_grad():
        expected = theirs(batch["input_ids"], batch["attention_mask"]).last_hidden_state
        mine = plain.encoder.task_encoder("quora")(batch["input_ids"], batch["attention_mask"]).last_hidden_state
    tokens = batch["attention_mask"].bool()
    torch.testing.assert_close(mine[tokens], expected[tokens], atol=1e-5, rtol=1e-5)


def test_a_head_on_mpnet_is_not_left_out_unasked(folder, tmp_path):
    model = MultitaskBert(RunConfig(encoder=str(folder), tasks=TASKS, pooling="pooler", max_length=64))
    with pytest.raises(ExportError, match=r"quora: the encoder is a mpnet, not a bert\. .*encoder_only=True"):
        export_task(model, "quora", tmp_path / "exported")


def test_a_plain_plan_starts_as_the_plain_encoder(folder):
    config = RunConfig(encoder=str(folder), tasks=TASKS, max_length=64)
    model = MultitaskBert(config).eval()
    plain = BertModel.from_pretrained(folder)
    batch = batch_of([7, 5])
    with torch.no_grad():
        states = model.encoder({"sst": batch})["sst"]
        expected = plain(batch.input_ids, batch.attention_mask).last_hidden_state
    assert torch.equal(states, expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("T", [40, 77])  # rows that start aligned and not
def test_a_gpu_gives_states_and_gradients_of_the_cpu(T):
    batch = batch_of([T, T // 2, 3])
    found = {}
    for place, dtype in (("cpu", torch.float32), ("cuda", torch.float32), ("cuda", torch.bfloat16)):
        model = model_of(replace(SIZES, hidden_size=64)).to(place)
        own = batch.to(torch.device(place))
        with torch.autocast(place, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            hidden = model(own.input_ids, own.attention_mask).last_hidden_state
        states = hidden.float()[own.attention_mask]
        states.square().mean().backward()
        gradients = [model.embeddings.relative.weight.grad, model.layers[0].attention.query.weight.grad]
        found[place, dtype] = [tensor.detach().cpu() for tensor in (states, *gradients)]
    expected = found.pop(("cpu", torch.float32))
    for (_, dtype), tensors in found.items():
        tolerance = 1e-4 if dtype == torch.float32 else 0.1
        for ours, theirs in zip(tensors, expected, strict=True):
            assert (ours - theirs).norm() <= tolerance * theirs.norm()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_forward_and_backward_fit_into_a_cuda_graph():
    """Nothing in them waits for the device, or copies from the host."""
    model = model_of(replace(SIZES, hidden_size=64)).cuda()
    batch = batch_of([40, 12]).to(torch.device("cuda"))

    def step() -> None:
        model.zero_grad(set_to_none=False)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            hidden = model(batch.input_ids, batch.attention_mask).last_hidden_state
        hidden.float().square().mean().backward()

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    expected = model.embeddings.relative.weight.grad.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    model.embeddings.relative.weight.grad.zero_()
    graph.replay()
    torch.testing.assert_close(model.embeddings.relative.weight.grad, expected, rtol=0.05, atol=1e-4)


def test_its_sizes_are_known_without_its_files():
    """109.5 million parameters with the heads, as the stored runs have."""
    config = RunConfig.from_params({"encoder": "mpnet", "tasks": list(TASKS), "pooling": "mean"})
    with init_empty_weights():
        encoder = BertModel(encoder_config(config))
    assert sum(weight.numel() for weight in encoder.parameters()) == 109_486_464
