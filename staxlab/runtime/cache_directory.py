"""Where the cache is, and whom it is safe to share it with (Section 11.1).

What stands in the cache is loaded into the process as code. Whoever can write there can therefore run code in the name
of everybody who reads there, so a directory is used only if no other user can have put anything into it:

* it, and every directory above it, belongs to this user or to root, and
* nobody else may write to it; above it, others may where the sticky bit keeps them from renaming what is not theirs
  (``/tmp``).

A group counts as "nobody else" if it is the user's private group, as many systems give every user.

Three directories may play a part. The *own* one is read and written: ``$STAXLAB_CACHE_DIR``, else
``$XDG_CACHE_HOME/staxlab``, else ``~/.cache/staxlab``. *Shared* ones, ``$STAXLAB_CACHE_SHARED`` (separated as in PATH),
are read first and never written: a course puts compiled kernels there once (``staxlab cache export``). Where the own
one cannot be written, a *private* temporary one, deleted with the process, takes its place, with one warning; if it is
only read-only, what it holds is used all the same.

This module stands below all stages, because code generators for GPUs keep sources and Triton's artifacts in the same
place.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import stat
import tempfile
import threading
from pathlib import Path

from ..errors import BuildError
from ..provenance import warn_user

OWN, SHARED = "STAXLAB_CACHE_DIR", "STAXLAB_CACHE_SHARED"

_lock = threading.Lock()
_usable: dict[str, Path] = {}  # what was asked for -> what is used
_read_only: dict[str, Path] = {}  # what was asked for and can at least be read
_shared: dict[str, tuple[Path, ...]] = {}
_private: list[Path] = []


def requested_directory() -> Path:
    """$STAXLAB_CACHE_DIR, else $XDG_CACHE_HOME/staxlab, else ~/.cache/staxlab (of a user without a home directory:
    below the temporary directory)."""
    named = os.environ.get(OWN)
    try:
        if named:
            return Path(named).expanduser().absolute()
        base = os.environ.get("XDG_CACHE_HOME")
        return (Path(base) if base else Path("~/.cache").expanduser()).absolute() / "staxlab"
    except (RuntimeError, OSError):  # no home directory is known, or the current directory is gone
        return Path(tempfile.gettempdir()) / f"staxlab-{_user()}"


def directory() -> Path:
    """The directory that is read and written. Creates it; falls back to a private temporary one, warning once, if it
    cannot be used. BuildError if not even a temporary directory can be made."""
    wanted = requested_directory()
    known = _usable.get(str(wanted))
    if known is not None and known.is_dir():
        return known
    with _lock:
        try:
            used = wanted.resolve()
            problem = _problem(used)
        except (OSError, RuntimeError) as error:  # a loop of links
            used, problem = wanted, f"cannot be used ({_words(error)})"
        if problem is not None:
            used = _replacement(wanted, used, problem)
        _usable[str(wanted)] = used
        return used


def shared_directories() -> tuple[Path, ...]:
    """The directories that are read before the own one and never written: those in $STAXLAB_CACHE_SHARED that nobody
    else can have written, and the own one where it is read-only. One that is refused costs one warning."""
    value = os.environ.get(SHARED, "")
    known = _shared.get(value)
    if known is None:
        accepted = []
        for name in value.split(os.pathsep):
            if not name.strip():
                continue
            try:
                path = Path(name.strip()).expanduser().resolve()
                problem = None if path.is_dir() else "is no directory"
                problem = problem or distrust(path)
            except (OSError, RuntimeError) as error:
                problem = f"cannot be used ({_words(error)})"
            if problem is None:
                accepted.append(path)
            else:
                warn_user(f"the shared cache {name.strip()} ({SHARED}) {problem}: it is not read", UserWarning)
        known = _shared[value] = tuple(accepted)
    if not _read_only:
        return known
    own = _read_only.get(str(requested_directory()))
    return known if own is None else (*known, own)


def clear() -> None:
    """Forget which directories were found usable, so that they are looked at again."""
    _usable.clear()
    _read_only.clear()
    _shared.clear()


def forget_own() -> None:
    """Look at the own directory again: it has vanished, or cannot be written any longer."""
    _usable.pop(str(requested_directory()), None)


# --- Whom a file can come from ----------------------------------------------------------------------------------------


def trusted(path: Path) -> bool:
    """Whether only this user (or root) can have written a file or directory, by its own owner and mode."""
    return not hasattr(os, "getuid") or is_ours(os.stat(path))


def is_ours(status: os.stat_result) -> bool:
    """Whether only this user (or root) can have written what has this status."""
    if not hasattr(os, "getuid"):
        return True
    if status.st_uid not in (os.getuid(), 0) or status.st_mode & stat.S_IWOTH:
        return False
    return not status.st_mode & stat.S_IWGRP or status.st_gid == 0 or _is_private_group(status.st_gid)


def distrust(path: Path) -> str | None:
    """Why another user could have written into an existing directory, in words; None if no other could. ``path`` is
    absolute and without symbolic links. Looks at every directory above it."""
    if not hasattr(os, "getuid"):
        return None
    if not trusted(path):
        return "could have been written by another user"
    for above in path.parents:
        status = os.stat(above)
        if status.st_uid not in (os.getuid(), 0):
            return f"could have been written by another user ({above} belongs to another one)"
        if not is_ours(status) and not status.st_mode & stat.S_ISVTX:
            return f"could have been written by another user ({above} can be changed by others)"
    return None


@functools.lru_cache(maxsize=64)
def _is_private_group(group: int) -> bool:
    """Whether a group has no member but this user: it is the user's first group, and has the user's name."""
    try:
        import grp
        import pwd

        user, found = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
    except (ImportError, KeyError):
        return False
    return group == user.pw_gid and found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name}


# --- The own directory, or what takes its place -----------------------------------------------------------------------


def _problem(path: Path) -> str | None:
    """Why a directory cannot be the cache, in words; None if it can."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if problem := distrust(path):
            return problem
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        return f"cannot be written ({_words(error)})"
    return None


def _replacement(wanted: Path, resolved: Path, problem: str) -> Path:
    """A private directory in place of ``wanted``, and the warning that says so."""
    known = str(wanted) in _usable
    try:
        replacement = _private_directory()
    except OSError as error:
        raise BuildError(
            f"there is no place for compiled kernels: the cache directory {wanted} {problem}, and no temporary "
            f"directory can be made ({_words(error)})",
            remedy=f"set {OWN} or TMPDIR to a directory of your own that can be written",
        ) from error
    remedy = f"set {OWN} to a directory that only you can write"
    try:
        readable = resolved.is_dir() and distrust(resolved) is None
    except OSError:
        readable = False
    if readable:
        _read_only[str(wanted)] = resolved
        problem += "; what it holds is used"
    if not known:
        warn_user(
            f"the cache directory {wanted} {problem}; using {replacement} for this process ({remedy})", UserWarning
        )
    return replacement


def _private_directory() -> Path:
    if not _private or not _private[0].is_dir():
        made = Path(tempfile.mkdtemp(prefix="staxlab-private-")).resolve()
        atexit.register(_remove_private, made, os.getpid())
        _private[:] = [made]
    return _private[0]


def _remove_private(path: Path, owner: int) -> None:
    """At exit of the process that made it: a forked child may end long before its parent does."""
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)


def _words(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error)


def _user() -> str:
    return str(os.getuid()) if hasattr(os, "getuid") else "user"
