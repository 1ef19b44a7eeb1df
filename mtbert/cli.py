"""`mtbert data|train|predict|plan|bench|baselines|claims|report`: the command line."""

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
data_app = typer.Typer(no_args_is_help=True, help="Check or download the course's datasets.")
app.add_typer(data_app, name="data")

DataDir = Annotated[Path | None, typer.Option("--data", help="folder of the course's CSV files")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda")]


@data_app.command("check")
def data_check(
    data: DataDir = None, strict: Annotated[bool, typer.Option(help="fail if a row is rejected")] = False
) -> None:
    """Read every file, count its rows and list the rejected rows with file, line and field."""
    from mtbert.data import COURSE, SPLITS, TASKS, DataError, demo, find_data, load_table

    folder = find_data(data)
    if folder is None:
        typer.echo("no datasets found: checking the embedded demo corpus")
        folder = demo.root()
    failed = False
    for task in TASKS:
        for split in SPLITS:
            if split == "test" and task not in COURSE and not TASKS[task].path(split, folder).exists():
                continue  # only the course's tasks must have one
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
    """Download the course's files that FOLDER lacks."""
    from mtbert.data.download import fetch

    for path in fetch(folder, force):
        typer.echo(path)


@app.command()
def train(
    grids: Annotated[list[Path], typer.Argument(metavar="GRID", help="YAML grids, such as params/cpu/hybrids.yaml")],
    only: Annotated[str | None, typer.Option(help="only the runs whose name contains this")] = None,
    workers: Annotated[int, typer.Option(min=1, help="number of runs that are trained at the same time")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="of each worker; default: cores / workers")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list the runs, with predicted time and memory")] = False,
    in_order: Annotated[bool, typer.Option("--in-order", help="in the order of the grid, without predictions")] = False,
    data: DataDir = None,
    device: Device = "auto",
) -> None:
    """Train the runs of some grids that results/ lacks, the longest first.

    Ctrl-C or SIGTERM ends it after the current steps; the same command goes on from there. Processes that torchrun
    starts train each run together: torchrun --nproc_per_node 2 -m mtbert train GRID.
    """
    import torch

    from mtbert.paths import results_dir
    from mtbert.results import load_or_run, read_grids, sweep, train_all
    from mtbert.runtime import pick_device

    pairs = read_grids(grids, only)
    if not pairs:
        raise typer.BadParameter(f"no run of these grids has {only!r} in its name", param_hint="--only")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dry_run:  # torchrun: its processes train each run together
        for name, config in pairs:
            score = load_or_run(config, data, device=device).score()
            if os.environ["RANK"] == "0":
                typer.echo(f"{name}, seed {config.seed}: dev {score:.4f}")
        return
    place = pick_device(device).type
    threads = threads or max(1, torch.get_num_threads() // workers)
    runs = sweep.look_up(pairs, data)
    missing = [run for run in runs if not run.is_stored]
    if dry_run or (len(missing) > workers and not in_order):  # else the order does not matter
        from mtbert.cost import predict_runs  # here, as its import of scipy is slow

        missing = predict_runs(missing, place, threads, data, results_dir())
    if not in_order:  # runs without a prediction first
        missing.sort(key=lambda run: float("inf") if run.minutes is None else run.minutes, reverse=True)
    if dry_run:
        typer.echo(sweep.describe(missing + [run for run in runs if run.is_stored], workers))
        return
    typer.echo(f"{len(runs) - len(missing)} of {len(runs)} are stored already")
    done, failed, taken, started = len(runs) - len(missing), [], {}, time.monotonic()
    try:
        for run, outcome, minutes in train_all(missing, workers, threads, data, device):
            done += 1
            if isinstance(outcome, Exception):
                failed.append(f"{run}: {outcome}")
                missing.remove(run)
                result = f"failed: {str(outcome).splitlines()[0]}"
            else:
                taken[run.run_id] = minutes
                result = f"dev {outcome:.4f}"
            left = sweep.minutes_left(missing, taken, workers, (time.monotonic() - started) / 60)
            rest = f", {sweep.duration(left)} left" if done < len(runs) and left is not None else ""
            _echo(f"[{done} of {len(runs)}] {run}: {result} ({run.run_id}, {minutes:.1f} min){rest}")
    except (KeyboardInterrupt, SystemExit) as stop:
        _echo(str(stop) or "stopped at once", err=True)
        raise typer.Exit(130 if isinstance(stop, KeyboardInterrupt) else 143) from None
    if failed:
        _echo("\n".join([f"{len(failed)} of {len(runs)} runs failed:", *failed]), err=True)
        raise typer.Exit(1)


def _echo(line: str, err: bool = False) -> None:
    """Print a line; on a terminal first clear the workers' progress bars below it, which are drawn again."""
    clear = "\r\x1b[J" if (sys.stderr if err else sys.stdout).isatty() else ""
    typer.echo(clear + line, err=err)


@app.command()
def predict(
    run_id: Annotated[str, typer.Argument(help="the id of a run whose model is in the cache, or its first characters")],
    out: Annotated[Path, typer.Option(help="folder for the CSV files")] = Path("predictions"),
    course_format: Annotated[bool, typer.Option("--course-format", help="as the CS224N project writes them")] = False,
    data: DataDir = None,
    device: Device = "auto",
) -> None:
    """Write leaderboard files (id, predicted) for the dev and test splits of the run's tasks."""
    from mtbert.data import load_table
    from mtbert.paths import cache_dir
    from mtbert.results import data_root, load_model
    from mtbert.training import predict_table, write_leaderboard

    found = sorted(path.name for path in (cache_dir() / "models").glob(f"{run_id}*"))
    if len(found) != 1:
        models = ", ".join(found) or "none; train it first"
        raise typer.BadParameter(f"{run_id!r} is not the start of one model's run id in the cache (found: {models})")
    model = load_model(found[0])
    root = data_root(model.run_config, data)
    for task in model.run_config.scored:
        for split in ("dev", "test"):
            table, _ = load_table(task, split, root)
            predicted = predict_table(model, task, table, split, device)
            typer.echo(write_leaderboard(predicted, task, split, out, course_format))


@app.command()
def bench(
    only: Annotated[list[str] | None, typer.Option(help="name of a benchmark; can be given several times")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="measurements of each contender; results need at least 5")] = 5,
    threads: Annotated[int | None, typer.Option(help="of torch; default: torch's choice")] = None,
    out: Annotated[Path | None, typer.Option(help="default: results/bench.csv")] = None,
    data: DataDir = None,
    device: Device = "auto",
) -> None:
    """Compare mtbert with its peers and update the rows of results/bench.csv."""
    import torch

    from mtbert.bench.catalogue import BENCHMARKS, settings
    from mtbert.bench.harness import choose, run_benchmarks
    from mtbert.paths import results_dir
    from mtbert.runtime import pick_device

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
        Path | None, typer.Option(help="a YAML grid of the runs to choose from; default: cpu/memory_time.yaml")
    ] = None,
    tasks: Annotated[str | None, typer.Option(help="such as sst,quora; default: those of the profile")] = None,
    threads: Annotated[int, typer.Option(min=1, help="of torch, for the calibration of this machine")] = 1,
    measure: Annotated[bool, typer.Option(help="renew results/memory.csv, speed.csv and others; some minutes")] = False,
    data: DataDir = None,
    device: Device = "auto",
) -> None:
    """List the runs of a grid that fit into a budget, and the scores that stored runs have of them.

    The first call calibrates the machine, which takes half a minute.
    """
    from mtbert import cost
    from mtbert.paths import results_dir
    from mtbert.runtime import pick_device

    place = pick_device(device).type
    if measure:
        for path in cost.renew_measurements(results_dir(), place, threads, data):
            typer.echo(path)
        return
    cost.check_minutes(minutes)
    limit = cost.parse_memory(memory)
    configs = cost.read_candidates(profile, tuple(tasks.split(",")) if tasks else ())
    calibration = cost.load_or_calibrate(next(iter(configs.values())), place, threads)
    table = cost.plan_table(configs, calibration, limit, minutes, data, results_dir(), place == "cuda")
    typer.echo(cost.describe(table, memory, minutes))


