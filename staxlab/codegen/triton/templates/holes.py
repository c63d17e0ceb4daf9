"""Templates as text with holes: a line ``<<hole>>`` stands for lines that are written later, ``{word}`` for a word."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from ....provenance import CodeWriter, Origins

_HOLE = re.compile(r"^( *)<<(\w+)>>$")


def fill(
    body: CodeWriter,
    template: str,
    holes: Mapping[str, CodeWriter],
    words: Mapping[str, object],
    origins_of: Callable[[str], Origins],
) -> None:
    """Append a template's lines: a hole's own, indented as the hole is, and every other line with its words put in and
    the origins that ``origins_of`` gives for it. KeyError for a hole or a word that nothing fills."""
    for line in template.splitlines():
        hole = _HOLE.match(line)
        if hole is None:
            body.emit(line.format(**words), origins_of(line))
            continue
        with ExitStack() as depth:
            for _ in range(len(hole[1]) // 4):
                depth.enter_context(body.indent())
            body.extend(holes[hole[2]].lines())
