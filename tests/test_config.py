"""RunConfig refuses what it does not know, and its digest names exactly what it holds."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtbert.config import TASK_NAMES, ConfigError, RunConfig
from mtbert.data import TASKS
from mtbert.paths import REPOSITORY
from mtbert.sweep import read_grid

# One value of every field that is not its default.
OTHER_VALUES = dict(
    corpus="course", tasks=["sts"], score_tasks=["sts"], encoder="somewhere", weights="random", frozen=True,
    pooling="cls", pairs="sum", head_dropout=0.5, attention_dropout=0.0, max_length=16, epochs=4, batch_size=8,
    learning_rate=1e-5, schedule="cosine", warmup=0.2, weight_decay=0.01, max_grad_norm=1.0, precision="bf16",
    evals_per_epoch=2, train_rows=10, seed=2,
)  # fmt: skip


@pytest.mark.parametrize(
    "params, message",
    [
        ({"epoch": 3}, "epoch: unknown key; did you mean epochs?"),
        ({"learning_rat": 1e-3}, "learning_rat: unknown key; did you mean learning_rate?"),
        ({"zzz": 3}, "zzz: unknown key"),
        ({"epochs": "3"}, "epochs: Input should be a valid integer, got '3'"),
        ({"epochs": 2.0}, "epochs: Input should be a valid integer, got 2.0"),
        ({"epochs": True}, "epochs: Input should be a valid integer, got True"),
        ({"seed": False}, "seed: Input should be a valid integer, got False"),
        ({"head_dropout": True}, "head_dropout: Input should be a valid number, got True"),
        ({"frozen": 1}, "frozen: Input should be a valid boolean, got 1"),
        ({"frozen": "false"}, "frozen: Input should be a valid boolean, got 'false'"),
        ({"learning_rate": "fast"}, "learning_rate: Input should be a valid number, got 'fast'"),
        ({"learning_rate": "nan"}, "learning_rate: Input should be a finite number, got nan"),
        ({"learning_rate": 0}, "learning_rate: Input should be greater than 0, got 0"),
        ({"head_dropout": 1.0}, "head_dropout: Input should be less than 1, got 1.0"),
        ({"attention_dropout": -0.1}, "attention_dropout: Input should be greater than or equal to 0, got -0.1"),
        ({"train_rows": 0}, "train_rows: Input should be greater than or equal to 1, got 0"),
        ({"max_length": 3}, "max_length: Input should be greater than or equal to 4, got 3"),
        ({"encoder": ""}, "encoder: String should have at least 1 character, got ''"),
        ({"tasks": "sst"}, "tasks: Input should be a valid tuple, got 'sst'"),
        ({"tasks": ["imdb"]}, "tasks: Input should be 'sst', 'cfimdb', 'quora' or 'sts', got 'imdb'"),
        ({"tasks": ["sst", "sts"]}, "tasks: a run trains on exactly one task, got ['sst', 'sts']"),
        ({"tasks": []}, "tasks: a run trains on exactly one task, got []"),
        ({"score_tasks": ["sts", "sts"]}, "score_tasks: a task stands twice in ['sts', 'sts']"),
        ({"schedule": "steps"}, "schedule: Input should be 'none', 'linear', 'cosine' or 'onecycle', got 'steps'"),
    ],
)
def test_what_is_wrong_is_named(params, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        RunConfig.from_params(params)


def test_every_fault_is_named_at_once():
    with pytest.raises(ConfigError) as error:
        RunConfig.from_params({"epochs": 0, "batchsize": 8, "pooling": "max"})
    assert all(key in str(error.value) for key in ("epochs:", "batch_size?", "pooling:"))


def test_values_as_yaml_gives_them():
    params = {"learning_rate": "1e-5", "weight_decay": 1, "tasks": ["sts"], "max_grad_norm": None}
    config = RunConfig.from_params(params)
    assert config.learning_rate == 1e-5
    assert isinstance(config.weight_decay, float) and config.weight_decay == 1.0
    assert config.tasks == ("sts",) and config.train_task == "sts"


def test_frozen_and_hashable():
    config = RunConfig()
    with pytest.raises(ValueError, match="frozen"):
        config.epochs = 5
    assert len({config, RunConfig(), RunConfig(seed=2)}) == 2


def test_but_checks_again():
    assert RunConfig().but(seed=3, epochs=1) == RunConfig(seed=3, epochs=1)
    with pytest.raises(ConfigError, match="epochs"):
        RunConfig().but(epochs=-1)


def test_the_training_task_is_scored_first_and_once():
    assert RunConfig(tasks=("sst",), score_tasks=("sts", "sst", "quora")).scored == ("sst", "sts", "quora")
    assert RunConfig(tasks=("sts",)).scored == ("sts",)


def test_task_names_are_those_of_the_data():
    assert tuple(TASKS) == TASK_NAMES


def test_digest_ignores_order_and_spelled_out_defaults():
    params = {"tasks": ["sts"], "seed": 2, "learning_rate": 1e-3}
    config = RunConfig.from_params(params)
    assert len(config.digest) == 10
    assert RunConfig.from_params(dict(reversed(params.items()))).digest == config.digest
    assert RunConfig.from_params(config.model_dump()).digest == config.digest
    assert RunConfig.from_params({**params, "learning_rate": "1e-3"}).digest == config.digest


def test_digests_never_change():
    """Stored runs are found by them."""
    assert RunConfig().digest == "44136fa355"
    assert RunConfig.from_params(OTHER_VALUES).digest == "c0c4f2f023"


@pytest.mark.parametrize("name", RunConfig.model_fields)
def test_digest_changes_with_every_field(name):
    assert RunConfig.from_params({name: OTHER_VALUES[name]}).digest != RunConfig().digest


@given(st.dictionaries(st.sampled_from(sorted(OTHER_VALUES)), st.none() | st.integers() | st.floats() | st.text()))
def test_any_parameters_give_a_configuration_or_a_named_error(params):
    try:
        config = RunConfig.from_params(params)
    except ConfigError as error:
        assert any(str(error).startswith(name) or f"; {name}" in str(error) for name in params)
    else:
        assert RunConfig.from_params(config.model_dump(mode="json")) == config


def test_printed_a_field_a_line():
    lines = str(RunConfig(seed=7)).splitlines()
    assert len(lines) == len(RunConfig.model_fields) and "seed: 7" in lines


@pytest.mark.parametrize(
    "path",
    # A file named after a notebook (03_...) holds papermill parameters, any other a grid of runs.
    [path for path in sorted(REPOSITORY.glob("params/*/*.yaml")) if not path.name[:2].isdigit()],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_grids_of_params_are_valid(path):
    grid = read_grid(path)
    assert grid
    configs = [config for configs in grid.values() for config in configs]
    assert len({config.digest for config in configs}) == len(configs), "two names for one run"
