"""The user's own function, drawn: the listing every link begins with.

Captured nodes remember the line they were recorded on. Here each line of the function carries the nodes recorded on
it, and names them at its end, so that a line with four operations offers four things to point at. Helper functions
that were traced through are shown below the function that called them.
"""

from __future__ import annotations

import ast
import linecache
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..provenance import Line, file_text
from .listing import listing
from .markup import Html, element, join
from .provenance import origins_text


@dataclass(frozen=True)
class Excerpt:
    """Consecutive lines of one file: where they start, their text, and what to call them."""

    file: str
    first: int
    lines: tuple[str, ...]
    title: str


def excerpts(nodes: Iterable[Any], source: str = "", file: str = "", first: int = 1, title: str = "") -> list[Excerpt]:
    """The pieces of source a graph was recorded from, the traced function (``source``) first.

    Lines elsewhere are shown with the whole function that contains them, if its file can still be read.
    """
    found: list[Excerpt] = []
    if source.strip():
        text = textwrap.dedent(source).rstrip("\n").split("\n")
        found.append(Excerpt(file, first, tuple(text), title or "your function"))
    for node in nodes:
        where = node.location
        if where is None or any(e.file == where.file and e.first <= where.line < e.first + len(e.lines) for e in found):
            continue
        found.append(_around(where))
    return found


def _around(where: Any) -> Excerpt:
    text = "".join(linecache.getlines(where.file))
    start, end, name = _enclosing(text, where.line) if text else (where.line, where.line, "")
    lines = text.split("\n")[start - 1 : end] if text else [where.text or "(source not available)"]
    dedented = tuple(textwrap.dedent("\n".join(lines)).split("\n"))
    return Excerpt(where.file, start, dedented, name or where.function or where.file)


@lru_cache(maxsize=256)
def _enclosing(text: str, line: int) -> tuple[int, int, str]:
    """First line, last line and name of the innermost function around a line; the line alone at module level."""
    try:
        tree = ast.parse(text)
    except SyntaxError:  # a notebook cell with magics, or a file that has changed since
        return line, line, ""
    best = (line, line, "")
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            start = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            inside = start <= line <= (node.end_lineno or start)
            if inside and (not best[2] or start > best[0]):
                best = (start, node.end_lineno or start, node.name)
    return best


def location_text(location: Any) -> str:
    """``file:line: text`` with the file's short name; a dash for no location."""
    if location is None:
        return "–"
    text = f": {location.text}" if location.text else ""
    return f"{file_text(location.file)}:{location.line}{text}"


def source_markup(nodes: Iterable[Any], **function: Any) -> Html:
    """Every excerpt as a listing; see :func:`excerpts` for the arguments."""
    nodes = [node for node in nodes if node.op != "output"]
    found = excerpts(nodes, **function)
    placed = set()
    drawn = []
    for position, excerpt in enumerate(found):
        by_line: dict[int, list[Any]] = {}
        for node in nodes:
            line = _line_in(excerpt, node, is_main=position == 0)
            if line is not None and node not in placed:
                placed.add(node)
                by_line.setdefault(line, []).append(node)
        drawn.append(_excerpt_listing(excerpt, by_line))
    return join(drawn) if drawn else element("p", "The function's source is not available.", class_="sx-note")


def _line_in(excerpt: Excerpt, node: Any, *, is_main: bool) -> int | None:
    where = node.location
    if where is None:
        # Inputs are recorded before the function runs: they belong to its signature.
        return _signature_line(excerpt) if is_main and node.op == "placeholder" else None
    return where.line if excerpt.file == where.file and 0 <= where.line - excerpt.first < len(excerpt.lines) else None


def _signature_line(excerpt: Excerpt) -> int:
    for offset, line in enumerate(excerpt.lines):
        if line.lstrip().startswith(("def ", "async def ", "class ")) or "lambda" in line:
            return excerpt.first + offset
    return excerpt.first


def _excerpt_listing(excerpt: Excerpt, by_line: dict[int, list[Any]]) -> Html:
    numbers = range(excerpt.first, excerpt.first + len(excerpt.lines))
    lines = [
        Line(text, frozenset(node.id for node in by_line.get(number, ())))
        for number, text in zip(numbers, excerpt.lines, strict=True)
    ]
    return listing(
        lines,
        "python",
        name=excerpt.title,
        caption=[
            element("strong", excerpt.title),
            " ",
            element("span", file_text(excerpt.file), class_="sx-muted sx-file"),
        ],
        numbers=list(numbers),
        after=lambda position: _chips(by_line.get(excerpt.first + position, ())),
    )


def _chips(nodes: Iterable[Any]) -> Html | None:
    """The nodes recorded on a line, each a thing to point at."""
    chips = [
        element("span", f"%{node.name}", class_="sx-chip", data_origins=origins_text((node.id,)), tabindex=-1)
        for node in nodes
    ]
    return element("span", "   # ", join(chips, " "), class_="sx-chips") if chips else None
