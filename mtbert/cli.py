"""`mtbert data|train|predict|plan|bench|report`: the command line."""

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
data_app = typer.Typer(no_args_is_help=True, help="Check or download the course's datasets.")
app.add_typer(data_app, name="data")

DataDir = Annotated[Path | None, typer.Option("--data", help="folder of the course's CSV files")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda")]


@data_app.command("check")
def data_check(data: DataDir = None, strict: Annotated[bool, typer.Option(help="fail on any reject")] = False) -> None:
    """Read every file, count its rows and list each reject with file, line and field."""
    from mtbert import demo
    from mtbert.data import SPLITS, TASKS, DataError, find_data, load_table

    folder = find_data(data)
    if folder is None:
        typer.echo("no datasets found: checking the embedded demo corpus")
        folder = demo.root()
    failed = False
    for task in TASKS:
        for split in SPLITS:
            try:
                _, report = load_table(task, split, folder)
                typer.echo(str(report))
                failed |= strict and bool(report.rejects)
            except DataError as error:
                typer.echo(f"{task} {split}: {error}", err=True)
                failed = True
    raise typer.Exit(1 if failed else 0)


@data_app.command("fetch")
def data_fetch(folder: Path, force: Annotated[bool, typer.Option(help="replace files that differ")] = False) -> None:
    """Download the course's files into FOLDER; goes on where an earlier call was interrupted."""
    from mtbert.fetch import fetch

    for path in fetch(folder, force=force):
        typer.echo(path)


@app.command()
def train(
    grid: Annotated[Path, typer.Argument(help="a YAML grid, such as params/cpu/single_task.yaml")],
    only: Annotated[str | None, typer.Option(help="train the runs whose name contains this")] = None,
    workers: int = 1,
    threads: Annotated[int | None, typer.Option(help="of each worker; default: the cores shared out")] = None,
    data: DataDir = None,
    device: Device = "auto",
) -> None:
    """Train the runs of a grid that results/ lacks."""
    from mtbert.sweep import read_grid, run_grid

    runs = {name: configs for name, configs in read_grid(grid).items() if only is None or only in name}
    if not runs:
        raise typer.BadParameter(f"no run of {grid} has {only!r} in its name", param_hint="--only")
    failed = False
    for name, config, outcome in run_grid(runs, workers, threads, data=data, device=device):
        failed |= isinstance(outcome, Exception)
        result = f"failed: {outcome!r}" if isinstance(outcome, Exception) else f"dev {outcome:.4f}"
        typer.echo(f"{name}, seed {config.seed}: {result}")
    raise typer.Exit(1 if failed else 0)


@app.command()
def predict(
    run_id: Annotated[str, typer.Argument(help="a run of results/runs whose model is in the cache, or its start")],
    out: Annotated[Path, typer.Option(help="folder for the CSV files")] = Path("predictions"),
    data: DataDir = None,
    device: Device = "auto",
) -> None:
    """Write leaderboard files (id, predicted) for the dev and test splits of the run's tasks."""
    from mtbert.data import load_table
    from mtbert.evaluate import write_leaderboard
    from mtbert.paths import cache_dir
    from mtbert.results import data_root, load_model
    from mtbert.rows import predict_table

    found = sorted(path.name for path in (cache_dir() / "models").glob(f"{run_id}*"))
    if len(found) != 1:
        known = f"{len(found)} start so: {', '.join(found)}" if found else "none starts so; train it first"
        raise typer.BadParameter(f"{run_id!r} does not name one trained model in the cache ({known})")
    model = load_model(found[0])
    root = data_root(model.run_config, data)
    for task in model.run_config.scored:
        for split in ("dev", "test"):
            table, _ = load_table(task, split, root)
            typer.echo(write_leaderboard(predict_table(model, task, table, split, device), task, split, out))


@app.command()
def bench(
    only: Annotated[list[str] | None, typer.Option(help="a benchmark by its name; may be given several times")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="measurements of each contender; 5 or more to be told")] = 5,
    threads: Annotated[int | None, typer.Option(help="of torch; default: its own choice")] = None,
    out: Annotated[Path | None, typer.Option(help="the table; default: results/bench.csv")] = None,
    data: DataDir = None,
    device: Device = "auto",
) -> None:
    """Measure ours against its peers, interleaved, and renew the rows of results/bench.csv."""
    import torch

    from mtbert.bench.catalogue import BENCHMARKS, settings
    from mtbert.bench.harness import choose, run_benchmarks
    from mtbert.multitask import pick_device
    from mtbert.paths import results_dir

    chosen = choose(BENCHMARKS, only or [])
    if threads is not None:
        torch.set_num_threads(threads)
    where = settings(pick_device(device), repeats, data)
    failed = False
    for outcome in run_benchmarks(chosen, where, out or results_dir() / "bench.csv"):
        failed |= bool(outcome.failed)
        typer.echo(outcome)
    raise typer.Exit(1 if failed else 0)


@app.command()
def plan(
    memory: Annotated[str, typer.Option(help="of the process, such as 2GB, 1.5GiB or 800MB")] = "4GB",
    minutes: Annotated[float, typer.Option(help="of training and evaluation")] = 30.0,
    profile: Annotated[
        Path | None, typer.Option(help="a YAML grid: its runs, and plans like its first; default: cpu/memory_time.yaml")
    ] = None,
    tasks: Annotated[str | None, typer.Option(help="such as sst,quora; default: those of the profile")] = None,
    threads: Annotated[int, typer.Option(min=1, help="of torch, for the calibration of this machine")] = 1,
    measure: Annotated[bool, typer.Option(help="renew results/memory.csv, speed.csv and others; some minutes")] = False,
    data: DataDir = None,
    device: Device = "auto",
) -> None:
    """List the sharing plans that fit into a budget, and the scores that stored runs have of them.

    The first call calibrates the machine, which takes a minute.
    """
    from mtbert import budget
    from mtbert.multitask import pick_device
    from mtbert.paths import results_dir
    from mtbert.speed import load_or_calibrate

    place = pick_device(device)
    if measure:
        for path in budget.renew_measurements(results_dir(), place.type, threads, data):
            typer.echo(path)
        return
    limit, minutes = budget.parse_memory(memory), budget.check_minutes(minutes)
    configs = budget.read_candidates(profile, tuple(tasks.split(",")) if tasks else ())
    calibration = load_or_calibrate(next(iter(configs.values())), place.type, threads)
    is_cuda = place.type == "cuda"
    table = budget.plan_table(configs, calibration, limit, minutes, data=data, store=results_dir(), cuda=is_cuda)
    typer.echo(budget.describe(table, memory, minutes))


@app.command()
def report(
    profile: Annotated[str, typer.Option(help="demo, cpu or gpu: a folder of params/")] = "demo",
    only: Annotated[str | None, typer.Option(help="one notebook, such as 03")] = None,
    data: DataDir = None,
    force: Annotated[bool, typer.Option(help="execute notebooks that are up to date, too")] = False,
) -> None:
    """Execute the notebooks and build build/report/index.html."""
    from mtbert.report import build_report

    build_report(profile, only=only, data=data, force=force)


def main() -> None:
    """The entry point: an error of ours is its message, not a traceback."""
    try:
        app()
    except (ValueError, RuntimeError, LookupError) as error:
        if not type(error).__module__.startswith("mtbert."):
            raise
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
