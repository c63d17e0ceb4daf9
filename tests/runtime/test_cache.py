"""The store on disk: whole or absent, verified, private, bounded, and never in the way."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import tempfile
import threading
import time
import warnings
from pathlib import Path

import pytest

from staxlab.errors import OptionError
from staxlab.runtime import cache, cache_directory, cache_entries, cache_format
from tests.runtime.cache_support import start

KEY = "ab" + "0" * 62
OTHER = "ab" + "1" * 62


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    """Each test starts as a new process does."""
    cache_directory.clear()
    monkeypatch.setattr(cache, "_told_full", False)
    monkeypatch.setattr(cache, "_counted", False)
    monkeypatch.setattr(cache, "_written", 0)
    monkeypatch.setattr(cache, "_outcomes", {})
    yield
    cache_directory.clear()


def entry(cache_dir: Path, name: str = KEY) -> Path:
    return cache_dir / name[:2] / name


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


# --- Whole, verified, private -----------------------------------------------------------------------------------------


def test_what_is_written_is_read(cache_dir):
    assert cache.read_verified(KEY) is None
    cache.write_verified(KEY, b"content")
    assert cache.read_verified(KEY) == b"content"
    assert cache.info().entries == 1
    cache.clear()
    assert cache.read_verified(KEY) is None and cache.info().entries == 0


@pytest.mark.parametrize("content", [b"", b"\n", b"staxlab-entry-1 ", bytes(range(256)) * 3], ids=range(4))
def test_any_content_and_any_title_come_back(cache_dir, content):
    for title in ("", "two\nlines", "\ud800 and \x00", "ü" * 999, '</b>"'):
        cache.write_verified(KEY, content, title=title)
        assert cache.read_verified(KEY) == content
        (found,) = cache.entries()
        assert "\n" not in found.title and len(found.title) <= cache_format.LONGEST_TITLE


DAMAGES = {
    "half": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "short": lambda data: data[:10],
    "only the head": lambda data: data[: data.index(b"\n") + 1],
    "last bit": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "first bit": lambda data: bytes([data[0] ^ 128]) + data[1:],
    "digest": lambda data: data[:20] + (b"0" if data[20:21] != b"0" else b"1") + data[21:],
    "title": lambda data: data.replace(b"a title", b"another", 1),
    "longer": lambda data: data + b"\0",
    "garbage": lambda data: b"garbage" * 100,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damage_is_noticed_and_the_entry_dropped(cache_dir, damage):
    cache.write_verified(KEY, b"x" * 1000, title="a title")
    path = entry(cache_dir)
    path.write_bytes(damage(path.read_bytes()))
    assert cache.read_verified(KEY) is None
    assert not path.exists()
    cache.write_verified(KEY, b"again")
    assert cache.read_verified(KEY) == b"again"


def test_an_entry_under_another_ones_name_is_not_taken_for_it(cache_dir):
    cache.write_verified(KEY, b"one")
    cache.write_verified(OTHER, b"two")
    first, second = entry(cache_dir), entry(cache_dir, OTHER)
    swapped = first.read_bytes(), second.read_bytes()
    first.write_bytes(swapped[1])
    second.write_bytes(swapped[0])
    assert cache.read_verified(KEY) is None and cache.read_verified(OTHER) is None


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


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_neither_a_link_nor_a_pipe_is_an_entry(cache_dir):
    """A pipe at an entry's place would be waited for; a link may be pointed elsewhere between two looks."""
    cache.write_verified(KEY, b"content")
    path = entry(cache_dir)
    kept = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    assert cache.read_verified(KEY) is None
    path.unlink()
    (cache_dir / "elsewhere").write_bytes(kept)
    path.symlink_to(cache_dir / "elsewhere")
    assert cache.read_verified(KEY) is None
    cache.write_verified(KEY, b"content")
    assert cache.read_verified(KEY) == b"content" and (cache_dir / "elsewhere").read_bytes() == kept


def test_the_directory_may_vanish_between_calls(cache_dir):
    cache.write_verified(KEY, b"content")
    shutil.rmtree(cache_dir)
    assert cache.read_verified(KEY) is None
    cache.write_verified(KEY, b"content")
    assert cache.read_verified(KEY) == b"content"


def test_clear_leaves_what_is_not_the_caches(cache_dir):
    (cache_dir / "notes.txt").write_text("mine")
    (cache_dir / "ab").mkdir()
    (cache_dir / "ab" / "notes.txt").write_text("mine, too")
    cache.write_verified(KEY, b"content")
    cache.write_verified("plan-" + "2" * 64, b"content")
    (cache_dir / "ab" / ".writing-x").write_text("half")
    (cache_dir / "triton").mkdir()
    (cache_dir / "triton" / "x.py").write_text("")
    cache.clear()
    assert files(cache_dir) == [cache_dir / "ab" / "notes.txt", cache_dir / "notes.txt"]


