"""The six passes in their order (Section 4.1), and the measure that shows their iteration ends.

A graph that stands for many shapes (dynamic mode) may be rewritten only by what holds at all of them. Most rules ask
the metadata of the sample: ``x + y -> x`` for a zero ``y`` needs both to have one shape, an expansion computes the
shapes of what it inserts. Two passes ask for less.

Removing dead code reads edges and effects. But an operation that worked on the sample may fail at other sizes, and
then has to fail there; so only pointwise operations on one tensor are removed.

Merging equal computations compares what is written in the graph. But it trusts the aliasing seen on the sample, and
``contiguous``, ``reshape`` and others share memory at some sizes and copy at others. So :func:`assume_aliasing` first
says of every operation that it may, unless it is one that always makes a new tensor.

A graph that has a softmax and two products of matrices gets a pass more, after dead code has gone: attention that is
written out (:mod:`.attention_rewrite`, Section 9.10).
"""

from __future__ import annotations

from ..capture.graph import Graph
from .cse import eliminate_common_subexpressions
from .dce import eliminate_dead_code, has_effect
from .decompose import decompose, is_composite
from .fold import fold
from .normalize import irregular, normalize
from .operations import POINTWISE, is_pointwise, operation
from .regions import annotate_regions
from .rewrite import Applied, Measure, Pass

# Normalization first, so that later patterns meet one spelling; merging after decomposition, so that equal chains
# that come
#: out of different operators merge; regions last, so that they see the final graph.
PASSES: tuple[Pass, ...] = (
    Pass("Normalize", normalize),
    Pass("Fold", fold),
    Pass("Decompose", decompose),
    Pass("MergeCommonSubexpressions", eliminate_common_subexpressions),
    Pass("RemoveDeadCode", eliminate_dead_code),
    Pass("MarkPointwiseRegions", annotate_regions, annotates=True),
)


# Pointwise operations that return their argument itself where nothing is to be done.
_MAYBE_SAME = frozenset({"positive", "float", "double", "half", "bfloat16", "int", "long", "bool"})
_FRESH = POINTWISE - _MAYBE_SAME


def assume_aliasing(graph: Graph) -> list[Applied]:
    """Mark every operation that might share memory with an argument at some size as doing so."""
    applied = []
    for node in graph.calls:
        if node.meta.get("aliases") or (is_pointwise(node) and operation(node) in _FRESH):
            continue
        node.meta["aliases"] = True
        source = f"{__file__}:{assume_aliasing.__code__.co_firstlineno}"
        law = "a result that might share memory at some size -> assumed to"
        applied.append(Applied("assume aliasing", law, (node.format(),), (node.format(),), node.origins, source))
    return applied


def eliminate_infallible_dead_code(graph: Graph) -> list[Applied]:
    """Remove dead pointwise operations on one tensor. Two tensors may not broadcast, a view may not fit."""
    return eliminate_dead_code(
        graph, lambda node: has_effect(node) or not (is_pointwise(node) and len(node.inputs) == 1)
    )


#: The passes that hold at every size, for graphs captured in dynamic mode.
SHAPE_INDEPENDENT: tuple[Pass, ...] = (
    Pass("AssumeAliasing", assume_aliasing, annotates=True),
    Pass("MergeCommonSubexpressions", eliminate_common_subexpressions),
    Pass("RemoveDeadCode", eliminate_infallible_dead_code),
)


def measure(graph: Graph) -> Measure:
    """(composite operators, nodes, deviations from normal form), compared lexicographically (Proposition 4.1)."""
    return (
        sum(map(is_composite, graph)),
        len(graph),
        sum(map(irregular, graph)),
    )
