"""The captured graph (Section 3), drawn with the function it was recorded from and what it was specialized on.

The user's source comes first: every link begins there. Then the graph, and what the recording depended on (data gates,
shapes that were read, free variables), because that is what the specialization key must contain (Proposition 2.1).

Where the program asks about data, the nodes that must run again at every call to answer it (the guard replay subgraph,
Algorithm 3.1) are lit on the graph, with the gates at its ends and the path condition beneath (Proposition 3.1).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .diagram import Box, box_of, shortened
from .document import Pane, View
from .graph import graph_markup, summary_of
from .markup import Html, element, join, table
from .provenance import TabStop, node_names
from .registry import plain_text
from .source import location_text, source_markup


def view(record: Any, full: bool = False) -> View:
    """One pane. A replay subgraph can also be drawn by itself."""
    if hasattr(record, "path_condition"):
        return _replay_view(record, full)
    graph = record.graph
    source = source_markup(
        graph, source=record.source, file=record.source_file, first=record.source_line, title=record.name
    )
    drawn = (
        replayed_graph(graph, record.replay, full)
        if record.replay
        else graph_markup(graph, "captured graph", full=full)
    )
    body = join([source, drawn, *_depends_on(record)])
    pane = Pane("capture", "Captured graph", body, summary_of(graph), plain_text(record))
    return View(f"capture of {record.name}", (pane,), names=node_names(graph))


def replayed_graph(graph: Any, replay: Any, full: bool = False) -> Html:
    """A captured graph with the nodes of its replay subgraph lit, and the path condition.

    Lit nodes have another colour, a thicker frame, and say so: in the box, in the listing, and to a screen reader.
    """
    nodes = [node for node in replay.module.graph if node.op != "output"]
    replayed = frozenset().union(*(node.origins for node in nodes))
    lit = {node.id for node in graph if node.op != "output" and node.origins & replayed}
    gates: dict[int, list[str]] = {}
    for number, gate in enumerate(replay.gates, 1):
        gates.setdefault(gate.node.id, []).append(f"gate {number}: {shortened(repr(gate.value), 20)}")
    inputs = sum(node.op == "placeholder" and node.id in lit for node in graph)
    words = f"{len(lit) - inputs} of {len(graph.calls)} operations and {inputs} of {len(graph.placeholders)} inputs"
    how = [text for text, holds in (("with a forked random generator", replay.draws),
                                    ("on inputs that are put back", replay.writes)) if holds]  # fmt: skip
    said = f"Lit: the guard replay subgraph, {words}, which runs at every call {' and '.join(how)}".rstrip()
    return join(
        [
            graph_markup(graph, "captured graph", full=full, box=_lit_box(lit, gates), remark=_remark(lit, gates)),
            element("p", f"{said} (Algorithm 3.1).", class_="sx-note"),
            element("p", "path condition: ", element("code", replay.path_condition)),
        ]
    )


def _lit_box(lit: set[int], gates: dict[int, list[str]]) -> Callable[[Any], Box]:
    def box(node: Any) -> Box:
        plain = box_of(node)
        if node.op == "output" or node.id not in lit:
            return plain
        asked = gates.get(node.id, [])
        return replace(
            plain,
            rows=(*plain.rows, *(asked or ["replayed"])),
            spoken="; ".join([plain.spoken, "replayed at every call", *asked]),
            emphasis="sx-lit sx-gate" if asked else "sx-lit",
        )

    return box


def _remark(lit: set[int], gates: dict[int, list[str]]) -> Callable[[Any], str]:
    def remark(node: Any) -> str:
        if node.op == "output" or node.id not in lit:
            return ""
        return ", ".join(["replayed", *gates.get(node.id, [])])

    return remark


def _replay_view(replay: Any, full: bool) -> View:
    graph = replay.module.graph
    body = replayed_graph(graph, replay, full)
    summary = f"{summary_of(graph)}, {len(replay.gates)} gate{'' if len(replay.gates) == 1 else 's'}"
    return View("guard replay", (Pane("replay", "Guard replay", body, summary, str(replay)),), names=node_names(graph))


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
