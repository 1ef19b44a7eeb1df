"""Sentences of notebooks: about the report's own runs only, with places that may lack their runs."""

from types import SimpleNamespace

import pandas as pd
import pytest

from mtbert.config import RunConfig
from mtbert.paths import REPOSITORY
from mtbert_lab.report import notebook, words
from mtbert_lab.report.sentences import SMALL, Fact, Place, no_gain, place, tell, the_verdict
from mtbert_lab.report.tables import Grid, compare, one_family
from mtbert_lab.statistics import NO_DIFFERENCE, TOO_FEW
from mtbert_lab.store import MissingRun, read_grid

BASE = RunConfig(tasks=("sst", "quora", "sts"), scheme="unified", keep="last")
PARAMS = REPOSITORY / "params/cpu"
OWN = {"profile": "cpu", "seed": 0}


@pytest.fixture(scope="module")
def plans(synthetic):
    runs = {}
    for name, right in {"1-bert": 0.8, "hybrid-3": 0.8, "3-bert": 0.95, "hybrid-1": 0.6}.items():
        runs[name] = [synthetic(BASE.but(plan=name, seed=seed), right) for seed in (1, 2, 3)]
    configs = {name: [run.config for run in group] for name, group in runs.items()}
    return compare(Grid((), configs, runs), "plan")


def test_a_place_is_a_difference_of_a_run(plans):
    text = tell(
        "{task:size} and {overall:size}.",
        task=place(plans, "3-bert", "better", "sst"),
        overall=place(plans, "3-bert", "better"),
        unseen=place(plans, "hybrid-3", NO_DIFFERENCE),
    )
    assert text.startswith("0.150 and 0.") and "no longer" not in text
    wrong = tell("Equal.", unseen=place(plans, "hybrid-1", NO_DIFFERENCE, "sts"))
    assert "no longer say this: unseen is worse" in wrong, "a place that is not shown is checked"


def test_a_difference_without_an_order_is_told_with_its_direction(plans):
    lower = SimpleNamespace(value=-0.012, verdict=TOO_FEW)
    assert tell("{x:more} there", x=Place(lower, TOO_FEW)) == "0.012 less there"
    for hiding in ("{x:size} more", "{x} more"):
        with pytest.raises(ValueError, match="hides its sign"):
            tell(hiding, x=Place(lower, TOO_FEW))


def test_a_misspelt_place_or_format_is_an_error(plans):
    worse = place(plans, "hybrid-1", "worse")
    with pytest.raises(ValueError, match=r"'lost' is not among the places given for: It loses \{lost\}"):
        tell("It loses {lost}.", loses=worse)
    with pytest.raises(ValueError, match="'mor' is no format of a place"):
        tell("It scores {one:mor}.", one=worse)


def test_a_place_without_runs_fails_only_where_its_sentence_is_told(plans, shown):
    missing = Place(None, "better")
    with pytest.raises(ValueError, match="gain: no run 'hybrid-2' is compared"):
        tell("{gain}", gain=place(plans, "hybrid-2", "better"))
    with pytest.raises(MissingRun, match="no stored runs for gain"):
        tell("{gain}", gain=missing)
    notebook.teller(OWN | {"seed": 2})("{gain} {millions[hybrid-2]}", gain=missing, millions={})
    assert [output.data for output in shown] == [notebook.OTHER_RUNS]


@pytest.mark.parametrize("other", [{"profile": "demo"}, {"seed": 3}, {"only": "bert"}, {"grid": "mine.yaml"}])
def test_sentences_speak_of_the_own_runs_alone(other, shown):
    notebook.teller(OWN)("**Answer.** {n}.", n=3)
    notebook.teller(OWN | other)("**Answer.** {n}.", n=3)
    assert [output.data for output in shown] == ["**Answer.** 3.", notebook.OTHER_RUNS]


def test_that_nothing_gains_is_checked_for_every_difference(plans):
    text = tell("{count}: {equal}, {worse}, {few}.", **no_gain(plans.overall[plans.overall["run"] != "3-bert"]))
    assert text == "2: 1, 1, 0."
    assert "no longer say this: gain 1 is better" in tell("{count}.", **no_gain(plans.overall))
    with pytest.raises(MissingRun):
        tell("{count}.", **no_gain(plans.overall.iloc[:0]))


