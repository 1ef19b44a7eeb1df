"""The runs that fit into a budget of memory and minutes, with the scores of stored runs.

Source: paper 000, section 4, which asks for the performance of sharing plans under constraints of time and memory.
"""

import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from pydantic import ByteSize, TypeAdapter, ValidationError

from mtbert.bert import CheckpointError
from mtbert.config import ConfigError, RunConfig
from mtbert.data import COURSE, DataError
from mtbert.runtime import MIB
from mtbert.sharing import PlanError
from mtbert_lab.cost.forecast import cost_key, cost_table
from mtbert_lab.cost.lengths import LENGTHS, count_lengths
from mtbert_lab.cost.memory import measure_grid, measured_steps
from mtbert_lab.paths import shipped, stores
from mtbert_lab.store import Run, overall_interval, read_grid, read_run, stored_runs, write_table

log = logging.getLogger(__name__)
COLUMNS = [  # of `plan_table`; fits: memory, and at least one step; steps_that_fit, minutes: where memory fits
    "name", "fits", "why", "score", "low", "high", "steps", "steps_that_fit", "minutes", "mib", "parameters",
    "trained_parameters",
]  # fmt: skip


class BudgetError(ValueError):
    """A budget that cannot be read or kept; the message says what was given and what is right."""


def parse_memory(text: str) -> float:
    """'2GB', '512 MiB' -> MiB; GB is 10^9 bytes, GiB 2^30. Raises BudgetError."""
    try:
        size = TypeAdapter(ByteSize).validate_python(text)
    except ValidationError:
        size = 0
    if size < 1e6:
        raise BudgetError(f"memory is {text!r}; write a number and a unit, such as 2GB, 1.5GiB or 800MB")
    return size / MIB


def read_candidates(profile: Path | None) -> dict[str, RunConfig]:
    """Name -> a run of a grid file, with its first seed; default: params/cpu/memory_time.yaml. Raises ConfigError."""
    grid = read_grid(profile or shipped("params/cpu/memory_time.yaml"))
    return {name: configs[0] for name, configs in grid.items()}


def plan_table(
    configs: Mapping[str, RunConfig],
    memory_mib: float = math.inf,
    minutes: float = math.inf,
    data: str | Path | None = None,
    device: str = "cpu",
    threads: int | None = None,
) -> pd.DataFrame:
    """A row per named configuration: its needs, whether it fits the budget, its expected score.

    data, device, threads: see `cost_table`. The scores are those of stored runs. Rows are sorted by fit, score and
    minutes. A configuration for which a run would raise ConfigError, PlanError or CheckpointError does not fit. Raises
    BudgetError unless minutes are above 0, and DataError.
    """
    if not minutes > 0:
        raise BudgetError(f"minutes is {minutes}; a number above 0 is needed")
    stored: dict[str, list[Path]] = {}
    for folder, content in stored_runs(stores()):
        stored.setdefault(_score_key(content["config"]), []).append(folder)
    costs = cost_table(configs.items(), device, threads, data).to_dict("index")
    rows = []
    for name, config in configs.items():
        row = _needs(costs[cost_key(config)], memory_mib, minutes)
        if not row["why"]:
            runs = [read_run(folder) for folder in stored.get(_score_key(config), [])]
            row |= expected_score(runs, row["steps_that_fit"])
        rows.append({**row, "name": name, "fits": not row["why"]})
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table.sort_values(["fits", "score", "minutes"], ascending=[False, False, True], ignore_index=True)


def _needs(cost: dict, memory_mib: float, minutes: float) -> dict:
    """The needs of a run, a row of `cost_table`, and why they do not fit into a budget: columns of `plan_table`."""
    error = cost["error"]
    if isinstance(error, ConfigError | PlanError | CheckpointError):
        return {"why": f"cannot be predicted: {error}"}
    if isinstance(error, Exception):
        raise error
    row = {**cost, "why": ""}
    if cost["mib"] > memory_mib:
        row["why"] = f"needs {_gigabytes(cost['mib'])} GB of memory, {_gigabytes(memory_mib)} are allowed"
        row["minutes"] = math.nan
        return row
    row["steps_that_fit"] = steps_within(cost, minutes)
    if row["steps_that_fit"] == 0:
        needed = f"needs {cost['minutes']:.1f} minutes"
        row["why"] = f"{needed}, in {minutes:g} not one of its {cost['steps']:g} steps ends"
    return row


def steps_within(cost: dict, minutes: float) -> int:
    """The number of a run's steps that end within these minutes, with their share of the evaluations."""
    once = cost["features"] + cost["pretraining"]
    share = (minutes - once) / (cost["minutes"] - once)
    return int(cost["steps"] * min(1.0, max(0.0, share)))


