"""What training needs to go on after an interruption, bit for bit, in a file with a digest.

SIGINT (Ctrl-C) and SIGTERM end training after the current step, once its checkpoint is saved; in a thread, which gets
no signals, `watch` does. A checkpoint is due after MTBERT_CHECKPOINT_SECONDS (default 60; 0: after each step).
"""

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from mtbert.files import is_sealed, replacing_sealed

log = logging.getLogger(__name__)
Step = TypeVar("Step")
ReadProgress = Callable[[], dict[str, Any]]  # what a checkpoint has besides its parts; "step": number of steps done
# Called after every step of this thread or task, with the progress and the number of all steps; True: save and stop.
# Pretraining calls it, too, and its progress has other fields.
watch: ContextVar[Callable[[ReadProgress, int], bool]] = ContextVar("watch", default=lambda progress, total: False)
AT_ONCE_AFTER = 1.0  # seconds from the first signal: some programs send it to a process and again to its group


@dataclass
class Stop:
    """The first signal that came inside a `stopping` block, when it came, and what is said of it after the block."""

    number: int | None = None
    time: float = 0.0
    message: str = ""


@contextmanager
def stopping(message: str, handles_signals: bool = True) -> Iterator[Stop]:
    """SIGINT and SIGTERM do not end the block: the yielded `Stop` notes the first. A second SIGINT acts at once.

    After the block KeyboardInterrupt (SIGINT) or SystemExit (SIGTERM) with the message is raised, if one came; the
    block may change the message. A signal that is ignored stays so, and outside the main thread, where Python handles
    no signals, nothing changes; nor without handles_signals.
    """
    stop = Stop(message=message)

    def note(number: int, frame: object) -> None:
        now = time.monotonic()
        if stop.number is None:
            stop.number, stop.time = number, now
        elif number == signal.SIGINT and now - stop.time > AT_ONCE_AFTER:
            raise KeyboardInterrupt

    before = {}
    if handles_signals and threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, note)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)  # None: not one of Python's
    if stop.number is not None:
        raise KeyboardInterrupt(stop.message) if stop.number == signal.SIGINT else SystemExit(stop.message)


class TrainingError(RuntimeError):
    """Training broke down, or cannot begin; the message says where and what to change."""


def _seconds_between() -> float:
    """MTBERT_CHECKPOINT_SECONDS; raises TrainingError where it is no number, or negative."""
    text = os.environ.get("MTBERT_CHECKPOINT_SECONDS") or "60"
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise TrainingError(f"MTBERT_CHECKPOINT_SECONDS: a number from 0 upwards is needed, got {text!r}")
    return seconds


class Checkpoint:
    """The states of some parts (model, optimizer, schedule: whatever has a `state_dict`), torch's generators, numbers.

    path None: nothing is ever saved. identity names the run; a file of another run is ignored.
    """

    def __init__(self, path: Path | None, identity: str, parts: dict[str, Any]) -> None:
        self.path = path
        self.identity = identity
        self.parts = parts
        self.seconds = _seconds_between()
        self._last = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether it is time to save; never without a path."""
        return self.path is not None and time.monotonic() - self._last >= self.seconds

    def save(self, progress: dict[str, Any]) -> bool:
        """Replace the file; progress: plain numbers, lists, dicts and tensors. Returns whether that was possible.

        A full disk is a warning.
        """
        if self.path is None:
            return False
        is_saved = False
        content = {name: part.state_dict() for name, part in self.parts.items()}
        content |= {"progress": progress, "identity": self.identity, "rng": torch.get_rng_state()}
        if torch.cuda.is_initialized():
            content["cuda_rng"] = torch.cuda.get_rng_state()
        try:
            with replacing_sealed(self.path) as partial, open(partial, "wb") as file:
                torch.save(content, file)
            is_saved = True
        except (OSError, RuntimeError) as error:  # torch's own says nothing of the file
            cause = error if isinstance(error, OSError) else error.__context__
            log.warning("%s cannot be written (%s)", self.path, getattr(cause, "strerror", error))
        self._last = time.monotonic()
        return is_saved

    def guard(self, steps: Iterable[Step], progress: ReadProgress, total: int = 0) -> Iterator[Step]:
        """The steps, for a loop that does one at a time; the checkpoint is saved between two of them when it is due.

        On SIGINT, on SIGTERM, and where `watch` returns True, which counts as SIGTERM, it is saved after the current
        step and the loop ends as `stopping` says. progress(): that of `save`; total: number of all steps. Without a
        path nothing is saved, and signals have their usual effect.
        """
        with stopping("stopped between two steps", handles_signals=self.path is not None) as stop:
            for step in steps:
                yield step
                must_stop = watch.get()
                if must_stop(progress, total):
                    stop.number = signal.SIGTERM
                if stop.number is not None:
                    stop.message += self._how_to_go_on(is_saved=self.save(progress()))
                    return
                if self.is_due:
                    self.save(progress())

    def _how_to_go_on(self, is_saved: bool) -> str:
        """What is said of the checkpoint after a signal; is_saved: whether it is of the last step."""
        if self.path is None:
            return ""
        if is_saved:
            return f"; the same call goes on from {self.path.name}"
        return (
            f"; {self.path.name} could not be written: the same call goes on from the checkpoint before, or, where "
            "there is none, from the beginning"
        )

    def restore(self) -> dict[str, Any] | None:
        """Put parts and generators back and return the progress; None where there is no file.

        A file that is damaged or of another run is ignored, with a warning.
        """
        if self.path is None or not self.path.exists():
            return None
        content = self._read()
        if content is None:
            return None
        for name, part in self.parts.items():
            part.load_state_dict(content[name])
        torch.set_rng_state(content["rng"])
        if "cuda_rng" in content and torch.cuda.is_available():
            torch.cuda.set_rng_state(content["cuda_rng"])
        return content["progress"]

    def _read(self) -> dict[str, Any] | None:
        """The content of a checkpoint of this run; None, with a warning, for any other file."""
        content = None
        try:
            if is_sealed(self.path):
                content = torch.load(self.path, map_location="cpu", weights_only=True)
        except Exception:  # of many types, where the file is not torch's
            pass
        if content is None:
            fault = "is damaged"
        elif content.get("identity") != self.identity:
            fault = "belongs to another run, or was begun by another version,"
        else:
            return content
        log.warning("%s %s and is not used; training starts from the beginning", self.path, fault)
        return None
