"""Where things come from: source locations, origins, and lines of text that remember both.

The whole compiler shares one id space. A captured node has an integer ``id``; whatever is derived from it later (an
operator node, a buffer, a schedule node, a kernel, each *line* of generated code) carries ``origins``, the frozen set
of ids it stems from: united when things merge, kept when they split. A view links stages by intersecting these sets;
nothing is ever matched by name or by text afterwards.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
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


def user_location(skip: tuple[str, ...] = ()) -> SourceLocation | None:
    """The innermost frame on the stack that belongs to neither this package nor torch (nor a ``skip`` prefix)."""
    import os

    own = os.path.dirname(os.path.abspath(__file__)) + os.sep
    torch_module = sys.modules.get("torch")
    hidden = (own, *skip) + ((os.path.dirname(torch_module.__file__) + os.sep,) if torch_module else ())
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(hidden):
            line = frame.f_lineno
            return SourceLocation(file, line, linecache.getline(file, line).strip(), frame.f_code.co_name)
        frame = frame.f_back
    return None


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
