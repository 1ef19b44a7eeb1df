"""The loop over the steps of a run: how far it has come, its clock and its progress bar."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from mtbert.runtime import Trimmer
from mtbert.training.checkpoint import Checkpoint, Step


@dataclass
class Progress:
    """How far a run has come. A checkpoint has all fields."""

    step: int = 0  # steps done
    tokens: int = 0
    seconds: float = 0.0  # inside `clocked`
    cpu_seconds: float = 0.0  # the same in processor time, which depends less on other work
    curve: list[dict] = field(default_factory=list)  # points of the learning curve

    @contextmanager
    def clocked(self) -> Iterator[None]:
        """Add the time of the block."""
        started = time.perf_counter()
        cpu_started = time.process_time()
        yield
        self.seconds += time.perf_counter() - started
        self.cpu_seconds += time.process_time() - cpu_started


def steps_left(
    steps: Iterable[Step],
    state: Progress,
    total: int,
    saver: Checkpoint,
    shown: bool | None = None,
    settle: Callable[[], None] = lambda: None,
) -> Iterator[tuple[Step, tqdm]]:
    """The steps that are left of a run, each with the run's progress bar; the caller does one and counts it in `state`.

    Between two steps the checkpoint is saved if it is due (`Checkpoint.guard`), and freed memory is returned.
    total: steps of the whole run. shown: whether there is a bar; None: on a terminal. settle: called before `state` is
    read for a checkpoint.
    """

    def content() -> dict[str, Any]:
        with state.clocked():  # on a GPU this waits for the steps
            settle()
        return vars(state)

    is_hidden = None if shown is None else not shown
    trim = Trimmer()
    with tqdm(total=total, initial=state.step, disable=is_hidden, unit="step") as bar:
        for step in saver.guard(steps, content, total):
            yield step, bar
            bar.update()
            trim()
