"""Where things come from: source locations, origins, and lines of text that remember both.

The whole compiler shares one id space. A captured node has an integer ``id``; whatever is derived from it later (an
operator node, a buffer, a schedule node, a kernel, each *line* of generated code) carries ``origins``, the frozen set
of ids it stems from: united when things merge, kept when they split. A view links stages by intersecting these sets;
nothing is ever matched by name or by text afterwards.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import types
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

Origins = frozenset[int]
NO_ORIGINS: Origins = frozenset()


def unite(parts: Iterable[Origins]) -> Origins:
    """The union of several origin sets."""
    return frozenset().union(*parts)


@dataclass(frozen=True)
class SourceLocation:
    """A line of the user's program: file, 1-based line number, stripped text, and the enclosing function's name."""

    file: str
    line: int
    text: str = ""
    function: str = ""

    def __str__(self) -> str:
        text = f": {self.text}" if self.text else ""
        return f"{self.file}:{self.line}{text}"


def file_text(file: str) -> str:
    """A file's name as a reader knows it: without its folders, and a notebook's cell as just that."""
    if "ipykernel" in file or file.startswith("<ipython-input"):
        return "a notebook cell"
    return os.path.basename(file) or file


_LIBRARY = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
_INSTALLED = tuple(os.path.join(_LIBRARY[0], name) + os.sep for name in ("site-packages", "dist-packages"))


def _user_frame(skip: tuple[str, ...] = (), *, library: bool = True) -> types.FrameType | None:
    """The innermost frame on the stack that belongs to neither this package nor torch (nor a ``skip`` prefix), nor,
    with ``library=False``, to Python's standard library: a cached property or an executor of ours may stand between."""
    own = os.path.dirname(os.path.abspath(__file__)) + os.sep
    torch_module = sys.modules.get("torch")
    hidden = (own, *skip) + ((os.path.dirname(torch_module.__file__) + os.sep,) if torch_module else ())
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        own_or_library = file.startswith(hidden) or (
            not library and file.startswith(_LIBRARY) and not file.startswith(_INSTALLED)
        )
        if not own_or_library:
            return frame
        frame = frame.f_back
    return None


def user_location(skip: tuple[str, ...] = ()) -> SourceLocation | None:
    """The user's line that is being executed: the innermost outside this package, torch, and any ``skip`` prefix."""
    frame = _user_frame(skip)
    if frame is None:
        return None
    file, line = frame.f_code.co_filename, frame.f_lineno
    return SourceLocation(file, line, linecache.getline(file, line).strip(), frame.f_code.co_name)


def warn_user(message: str, category: type[Warning], seen: dict | None = None) -> None:
    """A warning at the user's line, however deep in this package it is noticed.

    Frames are told apart by their file. Counting them (``stacklevel``) goes wrong with every function put in between,
    and a call that enters through C has no frame at all.

    Python shows a warning once for each text and line number of a module, and so keeps silent about a second function
    of the same name, or another cell of a notebook. Here ``seen`` decides instead: the same text at the same line is
    shown once for each ``seen``, which the caller keeps as long as repetition would be tiresome. Without it, always.
    """
    frame = _user_frame(library=False)
    file, line, module = ("<unknown>", 0, "staxlab")
    if frame is not None:
        file, line = frame.f_code.co_filename, frame.f_lineno
        module = frame.f_globals.get("__name__") or "<unknown>"
    warnings.warn_explicit(message, category, file, line, module=module, registry={} if seen is None else seen)


@dataclass(frozen=True)
class Line:
    """One line of generated text and the captured nodes it stems from."""

    text: str
    origins: Origins = NO_ORIGINS


class CodeWriter:
    """Collects lines with origins. The only way generated text comes into being.

    >>> writer = CodeWriter()
    >>> writer.emit("for (;;) {")
    >>> with writer.indent():
    ...     writer.emit("x += 1;", origins=frozenset({3}))
    >>> writer.emit("}")
    >>> print(writer.source())
    for (;;) {
        x += 1;
    }
    <BLANKLINE>
    """

    def __init__(self, indent_text: str = "    "):
        self._lines: list[Line] = []
        self._depth = 0
        self._indent_text = indent_text

    def emit(self, text: str = "", origins: Iterable[int] = NO_ORIGINS) -> None:
        """Append one line (or several, split at newlines, all with the same origins) at the current depth."""
        frozen = frozenset(origins)
        for part in text.split("\n"):
            self._lines.append(Line(self._indent_text * self._depth + part if part else "", frozen))

    def extend(self, lines: Iterable[Line]) -> None:
        """Append lines that already carry origins, indented to the current depth."""
        for line in lines:
            self.emit(line.text, line.origins)

    def credit(self, position: int, origins: Iterable[int]) -> None:
        """A line that serves more than was known when it was written: it stems from these nodes, too."""
        line = self._lines[position]
        self._lines[position] = Line(line.text, line.origins | frozenset(origins))

    @contextlib.contextmanager
    def indent(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def lines(self) -> tuple[Line, ...]:
        return tuple(self._lines)

    def source(self) -> str:
        return "\n".join(line.text for line in self._lines) + "\n"


def source_of(lines: Iterable[Line]) -> str:
    """The plain text of a sequence of lines."""
    return "\n".join(line.text for line in lines) + "\n"
