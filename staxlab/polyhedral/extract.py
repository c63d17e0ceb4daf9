"""The compiler's own loops as nests, and which orders of them are legal (Sections 7.7 and 8.1).

A schedule node is one statement in a perfect nest of rectangular loops. Elementwise values read buffers that are
finished and write each element once, so nothing depends on anything. A reduction also reads and writes its running
result: in memory terms ``y[i] = merge(y[i], x[i, r])``, a dependence with distance (0, +) that the reduced loop
carries; since merges are associative and commutative (Definition 6.3), an order that breaks it changes rounding only
(Theorem 6.3). A scan's running result may not be merged in another order, for every prefix is stored. A scatter writes
where data say, so that iterations which differ in a loop that has no part in the subscript may meet in any element.

:func:`loop_order` says of the order that a code generator has chosen whether it keeps what has to be kept, as a
:class:`~staxlab.options.Decision` with the distance that decides; :func:`legal_orders` lists all orders that do.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from ..errors import ScheduleError
from ..loops.body import MemoryAccess
from ..loops.disjoint import separates
from ..loops.expressions import Expr, Symbol
from ..options import Decision
from ..schedule.records import ScheduleNode
from ..schedule.rows import RowView
from .dependences import dependences, meeting
from .legality import FusionVerdict, fusion, permutation
from .nests import Access, LoopNest, NestStatement
from .polyhedron import Constraint, Polyhedron, Undecided

#: Loops whose orders are gone through one by one.
MOST_LOOPS = 6


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


def legal_orders(node: ScheduleNode, merges_in_order: bool = False) -> tuple[tuple[str, ...], ...]:
    """The orders of a node's loops, outermost first, that keep every dependence (Theorem 7.2); the running result of a
    reduction only if ``merges_in_order``. For up to :data:`MOST_LOOPS` loops, ScheduleError for more."""
    nest = nest_of(node)
    if nest.depth > MOST_LOOPS:
        raise ScheduleError(f"{nest.depth} loops have too many orders to list", remedy="ask loop_order about one")
    found = dependences(nest)
    found = found if merges_in_order else found.without_merges()
    return tuple(order for order in permutations(nest.names) if permutation(found, order))


def loop_order(node: ScheduleNode, order: Sequence[Symbol]) -> Decision:
    """Whether a node's loops may run in this order, outermost first, as the code generator has chosen it, and why.

    Whether no two iterations touch the same element is usually seen from the strides of what is written
    (:mod:`staxlab.loops.disjoint`); only where it is not are the dependences looked for.
    """
    names = ", ".join(symbol.name for symbol in order)
    merging = [symbol.name for symbol in order if node.body is not None and symbol in node.body.reduction_indices]
    if _writes_apart(node):
        if not merging:
            reason = "no iteration reads or writes what another one writes: every order is legal"
        else:
            reason = (
                f"only the running result is passed on, with a positive distance in {', '.join(merging)}: merging is "
                "associative, so every order is legal"
            )
        return Decision("loop-order", node.name, names, reason)
    found = dependences(nest_of(node)).without_merges()
    verdict = permutation(found, [symbol.name for symbol in order])
    inputs = tuple((f"{d.kind} {d.array}", d.direction) for d in found.found)
    return Decision("loop-order", node.name, names, f"{verdict.rule}: {verdict.reason}", inputs=inputs)


def _writes_apart(node: ScheduleNode) -> bool:
    """Whether it can be read off the strides that every kept iteration writes an element of its own, which no iteration
    reads."""
    if node.kind not in ("pointwise", "reduction") or node.body is None or len(node.writes) != 1:
        return False
    (write,) = node.writes
    if any(access.buffer == write.buffer for access in node.reads):
        return False
    return all(symbol.upper == 0 or separates(write.index, symbol) for symbol in node.body.indices)


def disjoint_loops(node: ScheduleNode) -> tuple[Symbol, ...]:
    """The kept loops in which iterations that differ never write one element, whatever the other loops do: they may be
    shared among threads and moved past the others, in a scatter as well. Exact, given that subscripts read from data
    may have any value in range; O(loops) searches where the strides alone do not show it."""
    assert node.body is not None
    nest = nest_of(node)
    (write,) = nest.statements[0].writes[:1]
    found = []
    pairs = None
    for place, loop in enumerate(node.body.indices):
        if not separates(node.writes[0].index, loop):
            if pairs is None:
                pairs, _ = meeting(nest, nest, write, write, nest.depth)
            ahead = Constraint(tuple(int(k == place) for k in range(len(pairs.names))), -1)
            try:
                if not pairs.where(ahead).is_empty:
                    continue
            except Undecided:
                continue
        found.append(loop)
    return tuple(found)


def row_fusion(first: RowView, second: RowView) -> FusionVerdict:
    """Proposition 7.3 for two nodes over rows of the same extents: the distances in rows, and whether the two may share
    the loops over rows, sequentially and in parallel."""
    return fusion(nest_of(first), nest_of(second), shared=len(first.loops))