@app.command()
def baselines(data: DataDir = None, device: Device = "auto") -> None:
    """Score the most frequent label and the untrained cosine, into results/baselines.csv."""
    from mtbert.config import RunConfig
    from mtbert.data import COURSE
    from mtbert.paths import results_dir
    from mtbert.results import BASELINES, baseline_table, write_table

    table = baseline_table(RunConfig(corpus="course", tasks=tuple(COURSE)), data, device)
    typer.echo(write_table(table, results_dir() / BASELINES))


@app.command()
def claims() -> None:
    """Check the papers' claims against the stored runs, into results/claims.csv."""
    from mtbert.report.claims import write_claims

    typer.echo(write_claims())


@app.command()
def report(
    profile: Annotated[str, typer.Option(help="demo, cpu or gpu: a folder of params/")] = "demo",
    only: Annotated[str, typer.Option(help="one notebook, such as 03")] = "",
    data: DataDir = None,
    force: Annotated[bool, typer.Option(help="execute notebooks that are up to date, too")] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="processes; default: the cores, at most 4")] = None,
) -> None:
    """Execute the notebooks and build build/report/index.html."""
    from mtbert.report.build import build_report

    build_report(profile, only=only, data=data, force=force, workers=workers)


def main() -> None:
    """The entry point: mtbert's own errors are printed as a line, without a traceback."""
    try:
        app()
    except (ValueError, RuntimeError, LookupError) as error:
        if not type(error).__module__.startswith("mtbert."):
            raise
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
