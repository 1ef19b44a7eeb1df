"""The claims of the five papers (params/claims.yaml), checked against the stored runs; the tables of README.md.

The rule for verdicts. An order: our difference, over seeds and examples, has a p-value below LEVEL after Holm's
correction for all such claims, and the claimed sign: "reproduced"; the other sign: "contradicted"; else "not
distinguishable". No difference: the 95 % interval lies within +-MARGIN: "reproduced"; excludes 0 by more than that:
"contradicted"; else "not distinguishable". A difference of training losses or of gaps between train and dev likewise,
by the interval from the lowest to the highest of all pairs of seeds, and a ratio of costs, in logarithms and with
COST_MARGIN. All need SEEDS seeds of either run, else they are "not decided"; numbers of parameters need one. A score:
"not comparable". Arithmetic: equal to the printed digits, as far as the rounding of the printed numbers it starts from
allows: "reproduced", else "contradicted". Likewise what stored runs count, of any number of seeds.

`python -m mtbert.report.claims` writes the tables of README.md between the marks `<!-- NAME -->` and `<!-- end -->`.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path

import pandas as pd
import yaml

from mtbert.bert import BertConfig, part_sizes
from mtbert.config import ConfigError, RunConfig
from mtbert.paths import REPOSITORY, results_dir
from mtbert.report.tables import LEVEL, SEEDS, TOGETHER, Grid, compare, cost_ratio, read_runs, score_points
from mtbert.results import (
    MissingRun,
    Run,
    difference,
    overall_interval,
    stack_predictions,
    summarize,
    write_table,
)
from mtbert.sharing import AdapterSizes, SharingPlan, adapter_parameters
from mtbert.training import holm

MARGIN = 0.01  # of a score: smaller differences count as none
COST_MARGIN = math.log(1.1)
SIMILARITY = {"overall": 0.5, "average": 1.0}  # factor of Pearson in the mean of the tasks: paper 002; 001 and 003
DECIMAL = re.compile(r"(?<![\w.])\d+\.(\d+)")  # in an expression: a printed number, rounded; whole numbers are exact
FIELDS = {"paper", "place", "claim", "number", "why"}

Grids = Callable[[str], Grid]  # name of a file of params/cpu -> its runs


def find(grids: Grids, path: str) -> tuple[list[RunConfig], list[Run]]:
    """Configurations and stored runs of 'hybrids/3-bert'; raises ConfigError where no grid has this name."""
    file, _, name = path.partition("/")
    grid = grids(file)
    if name not in grid.configs:
        raise ConfigError(f"params/cpu/{file}.yaml has no run {name!r}")
    return grid.configs[name], grid.runs.get(name, [])


def read_claims(params: Path) -> tuple[list[dict], str]:
    """The claims of claims.yaml, each with its paper, its place and its one check, and why scores are not comparable.

    Raises ConfigError naming a claim with an unknown field or without exactly one check.
    """
    content = yaml.safe_load((params / "claims.yaml").read_text(encoding="utf8"))
    places = [(paper, place, claims) for paper, part in content["claims"].items() for place, claims in part.items()]
    claims = [{"paper": paper, "place": place, **claim} for paper, place, part in places for claim in part]
    for claim in claims:
        checks = set(claim) & set(CHECKS)
        if set(claim) - FIELDS != checks or "claim" not in claim or len(checks) != 1:
            raise ConfigError(f"claims.yaml, {claim}: fields are {', '.join(sorted(FIELDS))}, and one of {[*CHECKS]}")
        claim["check"] = checks.pop()
    return claims, content["not_comparable"]


def claims_table(store: Path | None = None, params: Path = REPOSITORY / "params") -> pd.DataFrame:
    """A row per claim: paper, place, claim, its_number, our_number, low, high, p, seeds, run_ids, verdict, why.

    store: default `stores()`; params: the folder of claims.yaml and of cpu/ with the grids. low and high: the
    95 % interval; of arithmetic, what the rounding of its numbers allows. p: of an order of scores, corrected.
    """
    grids = cache(partial(read_runs, "cpu", params=params, store=store, train_missing=False))
    claims, not_comparable = read_claims(params)
    rows = []
    for claim in claims:
        found = CHECKS[claim["check"]](claim, grids)
        why = [found.pop("why", None), claim.get("why")]
        if found["verdict"] == "not comparable":
            why = [not_comparable, *why]
        row = {name: claim[name] for name in ("paper", "place", "claim")} | {"its_number": claim.get("number")}
        row |= dict.fromkeys(("our_number", "low", "high", "p", "seeds", "run_ids")) | found
        rows.append(row | {"why": "; ".join(filter(None, why))})
    table = pd.DataFrame(rows)
    numbers = table[["our_number", "low", "high", "p"]].astype(float).round(6)
    orders = numbers["p"].notna()
    numbers.loc[orders, "p"] = holm(numbers.loc[orders, "p"].to_numpy())
    table.loc[numbers["p"] >= LEVEL, "verdict"] = "not distinguishable"
    return table.assign(**numbers, seeds=table["seeds"].astype("Int64"))


def count_verdicts(table: pd.DataFrame) -> str:
    """How many claims of `claims_table` have each verdict, by what decides: runs, or arithmetic and counts."""
    is_decided = table["verdict"].isin(["reproduced", "contradicted"])
    of_runs = table["run_ids"].notna() & (is_decided | table["verdict"].isin(["not distinguishable", "not decided"]))
    is_printed = is_decided & ~of_runs
    ours, printed, others = (
        ", ".join(f"{n} {verdict}" for verdict, n in table.loc[part, "verdict"].value_counts().items()) or "none"
        for part in (of_runs, is_printed, ~(of_runs | is_printed))
    )
    return (
        f"Of {len(table)} claims of the five papers, {of_runs.sum()} are compared with our runs: {ours}. "
        f"{is_printed.sum()} are computed or counted again: {printed}. The others: {others}."
    )


def write_claims() -> Path:
    """Write `claims_table` to claims.csv of the results store; returns its path."""
    return write_table(claims_table(), results_dir() / "claims.csv")


def judge(claimed: str, low: float, high: float, margin: float = MARGIN) -> str:
    """What an interval says of a claimed order, 'greater' or 'smaller', or of no difference, 'equal'."""
    if claimed == "equal":
        holds, fails = -margin <= low and high <= margin, low > margin or high < -margin
    else:
        low, high = {"greater": (low, high), "smaller": (-high, -low)}[claimed]
        holds, fails = low > 0, high < 0
    return "reproduced" if holds else "contradicted" if fails else "not distinguishable"


def _row(*groups: list[Run]) -> dict:
    return {"seeds": min(map(len, groups)), "run_ids": " ".join(run.run_id for runs in groups for run in runs)}


def _check_two_runs(claim: dict, grids: Grids) -> dict:
    first, claimed, second, what = claim[claim["check"]]
    runs = [find(grids, path)[1] for path in (first, second)]
    row = _row(*runs) | {"why": f"{first} against {second} in {what}, claimed {claimed}"}
    if not row["seeds"]:
        return row | {"verdict": "not measured yet"}
    if claim["check"] == "cost":
        value, low, high = cost_ratio(*runs, what)
        expected = float(claim.get("number", 1)) if claimed == "equal" else 1.0
        verdict = judge(claimed, math.log(low / expected), math.log(high / expected), COST_MARGIN)
    elif claim["check"] == "difference":
        value, low, high, p = difference(*runs, None if what in SIMILARITY else what, SIMILARITY.get(what, 1.0))
        verdict = judge(claimed, low, high)
        row |= {"p": p} if claimed != "equal" and row["seeds"] >= SEEDS else {}
    else:
        one, other = ([BY_SEED[claim["check"]](run, what) for run in group] for group in runs)
        value, low, high = sum(one) / len(one) - sum(other) / len(other), min(one) - max(other), max(one) - min(other)
        verdict = judge(claimed, low, high)
    if row["seeds"] < SEEDS and "parameters" not in str(what):
        verdict = "not decided"
    return row | {"our_number": value, "low": low, "high": high, "verdict": verdict}


def _check_score(claim: dict, grids: Grids) -> dict:
    path, task = claim["score"]
    _, runs = find(grids, path)
    row = _row(runs) | {"why": path}
    if not runs:
        return row | {"verdict": "not measured yet"}
    ours = summarize(runs, task)
    return row | {"our_number": ours["value"], "low": ours["low"], "high": ours["high"], "verdict": "not comparable"}


def _check_arithmetic(claim: dict, grids: Grids) -> dict:
    expression, number, counted = claim["arithmetic"], claim.get("number"), {}
    names, row = _names(grids, counted), {"why": expression}
    try:
        ours = eval(expression, names)
        row |= _row(*counted.values()) if counted else {}
        if number is None:
            return row | {"verdict": "reproduced" if ours else "contradicted"}
        corners = [eval(text, names) for text in _roundings(expression)]
    except MissingRun:
        return row | {"verdict": "not measured yet"}
    low, high = min(corners), max(corners)
    half = 0.5 * 10.0 ** -len(number.partition(".")[2]) + 1e-9
    verdict = "reproduced" if low <= float(number) + half and high >= float(number) - half else "contradicted"
    return row | {"our_number": ours, "low": low, "high": high, "verdict": verdict}


def _roundings(expression: str) -> list[str]:
    """The expression with every decimal at the lower or upper end of what rounds to it, in all combinations."""
    ends = [[f"({m[0]} {sign} 5e-{len(m[1]) + 1})" for sign in "+-"] for m in DECIMAL.finditer(expression)]
    pattern = DECIMAL.sub("{}", expression)
    return [pattern.format(*corner) for corner in itertools.product(*ends)]


def _names(grids: Grids, counted: dict[str, list[Run]]) -> dict:
    """What an expression may use; the runs whose costs it uses are put into `counted`."""
    bert = BertConfig()

    def alone() -> list[Run]:
        return [run for runs in grids("singles").runs.values() for run in runs]

    def rows(name: str) -> int:
        """Rows that the runs read of a table, such as 'train sst'."""
        for run in alone():
            if count := run.provenance["rows"].get(name):
                return count
        raise MissingRun(name)

    def share(task: str, label: float) -> float:
        """Share of a label on the dev split."""
        for run in alone():
            if task in set(run.predictions["task"]):
                return float((stack_predictions([run], task)[1] == label).mean())
        raise MissingRun(task)

    def plan(text: str) -> int:
        return int(SharingPlan.parse(text, TOGETHER, bert.num_hidden_layers).table(bert)["parameters"].sum())

    def pal(s: int) -> int:
        return adapter_parameters("pal", bert, AdapterSizes(s, bias=False))

    def cost(path: str) -> pd.Series:
        """The costs of a run, summed over its seeds."""
        counted[path] = find(grids, path)[1]
        if not counted[path]:
            raise MissingRun(path)
        return pd.DataFrame([run.cost for run in counted[path]]).sum(numeric_only=True)

    names = {"rows": rows, "share": share, "cost": cost, "plan": plan, "pal": pal, "layer": part_sizes(bert)["layer"]}
    return names | {"__builtins__": {"min": min, "max": max}}


BY_SEED = {
    "gap": lambda run, task: score_points(run).eval("train - dev")[task],  # of the scores of the last step
    "loss": lambda run, step: run.curve.set_index("step").at[step, "train_loss"],  # of all tasks, around that step
}
CHECKS = {
    "arithmetic": _check_arithmetic,
    "score": _check_score,
    **dict.fromkeys(("difference", "cost", *BY_SEED), _check_two_runs),
    "none": lambda claim, grids: {"verdict": "cannot be checked", "why": claim["none"]},
}

PAPERS = {  # what papers report for a bert-base of each task's own, by the names of the runs
    "SST frozen": ".399 (000)",
    "SST fine-tuned": ".519 (000), .523 (001), .513 (002)",
    "CFIMDB frozen": ".751 (000)",
    "CFIMDB fine-tuned": ".955 (000)",
    "Quora fine-tuned": ".780 (001), .868 (002)",
    "STS fine-tuned": ".521 (001), .872 (002)",
}
PLANS = ("1-bert", "hybrid-5", "hybrid-4", "hybrid-3", "hybrid-2", "hybrid-1", "3-bert")


def write_tables(readme: Path = REPOSITORY / "README.md", store: Path = REPOSITORY / "results") -> Path:
    """Write every table of the README again; returns its path. Raises ValueError for a mark that names no table."""
    text = readme.read_text(encoding="utf8")
    files = ("singles", "hybrids", "best_model")
    singles, hybrids, models = (read_runs("cpu", name, store=store, train_missing=False) for name in files)
    tables = {"single tasks": single_tasks(singles), "plans": plans(hybrids, PLANS)}
    tables |= {"plan differences": compare(hybrids, "plan").answer, "best model": plans(models, [best(models)])}
    if (path := store / "claims.csv").exists():
        tables["claims"] = count_verdicts(pd.read_csv(path))

    def table(match: re.Match) -> str:
        if match[1] not in tables:
            raise ValueError(f"{readme.name}: <!-- {match[1]} --> names no table; known are {', '.join(tables)}")
        return f"<!-- {match[1]} -->\n{tables[match[1]]}\n<!-- end -->"

    readme.write_text(re.sub(r"<!-- ([a-z ]+) -->\n.*?\n<!-- end -->", table, text, flags=re.DOTALL), encoding="utf8")
    return readme


def single_tasks(grid: Grid) -> str:
    """A row per task alone, frozen or fine-tuned: dev score with its interval, seeds, what papers report."""
    lines = ["| run | dev score, 95 % interval | seeds | papers (bert-base) |", "|---|---|---|---|"]
    for name, paper in PAPERS.items():
        if runs := grid.runs.get(name):
            lines.append(f"| {name} | {_score(runs)} | {len(runs)} | {paper} |")
    return "\n".join(lines)


def plans(grid: Grid, names: Iterable[str | None]) -> str:
    """A row per run of three tasks: dev scores and overall with their intervals, seeds, parameters."""
    lines = ["| run | SST | Quora | STS | overall | seeds | parameters |", "|---|---|---|---|---|---|---|"]
    for name in names:
        if runs := grid.runs.get(name):
            scores = [_score(runs, task) for task in runs[0].config.tasks] + [_shown(overall_interval(runs))]
            parameters = runs[0].cost["parameters"] / 1e6
            lines.append(f"| {name} | {' | '.join(scores)} | {len(runs)} | {parameters:.1f} M |")
    return "\n".join(lines)


def best(grid: Grid, parameters: float = 45e6) -> str | None:
    """The run with the highest mean overall score, with at most this number of parameters; None where there is none."""
    small = {name: runs for name, runs in grid.runs.items() if runs[0].cost["parameters"] <= parameters}
    return max(small, key=lambda name: sum(run.score() for run in small[name]) / len(small[name]), default=None)


def _score(runs: list[Run], task: str | None = None) -> str:
    found = summarize(runs, task)
    return _shown((found["value"], found["low"], found["high"]))


def _shown(estimate: tuple[float, float, float]) -> str:
    return "{:.3f} ({:.3f} to {:.3f})".format(*estimate)


if __name__ == "__main__":
    print(write_tables())
