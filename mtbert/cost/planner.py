"""Which sharing plans fit into a budget of memory and minutes, and what they score where that is known.

Source: paper 000, section 4, which asks for the performance of sharing plans under constraints of time and memory.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from mtbert.config import ConfigError, RunConfig
from mtbert.cost.forecast import LENGTHS, Forecast, Lengths, check_runs, count_lengths, read_lengths
from mtbert.cost.memory import measure_grid
from mtbert.cost.time import Calibration, load_or_calibrate
from mtbert.data import COURSE, TASKS, DataError
from mtbert.multitask import encoder_config
from mtbert.paths import REPOSITORY
from mtbert.results import Run, read_grid, read_run, stored_runs, summarize, write_table
from mtbert.training import overall

UNITS = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
NOT_COMPARED = ("seed", "accumulation")  # fields that change nothing of a score but its luck


class BudgetError(ValueError):
    """A budget that cannot be read; the message says what was given and what is right."""


def parse_memory(text: str) -> float:
    """'2GB', '512 MiB' -> MiB; GB is 10^9 bytes, GiB 2^30. Raises BudgetError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]+)\s*", text)
    if not match or match[2].upper() not in UNITS:
        raise BudgetError(f"memory is {text!r}; write a number and a unit, such as 2GB, 1.5GiB or 800MB")
    size = float(match[1]) * UNITS[match[2].upper()] / 2**20
    if size <= 0:
        raise BudgetError(f"memory is {text!r}; nothing fits into that")
    return size


def check_minutes(minutes: float) -> float:
    """The minutes themselves; raises BudgetError unless they are a number above 0."""
    if not 0 < minutes < math.inf:
        raise BudgetError(f"minutes is {minutes}; a number above 0 is needed")
    return minutes


def read_candidates(profile: Path | None, tasks: Sequence[str] = ()) -> dict[str, RunConfig]:
    """`candidates` of the first run of a grid file, and all its runs, for its tasks or for others.

    profile: default params/cpu/memory_time.yaml; a run that other tasks do not go with is left out. Raises ConfigError.
    """
    profile = profile or REPOSITORY / "params" / "cpu" / "memory_time.yaml"
    runs = {name: configs[0] for name, configs in read_grid(profile).items()}
    base = next(iter(runs.values()))
    if tasks:
        base = base.but(tasks=tuple(tasks), score_tasks=(), **({"scheme": "sampled"} if len(tasks) == 1 else {}))
        same = {"tasks": base.tasks, "score_tasks": (), "scheme": base.scheme}
        runs = {name: changed for name, config in runs.items() if (changed := _but(config, same))}
    known = list(runs.values())
    return {name: config for name, config in candidates(base).items() if config not in known} | runs


def _but(config: RunConfig, changes: dict) -> RunConfig | None:
    """The configuration with some fields changed, or None where they do not go with the others."""
    try:
        return config.but(**changes)
    except ConfigError:
        return None


