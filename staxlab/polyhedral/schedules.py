"""One-dimensional affine schedules by linear programming (Proposition 7.5, Feautrier 1992).

A schedule gives every iteration a date, ``theta(i, j) = floor(c_1 i + c_2 j + d)``, and iterations of one date run at
the same time: they form a *wavefront*. A dependence is kept if its target is at least one step later than its source,
and since theta is affine, only the distance counts: ``c . delta >= 1`` for every distance delta (with offsets d of the
statements, ``c . delta + d_target - d_source >= 1``).

*Proposition 7.5.* A one-dimensional affine schedule exists if and only if the following linear program has a solution:
for every dependence, ``c . delta + d_t - d_s - 1`` is a non-negative combination of the inequalities that describe the
pairs (source, target) of the dependence; comparing coefficients eliminates the pairs (Lemma 7.1, :mod:`.linear`).

Distances are looked at one by one where a dependence has few, else as the shadow of its pairs
(:attr:`~staxlab.polyhedral.distances.Dependence.distance_sets`), which is a polyhedron over the distance. The program
makes the number of dates small: it minimizes the sum of ``|c_k|`` times the extent of loop k. Its solution is a
fraction in general, checked again against the dependences; where there is none, the simplex method ends with weights
for the dependences under which distances add up to zero although each would have to take a step forward
(:class:`NoSchedule`).

Such a nest needs a schedule of more dimensions, or its own order: the loops themselves are one of as many dimensions as
there are loops.

Source: Feautrier, P. (1992), Some efficient solutions to the affine scheduling problem, part I.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from ..errors import ScheduleError
from .distances import Dependence, Dependences
from .integers import Vector, text
from .legality import Verdict
from .linear import Multipliers, farkas, farkas_rows, minimize
from .polyhedron import Constraint, Polyhedron, Undecided, affine_text

#: What a loop of unknown extent counts in the cost, and what keeps coefficients of loops of extent 1 small.
OPEN_EXTENT, TRIFLE = Fraction(1), Fraction(1, 1000)


@dataclass(frozen=True)
class Margin:
    """One dependence under a schedule: the least number of steps between its source and its target (None: no least one
    was found), and for each of its distance sets the multipliers that prove it at least 1 (Lemma 7.1)."""

    dependence: Dependence
    steps: Fraction | None
    proof: tuple[tuple[Polyhedron, Multipliers], ...]

    def format(self) -> str:
        d = self.dependence
        lines = [f"{d.kind} {d.array} {d.direction}: steps from source to target: {self.steps} at least"]
        if not d.is_finite:
            lines += [f"  steps - 1 = {m.format(s)}  on {s}" for s, m in self.proof]
        return "\n".join(lines)


@dataclass(frozen=True)
class AffineSchedule:
    """``theta(x) = floor(coefficients . x + offset of the statement)``. Draws the nest coloured by date."""

    dependences: Dependences
    coefficients: tuple[Fraction, ...]
    offsets: tuple[Fraction, ...]

    def date(self, point: Sequence[int], statement: int = 0) -> int:
        """When an iteration runs."""
        value = sum((c * x for c, x in zip(self.coefficients, point, strict=True)), self.offsets[statement])
        return math.floor(value)

    @cached_property
    def margins(self) -> tuple[Margin, ...]:
        """Every dependence with its proof (Lemma 7.1)."""
        return tuple(self._margin(d) for d in self.dependences.found)

    def _margin(self, dependence: Dependence) -> Margin:
        shift = self._shift(dependence)
        sets = [s for s in dependence.distance_sets if not _within_statement(dependence, s)]
        proof = [(s, farkas(s, self.coefficients, shift - 1)) for s in sets]
        scale = math.lcm(*(c.denominator for c in self.coefficients))
        row = tuple(int(c * scale) for c in self.coefficients)
        lows = [s.range_of(row)[0] for s in sets]
        steps = None if None in lows or not lows else Fraction(min(lows), scale) + shift
        return Margin(dependence, steps, tuple((s, m) for s, m in proof if m is not None))

    def _shift(self, dependence: Dependence) -> Fraction:
        number = {s.name: k for k, s in enumerate(self.dependences.nest.statements)}
        return self.offsets[number[dependence.target]] - self.offsets[number[dependence.source]]

    @cached_property
    def wavefronts(self) -> dict[int, tuple[Vector, ...]]:
        """The iterations by date, of the first statement. ScheduleError for open sizes."""
        found: dict[int, list[Vector]] = {}
        for point in self.dependences.nest.points():
            found.setdefault(self.date(point), []).append(point)
        return {date: tuple(found[date]) for date in sorted(found)}

    def instances(self) -> list[tuple[Vector, int]]:
        """(iteration, number of a statement) date by date, for :meth:`.nests.LoopNest.run`."""
        nest = self.dependences.nest
        every = [(point, k) for point in nest.points() for k in range(len(nest.statements))]
        return sorted(every, key=lambda instance: (self.date(*instance), *instance))

    @cached_property
    def dates(self) -> tuple[int, ...]:
        """The different dates, ascending."""
        return tuple(sorted({self.date(*instance) for instance in self.instances()}))

    @property
    def theta(self) -> str:
        """``theta(i, j) = 2*i + j``."""
        names = self.dependences.nest.names
        body = affine_text(self.coefficients, 0, names)
        if any(c.denominator > 1 for c in (*self.coefficients, *self.offsets)):
            body = f"floor({body})"
        return f"theta({', '.join(names)}) = {body}"

    def format(self) -> str:
        """The schedule, its dates, and every dependence with the multipliers that prove it kept."""
        lines = [self.theta]
        if any(self.offsets):
            pairs = zip(self.dependences.nest.statements, self.offsets, strict=True)
            lines.append("  plus " + ", ".join(f"{d} for {s.name}" for s, d in pairs))
        if not self.dependences.nest.parameters:
            widest = max(map(len, self.wavefronts.values()), default=0)
            count = len(self.dependences.nest.points())
            lines.append(f"  {count} iterations on {len(self.dates)} dates, at most {widest} at the same time")
        for margin in self.margins:
            lines += ["  " + line for line in margin.format().splitlines()]
        return "\n".join(lines)

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


@dataclass(frozen=True)
class Share:
    """``weight`` distances of a dependence that add up to ``vector``; weight 0 is a direction its distances extend in
    without end."""

    dependence: Dependence
    weight: Fraction
    vector: tuple[Fraction, ...]


@dataclass(frozen=True)
class NoSchedule:
    """The proof that there is no one-dimensional affine schedule: ``shares`` add up to the zero vector, which every
    schedule moves by 0 steps, and to a positive number of distances, each of which asks for a step forward."""

    dependences: Dependences
    shares: tuple[Share, ...]

    def __bool__(self) -> bool:
        return False

    def adds_up(self) -> bool:
        """Whether the certificate holds: the sum is zero, the weight positive, and each share belongs to the cone of
        the distances of its dependence."""
        total = [sum(column, Fraction(0)) for column in zip(*(s.vector for s in self.shares), strict=True)]
        return not any(total) and sum(s.weight for s in self.shares) > 0 and all(map(_belongs, self.shares))

    def format(self) -> str:
        lines = ["no one-dimensional affine schedule: these add up to the zero vector,"]
        lines.append("and so to 0 steps, but must add up to " + str(sum(s.weight for s in self.shares)) + " or more")
        for s in self.shares:
            what = f"{s.weight} x distance" if s.weight else "along"
            vector = [x / s.weight if s.weight else x for x in s.vector]
            lines.append(f"  {what} ({', '.join(map(str, vector))}) of {s.dependence.kind} {s.dependence.array}"
                         f" {s.dependence.direction}")  # fmt: skip
        return "\n".join(lines)

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def _belongs(share: Share) -> bool:
    """Whether the share is a distance times its weight, or for weight 0 a direction of one of the distance sets."""
    return any(
        all(
            (value == 0 if c.equation else value >= 0)
            for c in piece.constraints
            for value in [_value(share.vector, c.coefficients) + c.constant * share.weight]
        )
        for piece in share.dependence.distance_sets
    )


def _within_statement(dependence: Dependence, piece: Polyhedron) -> bool:
    """Whether a distance set is that of one statement with itself in the same iteration: it reads before it writes."""
    return dependence.source == dependence.target and piece.holds((0,) * dependence.depth)


def affine_schedule(found: Dependences) -> AffineSchedule | NoSchedule:
    """The schedule of fewest dates by the program of Proposition 7.5, or the proof that there is none.

    Coefficients are the same for all statements, offsets their own. Exact; the program has a row for each listed
    distance and, for a dependence described by a polyhedron, one for each of its coordinates.
    """
    nest = found.nest
    depth, count = nest.depth, len(nest.statements)
    number = {s.name: k for k, s in enumerate(nest.statements)}
    weights = []
    for low, high in nest.extents:
        known = low is not None and high is not None
        weights.append((Fraction(high - low) if known else OPEN_EXTENT) + TRIFLE)  # type: ignore[operator]
    # Unknowns: c = c+ - c-, the offsets, then the multipliers of each distance set as they come.
    cost: list[Fraction] = [*weights, *weights, *[Fraction(1)] * count]
    rows: list[dict[int, int]] = []
    right: list[int] = []
    owners: list[tuple[Dependence, int, Vector | None]] = []  # of each set: its dependence, first row, and only point

    def with_function(row: dict[int, int], factors: Sequence[int], constant: bool, d: Dependence) -> None:
        """Add c . factors, and the offsets where it is the constant's equation, to a row."""
        for j, factor in enumerate(factors):
            row[j], row[depth + j] = factor, -factor
        if constant and d.source != d.target:
            row[2 * depth + number[d.target]], row[2 * depth + number[d.source]] = 1, -1
        rows.append(row)
        right.append(int(constant))

    seen = set()
    for d in found.found:
        points = d.distances if d.is_finite else (None,) * len(d.pieces)
        for piece, point in zip(d.distance_sets, points, strict=True):
            key = (d.source, d.target, piece)
            if key in seen or _within_statement(d, piece):
                continue
            seen.add(key)
            owners.append((d, len(rows), point))
            if point is not None:  # one point: the function is a number there, and m_0 what it exceeds 1 by
                cost.append(Fraction(0))
                with_function({len(cost) - 1: -1}, point, True, d)
                continue
            columns, signed = farkas_rows(piece)
            places = []
            for free in signed:
                places.append((len(cost), free))
                cost += [Fraction(0)] * (1 + free)
            for j, line in enumerate(columns):
                row: dict[int, int] = {}
                for factor, (place, free) in zip(line, places, strict=True):
                    row[place] = -factor
                    if free:
                        row[place + 1] = factor
                with_function(row, [int(k == j) for k in range(depth)], j == depth, d)
    solution = minimize(cost, [[row.get(k, 0) for k in range(len(cost))] for row in rows], right)
    if solution.values is None:
        assert solution.proof is not None
        proof = [math.lcm(*(factor.denominator for factor in solution.proof)) * y for y in solution.proof]
        return NoSchedule(found, tuple(_shares(proof, owners, depth)))
    c = tuple(solution.values[k] - solution.values[depth + k] for k in range(depth))
    result = AffineSchedule(found, c, solution.values[2 * depth : 2 * depth + count])
    verdict = check_schedule(found, c, result.offsets)
    if not verdict:  # the sets hold more than the distances, so this cannot be; a wrong order would be worse
        raise ScheduleError(f"the schedule of a linear program is not kept: {verdict}")
    return result


