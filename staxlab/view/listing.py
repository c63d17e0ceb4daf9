"""Listings: numbered lines of text, each of which knows the captured nodes it stems from.

A listing is a ``<pre>`` with one element per line. The numbers are text (they survive a stripped stylesheet, and a
style keeps them out of what is copied); the gutter between number and code is where a linked line gets its mark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..provenance import Line
from .colour import coloured
from .markup import Html, element, escape
from .provenance import TabStop, origins_text


def listing(
    lines: Iterable[Line],
    language: str,
    *,
    name: str,
    caption: Any = None,
    noun: str = "line",
    numbers: Sequence[int] | None = None,
    label_of: Callable[[int], str | None] | None = None,
    after: Callable[[int], Html | None] | None = None,
    limit: int | None = None,
) -> Html:
    """A listing called ``name`` (the status line says "NAME line 12").

    ``numbers`` are the line numbers to show (default 1, 2, ...); ``label_of(position)`` names a line that has a better
    name than its number; ``after(position)`` is markup at its end; only ``limit`` lines are drawn if it is given, and
    the rest is counted.
    """
    lines = list(lines)
    while lines and not lines[-1].text.strip():
        lines.pop()
    hidden = 0
    if limit is not None and len(lines) > limit:
        hidden, lines = len(lines) - limit, lines[:limit]
    numbers = list(numbers) if numbers is not None else list(range(1, len(lines) + 1))
    width = len(str(max(numbers, default=1)))
    stop = TabStop()
    drawn = []
    for position, (line, markup) in enumerate(
        zip(lines, coloured([line.text for line in lines], language), strict=True)
    ):
        number = element("span", f"{numbers[position]:>{width}} ", class_="sx-n")
        label = label_of(position) if label_of else None
        linked = stop.attributes(line.origins, label) if line.origins else {}
        tail = after(position) if after else None
        drawn.append(element("span", number, markup, tail, class_="sx-line", data_line=numbers[position], **linked))
    code = element("pre", Html("\n".join(drawn)), class_="sx-code", data_group=True, aria_label=name)
    rest = element("p", f"… {hidden:,} more lines", class_="sx-note") if hidden else None
    heading = element("figcaption", caption) if caption is not None else None
    return element("figure", heading, code, rest, class_="sx-listing", data_name=name, data_noun=noun)


def plain_lines(text: str) -> list[Line]:
    """Text as lines without origins."""
    return [Line(part) for part in text.rstrip("\n").split("\n")]


def linked_span(text: Any, origins: Iterable[int], label: str | None = None) -> Html:
    """A few words inside a sentence or a cell that take part in the links."""
    return element("span", escape(text), data_origins=origins_text(origins), data_label=label, class_="sx-inline")