def candidates(base: RunConfig) -> dict[str, RunConfig]:
    """A small set of plans for the tasks of `base`, all else as there: name -> configuration.

    Frozen, half frozen, shared, half shared, individual; PALs of two sizes; half of the layers; smaller batches and
    parts of batches.
    """
    L, heads = encoder_config(base.but(layers=None)).num_hidden_layers, base.adapter_heads
    half, several = max(1, L // 2), len(base.scored) > 1
    plain = base.but(plan="1-bert", frozen=False, adapter="none", layers=None, accumulation=1, soft_sharing="none")
    changes = {
        "1-bert": {},
        "frozen": {"plan": "frozen", "gradients": "sum"},
        f"{half} layer{'s' * (half > 1)}": {"layers": half},
        "accumulation 4": {"accumulation": min(4, *base.batch_sizes.values())},
    }
    for part in (2, 4):  # the same examples in more steps
        sizes = {task: size // part for task, size in base.batch_sizes.items()}
        if min(sizes.values()):
            steps = base.steps_per_epoch and base.steps_per_epoch * part
            size = sizes if isinstance(base.batch_size, dict) else base.batch_size // part
            changes[f"batch {plain.but(batch_size=size).batch_label}"] = {"batch_size": size, "steps_per_epoch": steps}
    if half < L:
        changes[f"F{half} S{L - half}"] = {"plan": f"F{half} S{L - half}"}
    if several:
        changes["3-bert" if len(base.scored) == 3 else f"I{L}"] = {"plan": "3-bert"}
        changes |= {f"hybrid-{k}": {"plan": f"hybrid-{k}"} for k in sorted({1, half, L - 1}) if 0 < k < L}
    for size in (4 * heads, 16 * heads):
        changes[f"PAL {size}"] = {"adapter": "pal", "adapter_size": size}
    result = {}
    for name, fields in changes.items():
        config = _but(plain, fields)
        if config and config not in result.values():
            result[name] = config
    return result


def plan_table(
    configs: Mapping[str, RunConfig],
    calibration: Calibration,
    memory_mib: float | None = None,
    minutes: float | None = None,
    *,
    data: str | Path | None = None,
    store: Path | None = None,
    lengths: Lengths | None = None,
    cuda: bool = False,
) -> pd.DataFrame:
    """A row a named configuration: what it needs, whether it fits the budget, what it is expected to score.

    lengths: of the texts; by default read for each configuration (`forecast.read_lengths`). store: where stored runs
    are looked up. Columns: name, plan, adapter, layers, batch, accumulation; those of `Forecast.row`; score, low, high
    (95 %), seeds of the stored runs, score_step (the step the score is of: a part of the run where the minutes end
    before); fits_memory, fits_minutes (the whole run), fits: memory, and at least one step. Sorted by what fits, score,
    minutes. Raises ConfigError, PlanError, CheckpointError and DataError as a run of the configuration would.
    """
    runs, texts, rows = _stored_runs(store), {}, []
    for name, config in configs.items():
        if lengths is None:
            key = (config.corpus, config.encoder, config.scored, config.tasks, config.two_encodings, config.max_length,
                   config.train_rows, config.seed if config.train_rows else None)  # fmt: skip
            texts[key] = texts.get(key) or read_lengths(config, data, store)
        needed = Forecast(config, lengths or texts[key], calibration, cuda).row(minutes)
        fits_memory = memory_mib is None or needed["process_mib"] <= memory_mib
        about = {
            "name": name,
            "plan": config.plan_text,
            "adapter": config.adapter if config.adapter == "none" else f"{config.adapter} {config.adapter_size}",
            "layers": encoder_config(config).num_hidden_layers,
            "batch": config.batch_label,
            "accumulation": config.accumulation,
        }
        rows.append(
            {
                **about,
                **needed,
                **expected_score(config, runs, needed["steps_that_fit"]),
                "fits_memory": fits_memory,
                "fits_minutes": needed["steps_that_fit"] == needed["steps"],
                "fits": fits_memory and needed["steps_that_fit"] > 0,
            }
        )
    order = {"by": ["fits", "score", "minutes"], "ascending": [False, False, True]}
    return pd.DataFrame(rows).sort_values(**order, na_position="last", ignore_index=True)


def describe(table: pd.DataFrame, memory: str, minutes: float) -> str:
    """The plans of `plan_table` that fit, as lines of text, and how many do not."""
    fit = table[table["fits"]]
    lines = [f"{len(fit)} of {len(table)} plans fit into {memory} and {minutes:g} minutes"]
    if len(fit):
        interval = [
            ""
            if math.isnan(row.score)
            else f"{row.score:.3f}" + ("" if math.isnan(row.low) else f" ({row.low:.3f} to {row.high:.3f})")
            for row in fit.itertuples()
        ]
        shown = pd.DataFrame(
            {
                "plan": fit["name"],
                "expected score": interval,
                "minutes": fit["minutes"].map("{:.1f}".format),
                "steps": [f"{row.steps_that_fit} of {row.steps}" for row in fit.itertuples()],
                "memory (GB)": (fit["process_mib"] * 2**20 / 1e9).map("{:.2f}".format),
                "parameters (M)": (fit["parameters"] / 1e6).map("{:.1f}".format),
                "trained (M)": (fit["trained_parameters"] / 1e6).map("{:.1f}".format),
            }
        )
        lines.append(shown.to_string(index=False, justify="left"))
    return "\n".join(lines)


def renew_measurements(
    store: Path, device: str = "cpu", threads: int | None = None, data: str | Path | None = None
) -> Iterator[Path]:
    """Measure this machine and write the tables, one after the other.

    memory.csv: `measure.measure_grid`; speed.csv: the steps of `speed.calibrate`, fp32 and bf16, by which `mtbert plan`
    goes from now on; lengths.csv: `forecast.count_lengths`, where the data are; runs_predicted.csv: `check_runs`.
    """
    yield write_table(measure_grid(device=device), store / "memory.csv")
    both = [RunConfig(precision=precision) for precision in ("fp32", "bf16")]
    made = [load_or_calibrate(config, device, threads, again=True) for config in both]
    about = ("precision", "device", "threads", "encoder")
    steps = [one.steps.assign(**{name: one.about[name] for name in about}) for one in made]
    yield write_table(pd.concat(steps), store / "speed.csv")
    try:
        yield write_table(count_lengths(RunConfig(corpus="course", tasks=tuple(COURSE)), data), store / LENGTHS)
    except DataError:
        pass
    yield write_table(pd.concat([check_runs(store, one, data) for one in made]), store / "runs_predicted.csv")


# --- what is known of a configuration's score ------------------------------------------------------------------------


def _stored_runs(store: Path | None) -> dict[str, list[Path]]:
    """What a configuration is but for NOT_COMPARED -> the folders of its runs."""
    runs: dict[str, list[Path]] = {}
    for content in stored_runs(store) if store else ():
        likeness = _likeness(RunConfig.from_params(content["config"]))
        runs.setdefault(likeness, []).append(store / "runs" / content["run_id"])
    return runs


def _likeness(config: RunConfig) -> str:
    return config.model_copy(update={name: RunConfig.model_fields[name].default for name in NOT_COMPARED}).digest


def expected_score(config: RunConfig, runs: dict[str, list[Path]], steps: int) -> dict:
    """score, low, high, seeds, score_step: the dev score over all training tasks of the stored runs like this one.

    The score of several tasks is paper 002's mean. Where only a part of the steps fits, it is the last point of the
    learning curve before, without an interval: that run's learning rate had not come down yet. nan where there is none.
    """
    found = [read_run(folder) for folder in runs.get(_likeness(config), ())]
    nothing = {"score": math.nan, "low": math.nan, "high": math.nan, "seeds": len(found), "score_step": math.nan}
    if not found:
        return nothing
    if steps >= found[0].cost["steps"]:
        return nothing | overall_interval(found) | {"score_step": found[0].cost["steps"]}
    points = [run.curve[run.curve["step"] <= steps] for run in found]
    if any(part.empty for part in points):
        return nothing
    score = float(np.mean([part["dev_score"].iloc[-1] for part in points]))
    return nothing | {"score": score, "score_step": int(points[0]["step"].iloc[-1])}


def overall_interval(runs: list[Run]) -> dict[str, float]:
    """score, low, high (95 %) of paper 002's mean over the training tasks, of the seeds of one configuration.

    The dev splits of different tasks are independent samples: their half-widths add up in squares.
    """
    tasks = runs[0].config.tasks
    parts = {task: summarize(runs, task) for task in tasks}
    if len(tasks) == 1:
        one = parts[tasks[0]]
        return {"score": one["value"], "low": one["low"], "high": one["high"]}
    weights = {task: (0.5 if TASKS[task].kind == "similarity" else 1.0) / len(tasks) for task in tasks}
    score = overall({task: part["value"] for task, part in parts.items()})
    below = math.hypot(*(weights[task] * (part["value"] - part["low"]) for task, part in parts.items()))
    above = math.hypot(*(weights[task] * (part["high"] - part["value"]) for task, part in parts.items()))
    return {"score": score, "low": score - below, "high": score + above}
