"""The claims of the five papers (params/claims.yaml), checked against the stored runs.

The rule for verdicts is in `mtbert_lab.statistics`; all compared claims are one family. A score is "not comparable".
Arithmetic, and what stored runs count, is "reproduced" where it is equal to the printed digits, as far as the rounding
of the printed numbers it starts from allows, else "contradicted".

A claim is a finding, a comparison with a trivial baseline, a question that the paper asks, a recommendation, or a slip:
arithmetic, counts and printed averages, which no run decides. Claims with the same `fact` count once. Beside them are
checks of ours, with runs that the paper does not have.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from mtbert.bert import BertConfig, part_sizes
from mtbert.config import ConfigError
from mtbert.paths import REPOSITORY
from mtbert.sharing import AdapterSizes, SharingPlan, adapter_parameters
from mtbert.strict_yaml import read_yaml
from mtbert_lab.report.arithmetic import evaluate, half_digit, range_by_rounding
from mtbert_lab.report.tables import (
    TOGETHER,
    Grid,
    are_timed_alike,
    less_forgotten,
    log_cost_ratio,
    read_runs,
    share_at_ends,
    train_gap,
    trained_by,
)
from mtbert_lab.statistics import (
    CONTRADICTED,
    MEAN_MARGIN,
    NO_DIFFERENCE,
    ORDERS,
    REPRODUCED,
    TOO_FEW,
    Claim,
    Difference,
    benjamini_hochberg,
    judge,
    margin_of,
    welch,
)
from mtbert_lab.store import MissingRun, Run, difference, stack_predictions, summarize

COST_MARGIN = math.log(1.1)
COLUMNS = [
    "paper", "place", "claim", "kind", "fact", "its_number", "our_number", "low", "high", "margin", "p", "q",
    "seeds", "uses_prior", "verdict", "is_small", "seeds_needed", "cautious", "run_ids", "why",
]  # fmt: skip
FIELDS = {"paper", "place", "claim", "number", "why", "kind", "fact"}
CLAIMED = (*ORDERS, "equal", "not greater")
KINDS = ("finding", "slip", "baseline", "question", "recommendation", "ours")
NOT_MEASURED = "not measured yet"
NOT_COMPARABLE = "not comparable"
NOT_CHECKABLE = "cannot be checked"
OF_RUNS = (CONTRADICTED, TOO_FEW, NO_DIFFERENCE, REPRODUCED)  # a fact has the first of its claims' verdicts

Measure = Callable[[list[Run], list[Run], Any], Difference]  # of the seeds of two runs, and what is measured
Grids = Callable[[str], Grid]  # name of a file of params/cpu, or of params/base -> its runs


def find(grids: Grids, path: str) -> list[Run]:
    """The stored runs of 'hybrids/3-bert'; raises ConfigError where the grid has no such run."""
    file, _, name = path.partition("/")
    grid = grids(file)
    if name not in grid.configs:
        raise ConfigError(f"{' '.join(grid.paths) or file}: there is no run {name!r}")
    return grid.runs.get(name, [])


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
        checks = claim.keys() & CHECKS.keys()
        unknown = claim.keys() - FIELDS - checks
        if unknown or "claim" not in claim or len(checks) != 1:
            raise ConfigError(f"claims.yaml, {claim}: fields are {', '.join(sorted(FIELDS))}, and one of {[*CHECKS]}")
        claim["check"] = checks.pop()
        claim.setdefault("kind", "slip" if claim["check"] == "arithmetic" else "finding")
        if claim["kind"] not in KINDS:
            raise ConfigError(
                f"claims.yaml, {claim['claim']}: kind is one of {', '.join(KINDS)}, got {claim['kind']!r}"
            )
    return claims, content


class Compared(NamedTuple):
    """A claim about two configurations, and the difference between them."""

    claimed: str  # one of CLAIMED
    found: Difference  # of costs: of their logarithms, minus that of `ratio`
    margin: float
    ratio: float | None = None  # of costs, that is claimed; 1 for an order


def claims_table(params: Path = REPOSITORY / "params") -> pd.DataFrame:
    """A row per claim, with the columns COLUMNS.

    params: the folder of claims.yaml and of cpu/ with the grids. low and high: the interval
    at the level of the test; of arithmetic, what the rounding of its numbers allows. p: of the claim alone; q:
    corrected by Benjamini and Hochberg's method, which gives the verdict. is_small: an order is shown, by less than
    the margin; seeds_needed: where there are too few runs to tell, the seeds that would tell; cautious:
    the verdict with the prior degrees of freedom at their lower bound, where it is another one; uses_prior: whether a
    run of few seeds takes the seed variance of similar runs.
    """
    grids = cache(partial(read_runs, "cpu", params=params))
    claims, content = read_claims(params)
    return _as_table(_check(claims, grids, content["not_comparable"]))


def claims_at_papers_size(params: Path = REPOSITORY / "params") -> pd.DataFrame:
    """The claims about the runs that `papers_size` of claims.yaml names, as in `claims_table`, checked with its runs.

    These are of an encoder of twelve layers, of params/base. They are a family of their own: all of them are corrected
    together, and no run takes the seed variance of another encoder.
    """
    claims, content = read_claims(params)
    larger: dict[str, str] = content["papers_size"]
    renamed = []
    for claim in claims:
        parts = claim[claim["check"]]  # names of runs, what is claimed of them, the quantity
        # arithmetic and none name no run, forgetting names pairs of them
        if not isinstance(parts, list) or claim["check"] == "forgetting":
            continue
        if all(part in larger for part in parts if "/" in str(part)):
            renamed.append(claim | {claim["check"]: [larger.get(part, part) for part in parts]})
    grids = cache(partial(read_runs, "base", params=params))
    return _as_table(_check(renamed, grids, content["not_comparable_at_papers_size"]))


def _as_table(rows: list[dict]) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=COLUMNS)
    numbers = table[["our_number", "low", "high", "margin", "p", "q", "seeds_needed"]].astype(float).round(6)
    return table.assign(**numbers, seeds=table["seeds"].astype("Int64"))


def _check(claims: list[dict], grids: Grids, not_comparable: str) -> list[dict]:
    """A row per claim; not_comparable: why its score is not."""
    rows = []
    for claim in claims:
        row = {name: claim.get(name) for name in ("paper", "place", "claim", "kind", "fact")}
        row["its_number"] = claim.get("number")
        row["asked"] = f"{claim['check']} {claim[claim['check']]}"  # claims that ask the same count once
        row |= CHECKS[claim["check"]].row(claim, grids)
        reasons = [row.get("why"), claim.get("why")]
        if claim["check"] == "score" and row["verdict"] == NOT_COMPARABLE:
            reasons.insert(0, not_comparable)
        row["why"] = "; ".join(filter(None, reasons))
        rows.append(row)
    _judge([row for row in rows if "compared" in row])
    return rows


def _judge(rows: list[dict]) -> None:
    """Add the verdicts on what is compared, corrected together; claims with the same check count once."""
    comparisons = {(row["asked"], row["compared"].ratio): row["compared"] for row in rows}
    claims = [Claim(one.claimed, one.found, one.margin) for one in comparisons.values()]
    judged = dict(zip(comparisons, judge(claims, benjamini_hochberg), strict=True))
    for row in rows:
        one = row["compared"]
        verdict = judged[row["asked"], one.ratio]
        row |= verdict._asdict() | {"our_number": one.found.value, "margin": one.margin, "q": verdict.corrected}
        row["uses_prior"] = one.found.prior is not None
        if verdict.cautious == verdict.verdict:
            row["cautious"] = None
        if one.ratio:  # costs were compared by their logarithms, beside that of the claimed ratio
            row |= {name: one.ratio * math.exp(row[name]) for name in ("our_number", "low", "high")} | {"margin": None}


def _row(*groups: list[Run]) -> dict:
    run_ids = [run.run_id for run in chain(*groups)]
    return {"seeds": min(map(len, groups)), "run_ids": " ".join(run_ids)}


def _two_runs(claim: dict, grids: Grids) -> tuple[dict, list[Run], list[Run], str, Any]:
    """The beginning of a claim's row, the seeds of its two runs, what it claims of them, and in which quantity."""
    first, claimed, second, what = claim[claim["check"]]
    if claimed not in CLAIMED:
        raise ConfigError(f"claims.yaml, {claim['claim']}: {claimed!r} is not greater, smaller, equal or 'not greater'")
    runs = find(grids, first), find(grids, second)
    row = _row(*runs) | {"why": f"{first} against {second} in {what}, claimed {claimed}"}
    return row, *runs, claimed, what


