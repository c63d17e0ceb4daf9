"""The store on disk: whole or absent, verified, private, and never in the way."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from staxlab.runtime import cache

KEY = "ab" + "0" * 62


def entry(cache_dir: Path) -> Path:
    return cache_dir / "ab" / KEY


def test_what_is_written_is_read(cache_dir):
    assert cache.read_verified(KEY) is None
    cache.write_verified(KEY, b"content")
    assert cache.read_verified(KEY) == b"content"
    assert cache.info().entries == 1
    cache.clear()
    assert cache.read_verified(KEY) is None and cache.info().entries == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: data[:10],
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda data: bytes([data[0] ^ 128]) + data[1:],
        lambda data: data + b"\0",
        lambda data: b"garbage" * 100,
    ],
    ids=["half", "empty", "short", "last bit", "first bit", "longer", "garbage"],
)
def test_damage_is_noticed_and_the_entry_dropped(cache_dir, damage):
    cache.write_verified(KEY, b"x" * 1000)
    path = entry(cache_dir)
    path.write_bytes(damage(path.read_bytes()))
    assert cache.read_verified(KEY) is None
    assert not path.exists()
    cache.write_verified(KEY, b"again")
    assert cache.read_verified(KEY) == b"again"


def test_an_entry_under_another_ones_name_is_not_taken_for_it(cache_dir):
    other = "ab" + "1" * 62
    cache.write_verified(KEY, b"one")
    cache.write_verified(other, b"two")
    first, second = entry(cache_dir), cache_dir / "ab" / other
    swapped = first.read_bytes(), second.read_bytes()
    first.write_bytes(swapped[1])
    second.write_bytes(swapped[0])
    assert cache.read_verified(KEY) is None and cache.read_verified(other) is None


def test_an_entry_others_can_write_is_not_read(cache_dir):
    cache.write_verified(KEY, b"content")
    entry(cache_dir).chmod(0o666)
    assert cache.read_verified(KEY) is None
    cache.write_verified(KEY, b"mine")
    assert cache.read_verified(KEY) == b"mine"
    entry(cache_dir).parent.chmod(0o777)
    assert cache.read_verified(KEY) is None


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give files away")
def test_an_entry_of_another_user_is_not_read(cache_dir):
    cache.write_verified(KEY, b"content")
    os.chown(entry(cache_dir), 12345, 12345)
    assert cache.read_verified(KEY) is None
    os.chown(cache_dir, 12345, 12345)
    cache._usable.clear()
    with pytest.warns(UserWarning, match="another user"):
        assert cache.directory() != cache_dir


@pytest.mark.parametrize("obstacle", ["file", "world-writable"])
def test_an_unusable_directory_is_replaced_with_one_warning(tmp_path, monkeypatch, obstacle):
    wanted = tmp_path / "place"
    if obstacle == "file":
        wanted.write_text("not a directory")
    else:
        wanted.mkdir()
        wanted.chmod(0o777)
    monkeypatch.setenv("STAXLAB_CACHE_DIR", str(wanted))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first, second = cache.directory(), cache.directory()
    assert first == second != wanted
    assert len(caught) == 1 and str(wanted) in str(caught[0].message)
    cache.write_verified(KEY, b"content")
    assert cache.read_verified(KEY) == b"content"
    assert first.stat().st_mode & 0o077 == 0, "the replacement must be private"


def test_the_directory_may_vanish_between_calls(cache_dir):
    import shutil

    cache.write_verified(KEY, b"content")
    shutil.rmtree(cache_dir)
    assert cache.read_verified(KEY) is None
    cache.write_verified(KEY, b"content")
    assert cache.read_verified(KEY) == b"content"


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.delenv("STAXLAB_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.requested_directory() == tmp_path / "xdg" / "staxlab"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.requested_directory() == tmp_path / "home" / ".cache" / "staxlab"


def test_clear_leaves_what_is_not_the_caches(cache_dir):
    (cache_dir / "notes.txt").write_text("mine")
    cache.write_verified(KEY, b"content")
    cache.clear()
    assert (cache_dir / "notes.txt").exists() and not entry(cache_dir).exists()


def test_a_failed_write_leaves_nothing_behind(cache_dir, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    cache.write_verified(KEY, b"content")
    monkeypatch.undo()
    os.environ["STAXLAB_CACHE_DIR"] = str(cache_dir)
    assert cache.read_verified(KEY) is None
    assert [p for p in cache_dir.rglob("*") if p.is_file()] == []


WRITER = """
import importlib.util, sys
# The module alone: it needs no other, and importing PyTorch would take longer than the test.
spec = importlib.util.spec_from_file_location("cache", {path!r})
cache = sys.modules["cache"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cache)
for number in range(60):
    content = bytes([number % 7]) * 20000
    cache.write_verified({key!r}, content)
    found = cache.read_verified({key!r})
    assert found is not None and len(found) == 20000 and len(set(found)) == 1, "a half-written entry was read"
with cache.locked("x" * 64):
    pass
"""


def test_many_processes_writing_one_entry_never_show_half_of_it(cache_dir):
    program = WRITER.format(path=cache.__file__, key=KEY)
    environment = {**os.environ, "STAXLAB_CACHE_DIR": str(cache_dir)}
    processes = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(2)]
    assert [p.wait() for p in processes] == [0, 0]
