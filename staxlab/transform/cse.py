"""Common subexpression elimination (Section 4.5): value numbering in one scan.

Each node gets a key: its target and, for each argument, the representative of the node that computes it. Equal keys
mean equal values, so the later node's users read the earlier one. Nodes come in topological order, so all arguments
have their representatives by then, and one scan merges everything that is written alike (Proposition 4.2), in expected
O(V + E).

The premise is that operations are referentially transparent. Random ones are not (two draws differ), in-place ones are
not (two additions add up), and neither is a read of memory that is written in between. All of these are left alone; so
are two results that are both returned, since the caller may change one and expect the other unchanged, and operators
that are not PyTorch's own, of which nothing is known.
"""

from __future__ import annotations

import math
from typing import Any

from ..capture.graph import Graph, Node
from ..provenance import Origins
from .effects import Effects
from .rewrite import Applied, describe


class _Unhashable(Exception):
    pass


def eliminate_common_subexpressions(graph: Graph) -> list[Applied]:
    """Merge nodes with equal keys into the first of them."""
    applied: list[Applied] = []
    effects = Effects(graph)
    seen: dict[Any, tuple[Node, Origins]] = {}
    source = f"{__file__}:{eliminate_common_subexpressions.__code__.co_firstlineno}"
    for node in graph:
        if not _is_transparent(node, effects):
            continue
        try:
            key = (node.op, node.target, _key(node.args), _key(node.kwargs) if node.kwargs else None)
            first, origins = seen.setdefault(key, (node, node.origins))  # before others are merged into it
        except (_Unhashable, TypeError):
            continue
        if first is node or first.val != node.val:
            continue
        if effects.is_returned(first) and effects.is_returned(node):
            continue
        before = describe([first, node])
        origins |= node.origins
        node.replace_all_uses_with(first)
        effects.merge(node, first)
        graph.erase(node)
        applied.append(Applied("merge", "two equal computations -> one", before, describe([first]), origins, source))
    return applied


def _is_transparent(node: Node, effects: Effects) -> bool:
    if node.op not in ("call_function", "call_method", "get_attr"):
        return False
    if node.meta.get("mutates") or node.meta.get("random") or node.meta.get("foreign"):
        return False
    return not effects.is_written(node) and not any(effects.is_written(source) for source in node.inputs)


def _key(argument: Any) -> Any:
    """An argument as a hashable value in which 1, 1.0 and True differ, as do 0.0 and -0.0, and NaN equals itself."""
    if isinstance(argument, Node):
        return argument
    if isinstance(argument, (tuple, list)):
        return (type(argument), tuple(map(_key, argument)))
    if isinstance(argument, dict):
        return (
            dict,
            tuple(sorted(((str(name), _key(value)) for name, value in argument.items()), key=lambda item: item[0])),
        )
    if isinstance(argument, slice):
        return (slice, _key(argument.start), _key(argument.stop), _key(argument.step))
    if isinstance(argument, float):
        return (float, "nan" if argument != argument else (argument, math.copysign(1.0, argument)))
    try:
        hash(argument)
    except TypeError as error:
        raise _Unhashable from error
    return (type(argument), argument)
