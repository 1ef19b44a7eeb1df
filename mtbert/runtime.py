"""The machine of a run: device, memory, versions, and what glibc does with freed memory.

A training step frees blocks of many megabytes and allocates them again in the next step. By default glibc returns such
blocks to the system, which clears each page when it is used again: 10 to 25 % of the time of a step with an encoder of
20 million parameters. If all of them are kept, blocks of many sizes leave gaps that no later batch fits into. oneDNN,
which computes products in bfloat16, compiles code for every shape of a product and keeps the last 1024, 0.5 MiB each.
Without glibc nothing changes.
"""

import ctypes
import os
import platform
from contextlib import suppress
from pathlib import Path

import torch

from mtbert import __version__

MIB = 2**20
MMAP_THRESHOLD, TRIM_THRESHOLD, ARENA_MAX = -3, -1, -8  # options of mallopt, from malloc.h
CODES = 64  # kept by oneDNN; a step has products of about 15 shapes
SLACK_MIB = 512  # growth of the process after which freed blocks are returned to the system


class DeviceError(ValueError):
    """A device that this machine does not have."""


def pick_device(name: str = "auto") -> torch.device:
    """The device of this name; 'auto' is a GPU if there is one. Raises DeviceError if there is none of this name.

    A GPU chosen by its number becomes torch's current one, whose random generator checkpoints hold. Attention on a GPU
    is not left to cuDNN, which compiles code for each new shape of a batch: 62 % of the processor time of the first
    steps of a run (MiniLM on an H200).
    """
    gpus = []
    if torch.cuda.is_available():
        gpus = ["cuda", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if name == "auto":
        name = "cuda" if gpus else "cpu"
    if name not in ("cpu", *gpus):
        reason = "" if gpus else "no GPU is available; "
        raise DeviceError(f"device {name!r}: {reason}use {', '.join(['cpu', *gpus])}")
    if ":" in name:
        torch.cuda.set_device(name)
    if name != "cpu":
        torch.backends.cuda.enable_cudnn_sdp(False)
    return torch.device(name)


class PeakMemory:
    """Peak memory since this object was made: of the GPU allocator on a GPU, else the process's resident memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            with suppress(OSError):  # Linux only
                Path("/proc/self/clear_refs").write_text("5")

    def mib(self) -> float:
        """The peak so far, in MiB; on macOS that of the whole process, on Windows 0, as neither has /proc."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / MIB
        if peak := _status_mib("VmHWM"):
            return peak
        try:
            import resource
        except ImportError:  # Windows
            return 0.0
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / MIB if platform.system() == "Darwin" else peak / 1024


def resident_mib() -> float:
    """Resident memory of this process in MiB; 0 if /proc does not have it."""
    return _status_mib("VmRSS")


def _status_mib(key: str) -> float:
    """A memory of this process in MiB, as /proc names it; 0 if /proc does not have it."""
    text = from_proc("self/status", key)  # "123 kB"
    return int(text.split()[0]) / 1024 if text else 0.0


def environment(device: torch.device) -> dict[str, str | int]:
    """Device, threads and versions."""
    cpu = from_proc("cpuinfo", "model name") or platform.processor() or platform.machine()
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu ({cpu})",
        "threads": torch.get_num_threads(),
        "mtbert": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def from_proc(file: str, key: str) -> str:
    """The value of a line `key: value` in a file of /proc; empty where there is none."""
    with suppress(OSError):
        for line in Path("/proc", file).read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    return ""


def keep_freed_memory() -> None:
    """From now on the process keeps freed blocks of any size, in one heap for all threads.

    Called before the first product in bfloat16, it also limits the memory of oneDNN.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(CODES))
    _set_allocator(arenas=1, mmap_threshold=2**30, trim_threshold=2**31 - 1)


def free_by_default() -> None:
    """Undo `keep_freed_memory`, with the highest thresholds that glibc's own adaptation, which mallopt ends, allows."""
    _set_allocator(arenas=0, mmap_threshold=2**25, trim_threshold=2**26)
    release_freed_memory()


def release_freed_memory() -> None:
    """Return freed blocks to the system."""
    _call("malloc_trim", 0)


class Trimmer:
    """Returns freed blocks when the process has grown by SLACK_MIB, in a loop over batches of many shapes.

    The first batch after a return sets the limit, so that a single large batch does not cause one each time: half of
    SLACK_MIB above that batch is always kept.
    """

    def __init__(self) -> None:
        self.limit = 0.0  # MiB
        self.trimmed_to: float | None = 0.0  # MiB after the last return, until the next batch

    def __call__(self) -> None:
        """Call after every batch; reads a file in /proc."""
        resident = resident_mib()
        if self.trimmed_to is not None:
            self.limit = max(self.trimmed_to + SLACK_MIB, resident + SLACK_MIB / 2)
            self.trimmed_to = None
        elif resident > self.limit:
            release_freed_memory()
            self.trimmed_to = resident_mib()


def _set_allocator(arenas: int, mmap_threshold: int, trim_threshold: int) -> None:
    _call("mallopt", ARENA_MAX, arenas)
    _call("mallopt", MMAP_THRESHOLD, mmap_threshold)
    _call("mallopt", TRIM_THRESHOLD, trim_threshold)


def _call(function: str, *arguments: int) -> None:
    with suppress(AttributeError, OSError, TypeError):  # no glibc
        getattr(ctypes.CDLL(None), function)(*arguments)
