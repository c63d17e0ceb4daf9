"""Relations between sizes, and what a range says about them (Section 10.2, Definition 10.2).

A decision about a size (``x.shape[0] > 32``) is a :class:`Relation` between two integer expressions over size symbols.
Every symbol carries the range its values lie in, so a relation has three possible answers (the interval reasoning of
Section 6.8): true for every value of the range, false for every value, or undetermined. What is undetermined has to be
asked again at every call: it becomes a guard.

A symbol may also stand for the multiples of a number: ``n = 8 k`` is an expression like any other, and ``n % 8 == 0``
is true of it by algebra alone.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass

from ..loops.expressions import Bound, Expr, Interval, Like, Symbol

#: The comparison that holds where the other does not.
NEGATION = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
COMPARISONS = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_SWAPPED = {"==": "==", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}

#: Ranges of at most so many values are looked through one by one where intervals leave a relation open.
ENUMERATED = 1 << 16


@dataclass(frozen=True)
class Relation:
    """``left comparison right`` between integer expressions, such as ``s0 > 32`` or ``p == q``."""

    left: Expr
    comparison: str
    right: Expr

    @staticmethod
    def of(left: Like, comparison: str, right: Like) -> Relation:
        """A relation of expressions, symbols or integers, written with the constant on the right and positive terms:
        ``32 < n`` is ``n > 32``, and ``0 == n - m`` is ``n == m``."""
        left, right = Expr.of(left), Expr.of(right)
        if not (left.symbols and right.symbols):  # keep what the program compared, but for a lone constant
            if left.is_constant and not right.is_constant:
                left, comparison, right = right, _SWAPPED[comparison], left
            return Relation(left, comparison, right)
        return Relation(left, comparison, right)

    @property
    def symbols(self) -> frozenset[Symbol]:
        return self.left.symbols | self.right.symbols

    def negated(self) -> Relation:
        return Relation(self.left, NEGATION[self.comparison], self.right)

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether it holds for these values of its symbols, by name."""
        return _compare(self.left.evaluate(values) - self.right.evaluate(values), self.comparison)

    def decide(self) -> bool | None:
        """True or False if it is that for every value in the ranges of its symbols, else None (undetermined).

        Sound by Proposition 6.4; exact for one symbol with at most :data:`ENUMERATED` values. O(terms), or as many
        evaluations as the range has values.
        """
        bounds = _bounds(self.left - self.right)
        answer = _decide_interval(bounds.lower, bounds.upper, self.comparison)
        if answer is not None:
            return answer
        values = self._values()
        if values is None:
            return None
        (symbol,) = self.symbols
        found = {self.holds({symbol.name: value}) for value in values}
        return found.pop() if len(found) == 1 else None

    def range_around(self, hint: int) -> tuple[Bound, Bound] | None:
        """The longest interval around ``hint``, inside the range of the one symbol, for all of whose values the
        relation holds; None for several symbols, or if it does not hold at the hint."""
        if len(self.symbols) != 1:
            return None
        (symbol,) = self.symbols
        if not self.holds({symbol.name: hint}):
            return None
        linear = self._linear(symbol)
        if linear is not None:
            low, high = linear
            low, high = max(low, symbol.lower), min(high, symbol.upper)
            if self.comparison != "!=":
                return (low, high)
        form = (self.left - self.right).affine([symbol])
        if self.comparison == "!=" and linear is None and form is not None and form[0] != (0,):
            return (symbol.lower, symbol.upper)  # 3 n != 7 holds for every whole n
        if self._values() is None and not math.isinf(symbol.upper - symbol.lower) and linear is None:
            return None
        low = high = hint
        while low > symbol.lower and hint - low < ENUMERATED and self.holds({symbol.name: low - 1}):
            low -= 1
        if math.isinf(symbol.upper) and self.comparison == "!=" and linear is not None:
            edge = linear[0]
            return (max(edge + 1, symbol.lower), symbol.upper) if hint > edge else (symbol.lower, edge - 1)
        while high < symbol.upper and high - hint < ENUMERATED and self.holds({symbol.name: high + 1}):
            high += 1
        return (low, high)

    def solutions(self) -> tuple[Bound, Bound] | None:
        """All solutions of a linear relation in one symbol, where they are an interval; else None."""
        if len(self.symbols) != 1 or self.comparison == "!=":
            return None
        (symbol,) = self.symbols
        return self._linear(symbol)

    def over(self, ranges: Mapping[Symbol, tuple[Bound, Bound]]) -> Relation:
        """The same relation with other ranges for some of its symbols."""
        narrowed = {s: Expr.of(Symbol(s.name, *ranges[s])) for s in self.symbols if s in ranges}
        return Relation(self.left.substitute(narrowed), self.comparison, self.right.substitute(narrowed))

    def _linear(self, symbol: Symbol) -> tuple[Bound, Bound] | None:
        """Of ``a*n + b comparison 0``: the interval of solutions; for ``!=`` the point that is none, twice."""
        form = (self.left - self.right).affine([symbol])
        if form is None:
            return None
        (a,), b = form
        if a == 0:
            return None
        edge = -b / a
        comparison = self.comparison if a > 0 else _SWAPPED[self.comparison]
        if comparison in ("==", "!="):
            return (int(edge), int(edge)) if edge == int(edge) else None
        return {
            "<": (-math.inf, math.ceil(edge) - 1), "<=": (-math.inf, math.floor(edge)),
            ">": (math.floor(edge) + 1, math.inf), ">=": (math.ceil(edge), math.inf),
        }[comparison]  # fmt: skip

    def _values(self) -> range | None:
        if len(self.symbols) != 1:
            return None
        (symbol,) = self.symbols
        count = symbol.upper - symbol.lower + 1
        return range(int(symbol.lower), int(symbol.upper) + 1) if count <= ENUMERATED else None

    def python(self) -> str:
        """Python text over the names of the symbols."""
        return f"{self.left} {self.comparison} {self.right}"

    __str__ = python


