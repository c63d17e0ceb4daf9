"""The compiler's own loops as nests (Sections 7.1 and 7.7).

A schedule node is one statement in a perfect nest of rectangular loops. Elementwise values read buffers that are
finished and write each element once, so nothing depends on anything. A reduction also reads and writes its running
result: in memory terms ``y[i] = merge(y[i], x[i, r])``, a dependence with distance (0, +) that the reduced loop
carries; since merges are associative and commutative (Definition 6.3), an order that breaks it changes rounding only
(Theorem
6.3). A scan's running result may not be merged in another order, for every prefix is stored. A scatter writes where
data say, so that iterations which differ in a loop that has no part in the subscript may meet in any element.

Which orders of the loops are legal is asked in :mod:`.orders`.
"""

from __future__ import annotations

from ..errors import ScheduleError
from ..loops.body import MemoryAccess
from ..loops.expressions import Expr, Symbol
from ..schedule.records import ScheduleNode
from ..schedule.rows import RowView
from .legality import FusionVerdict, fusion
from .nests import Access, LoopNest, NestStatement
from .polyhedron import Polyhedron


def nest_of(node: ScheduleNode | RowView) -> LoopNest:
    """A computed node's loops, kept ones first, as a nest of one statement; the rows of a view stand outermost.

    ScheduleError for a node without loops of its own: a call of PyTorch's, or a fused one (look at its members).
    """
    if isinstance(node, RowView):
        return _nest(node.node, node.loops)
    return _nest(node, ())


def _nest(node: ScheduleNode, rows: tuple[Symbol, ...]) -> LoopNest:
    body = node.body
    if body is None or node.members:
        raise ScheduleError(f"{node.name} has no loops of its own", remedy="ask about its members, or a computed node")
    symbols = rows + body.symbols
    extents = (*(int(row.upper) + 1 for row in rows), *node.ranges, *node.reduction_ranges)
    # What stands in subscripts besides: the rows of a fused node, the same for all of a member's iterations.
    inside = frozenset().union(*(access.index.symbols for access in (*node.reads, *node.writes)))
    given = tuple(sorted((s for s in inside - set(symbols) if not _from_data(s)), key=lambda s: s.name))
    bounds = [(0, extent - 1) for extent in extents] + [(int(s.lower), int(s.upper)) for s in given]
    domain = Polyhedron.box([s.name for s in (*symbols, *given)], bounds)
    reads = [_access(access) for access in node.reads]
    writes = [_access(access) for access in node.writes]
    merges = False
    if node.kind in ("reduction", "template"):
        # The running result: it is there before the first value is merged, and after the last one.
        reads += writes
        merges = True
    elif node.kind == "scan":
        kept = tuple(symbols[: len(symbols) - len(node.reduction_ranges)])
        running = Access(f"{node.name}.running", tuple(map(Expr.of, kept)))
        reads, writes = [*reads, running], [*writes, running]
    elif node.kind == "scatter" and node.reduction != "store":
        reads += writes
    what = node.reduction or "f"
    left = ", ".join(map(str, writes)) or "nothing"
    text = f"{left} = {what}({', '.join(map(str, reads))})"
    statement = NestStatement(node.name, text, tuple(dict.fromkeys(reads)), tuple(writes), merges)
    return LoopNest(symbols, domain, (statement,), given)


def _from_data(symbol: Symbol) -> bool:
    return symbol.name.startswith("indirect")


def _access(access: MemoryAccess) -> Access:
    return Access(access.buffer, (access.index,))


def row_fusion(first: RowView, second: RowView) -> FusionVerdict:
    """Proposition 7.3 for two nodes over rows of the same extents: the distances in rows, and whether the two may share
    the loops over rows, sequentially and in parallel."""
    return fusion(nest_of(first), nest_of(second), shared=len(first.loops))
