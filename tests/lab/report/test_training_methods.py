"""What notebooks 06 and 11 show: their tables on synthetic runs, labels that are names of runs, sentences that hold."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from mtbert.config import RunConfig
from mtbert.paths import REPOSITORY
from mtbert_lab.report import notebook, students, tables, training_methods, words
from mtbert_lab.report.tables import Comparison, Grid, read_runs
from mtbert_lab.store import read_grid

THREE = ("sst", "quora", "sts")
BASE = RunConfig(tasks=THREE, scheme="unified", keep="last")
IN_TURN = RunConfig(tasks=("sst", "sts"), scheme="in_turn", epochs=1, batch_size=8, keep="last")
OF_06 = ("gradients", "heads_schedules", "progressive", "augmentation")
OF_11 = ("distil", "distil_long", "distil_best", "distil_more", "best_model")


def names_of(*grids):
    return {name for grid in grids for name in read_grid(REPOSITORY / f"params/cpu/{grid}.yaml")}


def grid_of(**runs):
    """A grid of stored runs; a name's underlines are spaces."""
    runs = {name.replace("_", " "): group for name, group in runs.items()}
    return Grid((), {name: [run.config for run in group] for name, group in runs.items()}, runs)


def test_labels_are_of_runs_and_tell_them_apart():
    assert training_methods.LABELS.keys() <= names_of(*OF_06)
    assert students.LABELS.keys() <= names_of(*OF_11)
    assert len(set(training_methods.LABELS.values())) == len(training_methods.LABELS)
    assert len(set(students.LABELS.values())) == len(students.LABELS)
    recipes = {
        name for name in names_of("heads_schedules", "augmentation") if "in turn" not in name and "concat" not in name
    }
    in_groups = {name for runs in words.RECIPES.values() for name in runs}
    assert recipes - in_groups == {"1-bert", "1-bert, sigmoid of cosine"}  # notebook 05 has the pairs


def test_what_differences_have_in_common():
    rows = pd.DataFrame({"run": ["a", "a", "b"], "verdict": ["better", "worse", "better"]})
    assert training_methods.names_of_gains(rows) == "a, b" and training_methods.names_of_gains(rows.iloc[1:2]) == "none"


def test_runs_in_no_group_stand_behind_the_others():
    runs = pd.DataFrame({"run": ["1-bert, cosine", "mine", "dropout .3"], "task": "sst", "value": [1.0, 2.0, 3.0]})
    table = training_methods.in_groups(runs)
    assert table["run"].tolist() == ["dropout of 0.3 before the heads", "cosine schedule", "mine"]
    assert table["group"].tolist() == ["Heads", "Schedule and weight decay", "Other runs"]
    assert "group" not in training_methods.in_groups(runs.iloc[1:2])


@pytest.mark.parametrize("grid", ["cpu/gradients", "gpu/sharing", "gpu/gem", "demo/sharing"])
def test_every_gradient_method_is_beside_the_sum(grid):
    configs = read_grid(REPOSITORY / f"params/{grid}.yaml")
    compared = training_methods.surgery(Grid((), configs, {}))
    assert compared.references
    for run, reference in compared.references.items():
        first, second = configs[run][0], configs[reference][0]
        assert first.gradients != "sum" and second.gradients == "sum"
        assert (first.plan, first.adapter, first.tasks) == (second.plan, second.adapter, second.tasks)
    if grid == "cpu/gradients":
        methods = {name for name, group in configs.items() if group[0].gradients != "sum" and "sequence" not in name}
        assert methods == compared.references.keys() and compared.references["1-bert, CAGrad"] == "1-bert"


@pytest.fixture
def cosines():
    """Of two levels, at steps 1 to 6: SST and STS always in conflict, Quora and STS at the first level alone."""
    rows = []
    for step in range(1, 7):
        for layer, low in (("embeddings", -0.5), ("layer 1", 0.5)):
            rows += [(step, layer, "sst", "sts", -0.1), (step, layer, "quora", "sts", low)]
    return pd.DataFrame(rows, columns=["step", "layer", "first", "second", "cosine"])


