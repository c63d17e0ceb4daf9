"""Which iterations have to wait for which: distance vectors of a loop nest (Section 7.7).

Two iterations *depend* on each other if both touch the same element and one of them writes it. The one that comes first
in the order of the program is the *source* s, the other the *target* t, and in every legal order the source stays
first. What kind of dependence it is says who writes: true (RAW: t reads what s wrote), anti (WAR: t overwrites what s
read) or output (WAW). The *distance vector* is ``t - s``, which is lexicographically positive by construction.

Two accesses ``w[A s + a]`` and ``w[B t + b]`` meet where ``A s + a = B t + b``, a system of equations in integers. If
``A = B``, as in a stencil, it says ``A (t - s) = a - b``: the distance does not depend on where one is, and if A has
full rank there is exactly one, the same for all iterations (a *uniform* dependence). ``w[i] = w[i - 1]`` has distance
1. If A has not full rank the distances form a lattice: ``s[i] += x[i, j]`` has (0, 1), (0, 2), ..., written (0, +). In
all other cases the set of distances is described by the polyhedron of pairs (s, t), level by level: at level k the two
agree in the first k - 1 loops and differ in the k-th, which then *carries* the dependence. Nothing is approximated:
each question about a transformation is put to these polyhedra, and answered with a distance that proves the answer.

Where a subscript is read from data, or is no sum of loop variables, it may be anything within its bounds; the
dependence is then one that *may* exist, and its reason says so.

Sources: Banerjee, U. (1988), *Dependence Analysis for Supercomputing*; Pugh, W. (1991), The Omega test; Wolf, M. E., &
Lam, M. S. (1991), A data locality optimizing algorithm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from ..loops.expressions import Expr, Symbol
from .integers import Vector, identity, text
from .nests import Access, LoopNest
from .polyhedron import Bounds, Constraint, Polyhedron, Undecided

#: Different distances of one dependence that are listed; beyond that a direction vector describes them.
MOST_DISTANCES = 12

KINDS = {(True, False): "RAW", (False, True): "WAR", (True, True): "WAW"}
WORDS = {"RAW": "true", "WAR": "anti", "WAW": "output"}


@dataclass(frozen=True)
class Dependence:
    """All pairs of iterations in which ``source`` touches an element first and ``target`` afterwards.

    ``distances`` are all distance vectors where there are few (``is_finite``); ``ranges`` bound each component in any
    case (None: unbounded). ``pieces`` are the polyhedra of (distance, source iteration, ...), one for each level.
    ``exact`` is False where the accesses may meet and need not, for the ``reason`` given.
    """

    kind: str
    array: str
    source: str
    target: str
    source_access: Access
    target_access: Access
    depth: int
    distances: tuple[Vector, ...]
    ranges: tuple[Bounds, ...]
    pieces: tuple[Polyhedron, ...]
    is_finite: bool = True
    exact: bool = True
    reason: str = ""
    merges: bool = False

    @property
    def is_uniform(self) -> bool:
        """Whether all pairs have one and the same distance."""
        return self.is_finite and len(self.distances) == 1

    @property
    def is_loop_independent(self) -> bool:
        """Whether source and target are always in the same iteration: only the order of statements matters."""
        return self.is_finite and not any(map(any, self.distances))

    @cached_property
    def distance_sets(self) -> tuple[Polyhedron, ...]:
        """Polyhedra over the distance alone that hold all distances, one for each piece. Their rational points may be
        more than the distances."""
        names = tuple(f"d{k}" for k in range(self.depth))
        if self.is_finite:
            points = (tuple(zip(identity(self.depth), v, strict=True)) for v in self.distances)
            return tuple(Polyhedron(names, tuple(Constraint(u, -x, True) for u, x in point)) for point in points)
        return tuple(piece.projected(self.depth) for piece in self.pieces)

    def find(self, *conditions: Constraint) -> Vector | None:
        """A distance of this dependence for which the conditions hold, or None if there is none. Undecided where the
        search takes too long."""
        if self.is_finite:
            for distance in self.distances:
                if Polyhedron(("",) * self.depth, conditions).holds(distance):
                    return distance
            return None
        for piece in self.pieces:
            padded = (
                Constraint((*c.coefficients, *[0] * (len(piece.names) - self.depth)), c.constant, c.equation)
                for c in conditions
            )
            found = piece.where(*padded).sample()
            if found is not None:
                return found[: self.depth]
        return None

    def violation(self, rows: Sequence[Vector]) -> Vector | None:
        """A distance whose image under a unimodular matrix is not lexicographically positive, or None (Theorem 7.2).
        The zero distance stays what it is, and is the only one that becomes zero: statements of an iteration keep their
        order."""
        for k, row in enumerate(rows):
            before = [Constraint(r, 0, True) for r in rows[:k]]
            found = self.find(*before, Constraint(tuple(-x for x in row), -1))
            if found is not None:
                return found
        return None

    @property
    def direction(self) -> str:
        """The distances in one line: ``(1, -1)``, or with signs where there are many: ``(0, +)``, ``(+, *)``."""
        if self.is_finite and len(self.distances) <= 3:
            return ", ".join(map(text, self.distances))
        return "(" + ", ".join(map(_sign_text, self.ranges)) + ("," if self.depth == 1 else "") + ")"

    def __str__(self) -> str:
        pair = f"{self.source}: {self.source_access} -> {self.target}: {self.target_access}"
        may = "" if self.exact else f" (may be: {self.reason})"
        return f"{self.kind} {self.array} {self.direction}  {pair}{may}"


def _sign_text(bounds: Bounds) -> str:
    low, high = bounds
    if low is not None and low == high:
        return str(low)
    if low is not None and low >= 0:
        return "+" if low > 0 else "0+"
    if high is not None and high <= 0:
        return "-" if high < 0 else "0-"
    return "*"


@dataclass(frozen=True)
class Dependences:
    """The dependences of a nest. Prints and draws itself as a table."""

    nest: LoopNest
    found: tuple[Dependence, ...]

    @property
    def carried(self) -> tuple[Dependence, ...]:
        """Those between different iterations."""
        return tuple(d for d in self.found if not d.is_loop_independent)

    @property
    def distances(self) -> tuple[Vector, ...]:
        """The different distance vectors that are not zero, in order, of all dependences that list theirs."""
        return tuple(sorted({v for d in self.found for v in d.distances if any(v)}))

    @property
    def is_finite(self) -> bool:
        """Whether ``distances`` are all there are."""
        return all(d.is_finite for d in self.found)

    def without_merges(self) -> Dependences:
        """Those that remain where reductions may be merged in any order (Theorem 6.3: real semantics)."""
        return Dependences(self.nest, tuple(d for d in self.found if not d.merges))

    def untouched(self, loop: int) -> bool:
        """Whether every distance is 0 in this loop: iterations that differ in it never meet, whatever the others."""
        for d in self.found:
            for sign in (1, -1):
                row = tuple(sign * int(j == loop) for j in range(self.nest.depth))
                try:
                    if d.find(Constraint(row, -1)) is not None:
                        return False
                except Undecided:
                    return False
        return True

    def format(self) -> str:
        """A line per dependence."""
        names = ", ".join(self.nest.names)
        if not self.found:
            return f"loops ({names}): no iteration depends on another"
        return "\n".join([f"loops ({names}): {len(self.found)} dependences", *(f"  {d}" for d in self.found)])

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def dependences(nest: LoopNest) -> Dependences:
    """Every RAW, WAR and WAW dependence between the accesses of a nest, also of those an iteration in between has
    overwritten (dependences of memory, not of values: an order that keeps them all keeps every value).

    Pairs of accesses times loops many sets are looked at, each by a search that is short for the subscripts of real
    programs.
    """
    found = []
    numbered = [
        (position, order, statement, access, writes)
        for position, statement in enumerate(nest.statements)
        for order, (access, writes) in enumerate(statement.accesses)
    ]
    for source in numbered:
        for target in numbered:
            if source[3].array != target[3].array or not (source[4] or target[4]):
                continue
            # Within one iteration: an earlier statement, or what a statement reads before it writes.
            first = source[0] < target[0]
            dependence = _between(nest, source, target, first)
            if dependence is not None:
                found.append(dependence)
    return Dependences(nest, tuple(found))


def _between(nest: LoopNest, source: tuple, target: tuple, may_be_zero: bool) -> Dependence | None:
    depth = nest.depth
    pairs, reason = meeting(nest, nest, source[3], target[3], depth)
    width = len(pairs.names)

    def unit(k: int) -> Vector:
        return tuple(int(j == k) for j in range(width))

    pieces = []
    for level in range(depth + may_be_zero):
        equal = [Constraint(unit(k), 0, True) for k in range(level)]
        later = [Constraint(unit(level), -1)] if level < depth else []
        piece = pairs.where(*equal, *later)
        if not _proven_empty(piece):
            pieces.append(piece)
    if not pieces:
        return None
    distances, ranges, is_finite = described(pieces, depth)
    kind = KINDS[source[4], target[4]]
    merges = source[2].merges and source[2] is target[2]
    merges = merges and all(a == source[2].writes[0] for a in (source[3], target[3]))
    return Dependence(
        kind, source[3].array, source[2].name, target[2].name, source[3], target[3], depth, distances, ranges,
        tuple(pieces), is_finite, not reason, reason, merges,
    )  # fmt: skip


def _proven_empty(piece: Polyhedron) -> bool:
    try:
        return piece.is_empty
    except Undecided:
        return False


def described(pieces: Sequence[Polyhedron], depth: int) -> tuple[tuple[Vector, ...], tuple[Bounds, ...], bool]:
    """The distances of some pieces if they are few, bounds of each component, and whether the list is whole."""
    distances: list[Vector] = []
    is_finite = True
    for piece in pieces:
        try:
            some = list(islice(piece.points(depth), MOST_DISTANCES + 1))
        except Undecided:
            some, is_finite = [], False
        distances += some
    if is_finite and len(distances) <= MOST_DISTANCES:
        columns = list(zip(*distances, strict=True))
        return tuple(sorted(distances)), tuple((min(c), max(c)) for c in columns), True
    ranges = []
    for k in range(depth):
        lows, highs = [], []
        for piece in pieces:
            try:
                low, high = piece.range_of(tuple(int(j == k) for j in range(len(piece.names))))
            except Undecided:
                low = high = None
            lows.append(low)
            highs.append(high)
        ranges.append((None if None in lows else min(lows), None if None in highs else max(highs)))
    return (), tuple(ranges), False


def meeting(one: LoopNest, other: LoopNest, first: Access, second: Access, shared: int) -> tuple[Polyhedron, str]:
    """The pairs of an iteration s of ``one`` and t of ``other`` in which the two accesses touch the same element, as a
    set over (t - s in the first ``shared`` loops, s, the rest of t, the open sizes, values read from data); and why it
    is larger than it need be, if it is."""
    parameters = tuple(dict.fromkeys((*one.parameters, *other.parameters)))
    deltas = [f"d{k}" for k in range(shared)]
    sources = [f"s_{name}" for name in one.names]
    rest = [f"t_{name}" for name in other.names[shared:]]
    names = [*deltas, *sources, *rest, *(p.name for p in parameters)]
    column = {name: k for k, name in enumerate(names)}
    source_columns = {loop: {f"s_{loop.name}": 1} for loop in one.loops}
    target_columns = {
        loop: {deltas[k]: 1, sources[k]: 1} if k < shared else {f"t_{loop.name}": 1}
        for k, loop in enumerate(other.loops)
    }
    for parameter in parameters:
        source_columns[parameter] = target_columns[parameter] = {parameter.name: 1}
    unknowns: list[tuple[str, Any, Any]] = []
    reason = ""

    def linear(expression: Expr, columns: dict[Symbol, dict[str, int]], side: str) -> tuple[dict[str, int], int]:
        """Factors by name, and the constant; what is not linear becomes an unknown of its own."""
        nonlocal reason
        factors: dict[str, int] = {}
        constant = 0
        for monomial, factor in expression.terms:
            if not monomial:
                constant += factor
            elif len(monomial) == 1 and monomial[0] in columns:
                for name, times in columns[monomial[0]].items():
                    factors[name] = factors.get(name, 0) + factor * times
            else:
                bounds = Expr(((monomial, 1),)).bounds()
                name = f"{side}_value{len(unknowns)}"
                unknowns.append((name, bounds.lower, bounds.upper))
                factors[name] = factor
                data = any(isinstance(atom, Symbol) and atom.name.startswith("indirect") for atom in monomial)
                what = "a subscript is read from data" if data else f"{Expr(((monomial, 1),))} is not linear"
                reason = reason or what
        return factors, constant

    rows: list[tuple[dict[str, int], int, bool]] = []
    for nest, columns in ((one, source_columns), (other, target_columns)):
        symbols = (*nest.loops, *nest.parameters)
        for c in nest.domain.constraints:
            factors: dict[str, int] = {}
            for symbol, factor in zip(symbols, c.coefficients, strict=True):
                for name, times in columns[symbol].items():
                    factors[name] = factors.get(name, 0) + factor * times
            rows.append((factors, c.constant, c.equation))
    if len(first.subscripts) != len(second.subscripts):
        reason = "the two accesses have different numbers of subscripts"
    else:
        for mine, theirs in zip(first.subscripts, second.subscripts, strict=True):
            left, right = linear(mine, source_columns, "s"), linear(theirs, target_columns, "t")
            factors = dict(left[0])
            for name, factor in right[0].items():
                factors[name] = factors.get(name, 0) - factor
            rows.append((factors, left[1] - right[1], True))
    for name, low, high in unknowns:
        column[name] = len(column)
        names.append(name)
        rows += [({name: 1}, -int(low), False)] if not math.isinf(low) else []
        rows += [({name: -1}, int(high), False)] if not math.isinf(high) else []
    constraints = []
    for factors, constant, equation in rows:
        coefficients = [0] * len(names)
        for name, factor in factors.items():
            coefficients[column[name]] += factor
        constraints.append(Constraint(tuple(coefficients), constant, equation))
    return Polyhedron(tuple(names), tuple(constraints)), reason


def running_pairs(nest: LoopNest) -> set[tuple[Vector, Vector]]:
    """The pairs of different iterations (source, target) that depend on each other, found by running through all
    accesses in the order of the program. For nests without subscripts read from data. O(accesses^2) at worst."""
    touched: dict[tuple, list[tuple[Vector, bool]]] = {}
    found: set[tuple[Vector, Vector]] = set()
    for point in nest.points():
        values = dict(zip(nest.names, point, strict=True))
        for statement in nest.statements:
            for access, writes in statement.accesses:
                place = (access.array, *(s.evaluate(values) for s in access.subscripts))
                for before, wrote in touched.setdefault(place, []):
                    if (wrote or writes) and before != point:
                        found.add((before, point))
                touched[place].append((point, writes))
    return found


def by_running(nest: LoopNest) -> set[Vector]:
    """The distances of :func:`running_pairs`: what :func:`dependences` must find without running anything."""
    return {tuple(b - a for a, b in zip(*pair, strict=True)) for pair in running_pairs(nest)}
