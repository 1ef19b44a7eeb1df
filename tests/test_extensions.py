"""An adapter, a gradient method, a sampler, a metric, a pair feature: each is added by one file outside the library."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest
import torch
from torch import nn

from mtbert.data import TASKS
from mtbert.data.tasks import Task
from mtbert.gradients.methods import PROJECTIONS, WEIGHTS
from mtbert.metrics import OWN_METRICS
from mtbert.multitask import MultitaskBert
from mtbert.pairs import PAIR_FEATURES
from mtbert.samplers import SAMPLERS
from mtbert.sharing import ADAPTERS, Adapter

REGISTRIES = (ADAPTERS, WEIGHTS, PROJECTIONS, SAMPLERS, OWN_METRICS, PAIR_FEATURES, TASKS)
ONE_FILE = '''
from torch import nn, zeros

from mtbert.gradients.methods import PROJECTIONS, WEIGHTS
from mtbert.metrics import OWN_METRICS
from mtbert.pairs import PAIR_FEATURES
from mtbert.samplers import SAMPLERS
from mtbert.sharing import ADAPTERS, Adapter

calls = set()


class Shift(Adapter):
    """The feed-forward block's output plus a vector for each layer."""

    def __init__(self, encoder, sizes):
        super().__init__(encoder, sizes)
        d, L = encoder.hidden_size, encoder.num_hidden_layers
        self.shifts = nn.ParameterList(zeros(d) for _ in range(L))

    def after_feed_forward(self, depth, x):
        calls.add("adapter")
        return x + self.shifts[depth]


def equal_norms(gram, generator, *, power=1.0):
    calls.add("weights")
    return gram.diagonal().clamp_min(1e-12) ** (-power / 2)


def no_constraint(g, M):
    calls.add("projection")
    return g, zeros(len(M))


def cubes(sizes, epoch, epochs):
    calls.add("sampler")
    return sizes**3.0


def hits(predicted, labels):
    calls.add("metric")
    return (predicted == labels).sum(-1)


def largest(h1, h2):
    calls.add("pair feature")
    return h1.maximum(h2)


ADAPTERS["shift"] = Shift
WEIGHTS["equal_norms"] = equal_norms
PROJECTIONS["no_constraint"] = no_constraint
SAMPLERS["cubes"] = cubes
OWN_METRICS["hits"] = hits
PAIR_FEATURES["largest"] = largest
'''


@pytest.fixture
def own(tmp_path) -> Iterator[ModuleType]:
    """The file, imported as a user's; afterwards nothing of it is registered."""
    before = [dict(registry) for registry in REGISTRIES]
    path = tmp_path / "own_methods.py"
    path.write_text(ONE_FILE)
    spec = importlib.util.spec_from_file_location("own_methods", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    for registry, content in zip(REGISTRIES, before, strict=True):
        registry.clear()
        registry.update(content)


def duplicates(folder: Path) -> Task:
    """A task with the metric of the file."""
    columns = dict(sentence_columns=("sentence1", "sentence2"), label_column="is_duplicate", test_split="test-student")
    return Task(name="mine", files="quora-{split}.csv", kind="binary", metric="hits", folder=folder, **columns)


def test_one_file_adds_one_of_each(own, run, tiny_config, course_data, tmp_path):
    TASKS["mine"] = duplicates(course_data)
    config = tiny_config.but(
        tasks=["sst", "mine"], scheme="unified", epochs=1, steps_per_epoch=2, adapter="shift", pairs="concat+largest",
        gradients="equal_norms", gradient_options={"power": 0.5},
    )  # fmt: skip
    trained = run(config)
    assert own.calls == {"adapter", "weights", "metric", "pair feature"}
    assert config.own_code.keys() == {"adapter shift", "gradients equal_norms", "pairs largest", "metric hits"}
    rows = trained.predictions[trained.predictions["task"] == "mine"]
    [score] = trained.curve["dev_mine"]
    assert score == (rows["predicted"] == rows["label"]).sum()
    assert trained.model.state_dict()["encoder.adapters.mine.shifts.1"].any(), "the adapter was trained"
    trained.model.save(tmp_path / "model")
    again = MultitaskBert.load(tmp_path / "model")
    pairs = [("a bright kitchen", "a dull kitchen")]
    assert again.predict(pairs, "mine").equals(trained.model.eval().predict(pairs, "mine"))


def test_one_file_adds_a_projection_and_a_sampler(own, run, tiny_config):
    fields = dict(tasks=["sst", "sts"], epochs=1, steps_per_epoch=4, sampling="cubes", memory_size=8, memory_batch=4)
    run(tiny_config.but(**fields, gradients="no_constraint"))
    assert own.calls == {"projection", "sampler"}


class Signed(Adapter):
    """A fixed direction, which is not saved, and running statistics, which are."""

    def __init__(self, encoder, sizes):
        super().__init__(encoder, sizes)
        d, L = encoder.hidden_size, encoder.num_hidden_layers
        self.register_buffer("signs", torch.linspace(-1, 1, d), persistent=False)
        self.plain = torch.linspace(1, 2, d)
        self.norms = nn.ModuleList(nn.BatchNorm1d(d) for _ in range(L))

    def after_layer(self, depth, x):
        return self.norms[depth](x.flatten(0, 1)).view_as(x) + self.signs * self.plain


@pytest.fixture
def signed(monkeypatch):
    monkeypatch.setitem(ADAPTERS, "signed", Signed)
    return "signed"


def test_a_saved_model_has_what_its_adapters_do_not_save(signed, run, tiny_config, tmp_path):
    model = run(tiny_config.but(tasks=("sst",), frozen=False, adapter=signed, epochs=1)).model
    model.save(tmp_path)
    state = torch.get_rng_state()
    again = MultitaskBert.load(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    texts = ["a dull day", "the kettle sings"]
    pd.testing.assert_frame_equal(again.predict(texts, "sst"), model.predict(texts, "sst"))


@pytest.mark.parametrize("seed", [1, 5])
def test_the_best_model_has_the_buffers_of_its_step(signed, seed, run, tiny_config):
    config = tiny_config.but(tasks=("sst",), frozen=False, adapter=signed, epochs=2, seed=seed, keep="best")
    trained = run(config.but(evals_per_epoch=5, learning_rate=0.05))
    best = trained.curve["dev_score"].max()
    on_dev = trained.predictions.query("split == 'dev'")
    assert (on_dev["predicted"] == on_dev["label"]).mean() == pytest.approx(best)
    assert trained.cost["best_step"] < trained.cost["steps"]


def test_a_pair_feature_may_read_its_values(monkeypatch, run, tiny_config):
    def capped(h1, h2):
        difference = (h1 - h2).abs()
        return difference.clamp(max=100) if difference.max() > 100 else difference

    monkeypatch.setitem(PAIR_FEATURES, "capped", capped)
    assert len(run(tiny_config.but(tasks=("sts",), frozen=False, pairs="capped", epochs=1)).predictions)
