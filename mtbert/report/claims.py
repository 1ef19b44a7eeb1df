"""The claims of the five papers (params/claims.yaml), checked against the stored runs.

The rule for verdicts is in `mtbert.statistics`; all compared claims are one family. A score is "not comparable".
Arithmetic, and what stored runs count, is "reproduced" where it is equal to the printed digits, as far as the rounding
of the printed numbers it starts from allows, else "contradicted".

A claim is a finding, a comparison with a trivial baseline, a question that the paper asks, a recommendation, or a slip:
arithmetic, counts and printed averages, which no run decides. Claims with the same `fact` count once.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mtbert.bert import BertConfig, part_sizes
from mtbert.config import ConfigError, RunConfig
from mtbert.paths import REPOSITORY, read_yaml, results_dir
from mtbert.report.arithmetic import evaluate, range_by_rounding
from mtbert.report.tables import TOGETHER, Grid, log_cost_ratio, read_runs, score_points
from mtbert.results import (
    MissingRun,
    Run,
    difference,
    stack_predictions,
    summarize,
    write_table,
)
from mtbert.sharing import AdapterSizes, SharingPlan, adapter_parameters
from mtbert.statistics import (
    CLOSE,
    CONTRADICTED,
    MARGINS,
    MEAN_MARGIN,
    NOT_DECIDED,
    REPRODUCED,
    SMALL,
    Difference,
    benjamini_hochberg,
    holm,
    judge,
    p_of_claim,
    welch,
)

COST_MARGIN = math.log(1.1)
EXACT = ("parameters", "trained_parameters")  # costs that are the same in every run of a configuration
COLUMNS = [
    "paper", "place", "claim", "kind", "fact", "its_number", "our_number", "low", "high", "margin", "p", "q", "holm",
    "seeds", "is_lent", "verdict", "cautious", "run_ids", "why",
]  # fmt: skip
SIMILARITY = {"overall": 0.5, "average": 1.0}  # factor of Pearson in the mean of the tasks: paper 002; 001 and 003
FIELDS = {"paper", "place", "claim", "number", "why", "kind", "fact"}
KINDS = ("finding", "slip", "baseline", "question", "recommendation")
OF_RUNS = (CONTRADICTED, NOT_DECIDED, CLOSE, SMALL, REPRODUCED)  # a fact has the first of its claims' verdicts

Grids = Callable[[str], Grid]  # name of a file of params/cpu -> its runs


def find(grids: Grids, path: str) -> tuple[list[RunConfig], list[Run]]:
    """Configurations and stored runs of 'hybrids/3-bert'; raises ConfigError where no grid has this name."""
    file, _, name = path.partition("/")
    grid = grids(file)
    if name not in grid.configs:
        raise ConfigError(f"params/cpu/{file}.yaml has no run {name!r}")
    return grid.configs[name], grid.runs.get(name, [])


def read_claims(params: Path) -> tuple[list[dict], dict[str, Any]]:
    """The claims of claims.yaml, each with its paper, its place and its one check, and the whole file.

    Raises ConfigError naming a claim with an unknown field or without exactly one check.
    """
    content = read_yaml(params / "claims.yaml")
    claims = []
    for paper, places in content["claims"].items():
        for place, part in places.items():
            claims += [{"paper": paper, "place": place, **claim} for claim in part]
    for claim in claims:
        checks = set(claim) & set(CHECKS)
        if set(claim) - FIELDS != checks or "claim" not in claim or len(checks) != 1:
            raise ConfigError(f"claims.yaml, {claim}: fields are {', '.join(sorted(FIELDS))}, and one of {[*CHECKS]}")
        claim["check"] = checks.pop()
        claim.setdefault("kind", "slip" if claim["check"] == "arithmetic" else "finding")
        if claim["kind"] not in KINDS:
            raise ConfigError(
                f"claims.yaml, {claim['claim']}: kind is one of {', '.join(KINDS)}, got {claim['kind']!r}"
            )
    return claims, content


@dataclass(frozen=True)
class Compared:
    """A claim that two configurations are compared for."""

    claimed: str
    found: Difference  # minus what is claimed, where a ratio is
    margin: float
    runs: tuple[list[Run], list[Run]]
    offset: float = 0.0  # that claimed value
    is_log: bool = False

    def p(self, is_cautious: bool = False) -> float:
        return p_of_claim(self.claimed, self.found.cautious if is_cautious else self.found, self.margin)[0]

    def judged(self, corrected: float, is_cautious: bool = False) -> dict:
        """our_number, low, high and verdict, as `judge` gives them, and the margin of scores."""
        found = self.found.cautious if is_cautious else self.found
        verdict, *ends = judge(self.claimed, found, self.margin, corrected)
        numbers = [number + self.offset for number in (found.value, *ends)]
        if self.is_log:
            numbers = [math.exp(number) for number in numbers]
        margin = None if self.is_log else self.margin
        return dict(zip(("our_number", "low", "high"), numbers, strict=True)) | {"margin": margin, "verdict": verdict}


def claims_table(store: Path | None = None, params: Path = REPOSITORY / "params") -> pd.DataFrame:
    """A row per claim, with the columns COLUMNS.

    store: default `stores()`; params: the folder of claims.yaml and of cpu/ with the grids. low and high: the interval
    at the level of the test; of arithmetic, what the rounding of its numbers allows. p: of the claim alone; q:
    corrected by Benjamini and Hochberg's method, which gives the verdict; holm: by Holm's. cautious: the verdict with
    the prior degrees of freedom at their lower bound, where it is another one; is_lent: whether a run of few seeds
    borrows its seed variance.
    """
    claims, rows, compared = check_all(store, params)
    for number, verdict in judge_all(compared, claims).items():
        rows[number] |= verdict
    table = pd.DataFrame(rows, columns=COLUMNS)
    numbers = table[["our_number", "low", "high", "margin", "p", "q", "holm"]].astype(float).round(6)
    return table.assign(**numbers, seeds=table["seeds"].astype("Int64"))


def check_all(
    store: Path | None = None, params: Path = REPOSITORY / "params"
) -> tuple[list[dict], list[dict], dict[int, Compared]]:
    """The claims, a row of `claims_table` each, and by number the comparisons, whose verdicts the rows lack."""
    grids = cache(partial(read_runs, "cpu", params=params, store=store, train_missing=False))
    claims, content = read_claims(params)
    rows, compared = [], {}
    for number, claim in enumerate(claims):
        found = CHECKS[claim["check"]](claim, grids, store)
        if comparison := found.pop("compared", None):
            compared[number] = comparison
        why = [found.pop("why", None), claim.get("why")]
        if found.get("verdict") == "not comparable" and claim["check"] == "score":
            why = [content["not_comparable"], *why]
        row = {name: claim.get(name) for name in ("paper", "place", "claim", "kind", "fact")}
        row |= {"its_number": claim.get("number"), **found, "why": "; ".join(filter(None, why))}
        rows.append(row)
    return claims, rows, compared


def judge_all(compared: dict[int, Compared], claims: list[dict]) -> dict[int, dict]:
    """Verdicts on claims that are compared, corrected together; claims with the same check count once."""
    checks = [str(claim[claim["check"]]) for claim in claims]
    decided = {number: one for number, one in compared.items() if one.found.is_decided}
    first = {}  # comparison -> the first claim of it
    for number in decided:
        first.setdefault(checks[number], number)
    found = {number: one.judged(1.0) | {"is_lent": one.found.is_lent} for number, one in compared.items()}
    corrected = {}
    for is_cautious in (False, True):
        p = {number: decided[number].p(is_cautious) for number in first.values()}
        q = dict(zip(p, benjamini_hochberg(np.array(list(p.values()))), strict=True))
        corrected[is_cautious] = p, q
    p, q = corrected[False]
    strict = dict(zip(p, holm(np.array(list(p.values()))), strict=True))
    for number, one in decided.items():
        same = first[checks[number]]
        found[number] |= one.judged(q[same]) | {"p": p[same], "q": q[same], "holm": strict[same]}
        cautious = one.judged(corrected[True][1][same], is_cautious=True)["verdict"]
        found[number]["cautious"] = cautious if cautious != found[number]["verdict"] else None
    return found


def facts(table: pd.DataFrame) -> pd.DataFrame:
    """The claims that runs are compared with, those of one fact in one row, which has the least favourable verdict."""
    table = table[table["run_ids"].notna() & table["verdict"].isin(OF_RUNS)]
    order = table["verdict"].map(OF_RUNS.index)
    name = table["fact"].where(table["fact"].notna(), table.index.astype(str))
    return table.assign(order=order, name=name).sort_values("order", kind="stable").drop_duplicates("name").sort_index()


def write_claims() -> Path:
    """Write `claims_table` to claims.csv of the results store; returns its path."""
    return write_table(claims_table(), results_dir() / "claims.csv")


def _row(*groups: list[Run]) -> dict:
    run_ids = [run.run_id for run in chain(*groups)]
    return {"seeds": min(map(len, groups)), "run_ids": " ".join(run_ids)}


def _check_two_runs(claim: dict, grids: Grids, store: Path | None) -> dict:
    first, claimed, second, what = claim[claim["check"]]
    if claimed not in ("greater", "smaller", "equal", "not greater"):
        raise ConfigError(f"claims.yaml, {claim['claim']}: {claimed!r} is not greater, smaller, equal or 'not greater'")
    runs = [find(grids, path)[1] for path in (first, second)]
    row = _row(*runs) | {"why": f"{first} against {second} in {what}, claimed {claimed}"}
    if not row["seeds"]:
        return row | {"verdict": "not measured yet"}
    margin = MARGINS.get(what, MEAN_MARGIN)
    if claim["check"] == "cost":
        if what not in EXACT and (places := _places([*runs[0], *runs[1]])):
            return row | {"verdict": "not comparable", "why": f"{row['why']}; costs of {places}"}
        return row | {"compared": _compared_costs(claim, claimed, runs, what)}
    if claim["check"] == "difference":
        among = [store] if store else None
        found = difference(*runs, None if what in SIMILARITY else what, SIMILARITY.get(what, 1.0), among)
    else:
        of_run = BY_SEED[claim["check"]]
        first, second = ([of_run(run, what) for run in group] for group in runs)
        found = welch(first, second)
    return row | {"compared": Compared(claimed, found, margin, tuple(runs))}


def _compared_costs(claim: dict, claimed: str, runs: list[list[Run]], quantity: str) -> Compared:
    found = log_cost_ratio(*runs, quantity)
    if quantity in EXACT:
        found = replace(found, variances=np.zeros(1), is_decided=True)
    expected = math.log(float(claim.get("number", 1))) if claimed == "equal" else 0.0
    return Compared(claimed, replace(found, value=found.value - expected), COST_MARGIN, tuple(runs), expected, True)


def _places(runs: list[Run]) -> str:
    """Versions and machines of runs whose costs cannot be compared; empty where they are one version on one machine."""
    found = sorted({f"mtbert {run.provenance['mtbert']} on {run.provenance['device']}" for run in runs})
    return " and ".join(found) if len(found) > 1 else ""


def _check_score(claim: dict, grids: Grids, store: Path | None) -> dict:
    path, task = claim["score"]
    _, runs = find(grids, path)
    row = _row(runs) | {"why": path}
    if not runs:
        return row | {"verdict": "not measured yet"}
    ours = summarize(runs, task)
    return row | {"our_number": ours["value"], "low": ours["low"], "high": ours["high"], "verdict": "not comparable"}


def _check_arithmetic(claim: dict, grids: Grids, store: Path | None) -> dict:
    expression = claim["arithmetic"]
    number = claim.get("number")
    names = _names(grids)
    row = {"why": expression}
    try:
        ours = evaluate(expression, names)
        if number is None:
            return row | {"verdict": "reproduced" if ours else "contradicted"}
        low, high = range_by_rounding(expression, names)
    except MissingRun:
        return row | {"verdict": "not measured yet"}
    half = 0.5 * 10.0 ** -len(number.partition(".")[2]) + 1e-9
    verdict = "reproduced" if low <= float(number) + half and high >= float(number) - half else "contradicted"
    return row | {"our_number": ours, "low": low, "high": high, "verdict": verdict}


def _names(grids: Grids) -> dict[str, Any]:
    """What an expression may use."""
    bert = BertConfig()

    def alone() -> list[Run]:
        return list(chain(*grids("singles").runs.values()))

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
        return adapter_parameters("pal", bert, AdapterSizes(s), with_biases=False)

    layer = part_sizes(bert)["layer"]
    return {"rows": rows, "share": share, "plan": plan, "pal": pal, "layer": layer, "min": min, "max": max}


BY_SEED = {
    "gap": lambda run, task: score_points(run).eval("train - dev")[task],  # of the scores of the last step
    "loss": lambda run, step: run.curve.set_index("step").at[step, "train_loss"],  # of all tasks, around that step
}
CHECKS = {
    "arithmetic": _check_arithmetic,
    "score": _check_score,
    **dict.fromkeys(("difference", "cost", *BY_SEED), _check_two_runs),
    "none": lambda claim, grids, store: {"verdict": "cannot be checked", "why": claim["none"]},
}
