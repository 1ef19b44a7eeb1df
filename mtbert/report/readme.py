"""The tables of README.md, written from the results store between the marks `<!-- NAME -->` and `<!-- end -->`."""

import re
from pathlib import Path

from mtbert.paths import REPOSITORY
from mtbert.report.tables import Grid, compare, read_runs
from mtbert.results import Run, summarize

PAPERS = {  # what papers report for bert-base, by the names of the runs
    "SST frozen": ".399 (000)",
    "SST fine-tuned": ".519 (000), .523 (001)",
    "CFIMDB frozen": ".751 (000)",
    "CFIMDB fine-tuned": ".955 (000)",
    "Quora fine-tuned": ".780 (001)",
    "STS fine-tuned": ".521 (001)",
}
PLANS = ("1-bert", "hybrid-5", "hybrid-4", "hybrid-3", "hybrid-2", "hybrid-1", "3-bert")


def write_tables(readme: Path = REPOSITORY / "README.md", store: Path = REPOSITORY / "results") -> Path:
    """Write every table of the README again; returns its path. Raises ValueError for a mark that names no table."""
    text = readme.read_text(encoding="utf8")
    singles, hybrids = (read_runs("cpu", name, store=store, train_missing=False) for name in ("singles", "hybrids"))
    differences = compare(hybrids, "plan").answer
    tables = {"single tasks": single_tasks(singles), "plans": plans(hybrids), "plan differences": differences}

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


def plans(grid: Grid) -> str:
    """A row per plan of three tasks: dev scores with their intervals, overall, seeds, parameters."""
    lines = ["| plan | SST | Quora | STS | overall | seeds | parameters |", "|---|---|---|---|---|---|---|"]
    for name in PLANS:
        if runs := grid.runs.get(name):
            scores = " | ".join(_score(runs, task) for task in runs[0].config.tasks)
            overall = sum(run.score() for run in runs) / len(runs)
            parameters = runs[0].cost["parameters"] / 1e6
            lines.append(f"| {name} | {scores} | {overall:.3f} | {len(runs)} | {parameters:.1f} M |")
    return "\n".join(lines)


def _score(runs: list[Run], task: str | None = None) -> str:
    found = summarize(runs, task)
    return f"{found['value']:.3f} ({found['low']:.3f} to {found['high']:.3f})"


if __name__ == "__main__":
    print(write_tables())
