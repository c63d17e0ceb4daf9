"""A content-addressed store on disk that several processes share (Definition 11.1 and Section 11.1).

An entry's name is a hash of everything that determines its content, so an entry never has to be invalidated: whatever
changes, changes the name. With a hash of l bits, q entries are all told apart but for a probability of at most
q^2 / 2^(l+1) (Proposition 11.1): for 256 bits and a billion entries, 10^-59. The premise is that the name covers
*every* determinant; :func:`.build.key_of` says what that means for a kernel. Four rules keep readers safe.

* *Whole or absent.* A file is written under a temporary name and renamed, which is atomic.
* *Verified.* In front of the bytes stands a SHA-256 over them and the entry's name (:mod:`.cache_format`). An entry
  that was truncated, overwritten, half deleted, or put under another entry's name does not match, is dropped, and is
  built again; nobody is told anything but the log.
* *Private.* A shared library is code. An entry, or a directory, that another user could have written is not read
  (:mod:`.cache_directory`).
* *Bounded.* Beyond ``$STAXLAB_CACHE_LIMIT`` bytes (2 GiB) the least recently used entries go (:mod:`.cache_entries`).

Of several processes that want what is not there, one builds: it holds the entry's lock, and the others, once they have
it, look again. A full disk costs a warning; the cache is an optimisation.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from .. import logs
from ..files import WRITING, write_whole
from ..provenance import warn_user
from . import cache_directory, cache_entries, cache_format
from .cache_directory import directory, forget_own, requested_directory, shared_directories, trusted
from .cache_entries import KINDS, LOCKS, TRITON, Entry, path_in

__all__ = [
    "CacheInfo", "Contents", "Entry", "browse", "clear", "directory", "entries", "info", "kinds",
    "locked", "path_of", "read_library", "read_verified", "requested_directory", "shared_directories", "trusted",
    "write_verified",
]  # fmt: skip

LIMIT, DEFAULT_LIMIT = "STAXLAB_CACHE_LIMIT", 2 << 30
#: Seconds to wait for a process that builds what is wanted; a stopped one must not stop the others.
PATIENCE = 120.0
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

log = logging.getLogger("staxlab.cache")

#: Kind of entry -> what it is.
kinds = KINDS

_outcomes: dict[str, bool] = {}  # name -> whether the first look of this process found it
_written = 0  # bytes since the size was last looked at
_counted = False
_told_full = False
_held: set[BinaryIO] = set()  # open lock files, for a child to close


def path_of(name: str) -> Path:
    """The file of an entry in the own directory."""
    return path_in(directory(), name)


def limit() -> int:
    """How many bytes the entries may take: $STAXLAB_CACHE_LIMIT ("512M", "2G"; with "0" only the newest stays), else
    2 GiB. OptionError for a value that is no number of bytes."""
    value = os.environ.get(LIMIT)
    if not value:
        return DEFAULT_LIMIT
    from ..native import bytes_of

    return bytes_of(value, LIMIT)


# --- Reading ----------------------------------------------------------------------------------------------------------


def read_verified(name: str) -> bytes | None:
    """The content of an entry, or None if it is absent, damaged (it is then removed) or not to be trusted. Shared
    directories are looked at first; nothing is ever changed there."""
    content = _found(name)
    _outcomes.setdefault(name, content is not None)
    logs.say("cache", lambda: f"{'missing' if content is None else 'found'}: {name}")
    return content


def read_library(name: str) -> bytes | None:
    """:func:`read_verified` of a shared library: also None (and removed) if it was made for another machine."""
    content = read_verified(name)
    if content is None:
        return None
    problem = cache_format.library_problem(content)
    if problem is None:
        return content
    log.warning("cache entry %s %s: built again", name, problem)
    _drop(path_of(name))
    _outcomes[name] = False
    return None


def _found(name: str) -> bytes | None:
    for where in shared_directories():
        content = _read(where, name, shared=True)
        if content is not None:
            return content
    return _read(directory(), name)


def _read(where: Path, name: str, shared: bool = False) -> bytes | None:
    path = path_in(where, name)
    try:
        # Neither a link, which others may point elsewhere, nor a pipe, which nobody may ever write to.
        descriptor = os.open(path, os.O_RDONLY | _flag("O_CLOEXEC") | _flag("O_NOFOLLOW") | _flag("O_NONBLOCK"))
    except OSError:
        return None
    try:
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return None
            if not (cache_directory.is_ours(status) and (path.parent == where or trusted(path.parent))):
                log.warning("cache entry %s could have been written by another user: ignored", name)
                return None
            parsed = cache_format.unpack(name, file.read())
            if parsed.state == "sound":
                if not shared:
                    cache_entries.touch(descriptor, status)
                return parsed.content
    except OSError:
        return None
    log.warning("cache entry %s is %s: %s", name, parsed.state, "ignored" if shared else "dropped")
    if not shared:
        _drop(path)
    return None


def _flag(name: str) -> int:
    return getattr(os, name, 0)


def _drop(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


# --- Writing ----------------------------------------------------------------------------------------------------------


def write_verified(name: str, content: bytes, title: str = "") -> None:
    """Store an entry atomically. ``title`` is what a listing calls it. A full disk costs one warning, a vanished one is
    logged; neither is raised: the cache is an optimisation."""
    data = cache_format.pack(name, content, title)
    for attempt in range(2):
        path = path_of(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(path, data)
        except OSError as error:
            if error.errno in _FULL:
                _tell_full(path.parent, error)
                return
            log.warning("cache entry %s could not be stored: %s", name, error)
            if attempt == 0:
                forget_own()  # it may be read-only now, or gone
            continue
        logs.say("cache", lambda: f"written: {name} ({len(content):,} bytes) {title}")
        _keep_within_limit(len(data), name)
        return


def _tell_full(where: Path, error: OSError) -> None:
    global _told_full
    if not _told_full:
        _told_full = True
        warn_user(
            f"the cache in {where} cannot keep what is compiled now ({error.strerror or error}): results are right, "
            "but the next process compiles again; free some space, or run `staxlab cache clear`",
            UserWarning,
        )


def _keep_within_limit(nbytes: int, name: str) -> None:
    """Evict if the limit is passed. Looking costs a pass over the directory, so it is done at the first write of a
    process and whenever it has written another 1/64 of the limit."""
    global _written, _counted
    most = limit()
    _written += nbytes
    if _counted and _written < most >> 6:
        return
    where = directory()
    if not _counted:
        cache_entries.sweep(where)
    _written, _counted = 0, True
    gone = cache_entries.evict(where, most, keep=name)
    if gone:
        freed = sum(entry.nbytes for entry in gone)
        logs.say("cache", lambda: f"dropped: {len(gone)} least recently used entries, {freed:,} bytes")


# --- One builds, the others wait --------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold a lock among processes and threads, so that one of them builds and the others find what it built. Where
    files cannot be locked, or after :data:`PATIENCE` seconds, everybody builds, which is slower and just as right."""
    file = _locked_file(name)
    try:
        yield
    finally:
        if file is not None:
            _release(file, name)


