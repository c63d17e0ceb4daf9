"""Which reorderings of a loop nest keep every dependence (Theorems 7.2 and 7.3, Proposition 7.3).

A matrix T reorders a nest: iteration x runs at ``T x`` instead, in lexicographic order. Source s and target t of a
dependence stay in order exactly if ``T t - T s = T (t - s)`` is lexicographically positive, so only distances matter:

*Theorem 7.2.* A unimodular T is legal if and only if ``T delta`` is lexicographically positive for every distance
vector delta.

Interchange permutes the rows of the identity, reversal negates one, skewing adds a multiple of one to another. A
distance (1, -1) forbids interchange, since (-1, 1) is negative, and so it does the reversal of the outer loop; it
permits skewing the inner loop by the outer one, which makes it (1, 0), after which interchange is legal.

*Theorem 7.3.* A band of consecutive loops may be tiled if every distance that no loop around the band carries has no
negative component in the band: the band is then *fully permutable*. If one has, some tile sizes are illegal (tiles of
one iteration along that loop, and of all along the others, run it outermost).

A loop is *parallel* if it carries no distance: none has zeros in front of it and something else in its place.

*Proposition 7.3.* If iteration i of one loop writes what iteration i + d of the next one reads, the two may share one
loop, the first statement before the second, if and only if ``d >= 0`` for all of them, and a parallel loop if and only
if ``d = 0``. (With distances as vectors: lexicographically not negative, and zero.)

Each question here returns a :class:`Verdict`: yes or no, the dependence and the distance that decide it, and what
becomes of that distance. An answer "no" is proved by that distance; where a search has to give up, the answer is also
no, and the reason says that nothing was proved.

Sources: Lamport, L. (1974), The parallel execution of DO loops; Wolf, M. E., & Lam, M. S. (1991), A data locality
optimizing algorithm; Irigoin, F., & Triolet, R. (1988), Supernode partitioning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ScheduleError
from .distances import Dependence, Dependences, described, meeting
from .integers import Matrix, Vector, apply, determinant, identity, is_unimodular, lexicographic_sign, matrix, text
from .nests import LoopNest
from .polyhedron import Constraint, Undecided

Loop = str | int


@dataclass(frozen=True)
class Verdict:
    """Whether a transformation is legal. ``distance`` is one that it violates, of ``dependence``, and ``image`` what
    becomes of it. ``rule`` is the result that decides. True in a condition exactly if legal."""

    question: str
    legal: bool
    reason: str
    rule: str
    dependence: Dependence | None = None
    distance: Vector | None = None
    image: Vector | None = None

    def __bool__(self) -> bool:
        return self.legal

    def format(self) -> str:
        return f"{self.question}: {'legal' if self.legal else 'not legal'} ({self.rule}): {self.reason}"

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def position(nest: LoopNest, loop: Loop) -> int:
    """The place of a loop, given by name or place, outermost 0. ScheduleError if there is none."""
    if isinstance(loop, str):
        if loop not in nest.names:
            raise ScheduleError(f"there is no loop {loop!r}", remedy=f"loops are {', '.join(nest.names)}")
        return nest.names.index(loop)
    if not -nest.depth <= loop < nest.depth:
        raise ScheduleError(f"there is no loop {loop}", remedy=f"the nest has {nest.depth} loops")
    return loop % nest.depth


# --- Matrices ---------------------------------------------------------------------------------------------------------


def permutation_matrix(order: Sequence[int]) -> Matrix:
    """Row k of the result picks loop ``order[k]``."""
    unit = identity(len(order))
    return tuple(unit[k] for k in order)


def interchange_matrix(depth: int, one: int, other: int) -> Matrix:
    order = list(range(depth))
    order[one], order[other] = other, one
    return permutation_matrix(order)


def reversal_matrix(depth: int, loop: int) -> Matrix:
    return tuple(tuple(-x for x in row) if k == loop else row for k, row in enumerate(identity(depth)))


def skewing_matrix(depth: int, loop: int, by: int, factor: int = 1) -> Matrix:
    """Loop ``loop`` becomes itself plus ``factor`` times loop ``by``."""
    if loop == by:
        raise ScheduleError("a loop is skewed by another loop")
    rows = [list(row) for row in identity(depth)]
    rows[loop][by] += factor
    return matrix(rows)


# --- Theorem 7.2 ------------------------------------------------------------------------------------------------------


def transformation(found: Dependences, rows: Sequence[Sequence[int]], question: str = "") -> Verdict:
    """Whether running iteration x at ``rows * x`` keeps every dependence (Theorem 7.2). ``rows`` is square; a matrix
    that is not unimodular is not legal, because it skips or merges iterations."""
    depth = found.nest.depth
    transform = matrix(rows)
    if len(transform) != depth or any(len(row) != depth for row in transform):
        raise ScheduleError(f"a matrix of {depth} rows and columns transforms {depth} loops, not {text(transform)}")
    question = question or f"running iteration x at {text(transform)} x"
    if not is_unimodular(transform):
        reason = f"its determinant is {determinant(transform)}, so integer points are not mapped one to one"
        return Verdict(question, False, reason, "Theorem 7.2")
    for dependence in found.found:
        try:
            distance = dependence.violation(transform)
        except Undecided as error:
            return Verdict(question, False, f"nothing was proved for {dependence}: {error}", "Theorem 7.2", dependence)
        if distance is not None:
            image = apply(transform, distance)
            reason = f"distance {text(distance)} becomes {text(image)}, which is not lexicographically positive"
            if not dependence.exact:
                reason += f"; the dependence may not exist, but {dependence.reason}"
            return Verdict(question, False, reason, "Theorem 7.2", dependence, distance, image)
    reason = "every distance stays lexicographically positive" if found.carried else "no iteration depends on another"
    return Verdict(question, True, reason, "Theorem 7.2")


def interchange(found: Dependences, one: Loop, other: Loop) -> Verdict:
    """Whether two loops may change places."""
    a, b = position(found.nest, one), position(found.nest, other)
    names = found.nest.names
    return transformation(
        found, interchange_matrix(found.nest.depth, a, b), f"interchange of {names[a]} and {names[b]}"
    )


def permutation(found: Dependences, order: Sequence[Loop]) -> Verdict:
    """Whether the loops may run in this order, outermost first."""
    places = [position(found.nest, loop) for loop in order]
    if sorted(places) != list(range(found.nest.depth)):
        raise ScheduleError(f"{list(order)} does not name every loop once")
    words = ", ".join(found.nest.names[k] for k in places)
    return transformation(found, permutation_matrix(places), f"the order {words}")


def reversal(found: Dependences, loop: Loop) -> Verdict:
    """Whether a loop may run backwards."""
    place = position(found.nest, loop)
    return transformation(
        found, reversal_matrix(found.nest.depth, place), f"reversal of {found.nest.names[place]}"
    )  # fmt: skip


def skewing(found: Dependences, loop: Loop, by: Loop, factor: int = 1) -> Verdict:
    """Whether a loop may be skewed by another. Skewing an inner loop by an outer one always may: it does not change the
    order of the iterations, only how they are counted."""
    a, b = position(found.nest, loop), position(found.nest, by)
    names = found.nest.names
    question = f"skewing of {names[a]} by {factor} times {names[b]}"
    return transformation(found, skewing_matrix(found.nest.depth, a, b, factor), question)


# --- Theorem 7.3 ------------------------------------------------------------------------------------------------------


def tiling(found: Dependences, band: Sequence[Loop] | None = None, rows: Matrix | None = None) -> Verdict:
    """Whether a band of consecutive loops (default: all) is fully permutable, and so may be tiled whatever the size of
    the tiles (Theorem 7.3). ``rows`` transforms the nest first; the band then names loops by place."""
    nest = found.nest
    transform = identity(nest.depth) if rows is None else matrix(rows)
    places = list(range(nest.depth)) if band is None else [position(nest, loop) for loop in band]
    if not places or places != list(range(places[0], places[0] + len(places))):
        raise ScheduleError("a band is consecutive loops, outermost first")
    names = nest.names if rows is None else [f"loop {k}" for k in range(nest.depth)]
    question = "tiling of " + ", ".join(names[k] for k in places)
    if rows is not None:
        verdict = transformation(found, transform)
        if not verdict:
            return verdict
    outside = [Constraint(row, 0, True) for row in transform[: places[0]]]
    for dependence in found.found:
        for place in places:
            try:
                distance = dependence.find(*outside, Constraint(tuple(-x for x in transform[place]), -1))
            except Undecided as error:
                reason = f"nothing was proved for {dependence}: {error}"
                return Verdict(question, False, reason, "Theorem 7.3", dependence)
            if distance is not None:
                image = apply(transform, distance)
                what = f"distance {text(distance)}" + (f" becomes {text(image)}, which" if rows is not None else "")
                reason = f"{what} is negative in {names[place]}, so the band is not fully permutable"
                return Verdict(question, False, reason, "Theorem 7.3", dependence, distance, image)
    return Verdict(question, True, "no distance has a negative component in the band: fully permutable", "Theorem 7.3")


fully_permutable = tiling


def parallel_loops(found: Dependences, rows: Matrix | None = None) -> tuple[Verdict, ...]:
    """For each loop (after ``rows``, where given), outermost first, whether its iterations may run at the same time,
    one iteration of the loops around it at a time."""
    nest = found.nest
    transform = identity(nest.depth) if rows is None else matrix(rows)
    names = nest.names if rows is None else [f"loop {k}" for k in range(nest.depth)]
    return tuple(
        _parallel(found, transform, place, f"running {names[place]} in parallel") for place in range(nest.depth)
    )


def _parallel(found: Dependences, transform: Matrix, place: int, question: str) -> Verdict:
    outside = [Constraint(row, 0, True) for row in transform[:place]]
    rule = "Theorem 7.2"
    for dependence in found.found:
        for sign in (1, -1):
            condition = Constraint(tuple(sign * x for x in transform[place]), -1)
            try:
                distance = dependence.find(*outside, condition)
            except Undecided as error:
                reason = f"nothing was proved for {dependence}: {error}"
                return Verdict(question, False, reason, rule, dependence)
            if distance is not None:
                reason = f"it carries distance {text(distance)}"
                return Verdict(question, False, reason, rule, dependence, distance, apply(transform, distance))
    return Verdict(question, True, "it carries no dependence", rule)


# --- Proposition 7.3 --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FusionVerdict:
    """Whether two nests may share their first ``shared`` loops, the first one's statements before the second one's:
    ``sequential`` as loops that run in order, ``parallel`` as loops whose iterations run at the same time."""

    shared: int
    distances: tuple[Dependence, ...]
    sequential: Verdict
    parallel: Verdict

    def format(self) -> str:
        lines = [str(self.sequential), str(self.parallel)]
        return "\n".join([*lines, *(f"  {d}" for d in self.distances)])

    __str__ = format


def fusion(first: LoopNest, second: LoopNest, shared: int | None = None) -> FusionVerdict:
    """Proposition 7.3 for two nests that run one after the other: distances are iterations of the second minus those of
    the first, in the loops that are shared (default: as many as both have)."""
    shared = min(first.depth, second.depth) if shared is None else shared
    found: list[Dependence] = []
    for one in first.statements:
        for source, source_writes in one.accesses:
            for other in second.statements:
                for target, target_writes in other.accesses:
                    if source.array != target.array or not (source_writes or target_writes):
                        continue
                    pairs, reason = meeting(first, second, source, target, shared)
                    try:
                        if pairs.is_empty:
                            continue
                        distances, ranges, is_finite = described([pairs], shared)
                    except Undecided as error:
                        distances, ranges, is_finite = (), ((None, None),) * shared, False
                        reason = str(error)
                    kind = {(True, False): "RAW", (False, True): "WAR"}.get((source_writes, target_writes), "WAW")
                    found.append(
                        Dependence(
                            kind, source.array, f"first.{one.name}", f"second.{other.name}", source, target, shared,
                            distances, ranges, (pairs,), is_finite, not reason, reason,
                        )
                    )  # fmt: skip
    sequential = _fused(found, shared, "fusion into one sequential loop", parallel=False)
    return FusionVerdict(shared, tuple(found), sequential, _fused(found, shared, "fusion into one parallel loop", True))


def _fused(found: Sequence[Dependence], shared: int, question: str, parallel: bool) -> Verdict:
    unit = identity(shared)
    rule = "Proposition 7.3"
    for dependence in found:
        for k in range(shared):
            before = [Constraint(row, 0, True) for row in unit[:k]]
            negative = Constraint(tuple(-x for x in unit[k]), -1)
            try:
                distance = dependence.find(*before, negative)
                if distance is None and parallel:
                    distance = dependence.find(*before, Constraint(unit[k], -1))
            except Undecided as error:
                reason = f"nothing was proved for {dependence}: {error}"
                return Verdict(question, False, reason, rule, dependence)
            if distance is None:
                continue
            if lexicographic_sign(distance) < 0:
                what = "the second would touch the element before the first has"
            else:
                what = "another iteration touches the element first, and may run at the same time"
            reason = f"distance {text(distance)} of {dependence.kind} {dependence.array}: {what}"
            return Verdict(question, False, reason, rule, dependence, distance, distance)
    reason = "every distance is zero" if parallel else "no distance is negative"
    return Verdict(question, True, reason if found else "they share no element", rule)
