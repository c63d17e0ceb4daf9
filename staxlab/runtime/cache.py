"""A content-addressed store on disk that several processes share (Definition 11.1 and Section 11.1).

An entry's name is a hash of everything that determines its content, so an entry never has to be invalidated: whatever
changes, changes the name (Proposition 11.1). Three rules keep readers safe.

* *Whole or absent.* A file is written under a temporary name and renamed, which is atomic.
* *Verified.* Next to the bytes stands a SHA-256 over them and the entry's name. An entry that was truncated,
  overwritten, half deleted, or put under another entry's name does not match, is dropped, and is built again; nobody is
  told anything but the log.
* *Private.* A shared library is code. An entry, or a directory, that another user could have written is not read.

A directory that cannot be used is replaced by a private temporary one, with one warning.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger("staxlab.cache")

_lock = threading.Lock()
_usable: dict[str, Path] = {}
_private: list[Path] = []
# Two digits of a hash, or a kind and a hash; the locks; a file being written when its process died.
_OWN_NAMES = re.compile(r"[0-9a-f]{2}|[a-z]+-[0-9a-f]{16,}(\.[a-z]+)?|locks|triton|\.writing-.*")
_DIGEST = 32  # bytes of SHA-256 in front of every entry


def requested_directory() -> Path:
    """$STAXLAB_CACHE_DIR, else $XDG_CACHE_HOME/staxlab, else ~/.cache/staxlab."""
    named = os.environ.get("STAXLAB_CACHE_DIR")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "staxlab"


def directory() -> Path:
    """The directory in use. Creates it; falls back to a private temporary one, warning once, if it cannot be used."""
    wanted = requested_directory()
    known = _usable.get(str(wanted))
    if known is not None and known.is_dir():
        return known
    with _lock:
        problem = _problem(wanted)
        if problem is None:
            _usable[str(wanted)] = wanted
            return wanted
        replacement = _private_directory()
        if str(wanted) not in _usable:
            from ..provenance import warn_user  # this module runs alone as well

            said = f"the cache directory {wanted} {problem}; using {replacement} for this process"
            warn_user(said, UserWarning)
        _usable[str(wanted)] = replacement
        return replacement


def _problem(path: Path) -> str | None:
    """Why a directory cannot be the cache, in words; None if it can."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not trusted(path):
            return "could have been written by another user"
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        return f"cannot be written ({error.strerror or error})"
    return None


def _private_directory() -> Path:
    if not _private or not _private[0].is_dir():
        _private[:] = [Path(tempfile.mkdtemp(prefix="staxlab-"))]
        import atexit

        atexit.register(shutil.rmtree, _private[0], ignore_errors=True)
    return _private[0]


def trusted(path: Path) -> bool:
    """Whether only this user (or root) can have written a file or directory."""
    if not hasattr(os, "getuid"):
        return True
    status = os.stat(path)
    return status.st_uid in (os.getuid(), 0) and not status.st_mode & stat.S_IWOTH


def path_of(name: str) -> Path:
    return directory() / name[:2] / name if "-" not in name else directory() / name


def read_verified(name: str) -> bytes | None:
    """The content of an entry, or None if it is absent, damaged (it is then removed) or not to be trusted."""
    path = path_of(name)
    try:
        if not (trusted(path.parent) and trusted(path)):
            log.warning("cache entry %s could have been written by another user: ignored", name)
            return None
        data = path.read_bytes()
    except OSError:
        return None
    content = data[_DIGEST:]
    if len(data) < _DIGEST or _digest(name, content) != data[:_DIGEST]:
        log.warning("cache entry %s is damaged: dropped", name)
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    return content


def _digest(name: str, content: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\0" + content).digest()


def write_verified(name: str, content: bytes) -> None:
    """Store an entry atomically. A full or vanished disk is logged, not raised: the cache is an optimisation."""
    for attempt in range(2):
        path = path_of(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            atomic_write(path, _digest(name, content) + content)
            return
        except OSError as error:
            log.warning("cache entry %s could not be stored: %s", name, error)
            if attempt == 0:
                _usable.pop(str(requested_directory()), None)


def atomic_write(path: Path, data: bytes) -> None:
    """Write a file so that readers see all of it or none."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold a lock among processes, so that one of them builds and the others find what it built. Where files cannot be
    locked, everybody builds, which is slower and just as right."""
    try:
        import fcntl

        locks = directory() / "locks"
        locks.mkdir(exist_ok=True, mode=0o700)
        file = open(locks / name, "a+b")
    except (ImportError, OSError):
        yield
        return
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        file.close()


@dataclass(frozen=True)
class CacheInfo:
    """What is in the cache: where it is, how many entries, how many bytes."""

    directory: str
    entries: int
    nbytes: int

    def __str__(self) -> str:
        return f"{self.directory}: {self.entries} entries, {self.nbytes / 1e6:.2f} MB"


def info() -> CacheInfo:
    """Count the entries."""
    where = directory()
    files = [p for own in _own(where) if own.name != "locks" for p in (own, *own.rglob("*")) if p.is_file()]
    return CacheInfo(str(where), len(files), sum(p.stat().st_size for p in files))


def clear() -> None:
    """Delete every entry, and nothing else: the directory is the user's choice and may hold other things. Kernels
    already loaded keep working: they are not mapped from these files."""
    for child in _own(directory()):
        if child.is_dir():
            shutil.rmtree(child, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                child.unlink()


def _own(where: Path) -> list[Path]:
    """What this store (and Triton's, kept inside it) has made directly inside its directory."""
    return [child for child in where.iterdir() if _OWN_NAMES.fullmatch(child.name)]