def _check_two_runs(claim: dict, grids: Grids) -> dict:
    """A number of one run minus that of another, as `Check.measure` has it."""
    row, first, second, claimed, what = _two_runs(claim, grids)
    if not row["seeds"]:
        return row | {"verdict": NOT_MEASURED}
    check = CHECKS[claim["check"]]
    margin = margin_of(what) if check.has_margin else 0.0
    return row | {"compared": Compared(claimed, check.measure(first, second, what), margin)}


def _check_costs(claim: dict, grids: Grids) -> dict:
    """The logarithm of a ratio of costs, against that of the ratio that is claimed."""
    row, first, second, claimed, quantity = _two_runs(claim, grids)
    if not row["seeds"]:
        return row | {"verdict": NOT_MEASURED}
    runs = [*first, *second]
    if not are_timed_alike(runs):
        places = " and ".join(sorted(set(map(trained_by, runs))))
        shared = "" if all(run.is_on_cpu for run in runs) else ", where several runs share a GPU"
        return row | {"verdict": NOT_COMPARABLE, "why": f"{row['why']}; costs of {places}{shared}"}
    ratio = float(claim.get("number", 1)) if claimed == "equal" else 1.0
    found = log_cost_ratio(first, second, quantity)
    found = replace(found, value=found.value - math.log(ratio))
    return row | {"compared": Compared(claimed, found, COST_MARGIN, ratio)}


