"""The real training step without numbers: what it holds, moment by moment, and what it computes.

`mtbert.training.Trainer` steps on a `MultitaskBert` of torch's fake tensors, which have shapes, devices and storages
but no content. A dispatch mode sees every operation, its floating-point operations (`torch.utils.flop_counter`), the
bytes that it reads and writes, and the storages that come and go. Where a step asks for a number it gets a constant:
no loss is infinite, and the gradients of two tasks or memories conflict a little.

A storage is known by its Python object, which torch keeps as long as the storage lives.
"""

import itertools
import warnings
import weakref
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from mtbert.bert import Batch, cpu_ops
from mtbert.config import RunConfig
from mtbert.data import TAGS, TASKS
from mtbert.gradients import gram
from mtbert.multitask import MultitaskBert
from mtbert.runtime import MIB
from mtbert.training import Trainer, encode
from mtbert.training import step as training_step

# moments: AdamW's, and averaged weights; task gradients: the flat ones of PCGrad and GEM
PARTS = ["weights", "moments", "gradients", "task gradients", "activations", "temporary"]
KINDS = ["operations", "flops", "bf16 flops", "moved"]  # of work; moved: bytes that all but products read and write
CONFLICT = -0.1  # cosine of any two gradients

Shapes = dict[str, tuple[int, int]]  # task -> (examples, tokens of the longest)

_aten = torch.ops.aten
_FLOPS = {
    **flop_registry,
    _aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[_aten._scaled_dot_product_flash_attention],
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        _aten._scaled_dot_product_flash_attention_backward
    ],
}


class _Block:
    """A storage: its bytes, the part of memory that it is of, and the phase and the moments of its life."""

    def __init__(self, size: int, phase: str, born: int) -> None:
        self.size, self.phase, self.born = size, phase, born
        self.died: int | None = None
        self.part = ""


class Ledger(TorchDispatchMode):
    """Notes every storage and all work while it is entered; `course` has that of the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.living: dict[int, tuple[weakref.ref, _Block]] = {}
        self.start()
        self.truth = False  # while a model is made: `trunc_normal_` draws again as long as a number is out of bounds

    def start(self) -> None:
        """Forget the course and the work so far; what lives goes on living."""
        self.phase, self.work, self.truth = "other", Counter(), True
        self.scales = {"forward": 1.0, "backward": 1.0, "other": 1.0, "update": 1.0}  # of what is run in part
        self.blocks = [block for _, block in self.living.values()]
        self.moments: list[tuple[str, str]] = []  # phase and operation
        for block in self.blocks:
            block.born = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is _aten._local_scalar_dense.default:  # item, float, bool
            return self.truth if args[0].dtype == torch.bool else _constant(args[0]).item()
        if func is _aten.index.Tensor and any(i is not None and i.dtype == torch.bool for i in args[1]):
            return args[0].clone()  # how many are chosen would depend on numbers: all
        if func.namespace == "prim":  # where a tensor is, no operation
            return func(*args, **kwargs)
        self.moments.append((self.phase, str(func)))
        out = func(*args, **kwargs)
        moved = 0
        for tensor in _tensors(args, kwargs.values(), (out,)):
            self.block(tensor)
            moved += tensor.numel() * tensor.element_size()
        scale = self.scales[self.phase]
        self.work["operations"] += scale
        if count := _FLOPS.get(func._overloadpacket):
            kind = "bf16 flops" if args[0].dtype == torch.bfloat16 else "flops"
            self.work[kind] += scale * count(*args, **kwargs, out_val=out)
        elif not func.is_view:
            self.work["moved"] += scale * moved
        return out

    def block(self, tensor: Tensor) -> _Block:
        """The block of a tensor's storage."""
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self.living and self.living[key][0]() is storage:
            return self.living[key][1]
        block = _Block(storage.nbytes(), self.phase, len(self.moments))

        def gone(reference: weakref.ref) -> None:
            block.died = len(self.moments)
            if self.living.get(key, (None,))[0] is reference:
                del self.living[key]

        self.living[key] = weakref.ref(storage, gone), block
        self.blocks.append(block)
        return block

    def enter(self, phase: str) -> None:
        """A phase begins; what the forward pass leaves to the backward pass are its activations."""
        if phase == "backward":
            for _, block in self.living.values():
                if block.phase == "forward":
                    block.part = block.part or "activations"
        self.phase = phase

    def course(self, other: str) -> pd.DataFrame:
        """A row an operation of the step: phase, operation, PARTS and total in MiB, at the operation's end.

        other: the part of memory that blocks made neither in a pass nor in the update are of.
        """
        change = np.zeros((len(self.moments) + 2, len(PARTS)))
        for block in self.blocks:
            part = PARTS.index(block.part or (other if block.phase == "other" else "temporary"))
            change[block.born, part] += block.size
            if block.died is not None:
                change[block.died + 1, part] -= block.size
        table = pd.DataFrame(self.moments, columns=["phase", "operation"])
        table[PARTS] = change.cumsum(0)[1:-1] / MIB
        return table.assign(total=table[PARTS].sum(axis=1))


