"""Linear programs over the rationals, and the lemma of Farkas (Lemma 7.1).

*Lemma 7.1 (affine form).* An affine function psi is non-negative everywhere on a non-empty polyhedron ``{x : a_k . x +
b_k >= 0}`` if and only if it is a non-negative combination of the inequalities that describe it: ``psi(x) = m_0 + sum
m_k (a_k . x + b_k)`` for all x, with all multipliers ``m >= 0``. (An equation counts as two inequalities, so its
multiplier may have any sign.)

The lemma turns "for all points" into "there are multipliers": comparing coefficients of x on both sides gives equations
that are linear in psi and in the multipliers together. So the functions psi that are non-negative on a polyhedron, of
which there are infinitely many points, are found by a linear program.

Programs here have a few dozen unknowns, and their answers are proofs; so they are solved exactly, by the simplex method
on fractions with Bland's rule, which cannot cycle. Where a program has no solution the method ends with the multipliers
that prove it: a combination of the equations whose left side can only be negative and whose right side is positive.

Sources: Farkas, J. (1902), Theorie der einfachen Ungleichungen; Schrijver, A. (1986), *Theory of Linear and Integer
Programming*, sections 7.3 and 11; Bland, R. G. (1977), New finite pivoting rules for the simplex method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from .polyhedron import Polyhedron

Rational = Fraction | int


@dataclass(frozen=True)
class Solution:
    """``values`` of least ``cost``; or, where there are none, ``proof``: factors y for the equations with ``y . A <=
    0`` and ``y . b > 0``. A program whose cost has no lower bound has neither."""

    values: tuple[Fraction, ...] | None
    cost: Fraction = Fraction(0)
    proof: tuple[Fraction, ...] | None = None

    @property
    def is_feasible(self) -> bool:
        return self.values is not None


def minimize(cost: Sequence[Rational], rows: Sequence[Sequence[Rational]], right: Sequence[Rational]) -> Solution:
    """The x >= 0 with ``rows * x = right`` for which ``cost . x`` is least. Exact."""
    unknowns, equations = len(cost), len(rows)
    signs = [-1 if b < 0 else 1 for b in right]
    # The tableau: unknowns, one artificial unknown per equation, and the right side.
    table = [
        [Fraction(s * a) for a in row] + [Fraction(int(i == k)) for k in range(equations)] + [Fraction(s * b)]
        for i, (row, b, s) in enumerate(zip(rows, right, signs, strict=True))
    ]
    basis = list(range(unknowns, unknowns + equations))
    price = [-sum((row[j] for row in table), Fraction(0)) for j in range(unknowns)]
    price += [Fraction(0)] * equations + [-sum((row[-1] for row in table), Fraction(0))]
    _pivot_to_the_end(table, price, basis, unknowns + equations)
    if price[-1] != 0:
        proof = tuple(s * (1 - price[unknowns + k]) for k, s in enumerate(signs))
        return Solution(None, proof=proof)
    for i in range(equations):  # artificial unknowns that are left have the value 0 and give way where they can
        if basis[i] >= unknowns:
            enter = next((j for j in range(unknowns) if table[i][j]), None)
            if enter is not None:
                _exchange(table, price, basis, i, enter)
    price = [Fraction(c) for c in cost] + [Fraction(0)] * (equations + 1)
    for i, column in enumerate(basis):
        if column < unknowns and price[column]:
            factor = price[column]
            price = [p - factor * t for p, t in zip(price, table[i], strict=True)]
    if not _pivot_to_the_end(table, price, basis, unknowns):
        return Solution(None)
    values = [Fraction(0)] * unknowns
    for i, column in enumerate(basis):
        if column < unknowns:
            values[column] = table[i][-1]
    return Solution(tuple(values), -price[-1])


def _pivot_to_the_end(table: list[list[Fraction]], price: list[Fraction], basis: list[int], columns: int) -> bool:
    """Exchange until no price is negative; False if the cost can fall for ever. Bland: always the first that will
    do."""
    while True:
        enter = next((j for j in range(columns) if price[j] < 0), None)
        if enter is None:
            return True
        ratios = [(row[-1] / row[enter], basis[i], i) for i, row in enumerate(table) if row[enter] > 0]
        if not ratios:
            return False
        _exchange(table, price, basis, min(ratios)[2], enter)


def _exchange(table: list[list[Fraction]], price: list[Fraction], basis: list[int], leave: int, enter: int) -> None:
    pivot = table[leave][enter]
    chosen = table[leave] = [entry / pivot for entry in table[leave]]
    places = [j for j, entry in enumerate(chosen) if entry]  # most entries are zero
    for row in (*table[:leave], *table[leave + 1 :], price):
        factor = row[enter]
        if factor:
            for j in places:
                row[j] -= factor * chosen[j]
    basis[leave] = enter


@dataclass(frozen=True)
class Multipliers:
    """Lemma 7.1 for one function: ``free`` is m_0, ``of`` the multipliers of the polyhedron's constraints, in order."""

    free: Fraction
    of: tuple[Fraction, ...]

    def format(self, polyhedron: Polyhedron) -> str:
        """``2 + 1*(i - 1)``: the combination, as a sum of the constraints it uses."""
        terms = [str(self.free)] if self.free or not any(self.of) else []
        for factor, constraint in zip(self.of, polyhedron.constraints, strict=True):
            if factor:
                inside = constraint.format(polyhedron.names).rsplit(" ", 2)[0]
                terms.append(f"{factor}*({inside})")
        return " + ".join(terms)


