"""The loop IR (Section 6.3), drawn: every buffer with its compute function written as statements.

The listing is the one the terminal prints (``loops.formatting``); each of its lines carries the origins of the
statement it shows, which is how a pointwise operator without a buffer of its own can still be found here.
"""

from __future__ import annotations

from typing import Any

from ..loops.body import LoopBody
from ..loops.formatting import body_lines, program_lines
from ..provenance import source_of
from .decisions import decisions_table
from .document import Pane
from .listing import listing
from .markup import join


def panes(record: Any) -> list[Pane]:
    """A loop program, or the body of one loop nest."""
    if isinstance(record, LoopBody):
        lines = body_lines(record)
        loops = ", ".join(f"{symbol} in {symbol.bounds()}" for symbol in record.symbols)
        drawn = listing(lines, "ir", name="loop body", caption=f"loops: {loops or 'none'}; result tmp{record.result}")
        return [Pane("body", "Loop body", drawn, f"{len(lines)} statements", source_of(lines))]
    lines = program_lines(record)
    extern = sum(type(buffer).__name__ == "ExternBuffer" for buffer in record.buffers)
    summary = f"{_count(len(record.inputs), 'input')}, {_count(len(record.buffers), 'buffer')}"
    if extern:
        summary += f", {extern} of them computed by PyTorch"
    parts = [listing(lines, "ir", name="loop IR")]
    if record.decisions:
        parts.append(
            decisions_table(
                record.decisions,
                "Which values become buffers, which reductions are split, and why (Sections 6.5 and 6.6)",
            )
        )
    return [Pane("loops", "Loop IR", join(parts), summary, source_of(lines))]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