def _tensors(*values: Iterable) -> Iterator[Tensor]:
    """The tensors among the arguments of an operation, those in lists included; torch's pytree takes much longer."""
    for value in itertools.chain.from_iterable(values):
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _constant(tensor: Tensor) -> np.ndarray:
    """What a fake tensor is said to hold: True, 0 or 1; of a Gram matrix a small conflict of every pair."""
    dtype = tensor.dtype
    if not dtype.is_floating_point:
        return np.full(tuple(tensor.shape), dtype == torch.bool, dtype=bool if dtype == torch.bool else np.int64)
    values = np.ones(tuple(tensor.shape))
    if values.ndim == 2 and len(values) == values.shape[1]:
        values[~np.eye(len(values), dtype=bool)] = CONFLICT
    return values


class _Rows:
    """What a step reads of `TaskRows`: examples of some lengths, without text. known: states below are on disk."""

    def __init__(self, model: MultitaskBert, task: str, shapes: list[tuple[int, int]], known: bool) -> None:
        config, encoder, columns = model.run_config, model.encoder.config, len(TASKS[task].sentence_columns)
        self.tokens, self.width, self.known, self.device = self, encoder.hidden_size, known, model.device
        self.lengths = np.repeat([T for _, T in shapes], [B for B, _ in shapes])
        self.sequences = columns if config.two_encodings else 1
        self.has_types = columns > self.sequences and encoder.type_vocab_size > 1
        self.labels = torch.zeros(len(self.lengths), device=self.device)
        tags = len(TAGS) * columns
        self.tags = torch.zeros(len(self.lengths), tags, device=self.device) if config.pos_features else None

    def batch(self, rows: np.ndarray) -> Batch:
        shape = self.sequences * len(rows), int(self.lengths[rows].max())
        types = torch.zeros(shape, dtype=torch.int64) if self.has_types else None
        return Batch(torch.ones(shape, dtype=torch.int64), torch.ones(shape, dtype=torch.bool), types)

    def below(self, rows: np.ndarray, batch: Batch) -> Tensor | None:
        return torch.zeros(*batch.input_ids.shape, self.width, device=self.device) if self.known else None

    def fixed_embeddings(self, rows: np.ndarray) -> Tensor:
        return torch.zeros(len(rows), self.sequences, self.width, device=self.device)


class _Memory:
    """Stands for `EpisodicMemory`: the rows behind those of the step."""

    def __init__(self, rows: dict[str, np.ndarray]) -> None:
        self.rows, self.tasks = rows, list(rows)

    def sample(self, task: str, n: int, step: int) -> np.ndarray:
        return self.rows[task][:n]

    def add(self, task: str, rows: np.ndarray) -> None:
        pass


class Steps:
    """A configuration's model with random weights, and its training steps on examples of given shapes without text.

    known: the tasks whose states below the first trained layer are read from disk. Raises as `MultitaskBert` does.
    """

    def __init__(self, config: RunConfig, device: str = "cpu", known: Collection[str] = ()) -> None:
        self.config, self.device, self.known = config, torch.device(device), known
        with self.device:
            self.model = MultitaskBert(config.but(weights="random"))
            self.trainer = Trainer(self.model, {}, total_steps=1_000_000)
            for parameter in self.trainer.trained:  # AdamW makes its moments
                parameter.grad = torch.zeros_like(parameter)
            self.trainer.update({})

    def step(self, shapes: Shapes, memory: Shapes | None = None) -> None:
        """One training step. shapes: before it is cut into parts (`training.step_parts`); memory: of what GEM draws, by
        default as much of the step's tasks. Raises ValueError for a task that the configuration does not have.
        """
        if unknown := set(shapes) - set(self.config.scored):
            names = ", ".join(sorted(unknown))
            raise ValueError(f"shapes: {names}: not a task of the run, {', '.join(self.config.scored)}")
        k = self.config.memory_batch
        drawn = memory or {task: (min(B, k), T) for task, (B, T) in shapes.items()}
        drawn = drawn if self.config.gradients in ("gem", "agem") else {}
        self.trainer.updates.tables = {
            task: _Rows(self.model, task, [s[task] for s in (shapes, drawn) if task in s], task in self.known)
            for task in {**shapes, **drawn}
        }
        starts = {task: shapes.get(task, (0, 0))[0] for task in drawn}
        self.trainer.updates.memory = _Memory({t: np.arange(starts[t], starts[t] + drawn[t][0]) for t in drawn})
        self.trainer.step(1, {task: np.arange(B) for task, (B, _) in shapes.items()})


