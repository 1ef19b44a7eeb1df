"""Grids that are wrong in any way end in a line that names the file and the field."""

import os

import pytest
import torch

from mtbert.config import ConfigError
from mtbert.runtime import PeakMemory, resident_mib
from mtbert_lab.store.grids import read_grid

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
WRONG_FILES = {
    "bomb": (f"{BOMB}runs: {{one: {{tasks: *i}}}}", "unknown key a, b, c"),
    "an alias inside of itself": ("runs: &a {one: *a}", "unknown key"),
    "latin-1": ("runs: {é: {}}".encode("latin-1"), "UnicodeDecodeError"),
    "NUL": ("runs: {a: \0}", "not a readable YAML file"),
    "huge integer": (f"runs: {{one: {{seed: {'9' * 5000}}}}}", "Exceeds the limit"),
    "large integer": (f"runs: {{one: {{seeds: [{'9' * 4000}]}}}}", "run 'one': seed: Input should be less than"),
    "deep nesting": ("[" * 5000, "RecursionError"),
    "no date": ("runs: {one: {plan: 2020-13-45}}", "month must be in 1..12"),
    "code": ("runs: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
    "mixed keys": ("runs: {one: {}}\n1: 2\nx: 3", "unknown key 1, x"),
    "mixed fields": ("runs: {one: {5: 1}}", "run 'one': 5: Keys should be strings"),
    "a key that is a list": ("runs: {[1]: {}}", "unhashable key"),
    "a name twice": ("runs:\n  one: {}\n  one: {epochs: 2}\n", "one is given twice"),
    "a name as number and text": ("runs:\n  5: {}\n  '5': {epochs: 2}\n", "5 is given twice"),
    "a name that a terminal obeys": (r'runs: {"a\nb\e[31m": {}}', r"the key 'a\nb\x1b[31m' has a control character"),
    "a field that a terminal obeys": (r'runs: {a: {"x\e[31m": 1}}', r"the key 'x\x1b[31m' has a control character"),
    "half a character": (r'runs: {"\ud800": {}}', r"the key '\ud800' has a control character"),
    "a field twice": ("runs: {one: {epochs: 1, epochs: 2}}", "epochs is given twice"),
    "no runs": ("runs: {}", "a mapping `runs` with a run"),
    "an empty file": ("", "a mapping `runs`"),
    "too many seeds": (f"seeds: {list(range(15_000))}\nruns: {{one: {{}}}}", "seeds: 15000 are given; a grid has"),
    "too many runs": (f"seeds: {list(range(6_000))}\nruns: {{one: {{}}, two: {{}}, three: 1}}", "at most 10000 runs"),
    "a name as 1 and 1.0": ("runs: {1: {}, 1.0: {epochs: 2}}", "1 and 1.0 are the same key"),
    "a name as 1 and true": ("runs: {1: {}, true: {epochs: 2}}", "1 and true are the same key"),
    "a name that is a decimal number": ("runs: {1.10: {}}", "run 1.1: YAML does not read this name as text; write it"),
    "a name that is a truth value": ("runs: {on: {}}", "run True: YAML does not read this name as text"),
    "an octal seed": ("seeds: [010]\nruns: {one: {}}", "run 'one': seed: Input should be a valid integer, got '010'"),
    "a sexagesimal seed": ("seeds: [1:30]\nruns: {one: {}}", "Input should be a valid integer, got '1:30'"),
    "a hexadecimal seed": ("seeds: [0x10]\nruns: {one: {}}", "Input should be a valid integer, got '0x10'"),
    "a rate with an underscore": ("runs: {one: {weight_decay: 1_0}}", "weight_decay: Input should be a valid number"),
    "a rate of other digits": ("runs: {one: {weight_decay: '١'}}", "weight_decay: Input should be a valid number"),
    "an empty tag": ("runs: {one: {seed: !!int ''}}", "not a readable YAML file"),
    "a run a truth value": ("runs: {one: false}", "must be mappings"),
    "a base of nothing but a list": ("base: []\nruns: {one: {}}", "must be mappings"),
}


@pytest.mark.parametrize("name", WRONG_FILES)
def test_a_wrong_grid_is_one_short_line(tmp_path, name):
    content, reason = WRONG_FILES[name]
    path = tmp_path / "grid.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    peak, before = PeakMemory(torch.device("cpu")), resident_mib()
    with pytest.raises(ConfigError) as error:
        read_grid(path)
    message = str(error.value)
    assert reason in message and "grid.yaml" in message
    assert len(message.replace(str(path), "")) < 400 and "\n" not in message
    assert peak.mib() < before + 50


def test_numbers_and_names_are_read_as_they_are_written(tmp_path):
    text = "runs:\n  5: {learning_rate: 1e-5}\n  '1.10': {learning_rate: 2.5e-5, seeds: [0, 7]}\n  010: {warmup: .5}\n"
    (tmp_path / "grid.yaml").write_text(text)
    grid = read_grid(tmp_path / "grid.yaml")
    assert [(name, c.learning_rate, c.warmup, c.seed) for name, configs in grid.items() for c in configs] == [
        ("5", 1e-5, 0.1, 1), ("1.10", 2.5e-5, 0.1, 0), ("1.10", 2.5e-5, 0.1, 7), ("010", 1e-4, 0.5, 1)
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_what_is_no_regular_file_is_not_waited_for(tmp_path, kind):
    path = tmp_path / "grid.yaml"
    {"pipe": os.mkfifo, "device": lambda path: path.symlink_to("/dev/zero"), "folder": os.mkdir}[kind](path)
    with pytest.raises(ConfigError, match=r"grid\.yaml: not a regular file"):
        read_grid(path)
