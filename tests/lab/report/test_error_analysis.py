"""Which runs notebook 08 looks at."""

import numpy as np
import pytest

from mtbert.config import RunConfig
from mtbert_lab.report import error_analysis
from mtbert_lab.report.error_analysis import ALONE, TASKS, beside, systems_of
from mtbert_lab.report.sentences import tell
from mtbert_lab.report.tables import Grid
from mtbert_lab.store import MissingRun

ALL = RunConfig(tasks=TASKS, scheme="unified", keep="last")


@pytest.fixture
def known(monkeypatch) -> set[str]:
    """The plans of which SST's probabilities are known; a test takes some away."""
    plans = {"1-bert", "hybrid-1", "hybrid-3", "3-bert"}

    def of_run(run, task, data, device):
        return np.ones((1, 5)) if run.config.plan_text in plans else None

    monkeypatch.setattr(error_analysis, "probabilities", of_run)
    return plans


@pytest.fixture
def shared(synthetic) -> Grid:
    rights = {"1-bert": 0.6, "hybrid-1": 0.9, "hybrid-3": 0.8, "3-bert": 0.7}
    return Grid((), {}, {plan: [synthetic(ALL.but(plan=plan), right)] for plan, right in rights.items()})


@pytest.fixture
def alone(synthetic) -> Grid:
    """A frozen run of SST, which is passed over, and one of each task."""
    runs = {"frozen": [synthetic(RunConfig(tasks=("sst",), plan="frozen"), 0.5)]}
    return Grid((), {}, runs | {task: [synthetic(RunConfig(tasks=(task,)), 0.7)] for task in TASKS})


def test_the_systems_are_three_plans_and_the_single_tasks(known, shared, alone):
    systems = systems_of(shared, alone, None, "cpu")
    assert list(systems) == ["1-bert", "hybrid-1", "3-bert", ALONE], "the better hybrid"
    assert systems["hybrid-1"]["sts"] is shared.runs["hybrid-1"]
    assert systems[ALONE] == {task: alone.runs[task] for task in TASKS}
    known.remove("hybrid-1")
    assert list(systems_of(shared, alone, None, "cpu"))[1] == "hybrid-3", "the best one whose probabilities are known"


def test_single_tasks_are_left_out_unless_all_are_stored(known, shared, alone, shown):
    del alone.runs["quora"]
    assert ALONE not in systems_of(shared, alone, None, "cpu")
    assert [output.data for output in shown] == ["*alone* is left out: no run of Quora alone is stored."]


def test_a_plan_without_runs_or_probabilities_is_missing(known, shared, alone):
    known.remove("3-bert")
    with pytest.raises(MissingRun, match="the probabilities of SST's classes are not stored"):
        systems_of(shared, alone, None, "cpu")
    del shared.runs["3-bert"], shared.runs["hybrid-1"], shared.runs["hybrid-3"]
    with pytest.raises(MissingRun, match="with plan 3-bert and hybrid-K"):
        systems_of(shared, alone, None, "cpu")


def test_a_statistic_beside_a_number_is_checked():
    draws = np.array([0.3, 0.28, 0.32])
    assert tell("{x:2} above", x=beside(draws, "above")) == "0.30 (0.28 to 0.32) above"
    assert "no longer say this" in tell("{x:2} above one", x=beside(draws, "above", of=1.0))
    assert "no longer say this" in tell("{x:2} above 0.29", x=beside(draws, "above", of=0.29))
