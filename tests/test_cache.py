"""The cache gives back what was written, for the same texts only, and nothing where a file is damaged."""

import numpy as np
import pytest

from mtbert.cache import file_of, read_arrays, write_arrays


def test_arrays_come_back(tmp_path):
    path = tmp_path / "folder" / "a.npz"
    write_arrays(path, ids=np.arange(5), shares=np.ones((2, 3), dtype=np.float32))
    shares, ids = read_arrays(path, "shares", "ids")
    assert ids.tolist() == [0, 1, 2, 3, 4] and shares.dtype == np.float32 and shares.shape == (2, 3)
    assert [file.name for file in path.parent.iterdir()] == ["a.npz"]


@pytest.mark.parametrize("damage", ["absent", "cut", "no zip", "another name"])
def test_a_file_that_does_not_serve_gives_nothing(tmp_path, damage):
    path = tmp_path / "a.npz"
    if damage != "absent":
        write_arrays(path, ids=np.arange(500))
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-30])
    if damage == "no zip":
        path.write_bytes(b"text")
    assert read_arrays(path, "offsets" if damage == "another name" else "ids") is None


def test_a_file_is_named_by_texts_kind_and_making():
    names = [file_of(["a", "b"], "tokens"), file_of(["ab"], "tokens"), file_of(["a", "b"], "tokens", "vocabulary")]
    assert len(set(names)) == 3 and names[0] == file_of(["a", "b"], "tokens")
    assert names[0].parent.name == "tokens"
