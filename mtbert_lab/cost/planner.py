"""The runs that fit into a budget of memory and minutes, with the scores of stored runs.

Source: paper 000, section 4, which asks for the performance of sharing plans under constraints of time and memory.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import pandas as pd
from pydantic import ByteSize, TypeAdapter, ValidationError

from mtbert.bert import CheckpointError
from mtbert.config import ConfigError, RunConfig
from mtbert.runtime import MIB
from mtbert.sharing import PlanError
from mtbert_lab.cost.forecast import Cost, cost_key, predict_costs
from mtbert_lab.paths import shipped, stores
from mtbert_lab.statistics import interval_text
from mtbert_lab.store import (
    Seeds,
    of_one_version,
    overall_interval,
    read_grid,
    read_run,
    seeds_of_configurations,
    training_key,
)

COLUMNS = [  # of `plan_table`; of a run that does not fit name, fits and why are known
    "name", "fits", "why", "score", "low", "high", "steps", "minutes", "mib", "parameters", "trained_parameters",
]  # fmt: skip
SAME_SCORE = ("accumulation",)  # fields that change no score; see `training_key`


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


def read_candidates(path: Path | None) -> dict[str, RunConfig]:
    """Name -> a run of a grid file, with its first seed; default: params/cpu/memory_time.yaml. Raises ConfigError."""
    grid = read_grid(path or shipped("params/cpu/memory_time.yaml"))
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

    data, device, threads: see `predict_costs`. The scores are those of stored runs, on the data here if there are some
    on several versions. Rows are sorted by fit, score and minutes. A configuration for which a run would raise
    ConfigError, PlanError or CheckpointError does not fit. Raises DataError, and BudgetError unless minutes are
    above 0.
    """
    if not minutes > 0:
        raise BudgetError(f"minutes is {minutes}; a number above 0 is needed")
    stored: dict[str, list[Seeds]] = {}  # configuration -> its seeds on each version of the data
    for (key, _), seeds in seeds_of_configurations(stores(), SAME_SCORE).items():
        version = {folder: content["config"] for folder, content in seeds.values()}
        stored.setdefault(key, []).append(version)
    costs = predict_costs(configs.items(), device, threads, data)
    rows = []
    for name, config in configs.items():
        cost = costs[cost_key(config)]
        row = {"name": name, "why": _why_not(cost, memory_mib, minutes)}
        row["fits"] = not row["why"]
        if row["fits"]:
            row |= asdict(cost) | {"minutes": cost.minutes}
            if seeds := of_one_version(stored.get(training_key(config, SAME_SCORE), []), data):
                runs = [read_run(folder) for folder in seeds]
                row["score"], row["low"], row["high"] = overall_interval(runs)
        rows.append(row)
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table.sort_values(["fits", "score", "minutes"], ascending=[False, False, True], ignore_index=True)


def _why_not(cost: Cost | Exception, memory_mib: float, minutes: float) -> str:
    """Why a run does not fit into a budget; empty where it does. Raises what is no fault of the configuration."""
    if isinstance(cost, ConfigError | PlanError | CheckpointError):
        return f"cannot be predicted: {cost}"
    if isinstance(cost, Exception):
        raise cost
    if cost.mib > memory_mib:
        return f"needs {_gigabytes(cost.mib)} GB of memory, {_gigabytes(memory_mib)} are allowed"
    if cost.minutes > minutes:
        return f"needs {cost.minutes:.1f} minutes, {minutes:g} are allowed"
    return ""


def describe(table: pd.DataFrame, memory: str, minutes: float) -> str:
    """The plans of `plan_table` that fit, and the reasons why the others do not, as lines of text."""
    rows = []
    for row in table[table["fits"]].itertuples(index=False):
        score = "" if math.isnan(row.score) else interval_text(row.score, row.low, row.high)
        rows.append(
            {
                "plan": row.name,
                "expected score": score,
                "minutes": f"{row.minutes:.1f}",
                "steps": f"{row.steps:g}",
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
