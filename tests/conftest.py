"""What the tests share: folders of their own, a tiny encoder, a tiny data set. Every text here is invented."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: its threads wait by spinning, and sums depend on their number
os.environ["HF_HUB_OFFLINE"] = "1"  # before huggingface_hub: no test asks the hub for an encoder
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"  # servers of the tests are on this machine

import itertools
import json
import random
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, settings
from tokenizers import Tokenizer

from mtbert.bert import BertConfig, BertModel, locate
from mtbert.config import RunConfig
from mtbert.data import corpus
from mtbert.files import write_checksums
from mtbert.multitask import MultitaskBert
from mtbert.paths import REPOSITORY
from mtbert.training.loop import TrainedRun, train
from mtbert.training.task_data import load_corpus

for name in ("TASKS", "GRAPHS", "CHECKPOINT_SECONDS"):  # of the shell that the tests are run from
    os.environ.pop(f"MTBERT_{name}", None)

# How fast an example is made depends on what else the machine does: that is no fault of the code.
settings.register_profile("mtbert", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mtbert")


TESTS = Path(__file__).parent
# The datasets of this machine, which `isolated` hides from the tests.
REAL_DATA = [Path(os.environ.get("MTBERT_DATA", "none")), REPOSITORY.parent / "shared" / "data"]
# What is not of the library alone: the laboratory, the benchmarks, and the files of the repository.
NOT_CORE = {
    "lab",
    "benchmarks",
    "notebooks",
    "test_border.py",
    "test_dockerfile.py",
    "test_environment.py",
    "test_package.py",
    "test_private_torch.py",
    "test_readme_use.py",
}


@pytest.fixture
def saved_each_step(monkeypatch):
    """Training writes its checkpoint after every step."""
    monkeypatch.setenv("MTBERT_CHECKPOINT_SECONDS", "0")


@pytest.fixture
def ctrl_c():
    """Ctrl-C raises KeyboardInterrupt, even where these tests run in the background of a script, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="also the tests that take minutes")


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: takes minutes; runs with --slow or MTBERT_SLOW=1")
    config.addinivalue_line("markers", "core: of the library, mtbert/; of a test with many cases the first")


def pytest_ignore_collect(collection_path, config):
    """`-m core` imports no test of the laboratory."""
    if config.option.markexpr == "core" and collection_path != TESTS and collection_path.is_relative_to(TESTS):
        return True if collection_path.relative_to(TESTS).parts[0] in NOT_CORE else None
    return None


def pytest_collection_modifyitems(config, items):
    cases = Counter()
    for item in items:
        place = item.path.relative_to(TESTS).parts if item.path.is_relative_to(TESTS) else ("notebooks",)
        if place[0] not in NOT_CORE:
            test = item.nodeid.partition("[")[0]
            cases[test] += 1
            if cases[test] == 1:
                item.add_marker("core")
    if not (config.getoption("--slow") or os.environ.get("MTBERT_SLOW")):
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="slow: runs with --slow or MTBERT_SLOW=1"))


ROWS = {"train": 40, "dev": 20, "test-student": 10}
PRAISE = ("bright", "tender", "witty", "lovely", "superb")
BLAME = ("dull", "clumsy", "noisy", "stale", "dreadful")
THINGS = ("story", "harbour", "violin", "kitchen", "garden", "lantern", "bicycle", "winter")
NUMBERS = itertools.count()
QUESTIONS = ("how do i repair the {}", "where is the {} kept", "who painted the {}")


def _isolate(patch: pytest.MonkeyPatch, folder: Path) -> None:
    for name in ("CACHE", "RESULTS", "FIGURES"):
        patch.setenv(f"MTBERT_{name}", str(folder / name.lower()))
    patch.delenv("MTBERT_DATA", raising=False)


@contextmanager
def _isolated_in(folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        _isolate(patch, folder)
        yield


@pytest.fixture(scope="session")
def isolated_in():
    """isolated_in(folder): within this context caches, results and figures are below the folder, and no data known."""
    return _isolated_in


@pytest.fixture(scope="session")
def real_data() -> Path | None:
    """The folder of the course's datasets, if they are here: MTBERT_DATA, or shared/data beside the repository."""
    return next((folder for folder in REAL_DATA if folder.is_dir()), None)


@pytest.fixture(scope="session", autouse=True)
def isolated_session(tmp_path_factory):
    """Fixtures of a wider scope than a test write into temporary folders, too."""
    folder = tmp_path_factory.mktemp("session")
    with _isolated_in(folder), mock.patch("os.fsync"):  # which waits for the disk: no machine crashes here
        yield folder


@pytest.fixture(autouse=True)
def isolated(isolated_session, monkeypatch) -> Iterator[Path]:
    """No test reads or writes the caches, results, figures or data of this machine, or those of another test.

    Nor does it leave torch with other threads, under which sums differ in their last bits, or warnings unsaid.
    """
    folder = isolated_session / str(next(NUMBERS))  # mktemp looks through the folders of all tests for one
    folder.mkdir()
    _isolate(monkeypatch, folder)
    threads = torch.get_num_threads()
    corpus.warn_once.cache_clear()
    yield folder
    torch.set_num_threads(threads)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory) -> str:
    """A checkpoint folder: random BERT with d = 32, h = 4, L = 2, and the packaged tokenizer."""
    folder = tmp_path_factory.mktemp("tiny-encoder")
    torch.manual_seed(12345)
    shape = dict(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, intermediate_size=48)
    BertModel(BertConfig(**shape, initializer_range=0.1)).save_pretrained(folder, tokenizer="minilm")
    return str(folder)


