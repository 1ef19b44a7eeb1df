"""The benchmarks by name, and the settings that they run in."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import torch

from mtbert import bench_data, bench_growth, bench_memory, bench_start, bench_steps
from mtbert.bench import Benchmark, Setting
from mtbert.bert import BertConfig
from mtbert.hub import locate
from mtbert.paths import cache_dir

TASKS_TO = (3, 8, 24)
ROWS_TO = (10_000, 100_000, 1_000_000)

BENCHMARKS = (
    Benchmark(
        "step",
        bench_steps.training_step,
        (dict(B=32, T=26, reach=1.15), dict(B=16, T=128, reach=1.0), dict(B=8, T=512, reach=1.0)),
    ),
    Benchmark("epoch", bench_data.epoch, (dict(task="sst"), dict(task="quora", rows=20_000))),
    Benchmark("evaluation", bench_data.evaluation, (dict(task="quora"),)),
    Benchmark("adamw", bench_steps.adamw_alone),
    Benchmark("unified", bench_steps.unified, (dict(B=16, T=30),)),
    Benchmark("3-bert", bench_steps.three_berts, (dict(B=16, T=30),)),
    Benchmark("plans", bench_steps.plans, (dict(B=32, T=31, precision="bf16"),)),
    Benchmark("frozen", bench_steps.frozen, (dict(B=32, T=26, batches=8),)),
    Benchmark("prefix", bench_steps.frozen_prefix, (dict(plan="F3 S3", B=32, T=26, batches=8),)),
    Benchmark("pal", bench_steps.pal, (dict(B=16, T=30, s=96, heads=12),)),
    Benchmark("pcgrad", bench_steps.pcgrad_step, (dict(B=16, T=30),)),
    Benchmark("gem", bench_steps.gem_projection, (dict(parameters=22_700_000, memories=3),), once=True),
    Benchmark("growth-length", bench_growth.length, (dict(sizes=(16, 128, 512), B=4),), once=True),
    Benchmark("growth-batch", bench_growth.batch, (dict(sizes=(4, 32, 256), T=26),), once=True),
    Benchmark("growth-layers", bench_growth.layers, (dict(sizes=(2, 8, 24), d=128, B=16, T=30),), once=True),
    Benchmark("growth-pcgrad", bench_growth.pcgrad_tasks, (dict(sizes=TASKS_TO, parameters=2_000_000),), once=True),
    Benchmark("growth-gem", bench_growth.gem_memories, (dict(sizes=TASKS_TO, parameters=2_000_000),), once=True),
    Benchmark("growth-passes", bench_growth.passes, (dict(sizes=TASKS_TO, B=4, T=30),), once=True),
    Benchmark("growth-sampler", bench_growth.sampled_tasks, (dict(sizes=TASKS_TO, rows=10_000),), once=True),
    Benchmark(
        "growth-dataset",
        bench_growth.dataset,
        tuple(dict(sizes=ROWS_TO, part=part) for part in ("time", "memory", "order")),
        once=True,
    ),
    Benchmark(
        "memory",
        bench_memory.training,
        tuple(dict(task="quora", precision=precision, longest=20, others=40) for precision in ("fp32", "bf16")),
        once=True,
    ),
    Benchmark("import", bench_start.imports, (dict(modules=("sweep",)), dict(modules=())), once=True),
    Benchmark("stored-run", bench_start.stored_run, once=True),
)


def settings(device: torch.device, repeats: int, data: Path | None = None) -> list[Setting]:
    """MiniLM in fp32; on a GPU also in bf16, and an encoder of the size of bert-base with random weights in bf16."""
    first = Setting(device, data=data, repeats=repeats)
    if device.type == "cpu":
        return [first]
    half = dict(precision="bf16", data=data, repeats=repeats)
    return [first, Setting(device, **half), Setting(device, encoder=str(bert_base()), weights="random", **half)]


def bert_base() -> Path:
    """A checkpoint folder of bert-base's sizes without weights; its vocabulary is MiniLM's, which is the same."""
    folder = cache_dir() / "bench" / "bert-base"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(asdict(BertConfig())), encoding="utf8")
    shutil.copy(locate("minilm") / "tokenizer.json", folder)
    return folder
