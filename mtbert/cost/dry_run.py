"""A training step without numbers: the memory it uses, operation by operation, and the work it does.

`mtbert.training.Trainer` trains a `MultitaskBert` of torch's fake tensors, which have shapes and storages but no
content. The mode that makes them sees every operation: the storages that appear and disappear, its floating-point
operations (`torch.utils.flop_counter`), the bytes that it reads and writes. Where a step reads a number it gets a
constant: losses are finite, and the gradients of any two tasks or memories conflict.
"""

import warnings
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import flop_registry

from mtbert.bert import cpu_ops
from mtbert.config import RunConfig
from mtbert.cost.steps import Rows, Shapes, Steps
from mtbert.gradients import gram
from mtbert.multitask import meta_model
from mtbert.runtime import MIB

# moments: AdamW's, and averaged weights; task gradients: the flat ones of PCGrad and GEM
PARTS = ["weights", "moments", "gradients", "task gradients", "activations", "temporary"]
KINDS = ["flops", "moved"]  # of work: of matrix products; bytes that all other operations read and write
CONFLICT = -0.1  # cosine of any two gradients

_aten = torch.ops.aten
_FLOPS = flop_registry | {
    _aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[_aten._scaled_dot_product_flash_attention],
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        _aten._scaled_dot_product_flash_attention_backward
    ],
}


class DryRun:
    """`Steps` without numbers: their memory and their work. Raises as `MultitaskBert` does.

    cuda: needs a torch that was built for it, as fake tensors of a GPU do.
    """

    def __init__(self, config: RunConfig, cuda: bool = False) -> None:
        self.ledger, model = _Ledger(), meta_model(config)
        with self._entered():
            self.model = model.to_empty(device="cuda" if cuda else "cpu")
            self.steps = Steps(self.model)
        self.ledger.flat_size = self.steps.flat_size
        weights = {id(self.ledger.block(parameter)) for parameter in self.model.parameters()}
        for block in self.ledger.living.values():
            block.part = "weights" if id(block) in weights else "moments"

    def step(self, shapes: Shapes, memory: dict[str, int] | None = None) -> tuple[pd.DataFrame, pd.Series]:
        """Memory and work of a training step; arguments of `Steps.gradients`.

        Memory: a row an operation, with phase (forward, backward, update) and, at its end, PARTS and total in MiB.
        Work: an amount of each of KINDS.
        """
        with self._entered():
            self.ledger.start()
            self.steps.gradients(shapes, memory)
            self.ledger.phase = "update"
            self.steps.trainer.update({})
        table = self.ledger.timeline()
        return table.assign(total=table[PARTS].sum(axis=1)), self.ledger.done()

    def evaluation(self, task: str, shape: tuple[int, int]) -> pd.Series:
        """The work of an evaluation batch of (examples, tokens)."""
        with self._entered(), torch.no_grad():
            self.model.eval()
            self.ledger.start()
            batch = Rows(self.model, task, [shape]).batch(np.arange(shape[0]))
            self.model.embed({task: batch.to(self.model.device)})
        return self.ledger.done()

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """Tensors are fake, numbers are constants; one chunk of flat gradients is computed and counts for all."""
        chunks, ledger = gram.in_double, self.ledger

        def first_chunk(*parts: Tensor) -> Iterator[tuple[slice, Tensor]]:
            columns, block = next(chunks(*parts))
            ledger.scale = parts[0].shape[1] / block.shape[1]
            yield columns, block
            ledger.scale = 1.0

        with (
            warnings.catch_warnings(),
            patch.object(gram, "in_double", first_chunk),
            patch.object(cpu_ops, "ONEDNN", False),  # its products are not in the registry of operations
            patch.object(cpu_ops, "keep_mask", lambda shape, p: torch.empty(shape, dtype=bool)),
            _Numbers(ledger),
            ledger,
        ):
            warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # by copy.deepcopy
            yield


@dataclass(eq=False)
class _Block:
    """A storage: bytes, the phase and operation at which it appeared and disappeared, its part where that is known."""

    size: int
    phase: str
    born: int
    part: str = ""
    end: tuple[str, int] | None = None