@pytest.fixture(scope="session")
def mpnet_tokenizer(tmp_path_factory) -> Path:
    """A folder with a tokenizer of MPNet's kind: 30,527 tokens, the packaged BERT vocabulary behind RoBERTa's tokens.

    So it has both kinds of special tokens, as the published one does.
    """
    folder = tmp_path_factory.mktemp("mpnet-tokenizer")
    content = json.loads(Tokenizer.from_file(str(locate("minilm") / "tokenizer.json")).to_str())
    words = sorted(content["model"]["vocab"], key=content["model"]["vocab"].get)
    words = ["<s>", "<pad>", "</s>", "<unk>", *words, "<mask>"]
    content["model"]["vocab"] = {word: i for i, word in enumerate(words)}
    flags = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    added = [dict(flags, id=words.index(word), content=word) for word in ("<s>", "<pad>", "</s>", "[UNK]")]
    added.append(dict(flags, id=len(words) - 1, content="<mask>", lstrip=True))
    content["added_tokens"] = added
    content["post_processor"] = dict(
        type="RobertaProcessing", sep=("</s>", 2), cls=("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    content["padding"] = content["truncation"] = None
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf8")
    about = dict(tokenizer_class="MPNetTokenizer", do_lower_case=True, unk_token="[UNK]", model_max_length=512)
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return folder


@pytest.fixture(scope="session")
def course_folder(tmp_path_factory) -> Path:
    """All four tasks in the course's layout, 40 train, 20 dev and 10 test rows each."""
    folder = tmp_path_factory.mktemp("course")
    for split, rows in ROWS.items():
        draw = random.Random(split)
        for name, columns, make in (
            ("ids-sst", ["sentence", "sentiment"], lambda draw: _review(draw, words=6, classes=5)),
            ("ids-cfimdb", ["sentence", "sentiment"], lambda draw: _review(draw, words=40, classes=2)),
            ("quora", ["sentence1", "sentence2", "is_duplicate"], _question_pair),
            ("sts", ["sentence1", "sentence2", "similarity"], _graded_pair),
        ):
            known = columns if split != "test-student" else columns[:-1]
            lines = ["\t".join(["", "id", *known])]
            for i in range(rows):
                values = [str(value) for value in make(draw)]
                lines.append("\t".join([str(i), f"{name}-{split}-{i}", *values[: len(known)]]))
            (folder / f"{name}-{split}.csv").write_text("\n".join(lines) + "\n", encoding="utf8")
    return folder


def _review(draw: random.Random, words: int, classes: int) -> tuple[str, int]:
    label = draw.randrange(classes)
    words = draw.randint(words // 2, words)
    praise = round(words * label / (classes - 1))
    adjectives = draw.choices(PRAISE, k=praise) + draw.choices(BLAME, k=words - praise)
    draw.shuffle(adjectives)
    return " and ".join(f"a {adjective} {draw.choice(THINGS)}" for adjective in adjectives), label


def _question_pair(draw: random.Random) -> tuple[str, str, float]:
    question, thing = draw.choice(QUESTIONS), draw.choice(THINGS)
    same = draw.random() < 0.5
    other = f"please tell me {question.format(thing)}" if same else f"what colour is my {draw.choice(THINGS)}?"
    return question.format(thing) + "?", other, float(same)


def _graded_pair(draw: random.Random) -> tuple[str, str, float]:
    first = draw.sample(THINGS, 5)
    kept = draw.randrange(6)
    second = first[:kept] + draw.choices(PRAISE, k=5 - kept)
    return " ".join(first), " ".join(second), float(kept)


@pytest.fixture
def course_data(course_folder, monkeypatch) -> Path:
    """The tiny data set, found through MTBERT_DATA."""
    monkeypatch.setenv("MTBERT_DATA", str(course_folder))
    return course_folder


@pytest.fixture
def tiny_config(tiny_encoder) -> RunConfig:
    """A run of a second: SST of the tiny data set, five steps an epoch, dropout on."""
    return RunConfig(corpus="course", encoder=tiny_encoder, epochs=2, batch_size=8, learning_rate=1e-3)


@pytest.fixture
def three_tasks(tiny_encoder) -> RunConfig:
    """SST, Quora and STS of the tiny data set in every step, six steps, dropout on."""
    return RunConfig(
        corpus="course", tasks=("sst", "quora", "sts"), encoder=tiny_encoder, scheme="unified", steps_per_epoch=6,
        epochs=1, batch_size=8, learning_rate=1e-3, keep="last",
    )  # fmt: skip


@pytest.fixture
def one_epoch(tiny_config) -> RunConfig:
    """An epoch of SST, Quora and STS of the tiny data set in every step, dropout on."""
    return tiny_config.but(tasks=("sst", "quora", "sts"), scheme="unified", epochs=1)


@pytest.fixture
def run(course_folder):
    """Train a configuration on the tiny data set."""

    def run(config: RunConfig, **options) -> TrainedRun:
        return train(config, load_corpus(config, course_folder), device="cpu", progress=False, **options)

    return run


@pytest.fixture
def threads_as_workers(monkeypatch):
    """A cluster whose one worker is a thread of this process, which starts in no time."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr("mtbert_lab.sweep.RETRIES", 1)
    torch.set_num_threads(1)

    @contextmanager
    def open_cluster(workers: int, scheduler: str | None):
        local = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": "127.0.0.1:0"}
        with distributed.LocalCluster(**local) as cluster, distributed.Client(cluster) as client:
            yield client

    monkeypatch.setattr("mtbert_lab.sweep.open_cluster", open_cluster)


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of one MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def _changed_run(folder: Path) -> Iterator[dict]:
    path = folder / "run.json"
    content = json.loads(path.read_text(encoding="utf8"))
    yield content
    path.write_text(json.dumps(content), encoding="utf8")
    write_checksums(folder)


@pytest.fixture(scope="session")
def changed_run():
    """changed_run(folder): a context with the content of its run.json, to be changed; the checksums fit afterwards."""
    return _changed_run


@pytest.fixture(scope="session")
def headings_of():
    """headings_of(path): the headings of a page of Markdown, or of a notebook."""

    def headings_of(path: Path) -> list[str]:
        text = path.read_text(encoding="utf8")
        if path.suffix == ".ipynb":
            cells = json.loads(text)["cells"]
            text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        return re.findall(r"^#+ (.+)$", text, re.MULTILINE)

    return headings_of


@pytest.fixture
def flip():
    """Flip a random bit of a file; gives its place."""

    def flip(path: Path, draw: random.Random) -> int:
        content = bytearray(path.read_bytes())
        place = draw.randrange(len(content))
        content[place] ^= 1 << draw.randrange(8)
        path.write_bytes(bytes(content))
        return place

    return flip


@pytest.fixture
def refused(flip):
    """Assert that reading raises an error that names the folder, whichever bit of these files is flipped."""

    def refused(read: Callable, files: list[Path], error: type, times: int) -> None:
        draw = random.Random(7)
        for path in files:
            content = path.read_bytes()
            for _ in range(times):
                place = flip(path, draw)
                with pytest.raises(error, match=re.escape(str(path.parent))) as caught:
                    read()
                assert "\n" not in str(caught.value), place
            path.write_bytes(content)
        read()

    return refused


class FixedSpeeds:
    """Stands for timing, with one speed, or one for each precision."""

    def __init__(self, speed) -> None:
        self.speed, self.by_precision = speed, {}
        self.asked = []  # the configurations

    def measure(self, samples, *how) -> dict:
        self.asked += list(samples)
        return {config: self.by_precision.get(config.precision, self.speed) for config in samples}


@pytest.fixture
def speeds(monkeypatch) -> FixedSpeeds:
    """A machine on which nothing is timed: a token takes a microsecond in training, a third of it in an evaluation."""
    from mtbert_lab.cost.time import Speed  # here, as tests of the library do without the laboratory

    speeds = FixedSpeeds(Speed(1e-6, 1e-6 / 3))
    monkeypatch.setattr("mtbert_lab.cost.forecast.measure_speeds", speeds.measure)
    return speeds


@pytest.fixture(scope="session")
def shake():
    """shake(model, scale): the model with every parameter changed; those of norms and biases start at 1 and 0."""

    def shake(model: torch.nn.Module, scale: float = 0.1) -> torch.nn.Module:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += scale * torch.randn_like(parameter)
        return model

    return shake


@pytest.fixture
def model(tiny_config, shake):
    """model(tasks, **fields): of plan I2, where every task has an encoder of its own, with other weights than new."""

    def model(tasks=("sst",), **fields) -> MultitaskBert:
        torch.manual_seed(5)
        return shake(MultitaskBert(tiny_config.but(tasks=tasks, plan="I2", **fields)).eval(), 0.05)

    return model


class Trap:
    """Unpickling this makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture
def trap(tmp_path) -> Trap:
    """What makes the folder `executed` in `tmp_path` when it is unpickled."""
    return Trap(tmp_path / "executed")
