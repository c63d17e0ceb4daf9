"""The loop IR (Section 6.3), drawn: every buffer with its compute function written as statements.

The listing is the one the terminal prints (``loops.formatting``); each of its lines carries the origins of the
statement it shows, which is how a pointwise operator without a buffer of its own can still be found here.
"""

from __future__ import annotations

from typing import Any

from ..loops.body import LoopBody
from ..loops.formatting import annotated_lines, body_lines
from ..provenance import source_of
from .composition import folded
from .decisions import decisions_table
from .document import Pane
from .listing import listing
from .markup import Html, element, join


def panes(record: Any) -> list[Pane]:
    """A loop program, or the body of one loop nest."""
    if isinstance(record, LoopBody):
        lines = body_lines(record)
        loops = ", ".join(f"{symbol} in {symbol.bounds()}" for symbol in record.symbols)
        drawn = listing(lines, "ir", name="loop body", caption=f"loops: {loops or 'none'}; result tmp{record.result}")
        return [Pane("body", "Loop body", drawn, f"{len(lines)} statements", source_of(lines))]
    lines, remarks = annotated_lines(record)
    extern = sum(type(buffer).__name__ == "ExternBuffer" for buffer in record.buffers)
    summary = f"{_count(len(record.inputs), 'input')}, {_count(len(record.buffers), 'buffer')}"
    if extern:
        summary += f", {extern} of them computed by PyTorch"
    parts = [_with_intervals(lines, remarks)]
    composed = folded(record)
    if composed is not None:
        parts.append(composed)
    if record.decisions:
        parts.append(
            decisions_table(
                record.decisions,
                "Which values become buffers, which reductions are split, and why (Sections 6.5 and 6.6)",
            )
        )
    return [Pane("loops", "Loop IR", join(parts), summary, source_of(lines))]


def _with_intervals(lines: Any, remarks: tuple[str, ...]) -> Html:
    """The listing, with what interval analysis says at the end of each line, and a box that shows and hides it. It is
    shown to begin with where a check hangs on it."""
    if not any(remarks):
        return listing(lines, "ir", name="loop IR")

    def after(position: int) -> Html | None:
        words = remarks[position]
        return element("span", f"  # {words}", class_="sx-remark") if words else None

    telling = any("check" in words for words in remarks)
    box = element("input", type="checkbox", checked=telling)
    label = element("label", box, " intervals of subscripts and values (Section 6.8)", class_="sx-remark-box")
    return element("div", label, listing(lines, "ir", name="loop IR", after=after), class_="sx-remarks")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
