"""How the back end treats an operator, by the rules that are registered (:mod:`..kinds`)."""

from __future__ import annotations

import torch

from ...capture.graph import Node
from ..kinds import Row, kind_by
from .registry import LIBRARY, RULES


def row_of(target: torch._ops.OpOverload) -> Row:
    """What the registry has for an overload."""
    rule = RULES.get(target)
    if rule is None:
        return Row(None, library=target in LIBRARY)
    return Row(rule.kind, rule.is_view, rule.refuses, target in LIBRARY)


def kind_of(node: Node) -> str:
    """:func:`~staxlab.loops.kinds.kind_by` with the registry's table.

    >>> from staxlab.capture.graph import Graph
    >>> graph = Graph()
    >>> x = graph.placeholder("x")
    >>> kind_of(graph.call_function(torch.ops.aten.exp.default, (x,))), kind_of(x)
    ('pointwise', 'input')
    """
    return kind_by(row_of, node)
