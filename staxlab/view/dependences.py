"""The dependence graph of a schedule (Section 7.1), with its kernels drawn round their nodes.

A kernel is a frame with its own small graph inside; kernels stand in the order in which they need each other, which
exists because the quotient graph is acyclic (Proposition 7.1). An arrow between kernels is memory traffic: its label
says how many bytes are written there and read back. A dashed arrow stays inside a kernel. Hover says which buffers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ..measure.tables import bytes_text
from ..specialize.report import counted
from .charts import CHARACTER, FONT, MUTED, RULE, TEXT, text_at
from .diagram import MOST_NODES, Box, _arrow, _node, _xy, shortened
from .document import note
from .layout import Placement, Point, place
from .markup import Html, element
from .provenance import TabStop

PADDING, HEADING = 12, 20
Edge = tuple[str, str, str, int]  # producer, consumer, buffer, bytes


def dependence_diagram(
    nodes: Sequence[Any], groups: Iterable[Iterable[str]], edges: Sequence[Edge], title: str,
    *, program: str | None = "dot",
) -> Html:  # fmt: skip
    """Nodes (with ``name``, ``origins`` and ``describe()``) in their groups, or a sentence where there are too many.

    ``groups`` name the nodes of each kernel; ``edges`` are (producer, consumer, buffer, bytes).
    """
    if len(nodes) > MOST_NODES:
        return note(f"A drawing of {len(nodes)} nodes would explain nothing; the table has them all.")
    return _Drawing(nodes, [list(group) for group in groups], edges, title, program).picture()


def schedule_edges(schedule: Any) -> tuple[list[Any], list[list[str]], list[Edge]]:
    """The nodes of a schedule, members of fused ones in their place, their groups, and the edges between them."""
    nodes, groups = [], []
    for node in schedule.nodes:
        inside = list(node.members) or [node]
        nodes += inside
        groups.append([member.name for member in inside])
    writer = {buffer: node.name for node in nodes for buffer in node.buffers}
    found: dict[Edge, None] = {}
    for node in nodes:
        for access in node.reads:
            if access.buffer in writer:
                layout = schedule.layouts[access.buffer]
                size = layout.storage_elements * layout.dtype.itemsize
                found[writer[access.buffer], node.name, access.buffer, size] = None
    return nodes, groups, list(found)


def _box(node: Any) -> Box:
    said = node.describe()
    rows = tuple(shortened(row) for row in (node.name, *said.partition(": ")[2:]) if row)
    return Box(rows, "call", f"{said} -> {', '.join(node.buffers)}", node.origins, node.name)


class _Drawing:
    def __init__(self, nodes: Sequence[Any], groups: list[list[str]], edges: Sequence[Edge], title: str, program: Any):
        self.title, self.edges, self.program = title, edges, program
        self.boxes = {node.name: _box(node) for node in nodes}
        order = {node.name: k for k, node in enumerate(nodes)}
        groups = [sorted(group, key=order.__getitem__) for group in groups]
        self.groups = _in_order(sorted(groups, key=lambda group: order[group[0]]), edges)
        self.home = {name: k for k, group in enumerate(self.groups) for name in group}
        self.inner = [self._inside(group) for group in self.groups]
        self.sizes = [self._size(k) for k in range(len(self.groups))]

    def _inside(self, group: list[str]) -> Placement:
        number = {name: k for k, name in enumerate(group)}
        pairs = [(number[a], number[b]) for a, b, _, _ in self.edges if a in number and b in number]
        self_pairs = list(dict.fromkeys(pair for pair in pairs if pair[0] != pair[1]))
        return place([self.boxes[name].size for name in group], self_pairs, program=self.program)

    def _size(self, k: int) -> tuple[float, float]:
        if len(self.groups[k]) == 1:
            return self.boxes[self.groups[k][0]].size
        inner = self.inner[k]
        heading = len(self._heading(k)) * CHARACTER + 2 * PADDING
        return max(inner.width + 2 * PADDING, heading), inner.height + 2 * PADDING + HEADING

    def _heading(self, k: int) -> str:
        return f"one kernel, {len(self.groups[k])} nodes"

    def picture(self) -> Html:
        crossing: dict[tuple[int, int], dict[str, int]] = {}
        for producer, consumer, buffer, size in self.edges:
            pair = self.home[producer], self.home[consumer]
            if pair[0] != pair[1]:
                crossing.setdefault(pair, {})[buffer] = size
        placement = place(self.sizes, list(crossing), program=self.program)
        stop = TabStop()
        lines = [
            self._line(curve, f"{self._named(pair[0])} to {self._named(pair[1])}", buffers, inside=False)
            for (pair, buffers), curve in zip(crossing.items(), placement.curves, strict=True)
        ]
        drawn = [self._group(k, placement.centres[k], stop) for k in range(len(self.groups))]
        moved = sum({buffer: size for found in crossing.values() for buffer, size in found.items()}.values())
        count = f"{counted(len(self.boxes), 'node')}, {counted(len(self.groups), 'kernel')}"
        said = f"{self.title}: {count}, {bytes_text(moved)} between them"
        width = math.ceil(max(placement.width + 90, 7.3 * len(said) + 20))
        height = math.ceil(placement.height) + 30
        picture = element(
            "svg", element("title", said), text_at(said, 8, 14, "sx-count", TEXT, font_weight="600"),
            element("g", drawn, lines, transform="translate(0 24)"), class_="sx-diagram sx-dependences", width=width,
            height=height, viewBox=f"0 0 {width} {height}", role="group", aria_label=said, data_group=True, **FONT,
        )  # fmt: skip
        caption = (
            "Frames: kernels. Solid arrows: through memory, with the bytes of the buffers. Dashed: within a kernel."
        )
        parts = [
            element("div", picture, class_="sx-scroll sx-drawing"),
            element("figcaption", caption, class_="sx-note"),
        ]
        return element("figure", parts, class_="sx-listing")

    def _named(self, k: int) -> str:
        return " + ".join(self.groups[k])

    def _group(self, k: int, centre: Point, stop: TabStop) -> Html:
        group, (wide, high) = self.groups[k], self.sizes[k]
        if len(group) == 1:
            return _node(self.boxes[group[0]], centre, stop)
        left, top = centre[0] - wide / 2, centre[1] - high / 2
        dx, dy = left + (wide - self.inner[k].width) / 2, top + PADDING + HEADING
        said = f"one kernel: {self._named(k)}"
        number = {name: place for place, name in enumerate(group)}
        within: dict[tuple[int, int], dict[str, int]] = {}
        for producer, consumer, buffer, size in self.edges:
            if producer in number and consumer in number and producer != consumer:
                within.setdefault((number[producer], number[consumer]), {})[buffer] = size
        parts = [
            element("title", said),
            element("rect", x=f"{left:g}", y=f"{top:g}", width=f"{wide:g}", height=f"{high:g}", rx="10",
                    class_="sx-hull", fill="#f6f7f9", stroke=RULE, stroke_width="1.6"),
            text_at(self._heading(k), left + PADDING, top + 17, "sx-count", TEXT, font_weight="600"),
        ]  # fmt: skip
        inner = [
            self._line(curve, f"{group[pair[0]]} to {group[pair[1]]}", buffers, inside=True)
            for (pair, buffers), curve in zip(within.items(), self.inner[k].curves, strict=True)
        ]
        inner += [_node(self.boxes[name], self.inner[k].centres[place], stop) for name, place in number.items()]
        parts.append(element("g", inner, transform=f"translate({dx:g} {dy:g})"))
        return element("g", parts, class_="sx-kernel", role="group", aria_label=said)

    def _line(self, curve: tuple[Point, ...], ends: str, buffers: dict[str, int], inside: bool) -> Html:
        start, *rest = curve
        path = f"M{_xy(start)}" + "".join(
            f"C{_xy(a)} {_xy(b)} {_xy(c)}" for a, b, c in zip(rest[0::3], rest[1::3], rest[2::3], strict=True)
        )
        listed = ", ".join(f"{buffer} ({bytes_text(size)})" for buffer, size in buffers.items())
        said = f"{ends}: {listed}" + (", within the kernel" if inside else ", through memory")
        dashes = "5 3" if inside else None
        parts = [
            element("title", said),
            element("path", d=path, class_="sx-edge", fill="none", stroke=RULE, stroke_dasharray=dashes),
            element("path", d=_arrow(curve), class_="sx-arrow", fill=RULE),
        ]
        if not inside:
            x, y = curve[-1]
            parts.append(text_at(bytes_text(sum(buffers.values())), x + 6, y - 10, "sx-label sx-flow-label", MUTED))
        return element("g", parts, class_="sx-flow-edge", role="img", aria_label=said)


def _in_order(groups: list[list[str]], edges: Sequence[Edge]) -> list[list[str]]:
    """Groups in an order in which they can run; what is part of a cycle keeps its place."""
    home = {name: k for k, group in enumerate(groups) for name in group}
    needs: list[set[int]] = [set() for _ in groups]
    for producer, consumer, _, _ in edges:
        if home[producer] != home[consumer]:
            needs[home[consumer]].add(home[producer])
    left, order = list(range(len(groups))), []
    while left:
        ready = next((k for k in left if not needs[k] & set(left)), left[0])
        left.remove(ready)
        order.append(groups[ready])
    return order
