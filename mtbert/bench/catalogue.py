"""The benchmarks by name, and the settings that they run in."""

from pathlib import Path

import torch

from mtbert.bench import growth, process, steps
from mtbert.bench.harness import Benchmarks, Setting

THREE = dict(B=16, T=30)  # a batch of each of three tasks
QUORA = dict(task="quora", longest=20, others=40)

BENCHMARKS: Benchmarks = {
    "step": (steps.training_step, (dict(B=32, T=26), dict(B=16, T=128), dict(B=8, T=512))),
    "epoch": (steps.epoch, (dict(task="sst"), dict(task="quora", rows=20_000))),
    "adamw": (steps.adamw_alone, ({},)),
    "plans": (steps.plans, (dict(B=32, T=31, precision="bf16"),)),
    "pal": (steps.pal, (THREE | dict(s=96, heads=12),)),
    "pcgrad": (steps.pcgrad_step, (THREE,)),
    "gem": (steps.gem_projection, (dict(parameters=22_700_000, memories=3),)),
    "growth-length": (growth.length, (dict(sizes=(16, 128, 512), B=4),)),
    "growth-batch": (growth.batch, (dict(sizes=(4, 32, 256), T=26),)),
    "growth-layers": (growth.layers, (dict(sizes=(2, 8, 24), d=128, B=16, T=30),)),
    "growth-pcgrad": (growth.pcgrad_tasks, (dict(sizes=(3, 8, 24), parameters=2_000_000),)),
    "memory": (process.memory, (QUORA | dict(precision="fp32"), QUORA | dict(precision="bf16"))),
    "import": (process.imports, (dict(module="sweep"),)),
    "stored-run": (process.stored_run, ({},)),
}


def settings(device: torch.device, repeats: int, data: Path | None = None) -> list[Setting]:
    """MiniLM in fp32; on a GPU also in bf16."""
    precisions = ("fp32",) if device.type == "cpu" else ("fp32", "bf16")
    return [Setting(device, precision, data=data, repeats=repeats) for precision in precisions]