def _check_forgetting(claim: dict, grids: Grids) -> dict:
    """Whether a method forgets less than none does, by the pairs of runs without and with it, one pair per order."""
    orders = [(find(grids, plain), find(grids, method)) for plain, method in claim["forgetting"]]
    names = " and ".join(f"{method} against {plain}" for plain, method in claim["forgetting"])
    row = _row(*chain(*orders)) | {"why": f"forgetting, paired by seed: {names}"}
    if not row["seeds"]:
        return row | {"verdict": NOT_MEASURED}
    found = less_forgotten(orders)
    row["seeds"] = found.seeds
    return row | {"compared": Compared("greater", found, MEAN_MARGIN)}


def _by_seed(number: Callable[[Run, Any], float]) -> Measure:
    """The measure of a number that every seed has: the difference of the means, by Welch's t-test."""

    def measure(first: list[Run], second: list[Run], what: Any) -> Difference:
        return welch([number(run, what) for run in first], [number(run, what) for run in second])

    return measure


def _loss(run: Run, what: int | str) -> float:
    """Training loss of all tasks around a step, or of one: 'sts at 1200'."""
    task, _, step = str(what).rpartition(" at ")
    return run.curve.set_index("step").at[int(step), f"train_loss_{task}" if task else "train_loss"]


def _unsteadiness(run: Run, what: str) -> float:
    """Standard deviation of the dev score, overall or of a task, over the points in the last third of the steps."""
    steps = run.curve["step"]
    late = run.curve[steps >= 2 / 3 * steps.max()]
    if len(late) < 3:
        raise ConfigError(
            f"{run.run_id}: its curve has {len(late)} points in the last third of the steps, 3 are needed"
        )
    return float(late["dev_score" if what == "overall" else f"dev_{what}"].std())


def _extremes(run: Run, task: str) -> float:
    return share_at_ends(run.predictions_of(task)["predicted"].to_numpy())


def _check_score(claim: dict, grids: Grids) -> dict:
    path, task = claim["score"]
    runs = find(grids, path)
    row = _row(runs) | {"why": path}
    if not runs:
        return row | {"verdict": NOT_MEASURED}
    ours = summarize(runs, task)
    return row | {"our_number": ours["value"], "low": ours["low"], "high": ours["high"], "verdict": NOT_COMPARABLE}