class _Ledger(FakeTensorMode):
    """Records every storage and all work while it is entered."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.living: dict[int, _Block] = {}  # id of the storage
        self.flat_size = 0  # numbers in a flat gradient
        self.is_inside = False  # an operation that torch takes apart
        self.start()

    def start(self) -> None:
        """Forget the operations and the work so far, but not the storages that still live."""
        self.phase, self.work = "forward", Counter()
        self.scale = 1.0  # of the work: more than 1 where one operation stands for several
        self.operations: list[str] = []  # the phase of each
        self.blocks = list(self.living.values())
        for block in self.blocks:
            block.born = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:
            return args[0].fake_device
        if self.is_inside:
            return self.dispatch(func, types, args, kwargs)
        if func is _aten._local_scalar_dense.default:  # item, float, bool
            return _constant(args[0]).item()
        if func is _aten.index.Tensor and any(i is not None and i.dtype == torch.bool for i in args[1]):
            return args[0].clone()  # the number of rows would depend on content: take all
        self.operations.append(self.phase)
        self.is_inside = True
        try:
            out = self.dispatch(func, types, args, kwargs)
        finally:
            self.is_inside = False
        tensors = list(_tensors([*args, *kwargs.values(), out]))
        for tensor in tensors:
            self.block(tensor)
        if count := _FLOPS.get(func._overloadpacket):
            self.work["flops"] += self.scale * count(*args, **kwargs, out_val=out)
        elif not func.is_view:
            self.work["moved"] += self.scale * sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return out

    def block(self, tensor: Tensor) -> _Block:
        """The block of a tensor's storage, whose Python object torch keeps as long as the storage lives."""
        storage = tensor.untyped_storage()
        key = id(storage)
        if key not in self.living:
            block = self.living[key] = _Block(storage.nbytes(), self.phase, len(self.operations))
            block.part = "task gradients" if tensor.shape and tensor.shape[-1] == self.flat_size else ""
            self.blocks.append(block)
            weakref.finalize(storage, self._freed, key)
        return self.living[key]

    def _freed(self, key: int) -> None:
        self.living.pop(key).end = self.phase, len(self.operations)

    def timeline(self) -> pd.DataFrame:
        """A row an operation: phase, and PARTS in MiB."""
        change = np.zeros((len(self.operations) + 2, len(PARTS)))
        for block in self.blocks:
            phase, died = block.end or ("update", len(self.operations))
            passed_on = "activations" if phase == "backward" else "gradients" if block.phase == "backward" else ""
            part = PARTS.index(block.part or (phase != block.phase and passed_on) or "temporary")
            change[block.born, part] += block.size
            change[died + 1, part] -= block.size
        return pd.DataFrame(change.cumsum(0)[1:-1] / MIB, columns=PARTS).assign(phase=self.operations)

    def done(self) -> pd.Series:
        """The work so far, an amount of each of KINDS."""
        return pd.Series({kind: float(self.work[kind]) for kind in KINDS})


class _Numbers(TorchFunctionMode):
    """Gives a constant where a tensor's content is read, and marks backward passes in the ledger."""

    def __init__(self, ledger: _Ledger) -> None:
        super().__init__()
        self.ledger = ledger

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (Tensor.numpy, Tensor.__array__):
            return _constant(args[0])
        if func is Tensor.tolist:
            return _constant(args[0]).tolist()
        if func is not Tensor.backward:
            return func(*args, **(kwargs or {}))
        self.ledger.phase = "backward"
        func(*args)
        self.ledger.phase = "forward"


def _constant(tensor: Tensor) -> np.ndarray:
    """What stands for a fake tensor's content: True, 0 or 1; for a Gram matrix, a small conflict of every pair."""
    if not tensor.dtype.is_floating_point:
        return np.full(tensor.shape, tensor.dtype == torch.bool, bool if tensor.dtype == torch.bool else np.int64)
    if tensor.ndim == 2 and len(tensor) == tensor.shape[1]:
        return np.where(np.eye(len(tensor)), 1, CONFLICT)
    return np.ones(tensor.shape)


def _tensors(values: Iterable) -> Iterator[Tensor]:
    """The tensors among the arguments of an operation, those in lists included; torch's pytree takes much longer."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
