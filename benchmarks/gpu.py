"""`python -m benchmarks gpu`: a training step on a GPU, as a graph and eagerly, against its peers.

Encoders have the sizes of MiniLM and of bert-base and random weights; their vocabulary is made on the spot, so that
nothing is fetched. What matters most is measured first: a benchmark that would not end in time is left out.

Rows have the benchmark `gpu`, an `encoder` of ENCODERS, a `size` such as `1-bert, 8-48-8` (the rows of each task), and
the GPU's name as `device`; `ours` is the step as a graph.
"""

import argparse
import gc
import importlib.metadata
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from benchmarks import gpu_steps
from benchmarks.gpu_steps import Contender, Start, Step
from benchmarks.harness import Contest, Outcome, Peer, compare, describe, write_row
from benchmarks.ours import words_table
from mtbert.bert import BertConfig
from mtbert.config import RunConfig
from mtbert.files import write_json
from mtbert.multitask import MultitaskBert
from mtbert.runtime import DeviceError, environment, pick_device
from mtbert.training import Shapes
from mtbert_lab.paths import results_dir

SECONDS = 85.0  # until the last step has to end
REPEATS = 3
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

MINILM, BASE = "minilm-random", "bert-base-random"
ENCODERS = {
    MINILM: BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536),
    BASE: BertConfig(),
}
ADAPTER_SIZE = {MINILM: 96, BASE: 204}

EAGER = "ours, eager"
ONE_PASS = "transformers sdpa, one pass"
PER_TASK = "transformers sdpa, a pass per task"
TORCHJD = "TorchJD"
BUILDERS: dict[str, tuple[Callable[[Start], Step], str | None]] = {  # peer -> what builds its step, whose code it is
    EAGER: (partial(gpu_steps.ours, graphs=False), None),
    ONE_PASS: (gpu_steps.one_pass, "transformers"),
    PER_TASK: (gpu_steps.pass_per_task, "transformers"),
    TORCHJD: (gpu_steps.torchjd, "torchjd"),
}

UNIFIED: Shapes = {"sst": (8, 26), "quora": (48, 34), "sts": (8, 36)}
EVEN: Shapes = {"sst": (12, 40), "quora": (12, 40), "sts": (12, 40)}


@dataclass(frozen=True)
class Work:
    """A step that contenders take. name: `size` in the table; fields: of its RunConfig."""

    name: str
    encoder: str
    precision: str
    shapes: Shapes
    peers: tuple[str, ...]
    fields: dict[str, object] = field(default_factory=dict)


def plan_work(name: str, encoder: str, **fields: object) -> Work:
    """A unified step of three tasks under another plan, or with adapters."""
    return Work(f"{name}, 8-48-8", encoder, "bf16", UNIFIED, (EAGER,), fields)


def all_works() -> list[Work]:
    """Every step, the most important ones first."""
    works = []
    for encoder in ENCODERS:
        works.append(Work("1-bert, 8-48-8", encoder, "bf16", UNIFIED, (ONE_PASS, PER_TASK, EAGER)))
    for encoder in ENCODERS:
        works.append(plan_work("hybrid-3", encoder, plan="hybrid-3"))
        pals = dict(adapter="pal", adapter_size=ADAPTER_SIZE[encoder], adapter_heads=12)
        works.append(plan_work("PAL", encoder, **pals))
        works.append(Work("PCGrad, 3x12x40", encoder, "fp32", EVEN, (TORCHJD, EAGER), dict(gradients="pcgrad")))
        works.append(plan_work("3-bert", encoder, plan="3-bert"))
    for encoder, rows in ((MINILM, 24), (BASE, 256)):
        works.append(Work(f"one task, {rows}x40", encoder, "bf16", {"sst": (rows, 40)}, (ONE_PASS, EAGER)))
    return works


def make_encoder(folder: Path, config: BertConfig) -> None:
    """Write what an encoder with random weights needs: its sizes, and a tokenizer whose words are made of syllables."""
    syllables = ["".join(pair) for pair in itertools.product("bcdfghklmnprstvz", "aeiou")]
    words = ["".join(pair) for pair in itertools.product(syllables, repeat=2)]
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *words])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "TokenizersBackend"})
    write_json(folder / "config.json", {**config.__dict__, "architectures": ["BertModel"]})


