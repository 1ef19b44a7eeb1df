"""The folder of the cache: where the user's system keeps caches, or where MTBERT_CACHE says."""

from pathlib import Path

import pytest

from mtbert.paths import cache_dir


def test_without_a_home_folder_the_cache_is_asked_for(monkeypatch):
    def none():
        raise RuntimeError("Could not determine home directory.")

    for name in ("MTBERT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", none)
    with pytest.raises(RuntimeError, match="no home folder: set MTBERT_CACHE") as error:
        cache_dir()
    assert type(error.value).__module__.startswith("mtbert.")


def test_the_cache_is_where_the_user_has_caches(monkeypatch, tmp_path):
    monkeypatch.delenv("MTBERT_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "mtbert"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_dir() == Path("/x/mtbert")
    monkeypatch.setenv("MTBERT_CACHE", "/y")
    assert cache_dir() == Path("/y")
