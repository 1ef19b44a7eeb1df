"""Damaged files of the store, of models, encoders and tokenizers are named, with what to do; none is read silently."""

import hashlib
import json
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from mtbert.bert import BertModel, CheckpointError
from mtbert.config import RunConfig
from mtbert.data import DataError
from mtbert.data.tasks import read_tasks
from mtbert.data.tokens import load_tokenizer, tokenize_texts
from mtbert.files import checksum_faults, write_checksums
from mtbert.multitask import MultitaskBert
from mtbert_lab.model_card import export_with_card
from mtbert_lab.paths import results_dir
from mtbert_lab.report.build import _record
from mtbert_lab.store import runs
from mtbert_lab.store.folders import read_run, stored_runs
from mtbert_lab.store.loading import load_model
from mtbert_lab.store.models import has_model, model_folder
from mtbert_lab.store.run import Run, StoreError
from mtbert_lab.store.runs import load_or_run

SEEDS = (1,)  # of the run in `stored`


def flip(path: Path, draw: random.Random) -> int:
    """Flip a random bit of a file; returns its place."""
    content = bytearray(path.read_bytes())
    place = draw.randrange(len(content))
    content[place] ^= 1 << draw.randrange(8)
    path.write_bytes(bytes(content))
    return place


def refused(read: Callable, files: list[Path], error: type, times: int) -> None:
    """Assert that reading raises an error that names the folder, whichever bit of these files is flipped."""
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


# --- the store --------------------------------------------------------------------------------------------------------


@pytest.fixture
def config(trained) -> RunConfig:
    return trained[0].config


def folder_of(run: Run) -> Path:
    return results_dir() / "runs" / run.run_id


def test_no_flipped_bit_of_a_run_is_read(stored):
    folder = folder_of(stored)
    assert sorted(path.name for path in folder.iterdir()) == ["SHA256SUMS", "predictions.parquet", "run.json"]
    refused(lambda: read_run(folder), list(folder.iterdir()), StoreError, 20)


def test_no_flipped_bit_of_ids_and_labels_is_read(stored):
    [path] = (results_dir() / "dev").iterdir()
    whole, draw, content, seen = stored.predictions, random.Random(8), path.read_bytes(), 0
    for _ in range(40):
        flip(path, draw)
        try:
            pd.testing.assert_frame_equal(read_run(folder_of(stored)).predictions, whole)
        except StoreError as error:
            assert str(path) in str(error) and "restore it" in str(error)
            seen += 1
        path.write_bytes(content)
    assert seen > 10, "in the other files the bit belongs to nothing that is read"


def test_the_message_says_what_to_do(stored, config):
    path = folder_of(stored) / "run.json"
    path.write_text(path.read_text().replace('"value": 0', '"value": 1'))
    with pytest.raises(StoreError, match=r"run\.json is damaged or was changed: .* delete the run's folder"):
        load_or_run(config, device="cpu", progress=False)
    shutil.rmtree(path.parent)
    pd.testing.assert_frame_equal(load_or_run(config, device="cpu", progress=False).predictions, stored.predictions)


def test_checksums_that_a_run_had_are_missed(stored):
    (folder_of(stored) / "SHA256SUMS").unlink()
    with pytest.raises(StoreError, match=r"SHA256SUMS is missing; restore it"):
        read_run(folder_of(stored))


def test_a_file_that_is_no_part_of_a_run_is_said(stored, caplog):
    (folder_of(stored) / "notes.txt").write_text("mine")
    read_run(folder_of(stored))
    assert f"{folder_of(stored)}: no part of the run, and not read: notes.txt" in caplog.text
    (folder_of(stored) / "cosines.parquet").write_bytes(b"")
    with pytest.raises(StoreError, match=r"SHA256SUMS does not list cosines\.parquet"):
        read_run(folder_of(stored))


def cut_lists(folder: Path) -> list[str]:
    """The checksums of a folder, emptied or cut at a line end, in any order of their lines."""
    lines = (folder / "SHA256SUMS").read_text().splitlines(keepends=True)
    return ["", "\n", *("".join(lines[:i] + lines[i + 1 :]) for i in range(len(lines)))]


def refused_without_checksums(read: Callable, folder: Path, error: type) -> None:
    """Assert that no shortened list of checksums turns the check of a file off."""
    read()
    for text in cut_lists(folder):
        (folder / "SHA256SUMS").write_text(text)
        with pytest.raises(error, match=r"SHA256SUMS does not list"):
            read()


