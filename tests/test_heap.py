"""What is done about freed memory shows in the resident memory of a process."""

import platform
import subprocess
import sys

import pytest

from mtbert import runtime as heap
from mtbert.runtime import Trimmer, keep_freed_memory, release_freed_memory, resident_mib

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")


def in_a_process(script: str) -> list[float]:
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return [float(line) for line in process.stdout.split()]


@glibc
def test_freed_blocks_stay_and_are_handed_back():
    """Blocks of 1 MiB, every second one freed, leave holes that only a trim gives back."""
    script = """
import torch
from mtbert.runtime import keep_freed_memory, release_freed_memory, resident_mib
keep_freed_memory()
blocks = [torch.ones(2**18) for _ in range(200)]
full = resident_mib()
del blocks[::2]
kept = resident_mib()
release_freed_memory()
print(full - kept, kept - resident_mib())
"""
    lost, released = in_a_process(script)
    assert abs(lost) < 10 and released > 80


@glibc
def test_kept_blocks_are_used_again_without_page_faults():
    script = """
import resource
from mtbert.runtime import keep_freed_memory
keep_freed_memory()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
bytearray(2**26)
before = faults()
bytearray(2**26)
print(faults() - before)
"""
    assert in_a_process(script)[0] < 1000  # a block of 64 MiB has 16,384 pages


def test_trimmer_acts_when_the_process_has_grown(monkeypatch):
    """Half of the slack beside a large batch, all of it beside what a trim leaves."""
    slack, trims = heap.SLACK_MIB, []
    large, small, left = 2 * slack, 0.7 * slack, 0.6 * slack
    sizes = iter(
        [large, 2.5 * slack, 2.5 * slack + 1, left]  # a trim reads the size once more
        + [small, left + slack, left + slack + 1, left]
        + [large, 2.5 * slack]
    )
    monkeypatch.setattr(heap, "resident_mib", lambda: next(sizes))
    monkeypatch.setattr(heap, "release_freed_memory", lambda: trims.append(call))
    trim = Trimmer()
    for call in range(8):  # noqa: B007 (the trims are noted by it)
        trim()
    assert trims == [2, 5] and next(sizes, None) is None


def test_systems_without_glibc_change_nothing(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    keep_freed_memory()
    release_freed_memory()
    assert resident_mib() >= 0
