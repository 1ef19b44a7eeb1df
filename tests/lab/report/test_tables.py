"""Tables of grids on synthetic runs: which words a difference gets, what is compared with what, what a front holds."""

import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml

from mtbert.config import ConfigError, RunConfig
from mtbert_lab.analysis.baselines import BASELINES
from mtbert_lab.paths import results_dir
from mtbert_lab.report import tables
from mtbert_lab.report.tables import Comparison, Grid, compare, score_table
from mtbert_lab.report.words import TASK_LABELS
from mtbert_lab.statistics import Difference
from mtbert_lab.statistics.verdicts import holm
from mtbert_lab.store.compare import difference
from mtbert_lab.store.folders import write_run

THREE = ("sst", "quora", "sts")
BASE = RunConfig(tasks=THREE, scheme="unified", keep="last")


@pytest.fixture(scope="module")
def grid_of(synthetic):
    """A grid of plans: a name -> (plan, share that is right, stored seeds); three seeds are wanted of each."""

    def grid_of(**rights) -> Grid:
        configs = {name: [BASE.but(plan=plan, seed=s) for s in (1, 2, 3)] for name, (plan, _, _) in rights.items()}
        runs = {
            name: [synthetic(config, right) for config in configs[name][:seeds]]
            for name, (_, right, seeds) in rights.items()
            if seeds
        }
        return Grid(("params/cpu/plans.yaml",), configs, runs)

    return grid_of


@pytest.fixture(scope="module")
def plans(grid_of) -> Comparison:
    found = grid_of(
        one=("1-bert", 0.8, 3), more=("3-bert", 0.95, 3), less=("hybrid-1", 0.6, 3), same=("hybrid-2", 0.8, 3),
        two=("hybrid-3", 0.95, 2), none=("hybrid-4", 0.9, 0),
    )  # fmt: skip
    return compare(found, "plan")


def test_words_follow_the_seeds(plans):
    table = plans.differences.set_index(["run", "task"])
    assert set(plans.references.values()) == {"one"} and "none" not in table.index
    for task in THREE:
        assert table.loc[("more", task), "verdict"] == "better"
        assert table.loc[("less", task), "verdict"] == "worse"
        assert table.loc[("same", task), "verdict"] == "no difference that matters"
        row = table.loc[("two", task)]  # as far above as "more", whose difference is decided
        assert row["verdict"] == "too few runs to tell" and row["seeds"] == 2 and np.isnan(row["p"]) and row["low"] > 0
    assert table.loc[("more", "sst"), "value"] == pytest.approx(0.15)


def test_p_values_are_corrected_for_the_decided_differences(plans):
    decided = plans.differences.dropna(subset="p")
    assert len(decided) == 9  # three tasks of three plans, without the one of two seeds
    pairs = [(plans.runs[row.run], plans.runs[row.reference], row.task) for row in decided.itertuples()]
    raw = [difference(*pair).p for pair in pairs]
    assert decided["p"].tolist() == holm(np.array(raw)).tolist()
    assert decided["p"].max() > max(raw) or decided["p"].max() == 1


def test_a_difference_that_only_looks_real_alone_is_not_better(monkeypatch, plans):
    monkeypatch.setattr(tables.comparisons, "difference", lambda *_, **how: Difference(0.05, np.array([0.02**2]), 3))
    table = Comparison(plans.grid, plans.references).differences
    assert set(table["verdict"]) == {"too few runs to tell"} and (table["low"] < 0).all()


def test_the_verdicts_are_counted_with_the_largest_difference_of_each(plans):
    table = tables.verdicts(plans.differences).set_index("verdict")
    assert table["differences"].to_dict() == {
        "worse": 3, "better": 3, "no difference that matters": 3, "too few runs to tell": 3,
    }  # fmt: skip
    assert table.loc["worse", "the largest"] == "less minus one, STS"
    assert re.fullmatch(r"-0\.40\d \(-0\.\d{3} to -0\.\d{3}\)", table.loc["worse", "by"])
    assert table.loc["no difference that matters", "the largest"].startswith("same minus one, ")
    assert tables.verdicts(plans.differences.iloc[:0]).empty


def test_differences_for_reading(plans):
    shown = plans.difference_table().set_index("run")
    assert shown["minus"].eq("one").all()
    assert shown.loc["two", "seeds"] == "2" and shown.loc["more", "seeds"] == "3"
    assert shown.loc["more", "SST"].startswith("+0.150 (") and shown.loc["more", "SST"].endswith("), better")
    assert "), too few runs to tell" in shown.loc["two", "SST"]
    assert Comparison(Grid((), {}, {}), {}).difference_table().empty


