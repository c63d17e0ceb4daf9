"""Annotating pointwise regions (Section 4.7): connected components of the pointwise operations, by union-find.

The annotation changes no value. A region is a set of pointwise nodes connected by edges, directions ignored; its
number goes into ``node.meta["region"]``. With path halving and union by size the pass takes O((V + E) alpha(V)), alpha
the inverse Ackermann function.
"""

from __future__ import annotations

from ..capture.graph import Graph, Node
from .operations import is_pointwise
from .rewrite import Applied


class DisjointSets:
    """Union-find over nodes."""

    def __init__(self, members: list[Node]):
        self._parent = {node: node for node in members}
        self._size = dict.fromkeys(members, 1)

    def find(self, node: Node) -> Node:
        parent = self._parent
        while parent[node] is not node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    def union(self, a: Node, b: Node) -> None:
        a, b = self.find(a), self.find(b)
        if a is b:
            return
        if self._size[a] < self._size[b]:
            a, b = b, a
        self._parent[b] = a
        self._size[a] += self._size[b]


def pointwise_regions(graph: Graph) -> dict[Node, int]:
    """The region number of each pointwise node, numbered by first appearance."""
    members = [node for node in graph if is_pointwise(node)]
    sets = DisjointSets(members)
    inside = set(members)
    for node in members:
        for source in node.inputs:
            if source in inside:
                sets.union(node, source)
    numbers: dict[Node, int] = {}
    return {node: numbers.setdefault(sets.find(node), len(numbers)) for node in members}


def annotate_regions(graph: Graph) -> list[Applied]:
    """Write region numbers into the nodes. Reports one application for each region whose members changed."""
    regions = pointwise_regions(graph)
    members: dict[int, list[Node]] = {}
    for node, number in regions.items():
        members.setdefault(number, []).append(node)
    changed: set[int] = set()
    for node in graph:
        number = regions.get(node)
        if node.meta.get("region") != number:
            changed.update(n for n in (number, node.meta.get("region")) if n is not None)
            node.meta.pop("region", None)
            if number is not None:
                node.meta["region"] = number
    source = f"{__file__}:{annotate_regions.__code__.co_firstlineno}"
    applied = []
    for number in sorted(changed):
        inside = members.get(number, ())  # none where the number has gone out of use
        names = tuple(f"%{node.name}" for node in inside)
        origins = frozenset().union(*(node.origins for node in inside))
        applied.append(
            Applied(
                "mark region",
                "connected pointwise operations -> one region",
                names,
                (f"region {number}",),
                origins,
                source,
            )
        )
    return applied


def region_table(graph: Graph) -> list[tuple[str, str | None, int | None]]:
    """(name, "pointwise" or None, region or None) for each call, in order."""
    return [
        (node.name, "pointwise" if "region" in node.meta else None, node.meta.get("region")) for node in graph.calls
    ]
