"""The gradient as a program of its own (Section 5.7): what is traced once more for a second derivative.

A joint graph, with its gradients as the only results, is an ordinary graph of operators from primals and tangents to
gradients. Run under autograd it can be recorded, partitioned and compiled as the function itself was; its backward is
the second derivative, and so on to any order. One thing must not be computed anew: random values, which would be drawn
anew. They are inputs here, delivered by the forward pass that drew them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..capture.graph import Graph, Node, map_nodes
from ..capture.module import GraphModule
from .graph import JointGraph


@dataclass(frozen=True)
class GradientProgram:
    """``final`` maps ``(*primals, *drawn values, *tangents)`` to the gradients that are not None, which belong to the
    primals numbered ``places``."""

    final: GraphModule
    places: tuple[int, ...]


def gradient_program(joint: JointGraph) -> GradientProgram:
    """The program of a joint graph's gradients. O(size of the graph)."""
    graph = Graph()
    copies: dict[Node, Node] = {}
    tangents = [tangent for tangent in joint.tangents if tangent is not None]
    inputs = [*joint.primals, *joint.drawn, *tangents]
    places = tuple(place for place, gradient in enumerate(joint.gradients) if gradient is not None)
    results = [joint.gradients[place] for place in places]
    needed = _needed(results, inputs)
    for node in inputs:
        copies[node] = _copy(graph, node, "placeholder", node.name, (), {})
    for node in joint.graph:
        if node in copies or node not in needed:
            continue
        args, kwargs = map_nodes(node.args, copies.__getitem__), map_nodes(node.kwargs, copies.__getitem__)
        copies[node] = _copy(graph, node, node.op, node.target, args, kwargs)
    graph.set_output(tuple(copies[node] for node in results))
    graph.check()
    names = {node.target for node in graph if node.op == "get_attr"}
    constants = {name: value for name, value in joint.module.constants.items() if name in names}
    return GradientProgram(GraphModule(graph, constants), places)


def _copy(graph: Graph, node: Node, op: str, target: Any, args: tuple, kwargs: dict[str, Any]) -> Node:
    return graph.create(
        op, target, args, kwargs, name=node.name, origins=node.origins, location=node.location, val=node.val
    )


def _needed(results: list[Node], inputs: list[Node]) -> set[Node]:
    """The nodes that ``results`` are computed from, up to ``inputs``."""
    stop, needed, pending = set(inputs), set(), list(results)
    while pending:
        node = pending.pop()
        if node not in needed:
            needed.add(node)
            if node not in stop:
                pending.extend(node.inputs)
    return needed
