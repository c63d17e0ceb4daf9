"""Loop normalisation (Section 6.8): drop unit loops, order loops by stride, merge neighbours (Proposition 6.3).

The iteration space a tensor program suggests is rarely the one a machine wants. A sum over the last axis of a
contiguous ``[8, 16, 128]`` tensor has two outer loops, but every subscript is ``2048*i0 + 128*i1 + r0``: with
``m = 16*i0 + i1`` it is ``128*m + r0``, one loop of 128 rows. None of the three steps changes which elements are
computed or what is stored where; only a reordered *reduction* visits its elements in another order, so it belongs to
the transformations that preserve real but not floating-point semantics (Theorem 6.3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .body import LoopBody
from .expressions import ZERO, Expr, FloorDivision, Modulo, Symbol


@dataclass(frozen=True)
class NormalLoops:
    """A normalised body with its extents and the storage subscript of its store."""

    body: LoopBody
    ranges: tuple[int, ...]
    reduction_ranges: tuple[int, ...]
    store: Expr


def normalize(
    body: LoopBody,
    ranges: tuple[int, ...],
    reduction_ranges: tuple[int, ...],
    store: Expr,
    *,
    ordered: bool = False,
    outer_ordered: bool = False,
) -> NormalLoops:
    """Normalise a body whose loops are all non-empty. ``ordered`` keeps the order of the reduction loops (argmax and
    argmin store a row-major position, so theirs may be merged but not exchanged), ``outer_ordered`` that of the others
    (a scatter may send several iterations to one element)."""
    state = _drop_unit_loops(NormalLoops(body, ranges, reduction_ranges, store))
    state = _reorder(state, ordered, outer_ordered)
    state = _merge(state)
    return _rename(state)


def subscripts(body: LoopBody) -> tuple[Expr, ...]:
    """Every expression of loop indices in a body, in order."""
    found: list[Expr] = []
    for statement in body.all_statements():
        found += [argument for argument in statement.args if isinstance(argument, Expr)]
    return tuple(found)


def _change(
    state: NormalLoops,
    values: Mapping[Symbol, Expr],
    loops: Sequence[tuple[Symbol, int]],
    reduction_loops: Sequence[tuple[Symbol, int]],
) -> NormalLoops:
    body = state.body.substitute(values, tuple(s for s, _ in loops), tuple(s for s, _ in reduction_loops))
    return NormalLoops(
        body, tuple(n for _, n in loops), tuple(n for _, n in reduction_loops), state.store.substitute(values)
    )


def _loops(state: NormalLoops) -> tuple[list[tuple[Symbol, int]], list[tuple[Symbol, int]]]:
    return (
        list(zip(state.body.indices, state.ranges, strict=True)),
        list(zip(state.body.reduction_indices, state.reduction_ranges, strict=True)),
    )


def _drop_unit_loops(state: NormalLoops) -> NormalLoops:
    outer, inner = _loops(state)
    gone = {symbol: ZERO for symbol, extent in outer + inner if extent == 1}
    if not gone:
        return state
    return _change(state, gone, [p for p in outer if p[1] != 1], [p for p in inner if p[1] != 1])


def _reorder(state: NormalLoops, ordered: bool, outer_ordered: bool) -> NormalLoops:
    """Largest stride outermost: of the store for pointwise loops (so that memory is written in order), of the loads
    for reduction loops. Ties and subscripts that are not affine leave the given order."""
    outer, inner = _loops(state)
    new_outer = outer if outer_ordered else sorted(outer, key=lambda pair: -_stride(pair[0], (state.store,)))
    new_inner = inner if ordered else [inner[d] for d in reduction_order(state.body)]
    return _change(state, {}, new_outer, new_inner) if (new_outer, new_inner) != (outer, inner) else state


def reduction_order(body: LoopBody) -> tuple[int, ...]:
    """The positions of a body's reduction loops by the strides of its loads, the largest outermost."""
    loads = [s.args[1] for s in body.all_statements() if s.operation == "load"]
    loops = body.reduction_indices
    return tuple(sorted(range(len(loops)), key=lambda d: -_stride(loops[d], loads)))


def _stride(symbol: Symbol, accesses: Sequence[Expr]) -> int:
    """How far apart neighbours along a loop lie, all accesses together; those that are not affine do not count."""
    total = 0
    for access in accesses:
        coefficient = access.coefficient(symbol)
        if coefficient is not None and coefficient.is_constant:
            total += abs(int(coefficient))
    return total


def _divisions(expressions: Sequence[Expr]) -> int:
    """How many floor divisions and remainders occur: what a merge must not add to."""
    count = 0
    for expression in expressions:
        for monomial, _ in expression.terms:
            for atom in monomial:
                if isinstance(atom, (FloorDivision, Modulo)):
                    count += 1 + _divisions((atom.numerator, atom.denominator))
    return count


def _merge(state: NormalLoops) -> NormalLoops:
    """Merge neighbouring loops while no subscript gets a division by it: exactly Proposition 6.3's condition
    ``a_j = s_{j+1} * a_{j+1}`` for affine subscripts, and its natural extension to subscripts left by a reshape."""
    changed = True
    while changed:
        changed = False
        outer, inner = _loops(state)
        for loops, which in ((outer, 0), (inner, 1)):
            for position in range(len(loops) - 1):
                merged = _try_merge(state, loops, position, which)
                if merged is not None:
                    state, changed = merged, True
                    break
            if changed:
                break
    return state


def _try_merge(state: NormalLoops, loops: list[tuple[Symbol, int]], position: int, which: int) -> NormalLoops | None:
    (first, n), (second, m) = loops[position], loops[position + 1]
    joint = Symbol(f"{first.name}_{second.name}", 0, n * m - 1)
    values = {first: Expr.of(joint) // m, second: Expr.of(joint) % m}
    before = (*subscripts(state.body), state.store)
    after = tuple(e.substitute(values) for e in before)
    if _divisions(after) > _divisions(before):
        return None
    outer, inner = _loops(state)
    target = (outer, inner)[which]
    target[position : position + 2] = [(joint, n * m)]
    return _change(state, values, outer, inner)


def _rename(state: NormalLoops) -> NormalLoops:
    outer, inner = _loops(state)
    values: dict[Symbol, Expr] = {}
    renamed: tuple[list, list] = ([], [])
    for prefix, loops, target in (("i", outer, renamed[0]), ("r", inner, renamed[1])):
        for number, (symbol, extent) in enumerate(loops):
            fresh = Symbol(f"{prefix}{number}", 0, extent - 1)
            values[symbol] = Expr.of(fresh)
            target.append((fresh, extent))
    return _change(state, values, *renamed)


def is_empty(ranges: Sequence[int]) -> bool:
    """Whether a box has no points."""
    return math.prod(ranges) == 0


__all__ = ["NormalLoops", "is_empty", "normalize", "reduction_order", "subscripts"]
