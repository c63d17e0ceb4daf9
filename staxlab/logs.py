"""What the compiler says while it works, topic by topic: ``STAXLAB_LOGS=recompiles,cache python program.py``.

A compiler that falls back, rebuilds and reuses on its own (Section 11) must be able to say so. Every remark belongs to
one of :data:`TOPICS` and goes to the standard library's logger ``staxlab.<topic>`` at level DEBUG, so an application
can treat it as any other: give the logger a handler, raise its level, send it to a file. ``STAXLAB_LOGS`` is the short
way for a terminal: the topics it names (several with commas; ``all`` for every one) are printed on standard error,
each remark after its topic in brackets. The variable is read anew each time, so that it can be set in a notebook.

Warnings of these loggers (a damaged cache entry) appear whether or not anybody asked, as Python prints warnings that
nobody handles. A topic that does not exist costs one warning, with the nearest that does.

The text of a remark may take longer to write than the stage it is about, so it is given as a function, which is called
only where somebody listens.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from .options import nearest
from .provenance import warn_user

VARIABLE = "STAXLAB_LOGS"
ALL = "all"

#: Topic -> what is said under it. ``docs/logs.md`` has the same table, with an example of each.
TOPICS: dict[str, str] = {
    "stages": "each stage as it ends: milliseconds, and its record in one line",
    "recompiles": "why a call fits no version compiled so far: the guards that failed, and what they got",
    "guards": "the guards of a new version, one a line",
    "graph": "the captured graph",
    "transforms": "the rewrites of the graph, round by round",
    "joint": "the graph of forward and backward pass, and what is saved between them",
    "operators": "the graph of basic operators",
    "loops": "the loop program",
    "fusion": "the schedule, and for every pair of nodes whether they share a kernel and why",
    "memory": "where every buffer stands, and the planned peak in bytes",
    "kernels": "the source of the generated kernels",
    "wrapper": "the module that calls the kernels",
    "cache": "entries of the cache on disk: found, missing, written, dropped",
    "build": "each kernel that is compiled: seconds, and whether the cache had it",
    "autotune": "the configurations that were measured, and which one stays",
    "fallbacks": "what runs through PyTorch instead of in a generated kernel, and why",
}

Text = str | Callable[[], Any]


def enabled(topic: str) -> bool:
    """Whether anybody listens to a topic: ``STAXLAB_LOGS`` names it, or its logger's level is DEBUG. KeyError for a
    topic that :data:`TOPICS` does not have (a slip in this package, never the user's)."""
    if topic not in TOPICS:
        raise KeyError(f"{topic!r} is no topic of staxlab.logs")
    value = os.environ.get(VARIABLE, "")
    if value != _attached.value:
        _attached.attend_to(value)
    return logging.getLogger(_name(topic)).isEnabledFor(logging.DEBUG)


def say(topic: str, text: Text) -> None:
    """Remark ``text`` under ``topic`` if anybody listens; a function is called only then, and its result printed.

    A remark whose text cannot be written says that much: nothing that is only said may stop a compilation.
    """
    if not enabled(topic):
        return
    try:
        said = str(text() if callable(text) else text)
    except Exception as error:
        said = f"(what stands here cannot be printed: {type(error).__name__}: {error})"
    logging.getLogger(_name(topic)).debug("%s", said)


def requested(value: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """The topics that a value of ``STAXLAB_LOGS`` names, and the names in it that are none."""
    names = [name for name in (part.strip().lower() for part in value.split(",")) if name]
    unknown = tuple(name for name in names if name not in TOPICS and name != ALL)
    return frozenset(TOPICS if ALL in names else set(names) & set(TOPICS)), unknown


def _name(topic: str) -> str:
    return f"staxlab.{topic}"


class _Printer(logging.Handler):
    """Prints remarks on standard error as it is now (a notebook and a test put another in its place)."""

    def emit(self, record: logging.LogRecord) -> None:
        topic = record.name.partition(".")[2]
        try:
            print(f"[{topic}] {record.getMessage()}", file=sys.stderr, flush=True)
        except (OSError, ValueError):  # closed, or nobody reads it any longer
            pass


class _Attached:
    """Which loggers print at present, and the level each had before."""

    def __init__(self) -> None:
        self.value = ""
        self.printer = _Printer()
        self.before: dict[str, int] = {}
        self.lock = threading.Lock()  # kernels are built by several threads, and each may be the first to notice

    def attend_to(self, value: str) -> None:
        """Print the topics in ``value`` and no others; one warning names those that do not exist."""
        topics, unknown = requested(value)
        with self.lock:
            if value == self.value:
                return
            for topic in [*self.before]:
                if topic not in topics:
                    logger = logging.getLogger(_name(topic))
                    logger.removeHandler(self.printer)
                    logger.setLevel(self.before.pop(topic))
            for topic in topics - self.before.keys():
                logger = logging.getLogger(_name(topic))
                self.before[topic] = logger.level
                logger.addHandler(self.printer)
                logger.setLevel(logging.DEBUG)
            self.value = value
        for name in unknown:
            warn_user(f"{VARIABLE} names no topic {name!r}{nearest(name, (*TOPICS, ALL))}", UserWarning)


_attached = _Attached()


if os.environ.get(VARIABLE):  # from the start, so that a logger's own warnings are printed like its remarks
    _attached.attend_to(os.environ[VARIABLE])


def clear() -> None:
    """Forget what the variable said: every logger gets its level back and prints no longer, until the next remark."""
    _attached.attend_to("")