def test_no_line_of_the_checksums_may_be_missing(stored, tiny_encoder, tmp_path):
    folder, model = folder_of(stored), model_folder(stored.run_id)
    encoder = shutil.copytree(tiny_encoder, tmp_path / "encoder")
    lines = (encoder / "SHA256SUMS").read_text().splitlines(keepends=True)
    kept = [line for line in lines if line.endswith((" config.json\n", " model.safetensors\n"))]
    (encoder / "SHA256SUMS").write_text("".join(kept))  # a tokenizer may be saved into the folder later
    refused_without_checksums(lambda: read_run(folder), folder, StoreError)
    refused_without_checksums(lambda: load_model(stored.run_id), model, CheckpointError)
    refused_without_checksums(lambda: BertModel.from_pretrained(encoder), encoder, CheckpointError)
    (model / "SHA256SUMS").unlink()
    with pytest.raises(CheckpointError, match=r"SHA256SUMS is missing; delete the folder, train again"):
        load_model(stored.run_id)


def test_a_file_that_may_not_be_read_is_not_called_damaged(stored, monkeypatch):
    def forbidden(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("mtbert.files.sha256", forbidden)
    with pytest.raises(PermissionError):
        load_model(stored.run_id)
    with pytest.raises(StoreError, match=r"predictions\.parquet cannot be read \(Permission denied\)"):
        read_run(folder_of(stored))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "{}", '{"config": {"seed": "x"}}', '{"config": {}}', "[" * 10_000, "\0"]
)
def test_a_run_whose_file_cannot_be_read_is_named(stored, text):
    folder = folder_of(stored)
    (folder / "run.json").write_text(text)
    write_checksums(folder)
    with pytest.raises(StoreError, match=re.escape(f"{folder / 'run.json'} is damaged")):
        read_run(folder)


def test_a_run_under_another_name_is_refused(stored):
    """A name from inside of a file must not lead to other folders."""
    folder = folder_of(stored).rename(folder_of(stored).with_name("0123456789-01234567"))
    with pytest.raises(StoreError, match=f"it is of run '{stored.run_id}'"):
        read_run(folder)


def test_damaged_predictions_are_named_before_a_model_is_trained_again(stored, course_data, monkeypatch):
    (folder_of(stored) / "predictions.parquet").write_bytes(b"")
    shutil.rmtree(model_folder(stored.run_id))
    monkeypatch.setattr(runs, "train", None)
    corpus = runs.read_corpus(stored.config, course_data)
    with pytest.raises(StoreError, match=r"predictions\.parquet is damaged"):
        runs.train_once(stored.config, corpus, [results_dir()], "cpu", progress=False, again=True)


def test_damaged_predictions_are_named(stored):
    folder = folder_of(stored)
    (folder / "predictions.parquet").write_bytes(b"PAR1")
    write_checksums(folder)
    with pytest.raises(StoreError, match=r"predictions\.parquet is damaged .*restore it"):
        read_run(folder)


def test_a_damaged_run_does_not_fail_another_one(stored, config, caplog):
    path = folder_of(stored) / "run.json"
    path.write_text(path.read_text()[:100])
    other = load_or_run(config.but(seed=2), device="cpu", progress=False)
    assert f"{path.parent}: run.json is damaged" in caplog.text
    assert [content["run_id"] for _, content in stored_runs([results_dir()])] == [other.run_id]


def test_a_folder_without_run_json_is_replaced_by_the_trained_run(stored, config, monkeypatch):
    (folder_of(stored) / "run.json").unlink()
    again = load_or_run(config, device="cpu", progress=False)
    assert again.score() == stored.score()
    monkeypatch.setattr(runs, "train", None)
    assert load_or_run(config, device="cpu", progress=False).cost == again.cost


def test_damaged_ids_and_labels_are_written_again(stored, config):
    [path] = (results_dir() / "dev").iterdir()
    content = path.read_bytes()
    path.write_bytes(content[:100])
    load_or_run(config.but(seed=2), device="cpu", progress=False)
    assert path.read_bytes() == content
    read_run(folder_of(stored))


