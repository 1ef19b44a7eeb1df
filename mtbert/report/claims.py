"""The claims of the five papers (params/claims.yaml), checked against the stored runs.

The rule for verdicts. An order: the 95 % interval of our difference, over seeds and examples, lies on the claimed
side of 0: "reproduced"; on the other side: "contradicted"; else "not distinguishable". No difference: the interval
lies within +-MARGIN: "reproduced"; excludes 0 by more than that: "contradicted"; else "not distinguishable". A ratio of
costs likewise, in logarithms and with COST_MARGIN, from the lowest to the highest of all pairs of seeds. Both need
SEEDS seeds of either run, or as many as its grid has but at least 2, else they are "not decided"; numbers of
parameters need one. Intervals are not corrected for the number of claims. Arithmetic: equal to the printed digits, as
far as the rounding of the printed numbers it starts from allows: "reproduced", else "contradicted".
"""

import itertools
import math
import re
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from mtbert.bert import BertConfig, part_sizes
from mtbert.config import ConfigError, RunConfig
from mtbert.data import TASKS
from mtbert.paths import REPOSITORY, results_dir
from mtbert.results import (
    MissingRun,
    Run,
    difference,
    load_or_run,
    read_grid,
    stack_predictions,
    summarize,
    write_table,
)
from mtbert.sharing import AdapterSizes, SharingPlan, adapter_parameters
from mtbert.training import RESAMPLES, metrics_of

MARGIN = 0.01  # of a score: differences below count as none
COST_MARGIN = math.log(1.1)
SEEDS = 3
TOGETHER = ("sst", "quora", "sts")
SIMILARITY = {"overall": 0.5, "average": 1.0}  # factor of Pearson in the mean of the tasks: paper 002; 001 and 003
DECIMAL = re.compile(r"(?<![\w.])\d+\.(\d+)")  # in an expression: a printed number, rounded; whole numbers are exact
FIELDS = {"paper", "place", "claim", "number", "comparable", "why"}


class Stored:
    """The runs of a store, by the names that they have in params/cpu/: 'hybrids/3-bert'."""

    def __init__(self, store: Path, params: Path) -> None:
        self.store = store
        self.grid = cache(lambda name: read_grid(params / "cpu" / f"{name}.yaml"))
        self.runs = cache(self._runs)

    def configs(self, path: str) -> list[RunConfig]:
        """The configurations of a run's seeds; raises ConfigError for a grid or a name that does not exist."""
        grid, _, name = path.partition("/")
        if name not in self.grid(grid):
            raise ConfigError(f"params/cpu/{grid}.yaml has no run {name!r}")
        return self.grid(grid)[name]

    def _runs(self, path: str) -> list[Run]:
        found = []
        for config in self.configs(path):
            try:
                found.append(load_or_run(config, store=self.store, train_missing=False))
            except MissingRun:
                continue
        return found


def read_claims(params: Path) -> tuple[list[dict], str]:
    """The claims of claims.yaml, each with its paper, its place and its one check, and why scores are not comparable.

    Raises ConfigError naming a claim with an unknown field or without exactly one check.
    """
    content = yaml.safe_load((params / "claims.yaml").read_text(encoding="utf8"))
    claims = [
        {"paper": paper, "place": place, **claim}
        for paper, places in content["claims"].items()
        for place, entries in places.items()
        for claim in entries
    ]
    for claim in claims:
        checks = set(claim) & set(CHECKS)
        if set(claim) - FIELDS != checks or "claim" not in claim or len(checks) != 1:
            raise ConfigError(f"claims.yaml, {claim}: fields are {', '.join(sorted(FIELDS))}, and one of {[*CHECKS]}")
        claim["check"] = checks.pop()
    return claims, content["not_comparable"]


