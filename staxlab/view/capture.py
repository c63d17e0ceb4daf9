"""The captured graph (Section 3), drawn with the function it was recorded from and what it was specialized on.

The user's source comes first: every link begins there. Then the graph, and what the recording depended on (data gates,
shapes that were read, free variables), because that is what the specialization key must contain (Proposition 2.1).
"""

from __future__ import annotations

from typing import Any

from .document import Pane, View
from .graph import graph_markup, summary_of
from .markup import Html, element, join, table
from .provenance import TabStop, node_names
from .registry import plain_text
from .source import location_text, source_markup


def view(record: Any, full: bool = False) -> View:
    """One pane."""
    graph = record.graph
    source = source_markup(
        graph, source=record.source, file=record.source_file, first=record.source_line, title=record.name
    )
    body = join([source, graph_markup(graph, "captured graph", full=full), *_depends_on(record)])
    pane = Pane("capture", "Captured graph", body, summary_of(graph), plain_text(record))
    return View(f"capture of {record.name}", (pane,), names=node_names(graph))


def _depends_on(record: Any) -> list[Html]:
    parts = []
    if record.inputs:
        rows = [
            [
                i.name,
                element("code", i.path),
                str(i.meta),
                str(tuple(i.meta.stride)),
                "free variable" if i.is_free else "argument",
            ]
            for i in record.inputs
        ]
        parts.append(table("Inputs", ["placeholder", "read from", "value", "strides", "kind"], rows))
    if record.gates:
        rows = [[gate.condition, repr(gate.value), location_text(gate.location)] for gate in record.gates]
        title = "Data gates: answers the recording depended on"
        parts.append(_linked_table(title, ["question", "answer", "asked at"], rows, record.gates))
    if record.shape_reads:
        rows = [[f"%{r.node.name}.{r.attribute}", repr(r.value), location_text(r.location)] for r in record.shape_reads]
        title = "Shapes that Python code read"
        parts.append(_linked_table(title, ["question", "answer", "asked at"], rows, record.shape_reads))
    if record.python_effects:
        rows = [[effect.what, location_text(effect.location)] for effect in record.python_effects]
        parts.append(table("Side effects that happened once, while tracing", ["effect", "at"], rows))
    parts += [element("p", text, class_="sx-note") for text in record.notes]
    return parts


def _linked_table(caption: str, head: list[str], rows: list[list[Any]], entries: Any) -> Html:
    """A table whose rows are linked to the ``node`` of the entry they show."""
    stop = TabStop()
    linked = [stop.attributes(entry.node.origins, row[0]) for entry, row in zip(entries, rows, strict=True)]
    return table(caption, head, rows, row_attributes=linked, data_group=True)
