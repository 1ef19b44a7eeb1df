"""Time of a training step: predicted from what it computes and a short calibration of the machine.

Seconds = sum over kinds of work of (amount x seconds for one), the amounts from the operations of footprint.py and the
prices from a handful of measured steps: non-negative least squares on relative errors. Kinds: floating-point operations
of matrix products with weights, numbers of the T x T attention matrices, bytes kept for the backward pass (written and
read again), numbers of weight gradients made and of weights updated, numbers of flat gradients that PCGrad and GEM
go through, operations called, passes.

Batches of a run differ in shape, and on a CPU one that is larger than those before it has to get its memory from the
system, which takes time: `variety` is how much longer steps of many shapes took than their work says.

On a CPU with one thread time is the processor's, which other work on the machine changes little; elsewhere it is the
clock's. Source: paper 000, sections 3.3 and 4 (training times; performance under constraints of time).
"""

import hashlib
import json
import logging
import multiprocessing
import statistics
import time
from collections.abc import Collection, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from scipy.optimize import nnls

from mtbert.bert import BertConfig
from mtbert.config import RunConfig
from mtbert.footprint import FLOAT, Operation, Shapes
from mtbert.heap import Trimmer, keep_freed_memory, resident_mib
from mtbert.measure import Stepper
from mtbert.multitask import pick_device
from mtbert.paths import cache_dir, replacing
from mtbert.peak import at_peak, operations, step_passes, step_timeline
from mtbert.profiling import environment

log = logging.getLogger(__name__)

KINDS = ["products", "scores", "kept", "gradients", "updates", "flat", "operations", "passes"]
WARM_UP, TIMED, VARIED = 1, 3, 30  # steps

_THREE, _LONG = ("sst", "quora", "sts"), ("cfimdb",)
# What is calibrated on, a small and a large step first: fields of the configuration, (examples, tokens) of each task
STEPS: dict[str, tuple[dict, tuple[int, int]]] = {
    "1-bert, 8 x 16": ({}, (8, 16)),
    "1-bert, 32 x 48": ({}, (32, 48)),
    "1-bert, 16 x 32": ({}, (16, 32)),
    "long texts": ({"tasks": _LONG}, (8, 160)),
    "longer texts": ({"tasks": _LONG}, (4, 320)),
    "2 layers": ({"layers": 2}, (16, 48)),
    "3-bert": ({"plan": "3-bert"}, (8, 32)),
    "hybrid-3": ({"plan": "hybrid-3"}, (16, 24)),
    "F3 S3": ({"plan": "F3 S3"}, (16, 48)),
    "frozen": ({"plan": "frozen"}, (32, 32)),
    "frozen + PAL": ({"plan": "frozen", "adapter": "pal", "adapter_size": 96}, (16, 32)),
    "1-bert + PAL": ({"adapter": "pal", "adapter_size": 96}, (8, 32)),
    "accumulation 4": ({"accumulation": 4}, (16, 32)),
    "PCGrad": ({"gradients": "pcgrad"}, (8, 32)),
    "GEM": ({"gradients": "gem"}, (8, 16)),
}


def step_work(
    config: RunConfig,
    shapes: Shapes,
    encoder: BertConfig | None = None,
    memory: Shapes | None = None,
    known: Collection[str] = (),
    cuda: bool = False,
) -> pd.Series:
    """The amount of each of KINDS in one training step; arguments as of `peak.step_timeline`."""
    passes = step_passes(config, shapes, encoder, memory, cuda)
    work = pd.Series(0.0, index=KINDS)
    updated: dict[str, int] = {}
    for part in (part for parts in passes.memory + passes.examples for part in parts):
        steps = operations(config, part, encoder, known=known)
        work += pass_work(steps)
        updated |= {name: size for op in steps for name, size in op.gradients.items()}
    work["updates"] = sum(updated.values()) / FLOAT
    if passes.is_flat:
        T, K = len(passes.examples), len(passes.memory)
        times = 2 * T + 2 * K + 1 if K else 3 * T  # copied; summed or combined; Gram matrix
        work["flat"] = times * sum(passes.shared.values()) / FLOAT
    return work


