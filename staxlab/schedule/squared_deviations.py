"""Sums of squared deviations that need no pass of their own (Sections 6.5 and 9.5).

A variance is computed in two passes by its definition: ``c = mean(v)``, then ``sum((v - c)^2)``. Splitting the elements
of a row into parts of ``n_j`` elements with means ``m_j`` and sums ``q_j = sum((v - m_j)^2)``,

    ``sum((v - c)^2) = sum over j of ( q_j + n_j (m_j - c)^2 )``    for every number c,

since the deviations from a part's own mean add up to zero. So ``(m_j, q_j)`` can be gathered while c is not yet known,
and c put in afterwards. No term is negative: nothing cancels, whatever c is, unlike in ``sum(v^2) - n c^2``, which
loses all digits when the mean is large beside the deviations (Chan, Golub and LeVeque, 1983, "Algorithms for computing
the sample variance"). A part takes in one more element by the update of Welford (1962), "Note on a method for
calculating corrected sums of squares and products".

Only c that is a mean of v is treated so (:mod:`staxlab.schedule.programs` sees to that): then an infinite v
makes c infinite too, and the sum is NaN in either form.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..loops.body import LoopBody, Statement
from ..loops.expressions import Expr, Symbol
from ..loops.ops import OPERATIONS
from .records import ScheduleNode


@dataclass(frozen=True)
class SquaredDeviations:
    """``sum over the row of (v - c)^2``: a body that makes ``v``, and one that makes ``c``, which a row has one of."""

    value: LoopBody
    center: LoopBody


def squared_deviations(member: ScheduleNode) -> SquaredDeviations | None:
    """What a reduction is a sum of squared deviations of, or None if it is none: a sum of floating-point numbers whose
    body ends in ``d * d`` with ``d = v - c`` or ``c - v``, where ``c`` does not vary along the row, and both need
    neither conditions nor subscripts read at run time. O(statements)."""
    body = member.body
    if member.reduction != "sum" or body is None or not member.accumulate_dtype.is_floating_point:
        return None
    found = {statement.id: statement for statement in body.statements}
    last = found[body.result]
    squared = last.operation == "square" or (last.operation == "mul" and last.args[0] == last.args[1])
    difference = found[last.args[0]] if squared else None
    if difference is None or difference.operation != "sub":
        return None
    one, other = (_part(body, operand) for operand in difference.args)
    if one is None or other is None:
        return None
    for value, center in ((one, other), (other, one)):
        if not _symbols(center) & set(body.reduction_indices):
            return SquaredDeviations(value, center)
    return None


def _symbols(body: LoopBody) -> set[Symbol]:
    """The loops along which a body without conditions varies."""
    subscripts = (a for s in body.statements for a in s.args if isinstance(a, Expr))
    return {symbol for subscript in subscripts for symbol in subscript.symbols}


def _part(body: LoopBody, result: int) -> LoopBody | None:
    """The body that makes only the value of one statement; None where that is no straight line."""
    found = {statement.id: statement for statement in body.statements}
    needed: set[int] = set()
    open_ones = [result]
    while open_ones:
        statement = found[open_ones.pop()]
        operands = _operands(statement)
        if operands is None:
            return None
        needed.add(statement.id)
        open_ones += [operand for operand in operands if operand not in needed]
    return replace(body, statements=tuple(s for s in body.statements if s.id in needed), result=result)


def _operands(statement: Statement) -> tuple[int, ...] | None:
    """The statements whose values one needs; None for a condition or a subscript read at run time."""
    if statement.operation in ("load", "constant", "index_value"):
        subscripts = (a for a in statement.args if isinstance(a, Expr))
        return None if any(s.name.startswith("indirect") for e in subscripts for s in e.symbols) else ()
    if statement.operation == "to_dtype":
        return statement.args[:1]
    return statement.args if statement.operation in OPERATIONS else None


__all__ = ["SquaredDeviations", "squared_deviations"]