def test_no_difference_without_its_reference(grid_of):
    found = compare(grid_of(one=("1-bert", 0.8, 0), more=("3-bert", 0.9, 3)), "plan")
    assert list(found.runs) == ["more"] and found.differences.empty
    assert score_table(found.runs)["run"].tolist() == ["more"]


def test_the_reference_is_the_first_run_that_differs_in_nothing_else():
    fields = {
        "a": {"plan": "1-bert"}, "b": {"plan": "3-bert"}, "a, pal": {"adapter": "pal", "adapter_size": 96},
        "a, cosines": {"cosine_every": 2}, "b, longer": {"plan": "3-bert", "epochs": 4},
        "b, longest": {"plan": "3-bert", "epochs": 4, "adapter": "pal"}, "sst": {"tasks": ["sst"]},
    }  # fmt: skip
    found = Grid((), {name: [BASE.but(**changes)] for name, changes in fields.items()}, {})
    assert compare(found, "plan").references == {"b": "a"}
    assert compare(found, "adapter", "adapter_size").references == {"a, pal": "a", "b, longest": "b, longer"}
    assert compare(found, "plan", "epochs").references == {"b": "a", "b, longer": "a"}
    assert compare(found, "tasks").references == {"sst": "a"}
    assert compare(found, "plan", where=lambda config: config.plan == "3-bert").references == {}


def test_how_many_runs_are_stored(grid_of):
    found = grid_of(one=("1-bert", 0.8, 3), more=("3-bert", 0.9, 1))
    assert found.stored_text == (
        "4 of 6 runs of this question (`params/cpu/plans.yaml`) are stored; "
        "`mtbert train params/cpu/plans.yaml` trains the others."
    )
    none = Grid(found.paths, found.configs, {})
    assert none.stored_text == (
        "Not measured yet: 0 of 6 runs of this question (`params/cpu/plans.yaml`) are stored; "
        "`mtbert train params/cpu/plans.yaml` trains them."
    )
    whole = grid_of(one=("1-bert", 0.8, 3))
    assert whole.stored_text == "3 of 3 runs of this question (`params/cpu/plans.yaml`) are stored."
    assert Grid((), {}, {}).stored_text == "There are no runs of this question here."


def test_kept_steps_other_than_the_last_are_named(synthetic):
    configs = [BASE.but(plan=plan, keep="best") for plan in ("1-bert", "3-bert")]
    found = Grid(("a.yaml",), {c.plan: [c] for c in configs}, {c.plan: [synthetic(c, 0.9)] for c in configs})
    assert "Differences are those of the kept steps" in compare(found, "plan").stored_text


def test_a_union_takes_the_runs_with_more_seeds(grid_of):
    few, many = grid_of(one=("1-bert", 0.8, 1)), grid_of(one=("1-bert", 0.8, 3), more=("3-bert", 0.9, 1))
    few = Grid(("params/cpu/few.yaml",), {"one": few.configs["one"][:1]}, few.runs)
    both = few | many
    assert both.paths == ("params/cpu/few.yaml", "params/cpu/plans.yaml")
    assert list(both.configs) == ["one", "more"] and len(both.runs["one"]) == 3
    assert len((many | few).runs["one"]) == 3


def test_runs_are_read_by_their_file(isolated, tmp_path, synthetic):
    (tmp_path / "cpu").mkdir()
    content = {"base": {"tasks": ["sst"]}, "seeds": [1, 2], "runs": {"a": {}, "b": {"epochs": 7}}}
    (tmp_path / "cpu" / "grid.yaml").write_text(yaml.safe_dump(content))
    config = RunConfig(tasks=("sst",), seed=2)
    write_run(synthetic(config, 0.9), results_dir())
    found = tables.read_runs("cpu", "grid", params=tmp_path)
    assert found.paths == ("params/cpu/grid.yaml",) and {n: len(c) for n, c in found.configs.items()} == {
        "a": 2,
        "b": 2,
    }
    assert [run.config for run in found.runs["a"]] == [config] and "b" not in found.runs
    assert not tables.read_runs("cpu", "grid", seed=1, params=tmp_path).runs
    assert tables.read_runs("cpu", "other", params=tmp_path).configs == {}
    own = tables.read_runs("demo", str(tmp_path / "cpu" / "grid.yaml"), only="b")
    assert list(own.configs) == ["b"] and own.paths == (str(tmp_path / "cpu" / "grid.yaml"),)
    assert found.configs["a"][0] in found.missing and config not in found.missing