def _check_arithmetic(claim: dict, grids: Grids) -> dict:
    expression = claim["arithmetic"]
    number = claim.get("number")
    names = _names(grids)
    row = {"why": expression}
    try:
        ours = evaluate(expression, names)
        if number is None:
            return row | {"verdict": REPRODUCED if ours else CONTRADICTED}
        low, high = range_by_rounding(expression, names)
    except MissingRun:
        return row | {"verdict": NOT_MEASURED}
    printed = float(number)
    half = half_digit(number) + 1e-9
    is_equal = low <= printed + half and high >= printed - half
    verdict = REPRODUCED if is_equal else CONTRADICTED
    return row | {"our_number": ours, "low": low, "high": high, "verdict": verdict}


def _cannot_be_checked(claim: dict, grids: Grids) -> dict:
    return {"verdict": NOT_CHECKABLE, "why": claim["none"]}


def _names(grids: Grids) -> dict[str, Any]:
    """What an expression may use."""
    bert = BertConfig()

    def runs_of_one_task() -> list[Run]:
        return list(chain(*grids("singles").runs.values()))

    def rows(name: str) -> int:
        """Rows that the runs read of a table, such as 'train sst'."""
        for run in runs_of_one_task():
            if name in run.provenance["rows"]:
                return run.provenance["rows"][name]
        raise MissingRun(name)

    def share(task: str, label: float) -> float:
        """Share of a label on the dev split."""
        for run in runs_of_one_task():
            if task in run.config.scored:
                _, labels = stack_predictions([run], task)
                return float((labels == label).mean())
        raise MissingRun(task)

    def plan(text: str) -> int:
        """Parameters of the encoders of a plan."""
        table = SharingPlan.parse(text, TOGETHER, bert.num_hidden_layers).table(bert)
        return int(table["parameters"].sum())

    def pal(s: int) -> int:
        """Parameters of the PALs of one task, of size s."""
        return adapter_parameters("pal", bert, AdapterSizes(s), with_biases=False)

    layer = part_sizes(bert)["layer"]
    return {"rows": rows, "share": share, "plan": plan, "pal": pal, "layer": layer, "min": min, "max": max}


class Check(NamedTuple):
    """A kind of check of claims.yaml."""

    row: Callable[[dict, Grids], dict]  # of a claim: its part of a row of `claims_table`, or what is `compared`
    words: str = ""  # what is compared; {first}, {second}: runs, {what}: the quantity, {pairs}: of runs
    form: str = "+.3f"  # of the number found
    measure: Measure | None = None  # of `_check_two_runs`
    has_margin: bool = False  # of `_check_two_runs`: that of the task


MINUS = "{first} minus {second}, "
CHECKS = {  # field of a claim -> its check
    "arithmetic": Check(_check_arithmetic),
    "score": Check(_check_score, "{first}, {what}: another encoder", ".3f"),
    "difference": Check(_check_two_runs, MINUS + "{what}", measure=difference, has_margin=True),
    "cost": Check(_check_costs, "{first} divided by {second}, {what}", ".3f"),
    "gap": Check(
        _check_two_runs,
        MINUS + "{what}: score on training rows minus score on dev",
        measure=_by_seed(train_gap),
        has_margin=True,
    ),
    "loss": Check(_check_two_runs, MINUS + "training loss of {what}", measure=_by_seed(_loss)),
    "extremes": Check(
        _check_two_runs,
        MINUS + "{what}: share of predictions within half a point of 0 or 5",
        measure=_by_seed(_extremes),
        has_margin=True,
    ),
    "unsteadiness": Check(
        _check_two_runs,
        MINUS + "{what}: standard deviation on dev over the points of the last third",
        "+.4f",
        measure=_by_seed(_unsteadiness),
    ),
    "forgetting": Check(
        _check_forgetting, "score lost on earlier tasks without the method minus with it, paired by seed: {pairs}"
    ),
    "none": Check(_cannot_be_checked),
}
