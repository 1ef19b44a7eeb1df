"""What was found: the box that opens README.md, notebook 00 and the site, and the tables of README.md.

Each sentence of the box rests on the differences of a notebook's section, with their verdicts; one whose runs are not
stored is left out.

`python -m mtbert.report.findings` writes box and tables into README.md between `<!-- NAME -->` and `<!-- end -->`.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from mtbert.config import RunConfig
from mtbert.paths import REPOSITORY, find_result
from mtbert.report.claims import OF_RUNS, facts
from mtbert.report.plots import TASK_LABELS
from mtbert.report.tables import Comparison, Grid, compare, read_runs
from mtbert.results import Run, difference, overall_interval, summarize
from mtbert.statistics import CLOSE, CONTRADICTED, MEAN_MARGIN, REPRODUCED, SEEDS, count_seeds

PAPERS = {  # what papers report for a bert-base of each task's own, by the names of the runs
    "SST frozen": "0.399 (000)",
    "SST fine-tuned": "0.519 (000), 0.523 (001), 0.513 (002)",
    "CFIMDB frozen": "0.751 (000)",
    "CFIMDB fine-tuned": "0.955 (000)",
    "Quora fine-tuned": "0.780 (001), 0.868 (002)",
    "STS fine-tuned": "0.521 (001), 0.872 (002)",
}
PLANS = ("1-bert", "hybrid-5", "hybrid-4", "hybrid-3", "hybrid-2", "hybrid-1", "3-bert")
GRIDS = ("hybrids", "singles", "pals_samplers", "gradients", "progressive", "distil")
GRADIENTS = ("gradients", "gradient_options", "memory_batch")
HEADS = ("feeds", "upstream", "combine", "head_norm", "head_dropout")


def findings(store: Path | None = None) -> list[str]:
    """The sentences, in Markdown. store: default `stores()`."""
    grids = {name: read_runs("cpu", name, store=store, train_missing=False) for name in GRIDS}
    plans = compare(grids["hybrids"], "plan")
    without_gain = {
        "PALs and other adapters": compare(grids["pals_samplers"], "adapter", "adapter_size", "adapter_heads"),
        "PCGrad, CAGrad, GEM and A-GEM": compare(grids["gradients"], *GRADIENTS, where=_is_unified),
        "progressive heads": compare(grids["progressive"], *HEADS),
    }
    sentences = [
        _cost_of_sharing(plans),
        _half_shared(plans),
        _teachers(grids["hybrids"] | grids["distil"]),
        _pairs_in_one_sequence(compare(grids["singles"], "pairs")),
        _samplers(compare(grids["pals_samplers"], "sampling")),
        _no_gain(without_gain),
        _claims(store),
    ]
    return [sentence for sentence in sentences if sentence]


def box(store: Path | None = None) -> str:
    """`findings` as a list in Markdown."""
    return "\n".join(f"- {sentence}" for sentence in findings(store))


def _is_unified(config: RunConfig) -> bool:
    return config.scheme == "unified"


def _measurable(comparison: Comparison, run: str) -> pd.DataFrame:
    """The measurable differences of a run from its reference, the largest first."""
    rows = comparison.differences
    rows = rows[(rows["run"] == run) & rows["verdict"].isin(["better", "worse"])]
    return rows.sort_values("value", key=abs, ascending=False)


def _on_tasks(rows: pd.DataFrame) -> str:
    """Such as "0.013 on Quora (0.009 to 0.017) and 0.012 on STS"; the first has its interval."""
    parts = []
    for row in rows.itertuples():
        low, high = sorted((abs(row.low), abs(row.high)))
        interval = "" if parts else f" ({low:.3f} to {high:.3f})"
        parts.append(f"{abs(row.value):.3f} on {TASK_LABELS[row.task]}{interval}")
    return " and ".join(parts)


def _millions(comparison: Comparison, run: str) -> str:
    return f"{comparison.runs[run][0].cost['parameters'] / 1e6:.1f}"


def _cost_of_sharing(plans: Comparison) -> str:
    if not {"1-bert", "3-bert"} <= plans.runs.keys():
        return ""
    rows = _measurable(plans, "3-bert")
    others = [label for task, label in TASK_LABELS.items() if task in plans.runs["1-bert"][0].config.tasks]
    others = [label for label in others if label not in rows["task"].map(TASK_LABELS).tolist()]
    loses = f"loses {_on_tasks(rows)}" if len(rows) else "loses nothing measurable"
    rest = f" On {' and '.join(others)} the difference is not measurable." if others and len(rows) else ""
    return f"**What sharing costs.** One encoder for three tasks {loses} against an encoder for each task.{rest}"


def _half_shared(plans: Comparison) -> str:
    if not {"1-bert", "hybrid-3", "3-bert"} <= plans.runs.keys():
        return ""
    rows = _measurable(plans, "hybrid-3")
    wins = f"wins back {_on_tasks(rows)}" if len(rows) and (rows["value"] > 0).all() else "wins back nothing measurable"
    return (
        f"**What it saves.** One encoder has {_millions(plans, '1-bert')} million parameters, three have "
        f"{_millions(plans, '3-bert')}. Sharing only the lower half of the layers {wins}."
    )


def _teachers(grid: Grid) -> str:
    said = students(grid)
    return f"**What teaching wins back.** {said}" if said else ""


def students(grid: Grid) -> str:
    """The run of 1-bert with teachers whose overall score is highest, against 1-bert and 3-bert; empty without these.

    All such runs with enough seeds count in the correction of its p-values.
    """
    taught = grid.pick(lambda config: config.teachers and config.plan == "1-bert" and config.adapter == "none")
    taught = taught.only([name for name, runs in taught.runs.items() if len(runs) >= SEEDS])
    if not taught.runs or not {"1-bert", "3-bert"} <= grid.runs.keys():
        return ""
    name = best(taught)
    others = {"1-bert": "one that learns from labels alone", "3-bert": "three encoders"}
    sentences = [
        _overall(Comparison(grid, dict.fromkeys(taught.runs, reference)), name, than)
        for reference, than in others.items()
    ]
    learned = "what separate ones predict"
    if taught.runs[name][0].config.distil == "annealed":
        learned = f"first {learned}, then the labels"
    return f"One encoder can learn {learned} (*{name}*). {' '.join(sentences)}"


def _overall(comparison: Comparison, run: str, than: str) -> str:
    """The overall difference of a run as a sentence; than: its reference in words.

    It is less than the margin where its whole interval is (Schuirmann 1987).
    """
    [row] = comparison.overall.query("run == @run").itertuples()
    low, high = sorted((abs(row.low), abs(row.high)))
    if row.verdict in ("better", "worse"):
        more = "more" if row.value > 0 else "less"
        return f"It then scores {abs(row.value):.3f} ({low:.3f} to {high:.3f}) {more} overall than {than}."
    shown = f"{row.value:+.3f} ({row.low:+.3f} to {row.high:+.3f})"
    if max(abs(row.low), abs(row.high)) < MEAN_MARGIN:
        return f"Its difference from {than} is less than {MEAN_MARGIN}: {shown}."
    return f"Its difference from {than}, {shown}, is not measurable."


def _pairs_in_one_sequence(pairs: Comparison) -> str:
    rows = pd.concat([_measurable(pairs, f"{task} alone, concat") for task in ("STS", "Quora")])
    if rows.empty or (rows["value"] > 0).any():
        return ""
    return (
        "**What matters far more.** Reading a pair of sentences in one sequence, not one by one, gains "
        f"{_on_tasks(rows)}. No way of sharing a trained encoder gains as much."
    )


def _samplers(samplers: Comparison) -> str:
    rows = _measurable(samplers, "1-bert, proportional")
    gains, losses = (rows[rows["value"] > 0], rows[rows["value"] < 0])
    if gains.empty or losses.empty:
        return ""
    return (
        "**What trades one task for another.** Drawing tasks by their size, not equally often, gains "
        f"{_on_tasks(gains)}. It loses {_on_tasks(losses)}."
    )


def _no_gain(methods: dict[str, Comparison]) -> str:
    """The methods of which no difference is "better"."""
    decided = {name: part.differences for name, part in methods.items() if len(part.differences)}
    names = [name for name, rows in decided.items() if not (rows["verdict"] == "better").any()]
    if not names:
        return ""
    tried = sum(len(decided[name]) for name in names)
    return (
        f"**What gains nothing measurable.** {', '.join(names)}: none of {tried} differences from the same model "
        "without them is a measurable gain."
    )


def _claims(store: Path | None) -> str:
    path = find_result("claims.csv", [store] if store else None)
    if not path.exists():
        return ""
    checked = facts(pd.read_csv(path))
    verdicts = checked.loc[checked["kind"] == "finding", "verdict"]
    counts = {verdict: int((verdicts == verdict).sum()) for verdict in (REPRODUCED, CONTRADICTED, CLOSE)}
    return (
        f"**What became of the papers' findings.** Our runs check {len(verdicts)}: {counts[REPRODUCED]} are reproduced "
        f"and {counts[CONTRADICTED]} contradicted; most others are too close to call."
    )


def claim_counts(claims: pd.DataFrame) -> pd.DataFrame:
    """How many of `claims_table` have each verdict: a row per kind of check, a column per verdict, and all.

    A fact that several claims state counts once; printed numbers that were computed or counted again count each.
    """
    compared = facts(claims)
    is_finding = compared["kind"] == "finding"
    is_checked = claims["verdict"].isin(OF_RUNS)
    kinds = {
        "findings of the papers, by our runs": compared[is_finding],
        "baselines, questions and recommendations, by our runs": compared[~is_finding],
        "printed numbers, computed or counted again": claims[(claims["kind"] == "slip") & is_checked],
    }
    counts = pd.DataFrame({name: part["verdict"].value_counts() for name, part in kinds.items()})
    counts = counts.reindex([*reversed(OF_RUNS)]).fillna(0).astype(int).T
    return counts.assign(all=counts.sum(axis=1)).rename_axis("checked")


def unchecked(claims: pd.DataFrame) -> str:
    """One sentence: how many claims were not compared, and why; empty where all were."""
    others = claims.loc[~claims["verdict"].isin(OF_RUNS), "verdict"].value_counts()
    listed = ", ".join(f"{count} {verdict}" for verdict, count in others.items())
    return f"Claims that could not be compared: {listed}." if len(others) else ""


def write_tables(readme: Path = REPOSITORY / "README.md", store: Path = REPOSITORY / "results") -> Path:
    """Write box and tables of the README again; returns its path. Raises ValueError for a mark that names none."""
    text = readme.read_text(encoding="utf8")
    files = ("singles", "hybrids", "best_model", "controls")
    singles, hybrids, models, controls = (read_runs("cpu", name, store=store, train_missing=False) for name in files)
    tables = {"findings": box(store), "single tasks": single_tasks(singles), "plans": plans(hybrids, PLANS)}
    tables |= {"plan differences": compare(hybrids, "plan").answer, "best model": plans(models, [best(models)])}
    tables["longer training"] = longer_training(hybrids | controls)
    if (path := store / "claims.csv").exists():
        claims = pd.read_csv(path)
        counts = claim_counts(claims).reset_index()
        rows = [counts.columns, ["---"] * counts.shape[1], *counts.to_numpy()]
        table_of_counts = "\n".join(f"| {' | '.join(map(str, row))} |" for row in rows)
        tables["claims"] = f"{table_of_counts}\n\n{unchecked(claims)}".strip()

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


def longer_training(grid: Grid) -> str:
    """One sentence: 3-bert minus 1-bert overall, after the usual and after more steps."""
    parts = []
    for names in (("3-bert", "1-bert"), ("3-bert, long", "1-bert, long")):
        first, second = (grid.runs.get(name) for name in names)
        if first and second:
            found = difference(first, second, pearson=0.5, among=grid.among)
            seeds = count_seeds(min(len(first), len(second)))
            verdict = f"{seeds}, not decided" if not found.is_decided else found.text().partition(" ")[2].strip("()")
            parts.append(f"{found.value:+.3f} after {first[0].cost['steps']:,} steps ({verdict})")
    return f"Overall, 3-bert minus 1-bert is {' and '.join(parts)}." if parts else ""


def best(grid: Grid, parameters: float = 45e6) -> str | None:
    """The run with the highest mean overall score, with at most this number of parameters; None where there is none."""
    small = {name: runs for name, runs in grid.runs.items() if runs[0].cost["parameters"] <= parameters}
    means = {name: sum(run.score() for run in runs) / len(runs) for name, runs in small.items()}
    return max(means, key=means.get, default=None)


def _score(runs: list[Run], task: str | None = None) -> str:
    found = summarize(runs, task)
    return _shown((found["value"], found["low"], found["high"]))


def _shown(estimate: tuple[float, float, float]) -> str:
    return "{:.3f} ({:.3f} to {:.3f})".format(*estimate)


if __name__ == "__main__":
    print(write_tables())
