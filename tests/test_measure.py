"""The allocator's peak is measured, and the prediction agrees with it."""

import pytest
import torch

from mtbert.config import RunConfig
from mtbert.measure import GRID, Stepper, grid_config, measure_grid, measure_step, predicted_peak
from mtbert.profiling import MIB

THREE = ("sst", "quora", "sts")


def make(tiny_encoder, **fields) -> RunConfig:
    return RunConfig.from_params(
        {"tasks": THREE, "scheme": "unified", "encoder": tiny_encoder, "max_length": 128, **fields}
    )


@pytest.mark.parametrize(
    "fields, shape",
    [
        ({}, (16, 96)),
        ({}, (2, 8)),
        ({"precision": "bf16"}, (16, 96)),
        ({"plan": "3-bert"}, (8, 64)),
        ({"plan": "F1 S1"}, (16, 96)),
        ({"plan": "frozen", "adapter": "pal", "adapter_size": 8, "adapter_heads": 2}, (16, 96)),
        ({"gradients": "pcgrad"}, (4, 32)),
        ({"gradients": "gem", "memory_batch": 4}, (4, 32)),
        ({"gradients": "agem", "scheme": "sampled"}, (4, 32)),
        ({"accumulation": 4}, (16, 96)),
    ],
    ids=str,
)
def test_the_peak_is_predicted(tiny_encoder, fields, shape):
    config, shapes = make(tiny_encoder, **fields), dict.fromkeys(THREE, shape)
    measured = measure_step(config, shapes)
    predicted = predicted_peak(config, shapes)
    assert predicted["total"] * MIB == pytest.approx(measured.peak, rel=0.1)
    assert (predicted["weights"] + predicted["moments"]) * MIB == pytest.approx(measured.before, rel=0.01)
    assert measured.course["bytes"].max() == measured.peak
    assert measured.course["bytes"].iloc[-1] == pytest.approx(measured.before, rel=0.02)  # all is given back


def test_a_block_is_seen(tiny_encoder, monkeypatch):
    """8 MiB more in a step are 8 MiB more at its peak."""
    config, shapes = make(tiny_encoder), {"sst": (2, 8)}
    before = measure_step(config, shapes).peak
    remember, held = Stepper.step, []

    def step(self):
        held.append(torch.zeros(2**20))  # stays, so that two of them are there in the measured step
        remember(self)

    monkeypatch.setattr(Stepper, "step", step)
    assert measure_step(config, shapes).peak - before == 2 * 4 * MIB


def test_several_shapes_take_turns(tiny_encoder):
    stepper = Stepper(make(tiny_encoder), [{"sst": (2, 8)}, {"sst": (3, 9)}])
    turns = []
    for _ in range(3):
        rows = stepper.rows()["sst"]
        turns.append((rows.tolist(), set(stepper.tables["sst"].tokens.lengths[rows])))
        stepper.step()
    assert turns == [([0, 1], {8}), ([2, 3, 4], {9}), ([0, 1], {8})]


def test_tokens_over_the_limit(tiny_encoder):
    with pytest.raises(ValueError, match="cannot be made with max_length 128"):
        Stepper(make(tiny_encoder), {"sst": (2, 129)})


def test_every_row_of_the_grid_can_be_made():
    for name in GRID:
        config, shapes = grid_config(name)
        assert set(shapes) == set(config.tasks)


def test_a_row_of_the_grid_in_a_process_of_its_own():
    table = measure_grid(["frozen"])
    assert table["name"].tolist() == ["frozen"] and table["device"].tolist() == ["cpu"]
    assert table["ratio"].item() == pytest.approx(1, abs=0.1)
    assert table["predicted"].item() == pytest.approx(table["ratio"].item() * table["measured"].item())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_peak_of_a_gpu(tiny_encoder, precision):
    config, shapes = make(tiny_encoder, precision=precision), dict.fromkeys(THREE, (64, 128))
    measured = measure_step(config, shapes, "cuda")
    assert predicted_peak(config, shapes, cuda=True)["total"] * MIB == pytest.approx(measured.peak, rel=0.25)
