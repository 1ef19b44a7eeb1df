"""Devices; memory, its peak and what happens to freed memory, measured on the process itself."""

import os
import platform
import subprocess
import sys

import pytest
import torch

from mtbert import __version__, runtime
from mtbert.runtime import (
    DeviceError,
    PeakMemory,
    Trimmer,
    environment,
    keep_freed_memory,
    pick_device,
    release_freed_memory,
)

CPU = torch.device("cpu")
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")


@pytest.mark.parametrize("gpus, device", [(0, "cpu"), (2, "cuda")])
def test_auto_is_a_gpu_where_there_is_one(monkeypatch, gpus, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", lambda enabled: None)
    assert pick_device("auto") == torch.device(device)
    assert pick_device("cpu") == torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_gpu_is_named():
    with pytest.raises(DeviceError, match="device 'cuda': no GPU is available; use cpu"):
        pick_device("cuda")
    for name in ("gpu", "cuda:x", "cuda:1", "meta"):
        with pytest.raises(DeviceError, match=f"device '{name}': no GPU is available; use cpu"):
            pick_device(name)


def test_a_gpu_chosen_by_its_number_becomes_the_current_one_and_its_attention_compiles_nothing(monkeypatch):
    chosen, by_cudnn = [], []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", by_cudnn.append)
    assert [str(pick_device(name)) for name in ("cuda:1", "cuda", "cpu")] == ["cuda:1", "cuda", "cpu"]
    assert chosen == ["cuda:1"]
    assert by_cudnn == [False, False]
    with pytest.raises(DeviceError, match="device 'cuda:2': use cpu, cuda, cuda:0, cuda:1"):
        pick_device("cuda:2")


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


@glibc
def test_freed_blocks_are_kept_used_again_and_released():
    """Of blocks of 1 MiB every second one is freed; then a freed block of 64 MiB is allocated again."""
    script = """
import resource
import torch
from mtbert.runtime import keep_freed_memory, release_freed_memory, resident_mib
keep_freed_memory()
blocks = [torch.ones(2**18) for _ in range(200)]
full = resident_mib()
del blocks[::2]
kept = resident_mib()
release_freed_memory()
print(full - kept, kept - resident_mib())
bytearray(2**26)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
bytearray(2**26)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    lost, released, page_faults = (float(word) for word in process.stdout.split())
    assert abs(lost) < 10 and released > 80
    assert page_faults < 1000  # a block of 64 MiB has 16,384 pages


def test_onednn_keeps_the_code_of_few_shapes_unless_the_user_says_how_many(monkeypatch):
    monkeypatch.setattr(runtime, "_set_allocator", lambda **options: None)
    name = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    monkeypatch.setenv(name, "7")
    keep_freed_memory()
    assert os.environ[name] == "7"
    monkeypatch.delenv(name)
    keep_freed_memory()
    assert os.environ[name] == str(runtime.CODES)


def test_trimmer_acts_when_the_process_has_grown(monkeypatch):
    """Half of the slack above a large batch, all of it above what a trim leaves."""
    slack, trims = runtime.SLACK_MIB, []
    large, small, left = 2 * slack, 0.7 * slack, 0.6 * slack
    sizes = iter(
        [large, 2.5 * slack, 2.5 * slack + 1, left]  # a trim reads the size once more
        + [small, left + slack, left + slack + 1, left]
        + [large, 2.5 * slack]
    )
    monkeypatch.setattr(runtime, "resident_mib", lambda: next(sizes))
    monkeypatch.setattr(runtime, "release_freed_memory", lambda: trims.append(call))
    trim = Trimmer()
    for call in range(8):  # noqa: B007 (appended to trims)
        trim()
    assert trims == [2, 5] and next(sizes, None) is None


@pytest.mark.parametrize(
    "given, expected",
    [({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
    ids=["by default", "by the user", "by a policy"],
)
def test_how_long_threads_wait_awake(given, expected):
    settings = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in settings}
    script = "import mtbert, os; print(os.environ.get('GOMP_SPINCOUNT'))"
    command = [sys.executable, "-c", script]
    process = subprocess.run(command, env=environment | given, capture_output=True, text=True, check=True)
    assert process.stdout.strip() == expected
