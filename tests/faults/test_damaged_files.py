"""Damaged files of encoders, tokenizers and tasks are named, with what to do; none is read silently."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mtbert.bert import BertModel, CheckpointError
from mtbert.config import RunConfig
from mtbert.data import DataError
from mtbert.data.tasks import read_tasks
from mtbert.data.tokens import load_tokenizer, tokenize_texts
from mtbert.files import checksum_faults, write_checksums


def test_no_flipped_bit_of_an_encoder_is_read(tiny_encoder, tmp_path, refused):
    folder = tmp_path / "encoder"
    BertModel.from_pretrained(tiny_encoder).save_pretrained(folder)
    names = ("SHA256SUMS", "config.json", "model.safetensors", "tokenizer.json")
    refused(lambda: BertModel.from_pretrained(folder), [folder / name for name in names], CheckpointError, 8)
    (folder / "SHA256SUMS").unlink()  # as the message says for a change on purpose
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"hidden_dropout_prob": 0.2}))
    assert BertModel.from_pretrained(folder).config.hidden_dropout_prob == 0.2


def test_sizes_of_other_weights_are_named_before_there_is_memory_for_them(tiny_encoder, tmp_path):
    folder = Path(shutil.copytree(tiny_encoder, tmp_path / "encoder"))
    (folder / "SHA256SUMS").unlink()
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(values | {"intermediate_size": 9_999_999}))
    with pytest.raises(CheckpointError, match=rf"{folder}: .*expected \(9999999, 32\)"):
        BertModel.from_pretrained(folder)


@pytest.mark.parametrize("text", ["{", "[" * 100_000], ids=["half", "too deep"])
def test_a_config_that_cannot_be_read_is_named(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=rf"{tmp_path}/config\.json: not a readable config\.json"):
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


def test_a_task_file_reads_no_attributes_and_runs_nothing(tmp_path):
    text = "name: mine\nfiles: '{split}-{split.__class__}.csv'\nsentence_columns: [a]\nlabel_column: b\nkind: binary\n"
    (tmp_path / "mine.yaml").write_text(text)
    assert read_tasks(tmp_path)["mine"].path("dev", "").name == "dev-{split.__class__}.csv"
    (tmp_path / "mine.yaml").write_text(text + f"folder: !!python/object/apply:os.mkdir [{tmp_path / 'executed'}]\n")
    with pytest.raises(DataError, match=r"mine\.yaml: not a readable YAML file"):
        read_tasks(tmp_path)
    assert not (tmp_path / "executed").exists()
