"""A student's record: answers, feedback and hints, in one JSON file that survives accidents.

Three accidents are provided for. A crash in the middle of writing: the new text goes to a temporary file beside the
old one and replaces it in one step, so a reader sees either the old or the new record, never half of one. Two notebooks
at once: reading, changing and writing happen under a lock. A damaged file (a full disk, a curious editor): it is never
overwritten but set aside under a new name, the copy from before the last change takes over where it is sound, and the
student is told.

The file belongs to the student and can be edited by them: it is a diary, not a grade book.

Layout of the file (schema 1)::

    {"schema": 1, "student": "ada", "exercises": {"ex01": {
        "attempts": [{"time": ..., "seed": ..., "parts": ["1"], "answers": {field: text}, "feedback": {...}}],
        "hints": {"1": 2}, "hint_log": [{"time": ..., "part": "1", "number": 2}]}}}
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..files import write_whole

SCHEMA = 1
FOLDER_VARIABLE = "STAXLAB_LEARN_DIR"
LOCK_SECONDS = 5.0


def record_folder() -> Path:
    """``$STAXLAB_LEARN_DIR``, or ``~/.staxlab/learn``."""
    given = os.environ.get(FOLDER_VARIABLE)
    return Path(given) if given else Path.home() / ".staxlab" / "learn"


def record_path(student: str, folder: Path | None = None) -> Path:
    """The file of one student. The name holds what is harmless of the id, and a hash that keeps different ids apart."""
    canonical = student.strip().casefold()
    readable = re.sub(r"[^a-z0-9._-]+", "_", canonical)[:40].strip("._") or "student"
    return (folder or record_folder()) / f"{readable}-{hashlib.sha256(canonical.encode()).hexdigest()[:8]}.json"


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class Loaded:
    """A record as read from disk, and remarks for the student about what had to be done to read it."""

    data: dict[str, Any]
    notes: tuple[str, ...] = ()


class StudentRecord:
    """The record of one student on disk. All methods may raise OSError where the folder cannot be used."""

    def __init__(self, student: str, folder: Path | None = None):
        self.student = student
        self.path = record_path(student, folder)

    @property
    def previous(self) -> Path:
        """The copy from before the last change."""
        return self.path.with_suffix(".previous.json")

    def load(self) -> Loaded:
        """Read the record; an empty one if there is none. A damaged file is set aside, not lost."""
        try:
            return Loaded(self._read(self.path))
        except FileNotFoundError:
            if not self.previous.exists():
                return Loaded(self._empty())
            notes = [f"{self.path.name} was gone"]
        except ValueError as error:
            aside = self._set_aside(self.path)
            notes = [f"your record {self.path} could not be read ({error}); it was kept as {aside.name}"]
        try:
            data = self._read(self.previous)
            notes.append("the copy from before the last change was restored")
        except FileNotFoundError:
            data = self._empty()
            notes.append("a new record was begun")
        except ValueError:
            aside = self._set_aside(self.previous)
            data = self._empty()
            notes.append(f"the copy before it is damaged too and was kept as {aside.name}; a new record was begun")
        return Loaded(data, ("; ".join(notes) + ".",))

    def update(self, change: Callable[[dict[str, Any]], Any]) -> tuple[Any, tuple[str, ...]]:
        """Read, let ``change`` modify the data in place, write. Returns what ``change`` returned, and the remarks.

        Raises TimeoutError if another process holds the lock for more than five seconds.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock():
            loaded = self.load()
            result = change(loaded.data)
            self._write(loaded.data)
        return result, loaded.notes

    def exercise(self, data: dict[str, Any], exercise: str) -> dict[str, Any]:
        """The entry of one exercise inside ``data``, made if missing."""
        fresh: dict[str, Any] = {"attempts": [], "hints": {}, "hint_log": []}
        return data["exercises"].setdefault(exercise, fresh)

    def _empty(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "student": self.student, "exercises": {}}

    def _read(self, path: Path) -> dict[str, Any]:
        """Raises FileNotFoundError, or ValueError for anything that is not a record of this schema."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        if not isinstance(data, dict) or data.get("schema") != SCHEMA or not isinstance(data.get("exercises"), dict):
            raise ValueError(f"it is not a record of schema {SCHEMA}")
        for name, entry in data["exercises"].items():
            kinds = (("attempts", list), ("hints", dict), ("hint_log", list))
            if not isinstance(entry, dict) or not all(isinstance(entry.get(key), kind) for key, kind in kinds):
                raise ValueError(f"the entry of {name} is damaged")
            if not all(isinstance(attempt, dict) and "parts" in attempt for attempt in entry["attempts"]):
                raise ValueError(f"the attempts at {name} are damaged")
            if not all(isinstance(count, int) and count >= 0 for count in entry["hints"].values()):
                raise ValueError(f"the hints of {name} are damaged")
        return data

    def _set_aside(self, path: Path) -> Path:
        """Rename a damaged file to a name nobody uses yet."""
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        for attempt in range(1000):
            aside = path.with_name(f"{path.stem}.damaged-{stamp}{f'-{attempt}' if attempt else ''}.json")
            if not aside.exists():
                os.rename(path, aside)
                return aside
        raise OSError(f"no free name to set {path} aside")

    def _write(self, data: dict[str, Any]) -> None:
        text = json.dumps(data, indent=1) + "\n"
        if self.path.exists():
            write_whole(self.previous, self.path.read_bytes(), sync=True)
        write_whole(self.path, text.encode(), sync=True)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Exclusive among processes that use this module; where the system has no such locks, no lock at all."""
        try:
            import fcntl
        except ImportError:
            yield
            return
        with open(self.path.with_suffix(".lock"), "a") as lock:
            deadline = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"{self.path} is locked by another process") from None
                    time.sleep(0.02)
            try:
                yield
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)
