"""How far a run has come, its clock and its progress bar."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tqdm import tqdm


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

    def bar(self, total: int, shown: bool | None = None) -> tqdm:
        """The progress bar of a run of `total` steps. shown: whether there is one; None: on a terminal."""
        is_hidden = None if shown is None else not shown
        return tqdm(total=total, initial=self.step, disable=is_hidden, unit="step")