def test_rows_are_named_in_words_in_their_order(plans):
    table = notebook.with_overall(plans)
    assert table["task"].unique().tolist() == ["overall", "sst", "quora", "sts"]
    named = notebook.in_words(table, {"3-bert": "none", "hybrid-3": "half"})
    assert named["run"].unique().tolist() == ["none", "half"] and "group" not in named
    grouped = notebook.in_words(table, {"few": {"3-bert": "none"}, "more": {"hybrid-3": "half"}})
    assert dict(zip(grouped["run"], grouped["group"], strict=True)) == {"none": "few", "half": "more"}
    lines = notebook.with_references(table)
    assert lines.query("run == '1-bert'")["value"].isna().tolist() == [True] * 4


def test_a_family_is_corrected_for_the_runs_that_are_taken(plans):
    family = one_family([plans, plans], ["3-bert", "hybrid-1", "unknown"])
    assert family.references == {"3-bert": "1-bert", "hybrid-1": "1-bert"} and len(family.overall) == 2


def flat(groups: dict[str, dict[str, str]]) -> dict[str, str]:
    return {run: text for names in groups.values() for run, text in names.items()}


@pytest.mark.parametrize(
    ("grid", "names"), [("frozen_shared_individual", flat(words.PLANS)), ("pals_samplers", words.SAMPLERS)]
)
def test_the_words_name_runs_of_the_grids(grid, names):
    assert set(names) <= read_grid(PARAMS / f"{grid}.yaml").keys()


def test_the_changes_are_runs_and_no_two_have_the_same_words():
    grids = ("pals_samplers", "gradients", "frozen_shared_individual", "heads_schedules")
    names = set().union(*(read_grid(PARAMS / f"{grid}.yaml") for grid in grids))
    assert set(flat(words.CHANGES)) <= names
    for groups in (words.PLANS, words.CHANGES):
        texts = pd.Series(flat(groups))
        assert texts.is_unique


def test_a_sentence_has_its_numbers_and_says_when_its_verdicts_no_longer_hold(decided):
    sentence = "A beats B by {gain}, or {gain:+}; of C {gain:size} is left, {text}."
    better = decided(0.02, "better")
    told = tell(sentence, gain=Place(better, "better"), text="at most")
    assert told == "A beats B by 0.020 (0.010 to 0.030), or +0.020 (+0.010 to +0.030); of C 0.020 is left, at most."
    few = decided(0.02, TOO_FEW, seeds_needed=7.0)
    wrong = tell(sentence, gain=Place(few, "better"), text="at most")
    assert wrong.startswith(told.removesuffix(".")) and "color: #c00" in wrong
    assert "no longer say this: gain is too few runs to tell (7 seeds would tell), not better" in wrong
    assert "no longer" in tell(sentence, gain=Place(better, SMALL), text=""), "it is not less than the margin"
    small = decided(0.02, "better", is_small=True)
    assert "no longer" not in tell(sentence, gain=Place(small, SMALL), text="")


def test_a_fact_is_red_where_it_is_another_one_now():
    sentence = "SST and Quora conflict most often, at {most}."
    pair = Fact("SST and Quora", "SST and Quora")
    assert tell(sentence, most="61%", pair=pair) == "SST and Quora conflict most often, at 61%."
    other = Fact("SST and STS", "SST and Quora")
    assert "no longer say this: pair is SST and STS, not SST and Quora" in tell(sentence, most="61%", pair=other)
    for now in (f"{NO_DIFFERENCE} or worse", f"{NO_DIFFERENCE}, more"):
        assert "no longer" in tell(sentence, most="61%", pair=Fact(now, NO_DIFFERENCE)), "it begins alike"


def test_the_verdict_of_several_differences_names_all_of_them():
    rows = pd.DataFrame({"verdict": ["better", "worse", "better"]})
    assert the_verdict(rows) == "better or worse" and the_verdict(rows.iloc[1:2]) == "worse"
