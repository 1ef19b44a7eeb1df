"""`python -m benchmarks predictions`: what `mtbert plan` predicts next to what is measured, into the results store.

memory.csv has the memory of training steps, predicted by a dry run and measured as the peak of torch's allocator;
runs_predicted.csv predictions for stored runs; lengths.csv and baselines.csv what is known of the course's datasets
where they are not here.

The runs_predicted.csv of this repository has 40 of the runs that a CPU trained, of versions 0.2.0 and 0.3.0. A new call
predicts all of them whose encoder and data are here.

On a GPU the allocator keeps count itself. On a CPU torch's profiler records every block that it allocates and frees.
Resident memory is larger: it includes the interpreter, libraries, and freed pages that the C library keeps. Dropout
masks, which numpy draws on a CPU, are predicted but not measured.

Source: papers 000 (section 4: memory by plan), 001 (section 4.2: sizes), 002 (section 4: plans). Tables are in MiB.
"""

import argparse
import logging
import math
import multiprocessing
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch.autograd import profiler

from mtbert.config import RunConfig
from mtbert.data import COURSE, DataError
from mtbert.multitask import MultitaskBert
from mtbert.paths import cache_dir
from mtbert.runtime import MIB, pick_device
from mtbert.training import Shapes
from mtbert_lab.analysis.baselines import BASELINES, baseline_table
from mtbert_lab.cost.dry_run import PARTS, DryRun, at_peak
from mtbert_lab.cost.forecast import cost_key, predict_costs
from mtbert_lab.cost.lengths import LENGTHS, read_lengths
from mtbert_lab.cost.steps import Steps
from mtbert_lab.cost.time import SPEEDS
from mtbert_lab.paths import results_dir
from mtbert_lab.store import read_grid, stored_runs, write_table

log = logging.getLogger(__name__)
MARK = "mtbert: measured from here"


def predicted_peak(config: RunConfig, shapes: Shapes, cuda: bool = False) -> pd.Series:
    """The moment of a step with the most memory. Of steps of one task each, that of the task with the most."""
    run = DryRun(config, _longest(shapes), cuda=cuda)
    moments = [at_peak(run.step(step)) for step in _kinds_of_steps(config, shapes)]
    totals = [moment["total"] for moment in moments]
    return moments[np.argmax(totals)]


def _longest(shapes: Shapes) -> dict[str, int]:
    """The tokens of the longest example of each task."""
    return {task: T for task, (_, T) in shapes.items()}


def _kinds_of_steps(config: RunConfig, shapes: Shapes) -> list[Shapes]:
    """The shapes of a step: of all tasks, or of each task alone."""
    if config.scheme == "unified":
        return [shapes]
    return [{task: shape} for task, shape in shapes.items()]


def measured_peak(config: RunConfig, shapes: Shapes, device: str = "cpu") -> float:
    """MiB at the peak of torch's allocator over a step. Of steps of one task each, that of the task with the most.

    Call it in a fresh process, as all tensors of the process count.
    """
    place = pick_device(device)
    kinds = _kinds_of_steps(config, shapes)
    on_cpu = place.type == "cpu"
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own messages
    with profiler.profile(profile_memory=on_cpu, enabled=on_cpu) as record:
        run = Steps(MultitaskBert(config.but(weights="random")).to(place), _longest(shapes))
        run.compute_gradients(kinds[0])  # what torch makes once
        run.update()
        if not on_cpu:
            torch.cuda.reset_peak_memory_stats(place)
        with profiler.record_function(MARK):
            pass
        for step in kinds:
            run.compute_gradients(step)
            run.update()
    if on_cpu:
        return _peak_bytes(record.kineto_results.events()) / MIB
    return torch.cuda.max_memory_allocated(place) / MIB


def _peak_bytes(events: Iterable) -> int:
    """The most bytes that the CPU's allocator had given out at one time after MARK, from the profiler's events."""
    live = peak = 0
    on_cpu = torch.profiler.DeviceType.CPU
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == MARK:
            peak = live
        elif event.name() == "[memory]" and event.device_type() == on_cpu:
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def measured_steps() -> dict[str, RunConfig]:
    """The configurations of step_memory.yaml next to this file; `step_shapes` gives the sizes of their steps."""
    grid = read_grid(Path(__file__).with_name("step_memory.yaml"))
    return {name: configs[0] for name, configs in grid.items()}


def step_shapes(config: RunConfig) -> Shapes:
    """batch_size examples of max_length tokens of each task."""
    return {task: (B, config.max_length) for task, B in config.batch_sizes.items()}


