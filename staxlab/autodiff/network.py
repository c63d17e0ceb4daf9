"""Flow networks, maximum flow and minimum cut (Section 5.4, Theorem 5.2).

Which forward values to save is a minimum cut (Proposition 5.1), and a minimum cut is what a maximum flow leaves behind:
push flow from source to sink along *augmenting paths* of the residual network until there is none; then the vertices
the source still reaches are one side of a minimum cut, whose capacity is the value of the flow (Ford and Fulkerson
1956, "Maximal flow through a network").

Edmonds and Karp (1972, "Theoretical improvements in algorithmic efficiency for network flow problems") take a
*shortest* augmenting path each time, which bounds the number of paths by O(V E) whatever the capacities. So does
:func:`maximum_flow`. It does not search anew for each path: a shortest path never gets shorter by augmenting, so the
distances found by one breadth-first search serve for all paths of that length (Dinic 1970). Every path is recorded,
with what it carried, so that a view can step through them.

Vertices are the integers below ``size``; arcs are kept in arrays, arc ``2 e`` for edge ``e`` and arc ``2 e + 1`` for
the way back, so that ``a ^ 1`` is the opposite of ``a``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import ConstraintError

#: The capacity of an edge that no cut may contain.
INFINITE = math.inf


@dataclass(frozen=True)
class FlowNetwork:
    """A directed network. Edge ``e`` leads from ``tails[e]`` to ``heads[e]`` and has the capacity ``capacities[e]``, a
    number of zero or more, or :data:`INFINITE`. ``names`` are what pictures call the vertices (None: their numbers).

    Raises ConstraintError for a vertex out of range, a negative capacity, or a source that is the sink.
    """

    size: int
    source: int
    sink: int
    tails: tuple[int, ...]
    heads: tuple[int, ...]
    capacities: tuple[float, ...]
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.source == self.sink:
            raise ConstraintError("a flow network needs a source and a sink that differ")
        if not len(self.tails) == len(self.heads) == len(self.capacities):
            raise ConstraintError("every edge of a flow network needs a tail, a head and a capacity")
        for vertex in (self.source, self.sink, *self.tails, *self.heads):
            if not 0 <= vertex < self.size:
                raise ConstraintError(f"vertex {vertex} is not in a network of {self.size} vertices")
        for capacity in self.capacities:
            if not capacity >= 0:
                raise ConstraintError(f"a capacity must be zero or more, not {capacity}")

    @classmethod
    def of(
        cls,
        size: int,
        edges: Iterable[tuple[int, int, float]],
        source: int,
        sink: int,
        names: Sequence[str] | None = None,
    ) -> FlowNetwork:
        """A network from ``(tail, head, capacity)`` triples."""
        edges = list(edges)
        tails, heads, capacities = (tuple(edge[k] for edge in edges) for k in range(3))
        return cls(size, source, sink, tails, heads, capacities, None if names is None else tuple(names))

    @property
    def edges(self) -> tuple[tuple[int, int, float], ...]:
        """The edges as ``(tail, head, capacity)``."""
        return tuple(zip(self.tails, self.heads, self.capacities, strict=True))

    def name(self, vertex: int) -> str:
        return str(vertex) if self.names is None else self.names[vertex]

    @cached_property
    def arcs_from(self) -> tuple[tuple[int, ...], ...]:
        """For each vertex the arcs that leave it, those of the residual network included."""
        leaving: list[list[int]] = [[] for _ in range(self.size)]
        for edge, (tail, head) in enumerate(zip(self.tails, self.heads, strict=True)):
            leaving[tail].append(2 * edge)
            leaving[head].append(2 * edge + 1)
        return tuple(map(tuple, leaving))

    @cached_property
    def arc_heads(self) -> tuple[int, ...]:
        """The vertex each arc leads to."""
        return tuple(end for edge in zip(self.heads, self.tails, strict=True) for end in edge)

    def initial_residuals(self) -> list[float]:
        """What each arc can carry before any flow: its capacity one way, nothing the other."""
        return [room for capacity in self.capacities for room in (capacity, 0)]

    def format(self) -> str:
        """A line for each edge."""
        lines = [f"network of {self.size} vertices and {len(self.tails)} edges"]
        lines += [f"    {self.name(u)} -> {self.name(v)}: {capacity_text(c)}" for u, v, c in self.edges]
        return "\n".join(lines)

    __str__ = format

    def __repr__(self) -> str:
        return f"<network of {self.size} vertices and {len(self.tails)} edges>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


@dataclass(frozen=True)
class AugmentingPath:
    """One step of the algorithm: the arcs taken and the vertices passed, from source to sink; the flow pushed along
    them (the *bottleneck*), and the value of the flow afterwards."""

    vertices: tuple[int, ...]
    arcs: tuple[int, ...]
    bottleneck: float
    flow: float


@dataclass(frozen=True)
class Flow:
    """A maximum flow and the minimum cut it proves (Theorem 5.2).

    ``value`` is the flow's value, ``on_edges`` the flow on each edge, ``reachable`` the vertices that the source
    reaches in the residual network, ``cut`` the edges that lead out of them, in order. ``steps`` counts the arcs looked
    at. Where a path of infinite capacities joins source and sink there is no finite cut: then ``value`` is infinite,
    the last path is that one, and ``cut`` is empty.
    """

    network: FlowNetwork
    paths: tuple[AugmentingPath, ...]
    value: float
    on_edges: tuple[float, ...]
    reachable: frozenset[int]
    cut: tuple[int, ...]
    steps: int = 0

    @property
    def is_finite(self) -> bool:
        return self.value != INFINITE

    @property
    def cut_capacity(self) -> float:
        """The capacities of the cut edges, summed: the value of the flow, up to rounding."""
        return math.fsum(self.network.capacities[edge] for edge in self.cut) if self.is_finite else INFINITE

    def residuals(self, paths: int | None = None) -> list[float]:
        """What each arc can still carry after that many augmenting paths (all of them by default)."""
        rooms = self.network.initial_residuals()
        for path in self.paths[:paths]:
            if path.bottleneck != INFINITE:
                _push(rooms, path.arcs, path.bottleneck)
        return rooms

    def format(self) -> str:
        """The augmenting paths, then the cut."""
        name, lines = self.network.name, []
        for number, path in enumerate(self.paths, 1):
            way = " -> ".join(map(name, path.vertices))
            lines.append(
                f"path {number}: {way}, pushes {capacity_text(path.bottleneck)}, flow {capacity_text(path.flow)}"
            )
        if not self.is_finite:
            return "\n".join([*lines, "no finite cut: the last path has no edge that may be cut"])
        cut = [f"{name(self.network.tails[e])} -> {name(self.network.heads[e])}" for e in self.cut]
        lines.append(f"maximum flow {capacity_text(self.value)} = minimum cut: {', '.join(cut) or 'no edge'}")
        return "\n".join(lines)

    __str__ = format

    def __repr__(self) -> str:
        return f"<maximum flow {capacity_text(self.value)} by {len(self.paths)} augmenting paths>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def maximum_flow(network: FlowNetwork) -> Flow:
    """A maximum flow by shortest augmenting paths, and the minimum cut nearest to the source (Theorem 5.2).

    At most V E / 2 paths, whatever the capacities, and O(V^2 E) steps (Edmonds and Karp's bound is O(V E^2) for a
    search from scratch for each path). Sums of capacities that are not integers are rounded; which edges are saturated
    is exact, because an arc that limits a path is left with nothing at all.
    """
    rooms = network.initial_residuals()
    paths: list[AugmentingPath] = []
    value: float = 0
    steps = 0
    while True:
        distance, looked = _distances_to_sink(network, rooms)
        steps += looked
        if distance[network.source] < 0:
            break
        finder = _PathsOfOneLength(network, rooms, distance)
        for arcs in finder:
            bottleneck = min(rooms[arc] for arc in arcs)
            value += bottleneck
            vertices = (network.source, *(network.arc_heads[arc] for arc in arcs))
            paths.append(AugmentingPath(vertices, tuple(arcs), bottleneck, value))
            if bottleneck == INFINITE:
                flows = tuple(rooms[1::2])
                return Flow(network, tuple(paths), value, flows, frozenset(), (), steps + finder.steps)
            _push(rooms, arcs, bottleneck)
        steps += finder.steps
    reachable, looked = _reachable(network, rooms)
    cut = tuple(
        edge
        for edge, (tail, head) in enumerate(zip(network.tails, network.heads, strict=True))
        if tail in reachable and head not in reachable
    )
    return Flow(network, tuple(paths), value, tuple(rooms[1::2]), reachable, cut, steps + looked)


def _push(rooms: list[float], arcs: Iterable[int], amount: float) -> None:
    for arc in arcs:
        rooms[arc] -= amount
        rooms[arc ^ 1] += amount


def _distances_to_sink(network: FlowNetwork, rooms: list[float]) -> tuple[list[int], int]:
    """The number of arcs from each vertex to the sink (-1 where there is no way, or none as short as the source's), by
    a breadth-first search against the arcs that goes no further than the source."""
    arcs_from, heads, source = network.arcs_from, network.arc_heads, network.source
    distance = [-1] * network.size
    distance[network.sink] = 0
    level, steps, far = [network.sink], 0, 0
    while level and distance[source] < 0:
        far += 1
        following = []
        for vertex in level:
            leaving = arcs_from[vertex]
            steps += len(leaving)
            for arc in leaving:
                other = heads[arc]
                if distance[other] < 0 and rooms[arc ^ 1] > 0:
                    distance[other] = far
                    following.append(other)
        level = following
    return distance, steps


class _PathsOfOneLength:
    """All shortest augmenting paths of the present length, one by one, while the caller pushes flow along each.

    A depth-first search that only goes where the distance to the sink falls. An arc that led nowhere is not tried
    again: pushing along paths of this length opens no new way of the same length.
    """

    def __init__(self, network: FlowNetwork, rooms: list[float], distance: list[int]):
        self.network, self.rooms, self.distance = network, rooms, distance
        self.tried = [0] * network.size  # of each vertex's arcs
        self.steps = 0

    def __iter__(self) -> Any:
        network, rooms, distance, tried = self.network, self.rooms, self.distance, self.tried
        arcs_from, heads = network.arcs_from, network.arc_heads
        arcs: list[int] = []
        vertex = network.source
        while True:
            if vertex == network.sink:
                yield list(arcs)
                # Go on behind the first arc that carries no more.
                keep = next(k for k, arc in enumerate(arcs) if rooms[arc] <= 0)
                vertex = heads[arcs[keep] ^ 1]
                del arcs[keep:]
            leaving, position, nearer = arcs_from[vertex], tried[vertex], distance[vertex] - 1
            while position < len(leaving):
                arc = leaving[position]
                if rooms[arc] > 0 and distance[heads[arc]] == nearer:
                    break
                position += 1
            self.steps += position - tried[vertex] + 1
            tried[vertex] = position
            if position < len(leaving):
                arcs.append(arc)
                vertex = heads[arc]
            elif arcs:
                vertex = heads[arcs.pop() ^ 1]
                tried[vertex] += 1
            else:
                return


def _reachable(network: FlowNetwork, rooms: list[float]) -> tuple[frozenset[int], int]:
    """The vertices that the source reaches over arcs with room."""
    arcs_from, heads = network.arcs_from, network.arc_heads
    seen, waiting, steps = {network.source}, [network.source], 0
    while waiting:
        leaving = arcs_from[waiting.pop()]
        steps += len(leaving)
        for arc in leaving:
            if rooms[arc] > 0 and heads[arc] not in seen:
                seen.add(heads[arc])
                waiting.append(heads[arc])
    return frozenset(seen), steps


def capacity_text(capacity: float) -> str:
    """A capacity as tables show it: rounded to an integer, in powers of ten from ten million on.

    >>> [capacity_text(c) for c in (9011.2, 2 * 8192 * 1.1**100, INFINITE)]
    ['9,011', '2.26e8', '∞']
    """
    if capacity == INFINITE:
        return "∞"
    if capacity < 1e7:
        return f"{round(capacity):,}"
    mantissa, exponent = f"{capacity:.2e}".split("e")
    return f"{mantissa}e{int(exponent)}"