# --- A full disk ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["write", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_costs_one_warning_and_nothing_else(cache_dir, monkeypatch, moment, code):
    cache.write_verified(OTHER, b"earlier")

    def full(*_, **__):
        raise OSError(code, os.strerror(code))

    if moment == "replace":
        monkeypatch.setattr(os, "replace", full)
    else:
        monkeypatch.setattr(tempfile, "mkstemp", full)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            cache.write_verified(KEY, b"content")
    (warning,) = caught
    assert os.strerror(code) in str(warning.message) and str(cache_dir) in str(warning.message)
    assert warning.filename == __file__
    monkeypatch.undo()
    monkeypatch.setenv("STAXLAB_CACHE_DIR", str(cache_dir))
    assert files(cache_dir) == [entry(cache_dir, OTHER)], "something half-written was left"
    assert cache.directory() == cache_dir, "a full disk is no reason to go elsewhere"
    assert cache.read_verified(KEY) is None and cache.read_verified(OTHER) == b"earlier"
    cache.write_verified(KEY, b"content")
    assert cache.read_verified(KEY) == b"content", "there is space again"


# --- Bounded ----------------------------------------------------------------------------------------------------------


def name(number: int) -> str:
    return f"{number:064x}"


def used(directory: Path, number: int, seconds_ago: float) -> None:
    path = entry(directory, name(number))
    when = time.time() - seconds_ago
    os.utime(path, (when, when))


def test_the_least_recently_used_go_first(cache_dir, monkeypatch):
    monkeypatch.setenv("STAXLAB_CACHE_LIMIT", "11K")
    for number in range(10):
        cache.write_verified(name(number), b"x" * 900)
        used(cache_dir, number, 10_000 - number)
    assert cache.info().entries == 10
    cache.read_verified(name(0))  # the oldest, used now
    for number in (10, 11):
        cache.write_verified(name(number), b"x" * 900)
    left = {found.name for found in cache.entries()}
    assert name(0) in left and name(11) in left and name(1) not in left and name(2) not in left
    assert cache.info().nbytes <= 11 << 10 and len(left) >= 9, "no more goes than must"


def test_an_entry_in_use_does_not_go(cache_dir, monkeypatch):
    monkeypatch.setenv("STAXLAB_CACHE_LIMIT", "3K")
    for number in range(2):
        cache.write_verified(name(number), b"x" * 900)
        used(cache_dir, number, 10_000 - number)
    with cache.locked(name(0)):
        for number in range(2, 6):
            cache.write_verified(name(number), b"x" * 900)
            used(cache_dir, number, 5_000 - number)
        left = {found.name for found in cache.entries()}
        assert name(0) in left and name(1) not in left
    for number in (7, 8):
        cache.write_verified(name(number), b"x" * 900)
    assert name(0) not in {found.name for found in cache.entries()}, "it may go once nobody builds it"


def test_what_was_just_written_stays_even_if_it_is_larger_than_the_limit(cache_dir, monkeypatch):
    monkeypatch.setenv("STAXLAB_CACHE_LIMIT", "0")
    cache.write_verified(name(1), b"x" * 5000)
    assert cache.read_verified(name(1)) == b"x" * 5000
    cache.write_verified(name(2), b"y")
    assert [found.name for found in cache.entries()] == [name(2)]


def test_what_triton_may_be_reading_does_not_go(cache_dir):
    for key, seconds in (("OLD", 7200), ("NEW", 60)):
        (cache_dir / "triton" / "compiled" / key).mkdir(parents=True)
        path = cache_dir / "triton" / "compiled" / key / "kernel.cubin"
        path.write_bytes(b"x" * 5000)
        os.utime(path, (time.time() - seconds,) * 2)
    gone = cache_entries.evict(cache_dir, 0)
    assert [found.name for found in gone] == ["triton-OLD"]
    assert [path.name for path in (cache_dir / "triton" / "compiled").iterdir()] == ["NEW"]


def test_a_storm_of_hits_writes_nothing(cache_dir, monkeypatch):
    cache.write_verified(KEY, b"content")
    noted = []
    monkeypatch.setattr(os, "utime", lambda *a, **k: noted.append(a))
    for _ in range(50):
        cache.read_verified(KEY)
    assert not noted
    monkeypatch.undo()
    monkeypatch.setenv("STAXLAB_CACHE_DIR", str(cache_dir))
    long_ago = time.time() - 2 * cache_entries.TOUCH_AFTER
    os.utime(entry(cache_dir), (long_ago, long_ago))
    cache.read_verified(KEY)
    assert time.time() - entry(cache_dir).stat().st_mtime < 60


def test_looking_for_what_must_go_is_rare(cache_dir, monkeypatch):
    """A pass over the directory at every write would make n writes cost n^2."""
    looks = []
    monkeypatch.setattr(cache_entries, "evict", lambda *a, **k: looks.append(a) or ())
    for number in range(30):
        cache.write_verified(name(number), b"x")
    assert len(looks) == 1