def claims_table(store: str | Path | None = None, params: str | Path | None = None) -> pd.DataFrame:
    """A row per claim: paper, place, claim, its_number, our_number, low, high, seeds, run_ids, verdict, why.

    store: default `results_dir()`; params: the folder of claims.yaml and of cpu/ with the grids, by default that of
    the repository. low and high: the 95 % interval; of arithmetic, what the rounding of its numbers allows.
    """
    params = Path(params or REPOSITORY / "params")
    stored = Stored(Path(store or results_dir()), params)
    claims, not_comparable = read_claims(params)
    rows = []
    for claim in claims:
        found = CHECKS[claim["check"]](claim, stored)
        why = [found.pop("why", None), claim.get("why")]
        if found["verdict"] == "not comparable":
            why = [not_comparable, *why]
        row = {name: claim[name] for name in ("paper", "place", "claim")} | {"its_number": claim.get("number")}
        row |= dict.fromkeys(("our_number", "low", "high", "seeds", "run_ids")) | found
        rows.append(row | {"why": "; ".join(filter(None, why))})
    table = pd.DataFrame(rows)
    numbers = table[["our_number", "low", "high"]].astype(float).round(4)
    return table.assign(**numbers, seeds=table["seeds"].astype("Int64"))


def write_claims(store: str | Path | None = None, params: str | Path | None = None) -> Path:
    """Write `claims_table` to claims.csv of the store; returns its path."""
    store = Path(store or results_dir())
    return write_table(claims_table(store, params), store / "claims.csv")


def judge(claimed: str, low: float, high: float, margin: float = MARGIN) -> str:
    """What an interval says of a claimed order, 'greater' or 'smaller', or of no difference, 'equal'."""
    if claimed == "equal":
        holds, fails = -margin <= low and high <= margin, low > margin or high < -margin
    else:
        low, high = {"greater": (low, high), "smaller": (-high, -low)}[claimed]
        holds, fails = low > 0, high < 0
    return "reproduced" if holds else "contradicted" if fails else "not distinguishable"


def _check_two_runs(claim: dict, stored: Stored) -> dict:
    first, claimed, second, what = claim[claim["check"]]
    runs = [stored.runs(path) for path in (first, second)]
    seeds = min(map(len, runs))
    row = {"seeds": seeds, "run_ids": " ".join(run.run_id for part in runs for run in part)}
    row["why"] = f"{first} against {second} in {what}, claimed {claimed}"
    if not seeds:
        return row | {"verdict": "not measured yet"}
    if claim["check"] == "cost":
        value, low, high = _ratio(*runs, what)
        expected = float(claim.get("number", 1)) if claimed == "equal" else 1.0
        verdict = judge(claimed, math.log(low / expected), math.log(high / expected), COST_MARGIN)
    else:
        value, low, high = (difference_together if what in SIMILARITY else difference)(*runs, what)
        verdict = judge(claimed, low, high)
    needed = [max(2, min(SEEDS, len(stored.configs(path)))) for path in (first, second)]
    if any(len(part) < n for part, n in zip(runs, needed, strict=True)) and "parameters" not in what:
        verdict = f"not decided ({seeds} seed{'s' if seeds > 1 else ''})"
    return row | {"our_number": value, "low": low, "high": high, "verdict": verdict}


def difference_together(first: list[Run], second: list[Run], kind: str) -> tuple[float, float, float]:
    """Difference of the mean score of three tasks, and its 95 % interval; a resample draws a run's tasks together."""
    both = [[stack_predictions(runs, task) for task in TOGETHER] for runs in (first, second)]
    metrics = [next(iter(metrics_of(TASKS[task]).values())) for task in TOGETHER]
    weights = np.array([SIMILARITY[kind] if TASKS[task].kind == "similarity" else 1 for task in TOGETHER])

    def mean(parts: list, seeds: np.ndarray, examples: list[np.ndarray]) -> float:
        drawn = zip(metrics, parts, examples, strict=True)
        scores = [metric(x[np.ix_(seeds, rows)], y[rows]).mean() for metric, (x, y), rows in drawn]
        return float((weights * scores).mean())

    random, draws = np.random.default_rng(0), []
    sizes, seeds = [len(y) for _, y in both[0]], [len(runs) for runs in (first, second)]
    for _ in range(RESAMPLES):
        examples = [random.integers(n, size=n) for n in sizes]
        one, other = (mean(parts, random.integers(S, size=S), examples) for parts, S in zip(both, seeds, strict=True))
        draws.append(one - other)
    one, other = (mean(p, np.arange(S), [np.arange(n) for n in sizes]) for p, S in zip(both, seeds, strict=True))
    return one - other, *np.nanpercentile(draws, [2.5, 97.5])


