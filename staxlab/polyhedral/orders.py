"""Which orders of a node's loops are legal: what the code generator asks (Sections 7.7 and 8.1).

:func:`loop_order` says of the order that a code generator has chosen whether it keeps what has to be kept, as a
:class:`~staxlab.options.Decision` with the distance that decides; :func:`legal_orders` lists all orders that do, and
:func:`disjoint_loops` the loops of a scatter that threads may share.

Most kernels are answered by a look at their strides (:mod:`staxlab.loops.disjoint`), so what looks for dependences is
imported only where that is not enough: it would be a tenth of the time a process needs for its first compilation.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from ..errors import ScheduleError
from ..loops.disjoint import separates
from ..loops.expressions import Symbol
from ..options import Decision
from ..schedule.records import ScheduleNode

#: Loops whose orders are gone through one by one.
MOST_LOOPS = 6


def legal_orders(node: ScheduleNode, merges_in_order: bool = False) -> tuple[tuple[str, ...], ...]:
    """The orders of a node's loops, outermost first, that keep every dependence (Theorem 7.2); the running result of a
    reduction only if ``merges_in_order``. For up to :data:`MOST_LOOPS` loops, ScheduleError for more."""
    from .distances import dependences
    from .extract import nest_of
    from .legality import permutation

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
    names = ", ".join(symbol.name for symbol in order) or "no loops"
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
    from .distances import dependences
    from .extract import nest_of
    from .legality import permutation

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
    index = node.writes[0].index
    return tuple(loop for k, loop in enumerate(node.body.indices) if separates(index, loop) or _never_meet(node, k))


def _never_meet(node: ScheduleNode, place: int) -> bool:
    """Whether no two iterations that differ in the loop at this place write one element."""
    from .distances import meeting
    from .extract import nest_of
    from .polyhedron import Constraint, Undecided

    nest = nest_of(node)
    write = nest.statements[0].writes[0]
    pairs, _ = meeting(nest, nest, write, write, nest.depth)
    ahead = Constraint(tuple(int(k == place) for k in range(len(pairs.names))), -1)
    try:
        return pairs.where(ahead).is_empty
    except Undecided:
        return False