def _bounds(difference: Expr) -> Interval:
    """Bounds of a polynomial: those of interval arithmetic, met with what counting every symbol from the lower end of
    its range tells. ``s*t - t`` over [2, inf) is ``(s' + 1)*(t' + 2)`` with ``s', t' >= 0``, so at least 2: the
    monotonicity that Section 10.3 uses for polynomials with nonnegative coefficients."""
    plain = difference.bounds()
    symbols = difference.symbols
    if any(math.isinf(symbol.lower) for symbol in symbols):
        return plain
    shifted = difference.substitute({s: Expr.of(Symbol(f"{s.name}'")) + int(s.lower) for s in symbols})
    coefficients = [c for monomial, c in shifted.terms if monomial]
    known = all(isinstance(atom, Symbol) or atom.bounds().lower >= 0 for m, _ in shifted.terms for atom in m)
    lower = shifted.constant_term if known and all(c >= 0 for c in coefficients) else -math.inf
    upper = shifted.constant_term if known and all(c <= 0 for c in coefficients) else math.inf
    return Interval(max(plain.lower, lower), min(plain.upper, upper))


def _compare(difference: int, comparison: str) -> bool:
    return {
        "==": difference == 0, "!=": difference != 0, "<": difference < 0,
        "<=": difference <= 0, ">": difference > 0, ">=": difference >= 0,
    }[comparison]  # fmt: skip


def _decide_interval(lower: Bound, upper: Bound, comparison: str) -> bool | None:
    """Whether every, or no, difference in [lower, upper] compares so with 0."""
    if comparison in ("!=", ">=", ">"):
        opposite = _decide_interval(lower, upper, NEGATION[comparison])
        return None if opposite is None else not opposite
    if comparison == "==":
        return True if lower == upper == 0 else False if lower > 0 or upper < 0 else None
    if comparison == "<":
        return True if upper < 0 else False if lower >= 0 else None
    return True if upper <= 0 else False if lower > 0 else None  # <=
