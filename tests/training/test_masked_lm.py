"""Masked language modelling: what is masked, the head against transformers', training, resuming."""

import copy
import itertools
import logging
import random

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from mtbert import runtime
from mtbert.batches import train_batches
from mtbert.bert import BertConfig, BertModel, checkpoint_sizes
from mtbert.bert.hub import CheckpointError
from mtbert.config import RunConfig
from mtbert.data import PosError, pos_tags
from mtbert.data.tokens import TokenizedTable, tokenize_texts
from mtbert.optim import AdamW
from mtbert.training import loop
from mtbert.training import masked_lm as module
from mtbert.training.checkpoint import TrainingError
from mtbert.training.masked_lm import MaskedLanguageHead, mask_tokens, pretrain, pretraining_texts

MASK, VOCABULARY = 103, 30522
SETTINGS = RunConfig(tasks=("sst",), pretrain_epochs=2, pretrain_learning_rate=1e-3, batch_size=8, seed=5)


def corpus(n: int) -> list[str]:
    draw = random.Random(1)
    adjectives, things = ("bright", "dark", "young", "strange"), ("house", "river", "garden", "kitchen")
    return [" and ".join(f"a {draw.choice(adjectives)} {draw.choice(things)}" for _ in range(draw.randint(1, 5)))
            for _ in range(n)]  # fmt: skip


@pytest.fixture
def texts(tiny_encoder) -> TokenizedTable:
    return tokenize_texts(corpus(40), tiny_encoder, max_length=16)


@pytest.fixture
def encoder(tiny_encoder) -> BertModel:
    return BertModel.from_pretrained(tiny_encoder)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def within_three_sigma(count: int, n: int, p: float) -> bool:
    return abs(count - n * p) <= 3 * (n * p * (1 - p)) ** 0.5


@pytest.mark.parametrize("rate", [0.15, 0.4])
def test_shares_of_what_is_masked(rate):
    ids = torch.randint(1000, 2000, (300, 100), generator=generator())
    can = torch.rand(ids.shape, generator=generator(1)) < 0.8
    corrupted, targets = mask_tokens(ids, can, MASK, VOCABULARY, rate, generator(2))
    chosen = targets != -100
    assert not chosen[~can].any()
    assert torch.equal(corrupted[~chosen], ids[~chosen])
    assert torch.equal(targets[chosen], ids[chosen])
    n = int(chosen.sum())
    assert within_three_sigma(n, int(can.sum()), rate)
    masked, kept = (corrupted[chosen] == MASK), (corrupted[chosen] == ids[chosen])
    assert within_three_sigma(int(masked.sum()), n, 0.8)
    assert within_three_sigma(int(kept.sum()), n, 0.1)
    others = corrupted[chosen][~masked & ~kept]
    assert others.min() < 3000 and others.max() > 27000, "random tokens come from the whole vocabulary"
    assert others.min() >= 0 and others.max() < VOCABULARY


def test_something_is_predicted_in_every_batch():
    ids, can = torch.full((2, 3), 1500), torch.tensor([[False, True, False], [False, True, True]])
    places = set()
    for seed in range(60):
        _, targets = mask_tokens(ids, can, MASK, VOCABULARY, 1e-9, generator(seed))
        assert (targets != -100).sum() == 1
        places.add(int((targets != -100).flatten().nonzero()))
    assert places == {1, 4, 5}
    with pytest.raises(ValueError, match="no token of the batch can be masked"):
        mask_tokens(ids, can & False, MASK, VOCABULARY)


@pytest.fixture
def reference(shake) -> transformers.BertForMaskedLM:
    """transformers' model and head with every parameter away from its initial value."""
    torch.manual_seed(0)
    shape = dict(hidden_size=48, num_attention_heads=3, num_hidden_layers=2, intermediate_size=100, vocab_size=301)
    return shake(transformers.BertForMaskedLM(transformers.BertConfig(**shape))).eval()