def farkas_rows(polyhedron: Polyhedron) -> tuple[list[list[int]], list[bool]]:
    """The right side of Lemma 7.1 as columns: ``rows[j]`` are the coefficients of coordinate j in ``m_0 + sum m_k (a_k
    x + b_k)`` by (m_0, m_1, ...), the last row those of the constant; and which multipliers may be negative."""
    n = len(polyhedron.names)
    rows = [[0, *(c.coefficients[j] for c in polyhedron.constraints)] for j in range(n)]
    rows.append([1, *(c.constant for c in polyhedron.constraints)])
    return rows, [False, *(c.equation for c in polyhedron.constraints)]


def farkas(polyhedron: Polyhedron, coefficients: Sequence[Rational], constant: Rational) -> Multipliers | None:
    """Multipliers that show ``coefficients . x + constant >= 0`` on a polyhedron that is not empty; None if it is
    somewhere negative (at a rational point: the lemma does not know integers)."""
    rows, signed = farkas_rows(polyhedron)
    # A multiplier of any sign is the difference of two that are not negative.
    columns = [(k, 1) for k in range(len(signed))] + [(k, -1) for k, free in enumerate(signed) if free]
    system = [[sign * row[k] for k, sign in columns] for row in rows]
    found = minimize([1] * len(columns), system, [*coefficients, constant])
    if found.values is None:
        return None
    total = [Fraction(0)] * len(signed)
    for (k, sign), value in zip(columns, found.values, strict=True):
        total[k] += sign * value
    return Multipliers(total[0], tuple(total[1:]))


def holds(multipliers: Multipliers, polyhedron: Polyhedron, coefficients: Sequence[Any], constant: Rational) -> bool:
    """Whether the multipliers prove what they should, by comparing coefficients."""
    if multipliers.free < 0:
        return False
    for factor, c in zip(multipliers.of, polyhedron.constraints, strict=True):
        if factor < 0 and not c.equation:
            return False
    rows, _ = farkas_rows(polyhedron)
    every = (multipliers.free, *multipliers.of)
    sides = [sum((a * m for a, m in zip(row, every, strict=True)), Fraction(0)) for row in rows]
    return sides == [Fraction(x) for x in (*coefficients, constant)]
