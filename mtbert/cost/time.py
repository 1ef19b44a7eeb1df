"""Time of a training step: predicted from what it computes and a short calibration of the machine.

Seconds = sum over kinds of work of (amount x seconds for one), the amounts from a dry run and the prices from a handful
of measured steps: non-negative least squares on relative errors. Kinds: operations called, floating-point operations
of products in float32 and in bfloat16, bytes that all other operations read and write.

Batches of a run differ in shape, and on a CPU one that is larger than those before it has to get its memory from the
system, which takes time: `variety` is how much longer steps of many shapes took than their work says.

On a CPU with one thread time is the processor's, which other work on the machine changes little; elsewhere it is the
clock's. Source: paper 000, sections 3.3 and 4 (training times; performance under constraints of time).
"""

import hashlib
import json
import multiprocessing
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from scipy.optimize import nnls

from mtbert.config import RunConfig
from mtbert.cost.dry_run import KINDS, DryRun, Shapes, Steps
from mtbert.cost.memory import at_peak
from mtbert.paths import cache_dir, replacing
from mtbert.runtime import Trimmer, environment, keep_freed_memory, pick_device, resident_mib

WARM_UP, TIMED, VARIED = 1, 3, 12  # steps

# What is calibrated on, a small and a large step first: fields of the configuration, (examples, tokens) of each task
STEPS: dict[str, tuple[dict, tuple[int, int]]] = {
    "1-bert, 8 x 16": ({}, (8, 16)),
    "1-bert, 32 x 48": ({}, (32, 48)),
    "long texts": ({"tasks": ("cfimdb",)}, (8, 160)),
    "longer texts": ({"tasks": ("cfimdb",)}, (4, 320)),
    "3-bert": ({"plan": "3-bert"}, (8, 32)),
    "F3 S3": ({"plan": "F3 S3"}, (16, 48)),
    "frozen + PAL": ({"plan": "frozen", "adapter": "pal", "adapter_size": 96}, (16, 32)),
    "PCGrad": ({"gradients": "pcgrad"}, (8, 32)),
}


@dataclass(frozen=True)
class Calibration:
    """Seconds for one of each kind of work on a machine, and the steps that they were fitted to.

    steps: step, *KINDS, seconds, predicted, error (relative), left_out (the relative error where the fit does not know
    the row). about: device, threads, versions, encoder, precision; base_mib and holes, memory of the process beside its
    allocator's; variety, the factor of the time of steps of many shapes.
    """

    prices: pd.Series
    steps: pd.DataFrame
    about: dict

    def seconds(self, work: pd.Series) -> float:
        """Predicted time of this work."""
        return float(work[KINDS] @ self.prices[KINDS])

    def process_mib(self, moment: pd.Series) -> float:
        """Memory of the process at a moment of a step (a row of `memory.step_timeline`)."""
        always = moment["weights"] + moment["moments"]
        return self.about["base_mib"] + always + (1 + self.about["holes"]) * (moment["total"] - always)


def fit(steps: pd.DataFrame, about: dict) -> Calibration:
    """Prices from measured steps: columns step, *KINDS and seconds, a row a step."""
    prices = _prices(steps)
    predicted = steps[KINDS].to_numpy() @ prices
    left_out = [
        steps.loc[i, KINDS].to_numpy(float) @ _prices(steps.drop(index=i)) / steps.loc[i, "seconds"] - 1
        for i in steps.index
    ]
    told = steps.assign(predicted=predicted, error=predicted / steps["seconds"] - 1, left_out=left_out)
    return Calibration(pd.Series(prices, index=KINDS), told, about)


def _prices(steps: pd.DataFrame) -> np.ndarray:
    """Non-negative prices with the least squared relative error."""
    relative = steps[KINDS].to_numpy(float) / steps["seconds"].to_numpy()[:, None]
    scale = np.maximum(relative.max(axis=0), 1e-300)  # kinds differ by ten orders of magnitude
    return nnls(relative / scale, np.ones(len(steps)))[0] / scale