def test_a_limit_that_is_no_number_of_bytes_is_refused(cache_dir, monkeypatch):
    monkeypatch.setenv("STAXLAB_CACHE_LIMIT", "plenty")
    with pytest.raises(OptionError, match="STAXLAB_CACHE_LIMIT is 'plenty'"):
        cache.browse()


# --- Locks ------------------------------------------------------------------------------------------------------------


def test_a_lock_keeps_others_out_and_leaves_no_file(cache_dir):
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with cache.locked(KEY):
                inside += 1
                most = max(most, inside)
                time.sleep(0.0005)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1 and files(cache_dir) == []


def test_whoever_holds_a_lock_for_ever_does_not_stop_the_others(cache_dir, monkeypatch):
    monkeypatch.setattr(cache, "PATIENCE", 0.05)
    with cache.locked(KEY):
        entered = []

        def build_as_well() -> None:
            with cache.locked(KEY):
                entered.append(1)

        thread = threading.Thread(target=build_as_well, daemon=True)
        thread.start()
        thread.join(30)
    assert entered == [1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("ends", ["killed", "releases"])
def test_a_forked_child_does_not_keep_its_parents_lock(cache_dir, ends):
    """A file lock belongs to everybody who has the file open: a worker that was forked meanwhile would keep it."""
    stay, ready = os.pipe(), os.pipe()
    holder = os.fork()
    if holder == 0:
        with cache.locked(KEY):
            if os.fork() == 0:  # lives longer than the lock
                os.close(stay[1])
                os.read(stay[0], 1)
                os._exit(0)
            time.sleep(0.05)
            if ends == "killed":
                os.write(ready[1], b"x")
                os.kill(os.getpid(), signal.SIGKILL)
        os.write(ready[1], b"x")
        os._exit(0)
    os.read(ready[0], 1)
    os.waitpid(holder, 0)
    assert not cache_entries.is_held(cache_dir / "locks" / KEY)
    for end in (*stay, *ready):
        os.close(end)


def test_where_files_cannot_be_locked_everybody_builds(cache_dir, monkeypatch):
    import fcntl

    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with cache.locked(KEY), cache.locked(KEY):
        pass


# --- Left-overs -------------------------------------------------------------------------------------------------------


def test_what_dead_processes_left_is_swept_and_the_rest_stays(cache_dir, tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(cache_entries.tempfile, "gettempdir", lambda: str(temporary))
    cache.write_verified(KEY, b"content")
    old = time.time() - 2 * cache_entries.LEFT_AFTER
    left = [cache_dir / "ab" / ".writing-1", cache_dir / ".writing-2", temporary / "staxlab-kernel-x.so"]
    for path in left:
        path.write_text("half")
        os.utime(path, (old, old))
    works = [temporary / f"staxlab-{purpose}-x" for purpose in ("build", "private")]
    for work in works:
        work.mkdir()
        (work / "kernel.cpp").write_text("")
        os.utime(work, (old, old))
    young = [cache_dir / "ab" / ".writing-young", temporary / "staxlab-kernel-young.so", temporary / "thesis.so"]
    for path in young:
        path.write_text("")
    os.utime(young[-1], (old, old))
    (cache_dir / "locks").mkdir()
    (cache_dir / "locks" / OTHER).write_text("")
    with cache.locked(KEY):
        assert cache_dir / "locks" / KEY not in cache_entries.left_behind(cache_dir)
        gone = cache_entries.sweep(cache_dir)
        assert sorted(gone) == sorted([*left, *works, cache_dir / "locks" / OTHER])
        assert (cache_dir / "locks" / KEY).exists()
    assert all(path.exists() for path in young) and not any(work.exists() for work in works)
    assert cache.read_verified(KEY) == b"content"


def test_the_first_write_of_a_process_sweeps(cache_dir):
    (cache_dir / "ab").mkdir()
    left = cache_dir / "ab" / ".writing-x"
    left.write_text("half")
    os.utime(left, (1, 1))
    cache.write_verified(KEY, b"content")
    assert not left.exists()


# --- Several processes ------------------------------------------------------------------------------------------------

WRITER = """
for number in range(60):
    content = bytes([number % 7]) * 20000
    cache.write_verified({key!r}, content)
    found = cache.read_verified({key!r})
    assert found is not None and len(found) == 20000 and len(set(found)) == 1, "a half-written entry was read"
with cache.locked("x" * 64):
    pass
"""


def test_many_processes_writing_one_entry_never_show_half_of_it(cache_dir):
    processes = [start(WRITER.format(key=KEY), cache_dir) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]


def test_files_are_private(cache_dir):
    cache.write_verified(KEY, b"content")
    assert stat.S_IMODE(entry(cache_dir).stat().st_mode) == 0o600
