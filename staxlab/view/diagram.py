"""The drawing of a graph as SVG: one box per node, with its name, its operation and the tensor it defines.

``layout`` says where; this module says what. Every box takes part in the links between stages, can be reached from the
keyboard, and says in words what it is, what it reads and where it was written. Kinds are told apart by shape and label
(inputs are round, constants have a cut corner, the result has a double frame) before they are told apart by colour.

Colours are given twice: as attributes, which survive where a host strips styles, and in the stylesheet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..capture.graph import TensorMeta
from .charts import CHARACTER, FONT
from .layout import Placement, Point, place
from .markup import Html, element
from .provenance import TabStop

LINE = 15.0
LONGEST_TEXT = 34
MOST_NODES = 250  # beyond this a drawing in a notebook explains nothing, and the listing does
MOST_NODES_FULL = 1500  # on a page of its own


@dataclass(frozen=True)
class Box:
    """A node as drawn: ``rows`` of text from top to bottom, what kind it is, and what it says when asked. ``emphasis``
    is a class that lights it up (``sx-lit``); whoever gives one also says in words why."""

    rows: tuple[str, ...]
    kind: str
    spoken: str
    origins: frozenset[int]
    label: str | None = None
    emphasis: str = ""

    @property
    def size(self) -> tuple[float, float]:
        longest = max((len(row) for row in self.rows), default=1)
        return round(max(longest * CHARACTER + 26, 64.0), 1), LINE * len(self.rows) + 14


def value_text(value: Any) -> str:
    """The value of a node in short: ``float32[64, 128]``, ``3 × float32[8]``, a tuple, or a Python value."""
    if isinstance(value, TensorMeta):
        return str(value)
    if isinstance(value, (tuple, list)) and any(isinstance(part, TensorMeta) for part in value):
        parts = list(map(value_text, value))
        same = len(parts) > 1 and len(set(parts)) == 1
        return f"{len(parts)} × {parts[0]}" if same else "(" + ", ".join(parts) + ")"
    return repr(value)


def shortened(text: str, longest: int = LONGEST_TEXT) -> str:
    """The text, with an ellipsis in the middle if it is longer than ``longest`` (both ends of a name tell it apart)."""
    if len(text) <= longest:
        return text
    head = (longest - 1) // 2
    return text[:head] + "…" + text[len(text) - (longest - 1 - head) :]


_OPERATION = {"placeholder": "input", "get_attr": "constant", "output": "result"}
_KIND = {"placeholder": "input", "get_attr": "constant", "output": "output"}


def box_of(node: Any) -> Box:
    """A graph node as a box."""
    operation = _OPERATION.get(node.op) or node.target_name()
    value = value_text(node.meta["val"]) if "val" in node.meta else ""
    name = "return" if node.op == "output" else f"%{node.name}"
    rows = tuple(shortened(row) for row in (name, operation, value) if row)
    reads = ", ".join(f"%{source.name}" for source in node.inputs)
    where = f"; line {node.location.line}: {node.location.text}" if node.location else ""
    spoken = f"{name}: {operation} {value}".rstrip() + (f", reads {reads}" if reads else "") + where
    # The result has no id of its own; it is linked to what it returns.
    origins = node.origins or frozenset().union(*(source.origins for source in node.inputs))
    return Box(rows, _KIND.get(node.op, "call"), spoken, origins, None if node.op == "output" else name)


def graph_diagram(
    nodes: Iterable[Any],
    title: str,
    *,
    full: bool = False,
    program: str | None = "dot",
    box: Callable[[Any], Box] = box_of,
) -> Html:
    """The diagram of a graph, or a sentence where it would be too large to help. ``box`` makes a node's box."""
    nodes = list(nodes)
    if len(nodes) > (MOST_NODES_FULL if full else MOST_NODES):
        said = f"A drawing of {len(nodes)} nodes would explain nothing; the listing has them all."
        return element("p", said, class_="sx-note")
    position = {node: k for k, node in enumerate(nodes)}
    edges = [(position[source], position[node]) for node in nodes for source in node.inputs]
    return diagram([box(node) for node in nodes], edges, title, program=program)