def test_scores_of_the_last_step_on_dev_and_train_and_of_the_best_point(synthetic):
    points = tables.score_points(synthetic(BASE, 0.9))
    assert points.loc["sst"].tolist() == pytest.approx([0.9, 0.95, 0.91, 6])
    later = synthetic(BASE.but(pretrain="after"), 0.9)
    later.scores["value"] = 0.3  # after the pretraining, which follows the last step
    assert tables.score_points(later).loc["sst"].tolist() == pytest.approx([0.3, 0.95, 0.91, 6])
    older = synthetic(BASE.but(keep="best"), 0.9, step_scores=pd.DataFrame())
    assert tables.score_points(older).loc["sst", "dev"] == pytest.approx(0.9)  # its best step was the last
    older.cost["best_step"] = 6
    assert tables.score_points(older).isna().all(axis=None)
    each_best = synthetic(BASE.but(keep="best_per_task", plan="3-bert"), 0.9)
    each_best.scores["value"] = 0.92  # of the steps that the tasks kept; that of overall was the last
    assert tables.score_points(each_best).loc["sst", "dev"] == pytest.approx(0.9)


def test_a_table_of_scores_starts_with_what_needs_no_training(plans):
    constants = pd.DataFrame(
        [
            ("most frequent", "sst", "accuracy", 0.25),
            ("most frequent", "sst", "macro_f1", 0.1),
            ("most frequent", "sts", "pearson", np.nan),
            ("cosine", "sts", "pearson", 0.838),
        ],
        columns=["baseline", "task", "metric", "value"],
    )
    table = score_table(plans.runs, constants).set_index("run")
    assert table.index[:3].tolist() == ["most frequent label", "cosine of the encoder before training", "one"]
    assert table.loc["most frequent label", "SST dev"] == "0.250"
    assert table.loc["most frequent label", "STS dev"] == "–" == table.loc["most frequent label", "SST train"]
    assert table.loc["cosine of the encoder before training", "STS dev"] == "0.838"
    assert table.loc["more", "SST dev"] == "0.950" and table.loc["more", "SST train"] == "1.000"
    assert table.loc["more", "SST best point"] == "0.960 at 6 to 18"
    assert table.loc["more", "seeds"] == "3" and table.loc["two", "seeds"] == "2"
    assert table.loc["more", "overall"] == "0.950"
    assert score_table({}, constants).empty


def test_the_step_of_a_best_point_is_named_unless_it_is_the_last(grid_of):
    grid = grid_of(one=("1-bert", 0.6, 1))
    grid.runs["one"][0].cost["steps"] = 6
    assert score_table(grid.runs)["SST best point"].tolist() == ["0.610"]


def test_baselines_of_the_store_fit_the_encoder_and_the_tasks(isolated, tiny_encoder, course_data):
    results_dir().mkdir(parents=True)
    names = ["most frequent", "cosine", "most frequent"]
    stored = pd.DataFrame({"baseline": names, "task": ["sts", "sts", "cfimdb"], "metric": "pearson", "value": 0.5})
    stored.to_csv(results_dir() / BASELINES, index=False)
    similarity = RunConfig(tasks=("sts",), corpus="course")
    assert tables.read_baselines(similarity)["baseline"].tolist() == ["most frequent", "cosine"]
    assert tables.read_baselines(similarity.but(encoder=tiny_encoder))["baseline"].tolist() == ["most frequent"]
    computed = tables.read_baselines(BASE.but(corpus="course", encoder=tiny_encoder))  # two tasks are not stored
    assert set(computed["baseline"]) == {"most frequent", "cosine"} and set(computed["task"]) == set(THREE)


def test_baselines_are_of_all_tasks_of_a_grid(isolated, grid_of):
    results_dir().mkdir(parents=True)
    stored = pd.DataFrame({"baseline": "most frequent", "task": THREE, "metric": "accuracy", "value": 0.5})
    stored.to_csv(results_dir() / BASELINES, index=False)
    alone = {task: [RunConfig(tasks=(task,), corpus="course")] for task in THREE}
    assert tables.baselines([Grid((), alone, {})])["task"].tolist() == list(THREE)
    both = {"both": [BASE.but(corpus="course")]}
    assert tables.baselines([Grid((), alone, {}), Grid((), both, {})])["task"].tolist() == list(THREE), "each once"


