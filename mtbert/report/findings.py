"""What was found: the box that opens README.md, notebook 00 and the site, and the tables of README.md.

Each sentence of the box rests on the differences of a notebook's section, with their verdicts; one whose runs are not
stored is left out.

`python -m mtbert.report.findings` writes box and tables into README.md between `<!-- NAME -->` and `<!-- end -->`.
"""

import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pandas as pd

from mtbert.config import RunConfig
from mtbert.paths import REPOSITORY, find_result
from mtbert.report.claims import OF_RUNS, facts
from mtbert.report.plots import TASK_LABELS
from mtbert.report.tables import Comparison, Grid, compare, read_runs, signed, unsigned
from mtbert.results import Run, difference, overall_interval, summarize
from mtbert.statistics import CONTRADICTED, MEAN_MARGIN, NOT_DECIDED, REPRODUCED, SEEDS, count_seeds, decide

PAPERS = {  # what papers report for a bert-base of each task's own, by the names of the runs
    "SST frozen": "0.399 (000)",
    "SST fine-tuned": "0.519 (000), 0.523 (001), 0.513 (002)",
    "CFIMDB frozen": "0.751 (000)",
    "CFIMDB fine-tuned": "0.955 (000)",
    "Quora fine-tuned": "0.780 (001), 0.868 (002)",
    "STS fine-tuned": "0.521 (001), 0.872 (002)",
}
PLANS = ("1-bert", "hybrid-5", "hybrid-4", "hybrid-3", "hybrid-2", "hybrid-1", "3-bert")
MOST_PARAMETERS = 45e6  # of the best run
GRADIENTS = ("gradients", "gradient_options", "memory_batch")
HEADS = ("feeds", "upstream", "combine", "head_norm", "head_dropout")


def box(store: Path | None = None) -> str:
    """The sentences as a list in Markdown. store: default `stores()`."""
    read = partial(read_runs, "cpu", store=store, train_missing=False)
    hybrids = read("hybrids")
    plans = compare(hybrids, "plan")
    adapters = read("pals_samplers")
    methods = {
        "PALs and other adapters": compare(adapters, "adapter", "adapter_size", "adapter_heads"),
        "PCGrad, CAGrad, GEM and A-GEM": compare(read("gradients"), *GRADIENTS, where=_is_unified),
        "progressive heads": compare(read("progressive"), *HEADS),
    }
    sentences = [
        _cost_of_sharing(plans),
        _half_shared(plans),
        _teachers(hybrids | read("distil")),
        _pairs_in_one_sequence(compare(read("singles"), "pairs")),
        _samplers(compare(adapters, "sampling")),
        _no_gain(methods),
        _claims(store),
    ]
    return "\n".join(f"- {sentence}" for sentence in sentences if sentence)


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
        part = f"{abs(row.value):.3f} on {TASK_LABELS[row.task]}"
        if not parts:
            _, _, interval = unsigned(row).partition(" ")
            part += f" {interval}"
        parts.append(part)
    return " and ".join(parts)


def _cost_of_sharing(plans: Comparison) -> str:
    if not {"1-bert", "3-bert"} <= plans.runs.keys():
        return ""
    rows = _measurable(plans, "3-bert")
    lost, won = rows[rows["value"] > 0], rows[rows["value"] < 0]
    change = f"loses {_on_tasks(lost) or 'nothing measurable'}"
    if len(won):
        change += f" and gains {_on_tasks(won)}"
    text = f"**What sharing costs.** One encoder for three tasks {change} against an encoder for each task."
    others = set(plans.runs["1-bert"][0].config.tasks) - set(rows["task"])
    if rows.empty or not others:
        return text
    labels = " and ".join(label for task, label in TASK_LABELS.items() if task in others)
    return f"{text} On {labels} the difference is not measurable."


