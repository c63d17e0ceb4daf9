"""The operator graph (Sections 4.8 and 5.1), drawn: ``aten`` overloads, as the dispatcher met them.

Every node links back to the captured call it was recorded under. Operators that were taken apart, and whatever keeps
the graph from being a pure function of its inputs, are listed below the drawing.
"""

from __future__ import annotations

from typing import Any

from ..operators.depth import expansions
from .document import Pane, View
from .expansions import expansions_markup
from .graph import graph_markup, summary_of
from .markup import element, join, table
from .provenance import TabStop, node_names
from .source import location_text


def view(record: Any, full: bool = False) -> View:
    """One pane."""
    parts = [graph_markup(record.graph, "operator graph", full=full)]
    if record.decomposed:
        stop = TabStop()
        rows = [
            [d.operator, ", ".join(f"%{name}" for name in d.into) or "nothing", location_text(d.location)]
            for d in record.decomposed
        ]
        linked = [stop.attributes(d.origins, str(d.operator)) for d in record.decomposed]
        head = ["operator", "into", "written at"]
        parts.append(table("Taken apart (no lowering of its own)", head, rows, row_attributes=linked, data_group=True))
        trees = element("summary", "the same as trees, with their depth (Proposition 4.3)")
        parts.append(element("details", trees, expansions_markup(expansions(record)), class_="sx-more"))
    if record.obstacles:
        rows = [[f"%{o.node}", o.kind, o.reason, location_text(o.location)] for o in record.obstacles]
        parts.append(
            table("Why this is not a pure function of its inputs", ["node", "kind", "reason", "written at"], rows)
        )
    parts.append(element("p", "Each node stands for one call of PyTorch's dispatcher on the sample.", class_="sx-note"))
    pane = Pane("operators", "Operator graph", join(parts), summary_of(record.graph), record.format())
    return View("operator graph", (pane,), names=node_names(record.graph))