def diagram(boxes: Sequence[Box], edges: Sequence[tuple[int, int]], title: str, *, program: str | None = "dot") -> Html:
    """Boxes and edges as an SVG in a scrolling frame."""
    edges = list(dict.fromkeys(edges))
    placement = place([box.size for box in boxes], edges, program=program)
    stop = TabStop()
    lines = [_edge(curve) for curve in placement.curves]
    drawn = [_node(box, centre, stop) for box, centre in zip(boxes, placement.centres, strict=True)]
    width, height = math.ceil(placement.width), math.ceil(placement.height)
    picture = element(
        "svg",
        element("g", lines, aria_hidden="true", class_="sx-edges"),
        drawn,
        class_="sx-diagram",
        width=width,
        height=height,
        viewBox=f"0 0 {width} {height}",
        role="group",
        aria_label=f"{title}: {len(boxes)} nodes, {len(edges)} edges",
        data_group=True,
        **FONT,
    )
    return element("div", picture, class_="sx-scroll sx-drawing")


def _edge(curve: tuple[Point, ...]) -> Html:
    start, *rest = curve
    path = f"M{_xy(start)}" + "".join(
        f"C{_xy(a)} {_xy(b)} {_xy(c)}" for a, b, c in zip(rest[0::3], rest[1::3], rest[2::3], strict=True)
    )
    return Html(
        element("path", d=path, class_="sx-edge", fill="none", stroke="#7b858f")
        + element("path", d=_arrow(curve), class_="sx-arrow", fill="#7b858f")
    )


def _xy(point: Point) -> str:
    return f"{point[0]:g} {point[1]:g}"


def _arrow(curve: tuple[Point, ...]) -> str:
    """A small triangle whose tip is the end of the curve."""
    tip = curve[-1]
    before = next((p for p in reversed(curve[:-1]) if math.dist(p, tip) > 0.5), (tip[0], tip[1] - 1))
    dx, dy = tip[0] - before[0], tip[1] - before[1]
    length = math.hypot(dx, dy)
    dx, dy = dx / length, dy / length
    base = tip[0] - 7 * dx, tip[1] - 7 * dy
    left = base[0] - 3.2 * dy, base[1] + 3.2 * dx
    right = base[0] + 3.2 * dy, base[1] - 3.2 * dx
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in (tip, left, right)) + "z"


def _node(box: Box, centre: Point, stop: TabStop) -> Html:
    width, height = box.size
    parts = [element("title", box.spoken), *_outline(box.kind, width, height)]
    first = -height / 2 + 7 + LINE * 0.74
    for number, row in enumerate(box.rows):
        style = "sx-node-name" if number == 0 else "sx-node-detail"
        weight = "600" if number == 0 else None
        parts.append(
            element(
                "text", row, x=0, y=f"{first + number * LINE:.1f}", text_anchor="middle", class_=style,
                font_weight=weight, fill="#1d2329" if number == 0 else "#59636e",
            )
        )  # fmt: skip
    mark = element(
        "text", "▸", x=f"{-width / 2 + 5:.1f}", y=f"{first:.1f}", class_="sx-mark", opacity=0, aria_hidden="true"
    )
    return element(
        "g",
        parts,
        mark,
        transform=f"translate({_xy(centre)})",
        class_=f"sx-node sx-node-{box.kind} {box.emphasis}".rstrip(),
        role="button",
        aria_label=box.spoken,
        **stop.attributes(box.origins, box.label),
    )


def _outline(kind: str, width: float, height: float) -> list[Html]:
    fill = {"input": "#e4f0fb", "constant": "#efeaf9", "output": "#e6f4e8"}.get(kind, "#ffffff")
    x, y = -width / 2, -height / 2
    shared = {"class_": "sx-frame", "fill": fill, "stroke": "#7b858f"}
    if kind == "constant":
        cut = 10
        path = f"M{x:g} {y:g}H{-x - cut:g}L{-x:g} {y + cut:g}V{-y:g}H{x:g}z"
        return [element("path", d=path, **shared)]
    radius = height / 2 if kind == "input" else 5
    frame = element(
        "rect", x=f"{x:g}", y=f"{y:g}", width=f"{width:g}", height=f"{height:g}", rx=f"{radius:g}", **shared
    )
    if kind != "output":
        return [frame]
    inner = element(
        "rect", x=f"{x + 3:g}", y=f"{y + 3:g}", width=f"{width - 6:g}", height=f"{height - 6:g}", rx=3,
        class_="sx-inner-frame", fill="none", stroke="#7b858f",
    )  # fmt: skip
    return [frame, inner]


def placement_of(nodes: Iterable[Any], program: str | None = "dot") -> Placement:
    """Where :func:`graph_diagram` puts a graph's nodes, for tests and for drawings of other kinds."""
    nodes = list(nodes)
    position = {node: k for k, node in enumerate(nodes)}
    edges = [(position[source], position[node]) for node in nodes for source in node.inputs]
    return place([box_of(node).size for node in nodes], edges, program=program)