def test_logits_loss_and_gradients_equal_those_of_transformers(reference, tmp_path):
    reference.save_pretrained(tmp_path)
    encoder = BertModel.from_pretrained(tmp_path)
    head, theirs = MaskedLanguageHead(encoder), reference.cls.predictions
    head.dense.load_state_dict(theirs.transform.dense.state_dict())
    head.norm.load_state_dict(theirs.transform.LayerNorm.state_dict())
    with torch.no_grad():
        head.decoder.bias.copy_(theirs.bias)
    ids = torch.randint(5, 301, (4, 12), generator=generator())
    mask = torch.arange(12) < torch.tensor([12, 7, 9, 3])[:, None]
    corrupted, targets = mask_tokens(ids, mask, 4, 301, 0.3, generator(1))
    expected = reference(corrupted, attention_mask=mask.long(), labels=targets)
    hidden, chosen = encoder(corrupted, mask).last_hidden_state, targets != -100
    logits = head(hidden[chosen])
    assert (logits - expected.logits[chosen]).abs().max() <= 1e-5
    loss = F.cross_entropy(logits, targets[chosen])
    assert loss.item() == pytest.approx(expected.loss.item(), rel=1e-6)
    loss.backward()
    expected.loss.backward()
    for ours, gradient in (
        (encoder.embeddings.word.weight, reference.bert.embeddings.word_embeddings.weight.grad),
        (head.dense.weight, theirs.transform.dense.weight.grad),
        (head.decoder.bias, theirs.bias.grad),
    ):
        assert (ours.grad - gradient).abs().max() <= 1e-4 * gradient.abs().max()


def test_loss_falls_and_the_curve_tells(encoder, tiny_encoder):
    texts = tokenize_texts(corpus(120), tiny_encoder)
    curve = pretrain(encoder, texts, SETTINGS.but(pretrain_epochs=12, pretrain_learning_rate=3e-3, batch_size=16))
    assert list(curve) == ["step", "epoch", "tokens", "loss", "accuracy"]
    assert curve["loss"].iloc[0] > 8  # log 5000 = 8.5
    assert curve["loss"].iloc[-8:].mean() < 3
    assert curve["accuracy"].iloc[-8:].mean() > 0.3 > curve["accuracy"].iloc[0]
    assert curve["step"].is_monotonic_increasing and curve["step"].iloc[-1] == 12 * 8
    assert curve["epoch"].iloc[-1] == 12
    assert curve["tokens"].iloc[-1] == 12 * texts.lengths.sum()


def weights(encoder: BertModel) -> dict[str, Tensor]:
    return copy.deepcopy(encoder.state_dict())


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def test_pretraining_is_a_function_of_the_seed_and_leaves_the_generator_alone(encoder, texts):
    start, results = copy.deepcopy(encoder), []
    for before, seed in ((1, 5), (2, 5), (2, 6)):
        again = copy.deepcopy(start)
        torch.manual_seed(before)
        state = torch.get_rng_state()
        pretrain(again, texts, SETTINGS.but(seed=seed))
        assert torch.equal(torch.get_rng_state(), state)
        results.append(weights(again))
    assert same(results[0], results[1]) and not same(results[1], results[2])


def test_a_point_is_the_mean_of_the_steps_since_the_last_one(encoder, texts, monkeypatch):
    """Each step says the sum of its losses, the masked tokens it got right, and their number."""
    monkeypatch.setattr(module, "POINTS", 2)  # in each of two epochs of five steps
    step, counts = module._Pretraining.step, []
    monkeypatch.setattr(module._Pretraining, "step", lambda self, *a: counts.append(step(self, *a)) or counts[-1])
    curve = pretrain(encoder, texts, SETTINGS)
    assert curve["step"].tolist() == [3, 5, 8, 10]
    losses, right, masked = np.add.reduceat(np.array(counts), [0, 3, 5, 8]).T
    assert curve["loss"].tolist() == pytest.approx(losses / masked)
    assert curve["accuracy"].tolist() == pytest.approx(right / masked)


def test_the_weights_are_those_of_a_plain_loop(encoder, texts):
    """AdamW with decay 0.01, a warm-up over 2 of 20 steps, then down to 0; dropout; batches of the larger size, 4."""
    config = SETTINGS.but(tasks=("sst", "quora"), batch_size={"sst": 2, "quora": 4})
    plain, steps = copy.deepcopy(encoder), 20
    torch.manual_seed(config.seed)
    head = MaskedLanguageHead(plain)
    parameters = [*plain.parameters(), head.dense.weight, head.dense.bias, *head.norm.parameters(), head.decoder.bias]
    optimizer = AdamW(parameters, lr=1e-3, weight_decay=0.01)
    schedule = LambdaLR(optimizer, lambda step: (step + 1) / 3 if step < 2 else 1 - (step - 2) / 18)
    batches = [rows for epoch in range(2) for rows in train_batches(texts.lengths, 4, config.seed, epoch)]
    plain.train()
    for step, rows in enumerate(batches):
        batch = texts.batch(rows)
        special = torch.isin(batch.input_ids, torch.tensor([texts.cls, texts.sep, texts.pad, texts.mask]))
        seed = int(np.random.SeedSequence([config.seed, step]).generate_state(1)[0])
        can_be_masked = batch.attention_mask & ~special
        corrupted, targets = mask_tokens(
            batch.input_ids, can_be_masked, texts.mask, plain.config.vocab_size, 0.15, generator(seed)
        )
        hidden = plain(corrupted, batch.attention_mask).last_hidden_state
        loss = F.cross_entropy(head(hidden[targets != -100]), targets[targets != -100])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    curve = pretrain(encoder, texts, config)
    assert curve["step"].tolist() == list(range(1, steps + 1))
    assert curve["loss"].iloc[-1] == pytest.approx(loss.item())
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(encoder.state_dict()[name], tensor, atol=1e-6, rtol=0)


