"""The machine under a run: devices, peak memory, versions, and what the C library does with freed memory.

A training step frees blocks of many megabytes and asks for them again in the next step. By default glibc returns such
blocks to the system, which clears every page again when it is touched: a tenth to a quarter of a step with an encoder
of 20 million parameters. Kept without bound, blocks of many shapes leave holes that no later batch fits into. oneDNN,
which computes products in bfloat16, compiles code for every shape of a product and keeps the last 1024, half a MiB
each. Batches of every length are of many shapes. On systems without glibc nothing changes.
"""

import ctypes
import os
import platform
from pathlib import Path

import torch

from mtbert import __version__

MIB = 2**20


class PeakMemory:
    """Peak memory between `start` and `mib`: the GPU allocator's on a GPU, else the process's resident memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            _reset_resident_peak()

    def mib(self) -> float:
        """The peak so far, in MiB."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / MIB
        return _resident_peak_mib()


def _reset_resident_peak() -> None:
    try:  # Linux: forget the high-water mark of earlier work in this process
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass


def _resident_peak_mib() -> float:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / MIB if platform.system() == "Darwin" else peak / 1024


def environment(device: torch.device) -> dict[str, str | int]:
    """Where the numbers come from: device, threads, versions."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu ({_cpu_name()})",
        "threads": torch.get_num_threads(),
        "mtbert": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENA_MAX = -3, -1, -8  # of malloc.h
CODES = 64  # that oneDNN keeps; a step's products are of about 15 shapes
SLACK_MIB = 512  # by how much the process may grow before freed blocks go back


def keep_freed_memory() -> None:
    """From now on freed blocks of any size stay with the process, in one heap for all threads.

    Called before the first product in bfloat16, it bounds what oneDNN keeps, too.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(CODES))
    for option, value in ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, 2**30), (_TRIM_THRESHOLD, 2**31 - 1)):
        _call("mallopt", option, value)


def free_by_default() -> None:
    """Undo `keep_freed_memory` and hand back what it kept.

    The thresholds are the highest that glibc comes to by itself when it may adapt them, which mallopt ends.
    """
    for option, value in ((_ARENA_MAX, 0), (_MMAP_THRESHOLD, 2**25), (_TRIM_THRESHOLD, 2**26)):
        _call("mallopt", option, value)
    release_freed_memory()


def release_freed_memory() -> None:
    """Hand freed blocks back to the system."""
    _call("malloc_trim", 0)


class Trimmer:
    """Hands freed blocks back when the process has grown by SLACK_MIB; for loops over batches of many shapes.

    A batch that needs as much by itself does not set it off: half of SLACK_MIB beside the batch behind the last time
    is always kept.
    """

    def __init__(self) -> None:
        self.limit = 0.0  # MiB
        self.trimmed_to: float | None = 0.0  # MiB, where no batch came since

    def __call__(self) -> None:
        """Call behind every batch; reads a file in /proc."""
        resident = resident_mib()
        if self.trimmed_to is not None:
            self.limit = max(self.trimmed_to + SLACK_MIB, resident + SLACK_MIB / 2)
            self.trimmed_to = None
        elif resident > self.limit:
            release_freed_memory()
            self.trimmed_to = resident_mib()


def resident_mib() -> float:
    """Resident memory of this process in MiB; 0 where /proc does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _call(function: str, *arguments: int) -> None:
    try:
        getattr(ctypes.CDLL(None), function)(*arguments)
    except (AttributeError, OSError, TypeError):
        pass
