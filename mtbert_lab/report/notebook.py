"""What the report's notebooks share: their parameters, checked, and where the numbers come from."""

import ast
import html
import math
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd
from IPython.display import HTML, Markdown, display

from mtbert import __version__
from mtbert.config import ConfigError
from mtbert.data import TASKS
from mtbert.paths import REPOSITORY
from mtbert_lab.analysis.doubts import doubts
from mtbert_lab.escapes import escaped
from mtbert_lab.own_code import import_files
from mtbert_lab.paths import stores
from mtbert_lab.report import plots, plots_sweeps, sentences
from mtbert_lab.report.tables import Comparison, Grid, read_runs, score_table
from mtbert_lab.report.words import METRIC_LABELS, TASK_LABELS
from mtbert_lab.statistics import margin_of
from mtbert_lab.store import Corpora, is_done, load_or_run

SYNTHETIC = (
    "**Demo profile.** The corpus is synthetic and every run takes some seconds: the numbers below show that the "
    "pipeline works, and say nothing about the methods."
)
OTHER_RUNS = (
    "**The text speaks of the report's own runs,** those of `params/cpu` with all seeds, and so do captions. This page "
    "has others: its figures and tables are theirs, and sentences with numbers are left out."
)
SORT = """const h = event.target.closest('th'), body = h.closest('table').tBodies[0];
const sign = h.dataset.sign = h.dataset.sign == 1 ? -1 : 1, text = row => row.cells[h.cellIndex].innerText;
const number = row => parseFloat(text(row).replace(/,/g, '')), order = (a, b) => number(a) - number(b);
[...body.rows].sort((a, b) => sign * (isNaN(order(a, b)) ? text(a).localeCompare(text(b)) : order(a, b)))
  .forEach(row => body.append(row))"""
NO_LABELS: Mapping[str, str] = MappingProxyType({})
ABOUT = ("data", "device", "threads", "mtbert", "torch")  # what a run ran on
INJECTED = "# Parameters\n"  # how the cell begins that papermill adds behind the parameters cell


def parameters(namespace: dict[str, Any]) -> dict[str, Any]:
    """The notebook's parameters, from its `globals()`, called in the cell behind the parameters cell.

    Declared are the annotated names of the parameters cell (`seed: int = 1`). Raises ConfigError for a name that
    papermill injects and that is not declared, since papermill only warns about it, and for a value of another type
    than declared. `1e-5`, which YAML reads as a string, counts as a float. Other names do not matter: in a kernel that
    runs the notebook again, the later cells have left theirs.
    """
    declared = namespace.get("__annotations__", {})
    cells = namespace.get("In", ())  # those that have run
    unknown = _injected(cells) - declared.keys()
    if unknown:
        names = ", ".join(sorted(unknown))
        raise ConfigError(f"{names}: no parameter of this notebook; it has {', '.join(declared)}")
    return {name: _checked(name, namespace[name], declared[name]) for name in declared if name in namespace}


def _injected(cells: Iterable[str]) -> set[str]:
    """The names that papermill's last cell assigns."""
    cells = [cell for cell in cells if cell.startswith(INJECTED)]
    if not cells:
        return set()
    names = [node for node in ast.walk(ast.parse(cells[-1])) if isinstance(node, ast.Name)]
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


def _checked(name: str, value: Any, expected: type) -> Any:
    if expected is float and isinstance(value, int | str) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            value = float(value)
    if expected is bool and value in ("true", "false"):  # papermill's -p reads True and False alone
        value = value == "true"
    if type(value) is not expected or (expected is float and not math.isfinite(value)):
        raise ConfigError(f"{name}: expected {expected.__name__}, got {value!r}")
    return value


def load(given: dict[str, Any], *names: str) -> list[Grid]:
    """The runs of the grids params/<profile>/<name>.yaml; with a `grid` of one's own, those of that file for each name.

    given: `parameters(globals())` with profile, seed, data_dir, device, train_missing, progress, and where a notebook
    has them grid (a path from here or from the repository) and only (a part of the names of runs). Before training it
    says how many runs there are to train. It says what the scores of a `grid` are.
    """
    if given.get("grid"):
        return [load_own(given)] * len(names)
    grids = _read_or_train(given, names)
    if given["profile"] == "demo":
        display_markdown(SYNTHETIC)
    return grids


def load_own(given: dict[str, Any]) -> Grid:
    """The runs of a `grid` of one's own, as in `load`; its `imports`, files with commas between, are run before."""
    files = map(str.strip, given.get("imports", "").split(","))
    import_files(filter(None, files))
    path = Path(given["grid"])
    file = path.resolve() if path.exists() else REPOSITORY / path
    [grid] = _read_or_train(given, [str(file)])
    display_markdown(_scores_text(grid))
    return grid


