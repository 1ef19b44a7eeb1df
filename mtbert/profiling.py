"""What a run costs and where it ran: peak memory, device, versions."""

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