class DryRun:
    """`Steps` without numbers: their memory and their work. Raises as `Steps` does."""

    # cuda: needs a torch built for it, as fake tensors of a GPU do
    def __init__(self, config: RunConfig, cuda: bool = False, known: Collection[str] = ()) -> None:
        self.fake, self.ledger = FakeTensorMode(allow_non_fake_inputs=True), Ledger()
        with self._entered():
            self.steps = Steps(config, "cuda" if cuda else "cpu", known)
        self.model = self.steps.model
        weights = {id(self.ledger.block(p)) for p in self.model.parameters()}
        for _, block in self.ledger.living.values():
            block.part = "weights" if id(block) in weights else "moments"
        for parameter in self.steps.trainer.trained:
            parameter.register_post_accumulate_grad_hook(self._note_gradient)

    def step(self, shapes: Shapes, memory: Shapes | None = None) -> tuple[pd.DataFrame, pd.Series]:
        """One training step: `Ledger.course`, and its work, an amount of each of KINDS; arguments of `Steps.step`.

        The first two parts of a batch are run, as later ones are no larger, and the first columns of flat gradients;
        their work counts for all.
        """
        config, updates_of = self.steps.config, self.steps.trainer.updates
        with self._entered():
            self.ledger.start()
            self.steps.step(shapes, memory)
        is_flat = bool(updates_of.shared.spans) and (config.gradients != "sum" or config.cosine_every is not None)
        return self.ledger.course("task gradients" if is_flat else "temporary"), self._work()

    def _work(self) -> pd.Series:
        return pd.Series({kind: float(self.ledger.work[kind]) for kind in KINDS})

    def reading(self, task: str, shape: tuple[int, int]) -> pd.Series:
        """The work of an evaluation of so many examples of so many tokens, nothing known."""
        with self._entered(), torch.no_grad():
            self.model.eval()
            table = {task: _Rows(self.model, task, [shape], False)}
            self.ledger.start()
            embeddings = encode(self.model, table, {task: np.arange(shape[0])})[task]
            self.model.heads(task, embeddings, table[task].tags)
        return self._work()

    def _note_gradient(self, parameter: Tensor) -> None:
        self.ledger.block(parameter.grad).part = "gradients"

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """Fake tensors, and constants where a number is asked for; phases are told to the ledger."""
        ledger, split, logits, backward = self.ledger, np.array_split, training_step.task_logits, Tensor.backward

        def two_parts(rows: np.ndarray, n: int) -> list[np.ndarray]:
            ledger.scales["forward"] = ledger.scales["backward"] = max(1.0, n / 2)
            return split(rows, n)[:2] + [rows[:0]] * (n - 2)  # at an empty part `Updates` stops

        def forward(*args):
            ledger.enter("forward")
            return logits(*args)

        def backward_pass(loss: Tensor) -> None:
            ledger.enter("backward")
            backward(loss)
            ledger.enter("other")

        def first_chunk(*parts: Tensor) -> Iterator[tuple[slice, Tensor]]:
            columns, block = next(chunks(*parts))
            ledger.scales[ledger.phase] = parts[0].shape[1] / block.shape[1]
            yield columns, block
            ledger.scales[ledger.phase] = 1.0

        def update(trainer: Trainer, rows: dict) -> None:
            ledger.enter("update")
            real_update(trainer, rows)

        real_update, chunks = Trainer.update, gram.in_double
        with ExitStack() as stack, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # by copy.deepcopy
            for owner, name, new in (
                (np, "array_split", two_parts),
                (training_step, "task_logits", forward),
                (gram, "in_double", first_chunk),
                (Trainer, "update", update),
                (Tensor, "backward", backward_pass),
                (Tensor, "numpy", _constant),
                (Tensor, "tolist", lambda tensor: _constant(tensor).tolist()),
                (Tensor, "__array__", lambda tensor, dtype=None, copy=None: _constant(tensor)),
                (cpu_ops, "keep_mask", lambda shape, p: torch.empty(shape, dtype=torch.bool)),
            ):
                stack.enter_context(patch.object(owner, name, new))
            stack.enter_context(self.fake)
            stack.enter_context(self.ledger)
            yield
