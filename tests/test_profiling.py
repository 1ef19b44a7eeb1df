"""What is measured is there."""

import platform
import sys

import pytest
import torch

from mtbert import __version__
from mtbert.runtime import PeakMemory, environment, release_freed_memory

CPU = torch.device("cpu")


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of other systems cannot be reset")
def test_peak_memory_sees_what_was_freed_and_forgets_what_was_before():
    held = bytearray(b"x") * (200 * 2**20)
    del held
    release_freed_memory()  # what other tests in this process left would serve the next block
    memory = PeakMemory(CPU)
    start = memory.mib()
    assert 10 < start < 100_000
    held = bytearray(b"x") * (100 * 2**20)
    del held
    assert 90 < memory.mib() - start < 150


def test_environment():
    found = environment(CPU)
    assert found["device"].startswith("cpu (") and len(found["device"]) > len("cpu ()")
    assert found["threads"] == torch.get_num_threads()
    assert (found["mtbert"], found["torch"]) == (__version__, torch.__version__)
    assert found["python"] == platform.python_version()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_peak_memory_of_a_gpu():
    device = torch.device("cuda")
    memory = PeakMemory(device)
    start = memory.mib()
    held = torch.ones(100 * 2**18, device=device)
    del held
    assert memory.mib() - start == pytest.approx(100, rel=0.1)
