"""Which seeds to add: the predicted chance of a verdict against a simulation, and what a plan takes and leaves."""

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from mtbert.report import more_seeds
from mtbert.report.claims import Compared
from mtbert.report.more_seeds import Open, Planner, plan_seeds
from mtbert.report.tables import Grid
from mtbert.results import training_key
from mtbert.results.grids import read_grid
from mtbert.statistics import Difference, Prior, Side
from mtbert.statistics.differences import _total

SEED, EXAMPLES = 0.005, 0.002  # standard deviations over seeds, over examples
PRIOR = Prior(60, 10**6, np.array([1e6]), np.array([SEED**2]), np.ones(1), examples=0.0, lowest=0.0)


def an_open(
    value: float, claimed: str = "greater", counts=(1, 1), prior=PRIOR, examples: float = 0.002, **fields
) -> Open:
    scores = [np.full(n, 0.8) + SEED * np.linspace(-1, 1, n) * (n > 1) for n in counts]
    sides = tuple(Side(one, 0.0, prior) for one in scores)
    found = Difference(value, _total(EXAMPLES**2, sides), min(counts), True, EXAMPLES**2, sides)
    about = dict(text="so it is", keys=("one", "other"), factor=1.0) | fields
    return Open(compared=Compared(claimed, found, 0.02, ([], []), "sst"), **about)


@pytest.mark.parametrize("claimed", ["greater", "equal", "not greater"])
@pytest.mark.parametrize("value", [0.0, 0.012])
def test_the_chance_of_a_verdict_is_that_of_a_simulation(claimed, value):
    """True differences, their estimates with one seed a side, and with five; among those estimates near the value."""
    random, spread, margin = np.random.default_rng(0), 0.01, 0.02
    true = random.normal(scale=spread, size=400_000) + random.normal(scale=EXAMPLES, size=400_000)
    first = random.normal(scale=SEED * np.sqrt(2), size=true.shape)
    others = random.normal(scale=SEED * np.sqrt(2 / 4), size=true.shape)
    near = np.abs(true + first - value) < 0.0005
    later = (true + first / 5 + others * 4 / 5)[near]
    error = np.sqrt(EXAMPLES**2 + 2 * SEED**2 / 5)
    z = stats.norm.isf(0.025 if claimed == "greater" else 0.05) * error
    decided = {
        "greater": np.abs(later) > z,
        "equal": (np.abs(later) < margin - z) | (np.abs(later) > margin + z),
        "not greater": np.abs(later - margin) > z,
    }[claimed]
    one = an_open(value, claimed)
    found = one.chance({"one": 5, "other": 5}, one.noise(0.0), spread**2)
    assert found == pytest.approx(decided.mean(), abs=0.02)


def test_a_side_without_a_stratum_needs_three_seeds():
    one = an_open(0.03, counts=(1, 3), prior=None)
    noise = one.noise(SEED**2)
    assert noise[0] == noise[1], "a single seed takes the variance of the other side"
    assert one.chance({"one": 2, "other": 3}, noise, 1e-4) == 0 < one.chance({"one": 3, "other": 3}, noise, 1e-4)


@pytest.fixture
def grids(tmp_path, synthetic, monkeypatch):
    """Three open comparisons: few seeds decide one, another costs ten times as much, nothing decides the third."""
    text = "base: {tasks: [sst, quora]}\nruns:\n  reference: {}\n  near: {learning_rate: 2.0e-3}\n"
    text += "  dear: {learning_rate: 3.0e-3}\n  level: {learning_rate: 4.0e-3}\n"
    (tmp_path / "g.yaml").write_text(text)
    configs = read_grid(tmp_path / "g.yaml")
    minutes = {"reference": 1.0, "near": 10.0, "dear": 100.0, "level": 10.0}
    runs = {}
    for name, [config] in configs.items():
        cost = {"train_cpu_seconds": 50 * minutes[name], "score_seconds": 10 * minutes[name], "steps": 12}
        runs[name] = [synthetic(config, 0.8, cost=cost)]
    keys = {name: training_key(config) for name, [config] in configs.items()}
    values = {"near": 0.014, "dear": 0.014, "level": 0.0}
    found = [an_open(value, text=name, keys=(keys[name], keys["reference"])) for name, value in values.items()]
    monkeypatch.setattr(more_seeds, "open_claims", lambda: iter(found))
    monkeypatch.setattr(more_seeds, "open_differences", lambda grid: iter(()))
    return [Grid(("g.yaml",), configs, runs)]


def test_the_seeds_that_decide_most_per_minute_come_first(grids):
    runs, text = plan_seeds(grids, hours=1.0)
    names = [name for name, _ in runs]
    assert "near" in names and "reference" in names and "dear" not in names
    assert sorted(config.seed for name, config in runs if name == "near") == list(range(2, 2 + names.count("near")))
    planner = Planner(grids)
    chosen = planner.choose(60.0)
    assert 0 < planner.cost(chosen) <= 60
    assert (planner.chances(chosen) >= planner.chances(Counter()) - 1e-9).all()
    assert "verdicts expected" in text and text.endswith("would probably not decide:\n  level")


def test_without_time_nothing_is_taken(grids):
    runs, text = plan_seeds(grids, hours=0.01)
    assert runs == [] and text.startswith("0 runs, 0.0 hours on one core")
