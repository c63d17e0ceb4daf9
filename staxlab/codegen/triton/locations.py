"""Where a line of Triton's intermediate representations comes from: a line of the kernel's text, and so its origins.

Two notations. MLIR (TTIR and TTGIR) ends an operation with ``loc(#loc12)``; a table below the code says what that is:
a place in a file, a place with a name, several places fused into one, or a place inside a function together with the
place that called it. LLVM IR ends an instruction with ``!dbg !16``, and its table has ``DILocation`` entries that name
a scope, which names a file, and the place they were inlined at.

Both are resolved alike: outwards from where an operation is written, to the first line of the kernel that has origins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath

from ...provenance import NO_ORIGINS, Line
from ..kernel import Kernel

Place = tuple[str, int]  # file name without its folders, 1-based line

_FILE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')
_DEFINITION = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_REFERENCE = re.compile(r"#loc\d*")
_DEBUG = re.compile(r",? !dbg !(\d+)")
_METADATA = re.compile(r"^!(\d+) = (?:distinct )?!(DILocation|DIFile|DISubprogram|DILexicalBlock(?:File)?)\((.*)\)$")
_FIELD = re.compile(r'(\w+): (?:!(\d+)|"([^"]*)"|(\d+))')


def without_locations(line: str) -> tuple[str, str]:
    """A line of MLIR without its ``loc(...)``, and the text inside the last of them ("" if there is none)."""
    last, kept, position = "", [], 0
    while (start := line.find("loc(", position)) >= 0:
        if start and (line[start - 1].isalnum() or line[start - 1] in "_#"):
            kept.append(line[position : start + 4])
            position = start + 4
            continue
        end, depth, quoted = start + 4, 1, False
        while end < len(line) and depth:
            quoted ^= line[end] == '"' and line[end - 1] != "\\"
            depth += (not quoted) * ((line[end] == "(") - (line[end] == ")"))
            end += 1
        kept.append(line[position:start].rstrip(" "))
        last, position = line[start + 4 : end - 1], end
    kept.append(line[position:])
    return "".join(kept).rstrip(), last


class MlirLocations:
    """The table of a TTIR or TTGIR text."""

    def __init__(self, text: str):
        self.table = {m[1]: m[2] for m in map(_DEFINITION.match, text.splitlines()) if m}

    def places(self, location: str, depth: int = 0) -> Iterator[Place]:
        """Every place that a location stands for, innermost first."""
        if depth > 40:
            return
        written = _FILE.match(location)
        if written:
            yield PurePath(written[1]).name, int(written[2])
            return
        for part in _parts(location):
            if part in self.table:
                yield from self.places(self.table[part], depth + 1)
            elif part != location:
                yield from self.places(part, depth + 1)


def _parts(location: str) -> list[str]:
    """What a location that is no place consists of: references and places in the order they are written."""
    return [m[0] for m in re.finditer(rf"{_FILE.pattern}|{_REFERENCE.pattern}", location)]


class LlvmLocations:
    """The debug metadata of an LLVM IR text."""

    def __init__(self, text: str):
        self.entries: dict[str, tuple[str, dict[str, str]]] = {}
        for found in map(_METADATA.match, text.splitlines()):
            if found:
                fields = {m[1]: m[2] or m[3] or m[4] or "" for m in _FIELD.finditer(found[3])}
                self.entries[found[1]] = (found[2], fields)

    def places(self, number: str, depth: int = 0) -> Iterator[Place]:
        """The place of a ``DILocation`` and those it was inlined at, innermost first."""
        kind, fields = self.entries.get(number, ("", {}))
        if kind != "DILocation" or depth > 40:
            return
        yield self._file(fields.get("scope", "")), int(fields["line"])
        if "inlinedAt" in fields:
            yield from self.places(fields["inlinedAt"], depth + 1)

    def _file(self, scope: str) -> str:
        for _ in range(40):
            kind, fields = self.entries.get(scope, ("", {}))
            if kind == "DIFile":
                return PurePath(fields.get("filename", "")).name
            scope = fields.get("file") or fields.get("scope", "")
        return ""


def line_of(kernel: Kernel, places: Iterator[Place]) -> int | None:
    """The 1-based line of the kernel's text that an operation belongs to, or None."""
    own = f"{kernel.name}.py"
    for file, line in places:
        if file == own and 0 < line <= len(kernel.lines) and kernel.lines[line - 1].origins:
            return line
    return None


Numbered = list[tuple[str, int | None]]  # texts, each with the kernel's line that it belongs to


def numbered_mlir(kernel: Kernel, text: str) -> Numbered:
    """A TTIR or TTGIR text as a reader wants it, without locations."""
    table = MlirLocations(text)
    found: Numbered = []
    opened: list[int] = []
    for raw in text.splitlines():
        if raw.startswith("#loc"):
            continue
        shown, location = without_locations(raw)
        number = line_of(kernel, table.places(location)) if location else None
        if shown.lstrip().startswith("}") and opened:
            first = opened.pop()  # an operation with a body has its location behind the body
            if re.match(r"module|tt\.func", found[first][0].lstrip()):
                number = None  # the function's own place, which says nothing about a brace
            elif found[first][1] is None:
                found[first] = (found[first][0], number)
        if shown.endswith("{"):
            opened.append(len(found))
        found.append((shown, number))
    return found


def numbered_llvm(kernel: Kernel, text: str) -> Numbered:
    """The functions of an LLVM IR text, without metadata."""
    table = LlvmLocations(text)
    found: Numbered = []
    for raw in text.splitlines():
        if raw.startswith(("!", "source_filename", "target datalayout", "; ", "attributes #")):
            continue
        if not raw.strip() and (not found or not found[-1][0]):
            continue
        debug = _DEBUG.search(raw)
        number = line_of(kernel, table.places(debug[1])) if debug and not raw.startswith("define") else None
        found.append((re.sub(r" #\d+(?= \{$|$)", "", _DEBUG.sub("", raw)).rstrip(), number))
    while found and not found[-1][0]:
        found.pop()
    return found


def with_origins(kernel: Kernel, numbered: Numbered) -> tuple[Line, ...]:
    """The texts as lines that know the captured nodes behind the kernel's lines."""
    return tuple(
        Line(text, kernel.lines[number - 1].origins if number is not None else NO_ORIGINS) for text, number in numbered
    )