def _read_or_train(given: dict[str, Any], files: Sequence[str]) -> list[Grid]:
    data = given["data_dir"] or None
    which = {name: given[name] for name in ("seed", "only") if name in given}
    read = partial(read_runs, given.get("profile", ""), data=data, **which)
    grids = [read(file) for file in files]
    if not given["train_missing"] or not any(grid.missing for grid in grids):
        return grids
    corpora = Corpora(data)  # once a run is trained, those on other data do not count
    configs = dict.fromkeys(chain.from_iterable(chain(*grid.configs.values()) for grid in grids))
    missing = [config for config in configs if not is_done(corpora.run_id(config), stores(), needs_model=False)]
    display_markdown(f"Runs that are not stored and are trained now, one after the other: {len(missing)}.")
    for config in missing:
        load_or_run(config, data, device=given.get("device", "auto"), progress=given.get("progress"))
    return [read(file) for file in files]


def use_committed_store(profile: str) -> None:
    """For a page that shows the report's own runs in every profile: the demo's have a store that has no others."""
    if profile == "demo":
        os.environ["MTBERT_RESULTS"] = str(REPOSITORY / "results")


def teller(given: dict[str, Any]) -> Callable[..., None]:
    """`sentences.tell` for a notebook, which shows the sentence. Where the notebook reads other runs than the report's
    own (another profile, one seed, a part, a grid of one's own), this is said now, and sentences are left out.
    """
    is_part = any(given.get(name) for name in ("grid", "only", "seed"))
    if given["profile"] == "cpu" and not is_part:
        return lambda sentence, **places: display_markdown(sentences.tell(sentence, **places))
    display_markdown(OTHER_RUNS)
    return lambda sentence, **places: None


def _scores_text(grid: Grid) -> str:
    """What the scores of a grid's tasks are, and how *overall* is made of them; empty without runs."""
    scored = {task for group in grid.configs.values() for task in group[0].scored}
    tasks_of = {}
    for task in TASKS:
        if task in scored:
            metric = TASKS[task].metric
            tasks_of.setdefault(metric, []).append(escaped(TASK_LABELS[task]))
    if not tasks_of:
        return ""
    parts = [f"{escaped(METRIC_LABELS[name])} on {joined(tasks)}" for name, tasks in tasks_of.items()]
    text = f"The score of these runs is {joined(parts)}."
    if len(scored) > 1:
        text += " *overall* is the mean over a run's tasks"
        text += ", of a correlation r as (1 + r)/2." if "pearson" in tasks_of else "."
    return text


def forest(
    table: pd.DataFrame,
    name: str,
    label: str,
    caption: str,
    plans: Mapping[str, pd.DataFrame] | None = None,
) -> None:
    """The figure of a table of differences, with the margins of its tasks; nothing where it is empty.

    table: of `with_overall`, or `Comparison.differences`, maybe `in_words`. name: of the figure's file. label: of the
    axes. caption: what to see. plans: drawn beside the names, as in `plots_sweeps.differences_by_task`.
    """
    if table.empty:
        return
    if "margin" not in table:
        table = table.assign(margin=table["task"].map(margin_of))
    figure = plots_sweeps.differences_by_task(table, label, plans)
    numbers = []
    for task, part in table.dropna(subset="value").groupby("task", sort=False):
        listed = ", ".join(f"{row.run} {row.value:+.3f}" for row in part.itertuples())
        numbers.append(f"{TASK_LABELS[task]}: {listed}.")
    plots.show(figure, name, f"{caption} {' '.join(numbers)}", caption)


def with_overall(comparison: Comparison) -> pd.DataFrame:
    """The differences overall, then those on the tasks: two families, each corrected by itself."""
    return pd.concat([comparison.overall, comparison.differences], ignore_index=True)


def with_references(table: pd.DataFrame) -> pd.DataFrame:
    """A table of differences with a line for each reference, which has no value."""
    lines = table[["task", "reference"]].drop_duplicates()
    return pd.concat([lines.rename(columns={"reference": "run"}), table], ignore_index=True)


def in_words(table: pd.DataFrame, words: Mapping[str, str | Mapping[str, str]]) -> pd.DataFrame:
    """The rows of the runs that have words, in their order, named by them.

    words: run -> its name for reading, or group -> such names; then the table has a column group.
    """
    groups = {}
    names = {}
    for first, second in words.items():
        if isinstance(second, str):
            names[first] = second
        else:
            names |= second
            groups |= dict.fromkeys(second.values(), first)
    order = {run: place for place, run in enumerate(names)}
    table = table[table["run"].isin(names)]
    table = table.sort_values("run", key=lambda runs: runs.map(order), kind="stable")
    table = table.assign(run=table["run"].map(names))
    return table.assign(group=table["run"].map(groups)) if groups else table


def labelled(table: pd.DataFrame, labels: Mapping[str, str]) -> pd.DataFrame:
    """A table whose columns of names of runs have their labels, where they have one."""
    columns = [column for column in ("run", "reference", "minus", "name") if column in table]
    return table.assign(**{column: table[column].replace(dict(labels)) for column in columns})


