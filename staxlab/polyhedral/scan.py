"""Loops that visit the points of a polyhedron: the transformed nest as a program (Section 7.7).

After a unimodular T the iterations are ``y = T x``, and the new nest has to visit exactly those, in lexicographic
order. With ``x = T^-1 y`` the inequalities of the domain become inequalities in y, and eliminating the inner unknowns
by Fourier and Motzkin leaves for each loop bounds in terms of the loops around it: the largest of its lower bounds,
rounded up, and the smallest of its upper bounds, rounded down. A rectangle that was skewed has such bounds. The body
computes the old loop variables from the new ones and is otherwise unchanged.

Tiling adds loops over tiles in front: ``size * tile <= y < size * (tile + 1)`` joins the inequalities, and the same
elimination gives the bounds of both kinds of loops, clipped at the border of the domain.

Source: Ancourt, C., & Irigoin, F. (1991), Scanning polyhedra with DO loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import ScheduleError
from .integers import Matrix, Vector, apply, identity, inverse, matrix, multiply, text
from .nests import LoopNest
from .polyhedron import Constraint, Polyhedron, Row, Undecided, affine_text, bounds_of, projections


@dataclass(frozen=True)
class ScanLoop:
    """A loop of a scan: ``lower`` and ``upper`` are inequalities over (sizes, loops so far, this loop); the largest
    lower and the smallest upper bound count."""

    name: str
    lower: tuple[Row, ...]
    upper: tuple[Row, ...]

    def range_text(self, names: Sequence[str]) -> str:
        """``range(max(1, t0 - 6), min(5, t0) + 1)``."""
        place = len(self.lower[0][0]) - 1 if self.lower else len(names)
        lows = [_bound_text(row, place, names, "max") for row in self.lower]
        highs = [_bound_text(row, place, names, "min") for row in self.upper]
        low = lows[0] if len(lows) == 1 else f"max({', '.join(lows)})"
        if len(highs) == 1:
            high = _plus_one(self.upper[0], place, names)
        else:
            high = f"min({', '.join(highs)}) + 1"
        return f"range({high})" if low == "0" else f"range({low}, {high})"


def _bound_text(row: Row, place: int, names: Sequence[str], which: str) -> str:
    coefficients, constant = row
    factor = coefficients[place]
    rest = coefficients[:place]
    if which == "max":
        if factor == 1:
            return affine_text(tuple(-x for x in rest), -constant, names[:place])
        return f"-(({affine_text(rest, constant, names[:place])}) // {factor})"
    if factor == -1:
        return affine_text(rest, constant, names[:place])
    return f"({affine_text(rest, constant, names[:place])}) // {-factor}"


def _plus_one(row: Row, place: int, names: Sequence[str]) -> str:
    if row[0][place] == -1:
        return _bound_text((row[0], row[1] + 1), place, names, "min")
    return _bound_text(row, place, names, "min") + " + 1"


def scan_loops(domain: Polyhedron, parameters: int) -> tuple[ScanLoop, ...]:
    """Loops over the points of a set whose first ``parameters`` coordinates are given, in lexicographic order.
    ScheduleError for a set that is unbounded or has no rational point."""
    n = len(domain.names)
    rows: list[Row] = []
    for c in domain.constraints:
        rows.append((c.coefficients, c.constant))
        if c.equation:
            rows.append((tuple(-x for x in c.coefficients), -c.constant))
    systems = projections(rows, n)
    if systems is None:
        raise ScheduleError("there are no iterations to run")
    loops = []
    for k in range(parameters, n):
        system = _without_implied(systems[k + 1], systems[k], domain.names, k)
        lower = tuple((a[: k + 1], c) for a, c in system if a[k] > 0)
        upper = tuple((a[: k + 1], c) for a, c in system if a[k] < 0)
        if not lower or not upper:
            raise ScheduleError(f"loop {domain.names[k]} has no bounds")
        loops.append(ScanLoop(domain.names[k], lower, upper))
    return tuple(loops)


def _without_implied(system: list[Row], outside: list[Row], names: Sequence[str], k: int) -> list[Row]:
    """The inequalities that bound coordinate k, without those that the others, and the loops outside, imply."""
    bounding = [row for row in system if row[0][k]]
    kept = [*bounding, *outside]
    for row in sorted(bounding, key=lambda row: -sum(map(abs, row[0]))):
        others = [other for other in kept if other is not row]
        if sum(1 for other in others if other[0][k] * row[0][k] > 0) == 0:
            continue
        opposite = Constraint(tuple(-x for x in row[0]), -row[1] - 1)
        try:
            if Polyhedron(tuple(names), (*(Constraint(*other) for other in others), opposite)).is_empty:
                kept = others
        except Undecided:
            pass
    return kept


@dataclass(frozen=True)
class TransformedNest:
    """A nest after ``rows`` and tiling: y = rows * x in lexicographic order, tile by tile if ``sizes`` gives extents of
    tiles (None where a loop is not tiled; such loops stand outside). Whether that is legal is another question
    (:mod:`.legality`); :meth:`keeps_values` tries it."""

    nest: LoopNest
    rows: Matrix
    sizes: tuple[int | None, ...]

    @cached_property
    def inverse(self) -> Matrix:
        return inverse(self.rows)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The new loops: an old name where a loop stays as it is."""
        unit = identity(self.nest.depth)
        return tuple(
            self.nest.names[unit.index(row)] if row in unit else f"t{k}" for k, row in enumerate(self.rows)
        )  # fmt: skip

    @cached_property
    def domain(self) -> Polyhedron:
        """(sizes, outer loops, tiles, loops): what the new loops visit."""
        depth, parameters = self.nest.depth, self.nest.parameters
        tiled = [k for k, size in enumerate(self.sizes) if size]
        outside = list(range(tiled[0])) if tiled else list(range(depth))
        inside = list(range(tiled[0], depth)) if tiled else []
        tiles = [f"{self.names[k]}_tile" for k in tiled]
        place = {k: len(parameters) + k for k in outside}
        place |= {k: len(parameters) + len(outside) + len(tiles) + n for n, k in enumerate(inside)}
        names = (
            *(p.name for p in parameters), *(self.names[k] for k in outside), *tiles, *(self.names[k] for k in inside),
        )  # fmt: skip
        constraints = []
        for c in self.nest.domain.constraints:
            (over,) = multiply((c.coefficients[:depth],), self.inverse) if depth else ((),)
            row = [0] * len(names)
            for k, factor in enumerate(over):
                row[place[k]] = factor
            for k, factor in enumerate(c.coefficients[depth:]):
                row[k] = factor
            constraints.append(Constraint(tuple(row), c.constant, c.equation))
        for n, k in enumerate(tiled):
            size = self.sizes[k] or 1
            row = [0] * len(names)
            row[place[k]], row[len(parameters) + len(outside) + n] = 1, -size
            constraints += [Constraint(tuple(row), 0), Constraint(tuple(-x for x in row), size - 1)]
        return Polyhedron(names, tuple(constraints))

    @cached_property
    def loops(self) -> tuple[ScanLoop, ...]:
        return scan_loops(self.domain, len(self.nest.parameters))

    def new_points(self) -> Iterator[Vector]:
        """y in the order in which the loops visit it."""
        if self.nest.parameters:
            self.nest.points()  # says what is missing
        places = [self.domain.names.index(name) for name in self.names]

        def descend(values: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
            if len(values) == len(self.loops):
                yield values
                return
            loop = self.loops[len(values)]
            low, high = bounds_of((*loop.lower, *loop.upper), values)
            assert low is not None and high is not None
            for value in range(low, high + 1):
                yield from descend((*values, value))

        for values in descend(()):
            yield tuple(values[place] for place in places)

    def order(self) -> Iterator[Vector]:
        """The iterations x in the order in which the new loops run them."""
        for y in self.new_points():
            yield apply(self.inverse, y)

    def keeps_values(self) -> bool:
        """Whether the new loops run every iteration once and leave in memory what the old ones do."""
        return self.nest.same_values(self.order())

    def format(self) -> str:
        """The new nest as Python."""
        lines = []
        for depth, loop in enumerate(self.loops):
            lines.append("    " * depth + f"for {loop.name} in {loop.range_text(self.domain.names)}:")
        inside = "    " * len(self.loops)
        changed = [k for k, name in enumerate(self.nest.names) if name not in self.names]
        if changed:
            left = ", ".join(self.nest.names[k] for k in changed)
            right = ", ".join(affine_text(self.inverse[k], 0, self.names) for k in changed)
            lines.append(f"{inside}{left} = {right}")
        lines += [inside + statement.text for statement in self.nest.statements]
        return "\n".join(lines)

    __str__ = format

    def __repr__(self) -> str:
        return f"<TransformedNest T = {text(self.rows)}, tiles {self.sizes}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def transformed(
    nest: LoopNest, rows: Sequence[Sequence[int]] | None = None, tiles: Sequence[int | None] | None = None
) -> TransformedNest:
    """The nest run in another order: by a unimodular matrix, by tiles, or both (the tiles are of the new loops).
    ScheduleError for a matrix that is not unimodular or tiles of another number of loops."""
    square = identity(nest.depth) if rows is None else matrix(rows)
    sizes = tuple(tiles) if tiles is not None else (None,) * nest.depth
    if len(square) != nest.depth or len(sizes) != nest.depth:
        raise ScheduleError(f"the nest has {nest.depth} loops", remedy="give a row and a tile extent for each")
    if any(size is not None and size < 1 for size in sizes):
        raise ScheduleError(f"tiles have an extent of at least 1, not {sizes}")
    inverse(square)
    return TransformedNest(nest, square, sizes)


def source(nest: LoopNest) -> str:
    """The nest itself as Python, its bounds as the domain gives them."""
    return transformed(nest).format()