def test_conflicts_at_both_ends_of_a_run_go_from_the_seed_with_fewest_to_that_with_most(synthetic, cosines):
    """In the first sixth 3 of 4 are in conflict; of the second seed all, and in the last sixth none."""
    other = cosines.assign(cosine=cosines["step"].map({1: -1.0, 6: 1.0}).fillna(0.0))
    seeds = [synthetic(BASE.but(seed=i), 0.8, cosines=table) for i, table in enumerate((cosines, other))]
    grid = grid_of(PCGrad=seeds, silent=[synthetic(BASE, 0.8, cosines=cosines.iloc[:0])])
    assert training_methods.ends_of_conflict(grid, "PCGrad") == {"first": "75% to 100%", "last": "0% to 75%", "runs": 2}
    assert training_methods.ends_of_conflict(grid, "silent") == training_methods.ends_of_conflict(grid, "absent") == {}


def test_cosines_of_the_plain_sum_come_before_others(synthetic, cosines):
    none = cosines.iloc[:0]
    surgery = synthetic(BASE.but(gradients="pcgrad"), 0.8, cosines=cosines)
    plain = [synthetic(BASE.but(seed=seed), 0.8, cosines=cosines) for seed in (1, 2)]
    silent = synthetic(BASE, 0.8, cosines=none)
    name, table = training_methods.recorded_cosines(grid_of(silent=[silent], PCGrad=[surgery], plain=plain))
    assert name == "plain" and len(table) == 2 * len(cosines)
    assert list(table["pair"].unique()) == ["SST and STS", "Quora and STS"]
    name, table = training_methods.recorded_cosines(grid_of(silent=[silent]))
    assert not name and table.empty and "pair" in table


def test_the_share_of_levels_in_conflict(synthetic, cosines):
    _, table = training_methods.recorded_cosines(grid_of(plain=[synthetic(BASE, 0.8, cosines=cosines)]))
    shares = training_methods.conflicts(table).set_index(["pair", "step"])
    assert shares.loc["SST and STS", "share"].tolist() == [1.0] * 6
    assert shares.loc["Quora and STS", "share"].tolist() == [0.5] * 6
    assert shares.loc["Quora and STS", "until"].tolist() == [1, 2, 3, 4, 5, 6]
    [ax] = training_methods.conflict_figure(shares.reset_index()).axes
    assert len(ax.get_legend().get_texts()) == 3  # two pairs, and random directions


def test_costs_of_two_versions_have_no_interval(synthetic):
    runs = [synthetic(BASE.but(seed=seed), 0.8) for seed in (1, 2)]
    for run in runs:
        run.cost["tokens_per_cpu_second"] = 100.0 * run.config.seed
    older = [replace(run, provenance=run.provenance | {"mtbert": "0.1.0"}) for run in runs]
    assert not np.isnan(tables.cost_ratio(runs, runs, "tokens_per_cpu_second")).any()
    on_gpu = [replace(run, provenance=run.provenance | {"device": "NVIDIA H100"}) for run in runs]
    for first, second in ((runs, older), (on_gpu, on_gpu)):  # a GPU trains several runs at once
        ratio, low, high = tables.cost_ratio(first, second, "tokens_per_cpu_second")
        assert ratio == pytest.approx(1) and np.isnan([low, high]).all()


def test_what_gradient_methods_cost(synthetic):
    plain = [synthetic(BASE.but(seed=seed), 0.8) for seed in (1, 2)]
    gem = []
    for run in (synthetic(BASE.but(gradients="gem", seed=seed), 0.8) for seed in (1, 2)):
        run.cost.update(tokens_per_cpu_second=40.0, constraints_steps=10, constraints_projected=8)
        run.cost.update(constraints_checked=20, constraints_broken=5)
        gem.append(run)
    compared = Comparison(grid_of(plain=plain, GEM=gem), {"GEM": "plain", "A-GEM": "plain"})
    [row] = training_methods.method_costs(compared).itertuples()
    assert (row.run, row.seeds, row.projected, row.broken) == ("GEM", 2, 0.8, 0.25)
    assert row.speed == pytest.approx(0.4)
    text = training_methods.method_costs_text(training_methods.method_costs(compared))
    assert text.loc[0, ["projected", "broken"]].tolist() == ["80%", "25%"]


