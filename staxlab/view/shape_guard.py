"""A shape guard (Definition 10.2), drawn: what must hold of the sizes of a call, who asked, and the check.

The conditions are given twice: over the inputs, as a reader asks them (``x.shape[0] > 4``), and over the size symbols,
as the checking function does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..shapes.environment import ShapeDecision, ShapeGuard
from .document import Pane, note
from .listing import listing, plain_lines
from .markup import Html, element, join, table
from .source import location_text


def panes(record: ShapeGuard) -> list[Pane]:
    """One pane: the decisions, what the ranges settled already, and the Python text."""
    parts: list[Html] = []
    if record.sources:
        rows = [[symbol.name, element("code", str(place))] for symbol, place in record.sources]
        parts.append(table("Size symbols, read at every call", ["symbol", "is"], rows))
    if record.decisions:
        parts.append(decisions_table(record, record.decisions, "All of this must hold at a call"))
    else:
        parts.append(note("Nothing is asked at a call: the ranges settle every decision."))
    if record.implied:
        folded = decisions_table(record, record.implied, "Settled by the ranges")
        words = f"{len(record.implied)} settled by the ranges alone, and not asked"
        parts.append(element("details", element("summary", words), folded, class_="sx-more"))
    parts.append(listing(plain_lines(record.source), "python", name="the check", caption="the check, as Python"))
    summary = " and ".join(record.condition(decision) for decision in record.decisions) or "nothing is asked"
    return [Pane("shape-guard", "Shape guard", join(parts), summary, str(record))]


def decisions_table(record: ShapeGuard, decisions: Iterable[ShapeDecision], caption: str) -> Html:
    """A row for each decision, in the order they were made."""
    rows: list[list[Any]] = [
        [element("code", record.condition(d)), element("code", str(d.relation)), asked_by(d), location_text(d.location)]
        for d in decisions
    ]
    return table(caption, ["condition", "over symbols", "asked by", "at"], rows)


def asked_by(decision: ShapeDecision) -> str:
    """Who made the decision, in words."""
    return decision.text or ("an operation" if decision.assumed else "the program compares sizes")