def pass_work(steps: Iterable[Operation]) -> pd.Series:
    """The work of one pass."""
    work = dict.fromkeys(KINDS, 0.0) | {"passes": 1.0}
    for op in steps:
        for kind, amount in op.work.items():
            work[kind] += amount
        work["kept"] += sum(op.kept.values())
        work["gradients"] += sum(op.gradients.values()) / FLOAT
        work["operations"] += 1 + (op.backward > 0)
    return pd.Series(work)


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

    @property
    def variety(self) -> float:
        """How much longer than their work says steps of many shapes take."""
        return float(self.about["variety"])

    @property
    def error(self) -> float:
        """Median absolute relative error for a step that was not calibrated on."""
        return float(self.steps["left_out"].abs().median())

    def process_mib(self, moment: pd.Series) -> float:
        """Memory of the process at a moment of a step (a row of `peak.step_timeline`)."""
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
    config: RunConfig, device: str = "cpu", threads: int | None = None, anew: bool = False
) -> Calibration:
    """The calibration of this machine for the configuration's encoder and precision, from the cache or made now.

    anew: made now in any case, and kept.
    """
    place, threads = pick_device(device), threads or torch.get_num_threads()
    about = environment(place) | {"threads": threads}
    key = f"{about} {config.encoder} {config.precision} {config.attention_dropout} {KINDS} {list(STEPS)}"
    file = cache_dir() / "speed" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    if file.exists() and not anew:
        content = json.loads(file.read_text(encoding="utf8"))
        return fit(pd.DataFrame(content["steps"]), content["about"])
    log.warning("calibrating this machine for %s in %s: a minute or two, once", config.encoder, config.precision)
    made = calibrate(config, device, threads)
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {"steps": made.steps[["step", *KINDS, "seconds"]].to_dict("records"), "about": made.about}
    with replacing(file) as partial:
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf8")
    return made


def calibrate(config: RunConfig, device: str = "cpu", threads: int | None = None) -> Calibration:
    """Measure STEPS in fresh processes, with the configuration's encoder, precision and attention dropout; a minute.

    threads: of torch; default: as many as here.
    """
    fields = config.model_dump(include={"encoder", "precision", "attention_dropout"})
    threads = threads or torch.get_num_threads()
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
    rows, resident, held = [], [], []
    for name, (more, (examples, tokens)) in STEPS.items():
        tasks = more.get("tasks", _THREE)
        scheme = {"scheme": "unified"} if len(tasks) > 1 else {}
        config = RunConfig.from_params({"tasks": tasks, "max_length": 512, **scheme, **fields, **more})
        # The warm-up is the largest: what it got from the system is there for the others.
        shapes = [dict.fromkeys(tasks, (examples, tokens - i)) for i in range(WARM_UP + TIMED)]
        seconds = step_seconds(Stepper(config, shapes, device))
        work = sum(step_work(config, shape) for shape in shapes[WARM_UP:]) / TIMED
        rows.append({"step": name, **work, "seconds": seconds})
        resident.append(resident_mib())
        held.append(at_peak(step_timeline(config, shapes[0])))
    about = environment(pick_device(device)) | {"encoder": fields["encoder"], "precision": fields["precision"]}
    return pd.DataFrame(rows), about | _process_memory(resident, held)


def _measure_varied(fields: dict, device: str, threads: int) -> tuple[pd.Series, float]:
    """Work and time of steps on short texts whose lengths vary as those of the course's datasets do."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    config = RunConfig.from_params({"tasks": _THREE, "scheme": "unified", **fields})
    lengths = np.random.default_rng(0).lognormal(np.log(26), 0.4, size=(VARIED, len(_THREE))).astype(int).clip(6, 128)
    shapes = [{task: (32, int(T)) for task, T in zip(_THREE, row, strict=True)} for row in lengths]
    stepper, trim, seconds = Stepper(config, shapes, device), Trimmer(), 0.0
    for _ in shapes:
        seconds += timed(stepper)
        trim()
    return sum(step_work(config, shape) for shape in shapes), seconds


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


def step_seconds(stepper: Stepper) -> float:
    """Median time of a few steps, after a warm-up."""
    return statistics.median([timed(stepper) for _ in range(WARM_UP + TIMED)][WARM_UP:])


def timed(stepper: Stepper) -> float:
    """Seconds of the next step."""
    is_cuda = stepper.device.type == "cuda"
    clock = time.perf_counter if is_cuda or torch.get_num_threads() > 1 else time.process_time
    if is_cuda:
        torch.cuda.synchronize(stepper.device)
    started = clock()
    stepper.step()
    if is_cuda:
        torch.cuda.synchronize(stepper.device)
    return clock() - started