def show_differences(
    comparison: Comparison, labels: Mapping[str, str] = NO_LABELS, title: str = "The differences in numbers"
) -> None:
    """The table of a comparison's differences, folded; nothing where there are none."""
    collapsible(labelled(comparison.difference_table(), labels), title)


def show_scores(
    comparison: Comparison, constants: pd.DataFrame | None = None, labels: Mapping[str, str] = NO_LABELS
) -> None:
    """The scores of a comparison, and what makes some say little, folded. constants: of `tables.read_baselines`."""
    collapsible(labelled(score_table(comparison.runs, constants), labels), "The scores")
    list_doubts(doubts(comparison.runs, constants), labels)


def list_doubts(found: pd.DataFrame, labels: Mapping[str, str] = NO_LABELS) -> None:
    """What makes scores say little, folded; nothing where nothing does. found: of `doubts`."""
    collapsible(labelled(found.assign(task=found["task"].map(TASK_LABELS)), labels), "Scores that say little")


def numbers(
    comparison: Comparison, constants: pd.DataFrame | None = None, labels: Mapping[str, str] = NO_LABELS
) -> None:
    """The differences and the scores of a comparison, folded, what makes scores say little, and what is stored."""
    show_differences(comparison, labels)
    show_scores(comparison, constants, labels)
    display_markdown(f"{comparison.stored_text} {comparison.prior_text}".strip())


def tell_doubts(comparison: Comparison, constants: pd.DataFrame | None = None) -> None:
    """What makes scores say little, before any difference: some by name, all of several in a folded table."""
    found = doubts(comparison.runs, constants)
    if found.empty:
        return
    first = [f"on {TASK_LABELS[row.task]} *{escaped(row.run)}* {row.doubt}" for row in found[:2].itertuples()]
    more = f"; {len(found) - 2} more are in the list below" if len(found) > 2 else ""
    display_markdown(f"**Scores that say little:** {'; '.join(first)}{more}.")
    if len(found) > 2:
        list_doubts(found)


def provenance(*grids: Grid) -> None:
    """What the notebook runs on, and the stored runs that it has read, a row for those that differ only in the seed."""
    rows = {}  # by run id: several grids may have one run, which has the name of the first
    for grid in grids:
        for name, runs in grid.runs.items():
            for run in runs:
                about = [run.provenance[key] for key in ABOUT]
                rows.setdefault(run.run_id, [name, *about, str(run.config.seed), run.run_id])
    table = pd.DataFrame(list(rows.values()), columns=["run", *ABOUT, "seeds", "run ids"])
    alike = table.groupby(["run", *ABOUT], sort=False, as_index=False)
    print(versions())
    collapsible(alike.agg(", ".join), f"{len(rows)} stored runs")


def versions() -> str:
    """One line: what the notebook ran on."""
    packages = [f"{name} {metadata.version(name)}" for name in ("torch", "transformers", "numpy", "pandas")]
    return ", ".join([f"mtbert {__version__}", f"Python {platform.python_version()}", *packages])


def display_markdown(text: str) -> None:
    """Show a finding as text that wraps, not as printed output; an empty one not at all."""
    if text:
        display(Markdown(text))


def joined(words: Iterable[str]) -> str:
    """The words as a list in a sentence: "a", "a and b", "a, b and c"."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def listing(table: pd.DataFrame) -> None:
    """Show a table of texts, all rows, aligned to the left; a click on a heading sorts it. Nothing if it is empty."""
    if len(table):
        display(HTML(_left_aligned(table)))


def collapsible(table: pd.DataFrame, title: str) -> None:
    """Show a long table that opens with a click on its title, and scrolls; sorted as in `listing`."""
    if table.empty:
        return
    frame = '<details><summary>{}</summary><div style="max-height: 32em; overflow: auto">{}</div></details>'
    display(HTML(frame.format(html.escape(title), _left_aligned(table))))


def embed(content: str, script: str = "") -> None:
    """Show HTML with the style and a script of site/, which need no kernel: they work on the built page, too."""
    parts = [f"<style>{_of_site('embedded.css')}</style>", content]
    if script:
        parts.append(f"<script>{_of_site(f'{script}.js')}</script>")
    display(HTML("\n".join(parts)))


def _of_site(name: str) -> str:
    return (Path(__file__).parent / "site" / name).read_text(encoding="utf8")


def _left_aligned(table: pd.DataFrame) -> str:
    """HTML of a table without its index; JupyterLab would align its cells to the right."""
    text = " ".join(line.strip() for line in table.to_html(index=False, na_rep="", border=0).splitlines())
    left = "text-align:left"  # in every cell, so that it counts in the size of a notebook
    text = text.replace("<th>text<", f'<th style="{left}; min-width: 20em">text<')  # else long ids squeeze it
    text = text.replace("<td>", f'<td style="{left}">').replace("<th>", f'<th style="{left}; cursor: pointer">')
    return text.replace("<thead>", f'<thead title="sort" onclick="{html.escape(SORT)}">')
