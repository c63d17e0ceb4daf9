"""Machine code (Section 11), drawn: the listing a compiler made of a kernel, linked back through its line table.

A line of assembly has the origins of the source line it was compiled from. What the compiler moved, merged or made up
(loop counters, prologues) has none and links to nothing, which is the honest answer.
"""

from __future__ import annotations

from typing import Any

from .document import Pane
from .listing import listing
from .markup import Html, element

KINDS = {
    "asm": "assembly", "ttir": "TTIR", "ttgir": "TTGIR", "llir": "LLVM IR", "ptx": "PTX", "sass": "SASS",
}  # fmt: skip
LONGEST = 4000  # lines drawn in a notebook output


def assembly_markup(record: Any, limit: int | None = LONGEST) -> Html:
    """The listing of one kernel."""
    kind = KINDS.get(record.kind, record.kind)
    caption = [element("strong", record.kernel), " ", element("span", kind, class_="sx-muted")]
    name = f"{record.kernel} {kind}"
    return listing(record.lines, record.kind, name=name, caption=caption, noun=f"{kind} line", limit=limit)


def panes(record: Any) -> list[Pane]:
    linked = sum(bool(line.origins) for line in record.lines)
    summary = f"{len(record.lines)} lines of {KINDS.get(record.kind, record.kind)}, {linked} with a known origin"
    return [Pane("assembly", "Assembly", assembly_markup(record), summary, record.text)]
