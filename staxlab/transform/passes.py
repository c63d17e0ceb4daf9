"""The six passes in their order (Section 4.1), and the measure that shows their iteration ends."""

from __future__ import annotations

from ..capture.graph import Graph
from .cse import eliminate_common_subexpressions
from .dce import eliminate_dead_code
from .decompose import decompose, is_composite
from .fold import fold
from .normalize import irregular, normalize
from .regions import annotate_regions
from .rewrite import Measure, Pass

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


def measure(graph: Graph) -> Measure:
    """(composite operators, nodes, deviations from normal form), compared lexicographically (Proposition 4.1)."""
    return (
        sum(map(is_composite, graph)),
        len(graph),
        sum(map(irregular, graph)),
    )