def measure_grid(configs: dict[str, RunConfig], device: str = "cpu") -> pd.DataFrame:
    """Predicted and measured peak of a step of each configuration, each in a process of its own.

    A row per configuration: name, device, measured and predicted (MiB), and PARTS of the prediction.
    """
    context = multiprocessing.get_context("spawn")
    rows = []
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        for name, config in configs.items():
            row = pool.submit(_measure_row, config, device).result()
            rows.append({"name": name, "device": device, **row})
    return pd.DataFrame(rows)


def _measure_row(config: RunConfig, device: str) -> dict[str, float]:
    torch.set_num_threads(1)
    shapes = step_shapes(config)
    on_gpu = pick_device(device).type == "cuda"
    measured = measured_peak(config, shapes, device)
    predicted = predicted_peak(config, shapes, on_gpu)
    return {"measured": measured, "predicted": predicted["total"], **predicted[PARTS]}


def count_lengths(config: RunConfig, data: str | Path | None = None) -> pd.DataFrame:
    """Numbers of examples by their tokens, without text: task, split, pairs (joint or apart), tokens, rows."""
    tables = []
    for pairs, name in (("joint", "joint"), ("sum", "apart")):
        found = read_lengths(config.but(pairs=pairs, max_length=512, train_rows=None), data)
        for split, by_task in (("train", found.train), ("dev", found.dev)):
            for task, lengths in by_task.items():
                tokens, rows = np.unique(lengths, return_counts=True)
                about = {"task": task, "split": split, "pairs": name}
                tables.append(pd.DataFrame({**about, "tokens": tokens, "rows": rows}))
    return pd.concat(tables, ignore_index=True)


def write_baselines(store: Path, data: str | Path | None, device: str = "auto") -> Path:
    """Write the baselines of the course's tasks, with the default encoder, into baselines.csv; returns its path."""
    tables = [baseline_table(RunConfig(corpus="course", tasks=(task,)), data, device) for task in COURSE]
    return write_table(pd.concat(tables), store / BASELINES)


def check_runs(store: Path, data: str | Path | None, threads: int | None = None) -> pd.DataFrame:
    """Predictions for a CPU next to the stored runs, a row per run. data, threads: see `predict_costs`.

    Columns: run_id, mtbert (version); predicted_mib and peak_memory_mib; predicted_seconds and train_cpu_seconds, both
    with the pass that makes features. Runs that cost the same share a prediction. Runs on a GPU are left out, and so
    are runs whose encoder or data are not here.
    """
    runs = []
    for _, content in stored_runs([store]):
        if content["provenance"]["device"].startswith("cpu"):
            runs.append(content)
    named = [(content["run_id"], content["config"]) for content in runs]
    costs = predict_costs(named, "cpu", threads, data, seconds=math.inf)
    rows = []
    for content in runs:
        predicted = costs[cost_key(content["config"])]
        measured = content["cost"]
        if isinstance(predicted, Exception):
            log.warning("%s: no prediction (%s)", content["run_id"], predicted)
            continue
        rows.append(
            {
                "run_id": content["run_id"],
                "mtbert": content["provenance"]["mtbert"],
                "predicted_mib": predicted.mib,
                "peak_memory_mib": measured["peak_memory_mib"],
                "predicted_seconds": 60 * (predicted.features + predicted.training),
                "train_cpu_seconds": measured["train_cpu_seconds"] + measured.get("feature_cpu_seconds", 0.0),
            }
        )
    return pd.DataFrame(rows)


def renew_measurements(store: Path, device: str, threads: int | None, data: str | Path | None) -> Iterator[Path]:
    """Measure this machine and write memory.csv; lengths.csv and baselines.csv where the data are; runs_predicted.csv.

    `mtbert plan` goes by the newly measured speeds from now on.
    """
    shutil.rmtree(cache_dir() / SPEEDS, ignore_errors=True)
    yield write_table(measure_grid(measured_steps(), device), store / "memory.csv")
    try:
        yield write_table(count_lengths(RunConfig(corpus="course", tasks=tuple(COURSE)), data), store / LENGTHS)
        yield write_baselines(store, data, device)
    except DataError:
        pass
    yield write_table(check_runs(store, data, threads), store / "runs_predicted.csv")


def main(arguments: Sequence[str]) -> int:
    """Write the tables and print their paths; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks predictions", description=__doc__)
    parser.add_argument("--threads", type=int, default=1, help="of torch, in the steps that are timed")
    parser.add_argument("--data", type=Path, help="folder of the course's CSV files")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    given = parser.parse_args(arguments)
    for path in renew_measurements(results_dir(), pick_device(given.device).type, given.threads, given.data):
        print(path, flush=True)
    return 0
