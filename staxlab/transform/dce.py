"""Dead code elimination (Section 4.6): keep the backward slice of the outputs, remove the rest. O(V + E).

Live are the nodes from which an output can be reached, and what must happen whether or not its value is used:
operations that write to a tensor, random ones, since leaving one out would shift all later draws, those that may raise
on account of the data, and those of which nothing is known (:mod:`staxlab.capture.failing`). Inputs are always kept:
removing one would change how the program is called.

A data gate's computation reaches no output. That is why guard replay is extracted before this pass runs (Corollary
3.1).
"""

from __future__ import annotations

from collections.abc import Callable

from ..capture.gates import backward_slice
from ..capture.graph import Graph, Node
from .rewrite import Applied, describe


def has_effect(node: Node) -> bool:
    """Whether a node must run even if nobody reads its value."""
    return node.op == "call_module" or any(node.meta.get(fact) for fact in _EFFECTS)


_EFFECTS = ("mutates", "random", "may_fail", "foreign")


def eliminate_dead_code(graph: Graph, must_run: Callable[[Node], bool] = has_effect) -> list[Applied]:
    """Remove every node outside the backward slice of outputs and of what must run."""
    live = backward_slice(node for node in graph if node.op in ("output", "placeholder") or must_run(node))
    dead = [node for node in graph if node not in live]
    applied: list[Applied] = []
    source = f"{__file__}:{eliminate_dead_code.__code__.co_firstlineno}"
    for node in reversed(dead):
        before = describe([node])
        graph.erase(node)
        applied.append(Applied("remove", "a value that reaches no output -> nothing", before, (), node.origins, source))
    return list(reversed(applied))