@pytest.fixture
def turns(synthetic):
    """Two tasks in turn: without a method SST forgets .5, with GEM .1; GEM has a seed less."""

    def run(seed, end, **changes):
        curve = [{"step": 10, "dev_sst": 0.9, "dev_sts": 0.1}, {"step": 20, "dev_sst": end, "dev_sts": 0.8}]
        config = IN_TURN.but(seed=seed, **changes)
        about = {"device": "cpu", "mtbert": "1", "threads": 1, "rows": {"train sst": 80, "train sts": 80}}
        made = synthetic(config, 0.9, curve=pd.DataFrame(curve), provenance=about)
        made.cost["train_cpu_seconds"] = 5.0 if changes else 1.0
        return made

    plain = [run(seed, 0.4 + seed / 100) for seed in (1, 2, 3)]
    gem = [run(seed, 0.8, gradients="gem") for seed in (1, 2)]
    return Comparison(grid_of(sequence=plain, with_GEM=gem), {"with GEM": "sequence"})


def test_how_scores_change_after_a_tasks_own_training(turns):
    changes = training_methods.score_changes(turns)
    assert set(changes["order"]) == {"sequence"} and set(changes["task"]) == {"sst"}  # the last task has no later one
    ends = changes[changes["after"] == "sts"].groupby("training")["change"].mean()
    assert ends["plain"] == pytest.approx(-0.48) and ends["GEM"] == pytest.approx(-0.1)
    assert (changes[changes["after"] == "sst"]["change"] == 0).all()
    assert len(training_methods.forgetting_figure(changes).axes) == 1


def test_what_is_kept_is_paired_by_the_seeds_of_both(turns):
    [row] = training_methods.kept_table(turns).to_dict("records")
    assert (row["forgotten without"], row["forgotten with"], row["pairs"]) == ("0.485", "0.100", "2")
    assert row["kept more, paired by seed"].startswith("+0.385") and row["processor time"] == "5.0 times"
    assert training_methods.kept_table(Comparison(turns.grid, {"another": "sequence"})).empty
    plain, _ = training_methods.forgotten_table(turns).to_dict("records")
    assert plain["SST forgotten"] == "0.480 (0.470 to 0.490)" and plain["STS learned"] == "0.800"


def test_a_seed_of_gem_that_is_stored_before_the_plain_one_does_not_count(turns):
    runs = {"sequence": turns.runs["sequence"][2:], "with GEM": turns.runs["with GEM"]}
    assert training_methods.kept_table(Comparison(Grid((), turns.grid.configs, runs), turns.references)).empty


def test_predictions_drawn_to_the_middle_have_a_slope_above_one(synthetic):
    run = synthetic(BASE, 1.0)
    drawn = run.predictions.assign(predicted=lambda table: 0.5 + 0.5 * (table["predicted"] - 0.5))
    drawn = synthetic(BASE.but(head_norm=True), 1.0, predictions=drawn)
    for one in (run, drawn):
        one.cost["train_cpu_seconds"] = 2.0
    compared = Comparison(grid_of(plain=[run], drawn=[drawn]), {"drawn": "plain"})
    table = training_methods.heads_table(compared).set_index("run")
    assert table["slope"].tolist() == ["1.00", "2.00"] and table["times as long"].tolist() == ["–", "1.00"]
    assert table.loc["drawn", "sd of the labels"] == "0.50" and table.loc["drawn", "sd of the predictions"] == "0.25"


def test_mean_scores_of_runs_of_other_tasks(synthetic):
    runs = {"one": [synthetic(RunConfig(tasks=("sts",)), 0.8)], "three": [synthetic(BASE, 0.8)]}
    table = tables.mean_scores(runs).set_index("run")
    assert table.columns.tolist()[-2:] == ["overall", "seeds"] and table.loc["one", ["SST", "overall"]].eq("–").all()
    assert table.loc["three", "SST"] == "0.800" and tables.mean_scores({}).empty
    scored = replace(runs["three"][0], config=RunConfig(tasks=("sst",), score_tasks=THREE))
    assert "overall" not in tables.mean_scores({"one": [scored]}), "its score is that of the task that it trains"


def test_without_runs_there_are_no_baselines_and_nothing_is_shown(shown):
    assert tables.baselines([Grid((), {}, {})]).empty
    notebook.numbers(Comparison(Grid((), {}, {}), {}))
    assert [one.data for one in shown] == ["There are no runs of this question here."]


