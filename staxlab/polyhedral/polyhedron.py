"""Sets of integer points between planes: is one empty, which points does it hold, how far does it reach?

The iterations of a nest whose bounds are sums of loop variables are the integer points of a polyhedron, and so are the
pairs of iterations that touch the same element. Everything Section 7.7 asks is asked of such sets, in three steps.

1. *Equations* are solved over the integers (:func:`.integers.solve`): the solutions are a lattice, and its multipliers
   take the place of the unknowns. ``2 x = 2 y + 1`` ends here: it has rational solutions and no integer one.
2. *Inequalities* are projected by Fourier-Motzkin elimination: to get rid of an unknown, each of its lower bounds is
   put below each of its upper bounds. What is left says exactly which rational values the other unknowns may take.
   Each inequality is divided by the common factor of its coefficients and its constant rounded down, which loses no
   integer point.
3. *Points* are found by going through the unknowns in order, each between the bounds that the projections give for the
   values chosen so far. Projections may let through a value that no integer point has; then the search comes back.

The search is complete where the set is bounded, and gives up after :data:`MOST_STEPS` values (:class:`Undecided`),
which no question about a kernel of ours comes near. Fourier-Motzkin elimination may square the number of inequalities
with each unknown; sets here have at most a dozen.

Sources: Pugh, W. (1991), The Omega test; Schrijver, A. (1986), *Theory of Linear and Integer Programming*, section
12.2. For sets beyond this, :meth:`Polyhedron.isl` gives the same set to the integer set library (Verdoolaege 2010).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import MissingDependencyError, ScheduleError
from .integers import Vector, dot, solve

#: Values the search for a point may try, and inequalities a projection may have.
MOST_STEPS = 20_000
MOST_INEQUALITIES = 2_000


class Undecided(ScheduleError):
    """A question about a set would take too long to answer. Whoever asks has to expect the worst."""


@dataclass(frozen=True)
class Constraint:
    """``coefficients . x + constant >= 0``, or ``= 0`` for an equation."""

    coefficients: Vector
    constant: int
    equation: bool = False

    def format(self, names: Sequence[str]) -> str:
        return f"{affine_text(self.coefficients, self.constant, names)} {'=' if self.equation else '>='} 0"


def affine_text(coefficients: Sequence[Any], constant: Any, names: Sequence[str]) -> str:
    """``2*i - j + 3``."""
    pieces = []
    for factor, name in (*zip(coefficients, names, strict=True), (constant, "")):
        if not factor:
            continue
        size = abs(factor)
        word = str(size) if not name else name if size == 1 else f"{size}*{name}"
        sign = "-" if factor < 0 else "+"
        pieces.append(f"{'-' if factor < 0 else ''}{word}" if not pieces else f" {sign} {word}")
    return "".join(pieces) or "0"


Row = tuple[Vector, int]  # coefficients and constant of an inequality
Bounds = tuple[int | None, int | None]  # None: unbounded on this side


@dataclass(frozen=True)
class Polyhedron:
    """The integer points x, named ``names``, for which all ``constraints`` hold."""

    names: tuple[str, ...]
    constraints: tuple[Constraint, ...]

    @staticmethod
    def box(names: Sequence[str], bounds: Sequence[Bounds]) -> Polyhedron:
        """The points between a lower and an upper bound in each coordinate, both included."""
        n = len(names)
        found = []
        for k, (low, high) in enumerate(bounds):
            unit = [int(j == k) for j in range(n)]
            found += [] if low is None else [Constraint(tuple(unit), -low)]
            found += [] if high is None else [Constraint(tuple(-u for u in unit), high)]
        return Polyhedron(tuple(names), tuple(found))

    def where(self, *constraints: Constraint) -> Polyhedron:
        """The points for which these hold as well."""
        return Polyhedron(self.names, self.constraints + constraints)

    def holds(self, point: Sequence[int]) -> bool:
        """Whether a point belongs to the set."""
        values = [(c, dot(c.coefficients, point) + c.constant) for c in self.constraints]
        return all(value == 0 if c.equation else value >= 0 for c, value in values)

    @cached_property
    def _search(self) -> _Search:
        return _Search(self)

    @property
    def is_empty(self) -> bool:
        """Whether there is no integer point. Undecided where that would take too long."""
        return self.sample() is None

    def sample(self) -> Vector | None:
        """A point near the origin, or None if there is none. Undecided where that would take too long."""
        return next(self._search.points(len(self.names), near=True), None)

    def points(self, first: int | None = None) -> Iterator[Vector]:
        """All points in lexicographic order; with ``first``, the different values of that many leading coordinates.
        Does not end where the set is unbounded."""
        return self._search.points(len(self.names) if first is None else first)

    def range_of(self, coefficients: Vector, constant: int = 0) -> Bounds:
        """The least and the greatest value of ``coefficients . x + constant``; None on a side where there is none, or
        where the search for a point that takes it gives up. The set must not be empty."""
        value = Constraint((-1, *coefficients), constant, True)
        lifted = tuple(Constraint((0, *c.coefficients), c.constant, c.equation) for c in self.constraints)
        with_value = Polyhedron(("value", *self.names), (value, *lifted))
        low, high = with_value._search.first_range()
        try:
            # The projection is exact for rationals; integers may begin a little further inside.
            for _ in range(64):
                if low is not None and with_value.where(_equal(len(self.names) + 1, low)).is_empty:
                    low += 1
                elif high is not None and with_value.where(_equal(len(self.names) + 1, high)).is_empty:
                    high -= 1
                else:
                    break
        except Undecided:
            pass
        return low, high

    def projected(self, first: int) -> Polyhedron:
        """What the constraints say about the first coordinates alone: the shadow of the set, for rational points.
        Undecided where it would take too many inequalities."""
        equations = [(c.coefficients, c.constant) for c in self.constraints if c.equation]
        rows = [(c.coefficients, c.constant) for c in self.constraints if not c.equation]
        for k in reversed(range(first, len(self.names))):
            pivot = next((row for row in equations if row[0][k]), None)
            if pivot is not None:  # an equation says what this coordinate is
                equations = [_without(row, pivot, k) for row in equations if row is not pivot]
                rows = [_without(row, pivot, k) for row in rows]
        rest = len(self.names) - first
        systems = projections(rows, len(self.names), rest)
        names = self.names[:first]
        if systems is None:
            return Polyhedron(names, (Constraint((0,) * first, -1),))
        kept = [Constraint(a[:first], b) for a, b in systems[0]]
        seen = dict.fromkeys(_scaled(row) for row in equations)
        return Polyhedron(names, (*(Constraint(a[:first], b, True) for a, b in seen if any(a) or b), *kept))

    def format(self) -> str:
        """``{ (i, j) : i >= 0 and ... }``."""
        inside = " and ".join(c.format(self.names) for c in self.constraints) or "true"
        return f"{{ ({', '.join(self.names)}) : {inside} }}"

    __str__ = format

    def isl(self) -> Any:
        """The same set as an ``islpy.Set``, for what is beyond this module. MissingDependencyError without islpy."""
        try:
            import islpy
        except ImportError as error:
            raise MissingDependencyError(
                "integer sets of isl need islpy", remedy="pip install 'staxlab[polyhedral]'"
            ) from error
        space = [f"x{k}" for k in range(len(self.names))]  # names of ours may be none of isl's
        inside = " and ".join(c.format(space) for c in self.constraints)
        return islpy.Set(f"{{ [{', '.join(space)}] {': ' + inside if inside else ''} }}")


def _equal(n: int, value: int) -> Constraint:
    """The first of n coordinates has this value."""
    return Constraint((1, *[0] * (n - 1)), -value, True)


class _Search:
    """The points of a set by way of the multipliers of the solutions of its equations."""

    def __init__(self, polyhedron: Polyhedron):
        n = len(polyhedron.names)
        equations = [c for c in polyhedron.constraints if c.equation]
        self.solutions = solve(
            tuple(c.coefficients for c in equations), [-c.constant for c in equations], n
        )  # fmt: skip
        self.systems: list[list[Row]] | None = None
        if self.solutions is None:
            return
        basis, start = self.solutions.basis, self.solutions.particular
        rows: list[Row] = []
        for c in polyhedron.constraints:
            if not c.equation:
                factors = tuple(dot(c.coefficients, direction) for direction in basis)
                rows.append((factors, dot(c.coefficients, start) + c.constant))
        self.systems = projections(rows, len(basis))
        # The coordinate that each multiplier decides.
        self.leads = [next(k for k, entry in enumerate(direction) if entry) for direction in basis]

    def first_range(self) -> Bounds:
        """Between which values the first coordinate lies, as the projection has it."""
        if self.systems is None:
            return None, None
        assert self.solutions is not None
        if not self.leads or self.leads[0] != 0:
            value = self.solutions.particular[0]
            return value, value
        step, start = self.solutions.basis[0][0], self.solutions.particular[0]
        low, high = bounds_of(self.systems[1], ())
        return (None if low is None else start + step * low), (None if high is None else start + step * high)

    def points(self, first: int, near: bool = False) -> Iterator[Vector]:
        if self.systems is None:
            return
        assert self.solutions is not None
        basis, particular, systems = self.solutions.basis, self.solutions.particular, self.systems
        deciding = sum(1 for lead in self.leads if lead < first)
        steps = [MOST_STEPS]

        def descend(depth: int, values: tuple[int, ...], point: Vector, stop: bool) -> Iterator[Vector]:
            if depth == len(basis):
                yield point
                return
            low, high = bounds_of(systems[depth + 1], values)
            lead = self.leads[depth]
            nearest = -(point[lead] // basis[depth][lead]) if near or stop or low is None else low
            for value in _values(low, high, nearest):
                if steps[0] == 0:
                    raise Undecided("too many values were tried in the search for an iteration")
                steps[0] -= 1
                moved = tuple(p + value * b for p, b in zip(point, basis[depth], strict=True))
                if depth + 1 <= deciding and not stop:
                    inner = descend(depth + 1, (*values, value), moved, depth + 1 == deciding)
                    if depth + 1 == deciding:  # one witness is enough for the coordinates that are asked for
                        found = next(inner, None)
                        if found is not None:
                            steps[0] = MOST_STEPS
                            yield found[:first]
                    else:
                        yield from inner
                else:
                    yield from descend(depth + 1, (*values, value), moved, True)

        if deciding:
            yield from descend(0, (), particular, False)
        else:
            found = next(descend(0, (), particular, True), None)
            if found is not None:
                yield found[:first]


def _values(low: int | None, high: int | None, start: int) -> Iterator[int]:
    """The integers between two bounds, those near ``start`` first (upwards where it is the lower bound)."""
    if low is not None and high is not None and low > high:
        return
    start = start if low is None else max(start, low)
    start = start if high is None else min(start, high)
    above, below = start, start - 1
    while True:
        up, down = high is None or above <= high, low is None or below >= low
        if not up and not down:
            return
        if up:
            yield above
            above += 1
        if down:
            yield below
            below -= 1


def _without(row: Row, pivot: Row, k: int) -> Row:
    """The row plus so much of an equation that coordinate k is gone. The row is scaled by a positive number."""
    (a, c), (b, d) = row, pivot
    if not a[k]:
        return row
    times, of = abs(b[k]), -a[k] if b[k] > 0 else a[k]
    return tuple(times * x + of * y for x, y in zip(a, b, strict=True)), times * c + of * d


def _scaled(row: Row) -> Row:
    """An equation without a common factor, its first coefficient positive."""
    a, c = row
    divisor = math.gcd(*a, c) or 1
    if next((x for x in (*a, c) if x), 1) < 0:
        divisor = -divisor
    return tuple(x // divisor for x in a), c // divisor


def projections(rows: Sequence[Row], unknowns: int, last: int | None = None) -> list[list[Row]] | None:
    """What inequalities say about the first k unknowns (Fourier-Motzkin elimination of the others), for k from
    ``unknowns - last`` (default 0) to ``unknowns``. None if they contradict each other. Undecided where there would be
    too many."""
    current = _tightened(rows)
    if current is None:
        return None
    systems = [current]
    for k in reversed(range(0 if last is None else unknowns - last, unknowns)):
        lower = [row for row in current if row[0][k] > 0]
        upper = [row for row in current if row[0][k] < 0]
        if len(lower) * len(upper) > MOST_INEQUALITIES:
            raise Undecided("projecting the iterations gives too many inequalities")
        kept = [row for row in current if not row[0][k]]
        for (a, c), (b, d) in ((one, other) for one in lower for other in upper):
            p, q = -b[k], a[k]
            kept.append((tuple(p * x + q * y for x, y in zip(a, b, strict=True)), p * c + q * d))
        found = _tightened(kept)
        if found is None:
            return None
        current = found
        systems.append(current)
    return systems[::-1]


def _tightened(rows: Sequence[Row]) -> list[Row] | None:
    """The inequalities without common factors and without those that another one implies; None at a contradiction."""
    found: dict[Vector, int] = {}
    for coefficients, constant in rows:
        divisor = math.gcd(*coefficients)
        if not divisor:
            if constant < 0:
                return None
            continue
        reduced = tuple(x // divisor for x in coefficients)
        constant = constant // divisor
        found[reduced] = min(constant, found.get(reduced, constant))
    for coefficients, constant in found.items():
        opposite = found.get(tuple(-x for x in coefficients))
        if opposite is not None and constant + opposite < 0:
            return None
    return list(found.items())


def bounds_of(rows: Sequence[Row], values: Sequence[int]) -> Bounds:
    """Between which integers the unknown after ``values`` lies by these inequalities over the first unknowns."""
    k = len(values)
    low: int | None = None
    high: int | None = None
    for coefficients, constant in rows:
        factor = coefficients[k]
        if not factor:
            continue
        rest = constant + sum(c * v for c, v in zip(coefficients[:k], values, strict=True))
        if factor > 0:
            bound = -(rest // factor)
            low = bound if low is None else max(low, bound)
        else:
            bound = rest // -factor
            high = bound if high is None else min(high, bound)
    return low, high
