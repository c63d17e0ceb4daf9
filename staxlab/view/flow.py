"""A flow network and its maximum flow (Section 5.4, Theorem 5.2), drawn: one augmenting path after the other.

A slider goes from no flow over every augmenting path to the cut. Beside each edge stands the flow on it and its
capacity; an edge of the present path is thick, and has an arrowhead against its direction where flow is taken back. At
the end the vertices the source still reaches carry an S, the others a T, and the cut edges, all full, are crossed out.
Without scripts this last state is what one sees, and the table below tells the steps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..autodiff.network import INFINITE, Flow, FlowNetwork, capacity_text
from .charts import CHARACTER, FONT, MUTED, RULE, TEXT, Box, free_spot, text_at
from .diagram import _arrow, _xy, shortened
from .document import Pane, View
from .layout import Point, place
from .markup import Html, element, join, table
from .provenance import TabStop

MOST_VERTICES = 160  # drawn; a larger network is reduced to what lies between source and sink, or to its table
MOST_PATHS = 400  # in the table
_CUT = "#a8201a"
_GROUND = {"side_s": "#e4f0fb", "side_t": "#efeaf9"}

OriginsOf = Callable[[int], frozenset[int]]


def view(record: Any, full: bool = False) -> View:
    """A Flow, or a FlowNetwork without one."""
    if isinstance(record, FlowNetwork):
        body = join([network_diagram(record), edges_table(record)])
        plain = record.format()
        return View("flow network", (Pane("network", "Flow network", body, _size(record), plain),))
    summary = f"maximum flow {capacity_text(record.value)}, {_count(len(record.paths), 'augmenting path')}"
    return View("maximum flow", (Pane("flow", "Maximum flow", flow_markup(record), summary, record.format()),))


def _size(network: FlowNetwork) -> str:
    return f"{_count(network.size, 'vertex', 'vertices')}, {_count(len(network.tails), 'edge')}"


def _count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def flow_markup(flow: Flow, origins_of: OriginsOf | None = None) -> Html:
    """The drawing with its slider, then the paths and the cut as tables."""
    return join([network_diagram(flow.network, flow, origins_of), paths_table(flow), _cut_table(flow)])


# -- tables -----------------------------------------------------------------------------------------------------------


def paths_table(flow: Flow) -> Html:
    """A row for each augmenting path."""
    rows = []
    for number, path in enumerate(flow.paths[:MOST_PATHS], 1):
        rows.append([str(number), _way(flow, path), capacity_text(path.bottleneck), capacity_text(path.flow)])
    title = "Augmenting paths, shortest first"
    if len(flow.paths) > MOST_PATHS:
        title += f" (the first {MOST_PATHS} of {len(flow.paths):,})"
    if not rows:
        return element("p", "There is no path from the source to the sink: nothing has to be cut.", class_="sx-note")
    return table(title, ["path", "way", "bottleneck (capacity)", "flow afterwards (capacity)"], rows)


def _way(flow: Flow, path: Any) -> str:
    name = flow.network.name
    words = [name(path.vertices[0])]
    for arc, vertex in zip(path.arcs, path.vertices[1:], strict=True):
        words.append(f"{'→' if arc % 2 == 0 else '← (taken back)'} {name(vertex)}")
    return " ".join(words)


def _cut_table(flow: Flow) -> Html:
    if not flow.is_finite:
        said = "No finite cut: the last path has no edge that may be cut."
        return element("p", said, class_="sx-note sx-warning")
    network = flow.network
    rows = [[_edge_name(network, e), capacity_text(network.capacities[e])] for e in flow.cut]
    total = f"Minimum cut: capacity {capacity_text(flow.cut_capacity)}, the value of the maximum flow (Theorem 5.2)"
    return table(total, ["edge", "capacity"], rows)


def _edge_name(network: FlowNetwork, edge: int) -> str:
    return f"{network.name(network.tails[edge])} → {network.name(network.heads[edge])}"


def edges_table(network: FlowNetwork) -> Html:
    """Every edge with its capacity, folded."""
    rows = [[f"{network.name(u)} → {network.name(v)}", capacity_text(c)] for u, v, c in network.edges]
    folded = table("Edges", ["edge", "capacity"], rows)
    return element("details", element("summary", "the edges as a table"), folded, class_="sx-more")


# -- the drawing ------------------------------------------------------------------------------------------------------


def network_diagram(network: FlowNetwork, flow: Flow | None = None, origins_of: OriginsOf | None = None) -> Html:
    """The network, and the flow on it step by step. ``origins_of`` gives the captured nodes behind a vertex."""
    vertices, note = list(range(network.size)), None
    if len(vertices) > MOST_VERTICES:
        vertices = _between(network)
        left_out = _count(network.size - len(vertices), "vertex", "vertices")
        note = element("p", f"{left_out} on no way from source to sink are left out.", class_="sx-note")
    if len(vertices) > MOST_VERTICES:
        said = f"A drawing of {_size(network)} would explain nothing; the table has the paths."
        return element("p", said, class_="sx-note")
    drawing = _Drawing(network, flow, vertices, origins_of or (lambda _: frozenset()))
    return join(part for part in (drawing.figure(), note) if part)


def _between(network: FlowNetwork) -> list[int]:
    """The vertices on a way from source to sink."""

    def reach(start: int, tails: tuple[int, ...], heads: tuple[int, ...]) -> set[int]:
        following: dict[int, list[int]] = {}
        for tail, head, capacity in zip(tails, heads, network.capacities, strict=True):
            if capacity > 0:
                following.setdefault(tail, []).append(head)
        seen, waiting = {start}, [start]
        while waiting:
            for vertex in following.get(waiting.pop(), ()):
                if vertex not in seen:
                    seen.add(vertex)
                    waiting.append(vertex)
        return seen

    forth = reach(network.source, network.tails, network.heads)
    back = reach(network.sink, network.heads, network.tails)
    return sorted((forth & back) | {network.source, network.sink})


class _Drawing:
    def __init__(self, network: FlowNetwork, flow: Flow | None, vertices: list[int], origins_of: OriginsOf):
        self.network, self.flow, self.origins_of = network, flow, origins_of
        self.vertices = _topological(network, vertices)
        self.place = {vertex: k for k, vertex in enumerate(self.vertices)}
        self.edges = [e for e, (u, v, _) in enumerate(network.edges) if u in self.place and v in self.place and u != v]
        self.last = len(flow.paths) + 1 if flow is not None else 0
        self.taken: list[Box] = []  # where no label may stand

    def figure(self) -> Html:
        network, flow = self.network, self.flow
        names = [shortened(network.name(vertex), 28) for vertex in self.vertices]
        sizes = [(max(len(name) * CHARACTER + 24, 40.0), 26.0) for name in names]
        # A layered drawing wants every edge to lead down; one that leads up is turned round and drawn backwards.
        pairs = {e: (self.place[network.tails[e]], self.place[network.heads[e]]) for e in self.edges}
        downwards = list(dict.fromkeys((min(pair), max(pair)) for pair in pairs.values()))
        placement = place(sizes, downwards)
        curves = dict(zip(downwards, placement.curves, strict=True))
        title = f"Flow network: {_size(network)}"
        said = title if flow is None else f"{title}; maximum flow {capacity_text(flow.value)}"
        stop = TabStop()
        for (x, y), (wide, high) in zip(placement.centres, sizes, strict=True):
            self.taken.append((x - wide / 2, y - high / 2, x + wide / 2, y + high / 2))
        lines = {
            e: curves[pair] if pair in curves else tuple(reversed(curves[pair[::-1]])) for e, pair in pairs.items()
        }
        for e in (e for e in lines if flow is not None and e in flow.cut):
            x, y = _along(lines[e], self._share(e))
            self.taken.append((x - 9, y - 6, x + 5, y + 6))  # the cross
        # Short edges first, whose labels have the least choice.
        by_length = sorted(lines, key=lambda e: abs(pairs[e][0] - pairs[e][1]))
        drawn = [self._edge(e, lines[e]) for e in by_length]
        drawn.reverse()  # what they stand on is drawn before them
        width = math.ceil(max(placement.width, *(right for _, _, right, _ in self.taken))) + 12
        height = math.ceil(placement.height) + 30
        picture = element(
            "svg",
            element("title", said),
            text_at(said, 8, 14, "sx-count", TEXT, font_weight="600"),
            element("g", drawn, [self._vertex(v, names, sizes, placement.centres, stop) for v in self.vertices],
                    transform="translate(0 24)"),
            class_="sx-diagram sx-flow", width=max(width, 7.3 * len(said) + 20), height=height,
            viewBox=f"0 0 {max(width, math.ceil(7.3 * len(said) + 20))} {height}", role="group", aria_label=said,
            data_group=True, **FONT,
        )  # fmt: skip
        parts = [element("div", picture, class_="sx-scroll sx-drawing")]
        if flow is None:
            return element("figure", parts, class_="sx-listing")
        parts.append(element("figcaption", _LEGEND, class_="sx-note"))
        words = _json(list(steps(flow)))
        return element("figure", parts, class_="sx-listing sx-steps", data_steps=self.last, data_words=words)

    # -- edges --------------------------------------------------------------------------------------------------------

    def _edge(self, e: int, curve: tuple[Point, ...]) -> Html:
        network, flow = self.network, self.flow
        capacity = network.capacities[e]
        is_cut = flow is not None and e in flow.cut
        start, *rest = curve
        path = f"M{_xy(start)}" + "".join(
            f"C{_xy(a)} {_xy(b)} {_xy(c)}" for a, b, c in zip(rest[0::3], rest[1::3], rest[2::3], strict=True)
        )
        share = self._share(e)
        x, y = _along(curve, share)
        lit = self._steps_of(e)
        texts = self._texts(e)
        final = list(texts.values())[-1] if texts else ""
        spoken = f"{_edge_name(network, e)}: capacity {capacity_text(capacity)}"
        if flow is not None and flow.is_finite:
            left = capacity if capacity == INFINITE else capacity - flow.on_edges[e]
            spoken += f", flow {capacity_text(flow.on_edges[e])}, residual {capacity_text(left)}"
            spoken += f" forwards and {capacity_text(flow.on_edges[e])} backwards" + (", in the cut" if is_cut else "")
        dashes = "2 4" if capacity == INFINITE else None
        parts = [
            element("title", spoken),
            element("path", d=path, class_="sx-edge", fill="none", stroke=RULE, stroke_dasharray=dashes),
            element("path", d=_arrow(curve), class_="sx-arrow", fill=RULE),
        ]
        if final or len(texts) > 1:
            longest = max(texts.values(), key=len)
            shares = (share, *(s for s in (0.5, 0.4, 0.6, 0.3, 0.7, 0.2, 0.8) if s != share))
            beside = 12 if is_cut else 5  # past the cross
            points = [(x, y)] if is_cut else [_along(curve, s) for s in shares]
            spots = [(across + beside, down + 4) for across, down in points]
            left, base = free_spot(spots, longest, self.taken)
            parts.append(text_at(final, left, base, "sx-label sx-flow-label", MUTED, data_texts=_json(texts)))
        if is_cut:
            cross = f"M{x - 9:.1f} {y + 6:.1f}l14 -12m0 12l-14 -12"
            parts.append(
                element(
                    "path", d=cross, class_="sx-cut", fill="none", stroke=_CUT, stroke_width="2.4", data_shown=self.last
                )
            )  # fmt: skip
        return element(
            "g", parts, class_="sx-flow-edge", data_edge=e, data_lit=" ".join(map(str, lit)) if lit else None
        )

    def _share(self, e: int) -> float:
        """How far along an edge its label stands best. Where many leave the source or enter the sink their middles
        crowd; their other ends do not."""
        ends = {self.network.tails[e]: 0.7, self.network.heads[e]: 0.3}
        return ends.get(self.network.source) or ends.get(self.network.sink) or 0.5

    def _steps_of(self, e: int) -> list[int]:
        if self.flow is None:
            return []
        return [k for k, path in enumerate(self.flow.paths, 1) if 2 * e in path.arcs or 2 * e + 1 in path.arcs]

    def _texts(self, e: int) -> dict[str, str]:
        """What stands at an edge from which step on: the flow on it over its capacity."""
        capacity = self.network.capacities[e]
        if self.flow is None:
            return {"0": capacity_text(capacity)} if capacity != INFINITE else {}
        amount: float = 0
        texts = {"0": flow_text(0, capacity) if capacity != INFINITE else ""}
        for k, path in enumerate(self.flow.paths, 1):
            if path.bottleneck == INFINITE:
                continue
            change = (2 * e in path.arcs) - (2 * e + 1 in path.arcs)
            if change:
                amount += change * path.bottleneck
                texts[str(k)] = flow_text(amount, capacity)
        return texts

    # -- vertices -----------------------------------------------------------------------------------------------------

    def _vertex(
        self, vertex: int, names: list[str], sizes: list[Any], centres: tuple[Point, ...], stop: TabStop
    ) -> Html:
        network, flow = self.network, self.flow
        k = self.place[vertex]
        width, height = sizes[k]
        is_end = vertex in (network.source, network.sink)
        side = None if flow is None or not flow.is_finite else "s" if vertex in flow.reachable else "t"
        spoken = network.name(vertex) + {network.source: " (source)", network.sink: " (sink)"}.get(vertex, "")
        spoken += f", on the side of the {'source' if side == 's' else 'sink'}" if side else ""
        fill = _GROUND.get(f"side_{side}", "#ffffff")
        frame = element(
            "rect", x=f"{-width / 2:g}", y=f"{-height / 2:g}", width=f"{width:g}", height=f"{height:g}",
            rx=f"{height / 2 if is_end else 5:g}", class_="sx-frame", fill=fill, stroke=RULE,
        )  # fmt: skip
        parts = [element("title", spoken), frame, text_at(names[k], 0, 4, "sx-node-name", TEXT, text_anchor="middle")]
        if side is not None:
            letter = text_at(side.upper(), width / 2 - 4, -height / 2 + 10, "sx-flow-side", MUTED, text_anchor="end",
                             font_size="9", data_shown=self.last)  # fmt: skip
            parts.append(letter)
        lit = [number for number, path in enumerate(flow.paths, 1) if vertex in path.vertices] if flow else []
        kind = {"s": "sx-node-input", "t": "sx-node-constant"}.get(side or "", "sx-node-call")
        return element(
            "g", parts, transform=f"translate({_xy(centres[k])})", class_=f"sx-node {kind}", role="img",
            aria_label=spoken, data_lit=" ".join(map(str, lit)) or None,
            **stop.attributes(self.origins_of(vertex), network.name(vertex)),
        )  # fmt: skip


def flow_text(amount: float, capacity: float) -> str:
    """What stands at an edge: flow, capacity, and the residual forwards where it is finite.

    >>> flow_text(3, 9011.2), flow_text(3, INFINITE)
    ('3 / 9,011, 9,008 left', '3 / ∞')
    """
    over = f"{capacity_text(amount)} / {capacity_text(capacity)}"
    return over if capacity == INFINITE else f"{over}, {capacity_text(capacity - amount)} left"


_LEGEND = (
    "At each edge: flow / capacity, and what is left of it, the residual forwards; the flow itself is the residual "
    "backwards. Dotted: infinite capacity. Thick: the augmenting path of this step. Crossed out: the cut, "
    "from S (what the source still reaches) to T."
)


def _words(flow: Flow, k: int) -> str:
    path = flow.paths[k]
    pushed = f"pushes {capacity_text(path.bottleneck)}, flow {capacity_text(path.flow)}"
    return f"{shortened(_way(flow, path), 120)} {pushed}"


def _result(flow: Flow) -> str:
    if not flow.is_finite:
        return "no finite cut"
    return f"no augmenting path is left: the cut has capacity {capacity_text(flow.cut_capacity)}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _topological(network: FlowNetwork, vertices: Iterable[int]) -> list[int]:
    """The vertices so that edges lead forwards as far as there are no circles; the sink last."""
    chosen = set(vertices)
    following: dict[int, list[int]] = {v: [] for v in chosen}
    waiting_for = dict.fromkeys(chosen, 0)
    for tail, head in set(zip(network.tails, network.heads, strict=True)):
        if tail in chosen and head in chosen and tail != head:
            following[tail].append(head)
            waiting_for[head] += 1
    order: list[int] = []
    left = set(chosen)
    ready = [network.source]
    while left:
        vertex = ready.pop() if ready else min(left - {network.sink}, default=network.sink)
        if vertex not in left:
            continue
        left.discard(vertex)
        order.append(vertex)
        for head in sorted(following[vertex], reverse=True):
            waiting_for[head] -= 1
            if waiting_for[head] == 0 and head in left:
                ready.append(head)
    order.remove(network.sink)
    return [*order, network.sink]


def _along(curve: tuple[Point, ...], share: float) -> Point:
    """The point at a share of the way along a chain of Bezier curves, counted in curves."""
    pieces = (len(curve) - 1) // 3
    piece = min(int(share * pieces), pieces - 1)
    t = share * pieces - piece
    weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
    part = curve[3 * piece : 3 * piece + 4]
    x, y = (sum(w * point[k] for w, point in zip(weights, part, strict=True)) for k in (0, 1))
    return x, y


def steps(flow: Flow) -> Iterator[str]:
    """What is to be said at each position of the slider."""
    yield "no flow yet"
    for k in range(len(flow.paths)):
        yield _words(flow, k)
    yield _result(flow)
