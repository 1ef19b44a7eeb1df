"""Configurations that are wrong in any way end in a line that names the field."""

import pytest

from mtbert.config import ConfigError, RunConfig

HUGE = (10**30, 10**400, -1, float("nan"), float("inf"), "x" * 5000, "\0", [[]], {}, [None], {"sst": 10**30}, object())
FIELDS = sorted(RunConfig.model_fields)


@pytest.mark.parametrize("field", FIELDS)
def test_a_wrong_value_of_any_field_is_named(field):
    """No value of another type, and none far out of range, is accepted; the message is short and names the field."""
    for value in HUGE:
        if value == 10**30 and field.endswith(("learning_rate", "weight_decay")):
            continue  # training ends at the first loss that is not finite
        if value == RunConfig.model_fields[field].default:
            continue
        with pytest.raises(ConfigError, match=rf"^{field}\b") as error:
            RunConfig.from_params({field: value})
        assert len(str(error.value)) <= 2000


BEYOND = [
    {"head_dropout": 0.999999}, {"attention_dropout": 0.95}, {"seed": 2**64}, {"seed": 2**32}, {"adapter_size": 10**30},
    {"head_width": 10**30}, {"evals_per_epoch": 10**9}, {"plan": "S99999999999999999999"}, {"plan": "hybrid-99999999"},
    {"plan": "S1 " * 1000}, {"epochs": 10**9}, {"batch_size": 10**9}, {"batch_size": {"sst": 10**9}},
    {"layers": 10**9}, {"head_layers": 10**6},
    {"steps_per_epoch": 10**12}, {"max_length": 10**9}, {"task_weights": [1e300]},
    {"pretrain_epochs": 10**9}, {"memory_size": 10**30}, {"accumulation": 10**9}, {"encoder": "a\0b"},
]  # fmt: skip


@pytest.mark.parametrize("params", BEYOND, ids=str)
def test_what_breaks_or_never_ends_is_refused_when_read(params):
    with pytest.raises(ConfigError, match=f"^{next(iter(params))}: "):
        RunConfig.from_params(params)