def test_baselines_of_runs_with_several_encoders_are_those_of_all(isolated, tiny_encoder, monkeypatch):
    results_dir().mkdir(parents=True)
    stored = pd.DataFrame({"baseline": ["most frequent", "cosine"], "task": "sts", "metric": "pearson", "value": 0.5})
    stored.to_csv(results_dir() / BASELINES, index=False)
    similarity = RunConfig(tasks=("sts",), corpus="course")
    grids = [Grid((), {"one": [similarity]}, {}), Grid((), {"other": [similarity.but(encoder=tiny_encoder)]}, {})]
    assert tables.baselines(grids[:1])["baseline"].tolist() == ["most frequent", "cosine"]
    assert tables.baselines(grids)["baseline"].tolist() == ["most frequent"]
    values = iter([0.253406, 279 / 1101, 0.253406, 0.26])  # those of the store are rounded
    monkeypatch.setattr(tables.scores, "read_baselines", lambda config, data: stored.assign(value=next(values)))
    assert len(tables.baselines(grids)) == 2 and tables.baselines(grids).empty


def test_without_a_table_and_without_data_there_are_no_baselines(isolated, monkeypatch):
    monkeypatch.setattr("mtbert_lab.store.corpora.find_data", lambda folder=None: None)
    assert tables.read_baselines(BASE.but(corpus="course")).empty


def test_what_is_forgotten(synthetic):
    assert tables.forgotten({}).empty
    config = RunConfig(tasks=("sst", "sts"), scheme="in_turn", epochs=1, batch_size=8)
    curve = [{"step": 10, "dev_sst": 0.9, "dev_sts": 0.1}, {"step": 20, "dev_sst": 0.4, "dev_sts": 0.8}]
    rows = {"train sst": 80, "train sts": 80}
    runs = [synthetic(config.but(seed=s), 0.9, curve=pd.DataFrame(curve), provenance={"rows": rows}) for s in (1, 2)]
    table = tables.forgotten({"plain": runs})
    assert len(table) == 8 and set(table["seed"]) == {1, 2}
    first = table[table["seed"] == 1].set_index(["task", "after"])["score"]
    assert first["sst", "sst"] == 0.9 and first["sst", "sts"] == 0.4 and first["sts", "sts"] == 0.8


def test_every_pass_of_a_run_in_turn_has_its_scores(tiny_config, course_data, run_of):
    config = tiny_config.but(tasks=("sst", "quora"), scheme="in_turn", keep="last")
    run = run_of(config)
    table = tables.forgotten({"a": [run]})
    assert run.curve["step"].tolist() == [5, 10, 15, 20]
    assert table[table["task"] == "sst"]["after"].tolist() == ["sst", "quora"], "of two rounds the last"
    assert table.groupby("task")["score"].last().to_dict() == {task: run.score(task) for task in config.tasks}


def test_the_costs_of_plans(synthetic):
    runs = {
        "small": [synthetic(BASE.but(seed=s), 0.8, parameters=2 * 2**20) for s in (1, 2)],
        "large": [synthetic(BASE, 0.9, parameters=4 * 2**20)],
        "older": [synthetic(BASE.but(keep="best"), 0.9, step_scores=pd.DataFrame(), cost={"steps": 2, "best_step": 1,
                            "parameters": 1, "trained_parameters": 1})],
    }  # fmt: skip
    table = tables.costs(runs).set_index("name")
    assert table.index.tolist() == ["small", "large"]  # the older one has no score of its last step
    assert table.loc["small", "seeds"] == 2 and table.loc["small", "state (MiB)"] == 4 * (2 + 3)
    assert table.loc["small", "overall"] == pytest.approx(0.8, abs=0.002)
    assert table.loc["large", "parameters (M)"] == pytest.approx(4 * 2**20 / 1e6)
    assert len(tables.costs({})) == 0


def test_the_front_holds_what_nothing_cheaper_beats():
    rows = [("a", 1, 0.5), ("b", 2, 0.4), ("c", 2, 0.7), ("d", 3, 0.7), ("e", 4, 0.71), ("f", 1, 0.45)]
    table = pd.DataFrame(rows, columns=["name", "cost", "overall"])
    assert tables.pareto(table, "cost") == ["a", "c", "e"]


def test_each_source_of_the_seed_variance_is_told_once():
    drawn, unified = (SimpleNamespace(configurations=n, deviation=d) for n, d in ((13, 0.012), (41, 0.007)))
    compared = Comparison(Grid((), {}, {}), {})
    vars(compared)["differences"] = pd.DataFrame({"task": ["sst"] * 4, "prior": [drawn, unified, None, drawn]})
    assert compared.prior_text == (
        "Runs of few seeds take the seed variance of 13 similar configurations (standard deviation 0.0120 on SST) or "
        "41 similar configurations (standard deviation 0.0070 on SST)."
    )