def make_start(work: Work, encoder: Path, device: torch.device) -> Start:
    """The untrained model of a step, and random words for it."""
    fields = {"learning_rate": 1e-5, "scheme": "unified" if len(work.shapes) > 1 else "sampled"} | work.fields
    about = dict(tasks=list(work.shapes), encoder=str(encoder), weights="random", precision=work.precision)
    config = RunConfig.from_params(about | fields)
    tables = {}
    for seed, (task, (rows, T)) in enumerate(work.shapes.items()):
        tables[task] = words_table(task, rows, T, str(encoder), seed)
    torch.manual_seed(config.seed)
    with device:
        model = MultitaskBert(config)
    return Start(model.to(device).train(), tables)


def measure(work: Work, encoder: Path, device: torch.device, repeats: int, out: Path) -> Iterator[Outcome]:
    """Measure a step and its peers in turns; each row is in the file `out` before it is yielded."""
    start = make_start(work, encoder, device)
    contenders = {"": Contender(gpu_steps.ours, start)}
    skipped = {}
    for name in work.peers:
        build, package = BUILDERS[name]
        try:
            contenders[name] = Contender(build, start)
        except Exception as error:
            if package is None:
                raise
            skipped[name] = error
    others = {name: Peer(contender.run, BUILDERS[name][1]) for name, contender in contenders.items() if name}
    rows, errors = compare(Contest(work.name, contenders[""].run, others), repeats)
    for name, error in (skipped | errors).items():
        first, _, _ = str(error).strip().partition("\n")
        yield Outcome(f"gpu {work.name} / {name}: skipped, {type(error).__name__}: {first}")
    where = {"benchmark": "gpu", "encoder": work.encoder, "precision": work.precision} | environment(device)
    where["transformers"] = importlib.metadata.version("transformers")
    for row in rows:
        write_row(out, where | row)  # before the profiler, which may fail
    share = contenders[""].busy(rows[0]["ours"]) if rows else None
    for row in rows:
        text = f"gpu {work.encoder} {work.precision} {describe(row)}"
        if share is not None:
            write_row(out, where | row | {"our_busy": share})
            text += f"; busy {share:.0%}"
        yield Outcome(text)


def run_works(
    works: list[Work], encoders: dict[str, BertConfig], device: torch.device, repeats: int, seconds: float, out: Path
) -> Iterator[Outcome]:
    """Measure one step after another; one that fails ends no other.

    seconds: after which none begins, nor one that would not end by then if it took as long as the longest before it.
    """
    started = time.perf_counter()
    longest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        folders = {name: Path(folder, name) for name in encoders}
        for name, config in encoders.items():
            make_encoder(folders[name], config)
        with patch.dict(os.environ, MTBERT_CACHE=str(Path(folder, "cache"))):
            for work in works:
                begun = time.perf_counter()
                if begun - started + longest > seconds:
                    yield Outcome(f"gpu {work.encoder} {work.precision} {work.name}: skipped, no time is left")
                    continue
                try:
                    yield from measure(work, folders[work.encoder], device, repeats, out)
                except Exception as error:
                    text = f"failed, {type(error).__name__}: {error}"
                    yield Outcome(f"gpu {work.encoder} {work.precision} {work.name}: {text}", failed=True)
                free(device)
                longest = max(longest, time.perf_counter() - begun)


def free(device: torch.device) -> None:
    """Give back the memory of contenders that are gone."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def main(arguments: list[str]) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=REPEATS, help="of each contender; default: %(default)s")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="until the last step has to end; default: %(default)s"
    )
    parser.add_argument("--device", default="cuda", help="such as cuda:1; default: %(default)s")
    parser.add_argument("--out", type=Path, help="default: bench.csv in the results store")
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available() or given.device == "cpu":
        parser.error("this benchmark needs a GPU; steps on a CPU are those of `python -m benchmarks`")
    try:
        device = pick_device(given.device)
    except DeviceError as error:
        parser.error(str(error))
    out = given.out or results_dir() / "bench.csv"
    failed = False
    for outcome in run_works(all_works(), ENCODERS, device, given.repeats, given.seconds, out):
        print(outcome.text, flush=True)
        failed |= outcome.failed
    return int(failed)