@pytest.mark.parametrize("place", ["../..", "/tmp"])
def test_a_run_that_names_a_file_elsewhere_is_refused(stored, place):
    """A run.json may come from others: what it names outside of the store is not read as ids and labels."""
    folder = folder_of(stored)
    content = json.loads((folder / "run.json").read_text())
    [path] = (results_dir() / "dev").iterdir()
    table = pd.read_parquet(path)
    table = table.assign(label=1 - table["label"])
    digest = hashlib.sha256(table.to_csv(index=False).encode()).hexdigest()[:8]
    table.to_parquet(results_dir().parent / f"secret-{digest}.parquet", index=False)
    name = f"{place}/secret-{digest}"
    content["examples"] = {"sst": name}
    (folder / "run.json").write_text(json.dumps(content))
    write_checksums(folder)
    with pytest.raises(StoreError, match=f"{name} is no name of a file in .*dev"):
        read_run(folder)


# --- models and encoders ----------------------------------------------------------------------------------------------


def test_no_flipped_bit_of_a_trained_model_is_read(stored):
    folder = model_folder(stored.run_id)
    names = ("SHA256SUMS", "encoder.json", "model.safetensors", "run_config.json", "tasks.json")
    refused(lambda: load_model(stored.run_id), [folder / name for name in names], CheckpointError, 8)
    for path in (folder / "tokenizer").iterdir():
        content = path.read_bytes()
        flip(path, random.Random(1))
        with pytest.raises(CheckpointError, match=re.escape(f"tokenizer/{path.name} is damaged or was changed")):
            load_model(stored.run_id)
        path.write_bytes(content)


def test_no_flipped_bit_of_an_encoder_is_read(tiny_encoder, tmp_path):
    folder = tmp_path / "encoder"
    BertModel.from_pretrained(tiny_encoder).save_pretrained(folder)
    names = ("SHA256SUMS", "config.json", "model.safetensors", "tokenizer.json")
    refused(lambda: BertModel.from_pretrained(folder), [folder / name for name in names], CheckpointError, 8)
    (folder / "SHA256SUMS").unlink()  # as the message says for a change on purpose
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"hidden_dropout_prob": 0.2}))
    assert BertModel.from_pretrained(folder).config.hidden_dropout_prob == 0.2


def test_a_save_that_is_interrupted_is_not_read_as_a_model(stored, monkeypatch):
    """Half of an earlier model and half of a later one."""
    model = load_model(stored.run_id)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    monkeypatch.setattr("mtbert.multitask.saved_model.write_checksums", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.save(model_folder(stored.run_id))
    assert not has_model(stored.run_id)
    with pytest.raises(CheckpointError, match=r"no trained model; run_config\.json missing"):
        MultitaskBert.load(model_folder(stored.run_id))


WRONG = {
    "hidden_size": [1.5, True, 10**30],
    "num_hidden_layers": [-3, 10**6],
    "intermediate_size": [9_999_999],
    "layer_norm_eps": [0, "x"],
    "hidden_dropout_prob": [True, 2],
    "pad_token_id": [-1, "a"],
    "model_type": [{}],
    "is_decoder": [True],
}


@pytest.mark.parametrize("key, value", [(key, value) for key, values in WRONG.items() for value in values])
def test_a_wrong_value_of_an_encoder_s_config_is_named(tiny_encoder, tmp_path, key, value):
    folder = Path(shutil.copytree(tiny_encoder, tmp_path / "encoder"))
    (folder / "SHA256SUMS").unlink()
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {key: value}))
    with pytest.raises(CheckpointError, match=str(folder)):
        BertModel.from_pretrained(folder)


def test_a_config_that_is_too_deep_is_named(tiny_encoder, tmp_path):
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match=r"config\.json: not a readable config\.json"):
        BertModel.from_pretrained(tmp_path)


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.complex64])
def test_weights_that_are_no_real_numbers_are_named(tiny_encoder, tmp_path, dtype):
    shutil.copy(Path(tiny_encoder) / "config.json", tmp_path)
    tensors = load_file(Path(tiny_encoder) / "model.safetensors")
    tensors["encoder.layer.0.output.dense.bias"] = tensors["encoder.layer.0.output.dense.bias"].to(dtype)
    torch.save(tensors | {3: torch.ones(1)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=rf"{tmp_path}: .*output.dense.bias is {dtype}, expected float"):
        BertModel.from_pretrained(tmp_path)


def test_keys_of_a_pickle_that_are_no_names_are_ignored(tiny_encoder, tmp_path):
    shutil.copy(Path(tiny_encoder) / "config.json", tmp_path)
    tensors = load_file(Path(tiny_encoder) / "model.safetensors")
    torch.save(tensors | {3: torch.ones(1)}, tmp_path / "pytorch_model.bin")
    found, expected = BertModel.from_pretrained(tmp_path), BertModel.from_pretrained(tiny_encoder)
    assert torch.equal(found.pooler.weight, expected.pooler.weight)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_pipe_in_the_folder_of_an_encoder_is_not_waited_for(tiny_encoder, tmp_path, name):
    folder = Path(shutil.copytree(tiny_encoder, tmp_path / "encoder"))
    (folder / name).unlink()
    os.mkfifo(folder / name)
    for read in (BertModel.from_pretrained, load_tokenizer, lambda folder: RunConfig(encoder=str(folder)).digest):
        with pytest.raises(CheckpointError, match=rf"{name}: not a regular file"):
            read(folder)


def test_tokens_that_the_encoder_does_not_have_are_named(tiny_encoder, tmp_path):
    folder = Path(shutil.copytree(tiny_encoder, tmp_path / "encoder"))
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"vocab_size": 2000}))
    assert len(tokenize_texts(["[SEP]"], str(folder))) == 1
    with pytest.raises(CheckpointError, match=rf"{folder}: the tokenizer gives token \d+, but the encoder has 2000"):
        tokenize_texts(["a bright violin"], str(folder))