# Students


@pytest.fixture
def school(synthetic):
    """Two seeds of a teacher and three of its student, whose first teacher was trained on a GPU."""
    teachers = [synthetic(BASE.but(plan="3-bert", seed=seed), 0.9, parameters=30) for seed in (1, 2)]
    teachers[0].provenance["device"] = "cuda"
    taught = BASE.but(distil="annealed", teachers=[run.config for run in teachers])
    pupils = [synthetic(taught.but(seed=seed), 0.85) for seed in (1, 2, 3)]
    plain = [synthetic(BASE.but(seed=seed), 0.8) for seed in (1, 2, 3)]
    for run in (*teachers, *pupils, *plain):
        run.cost["train_cpu_seconds"] = 7200.0
    return grid_of(one=plain, three=teachers, student=pupils)


@pytest.fixture
def known(school):
    return students.stored_by_config([school])


def test_the_steps_and_hours_of_a_student_and_its_teachers(school, known):
    pupil = school.runs["student"]
    assert students.teachers_of(pupil, known) == school.runs["three"]
    assert students.steps_in_all(pupil, known) == 36 and students.steps_in_all(school.runs["one"], known) == 12
    assert students.hours(pupil[0]) == 2 and np.isnan(students.hours(school.runs["three"][0]))


def test_students_beside_a_run_without_teachers(school, known):
    compared = Comparison(school, {"student": "one"})
    table = students.costs_table(compared, ["one", "missing"], known).set_index("run")
    assert table.index.tolist() == ["one", "student"]
    assert table.loc["student", "processor hours"] == "2.00"
    assert table.loc["student", "of its teachers"] == "–"  # one of them was trained on a GPU
    assert table.loc["student", "minus one"].startswith("+0.0") and "minus missing" not in table


def test_the_points_of_the_front_have_three_seeds(school, known):
    points = students.front_points(school.runs, "one", known).set_index("name")
    assert points.index.tolist() == ["one", "student"]
    assert points[students.STEPS].tolist() == [12, 36] and points.loc["one", "overall"] == 0
    assert len(students.front_figure(points.reset_index(), ["one"]).axes) == 2
    assert students.front_points(school.runs, "another", known).empty


def test_what_was_tried_has_what_differs_from_the_first_run_of_its_tasks(synthetic):
    runs = {"first": [synthetic(BASE, 0.8)], "faster": [synthetic(BASE.but(learning_rate=1e-3), 0.8)]}
    table = students.tried_table(grid_of(**runs)).set_index("run")
    assert table["changed"].tolist() == ["–", "learning_rate 0.001"]
    assert table.columns.tolist()[-2:] == ["overall, last step", "parameters (M)"]
    assert students.tried_table(Grid((), {}, {})).empty


def test_scores_on_test_are_those_that_were_told(committed):
    read = [read_runs("cpu", name) for name in OF_11[2:]]
    runs = {name: group for grid in read for name, group in grid.runs.items()}
    table = students.scores_on_test(runs).set_index("run")
    told = pd.read_csv(committed / "predictions/test-scores.csv")
    for name in students.PREDICTIONS:
        of_run = told[told["run"] == runs[name][0].run_id.partition("-")[0]].set_index("task")["score"]
        for task, label in {"sst": "SST", "overall": "overall"}.items():
            assert table.loc[name, label] == (f"{of_run[task]:.3f}" if task in of_run else "–")
        assert (REPOSITORY / table.loc[name, "files"] / "sts-test-output.csv").exists()


def test_without_told_scores_there_are_none_on_test(synthetic, isolated):
    [row] = students.scores_on_test({students.BEST: [synthetic(BASE, 0.8)]}).to_dict("records")
    assert row["SST"] == row["overall"] == "–" and row["files"].startswith("results/predictions")
    assert students.scores_on_test({}).empty


def test_the_best_model_is_the_best_of_its_grid(committed):
    grid = read_runs("cpu", "best_model")
    assert tables.costs(grid.runs).set_index("name")["overall"].idxmax() == students.BEST
    assert students.paper_millions() == pytest.approx(196, abs=1)