def _locked_file(name: str) -> BinaryIO | None:
    try:
        import fcntl
    except ImportError:
        return None
    until, pause = time.monotonic() + PATIENCE, 0.002
    file = None
    try:
        while True:
            if file is None:
                locks = directory() / LOCKS
                locks.mkdir(exist_ok=True, mode=0o700)
                try:
                    file = open(locks / name, "a+b")
                except FileNotFoundError:  # the cache is being cleared
                    if time.monotonic() > until:
                        return None
                    continue
                _held.add(file)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    log.warning("another process holds the lock of %s since %d s: built here as well", name, PATIENCE)
                    _close(file)
                    return None
                time.sleep(pause)
                pause = min(pause * 1.5, 0.05)
                continue
            # Whoever held it has deleted it: then this is a lock without a name, which keeps nobody out.
            if _carries(file, locks / name):
                return file
            _close(file)
            file = None
    except OSError:
        if file is not None:
            _close(file)
        return None
    except BaseException:  # Ctrl-C while waiting
        if file is not None:
            _close(file)
        raise


def _carries(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except OSError:
        return False


def _release(file: BinaryIO, name: str) -> None:
    import fcntl

    with contextlib.suppress(OSError, ValueError):
        path = Path(file.name)
        if _carries(file, path):
            path.unlink()
        fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough if a forked child has it open, too
    _close(file)


def _close(file: BinaryIO) -> None:
    _held.discard(file)
    with contextlib.suppress(OSError, ValueError):
        file.close()


def _after_fork() -> None:
    """A child that lives long must not hold what its parent had locked."""
    for file in list(_held):
        _close(file)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# --- Looking and clearing ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CacheInfo:
    """What is in the cache: where it is, how many entries, how many bytes."""

    directory: str
    entries: int
    nbytes: int

    def __str__(self) -> str:
        return f"{self.directory}: {self.entries} entries, {self.nbytes / (1 << 20):.2f} MiB"


@dataclass(frozen=True)
class Contents:
    """The cache at one moment: directory, limit in bytes, entries of it and of the shared directories, and
    which names this process has looked for: found (True) or not. Prints and draws itself."""

    directory: str
    limit: int
    entries: tuple[Entry, ...]
    shared: tuple[str, ...] = ()
    outcomes: dict[str, bool] | None = None
    now: float = 0.0

    @property
    def nbytes(self) -> int:
        """Bytes in the own directory."""
        return sum(entry.nbytes for entry in self.entries if not entry.shared)

    @functools.cached_property
    def by_kind(self) -> dict[str, tuple[int, int]]:
        """Kind -> (entries, bytes), most bytes first."""
        found: dict[str, tuple[int, int]] = {}
        for entry in self.entries:
            count, size = found.get(entry.kind, (0, 0))
            found[entry.kind] = count + 1, size + entry.nbytes
        return dict(sorted(found.items(), key=lambda item: -item[1][1]))

    @property
    def hits(self) -> int:
        """How many entries this process looked for and found."""
        return sum(self.outcomes.values()) if self.outcomes else 0

    @property
    def misses(self) -> int:
        """How many entries this process looked for in vain, at first."""
        return len(self.outcomes or ()) - self.hits

    def __str__(self) -> str:
        from ..view.cache_browser import text

        return text(self)

    __repr__ = __str__

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        from ..view import mimebundle

        return mimebundle(self)


def entries() -> tuple[Entry, ...]:
    """Every entry of the own directory, by name."""
    return tuple(cache_entries.walk(directory()))


def browse() -> Contents:
    """The cache as a record to look at: own entries and shared ones, and the hits and misses of this process."""
    shared = shared_directories()
    found = [*entries(), *(entry for where in shared for entry in cache_entries.walk(where, shared=True))]
    return Contents(str(directory()), limit(), tuple(found), tuple(map(str, shared)), dict(_outcomes), time.time())


def info() -> CacheInfo:
    """Count the entries of the own directory."""
    sizes = [entry.nbytes for entry in cache_entries.walk(directory(), titles=False)]
    return CacheInfo(str(directory()), len(sizes), sum(sizes))


def clear() -> None:
    """Delete every entry of the own directory, and nothing else: the directory is the user's choice and may hold other
    things. Kernels already loaded keep working: they are not mapped from these files. Locks that are held stay."""
    where = directory()
    for entry in cache_entries.walk(where, titles=False):
        if entry.kind != TRITON:
            _drop(entry.path)
    shutil.rmtree(where / TRITON, ignore_errors=True)
    cache_entries.sweep(where)
    for child in list(where.iterdir()):
        if child.name.startswith(WRITING):
            _drop(child)
        elif cache_entries.is_shard(child.name):
            for left in child.glob(f"{WRITING}*"):
                _drop(left)
        if cache_entries.is_shard(child.name) or child.name == LOCKS:
            with contextlib.suppress(OSError):
                child.rmdir()  # unless something else is in it
    _outcomes.clear()
