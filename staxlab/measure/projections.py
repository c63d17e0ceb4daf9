"""Sets of points and their shadows (Lemma 9.1): why few operands cannot serve many products.

The products of a matrix multiplication are points ``(i, l, j)`` of a box. A product needs ``a[i, l]``, ``b[l, j]`` and
a partial sum of ``c[i, j]``: the three projections of its point. So a set of products needs as many operands as its
projections have points, and Loomis and Whitney (1949) bound how many products those can serve:

    ``|T|^2 <= |T_12| |T_13| |T_23|``

with equality for a brick. The proof goes slice by slice, and :attr:`Projections.slices` has its numbers: at each ``x``
the slice lies in a rectangle ``alpha x beta`` and below all of ``T_23``, so it has at most ``sqrt(alpha beta |T_23|)``
points; Cauchy and Schwarz add that up.

>>> brick(2, 3, 4).sizes, brick(2, 3, 4).tightness
((6, 8, 12), Fraction(1, 1))
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from ..errors import OptionError
from .tables import Table, Tabular

Point = tuple[int, int, int]
FACES = ((0, 1), (0, 2), (1, 2))


@dataclass(frozen=True)
class Slice:
    """The points with first coordinate ``x``: how many (``size``), and the numbers of the proof: ``alpha`` of their
    second coordinates, ``beta`` of their third (those of the projections of the whole set)."""

    x: int
    size: int
    alpha: int
    beta: int


@dataclass(frozen=True, repr=False)
class Projections(Tabular):
    """A finite set of points in three dimensions, with its projections. Draws itself, slice by slice."""

    points: frozenset[Point]
    axes: tuple[str, str, str] = ("x", "y", "z")

    @cached_property
    def shadows(self) -> tuple[frozenset[tuple[int, int]], ...]:
        """The projections T_12, T_13 and T_23."""
        return tuple(frozenset((p[a], p[b]) for p in self.points) for a, b in FACES)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """How many points each projection has."""
        first, second, third = self.shadows
        return len(first), len(second), len(third)

    @property
    def holds(self) -> bool:
        """Lemma 9.1 for this set, in whole numbers. There is no set for which it does not."""
        return len(self.points) ** 2 <= math.prod(self.sizes)

    @property
    def tightness(self) -> Fraction:
        """``|T|^2`` over the product of the projections: 1 for a brick; of an empty set it is 1."""
        return Fraction(len(self.points) ** 2, math.prod(self.sizes)) if self.points else Fraction(1)

    @cached_property
    def slices(self) -> tuple[Slice, ...]:
        """The slices of the proof, one for each first coordinate."""
        first, second, _ = self.shadows
        found = []
        for x in sorted({p[0] for p in self.points}):
            size = sum(p[0] == x for p in self.points)
            found.append(Slice(x, size, sum(q[0] == x for q in first), sum(q[0] == x for q in second)))
        return tuple(found)

    def summary(self) -> str:
        a, b, c = self.sizes
        return (
            f"|T|^2 = {len(self.points) ** 2:,} <= {a} x {b} x {c} = {a * b * c:,}: at most {math.isqrt(a * b * c):,} "
            f"points have these projections, and there are {len(self.points):,}"
        )

    def table(self) -> Table:
        x, y, z = self.axes
        third = self.sizes[2]
        rows = [
            (f"{x} = {s.x}", s.size, f"{s.alpha} x {s.beta} = {s.alpha * s.beta}", third,
             f"{math.sqrt(s.alpha * s.beta * third):.3f}")
            for s in self.slices
        ]  # fmt: skip
        total = sum(math.sqrt(s.alpha * s.beta * third) for s in self.slices)
        bound = math.sqrt(math.prod(self.sizes))
        rows.append(("all", len(self.points), "", third, f"{total:.3f}"))
        head = ("slice", "points", "alpha x beta", f"|T_{y}{z}|", "at most")
        notes = [self.summary(), f"Cauchy and Schwarz: {total:.4g} <= sqrt of the product = {bound:.4g}"]
        return Table.build(f"A set of {len(self.points):,} points and its projections", head, rows, notes)


def projections(points: Iterable[Any], axes: tuple[str, str, str] = ("x", "y", "z")) -> Projections:
    """The record of a set of points, each three whole numbers. Raises OptionError for anything else."""
    found = []
    for point in points:
        coordinates = tuple(point)
        if len(coordinates) != 3 or not all(isinstance(c, int) for c in coordinates):
            raise OptionError(f"{point!r} is no point of Z^3", remedy="give three whole numbers for each point")
        found.append(coordinates)
    return Projections(frozenset(found), axes)


def brick(rows: int, columns: int, depth: int) -> Projections:
    """All points of a box that begins at the origin, for which the bound is met."""
    return projections(itertools.product(range(rows), range(columns), range(depth)))
