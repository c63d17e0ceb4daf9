"""What lies in a cache directory: entries, locks and left-overs; and which entries go when there is too much.

A content-addressed store never has a reason to delete an entry for being wrong (Proposition 11.1), only for lack of
space. The rule is *least recently used*: the entry whose last use is longest ago goes first. With room for k entries of
one size it misses, up to a constant, at most k times as often as the best rule that knows the future, and no rule that
does not know it promises less (Sleator and Tarjan, 1985, "Amortized efficiency of list update and paging rules").

The time of the last use is the file's modification time; a hit moves it only if it is more than :data:`TOUCH_AFTER`
old, so that a storm of hits writes nothing.

An entry that a process is building, and whose lock it therefore holds, does not go; nor one that Triton may be reading
now. Everybody else has read the bytes of an entry before using them, so its file may go at any time.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..files import WRITING
from . import cache_format

LOCKS, TRITON = "locks", "triton"

#: Kind of entry -> what it is. The kind is the name up to the first dash; a kernel's library is a hash alone.
KINDS: dict[str, str] = {
    "kernel": "shared library of a kernel",
    "compiler": "what is known of a C++ compiler",
    "autotune": "launch configuration found by a search",
    "plan": "stages of a region from lowering to its wrapper",
    "sources": "hash of the package's own text",
    "basis": "operators that have a lowering rule or a library call",
    "triton": "source or compiled code of a GPU kernel",
}

TOUCH_AFTER = 3600.0  # seconds
#: Seconds after which a file that is being written, or a directory that is being compiled in, was left behind.
LEFT_AFTER = 24 * 3600.0
#: A GPU kernel's files are read by Triton, which asks nobody: none goes that was used within this many seconds.
TRITON_REST = 3600.0
#: Eviction goes on until this much of the limit is used, so that not every write after it evicts again.
DOWN_TO = 0.9

_LIBRARY = re.compile(r"[0-9a-f]{64}")
_OTHER = re.compile(r"([a-z]+)-[0-9a-f]{16,}(\.[a-z]+)?")
_TEXT = re.compile(r"[0-9a-f]{16}")
_SHARD = re.compile(r"[0-9a-f]{2}")
_TEMPORARIES = re.compile(r"staxlab-(build|openmp|assembly|private)-.*|staxlab-.*\.so")


@dataclass(frozen=True)
class Entry:
    """An entry: its ``name`` and ``kind``, bytes on disk, when it was last used (seconds since the epoch, accurate to
    :data:`TOUCH_AFTER`), its ``title`` as written, its file (for Triton, a directory), and whether the directory it
    lies in is a shared one."""

    name: str
    kind: str
    nbytes: int
    last_use: float
    title: str
    path: Path
    shared: bool = False

    @property
    def age(self) -> float:
        """Seconds since the last use; never negative."""
        return max(0.0, time.time() - self.last_use)


def kind_of(name: str) -> str | None:
    """The kind of the entry with this name; None for a name that is no entry's."""
    if _LIBRARY.fullmatch(name):
        return "kernel"
    found = _OTHER.fullmatch(name)
    return found[1] if found else None


def path_in(where: Path, name: str) -> Path:
    """Where the entry ``name`` lies in a cache directory: libraries by the first two digits of their hash."""
    return where / name[:2] / name if "-" not in name else where / name


def is_shard(name: str) -> bool:
    """Whether a directory of this name holds libraries: two digits of their hashes."""
    return _SHARD.fullmatch(name) is not None


def walk(where: Path, *, shared: bool = False, titles: bool = True) -> Iterator[Entry]:
    """Every entry in a directory; files that go away meanwhile are left out. Reads the first line of each with
    ``titles``, and nothing but the directories without. Linear in the number of files."""
    for child in _listed(where):
        if child.name == TRITON and child.is_dir(follow_symlinks=False):
            yield from _triton(Path(child.path), shared)
        elif _SHARD.fullmatch(child.name) and child.is_dir(follow_symlinks=False):
            for file in _listed(Path(child.path)):
                if _LIBRARY.fullmatch(file.name) and file.name.startswith(child.name):
                    yield from _entry(file, "kernel", shared, titles)
        elif (kind := kind_of(child.name)) is not None and kind != "kernel":
            yield from _entry(child, kind, shared, titles)


def _entry(file: os.DirEntry[str], kind: str, shared: bool, titles: bool) -> Iterator[Entry]:
    with contextlib.suppress(OSError):
        if not file.is_file(follow_symlinks=False):
            return
        status, title = file.stat(follow_symlinks=False), ""
        if titles:
            with open(file.path, "rb") as opened:
                title = cache_format.title_of(opened.read(cache_format.LONGEST_HEAD))
        yield Entry(file.name, kind, status.st_size, status.st_mtime, title, Path(file.path), shared)


