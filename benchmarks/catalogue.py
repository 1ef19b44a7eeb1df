"""The benchmarks of a CPU, by name."""

from benchmarks import steps, sweeps
from benchmarks.harness import Benchmarks

SIZES = dict(B=16, T=30)  # a batch of each of three tasks

BENCHMARKS: Benchmarks = {
    "step": (steps.training_step, (dict(B=32, T=26), dict(B=16, T=128), dict(B=8, T=512))),
    "busy": (steps.busy_cores, (dict(B=8, T=26, programs=False), dict(B=8, T=26, programs=True))),
    "epoch": (steps.epoch, (dict(task="sst"), dict(task="quora", rows=20_000))),
    "plans": (steps.plans, (dict(B=32, T=31, precision="bf16"),)),
    "pal": (steps.pal, (SIZES | dict(s=96, heads=12),)),
    "pcgrad": (steps.pcgrad_step, (SIZES,)),
    "distillation": (steps.distillation_step, (SIZES,)),
    "gem": (steps.gem_projection, (dict(parameters=22_700_000, memories=3),)),
    "sweep": (sweeps.throughput, (dict(count=200, workers=2),)),
}
