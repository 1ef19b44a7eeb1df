"""The memory of a training step, allocation by allocation, without computing the step.

`mtbert.training.Trainer` trains a `MultitaskBert` of torch's fake tensors, which have shapes and storages but no
content. The mode that makes them sees every operation, and so every storage that is allocated and freed. A step that
reads a number gets a constant: losses are finite, and the gradients of any two tasks or memories conflict.
"""

import warnings
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy import ndarray
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode

from mtbert.config import RunConfig
from mtbert.multitask import meta_model
from mtbert.runtime import MIB
from mtbert.training import Shapes
from mtbert_lab.cost.steps import Steps

# moments: AdamW's, and averaged weights; task gradients: the flat ones of PCGrad and GEM
PARTS = ["weights", "moments", "gradients", "task gradients", "activations", "temporary"]
CONFLICT = -0.1  # cosine of any two gradients


class DryRun:
    """`Steps` of fake tensors, to predict their memory. Arguments: see `Steps`; raises as `MultitaskBert` does.

    cuda: needs a torch that was built for it, as fake tensors of a GPU do.
    """

    def __init__(
        self, config: RunConfig, memory: dict[str, int], known: tuple[str, ...] = (), cuda: bool = False
    ) -> None:
        self.ledger = _Ledger()
        model = meta_model(config)
        with self._entered():
            self.model = model.to_empty(device="cuda" if cuda else "cpu")
            self.steps = Steps(self.model, memory, known)
        shared = self.model.shared_parameters().values()
        self.ledger.flat_size = sum(parameter.numel() for parameter in shared)
        weights = {id(parameter.untyped_storage()) for parameter in self.model.parameters()}
        for storage, block in self.ledger.living.items():
            block.part = "weights" if storage in weights else "moments"

    def step(self, shapes: Shapes) -> pd.DataFrame:
        """Memory over a training step, a row per allocation: phase, and PARTS and total after it in MiB.

        The phases are forward, backward and update.
        """
        with self._entered():
            self.ledger.start()
            self.steps.compute_gradients(shapes)
            self.ledger.phase = "update"
            self.steps.update()
        table = self.ledger.timeline()
        return table.assign(total=table[PARTS].sum(axis=1))

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """Within this context tensors are fake, and reading a number gives a constant."""
        with warnings.catch_warnings(), torch.random.fork_rng(devices=()), _Numbers(self.ledger), self.ledger:
            warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")  # by copy.deepcopy
            yield


def step_timeline(config: RunConfig, shapes: Shapes) -> pd.DataFrame:
    """Predicted memory over one training step on a CPU, a row per allocation; columns: see `DryRun.step`."""
    longest = {task: T for task, (_, T) in shapes.items()}
    return DryRun(config, longest).step(shapes)


def at_peak(timeline: pd.DataFrame) -> pd.Series:
    """The row of a timeline with the most memory."""
    return timeline.loc[timeline["total"].idxmax()]


@dataclass
class _Block:
    """A storage: its bytes, the phase and row of its allocation and of its end, and its part if that is known."""

    size: int
    phase: str
    row: int
    part: str = ""
    last_phase: str = "update"
    last_row: int = -1  # the last one of the step

    @property
    def guessed_part(self) -> str:
        """Its part; if that is not known, it follows from the phases of its allocation and of its end."""
        if self.part:
            return self.part
        if self.phase == self.last_phase:
            return "temporary"
        if self.last_phase == "backward":
            return "activations"
        return "gradients" if self.phase == "backward" else "temporary"


class _Ledger(FakeTensorMode):
    """A mode of fake tensors that records every storage."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.living: dict[int, _Block] = {}  # id of the storage -> its block
        self.flat_size = 0  # numbers in a flat gradient
        self.is_inside = False  # of an operation that torch splits into others
        self.start()

    def start(self) -> None:
        """Begin a new step: forget the allocations so far, except storages that still live."""
        self.phase = "forward"
        self.phases: list[str] = []  # the phase of each row
        self.blocks = list(self.living.values())
        for block in self.blocks:
            block.row = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:
            return args[0].fake_device
        if self.is_inside:
            return self.dispatch(func, types, args, kwargs)
        if func is torch.ops.aten._local_scalar_dense.default:  # item, float, bool
            return _constant(args[0]).item()
        if func is torch.ops.aten.index.Tensor:
            dtypes = [index.dtype for index in args[1] if index is not None]
            if torch.bool in dtypes:
                return args[0].clone()  # the number of rows would depend on content: take all
        self.is_inside = True
        try:
            out = self.dispatch(func, types, args, kwargs)
        finally:
            self.is_inside = False
        for tensor in _tensors(out):
            self._note(tensor)
        return out

    def _note(self, tensor: Tensor) -> None:
        """Record a tensor's storage if it is new. Its Python object exists as long as the storage."""
        storage = tensor.untyped_storage()
        if id(storage) in self.living:
            return
        block = _Block(storage.nbytes(), self.phase, row=len(self.phases))
        if tensor.shape and tensor.shape[-1] == self.flat_size:
            block.part = "task gradients"
        self.phases.append(self.phase)
        self.living[id(storage)] = block
        self.blocks.append(block)
        weakref.finalize(storage, self._freed, id(storage))

    def _freed(self, key: int) -> None:
        block = self.living.pop(key)
        block.last_phase = self.phase
        block.last_row = len(self.phases) - 1

    def timeline(self) -> pd.DataFrame:
        """A row per allocation: phase, and PARTS in MiB."""
        rows = len(self.phases)
        change = np.zeros((rows + 1, len(PARTS)))
        for block in self.blocks:
            part = PARTS.index(block.guessed_part)
            change[block.row, part] += block.size
            change[block.last_row % rows + 1, part] -= block.size
        held = change.cumsum(axis=0)[:-1]
        return pd.DataFrame(held / MIB, columns=PARTS).assign(phase=self.phases)


class _Numbers(TorchFunctionMode):
    """Returns constants where code reads the content of a fake tensor, and marks backward passes in the ledger."""

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


def _constant(tensor: Tensor) -> ndarray:
    """The content that a fake tensor is said to have: True, 0 or 1; in a Gram matrix every pair conflicts a little."""
    if tensor.dtype == torch.bool:
        return np.ones(tensor.shape, bool)
    if not tensor.dtype.is_floating_point:
        return np.zeros(tensor.shape, np.int64)
    if tensor.ndim == 2 and len(tensor) == tensor.shape[1]:
        return np.where(np.eye(len(tensor)), 1, CONFLICT)
    return np.ones(tensor.shape)


def _tensors(values: object) -> Iterator[Tensor]:
    """The fake tensors in the result of an operation; torch's pytree takes much longer."""
    if isinstance(values, FakeTensor):
        yield values
    elif isinstance(values, Iterable) and not isinstance(values, Tensor | str):
        for value in values:
            yield from _tensors(value)