def _ratio(first: list[Run], second: list[Run], quantity: str) -> tuple[float, float, float]:
    """Ratio of the mean costs; the lowest and the highest of all pairs of seeds."""

    def cost(run: Run) -> float:
        return {"seconds_per_epoch": run.cost["train_seconds"] / run.config.epochs, **run.cost}[quantity]

    one, other = ([cost(run) for run in runs] for runs in (first, second))
    return sum(one) / len(one) / (sum(other) / len(other)), min(one) / max(other), max(one) / min(other)


def _check_score(claim: dict, stored: Stored) -> dict:
    path, task = claim["score"]
    runs = stored.runs(path)
    row = {"seeds": len(runs), "run_ids": " ".join(run.run_id for run in runs), "why": path}
    if not runs:
        return row | {"verdict": "not measured yet"}
    ours = summarize(runs, task)
    inside = ours["low"] <= float(claim["number"]) <= ours["high"]
    verdict = ("reproduced" if inside else "contradicted") if claim.get("comparable") else "not comparable"
    return row | {"our_number": ours["value"], "low": ours["low"], "high": ours["high"], "verdict": verdict}


def _check_arithmetic(claim: dict, stored: Stored) -> dict:
    expression, number = claim["arithmetic"], claim.get("number")
    names = _names(stored)
    try:
        ours = eval(expression, names)
        if number is None:
            return {"verdict": "reproduced" if ours else "contradicted", "why": expression}
        corners = [eval(text, names) for text in _roundings(expression)]
    except MissingRun:
        return {"verdict": "not measured yet", "why": expression}
    low, high = min(corners), max(corners)
    half = 0.5 * 10.0 ** -len(number.partition(".")[2]) + 1e-9
    verdict = "reproduced" if low <= float(number) + half and high >= float(number) - half else "contradicted"
    return {"our_number": ours, "low": low, "high": high, "verdict": verdict, "why": expression}


def _roundings(expression: str) -> list[str]:
    """The expression with every decimal at the lower or upper end of what rounds to it, in all combinations."""
    ends = [f"({m[0]} {{}} 5e-{len(m[1]) + 1})" for m in DECIMAL.finditer(expression)]
    pattern = DECIMAL.sub("{}", expression)
    return [
        pattern.format(*(end.format(sign) for end, sign in zip(ends, signs, strict=True)))
        for signs in itertools.product("+-", repeat=len(ends))
    ]


def _names(stored: Stored) -> dict:
    """What an expression may use."""
    bert = BertConfig()

    def alone() -> list[Run]:
        return [run for name in stored.grid("singles") for run in stored.runs(f"singles/{name}")]

    def rows(name: str) -> int:
        """Rows that the runs read of a table, such as 'train sst'."""
        for run in alone():
            counts = run.provenance["rows"]
            counts = {f"train {run.config.tasks[0]}": counts.get("train"), **counts}  # of old runs of one task
            if counts.get(name):
                return counts[name]
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

    names = {"rows": rows, "share": share, "plan": plan, "pal": pal, "layer": part_sizes(bert)["layer"]}
    return names | {"__builtins__": {"min": min, "max": max}}


CHECKS = {
    "arithmetic": _check_arithmetic,
    "difference": _check_two_runs,
    "score": _check_score,
    "cost": _check_two_runs,
    "none": lambda claim, stored: {"verdict": "cannot be checked", "why": claim["none"]},
}
