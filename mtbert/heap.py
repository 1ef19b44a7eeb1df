"""What the C library does with freed memory; on systems without glibc nothing changes.

A training step frees blocks of many megabytes and asks for them again in the next step. By default glibc returns such
blocks to the system, which clears every page anew when it is touched: a tenth to a quarter of a step with an encoder of
20 million parameters. Kept without bound, blocks of many shapes leave holes that no later batch fits into.
"""

import ctypes
import os
from pathlib import Path

_MMAP_THRESHOLD, _TRIM_THRESHOLD, _ARENA_MAX = -3, -1, -8  # of malloc.h
SLACK_MIB = 512  # by how much the process may grow beyond what a first batch needs before freed blocks go back


def keep_freed_memory() -> None:
    """From now on freed blocks of any size stay with the process, in one heap for all threads."""
    for option, value in ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, 2**30), (_TRIM_THRESHOLD, 2**31 - 1)):
        _call("mallopt", option, value)


def release_freed_memory() -> None:
    """Hand freed blocks back to the system."""
    _call("malloc_trim", 0)


class Trimmer:
    """Hands freed blocks back whenever the process has grown by SLACK_MIB; for loops over batches of many shapes.

    The first batch after that sets the new measure: what every batch needs again is not handed back.
    """

    def __init__(self) -> None:
        self.limit: float | None = None  # MiB

    def __call__(self) -> None:
        """Call behind every batch; reads a file in /proc."""
        if self.limit is None:
            self.limit = resident_mib() + SLACK_MIB
        elif resident_mib() > self.limit:
            release_freed_memory()
            self.limit = None


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