def _shares(
    proof: Sequence[Fraction], owners: Sequence[tuple[Dependence, int, Vector | None]], depth: int
) -> Iterator[Share]:
    """The factors of the equations as distances: the factor of the constant's equation is a weight, that of a
    coordinate's is this coordinate of the distance times the weight."""
    for d, start, point in owners:
        if point is not None:
            share = Share(d, proof[start], tuple(proof[start] * x for x in point))
        else:
            share = Share(d, proof[start + depth], tuple(proof[start : start + depth]))
        if share.weight or any(share.vector):
            yield share


def check_schedule(
    found: Dependences, coefficients: Sequence[Fraction | int], offsets: Sequence[Fraction | int] | None = None
) -> Verdict:
    """Whether ``theta(x) = coefficients . x`` (plus offsets of the statements) puts every target at least one step
    after its source, with a distance for which it does not."""
    nest = found.nest
    number = {s.name: k for k, s in enumerate(nest.statements)}
    d = [Fraction(x) for x in (offsets or [0] * len(nest.statements))]
    c = [Fraction(x) for x in coefficients]
    scale = math.lcm(*(x.denominator for x in (*c, *d)))
    row = tuple(int(x * scale) for x in c)
    question = f"the schedule theta = {affine_text(c, 0, nest.names)}"
    for dependence in found.found:
        if dependence.source == dependence.target and dependence.is_loop_independent:
            continue
        shift = int((d[number[dependence.target]] - d[number[dependence.source]]) * scale)
        late = Constraint(tuple(-x for x in row), scale - 1 - shift)
        try:
            distance = dependence.find(late)
        except Undecided as error:
            reason = f"nothing was proved for {dependence}: {error}"
            return Verdict(question, False, reason, "Proposition 7.5", dependence)
        if distance is not None:
            steps = _value(c, distance) + Fraction(shift, scale)
            reason = f"c . {text(distance)} is {steps}, and should be at least 1"
            return Verdict(question, False, reason, "Proposition 7.5", dependence, distance)
    return Verdict(question, True, "every target comes at least one step after its source", "Proposition 7.5")


def _value(coefficients: Sequence[Fraction], vector: Sequence[int]) -> Fraction:
    return sum((c * x for c, x in zip(coefficients, vector, strict=True)), Fraction(0))