def load_or_calibrate(
    config: RunConfig, device: str = "cpu", threads: int | None = None, again: bool = False
) -> Calibration:
    """The calibration of this machine for the configuration's encoder and precision, from the cache or made now.

    again: made now in any case, and kept. Says on stderr when it measures.
    """
    place, threads = pick_device(device), threads or torch.get_num_threads()
    about = environment(place) | {"threads": threads}
    key = f"{about} {config.encoder} {config.precision} {config.attention_dropout} {KINDS} {list(STEPS)}"
    file = cache_dir() / "speed" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    if file.exists() and not again:
        content = json.loads(file.read_text(encoding="utf8"))
        return fit(pd.DataFrame(content["steps"]), content["about"])
    print(f"calibrating this machine with {len(STEPS)} kinds of steps, once: a minute or two", file=sys.stderr)
    made = calibrate(config, device, threads)
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {"steps": made.steps[["step", *KINDS, "seconds"]].to_dict("records"), "about": made.about}
    with replacing(file) as partial:
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf8")
    return made


def calibrate(config: RunConfig, device: str, threads: int) -> Calibration:
    """Measure STEPS in fresh processes, with the configuration's encoder, precision and attention dropout."""
    fields = config.model_dump(include={"encoder", "precision", "attention_dropout"})
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        steps, varied = (pool.submit(job, fields, device, threads) for job in (_measure_steps, _measure_varied))
        made = fit(*steps.result())
        work, seconds = varied.result()
    made.about["variety"] = max(1.0, seconds / made.seconds(work))
    return made


def _measure_steps(fields: dict, device: str, threads: int) -> tuple[pd.DataFrame, dict]:
    """The table of steps for `fit`, and where they were measured."""
    torch.set_num_threads(threads)
    keep_freed_memory()  # as `train` does
    place, steps, resident, seconds = pick_device(device), [], [], []
    for more, (examples, tokens) in STEPS.values():
        config = _config(fields | more)
        # The warm-up is the largest: what it got from the system is there for the others.
        shapes = [dict.fromkeys(config.tasks, (examples, tokens - i)) for i in range(WARM_UP + TIMED)]
        run = Steps(config, device)
        seconds.append(statistics.median([timed(run, shape) for shape in shapes][WARM_UP:]))
        resident.append(resident_mib())
        steps.append((config, shapes[0]))
    dry = [DryRun(config, place.type == "cuda").step(shapes) for config, shapes in steps]  # only now: it takes memory
    table = pd.DataFrame([work for _, work in dry]).assign(step=list(STEPS), seconds=seconds)
    about = environment(place) | {"encoder": fields["encoder"], "precision": fields["precision"]}
    return table, about | _process_memory(resident, [at_peak(course) for course, _ in dry[:2]])


def _config(fields: dict) -> RunConfig:
    fields = {"tasks": ("sst", "quora", "sts"), "max_length": 512, **fields}
    return RunConfig.from_params({"scheme": "unified" if len(fields["tasks"]) > 1 else "sampled", **fields})


def _measure_varied(fields: dict, device: str, threads: int) -> tuple[pd.Series, float]:
    """Work and time of steps on short texts whose lengths vary as those of the course's datasets do."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    config = _config(fields)
    lengths = np.random.default_rng(0).lognormal(np.log(26), 0.4, (VARIED, len(config.tasks))).astype(int).clip(6, 128)
    shapes = [{task: (32, int(T)) for task, T in zip(config.tasks, row, strict=True)} for row in lengths]
    run, trim, seconds = Steps(config, device), Trimmer(), 0.0
    for shape in shapes:
        seconds += timed(run, shape)
        trim()
    dry = DryRun(config, run.device.type == "cuda")
    return sum(dry.step(shape)[1] for shape in shapes), seconds


def _process_memory(resident: list[float], held: list[pd.Series]) -> dict[str, float]:
    """base_mib and holes, from the first two of STEPS, a small and a large one.

    Blocks that come and go leave holes in the C library's heap that others do not fit into, so that a step takes more
    of the process than of the allocator: resident = base + weights and moments + (1 + holes) x what comes and goes.
    """
    fixed = [moment["weights"] + moment["moments"] for moment in held[:2]]
    passing = [moment["total"] - always for moment, always in zip(held[:2], fixed, strict=True)]
    beside = [total - always for total, always in zip(resident[:2], fixed, strict=True)]
    slope = max(1.0, (beside[1] - beside[0]) / (passing[1] - passing[0]))
    return {"base_mib": float(beside[0] - slope * passing[0]), "holes": float(slope - 1)}


def timed(run: Steps, shapes: Shapes) -> float:
    """Seconds of a step."""
    is_cuda = run.device.type == "cuda"
    clock = time.perf_counter if is_cuda or torch.get_num_threads() > 1 else time.process_time
    if is_cuda:
        torch.cuda.synchronize(run.device)
    started = clock()
    run.step(shapes)
    if is_cuda:
        torch.cuda.synchronize(run.device)
    return clock() - started
