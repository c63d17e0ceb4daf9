"""Which loops of a scatter never write the same element twice: a proof from strides and extents.

Two iterations of a scatter may send their elements to one place, and then their order counts. Where a loop's index
occurs in the subscript with a stride that nothing else can make up for, iterations that differ in it end at different
places, whatever the subscripts read from data turn out to be: such a loop may be shared among threads, vectorised or
moved past others (Proposition 8.1 for writes).
"""

from __future__ import annotations

import math

from .body import LoopBody
from .expressions import Expr, Symbol


def separates(target: Expr, loop: Symbol) -> bool:
    """Whether ``target`` differs for any two values of ``loop``, all other symbols taking any values they may.

    With stride s and extent n of the loop, let the terms of smaller stride span w elements together, and let m be the
    greatest common divisor of the larger strides. If w < s and s (n - 1) + w < m, then the subscript modulo m says
    what the smaller terms and the loop's add up to, and that divided by s which iteration it is. O(terms).
    """
    coefficient = target.coefficient(loop)
    if coefficient is None or not coefficient.is_constant or int(coefficient) == 0:
        return False
    stride = abs(int(coefficient))
    within, beyond = 0.0, 0
    for monomial, factor in target.terms:
        bounds = Expr(((monomial, 1),)).bounds()
        if not monomial or monomial == (loop,) or bounds.upper == bounds.lower:
            continue
        if abs(factor) < stride:
            within += abs(factor) * (bounds.upper - bounds.lower)
        else:
            beyond = math.gcd(beyond, abs(factor))
    span = stride * (int(loop.upper) - int(loop.lower)) + within
    return within < stride and (not beyond or span < beyond)


def dependences(body: LoopBody) -> dict[Symbol, frozenset[Symbol]]:
    """The loop indices on which each subscript read at run time depends."""
    values: dict[int, frozenset[Symbol]] = {}
    found: dict[Symbol, frozenset[Symbol]] = {}

    def of(expression: Expr) -> frozenset[Symbol]:
        return frozenset().union(*(found.get(s, frozenset({s})) for s in expression.symbols))

    for statement in body.all_statements():
        parts = [of(a) for a in statement.args if isinstance(a, Expr)]
        if statement.operation == "masked":
            condition, block, _ = statement.args
            parts += [values[condition], values[block.result]]
        elif statement.operation != "constant":
            parts += [values[a] for a in statement.args if isinstance(a, int) and not isinstance(a, bool)]
        values[statement.id] = frozenset().union(*parts)
        if statement.operation == "indirect":
            found[statement.args[3]] = values[statement.id]
    return found


def is_one_to_one(body: LoopBody) -> bool:
    """Whether a scatter's iterations all write different elements, so that nothing has to be ordered."""
    assert body.target is not None
    return all(separates(body.target, loop) for loop in body.indices)