def _triton(where: Path, shared: bool) -> Iterator[Entry]:
    """A directory for each source text and, in ``compiled``, for each thing that Triton has compiled."""
    for child in _listed(where):
        inner = (
            _listed(Path(child.path)) if child.name == "compiled" else [child] if _TEXT.fullmatch(child.name) else []
        )
        for directory in inner:
            nbytes, used, title = 0, 0.0, ""
            try:
                if not directory.is_dir(follow_symlinks=False):
                    continue
                for file in Path(directory.path).rglob("*"):
                    status = file.stat()
                    if file.is_file():
                        nbytes, used = nbytes + status.st_size, max(used, status.st_mtime, status.st_atime)
                        if file.suffix in (".py", ".json") and not file.name.startswith("__grp__"):
                            title = file.stem
            except OSError:
                continue
            yield Entry(f"{TRITON}-{directory.name}", TRITON, nbytes, used, title, Path(directory.path), shared)


def _listed(where: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(where) as found:
            return sorted(found, key=lambda child: child.name)
    except OSError:
        return []


def touch(descriptor: int, status: os.stat_result) -> None:
    """Note that an entry was used now, if what is noted is more than an hour old."""
    now = time.time()
    if abs(now - status.st_mtime) > TOUCH_AFTER:
        with contextlib.suppress(OSError):
            os.utime(descriptor, (now, now))


# --- Eviction ---------------------------------------------------------------------------------------------------------


def evict(where: Path, limit: int, keep: str = "") -> tuple[Entry, ...]:
    """Delete least recently used entries until at most ``DOWN_TO * limit`` bytes are left, if there are more than
    ``limit``; returns what went. Never the entry ``keep``, nor one whose lock is held.

    O(n log n) for n entries.
    """
    found = list(walk(where, titles=False))
    total = sum(entry.nbytes for entry in found)
    gone: list[Entry] = []
    if total <= limit:
        return ()
    for entry in sorted(found, key=lambda entry: (entry.last_use, entry.name)):
        if total <= DOWN_TO * limit:
            break
        if entry.name == keep or (entry.kind == TRITON and entry.age < TRITON_REST):
            continue
        if remove(entry, where):
            gone.append(entry)
            total -= entry.nbytes
    return tuple(gone)


def remove(entry: Entry, where: Path) -> bool:
    """Delete an entry unless a process holds its lock; whether it went."""
    try:
        if entry.kind == TRITON:
            aside = entry.path.with_name(f"{WRITING}{entry.path.name}-{os.getpid()}")
            os.replace(entry.path, aside)  # at once: whoever looks sees all of it or none
            shutil.rmtree(aside, ignore_errors=True)
            return True
        if is_held(where / LOCKS / entry.name):
            return False
        entry.path.unlink()
        return True
    except OSError:
        return False


def is_held(lock: Path) -> bool:
    """Whether some process (or another thread of this one) holds a lock file."""
    try:
        import fcntl

        with open(lock, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return True
            fcntl.flock(file, fcntl.LOCK_UN)
    except (ImportError, OSError):
        pass  # there is no such lock
    return False


# --- What dead processes leave behind ---------------------------------------------------------------------------------


def left_behind(where: Path, older_than: float = LEFT_AFTER) -> list[Path]:
    """Files and directories that no living process needs: half-written files and temporary directories older than
    ``older_than`` seconds, and locks that nobody holds."""
    now, found = time.time(), []

    def is_old(child: os.DirEntry[str]) -> bool:
        try:
            return now - child.stat(follow_symlinks=False).st_mtime > older_than
        except OSError:
            return False

    shards = [Path(child.path) for child in _listed(where) if _SHARD.fullmatch(child.name)]
    for directory in (where, where / TRITON, where / TRITON / "compiled", *shards):
        found += [Path(child.path) for child in _listed(directory) if child.name.startswith(WRITING) and is_old(child)]
    found += [Path(child.path) for child in _listed(where / LOCKS) if not is_held(Path(child.path))]
    for child in _listed(Path(tempfile.gettempdir())):
        if _TEMPORARIES.fullmatch(child.name) and is_old(child):
            with contextlib.suppress(OSError):
                if not hasattr(os, "getuid") or child.stat(follow_symlinks=False).st_uid == os.getuid():
                    found.append(Path(child.path))
    return found


def sweep(where: Path, older_than: float = LEFT_AFTER) -> list[Path]:
    """Delete :func:`left_behind`; returns what went. A lock that is taken meanwhile stays right: whoever waits for one
    looks whether it is still the file that carries the name."""
    gone = []
    for path in left_behind(where, older_than):
        with contextlib.suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path.parent.name == LOCKS and path.parent.parent == where:
                if not _remove_lock(path):
                    continue
            else:
                path.unlink()
            gone.append(path)
    return gone


def _remove_lock(path: Path) -> bool:
    """Delete a lock file while holding it: nobody else can then believe to hold it."""
    import fcntl

    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        path.unlink()
    return True
