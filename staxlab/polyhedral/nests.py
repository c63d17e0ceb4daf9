"""Loop nests as Section 7.7 sees them: a set of iterations, and which elements each of them reads and writes.

A :class:`LoopNest` keeps of a program what its legal orders depend on: the *domain* (the iterations, a
:class:`~staxlab.polyhedral.polyhedron.Polyhedron`), and for every statement of the body, in order, the accesses with
their subscripts as functions of the loop variables. What is computed from the values read is not looked at: an order is
legal if it is so for every function.

Nests come from three places. Students write them down (:func:`~staxlab.polyhedral.written.loop_nest`), the compiler's
own nodes have them (:func:`~staxlab.polyhedral.extract.nest_of`), and both can be put together from these records.

A nest can be run, without knowing its function: each statement is given a function that mixes what it read, and which
iteration it is, into one number. Two orders of execution that end with the same numbers in memory have passed the same
values to the same iterations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

from ..errors import ScheduleError
from ..loops.expressions import Expr, Symbol
from .integers import Vector
from .polyhedron import Polyhedron

#: Iterations that may be listed, run or drawn one by one.
MOST_POINTS = 100_000


@dataclass(frozen=True)
class Access:
    """An element of an array, at subscripts that depend on the loop variables. ``w[i - 1, j]``; a scalar has none."""

    array: str
    subscripts: tuple[Expr, ...]

    def __str__(self) -> str:
        return f"{self.array}[{', '.join(map(str, self.subscripts))}]" if self.subscripts else self.array


@dataclass(frozen=True)
class NestStatement:
    """One statement of the body: it reads, then writes. ``merges`` says that it does nothing with the element it writes
    but merge a value into it by an associative operation, as a reduction does: between such statements the order
    matters to rounding only (Theorem 6.3)."""

    name: str
    text: str
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    merges: bool = False

    @property
    def accesses(self) -> tuple[tuple[Access, bool], ...]:
        """Every access in the order of execution, and whether it writes."""
        return (*((access, False) for access in self.reads), *((access, True) for access in self.writes))


@dataclass(frozen=True)
class LoopNest:
    """Statements run for every iteration of ``domain``, in lexicographic order of the ``loops``, outermost first.

    The domain's coordinates are the loop variables and then the ``parameters``: sizes of which nothing is known but
    that they are at least 1. Symbols in subscripts that are neither are values read from data: anything within their
    bounds, in every iteration anew.
    """

    loops: tuple[Symbol, ...]
    domain: Polyhedron
    statements: tuple[NestStatement, ...]
    parameters: tuple[Symbol, ...] = ()

    @property
    def depth(self) -> int:
        return len(self.loops)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(loop.name for loop in self.loops)

    @cached_property
    def _points(self) -> tuple[Vector, ...]:
        if self.parameters:
            names = ", ".join(symbol.name for symbol in self.parameters)
            raise ScheduleError(
                f"the iterations of a nest with open sizes ({names}) cannot be listed", remedy="give them values"
            )
        found = tuple(islice(self.domain.points(), MOST_POINTS + 1))
        if len(found) > MOST_POINTS:
            raise ScheduleError(f"more than {MOST_POINTS:,} iterations", remedy="choose smaller sizes to look at")
        return found

    def points(self) -> tuple[Vector, ...]:
        """The iterations in the order of the loops. ScheduleError for open sizes and for more than
        :data:`MOST_POINTS`."""
        return self._points

    @cached_property
    def extents(self) -> tuple[tuple[int | None, int | None], ...]:
        """The least and greatest value of each loop variable; None where there is none."""
        unit = [tuple(int(j == k) for j in range(len(self.domain.names))) for k in range(self.depth)]
        return tuple(self.domain.range_of(row) for row in unit)

    def with_sizes(self, **values: int) -> LoopNest:
        """The nest with values for some of its open sizes."""
        unknown = sorted(set(values) - {symbol.name for symbol in self.parameters})
        if unknown:
            raise ScheduleError(f"{', '.join(unknown)} is no open size of this nest")
        given = {symbol: Expr.of(values[symbol.name]) for symbol in self.parameters if symbol.name in values}
        kept = [k for k, name in enumerate(self.domain.names) if name not in values]
        constraints = []
        for c in self.domain.constraints:
            constant = c.constant + sum(
                c.coefficients[k] * values[name] for k, name in enumerate(self.domain.names) if name in values
            )
            constraints.append(replace(c, coefficients=tuple(c.coefficients[k] for k in kept), constant=constant))

        def closed(access: Access) -> Access:
            return replace(access, subscripts=tuple(s.substitute(given) for s in access.subscripts))

        statements = tuple(
            replace(s, reads=tuple(map(closed, s.reads)), writes=tuple(map(closed, s.writes))) for s in self.statements
        )
        domain = Polyhedron(tuple(self.domain.names[k] for k in kept), tuple(constraints))
        return LoopNest(self.loops, domain, statements, tuple(p for p in self.parameters if p not in given))

    def execute(self, order: Iterable[Sequence[int]] | None = None) -> dict[tuple, int]:
        """Memory after running the iterations in ``order`` (default: that of the loops) with functions that mix all
        they read: ``{(array, subscripts): number}``, for the elements that were written."""
        every = range(len(self.statements))
        return self.run((point, k) for point in (self.points() if order is None else order) for k in every)

    def run(self, instances: Iterable[tuple[Sequence[int], int]]) -> dict[tuple, int]:
        """As :meth:`execute`, with an order of its own for each statement: (iteration, number of the statement)."""
        memory: dict[tuple, int] = {}
        names = sorted({a.array for s in self.statements for a, _ in s.accesses})
        number = {name: k for k, name in enumerate(names)}

        def cell(access: Access, values: dict[str, int]) -> tuple:
            return (access.array, *(s.evaluate(values) for s in access.subscripts))

        for point, k in instances:
            values = dict(zip(self.names, point, strict=True))
            statement = self.statements[k]
            read = []
            for access in statement.reads:
                place = cell(access, values)
                # Integers hash alike in every process; strings do not.
                read.append(memory.get(place, hash((number[access.array], *place[1:], 1))))
            for n, access in enumerate(statement.writes):
                memory[cell(access, values)] = hash((k, n, *read, *point, 2))
        return memory

    def same_values(self, order: Iterable[Sequence[int]]) -> bool:
        """Whether running every iteration once in this order leaves in memory what the loops leave there."""
        ordered = [tuple(point) for point in order]
        return sorted(ordered) == sorted(self.points()) and self.execute(ordered) == self.execute()

    def format(self) -> str:
        """The nest as Python."""
        from .scan import source  # as a transformed nest is written

        return source(self)

    __str__ = format

    def __repr__(self) -> str:
        return f"<LoopNest {', '.join(self.names)}: {len(self.statements)} statements>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def tile_order(points: Iterable[Vector], sizes: Sequence[int]) -> Iterator[Vector]:
    """The points tile by tile: tiles in lexicographic order, and so the points within each. ``sizes[k]`` is the extent
    of a tile along loop k; tiles begin at multiples of it. O(n log n)."""
    yield from sorted(points, key=lambda x: (*(v // s for v, s in zip(x, sizes, strict=True)), *x))
