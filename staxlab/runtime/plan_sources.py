"""The text of the compiler itself, as a hash (Section 11.1): whatever changes in a stage changes every plan's key.

Hashing all files would take a warm start longer than everything else it reads, so the hash is remembered on disk under
what the file system says of each file: name, size, identity, and the times of its last modification and of its last
*change*. The latter cannot be set by a program: a file that is replaced, or edited and dated back, has a new one. Two
cases are left over where times tell too little, and in both nothing is remembered or restored (:func:`digest` is None):
a file that is younger than this process may not be what the process has loaded; and where there are no sources there is
no text.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from .. import logs
from . import LOADED, cache

PACKAGE = Path(__file__).resolve().parent.parent

#: What the stages after the operator graph consist of: folders, and modules at the package's top. A test compares this
#: with what they import.
STAGES = (
    "backends", "capture", "codegen", "loops", "native", "operators", "polyhedral", "runtime", "schedule", "specialize",
)  # fmt: skip
MODULES = ("errors.py", "files.py", "logs.py", "options.py", "pipeline.py", "provenance.py")
SUFFIXES = (".py", ".h", ".c", ".cpp")

#: Set to "0", every stage of every region runs, and nothing is kept.
VARIABLE = "STAXLAB_PLANS"

#: Files changed less than so many seconds before they were read may change again within one tick of the clock.
SETTLED = 2.0


def files(package: Path = PACKAGE) -> Iterator[tuple[str, os.stat_result]]:
    """The files the digest is made of, relative to the package, in a fixed order, each with what is known of it."""
    for name in MODULES:
        path = package / name
        if path.is_file():
            yield name, path.stat()
    for name in STAGES:
        yield from _below(str(package), name)


def _below(package: str, folder: str) -> Iterator[tuple[str, os.stat_result]]:
    try:
        with os.scandir(os.path.join(package, folder)) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    for entry in entries:
        name = f"{folder}/{entry.name}"
        if entry.name.endswith(SUFFIXES):
            yield name, entry.stat()
        elif entry.name != "__pycache__" and entry.is_dir(follow_symlinks=False):
            yield from _below(package, name)


def digest() -> str | None:
    """SHA-256 of the sources, None where it cannot be known that they are what this process runs, or where plans are
    switched off. Computed once; the first time on a machine it reads some megabytes, later it looks at each file's
    times."""
    return None if os.environ.get(VARIABLE) == "0" else _digest()


@functools.lru_cache(maxsize=1)
def _digest() -> str | None:
    found = digest_of(PACKAGE, LOADED)
    if found is None:
        logs.say("cache", "no plans: the package's sources are missing, or younger than this process")
    return found


def digest_of(package: Path, loaded: float) -> str | None:
    """:func:`digest` of a package that was loaded at ``loaded``."""
    listed = [*files(package)]
    newest = max((max(status.st_ctime, status.st_mtime) for _, status in listed), default=loaded)
    if newest > loaded - SETTLED or "runtime/plan_sources.py" not in {name for name, _ in listed}:
        return None
    state = "\n".join(f"{name} {s.st_size} {s.st_dev} {s.st_ino} {s.st_mtime_ns} {s.st_ctime_ns}" for name, s in listed)
    name = "sources-" + hashlib.sha256(f"{package}\n{state}".encode()).hexdigest()
    known = cache.read_verified(name)
    if known is not None:
        return known.decode()
    text = hashlib.sha256()
    for file, _ in listed:
        content = (package / file).read_bytes()
        text.update(f"{file} {len(content)}\n".encode() + content)
    if [*_states(files(package))] != [*_states(listed)]:
        return None  # edited meanwhile
    cache.write_verified(name, text.hexdigest().encode(), title="the package's sources")
    return text.hexdigest()


def _states(listed: object) -> Iterator[tuple]:
    for name, s in listed:  # type: ignore[attr-defined]
        yield name, s.st_size, s.st_ino, s.st_mtime_ns, s.st_ctime_ns


def clear() -> None:
    """Look at the files again."""
    _digest.cache_clear()
