"""What training needs to go on after an interruption, bit for bit, in one file that is replaced atomically.

SIGINT (Ctrl-C) and SIGTERM end training behind the current step, when its checkpoint is saved.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from mtbert.parallel import ALONE
from mtbert.paths import replacing

log = logging.getLogger(__name__)
Step = TypeVar("Step")
AT_ONCE_AFTER = 1.0  # seconds from the first signal: some programs send it to a process and again to its group


@dataclass
class Stop:
    """The first signal that came inside a `stopping` block, and when."""

    number: int | None = None
    time: float = 0.0


@contextmanager
def stopping(message: str) -> Iterator[Stop]:
    """Inside the block SIGINT and SIGTERM are only noted, in what is yielded; a second SIGINT acts at once.

    After the block KeyboardInterrupt (SIGINT) or SystemExit (SIGTERM) with the message is raised, if one came. A
    signal that is ignored stays so, and outside the main thread, where Python handles no signals, nothing changes.
    """
    stop = Stop()

    def note(number: int, frame: object) -> None:
        now = time.monotonic()
        if stop.number is None:
            stop.number, stop.time = number, now
        elif number == signal.SIGINT and now - stop.time > AT_ONCE_AFTER:
            raise KeyboardInterrupt

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, note)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: not one of Python's
    if stop.number is not None:
        raise KeyboardInterrupt(message) if stop.number == signal.SIGINT else SystemExit(message)


class Checkpoint:
    """The states of some parts (model, optimizer, schedule: whatever has a `state_dict`), torch's generators, numbers.

    path None: nothing is ever saved. identity names the run; a file of another run is passed over. seconds: how long
    after a save, or the start, the next one is due.
    """

    processes = ALONE  # those that train together: the first one saves, and they stop after the same step

    def __init__(self, path: Path | None, identity: str, parts: dict[str, Any], seconds: float = 300.0) -> None:
        self.path, self.identity, self.parts, self.seconds = path, identity, parts, seconds
        self._last = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether it is time to save."""
        return time.monotonic() - self._last >= self.seconds

    def save(self, progress: dict[str, Any]) -> None:
        """Replace the file; progress: plain numbers, lists, dicts and tensors."""
        if self.path is None or not self.processes.is_main:
            return
        content = {name: part.state_dict() for name, part in self.parts.items()}
        content |= {"progress": progress, "identity": self.identity, "rng": torch.get_rng_state()}
        if torch.cuda.is_available():
            content["cuda_rng"] = torch.cuda.get_rng_state()
        with replacing(self.path) as partial, open(partial, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())  # else a crash of the machine may leave an empty file of this name
        self._last = time.monotonic()

    def guard(self, steps: Iterable[Step], progress: Callable[[], dict[str, Any]]) -> Iterator[Step]:
        """The steps, for a loop that does one at a time; between two of them the file is replaced when it is due.

        On SIGINT or SIGTERM it is replaced behind the current step and the loop ends as `stopping` says. progress():
        that of `save`. Without a path these signals do what they do elsewhere.
        """
        if self.path is None:
            yield from steps
            return
        with stopping(f"stopped between two steps; the same call goes on from {self.path.name}") as stop:
            for step in steps:
                yield step
                number = self.processes.largest(stop.number or 0)
                if self.is_due or number:
                    self.save(progress())
                if number:
                    stop.number = number
                    return

    def restore(self) -> dict[str, Any] | None:
        """Put parts and generators back and return the progress; None where there is no file, or, with a warning,
        where it is damaged or of another run."""
        if self.path is None or not self.path.exists():
            return None
        try:
            content = torch.load(self.path, map_location="cpu", weights_only=True)
        except Exception as error:
            log.warning("%s is damaged (%s); training starts from the beginning", self.path.name, error)
            return None
        if content.get("identity") != self.identity:
            log.warning("%s belongs to another run; training starts from the beginning", self.path.name)
            return None
        for name, part in self.parts.items():
            part.load_state_dict(content[name])
        torch.set_rng_state(content["rng"])
        if "cuda_rng" in content and torch.cuda.is_available():
            torch.cuda.set_rng_state(content["cuda_rng"])
        return content["progress"]
