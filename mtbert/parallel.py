"""Several processes that train one model together, each on its part of every batch (data-parallel training).

torchrun starts them, or accelerate's launcher on GPUs. Every process draws the same batches and makes the same updates,
from the sum of the processes' gradients; so the weights stay the same everywhere. The first process alone writes files.
"""

import atexit
import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor, distributed, nn

TIMEOUT = timedelta(days=1)  # others wait while the first process pretrains; the launcher notices one that died


@dataclass(frozen=True)
class Processes:
    """The processes of a run: the index of this one, and how many there are.

    All of them call every method but `is_main` and `part`, in the same order. With one process no method does anything.
    """

    index: int = 0
    count: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files."""
        return self.index == 0

    def part(self, rows: ndarray) -> tuple[ndarray, float]:
        """This process's rows of a batch, and its share of the batch.

        If a batch has fewer rows than there are processes, some take a row with share 0, so that all use the same
        parameters.
        """
        own = np.array_split(rows, self.count)[self.index]
        if len(own) == 0:
            return rows[:1], 0.0
        return own, len(own) / len(rows)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the processes, in place."""
        if self.count > 1:
            distributed.all_reduce(tensor)
        return tensor

    def largest(self, number: int) -> int:
        """The largest of the processes' numbers."""
        return max(self.gather([number]))

    def gather(self, items: Iterable) -> list:
        """The items of all processes, those of the first one first."""
        items = list(items)
        found = [items] * self.count
        if self.count > 1:
            distributed.all_gather_object(found, items)
        return list(itertools.chain(*found))

    def copy_from_main(self, model: nn.Module) -> None:
        """Give every process the weights of the first one."""
        if self.count > 1:
            for tensor in model.state_dict().values():
                distributed.broadcast(tensor, src=0)

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """The first process runs the block, then the others, which find its files."""
        if not self.is_main:
            distributed.barrier()
        yield
        if self.is_main and self.count > 1:
            distributed.barrier()

    def seed_step(self, seed: int, step: int) -> None:
        """Seed torch for a step: each process has dropout masks of its own, also after an interruption."""
        if self.count > 1:
            sequence = np.random.SeedSequence([seed, step, self.index])
            torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))


ALONE = Processes()


class LauncherError(RuntimeError):
    """Environment variables of a launcher that started no processes; the message names them."""


def number_of_processes() -> int:
    """How many processes a launcher started, as WORLD_SIZE says; raises LauncherError where it is left over."""
    text = os.environ.get("WORLD_SIZE", "1")
    if not text.isdecimal():
        raise LauncherError(f"WORLD_SIZE: a number of processes is needed, got {text!r}; unset it, or use torchrun")
    missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if int(text) > 1 and missing:
        raise LauncherError(
            f"WORLD_SIZE is {text}, but {', '.join(missing)} of a launcher are not set; "
            "unset WORLD_SIZE to train in this process, or start the processes with torchrun"
        )
    return int(text)


def connect(device: torch.device) -> Processes:
    """Connect the processes that a launcher started, as its environment variables say; this is one of them."""
    if number_of_processes() <= 1:
        return ALONE
    from accelerate import PartialState  # here, as it is slow to import

    if not distributed.is_initialized():
        atexit.register(lambda: distributed.destroy_process_group())
    state = PartialState(cpu=device.type == "cpu", timeout=TIMEOUT)
    return Processes(state.process_index, state.num_processes)