def test_special_tokens_and_padding_are_never_predicted(encoder, tiny_encoder, monkeypatch):
    texts = tokenize_texts([*corpus(8), "[SEP] a [CLS] written [MASK] out [PAD]", "[MASK]"], tiny_encoder, max_length=9)
    seen = []

    def watch(ids: Tensor, can: Tensor, *rest) -> tuple[Tensor, Tensor]:
        assert torch.isin(ids[~can], torch.tensor([texts.cls, texts.sep, texts.pad, texts.mask])).all()
        seen.append(ids[can])
        return mask_tokens(ids, can, *rest)

    monkeypatch.setattr(module, "mask_tokens", watch)
    pretrain(encoder, texts, SETTINGS.but(batch_size=1))
    assert len(seen) == 2 * 9, "the text that is nothing but a special token is left out"
    assert not torch.isin(torch.cat(seen), torch.tensor([texts.cls, texts.sep, texts.pad, texts.mask])).any()


class Interrupted(Exception):
    pass


@pytest.fixture
def interrupt(monkeypatch):
    """interrupt(n): of the steps from now on n are done and the next is not begun."""
    step = module._Pretraining.step

    def after(steps: int | None) -> None:
        done = []

        def counted(self, *args) -> tuple:
            if len(done) == steps:
                raise Interrupted
            done.append(1)
            return step(self, *args)

        monkeypatch.setattr(module._Pretraining, "step", counted)

    return after


@pytest.mark.usefixtures("saved_each_step")
@pytest.mark.parametrize("steps", [1, 5, 8])  # 5 steps are an epoch
def test_an_interrupted_run_goes_on_bit_for_bit(encoder, texts, tmp_path, interrupt, steps):
    start, whole, path = copy.deepcopy(encoder), copy.deepcopy(encoder), tmp_path / "pretraining.pt"
    curve = pretrain(whole, texts, SETTINGS)
    interrupt(steps)
    with pytest.raises(Interrupted):
        pretrain(encoder, texts, SETTINGS, checkpoint=path)
    interrupt(10 - steps)  # not one step more is needed
    resumed = copy.deepcopy(start)
    pd.testing.assert_frame_equal(pretrain(resumed, texts, SETTINGS, checkpoint=path), curve)
    assert same(weights(resumed), weights(whole))


def test_a_finished_run_is_taken_from_its_file(encoder, texts, tmp_path, interrupt):
    start, path = copy.deepcopy(encoder), tmp_path / "folder" / "pretraining.pt"
    curve = pretrain(encoder, texts, SETTINGS, checkpoint=path)
    interrupt(0)
    again = copy.deepcopy(start)
    taken = pretrain(again, texts, SETTINGS, checkpoint=path)
    pd.testing.assert_frame_equal(taken, curve)
    assert taken.attrs == curve.attrs and taken.attrs["seconds"] > 0, "the time is that of training"
    assert same(weights(again), weights(encoder))
    assert [file.name for file in path.parent.iterdir()] == ["pretraining.pt"]


@pytest.mark.parametrize("other", ["seed", "encoder", "texts"])
def test_a_file_of_another_run_is_passed_over(encoder, tiny_encoder, texts, tmp_path, caplog, other):
    start, path, settings = copy.deepcopy(encoder), tmp_path / "pretraining.pt", SETTINGS
    pretrain(encoder, texts, SETTINGS, checkpoint=path)
    if other == "seed":
        settings = SETTINGS.but(seed=6)
    elif other == "encoder":
        start = copy.deepcopy(encoder)
    else:
        texts = tokenize_texts(corpus(41), tiny_encoder, max_length=16)
    expected, again = copy.deepcopy(start), copy.deepcopy(start)
    curve = pretrain(expected, texts, settings)
    with caplog.at_level(logging.WARNING, logger="mtbert"):
        pd.testing.assert_frame_equal(pretrain(again, texts, settings, checkpoint=path), curve)
    assert same(weights(again), weights(expected))
    assert "belongs to another run" in caplog.text


