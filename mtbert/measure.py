"""Memory of one training step, measured: the allocator's peak, its course over the step, what autograd keeps.

On a GPU the allocator counts for itself. On a CPU torch's allocator does not, but tells a running profiler of every
block it gives and takes back; their sum is exact from the first block on. Resident memory is another thing: pages that
the C library keeps after they were freed, holes between blocks, libraries and the interpreter are in it, and it differs
from run to run. Measured is a step like those of `train` on invented sentences of the wanted lengths, after a step that
made the optimizer's moments; `measure_grid` measures each configuration in a fresh process.
"""

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch.autograd import profiler

from mtbert.config import RunConfig
from mtbert.data import TASKS
from mtbert.footprint import Shapes
from mtbert.multitask import MultitaskBert, pick_device
from mtbert.peak import PARTS, at_peak, operations, step_timeline
from mtbert.profiling import MIB
from mtbert.rows import TaskRows, task_logits
from mtbert.trainer import Trainer

WORD = "the"  # one token in every vocabulary of the three encoders


class Stepper:
    """A model with random weights and its training steps on invented sentences.

    shapes: task -> (examples, tokens of every example, [CLS] and [SEP] included); of several, one after the other: in a
    run hardly two batches are of one shape, and a new shape costs time. Raises ValueError for what cannot be made.
    """

    def __init__(self, config: RunConfig, shapes: Shapes | Sequence[Shapes], device: str = "cpu") -> None:
        config = config.but(weights="random")  # the numbers do not matter, and no file is read
        place = pick_device(device)
        torch.manual_seed(config.seed)
        self.config, self.device = config, place
        self.shapes = [shapes] if isinstance(shapes, dict) else list(shapes)
        self.model = MultitaskBert(config).to(place)
        self.tables = {
            task: _rows(self.model, task, [shape[task] for shape in self.shapes], place) for task in self.shapes[0]
        }
        self.trainer = Trainer(self.model, self.tables, total_steps=1_000_000)
        self.steps = 0

    def rows(self) -> dict[str, np.ndarray]:
        """The rows of the next step: of every task in a unified step, else of one task after the other."""
        tasks, number = list(self.tables), self.steps // self.round % len(self.shapes)
        chosen = tasks if self.config.scheme == "unified" else [tasks[self.steps % len(tasks)]]
        starts = {task: sum(shape[task][0] for shape in self.shapes[:number]) for task in chosen}
        return {task: np.arange(start, start + self.shapes[number][task][0]) for task, start in starts.items()}

    def step(self) -> None:
        """One step as in `train`."""
        rows = self.rows()
        self.steps += 1
        self.trainer.step(self.steps, rows)

    @property
    def round(self) -> int:
        """Steps until every task had its turn."""
        return 1 if self.config.scheme == "unified" else len(self.tables)

    def kept_bytes(self) -> int:
        """Bytes that autograd keeps of the forward pass of the next step: distinct storages without the parameters'."""
        owned = {p.untyped_storage().data_ptr() for p in self.model.parameters()}
        kept: dict[int, int] = {}
        alive = []  # a storage that went away could leave its address to the next one

        def note(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in owned:
                kept[storage.data_ptr()] = storage.nbytes()
                alive.append(tensor)
            return tensor

        self.model.train()
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            task_logits(self.model, self.tables, self.rows())
        return sum(kept.values())


def _rows(model: MultitaskBert, task: str, shapes: list[tuple[int, int]], device: torch.device) -> TaskRows:
    """So many examples of so many tokens, shape after shape."""
    columns, joint = TASKS[task].sentence_columns, not model.run_config.two_encodings
    is_pair = len(columns) > 1 and joint
    special = 2 + is_pair * (2 if model.encoder.config.model_type == "roberta" else 1)
    texts: list[list[str]] = []
    for examples, tokens in shapes:
        words = tokens - special
        parts = [words - words // 2, words // 2] if is_pair else [words] * len(columns)
        texts += [[" ".join([WORD] * part) for part in parts]] * examples
    table = pd.DataFrame(texts, columns=list(columns)).assign(id=[str(i) for i in range(len(texts))], label=1)
    rows = TaskRows(model, task, table, device)
    made, wanted = rows.tokens.lengths.tolist(), [tokens for examples, tokens in shapes for _ in range(examples)]
    if made != wanted:
        raise ValueError(f"shapes: {task}: {shapes} cannot be made with max_length {model.run_config.max_length}")
    return rows


@dataclass(frozen=True)
class Measured:
    """The allocator's peak over a step and what was held before it, in bytes, and on a CPU its course."""

    peak: int
    before: int
    course: pd.DataFrame  # operation, bytes held: a row a block given or taken back


def measure_step(config: RunConfig, shapes: Shapes, device: str = "cpu") -> Measured:
    """The peak of one training step after a warm-up; of a scheme of single-task steps, the highest of all tasks.

    Call it in a fresh process where other tensors could be alive, or use `measure_grid`.
    """
    if pick_device(device).type == "cuda":
        return _measure_cuda(config, shapes, device)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler's own messages
    with profiler.profile(profile_memory=True) as record:
        stepper = Stepper(config, shapes, device)
        for _ in range(stepper.round):
            stepper.step()
        with profiler.record_function(_STEP):
            pass
        for _ in range(stepper.round):
            stepper.step()
    return _from_events(record)


_STEP = "mtbert: measured from here"


def _from_events(record: profiler.profile) -> Measured:
    live = before = 0
    rows, operation, measured = [], "", False
    for event in sorted(record.kineto_results.events(), key=lambda event: event.start_ns()):
        name = event.name()
        if name == _STEP:
            measured, before = True, live
        elif name != "[memory]":
            operation = name
        elif event.device_type() == torch.profiler.DeviceType.CPU:
            live += event.nbytes()
            if measured:
                rows.append((operation, live))
    course = pd.DataFrame(rows, columns=["operation", "bytes"])
    return Measured(int(course["bytes"].max()), before, course)


def _measure_cuda(config: RunConfig, shapes: Shapes, device: str) -> Measured:
    stepper = Stepper(config, shapes, device)
    for _ in range(stepper.round):
        stepper.step()
    torch.cuda.reset_peak_memory_stats(stepper.device)
    before = torch.cuda.memory_allocated(stepper.device)
    for _ in range(stepper.round):
        stepper.step()
    peak = torch.cuda.max_memory_allocated(stepper.device)
    return Measured(peak, before, pd.DataFrame(columns=["operation", "bytes"]))


# --- predicted against measured --------------------------------------------------------------------------------------

_THREE, _LONG = ("sst", "quora", "sts"), ("cfimdb",)
# name -> fields of the configuration, (examples, tokens) of each task
GRID: dict[str, tuple[dict, tuple[int, int]]] = {
    "1-bert": ({}, (16, 64)),
    "1-bert, bf16": ({"precision": "bf16"}, (16, 64)),
    "1-bert, few tokens": ({}, (8, 16)),
    "1-bert, many examples": ({"precision": "bf16"}, (64, 32)),
    "2 layers": ({"layers": 2}, (16, 64)),
    "3-bert": ({"plan": "3-bert"}, (8, 16)),
    "3-bert, bf16": ({"plan": "3-bert", "precision": "bf16"}, (32, 48)),
    "hybrid-3, bf16": ({"plan": "hybrid-3", "precision": "bf16"}, (32, 48)),
    "S6(quora,sts|sst)": ({"plan": "S6(quora,sts|sst)"}, (16, 32)),
    "F3 S3": ({"plan": "F3 S3"}, (32, 64)),
    "F3 S3, bf16": ({"plan": "F3 S3", "precision": "bf16"}, (32, 64)),
    "frozen": ({"plan": "frozen"}, (64, 128)),
    "frozen + PAL, bf16": ({"plan": "frozen", "adapter": "pal", "adapter_size": 96, "precision": "bf16"}, (16, 64)),
    "1-bert + PAL 204": ({"adapter": "pal"}, (16, 32)),
    "1-bert + PAL 96, bf16": ({"adapter": "pal", "adapter_size": 96, "precision": "bf16"}, (32, 48)),
    "1-bert + Houlsby 64": ({"adapter": "houlsby", "adapter_size": 64}, (16, 32)),
    "hybrid-3 + LHUC": ({"plan": "hybrid-3", "adapter": "lhuc"}, (16, 32)),
    "PCGrad": ({"gradients": "pcgrad"}, (8, 32)),
    "PCGrad, hybrid-3, bf16": ({"gradients": "pcgrad", "plan": "hybrid-3", "precision": "bf16"}, (16, 48)),
    "GEM": ({"gradients": "gem"}, (8, 32)),
    "A-GEM, sampled": ({"gradients": "agem", "scheme": "sampled"}, (8, 32)),
    "accumulation 4": ({"accumulation": 4}, (32, 64)),
    "accumulation 4, 3-bert": ({"accumulation": 4, "plan": "3-bert"}, (16, 32)),
    "sentences apart": ({"pairs": "concat"}, (16, 32)),
    "long texts": ({"tasks": _LONG}, (8, 256)),
    "long texts, bf16": ({"tasks": _LONG, "precision": "bf16"}, (8, 256)),
    "long texts, no attention dropout": ({"tasks": _LONG, "attention_dropout": 0.0}, (8, 256)),
}


def grid_config(name: str) -> tuple[RunConfig, Shapes]:
    """A configuration of GRID, and the shapes of its step."""
    fields, shape = GRID[name]
    fields = {"tasks": _THREE, "max_length": 512, **fields}
    if len(fields["tasks"]) > 1:
        fields = {"scheme": "unified", **fields}
    return RunConfig.from_params(fields), dict.fromkeys(fields["tasks"], shape)


def predicted_peak(config: RunConfig, shapes: Shapes, cuda: bool = False) -> pd.Series:
    """The moment of a step that takes most memory (`step_timeline`); of single-task steps, the most of any task's."""
    if config.scheme == "unified":
        return at_peak(step_timeline(config, shapes, cuda=cuda))
    drawn = {task: (min(B, config.memory_batch), T) for task, (B, T) in shapes.items()}
    steps = [step_timeline(config, {task: shape}, memory=drawn, cuda=cuda) for task, shape in shapes.items()]
    return max(map(at_peak, steps), key=lambda moment: moment["total"])


def measure_grid(names: list[str] | None = None, device: str = "cpu", workers: int = 1) -> pd.DataFrame:
    """Predicted and measured peak of the steps of GRID, a row a configuration, each measured in a process of its own.

    Columns: name, plan, adapter, method (of gradients), precision, examples, tokens (of each task), device; in MiB
    measured, predicted, and the prediction's weights, moments, gradients, task gradients, activations, temporary; ratio
    (predicted / measured); kept and kept_predicted (MiB that autograd keeps of one forward pass: counted, by formula).
    """
    names = list(GRID) if names is None else names
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, max_tasks_per_child=1) as pool:
        return pd.DataFrame(list(pool.map(_measure_row, names, [device] * len(names))))


def _measure_row(name: str, device: str) -> dict:
    torch.set_num_threads(1)
    config, shapes = grid_config(name)
    cuda = pick_device(device).type == "cuda"
    found = measure_step(config, shapes, device)
    stepper = Stepper(config, shapes, device)
    one_pass = {task: shapes[task] for task in stepper.rows()}
    moment = predicted_peak(config, shapes, cuda)
    kept = sum(sum(op.kept.values()) for op in operations(config, one_pass, cuda=cuda))
    examples, tokens = GRID[name][1]
    return {
        "name": name,
        "plan": config.plan_text,
        "adapter": config.adapter if config.adapter == "none" else f"{config.adapter} {config.adapter_size}",
        "method": config.gradients,
        "precision": config.precision,
        "examples": examples,
        "tokens": tokens,
        "device": device,
        "measured": found.peak / MIB,
        "predicted": moment["total"],
        "ratio": moment["total"] * MIB / found.peak,
        **{part: moment[part] for part in PARTS},
        "kept": stepper.kept_bytes() / MIB,
        "kept_predicted": kept / MIB,
    }
