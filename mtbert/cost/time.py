"""Time of a training step, modelled: the work it does, priced by a few measured steps.

Seconds = sum over KINDS of work of amount x price. The amounts come from a dry run, the prices from steps measured on
this machine, by non-negative least squares of relative errors. On a CPU with one thread time is the processor's, which
other work on the machine changes less than the clock's. Source: paper 000, sections 3.3 and 4 (training times;
performance under constraints of time).
"""

import hashlib
import json
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from scipy.optimize import nnls
from torch.utils.benchmark import timer

from mtbert.config import RunConfig
from mtbert.cost.dry_run import KINDS, DryRun
from mtbert.cost.memory import at_peak, measured_steps, step_shapes
from mtbert.cost.steps import Steps
from mtbert.multitask import MultitaskBert
from mtbert.paths import SEAL, cache_dir, is_sealed, replacing, seal
from mtbert.runtime import environment, keep_freed_memory, pick_device, resident_mib

MEASURED = ("1-bert, few tokens", "1-bert", "long texts", "3-bert", "PCGrad")  # of `measured_steps`
TIMED = 4  # steps of each, behind one to warm up


@dataclass(frozen=True)
class Calibration:
    """What a machine was measured to take: `steps`, a row for each of MEASURED.

    Columns: step; KINDS and seconds, of TIMED steps; beside_mib, resident memory beside torch's allocator's blocks.
    """

    steps: pd.DataFrame

    @cached_property
    def prices(self) -> pd.Series:
        """Seconds for one of each of KINDS, not negative, with the least squared relative error over the steps."""
        relative = self.steps[KINDS].div(self.steps["seconds"], axis=0)
        scale = relative.max()  # flops and bytes differ by orders of magnitude
        return pd.Series(nnls((relative / scale).to_numpy(), np.ones(len(relative)))[0], KINDS) / scale

    def seconds(self, work: pd.Series) -> float:
        """Modelled time of this work."""
        return float(work[KINDS] @ self.prices)


def load_or_calibrate(
    config: RunConfig, device: str = "cpu", threads: int | None = None, again: bool = False
) -> Calibration:
    """The calibration of this machine for the configuration's encoder and precision: from the cache, or made and kept.

    again: made in any case. Says on stderr what it measures.
    """
    threads = threads or torch.get_num_threads()
    fields = config.model_dump(include={"encoder", "precision", "attention_dropout"})
    key = f"{environment(pick_device(device)) | {'threads': threads}} {fields} {KINDS} {MEASURED}"
    file = cache_dir() / "speed" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    if again or not (file.exists() and is_sealed(file)):
        what = f"training steps of {config.encoder} in {config.precision} ({', '.join(MEASURED)})"
        print(f"calibrating this machine, once: {what}; about half a minute", file=sys.stderr, flush=True)
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            content = pool.submit(_measure_steps, fields, device, threads).result()
        with replacing(file) as partial:
            partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf8")
            seal(partial)
    return Calibration(pd.DataFrame(json.loads(file.read_bytes()[:-SEAL])))


def _measure_steps(fields: dict, device: str, threads: int) -> list[dict]:
    """The rows of a Calibration; in a process of its own, as it sets threads and allocator as `train` does."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    place, rows = pick_device(device), []
    clock = time.process_time if place.type == "cpu" and threads == 1 else timer
    for name in MEASURED:
        config = measured_steps()[name].but(**fields)
        # The first is the longest and fills the allocator; then each is of another shape, as in a run.
        shapes = [{t: (B, T - i) for t, (B, T) in step_shapes(config).items()} for i in range(1 + TIMED)]
        steps = Steps(MultitaskBert(config.but(weights="random")).to(place))
        steps.step(shapes[0])
        resident = resident_mib()
        started = clock()
        for shape in shapes[1:]:
            steps.step(shape)
        seconds = clock() - started
        dry = DryRun(config, place.type == "cuda")
        memory, _ = dry.step(shapes[0])
        work = sum(dry.step(shape)[1] for shape in shapes[1:])
        beside = resident - at_peak(memory)["total"]
        rows.append({"step": name, **work, "seconds": seconds, "beside_mib": beside})
    return rows
