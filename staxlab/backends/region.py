"""What is left to a backend of an operator graph, and what stays ours: writes into inputs, and results that are views.

A region's results may be views of the caller's tensors or of one another, and it may write into its inputs. No foreign
compiler can promise that, and none has to: both can be carried out after it has computed *new* values only. So the
operator graph (Section 5.1) is cut in two::

    computing   everything up to the memory that results look at and that inputs are overwritten with
    finishing   the ``copy_`` into modified inputs, and the views that lead from that memory to each result

The backend is given the first part. The second is a few of PyTorch's views for each call and moves no element beyond
what the program itself writes back, so that aliasing is exactly eager's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.graph import Node, TensorMeta, map_nodes
from ..capture.module import GraphModule
from ..operators.basis import is_view
from ..operators.graph import OperatorGraph
from ..operators.structure import flatten


@dataclass(frozen=True)
class Division:
    """The two parts of an operator graph. ``module`` returns the tuple of ``values`` (nodes of the original graph, each
    with memory of its own); ``finishing`` are the nodes that run afterwards, in order."""

    operators: OperatorGraph
    module: GraphModule
    values: tuple[Node, ...]
    finishing: tuple[Node, ...]

    @property
    def metas(self) -> tuple[TensorMeta, ...]:
        """What each value is to look like."""
        return tuple(node.val for node in self.values)

    def finish(self, inputs: Sequence[Any], values: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """The region's flat results, after its writes. O(results + writes) besides the elements written."""
        graph, constants = self.operators.graph, self.operators.module.constants
        env: dict[Node, Any] = dict(zip(graph.placeholders, inputs, strict=True))
        env |= zip(self.values, values, strict=True)

        def load(node: Node) -> Any:
            return env[node] if node in env else constants[node.target]  # get_attr

        for node in self.finishing:
            env[node] = node.target(*map_nodes(node.args, load), **map_nodes(node.kwargs, load))
        results = map_nodes(graph.output.args[0], load)
        return results if isinstance(results, tuple) else (results,)


def divide(operators: OperatorGraph) -> Division:
    """Cut an operator graph into what computes and what finishes. O(nodes + edges)."""
    graph = operators.graph
    finishing: set[Node] = set()
    values: dict[Node, None] = {}
    kept = [leaf for leaf in flatten(graph.output.args[0]) if isinstance(leaf, Node)]
    for node in operators.write_backs:
        finishing.add(node)
        kept += node.inputs
    for node in kept:
        base = _follow(node, finishing)
        if base.op.startswith("call_") and base not in operators.write_backs:
            values[base] = None
    copy, twins = graph.copy()
    copy.output.args = (tuple(twins[node] for node in values),)
    for node in reversed([node for node in graph if node in finishing]):
        if not twins[node].users:  # a view may also be read by an operator
            copy.erase(twins[node])
    ordered = tuple(node for node in graph if node in finishing)
    return Division(operators, GraphModule(copy, operators.module.constants), tuple(values), ordered)


def _follow(node: Node, passed: set[Node]) -> Node:
    """The node whose memory ``node`` looks at. The views on the way go to ``passed``."""
    while is_view_node(node):
        passed.add(node)
        node = node.args[0]
    return node


def is_view_node(node: Node) -> bool:
    """Whether a node of an operator graph looks at the memory of its first argument. One result of an operator with
    several does if the operator does (``split``)."""
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], Node):
        return False
    if node.target is operator.getitem:
        return is_view_node(node.args[0])
    is_overload = isinstance(node.target, torch._ops.OpOverload)
    return is_overload and is_view(node.target) and not node.target._schema.is_mutable


def separate(results: Sequence[torch.Tensor], inputs: Sequence[Any]) -> list[torch.Tensor]:
    """``results`` with memory of their own each: one that lies in an input's or in an earlier one's is copied."""
    taken = {x.untyped_storage().data_ptr() for x in inputs if isinstance(x, torch.Tensor) and x.numel()}
    found = []
    for result in results:
        place = result.untyped_storage().data_ptr()
        if result.numel() and place in taken:
            result = result.clone()
            place = result.untyped_storage().data_ptr()
        taken.add(place)
        found.append(result)
    return found


def with_strides(result: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
    """``result`` with the strides that eager execution gives: itself, or a copy."""
    if result.stride() == meta.stride or result.numel() == 0 or _same_places(result.stride(), meta):
        return result if result.stride() == meta.stride else result.as_strided(meta.shape, meta.stride)
    return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=meta.device).copy_(result)


def _same_places(stride: tuple[int, ...], meta: TensorMeta) -> bool:
    """Whether two strides differ only along axes of one element, whose stride means nothing."""
    return all(a == b for a, b, extent in zip(stride, meta.stride, meta.shape, strict=True) if extent != 1)


Flat = Callable[[list[torch.Tensor]], tuple[Any, ...]]
