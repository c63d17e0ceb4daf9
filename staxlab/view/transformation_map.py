"""The order of the transformations (Figure 4.1), drawn, above the table of what each of them does (Table 4.3)."""

from __future__ import annotations

from typing import Any

from .diagram import Box, diagram
from .document import Pane
from .markup import element, join
from .measures import table_markup

_KINDS = {"A": "call", "B": "constant", "C": "output"}


def panes(record: Any) -> list[Pane]:
    """One pane: the stages from top to bottom, what comes out of each named between them."""
    from ..measure.transformations import STAGES

    boxes, edges = [Box(("captured graph",), "input", "the captured graph", frozenset())], []

    def add(rows: tuple[str, ...], kind: str, spoken: str, *sources: int) -> int:
        boxes.append(Box(rows, kind, spoken, frozenset()))
        edges.extend((source, len(boxes) - 1) for source in sources)
        return len(boxes) - 1

    last, stage = 0, "A"
    again = f"again until a round changes nothing (at most {record.max_rounds})"
    for entry in record.entries:
        if entry.stage != stage:
            if stage == "A":
                last = add(("unchanged?", f"no: {again}", "yes: go on"), "input", f"if anything changed, {again}", last)
            stage = entry.stage
        rows = tuple(row for row in (entry.name, f"{stage}: {STAGES[stage][0]}", entry.done) if row)
        last = add(rows, _KINDS[stage], f"{entry.name}, stage {stage}: {entry.what}", last)
    add(("code generation",), "input", "on to code generation", last)
    picture = diagram(boxes, edges, "The order of the transformations (Figure 4.1)")
    content = record.table()
    summary = f"{len(record.entries)} transformations in {len(STAGES)} stages"
    body = join([picture, element("div", table_markup(content))])
    return [Pane("transformations", content.caption, body, summary, str(record))]