@pytest.mark.parametrize(
    "name, damage",
    [
        ("tokenizer.json", b""),
        ("tokenizer.json", b"\xff\xfe\x00"),
        ("tokenizer.json", b'{"model": {}}'),
        ("vocab.txt", b""),
        ("vocab.txt", b"\xff\xfe\x00"),
        ("vocab.json", b"{"),
        ("vocab.json", b"[1]"),
    ],
)
def test_a_damaged_tokenizer_is_named(tmp_path, name, damage):
    (tmp_path / name).write_bytes(damage)
    (tmp_path / "merges.txt").write_text("a b\n")
    with pytest.raises(CheckpointError, match=f"{tmp_path}: the tokenizer cannot be read") as error:
        load_tokenizer(tmp_path)
    assert "\n" not in str(error.value)


# --- checksums, records, tasks ----------------------------------------------------------------------------------------


def test_checksums_say_which_files_are_damaged(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    assert checksum_faults(tmp_path, []) == ["SHA256SUMS is missing"]
    write_checksums(tmp_path, ["a", "b"])
    assert checksum_faults(tmp_path, ["a"]) == []
    (tmp_path / "a").unlink()
    (tmp_path / "b").write_text("c")
    with (tmp_path / "SHA256SUMS").open("a") as file:
        file.write(f"\n{'0' * 64} /dev/zero\n{'0' * 64}  /dev/zero\n")
    assert checksum_faults(tmp_path, ["d"]) == [
        "SHA256SUMS does not list d", "a is missing",
        "b is damaged or was changed: its checksum is not that of SHA256SUMS",
        "SHA256SUMS has a line that is no checksum", "SHA256SUMS has a line that is no checksum",
        "/dev/zero is missing",
    ]  # fmt: skip


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs sha256sum")
def test_sha256sum_checks_the_files_of_a_run_a_model_and_an_export(stored, config, tmp_path):
    export_with_card(MultitaskBert(config.but(pooling="pooler")), None, tmp_path)
    of_each = {folder_of(stored): "run.json", model_folder(stored.run_id): "tasks.json", tmp_path: "config.json"}
    for folder, name in of_each.items():
        check = partial(subprocess.run, ["sha256sum", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, text=True)
        whole = check()
        assert whole.returncode == 0 and f"{name}: OK" in whole.stdout.splitlines()
        flip(folder / name, random.Random(3))
        damaged = check()
        assert damaged.returncode == 1 and f"{name}: FAILED" in damaged.stdout.splitlines()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[1]", b"3"])
def test_a_damaged_record_of_a_notebook_is_none(tmp_path, content):
    (tmp_path / "01.record").write_bytes(content)
    assert _record(tmp_path / "01.record") == {}


def test_a_task_file_reads_no_attributes_and_runs_nothing(tmp_path):
    text = "name: mine\nfiles: '{split}-{split.__class__}.csv'\nsentence_columns: [a]\nlabel_column: b\nkind: binary\n"
    (tmp_path / "mine.yaml").write_text(text)
    assert read_tasks(tmp_path)["mine"].path("dev", "").name == "dev-{split.__class__}.csv"
    (tmp_path / "mine.yaml").write_text(text + f"folder: !!python/object/apply:os.mkdir [{tmp_path / 'executed'}]\n")
    with pytest.raises(DataError, match=r"mine\.yaml: not a readable YAML file"):
        read_tasks(tmp_path)
    assert not (tmp_path / "executed").exists()