def describe(table: pd.DataFrame, memory: str, minutes: float) -> str:
    """The plans of `plan_table` that fit, and the reasons why the others do not, as lines of text."""
    rows = []
    for row in table[table["fits"]].itertuples(index=False):
        score = "" if math.isnan(row.score) else f"{row.score:.3f}"
        if not math.isnan(row.low):
            score += f" ({row.low:.3f} to {row.high:.3f})"
        rows.append(
            {
                "plan": row.name,
                "expected score": score,
                "minutes": f"{row.minutes:.1f}",
                "steps": f"{row.steps_that_fit:g} of {row.steps:g}",
                "memory (GB)": _gigabytes(row.mib),
                "parameters (M)": f"{row.parameters / 1e6:.1f}",
                "trained (M)": f"{row.trained_parameters / 1e6:.1f}",
            }
        )
    first = f"{len(rows)} of {len(table)} plans fit into {memory} and {minutes:g} minutes"
    lines = [pd.DataFrame(rows).to_string(index=False, justify="left")] if rows else []
    others = [f"{row.name} does not fit: {row.why}" for row in table[~table["fits"]].itertuples(index=False)]
    return "\n".join([first, *lines, *others])


def _gigabytes(mib: float) -> str:
    return f"{mib * MIB / 1e9:.2f}"


def _score_key(config: RunConfig) -> str:
    """Equal for configurations whose scores differ by the seed variance alone."""
    return config.model_copy(update={"seed": 1, "accumulation": 1}).digest


def expected_score(runs: list[Run], steps: int) -> dict[str, float]:
    """score, low, high (95 %): the dev score over all training tasks of the seeds of one configuration, or nan.

    If only a part of the steps fits, it is that of the learning curve's last point before, without an interval, as the
    learning rate of the stored run had not decayed by then.
    """
    if runs and steps >= runs[0].cost["steps"]:
        score, low, high = overall_interval(runs)
        return {"score": score, "low": low, "high": high}
    last_points = []
    for run in runs:
        before = run.curve.loc[run.curve["step"] <= steps, "dev_score"]
        last_points.append(before.iloc[-1] if len(before) else math.nan)
    score = float(np.mean(last_points)) if runs else math.nan
    return {"score": score, "low": math.nan, "high": math.nan}


def check_runs(store: Path, data: str | Path | None, threads: int | None = None, again: bool = False) -> pd.DataFrame:
    """Predictions for a CPU next to the stored runs, a row per run. threads, again: see `measure_speeds`.

    Columns: run_id, mtbert (version); predicted_mib and peak_memory_mib; predicted_seconds and train_cpu_seconds, both
    with the pass that makes features. Seeds of a configuration share a prediction. Runs on a GPU are left out, and so
    are runs whose processor time was not stored, or whose encoder or data are not here.
    """
    runs = []
    for _, content in stored_runs([store]):
        on_cpu = content["provenance"]["device"].startswith("cpu")
        if on_cpu and "train_cpu_seconds" in content["cost"]:
            runs.append(content)
    named = [(content["run_id"], content["config"]) for content in runs]
    costs = cost_table(named, "cpu", threads, data, again=again).to_dict("index")
    rows = []
    for content in runs:
        predicted = costs[cost_key(content["config"])]
        measured = content["cost"]
        if isinstance(predicted["error"], Exception):
            log.warning("%s: no prediction (%s)", content["run_id"], predicted["error"])
            continue
        rows.append(
            {
                "run_id": content["run_id"],
                "mtbert": content["provenance"]["mtbert"],
                "predicted_mib": predicted["mib"],
                "peak_memory_mib": measured["peak_memory_mib"],
                "predicted_seconds": 60 * (predicted["features"] + predicted["training"]),
                "train_cpu_seconds": measured["train_cpu_seconds"] + measured.get("feature_cpu_seconds", 0.0),
            }
        )
    return pd.DataFrame(rows)


def renew_measurements(store: Path, device: str, threads: int | None, data: str | Path | None) -> Iterator[Path]:
    """Measure this machine and write memory.csv, lengths.csv where the data are, and runs_predicted.csv.

    `mtbert plan` goes by the newly measured speeds from now on.
    """
    yield write_table(measure_grid(measured_steps(), device), store / "memory.csv")
    try:
        yield write_table(count_lengths(RunConfig(corpus="course", tasks=tuple(COURSE)), data), store / LENGTHS)
    except DataError:
        pass
    yield write_table(check_runs(store, data, threads, again=True), store / "runs_predicted.csv")