def test_the_encoder_keeps_its_mode_and_what_is_frozen(encoder, texts):
    encoder.layers[0].requires_grad_(False)
    before = weights(encoder)
    pretrain(encoder, texts, SETTINGS)
    assert not encoder.training
    changed = {name for name, tensor in encoder.state_dict().items() if not torch.equal(tensor, before[name])}
    assert not any(name.startswith(("layers.0.", "pooler.")) for name in changed)
    assert {"embeddings.word.weight", "layers.1.attention.query.weight"} <= changed


def test_bf16_trains_fp32_weights(encoder, texts):
    other = copy.deepcopy(encoder)
    curve = pretrain(encoder, texts, SETTINGS.but(precision="bf16"))
    in_fp32 = pretrain(other, texts, SETTINGS)
    assert curve["loss"].to_numpy() == pytest.approx(in_fp32["loss"].to_numpy(), rel=0.02)
    assert not np.array_equal(curve["loss"], in_fp32["loss"])
    assert encoder.pooler.weight.dtype == torch.float32


def test_freed_memory_is_returned(encoder, texts, monkeypatch):
    """The number of masked tokens differs from step to step, and blocks of many sizes leave gaps."""
    returned, sizes = [], itertools.count(0, runtime.SLACK_MIB)
    monkeypatch.setattr(runtime, "resident_mib", lambda: next(sizes))
    monkeypatch.setattr(runtime, "release_freed_memory", lambda: returned.append(True))
    pretrain(encoder, texts, SETTINGS)
    assert returned


@pytest.mark.parametrize("model_type", ["roberta", "distilbert"])
def test_other_encoders_are_pretrained_too(texts, model_type):
    shape = dict(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=48)
    types = 0 if model_type == "distilbert" else 1
    encoder = BertModel(BertConfig(**shape, model_type=model_type, type_vocab_size=types))
    curve = pretrain(encoder, texts, SETTINGS)
    assert curve["loss"].iloc[-1] < curve["loss"].iloc[0]


def test_a_loss_that_is_not_finite_is_named(encoder, texts):
    with torch.no_grad():
        encoder.layers[0].feed_forward_in.bias[0] = torch.nan
    with pytest.raises(TrainingError, match=r"pretraining is nan at step 1 of 10, .*lower pretrain_learning_rate"):
        pretrain(encoder, texts, SETTINGS)


@pytest.fixture
def no_pretraining(monkeypatch):
    """A test fails where pretraining begins."""
    monkeypatch.setattr(loop, "pretrain", lambda *args, **kwargs: pytest.fail("pretrained"))


@pytest.mark.usefixtures("no_pretraining")
def test_what_does_not_fit_the_encoder_is_said_before_pretraining(tiny_config, run):
    with pytest.raises(ValueError, match="4 layers up to here"):
        run(tiny_config.but(pretrain="before", plan="S2 I2"))


def _without_mask(texts, encoder, max_length):
    tokens = tokenize_texts(texts, encoder, max_length)
    tokens.mask = None
    return tokens


def _with_another_mask(texts, encoder, max_length):
    """A token that transformers adds where vocab.txt has none for masks: the encoder does not have it."""
    tokens = tokenize_texts(texts, encoder, max_length)
    tokens.mask = checkpoint_sizes(encoder).vocab_size
    return tokens


@pytest.mark.usefixtures("no_pretraining")
@pytest.mark.parametrize(
    ("stage", "name", "replacement", "message"),
    [
        ("before", "pretraining_texts", lambda tables: ["[SEP]"], "no text to pretrain on"),
        ("after", "tokenize_texts", _without_mask, "no mask token"),
        ("after", "tokenize_texts", _with_another_mask, r"its mask token is (\d+), but the encoder has \1 tokens"),
    ],
)
def test_what_cannot_be_pretrained_on_is_said_before_any_training(
    tiny_config, run, monkeypatch, stage, name, replacement, message
):
    monkeypatch.setattr(loop, name, replacement)
    monkeypatch.setattr(loop, "Trainer", lambda *args, **kwargs: pytest.fail("trained"))
    with pytest.raises((TrainingError, CheckpointError), match=message):
        run(tiny_config.but(pretrain=stage))


@pytest.mark.usefixtures("no_pretraining")
def test_a_missing_tagger_is_said_before_pretraining(tiny_config, run, monkeypatch):
    def missing():
        raise PosError("no NLTK data")

    monkeypatch.setattr(pos_tags, "_tagger", missing)
    with pytest.raises(PosError, match="no NLTK data"):
        run(tiny_config.but(pretrain="before", pos_features=True))


def test_texts_of_the_tasks():
    tables = {
        "quora": pd.DataFrame({"sentence1": ["a", "b", "a"], "sentence2": ["c", "a", "d"]}),
        "sst": pd.DataFrame({"sentence": ["e", "b", "f"]}),
    }
    assert pretraining_texts(tables) == ["a", "b", "e", "f"]
