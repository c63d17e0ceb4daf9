"""Triton's store on disk, with the promise of ours: what is read is what was written (Section 11.1).

Triton addresses what it compiles by content and writes it whole, but reads whatever stands there: one flipped bit in a
file of machine code is a wrong value, or a fault of the device. :func:`manager` gives Triton a store that keeps a
SHA-256 beside each file and compares it when the file is read. What does not match is as good as absent, and Triton
compiles again. Two more things come with it: a group of files is found where it lies now, so that a directory may be
copied to another place, and the directories in :data:`SHARED` are read first and never written.

This file needs Triton alone, so that a process that compiles and nothing else (:mod:`.worker`) can use it, too.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import stat
from typing import Any

#: Directories that are read before the own one: copies of it that others provide.
SHARED: tuple[str, ...] = ()

_SUFFIX = ".sha256"


@functools.lru_cache(maxsize=1)
def manager() -> type:
    """A subclass of Triton's ``FileCacheManager`` for ``knobs.cache.manager_class``."""
    from triton.runtime.cache import FileCacheManager

    class VerifiedStore(FileCacheManager):
        def __init__(self, key: str, override: bool = False, dump: bool = False):
            super().__init__(key, override=override, dump=dump)
            self.bare = override or dump  # directories in which a user reads and writes by hand
            self.places = (*(os.path.join(shared, key) for shared in SHARED), self.cache_dir)

        def get_file(self, filename: str) -> str | None:
            if self.bare:
                return super().get_file(filename)
            return next((path for place in self.places if (path := sound(place, filename))), None)

        def has_file(self, filename: str) -> bool:
            return self.get_file(filename) is not None

        def get_group(self, filename: str) -> dict[str, str] | None:
            if self.bare:
                return super().get_group(filename)
            for place in self.places:
                if (found := group_in(place, filename)) is not None:
                    return found
            return None

        def put(self, data: Any, filename: str, binary: bool = True) -> str:
            path = super().put(data, filename, binary)
            if not self.bare:
                content = data if isinstance(data, bytes) else str(data).encode()
                super().put(_digest(filename, content), filename + _SUFFIX)
            return path

    return VerifiedStore


def sound(place: str, filename: str) -> str | None:
    """The path of a file whose digest matches and which only this user or root can have written, or None."""
    path = os.path.join(place, filename)
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if hasattr(os, "getuid") and (status.st_uid not in (0, os.getuid()) or status.st_mode & stat.S_IWOTH):
                return None
            content = file.read()
        with open(path + _SUFFIX, encoding="ascii") as file:
            return path if file.read() == _digest(filename, content) else None
    except (OSError, UnicodeDecodeError):
        return None


def group_in(place: str, filename: str) -> dict[str, str] | None:
    """The files of a group in a directory, by name; None unless all of them are sound."""
    listed = sound(place, f"__grp__{filename}")
    if listed is None:
        return None
    try:
        with open(listed, encoding="utf-8") as file:
            names = [os.path.basename(name) for name in json.load(file)["child_paths"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    found = {name: sound(place, name) for name in names}
    return None if None in found.values() else found  # type: ignore[return-value]


def _digest(filename: str, content: bytes) -> str:
    return hashlib.sha256(filename.encode() + b"\0" + content).hexdigest()