def test_the_table_says_of_every_run_whether_a_task_rests_on_similar_runs(synthetic):
    runs = {name: [synthetic(BASE.but(plan=name), right)] for name, right in (("1-bert", 0.8), ("3-bert", 0.9))}
    comparison = Comparison(Grid((), {}, runs), {"3-bert": "1-bert"})
    found = comparison.differences
    tasks = found["task"].map(TASK_LABELS)
    found["prior"] = tasks.where(tasks == tasks.iloc[-1])  # anything but nan; not the first task
    assert comparison.difference_table()["seeds"].tolist() == [f"1, variance of similar runs on {tasks.iloc[-1]}"]
    found["prior"] = tasks
    assert comparison.difference_table()["seeds"].tolist() == ["1, variance of similar runs"]


def test_a_grid_of_ones_own_has_to_be_there():
    assert tables.read_runs("cpu", "none").configs == {}
    with pytest.raises(ConfigError, match=r"none\.yaml"):
        tables.read_runs("cpu", str(tables.grids.REPOSITORY / "params/cpu/none.yaml"))


def test_gains_along_the_front(synthetic):
    runs = {
        name: [synthetic(BASE.but(plan=plan, seed=s), right, parameters=size) for s in (1, 2, 3)]
        for name, plan, right, size in (("a", "1-bert", 0.7, 10), ("b", "3-bert", 0.9, 30), ("c", "S2 I4", 0.6, 20))
    }
    front = tables.front_gains(tables.costs(runs), runs, "parameters (M)")
    assert front.index.tolist() == ["a", "b"] and front.loc["a", "gain on the one before"] == "–"
    assert front.loc["b", "gain on the one before"].startswith("+0.200 (+0.1")
    assert front.loc["b", "gain on the first"] == front.loc["b", "gain on the one before"]
    gaps = tables.gaps(runs, "a").set_index("name")
    assert gaps.loc["a"].tolist() == [0, 0, 0]
    assert gaps.loc["b", "overall"] == pytest.approx(0.2, abs=1e-3)
    assert 0.1 < gaps.loc["b", "low"] < 0.2 < gaps.loc["b", "high"]


def test_curves_are_means_over_seeds(synthetic):
    def run(seed, length):
        curve = pd.DataFrame({"step": [6, length], "dev_sst": [0.1, seed / 10], "train_loss": 1.0})
        return synthetic(BASE.but(seed=seed, tasks=("sst",)), 0.8, curve=curve)

    grid = Grid((), {}, {"a": [run(1, 12), run(2, 12)]})
    table = tables.curves(grid, "dev")
    assert table[["task", "plan", "step"]].values.tolist() == [["sst", "1-bert", 6], ["sst", "1-bert", 12]]
    assert table["value"].tolist() == pytest.approx([0.1, 0.15]) and table["steps"].tolist() == [12, 12]
    assert tables.curves(grid, "train_loss").empty and tables.curves(Grid((), {}, {}), "dev").empty
    method = synthetic(BASE.but(gradients="pcgrad"), 0.8, curve=pd.DataFrame({"step": [6], "dev_sst": [0.2]}))
    both = tables.curves(Grid((), {}, grid.runs | {"b": [method]}), "dev")
    assert both["plan"].unique().tolist() == ["1-bert", "1-bert, PCGrad"], "two lines, not one"


def test_plans_are_told_with_shared_layers_and_parameters(synthetic):
    base = BASE.but(encoder="minilm")
    configs = {plan: [base.but(plan=plan)] for plan in ("3-bert", "hybrid-2", "1-bert")}
    runs = {plan: [synthetic(group[0], 0.8, parameters=33.7e6)] for plan, group in configs.items()}
    plans = tables.plan_tables(Grid((), configs | {"not stored": configs["1-bert"]}, runs))
    assert list(plans) == ["1-bert", "hybrid-2", "3-bert"], "the fewest copies first"
    assert tables.plan_words(plans, runs) == {
        "1-bert": "1-bert: 6 of 6 shared, 33.7 M",
        "hybrid-2": "hybrid-2: 2 of 6 shared, 33.7 M",
        "3-bert": "3-bert: 0 of 6 shared, 33.7 M",
    }


def test_what_runs_differ_in_is_listed():
    configs = {"a": [BASE.but(seed=s) for s in (1, 2)], "b": [BASE.but(plan="3-bert", learning_rate=1e-3)]}
    table = tables.varied(Grid((), configs, {}))
    assert set(table.columns) == {"run", "plan", "learning_rate", "seeds"}
    assert table["plan"].tolist() == ["1-bert", "3-bert"] and table["seeds"].tolist() == ["1, 2", "1"]
    assert tables.varied(Grid((), {}, {})).empty
