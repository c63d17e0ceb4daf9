"""The search for a reordering that makes a band of loops fully permutable, and so tileable (Section 7.7).

Tiling needs distances without negative components (Theorem 7.3), and a nest as it is written may have some. A row r of
T is *admissible* if ``r . delta >= 0`` for every distance delta: admissible rows are the integer points of a cone, and
T makes the band fully permutable exactly if all its rows are admissible (then ``T delta`` is not negative, and not zero
since T can be inverted). So the search is for linearly independent points of a cone whose determinant is 1 or -1.

:func:`make_permutable` looks through all matrices whose entries are at most ``bound`` in size, those nearest to the
identity first, for up to three loops. For any number of loops there is a construction (:func:`skewed`): going from the
outermost loop inwards, add to each row a multiple of the sum of the rows already found. A distance is lexicographically
positive; if its component in the current loop is negative then one before it is positive, and a large enough multiple
outweighs it. So a nest with finitely many distances can always be skewed into a fully permutable one.

Sources: Wolf, M. E., & Lam, M. S. (1991), A data locality optimizing algorithm; Bondhugula, U., et al. (2008), A
practical automatic polyhedral parallelizer and locality optimizer (which chooses among the same rows by a linear
program).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product
from typing import Any

from .distances import Dependences
from .integers import Matrix, Vector, determinant, dot, identity, inverse, text
from .legality import Verdict, tiling, transformation
from .polyhedron import Constraint, Undecided

#: Entries of a matrix are looked for up to this size.
BOUND = 3

#: Distances that may each ask for a larger factor; where there is a largest factor, few do.
MOST_WITNESSES = 64


@dataclass(frozen=True)
class Transformation:
    """A unimodular ``rows`` for the nest of ``dependences``: iteration x runs at ``rows * x``. ``legal`` and
    ``permutable`` are checked, not claimed; ``method`` says how it was found. Draws the nest before and after."""

    dependences: Dependences
    rows: Matrix
    legal: Verdict
    permutable: Verdict
    method: str = "given"

    @property
    def inverse(self) -> Matrix:
        return inverse(self.rows)

    @property
    def determinant(self) -> int:
        return determinant(self.rows)

    @property
    def distances(self) -> tuple[tuple[Vector, Vector], ...]:
        """Each listed distance and its image."""
        return tuple((v, tuple(dot(row, v) for row in self.rows)) for v in self.dependences.distances)

    def format(self) -> str:
        """The matrix, what becomes of each distance, and both verdicts."""
        lines = [f"T = {text(self.rows)}, determinant {self.determinant}, inverse {text(self.inverse)} ({self.method})"]
        lines += [f"  distance {text(before)} -> {text(after)}" for before, after in self.distances]
        return "\n".join([*lines, f"  {self.legal}", f"  {self.permutable}"])

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def transform(found: Dependences, rows: Sequence[Sequence[int]], method: str = "given") -> Transformation:
    """A record of one transformation with both verdicts. ScheduleError unless ``rows`` is unimodular."""
    legal = transformation(found, rows)
    square = tuple(tuple(int(x) for x in row) for row in rows)
    inverse(square)
    return Transformation(found, square, legal, tiling(found, rows=square), method)


def make_permutable(found: Dependences, bound: int = BOUND) -> Transformation | None:
    """A unimodular transformation after which all loops of the nest form a fully permutable band, or None.

    Up to three loops: of all matrices with entries up to ``bound``, one that is nearest to the identity (least sum of
    differences, then least entries); None proves that there is none among them and that the construction, which knows
    no bound, gives none either. More loops: the construction. (2 bound + 1)^depth rows are tried.
    """
    depth = found.nest.depth
    if tiling(found):
        return transform(found, identity(depth), "nothing to do")
    if depth <= 3:
        best = next(iter(_nearest(admissible_rows(found, bound), depth)), None)
        if best is not None:
            return transform(found, best, f"nearest to the identity among entries up to {bound}")
    rows = skewed(found)
    return None if rows is None else transform(found, rows, "constructed, loop by loop")


def admissible_rows(found: Dependences, bound: int) -> list[Vector]:
    """Rows with entries up to ``bound`` under which no distance is negative."""
    depth = found.nest.depth
    rows = []
    for row in product(range(-bound, bound + 1), repeat=depth):
        if any(row) and not _has_negative(found, row):
            rows.append(row)
    return rows


def _has_negative(found: Dependences, row: Vector) -> bool:
    try:
        return any(d.find(Constraint(tuple(-x for x in row), -1)) is not None for d in found.found)
    except Undecided:
        return True


def _nearest(rows: list[Vector], depth: int) -> Iterator[Matrix]:
    """The matrices of determinant 1 or -1 made of these rows, the best one only."""
    unit = identity(depth)

    def distance(row: Vector, place: int) -> int:
        return sum(abs(a - b) for a, b in zip(row, unit[place], strict=True))

    cheapest = {row: min(distance(row, place) for place in range(depth)) for row in rows}
    rows = sorted(rows, key=lambda row: (cheapest[row], row))
    best: tuple[tuple, Matrix] | None = None
    for chosen in combinations(rows, depth):
        if best is not None and sum(cheapest[row] for row in chosen) > best[0][0]:
            continue
        if abs(determinant(chosen)) != 1:
            continue
        for order in permutations(chosen):
            cost = sum(distance(row, place) for place, row in enumerate(order))
            key = (cost, sum(abs(x) for row in order for x in row), -determinant(order), order)
            if best is None or key < best[0]:
                best = (key, order)
    if best is not None:
        yield best[1]


def skewed(found: Dependences) -> Matrix | None:
    """The construction: lower triangular, so legal for any nest. None where a component is unbounded below, or a search
    gives up."""
    depth = found.nest.depth
    rows: list[Vector] = []
    for place in range(depth):
        unit = tuple(int(j == place) for j in range(depth))
        total = tuple(map(sum, zip(*rows, strict=True))) if rows else (0,) * depth
        factor = 0
        for _ in range(MOST_WITNESSES):
            row = tuple(u + factor * t for u, t in zip(unit, total, strict=True))
            try:
                witness = next(
                    (v for d in found.found if (v := d.find(Constraint(tuple(-x for x in row), -1))) is not None), None
                )
            except Undecided:
                return None
            if witness is None:
                break
            ahead = dot(total, witness)
            needed = -(dot(unit, witness) // ahead) if ahead > 0 else 0  # rounded up
            if needed <= factor:
                return None
            factor = needed
        else:
            return None  # every factor is outweighed by another distance
        rows.append(row)
    return tuple(rows)