def _half_shared(plans: Comparison) -> str:
    if not {"1-bert", "hybrid-3", "3-bert"} <= plans.runs.keys():
        return ""
    rows = _measurable(plans, "hybrid-3")
    is_gain = len(rows) and (rows["value"] > 0).all()
    wins = _on_tasks(rows) if is_gain else "nothing measurable"
    one = plans.runs["1-bert"][0].cost["parameters"] / 1e6
    three = plans.runs["3-bert"][0].cost["parameters"] / 1e6
    return (
        f"**What it saves.** One encoder has {one:.1f} million parameters, three have {three:.1f}. "
        f"Sharing only the lower half of the layers wins back {wins}."
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
    config = taught.runs[name][0].config
    has_own_plan = all(teacher.plan == config.plan for teacher in config.all_teachers)
    learned = "what others of its plan predict" if has_own_plan else "what separate ones predict"
    if config.distil == "annealed":
        learned = f"first {learned}, then the labels"
    sentences = [f"One encoder can learn {learned} (*{name}*)."]
    for reference, than in {"1-bert": "one that learns from labels alone", "3-bert": "three encoders"}.items():
        against = Comparison(grid, dict.fromkeys(taught.runs, reference))
        sentences.append(_overall(against, name, than))
    sentences.append(f"Its teacher{' has' if len(config.all_teachers) == 1 else 's have'} to be trained first.")
    return " ".join(sentences)


def _overall(comparison: Comparison, run: str, than: str) -> str:
    """The overall difference of a run as a sentence; than: its reference in words.

    It is less than the margin where its whole interval is (Schuirmann 1987).
    """
    [row] = comparison.overall.query("run == @run").itertuples()
    if row.verdict in ("better", "worse"):
        more = "more" if row.value > 0 else "less"
        return f"It scores {unsigned(row)} {more} overall than {than}."
    if max(abs(row.low), abs(row.high)) < MEAN_MARGIN:
        return f"It differs from {than} by less than {MEAN_MARGIN} ({row.low:+.3f} to {row.high:+.3f})."
    return f"Its difference from {than}, {signed(row)}, is not measurable."


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
    gains = rows[rows["value"] > 0]
    losses = rows[rows["value"] < 0]
    if gains.empty or losses.empty:
        return ""
    return (
        "**What trades one task for another.** Drawing tasks by their size, not equally often, gains "
        f"{_on_tasks(gains)}. It loses {_on_tasks(losses)}."
    )


def _no_gain(methods: dict[str, Comparison]) -> str:
    """The methods of which no difference is "better"."""
    names = []
    tried = 0
    for name, comparison in methods.items():
        rows = comparison.differences
        if len(rows) and "better" not in rows["verdict"].tolist():
            names.append(name)
            tried += len(rows)
    if not names:
        return ""
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
    reproduced = (verdicts == REPRODUCED).sum()
    contradicted = (verdicts == CONTRADICTED).sum()
    return (
        f"**What became of the papers' findings.** Our runs check {len(verdicts)}: {reproduced} are reproduced "
        f"and {contradicted} contradicted; most others are too close to call."
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
    counts = counts.T.reindex(columns=OF_RUNS[::-1]).fillna(0).astype(int)
    return counts.assign(all=counts.sum(axis=1)).rename_axis("checked")


def unchecked(claims: pd.DataFrame) -> str:
    """One sentence: how many claims were not compared, and why; empty where all were."""
    others = claims.loc[~claims["verdict"].isin(OF_RUNS), "verdict"].value_counts()
    listed = ", ".join(f"{count} {verdict}" for verdict, count in others.items())
    return f"Claims that could not be compared: {listed}." if len(others) else ""


def write_tables(readme: Path = REPOSITORY / "README.md", store: Path = REPOSITORY / "results") -> Path:
    """Write box and tables of the README again; returns its path. Raises ValueError for a mark that names none."""
    tables = _tables(store)

    def table(match: re.Match) -> str:
        name = match[1]
        if name not in tables:
            raise ValueError(f"{readme.name}: <!-- {name} --> names no table; known are {', '.join(tables)}")
        return f"<!-- {name} -->\n{tables[name]}\n<!-- end -->"

    text = readme.read_text(encoding="utf8")
    text = re.sub(r"<!-- ([a-z ]+) -->\n.*?\n<!-- end -->", table, text, flags=re.DOTALL)
    readme.write_text(text, encoding="utf8")
    return readme


def _tables(store: Path) -> dict[str, str]:
    """Name -> the table or sentence of the README, in Markdown."""
    read = partial(read_runs, "cpu", store=store, train_missing=False)
    hybrids = read("hybrids")
    models = read("best_model")
    students = read("distil_best")
    best_model = best(models)
    taught = Comparison(models | students, dict.fromkeys(students.configs, best_model))
    tables = {
        "findings": box(store),
        "single tasks": single_tasks(read("singles")),
        "plans": plans(hybrids, PLANS),
        "plan differences": compare(hybrids, "plan").answer,
        "best model": f"{taught.answer}\n\n{plans(taught.grid, [best_model, *students.configs])}".strip(),
        "longer training": longer_training(hybrids | read("distil_long")),
    }
    path = store / "claims.csv"
    if path.exists():
        claims = pd.read_csv(path)
        counts = claim_counts(claims).reset_index()
        lines = [_line(counts.columns), _line(["---"] * counts.shape[1])]
        lines += [_line(row) for row in counts.to_numpy()]
        tables["claims"] = "\n".join([*lines, "", unchecked(claims)]).strip()
    return tables


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def single_tasks(grid: Grid) -> str:
    """A row per task alone, frozen or fine-tuned: dev score with its interval, seeds, what papers report."""
    lines = ["| run | dev score, 95 % interval | seeds | papers (bert-base) |", "|---|---|---|---|"]
    for name, paper in PAPERS.items():
        if runs := grid.runs.get(name):
            lines.append(_line([name, _score(runs), len(runs), paper]))
    return "\n".join(lines)


def plans(grid: Grid, names: Iterable[str | None]) -> str:
    """A row per run of three tasks: dev scores and overall with their intervals, seeds, parameters."""
    lines = ["| run | SST | Quora | STS | overall | seeds | parameters |", "|---|---|---|---|---|---|---|"]
    for name in names:
        if runs := grid.runs.get(name):
            scores = [_score(runs, task) for task in runs[0].config.tasks]
            overall = _shown(*overall_interval(runs))
            parameters = f"{runs[0].cost['parameters'] / 1e6:.1f} M"
            lines.append(_line([name, *scores, overall, len(runs), parameters]))
    return "\n".join(lines)


def longer_training(grid: Grid) -> str:
    """Sentences: 3-bert minus 1-bert overall, after the usual and after more steps, with their verdicts."""
    pairs = []
    for length in ("", ", long"):
        first = grid.runs.get(f"3-bert{length}")
        second = grid.runs.get(f"1-bert{length}")
        if first and second:
            pairs.append((first, second))
    if not pairs:
        return ""
    gaps = decide([difference(first, second, pearson=0.5, among=grid.among) for first, second in pairs])
    parts = []
    for (runs, _), row in zip(pairs, gaps.itertuples(), strict=True):
        about = count_seeds(row.seeds) if row.verdict == NOT_DECIDED else f"{row.low:+.3f} to {row.high:+.3f}"
        parts.append(f"{row.value:+.3f} after {runs[0].cost['steps']:,} steps ({about}; {row.verdict})")
    return f"Overall, 3-bert minus 1-bert is {'. It is '.join(parts)}."


def best(grid: Grid) -> str | None:
    """The run with the highest mean overall score, with at most MOST_PARAMETERS; None where there is none."""
    means = {}
    for name, runs in grid.runs.items():
        if runs[0].cost["parameters"] <= MOST_PARAMETERS:
            means[name] = sum(run.score() for run in runs) / len(runs)
    return max(means, key=means.get, default=None)


def _score(runs: list[Run], task: str | None = None) -> str:
    found = summarize(runs, task)
    return _shown(found["value"], found["low"], found["high"])


def _shown(value: float, low: float, high: float) -> str:
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    print(write_tables())
