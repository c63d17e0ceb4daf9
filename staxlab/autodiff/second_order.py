"""The gradient as a program of its own (Section 5.7): what is traced once more for a second derivative.

A joint graph, with its gradients as the only results, is an ordinary graph of operators from primals and tangents to
gradients. Run under autograd it can be recorded, partitioned and compiled as the function itself was; its backward is
the second derivative, and so on to any order. One thing must not be computed anew: random values, which would be drawn
anew. They are inputs here, delivered by the forward pass that drew them.
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.graph import Graph, Node, map_nodes, nodes_in
from ..capture.module import GraphModule
from ..operators.graph import OperatorGraph
from .graph import JointGraph
from .split import constants_of, only_gradients, take_over, without_tangents

aten = torch.ops.aten


@dataclass(frozen=True)
class GradientProgram:
    """``final`` maps ``(*primals it reads, *drawn values, *defined tangents)`` to the gradients that are not None.

    ``reads`` are the numbers of the primals it reads, in the state they have before the forward pass, and ``places``
    those of the primals that the gradients belong to.
    """

    final: GraphModule
    reads: tuple[int, ...]
    places: tuple[int, ...]


def gradient_program(joint: JointGraph, undefined: Collection[int] = ()) -> GradientProgram:
    """The program of a joint graph's gradients. O(size of the graph).

    ``undefined`` are forward outputs without an upstream gradient, as in :func:`staxlab.autodiff.split.prune_tangents`.
    """
    graph = Graph()
    copies: dict[Node, Node] = {}
    tangents = [tangent for tangent in joint.tangents if tangent is not None]
    results = [gradient for gradient in joint.gradients if gradient is not None]
    needed = _needed(results, [*joint.primals, *joint.drawn, *tangents])
    reads = tuple(place for place, primal in enumerate(joint.primals) if primal in needed)
    for node in [*(joint.primals[place] for place in reads), *joint.drawn, *tangents]:
        copies[node] = take_over(graph, node, "placeholder", node.name, (), {}, node.val)
    for node in joint.graph:
        if node in copies or node not in needed:
            continue
        target, args, kwargs = _computed(node)
        args, kwargs = map_nodes(args, copies.__getitem__), map_nodes(kwargs, copies.__getitem__)
        copies[node] = take_over(graph, node, node.op, target, args, kwargs, node.val)
    graph.set_output(tuple(None if node is None else copies[node] for node in joint.gradients))
    graph.check()
    inputs = tuple(node.val for node in graph.placeholders)
    module = GraphModule(graph, constants_of(graph, joint.module.constants))
    whole = OperatorGraph(module, inputs, memories=(None,) * len(joint.gradients))
    pruned, places = only_gradients(without_tangents(whole, joint.tangents, undefined))
    return GradientProgram(pruned.module, reads, places)


def _computed(node: Node) -> tuple[Any, tuple, dict[str, Any]]:
    """What a node calls, such that autograd can differentiate it and nothing is drawn."""
    if node.target is aten.copy.default:
        return _contents, node.args, node.kwargs
    if node.target is operator.getitem and node.args[1] == 0:
        call = node.args[0]
        masks = [item for item in call.users if item.args[1] == 1]
        if call.target is aten.native_dropout.default and masks:
            return _dropped_out, (call.args[0], masks[0], *call.args[1:]), {}
    return node.target, node.args, node.kwargs


def _contents(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """What ``target`` is after ``target.copy_(source)``. For ``aten.copy`` autograd has no derivative."""
    return torch.zeros_like(target).copy_(source)


def _dropped_out(x: torch.Tensor, mask: torch.Tensor, p: float, train: bool | None) -> torch.Tensor:
    """The first result of ``native_dropout``, from its second."""
    return x * mask * (1 / (1 - p) if train and p < 1 else 1.0)


def _needed(results: list[Node], inputs: list[Node]) -> set[Node]:
    """The nodes that ``results`` are computed from, up to ``inputs``."""
    stop, needed, pending = set(inputs), set(), list(results)
    while pending:
        node = pending.pop()
        if node not in needed:
            needed.add(node)
            if node not in stop:
                _, args, kwargs = _computed(node)
                pending.extend(nodes_in((args, kwargs)))
    return needed
