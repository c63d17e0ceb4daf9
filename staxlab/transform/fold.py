"""Constant folding (Section 4.3): arithmetic, comparison and subscripts between Python constants, evaluated now.

Tensor operations are never folded: the result would have to be stored in the artifact and read back at every call,
while computing it is often as fast. Most scalar arithmetic was already done by the interpreter while tracing, so this
pass mainly cleans up what other passes leave.
"""

from __future__ import annotations

import operator
from typing import Any

from ..capture.graph import Graph, Node
from .operations import OPERATORS, is_number
from .rewrite import Applied, describe

_FOLDABLE = frozenset(OPERATORS) - {operator.setitem, operator.matmul}


def fold(graph: Graph) -> list[Applied]:
    """Replace every foldable node by its value."""
    applied: list[Applied] = []
    for node in graph:
        if node.op != "call_function" or node.target not in _FOLDABLE or node.inputs or node.kwargs:
            continue
        if not all(map(_is_constant, node.args)):
            continue
        try:
            value = node.target(*node.args)
        except Exception:
            continue  # an error belongs to run time
        if not _is_constant(value):
            continue
        before = describe([node])
        for user in list(node.users):
            user.replace_input(node, value)
            user.origins = user.origins | node.origins
        graph.erase(node)
        law = f"{_text(node)} -> {value!r}"
        applied.append(
            Applied("fold", law, before, (repr(value),), node.origins, f"{__file__}:{fold.__code__.co_firstlineno}")
        )
    return applied


def _is_constant(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_constant, value))
    return is_number(value) or value is None or isinstance(value, (str, slice))


def _text(node: Node) -> str:
    return f"{OPERATORS[node.target]} of constants"
