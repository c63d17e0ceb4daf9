"""Looking after the cache: reading every entry, and copying a warm one for others (Section 11.1).

Nothing here is needed for results to be right: an entry is verified whenever it is read. :func:`verify` answers the
question "is all of it sound?" without waiting for that; :func:`export` makes of a cache one that others share: a course
compiles its notebooks once, exports, and gives students ``STAXLAB_CACHE_SHARED``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from ..errors import OptionError
from ..files import WRITING, write_whole
from . import cache, cache_directory, cache_entries, cache_format

#: State of a file -> what it means. All but "sound" are never read; "not the cache's" is none of our business.
STATES: dict[str, str] = {
    "sound": "its digest matches",
    "damaged": "its digest does not match: truncated, changed, or under another entry's name",
    "foreign": "it carries an entry's name, and this version of the store did not write it",
    "another machine's": "a shared library that this machine cannot load",
    "not private": "another user could have written it",
    "left behind": "a temporary file or a lock of a process that is gone",
    "not the cache's": "a file of somebody else's in the same directory; it is never removed",
}
_FAULTS = ("damaged", "foreign", "another machine's", "not private")


@dataclass(frozen=True)
class Finding:
    """A file that is no sound entry: its path, its ``state`` (of :data:`STATES`), why, and whether it was removed."""

    path: str
    state: str
    why: str
    removed: bool = False


@dataclass(frozen=True)
class Verification:
    """What reading every entry has shown: how many were ``sound`` and how many bytes they have, and the rest."""

    directory: str
    sound: int
    nbytes: int
    findings: tuple[Finding, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether no fault is left: nothing damaged, foreign, for another machine, or writable by others."""
        return all(finding.removed or finding.state not in _FAULTS for finding in self.findings)

    def __str__(self) -> str:
        from ..view.cache_browser import verification_text

        return verification_text(self)

    __repr__ = __str__

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        from ..view import mimebundle

        return mimebundle(self)


def verify(*, remove: bool = False) -> Verification:
    """Read every entry of the own directory and say which are not sound; with ``remove``, delete those and what was
    left behind. Linear in the bytes of the cache."""
    where = cache.directory()
    findings: list[Finding] = []
    sound = nbytes = 0
    known: set[Path] = set()
    for entry in cache_entries.walk(where, titles=False):
        known.add(entry.path)
        state, why = _state(entry)
        if state == "sound":
            sound, nbytes = sound + 1, nbytes + entry.nbytes
        elif state:
            findings.append(Finding(str(entry.path), state, why, remove and cache_entries.remove(entry, where)))
    left = cache_entries.left_behind(where)
    gone = set(cache_entries.sweep(where)) if remove else set()
    findings += [Finding(str(path), "left behind", STATES["left behind"], path in gone) for path in left]
    findings += [Finding(str(path), "not the cache's", STATES["not the cache's"]) for path in _others(where, known)]
    return Verification(str(where), sound, nbytes, tuple(findings))


def _state(entry: cache_entries.Entry) -> tuple[str, str]:
    """The state of an entry and why; "" if it has gone meanwhile."""
    try:
        if entry.kind == cache_entries.TRITON:
            return ("sound", "") if cache.trusted(entry.path) else ("not private", STATES["not private"])
        if not cache.trusted(entry.path):
            return "not private", STATES["not private"]
        parsed = cache_format.unpack(entry.name, entry.path.read_bytes())
    except FileNotFoundError:
        return "", ""
    except OSError as error:
        return "damaged", f"it cannot be read ({error.strerror or error})"
    if parsed.state == "sound" and entry.kind == "kernel":
        problem = cache_format.library_problem(parsed.content)
        if problem is not None:
            return "another machine's", f"it {problem}"
    return parsed.state, STATES[parsed.state]


def _others(where: Path, known: set[Path]) -> list[Path]:
    """What stands beside the entries and is none, as one path for a whole directory."""
    found = []
    for child in sorted(where.iterdir()):
        if child in known or child.name in (cache_entries.LOCKS, cache_entries.TRITON):
            continue
        if child.name.startswith(WRITING):
            continue
        if cache_entries.is_shard(child.name) and child.is_dir():
            inner = (file for file in sorted(child.iterdir()) if file not in known)
            found += [file for file in inner if not file.name.startswith(WRITING)]
        else:
            found.append(child)
    return found


@dataclass(frozen=True)
class Exported:
    """How many entries were copied where, their bytes, and how many were left out for being unsound."""

    directory: str
    entries: int
    nbytes: int
    left_out: int = 0

    def __str__(self) -> str:
        line = f"{self.directory}: {self.entries} entries, {self.nbytes / (1 << 20):.2f} MiB"
        if self.left_out:
            line += f" ({self.left_out} left out: `staxlab cache verify` says why)"
        return f"{line}\nto read it: export {cache_directory.SHARED}={self.directory}"


def export(target: str | os.PathLike[str]) -> Exported:
    """Copy the own cache to ``target`` in a form that others can read and only you can write. What is known of this
    machine's compiler stays here, and so does what is not sound; entries already there are kept.

    OptionError if the target cannot be written, is the cache itself, or others could write there: nobody would read it.
    """
    where, path = cache.directory(), Path(target).expanduser().absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        path = path.resolve()
        if path == where or where in path.parents:
            raise OptionError(f"{path} is the cache itself, or in it", remedy="name a directory elsewhere")
        if problem := cache_directory.distrust(path):
            raise OptionError(
                f"nobody would read a cache from {path}: it {problem}",
                remedy=f"chmod go-w {path} (and what is above it), or name a directory below your own",
            )
        copied = nbytes = left_out = 0
        for entry in cache_entries.walk(where, titles=False):
            if entry.kind == "compiler":
                continue
            if _state(entry)[0] != "sound":
                left_out += 1
                continue
            with contextlib.suppress(FileNotFoundError):  # it has gone meanwhile
                _copy(entry, path / entry.path.relative_to(where))
                copied, nbytes = copied + 1, nbytes + entry.nbytes
    except OSError as error:
        raise OptionError(f"the cache cannot be copied to {target}: {error.strerror or error}") from error
    return Exported(str(path), copied, nbytes, left_out)


def _copy(entry: cache_entries.Entry, target: Path) -> None:
    if target.exists():
        return
    for directory in reversed([up for up in target.parents if not up.exists()]):
        directory.mkdir(exist_ok=True)
        directory.chmod(0o755)
    if entry.path.is_dir():
        shutil.copytree(entry.path, target)
        for made in (target, *target.rglob("*")):
            made.chmod(0o755 if made.is_dir() else 0o644)
        return
    write_whole(target, entry.path.read_bytes())
    target.chmod(0o644)
