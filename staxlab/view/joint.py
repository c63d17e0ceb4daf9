"""The joint graph (Section 5.3, Listing 5.2), drawn in two columns: forward downwards, backward upwards beside it.

Gradients run against the computation, so the right column is read from below; what crosses from left to right are the
forward values the backward pass reads. Where a partition is known, this is where the cut runs: saved values have a
thick frame and say so, values computed again a dashed one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ..capture.graph import Node
from .charts import FONT, RULE, TEXT
from .diagram import Box, _arrow, _node, _xy, box_of
from .document import Pane, View
from .graph import graph_lines
from .layout import Point
from .listing import listing
from .markup import Html, element, join, table
from .provenance import TabStop, node_names
from .source import location_text

MOST_NODES = 140  # drawn; the listing has all of any graph
GAP, MIDDLE, SIDE, TOP = 26.0, 110.0, 46.0, 34.0
_KEPT, _AGAIN = "#0f6a2e", "#8a4600"

FateOf = Callable[[Node], str]  # "saved", "recomputed", or nothing


def view(record: Any, full: bool = False) -> View:
    """One pane: the two columns, the listing, and what keeps the graph from being compiled."""
    parts = [joint_markup(record)]
    if record.obstacles:
        rows = [[f"%{o.node}", o.kind, o.reason, location_text(o.location)] for o in record.obstacles]
        parts.append(table("Why this is not compiled", ["node", "kind", "reason", "written at"], rows))
    forward, backward = len(record.forward_nodes), len(record.backward_nodes)
    read = len(record.read_by_backward)
    summary = f"{forward} forward and {backward} backward nodes; {read} forward values are read backwards"
    pane = Pane("joint", "Joint graph", join(parts), summary, record.format())
    return View("joint graph", (pane,), names=node_names(record.graph))


def joint_markup(record: Any, fate_of: FateOf | None = None) -> Html:
    """Drawing and listing of a joint graph. ``fate_of`` says which forward values are saved or computed again."""
    nodes = list(record.graph)
    fate_of = fate_of or (lambda node: "")

    def remark(k: int) -> Html | None:
        side = "" if nodes[k].op == "output" else "BW" if nodes[k] in record.backward else "FW"
        words = ", ".join(word for word in (side, fate_of(nodes[k])) if word)
        return element("span", f"   # {words}", class_="sx-comment") if words else None

    words = listing(
        graph_lines(nodes), "ir", name="joint graph", after=remark,
        label_of=lambda k: None if nodes[k].op == "output" else f"%{nodes[k].name}",
    )  # fmt: skip
    return element("div", joint_diagram(record, fate_of), words, class_="sx-columns")


def joint_diagram(record: Any, fate_of: FateOf | None = None) -> Html:
    """The two columns as SVG, or a sentence where they would be too long to help."""
    fate_of = fate_of or (lambda node: "")
    forward, backward = list(record.forward_nodes), list(record.backward_nodes)
    if len(forward) + len(backward) > MOST_NODES:
        said = f"A drawing of {len(forward) + len(backward)} nodes would explain nothing; the listing has them all."
        return element("p", said, class_="sx-note")
    boxes = {node: _box(node, record, fate_of(node)) for node in (*forward, *backward)}
    left = max((boxes[node].size[0] for node in forward), default=80.0)
    right = max((boxes[node].size[0] for node in backward), default=80.0)
    x_forward = SIDE + left / 2
    x_backward = SIDE + left + MIDDLE + right / 2
    width = SIDE + left + MIDDLE + right + SIDE
    # Both columns begin and end at the same heights: at the bottom the results turn into upstream gradients.
    height = TOP + max(sum(boxes[node].size[1] + GAP for node in side) for side in (forward, backward)) + GAP
    centres: dict[Node, Point] = {}
    for x, order in ((x_forward, list(reversed(forward))), (x_backward, backward)):
        room = height - TOP - 2 * GAP - sum(boxes[node].size[1] for node in order)
        gap = room / max(len(order) - 1, 1)
        y = height - GAP
        for node in order:
            tall = boxes[node].size[1]
            centres[node] = (x, round(y - tall / 2, 1))
            y -= tall + gap
    neighbours = {a: {b} for side in (forward, backward) for a, b in pairwise(side)}
    stop = TabStop()
    edges = [
        _edge(source, node, boxes, centres, neighbours, record, fate_of)
        for node in (*forward, *backward)
        for source in node.inputs
        if source in centres
    ]
    returned = {node: k for k, node in enumerate(record.gradients) if node is not None}
    title = f"joint graph: {len(forward)} forward and {len(backward)} backward nodes"
    marks = [_gradient(node, centres[node], boxes[node], record.primals[k]) for node, k in returned.items()]
    picture = element(
        "svg",
        element("title", title),
        _text("forward (FW), downwards", x_forward, 16),
        _text("backward (BW), upwards", x_backward, 16),
        element("g", edges, aria_hidden="true", class_="sx-edges"),
        [_node(boxes[node], centres[node], stop) for node in (*forward, *backward)],
        [mark for mark in marks if mark],
        class_="sx-diagram sx-joint", width=round(width), height=round(height),
        viewBox=f"0 0 {round(width)} {round(height)}", role="group", aria_label=title, data_group=True,
        **FONT,
    )  # fmt: skip
    legend = element(
        "p",
        "Thick green frame and the word saved: kept for the backward pass. Dashed and the word recomputed: computed "
        "again there. Lines from left to right are what the backward pass reads.",
        class_="sx-note",
    )
    return element("div", picture, legend, class_="sx-scroll sx-drawing")


def _box(node: Node, record: Any, fate: str) -> Box:
    box = box_of(node)
    side = "backward" if node in record.backward else "forward"
    emphasis = f"sx-{fate}" if fate else "sx-backward" if side == "backward" else ""
    rows = (*box.rows, fate) if fate else box.rows
    spoken = f"{box.spoken}; {side}" + (f"; {fate}" if fate else "")
    return replace(box, rows=rows, spoken=spoken, emphasis=emphasis)


def _edge(
    source: Node,
    node: Node,
    boxes: dict[Node, Box],
    centres: dict[Node, Point],
    neighbours: dict[Node, set[Node]],
    record: Any,
    fate_of: FateOf,
) -> Html:
    """Between neighbours straight, past others round the outside, from one side to the other straight across."""
    (x0, y0), (x1, y1) = centres[source], centres[node]
    (w0, h0), (w1, h1) = boxes[source].size, boxes[node].size
    kept = ""
    if (source in record.backward) != (node in record.backward):
        curve = ((x0 + w0 / 2, y0), (x0 + w0 / 2 + 50, y0), (x1 - w1 / 2 - 50, y1), (x1 - w1 / 2, y1))
        kept = {"saved": " sx-kept", "recomputed": " sx-again"}.get(fate_of(source), "")
    else:
        down = 1 if y1 > y0 else -1
        start, end = (x0, y0 + down * h0 / 2), (x1, y1 - down * h1 / 2)
        if node in neighbours.get(source, ()):
            third = (end[1] - start[1]) / 3
            curve = (start, (x0, start[1] + third), (x1, end[1] - third), end)
        else:
            outside = -1 if node not in record.backward else 1
            far = outside * min(14 + abs(y1 - y0) / 14, SIDE - 6)
            start, end = (x0 + outside * w0 / 2, y0), (x1 + outside * w1 / 2, y1)
            reach = max(outside * start[0], outside * end[0]) * outside + far * 1.3
            curve = (start, (reach, y0), (reach, y1), end)
    colour = {" sx-kept": _KEPT, " sx-again": _AGAIN}.get(kept, RULE)
    a, b, c, d = curve
    line = element(
        "path", d=f"M{_xy(_round(a))}C{_xy(_round(b))} {_xy(_round(c))} {_xy(_round(d))}", class_=f"sx-edge{kept}",
        fill="none", stroke=colour, data_edge=f"{source.name} {node.name}",
    )  # fmt: skip
    return join([line, element("path", d=_arrow(curve), class_=f"sx-arrow{kept}", fill=colour)])


def _round(point: Point) -> Point:
    return round(point[0], 1), round(point[1], 1)


def _gradient(node: Node, centre: Point, box: Box, primal: Node) -> Html:
    """The gradient of which input a node is, written above it."""
    y = centre[1] - box.size[1] / 2 - 5
    return _text(f"gradient of %{primal.name}", centre[0], y)


def _text(words: str, x: float, y: float) -> Html:
    return element(
        "text", words, x=f"{x:g}", y=f"{y:g}", class_="sx-count", fill=TEXT, text_anchor="middle", font_weight="600"
    )
