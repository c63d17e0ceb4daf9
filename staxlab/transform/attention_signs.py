"""Whether it is worth looking for attention in a graph (Section 9.10).

The passes that recognise attention are nine modules. Most graphs have no softmax, or no two products, and for those
none of them is loaded.
"""

from __future__ import annotations

from ..capture.graph import Graph
from .operations import operation

#: What a softmax may be written with.
SOFTMAX = frozenset({"softmax", "log_softmax", "exp"})


def may_hold_attention(graph: Graph) -> bool:
    """Whether a graph has two products and something that a softmax may be written with. O(V)."""
    if SOFTMAX.isdisjoint((operation(node) or "").removesuffix("_") for node in graph):
        return False
    from .attention_products import count_products

    return count_products(graph) > 1
