"""What Exercise 50 runs: a student's matrix and schedule on a nest that has the distances, transformed, tiled and
run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from math import floor
from typing import Any

from ...polyhedral import (
    AffineSchedule,
    Dependences,
    Transformation,
    affine_schedule,
    check_schedule,
    dependences,
    interchange,
    loop_nest,
    make_permutable,
    tiling,
    transformation,
    transformed,
)
from ...polyhedral.integers import dot, identity, is_unimodular
from ...polyhedral.integers import text as matrix_text
from ..answers import Callee
from ..feedback import Verdict, nearly, right, wrong
from ..judges import call_failed, result_text, unexpected_result
from ..variants import generator

Distance = tuple[int, int]
LEGAL = ("legal", "not legal")
TILES = ((2, 2), (3, 2), (1, 100), (100, 1))


@lru_cache(maxsize=64)
def found_in(distances: tuple[Distance, ...], rows: int, columns: int) -> Dependences:
    """The dependences of a nest that reads one element for each distance."""
    reads = " + ".join(f"w[i - {a}, j - {b}]" for a, b in distances)
    return dependences(
        loop_nest(f"for i in range({rows}):\n    for j in range({columns}):\n        w[i, j] = {reads}")
    )  # fmt: skip


@lru_cache(maxsize=64)
def best_matrix(distances: tuple[Distance, ...], rows: int, columns: int) -> Transformation:
    made = make_permutable(found_in(distances, rows, columns))
    assert made is not None
    return made


@lru_cache(maxsize=64)
def best_schedule(distances: tuple[Distance, ...], rows: int, columns: int) -> AffineSchedule:
    schedule = affine_schedule(found_in(distances, rows, columns))
    assert isinstance(schedule, AffineSchedule)
    return schedule


def at_once(distances: tuple[Distance, ...], rows: int, columns: int) -> int:
    """The most iterations on one date under the schedule of fewest dates."""
    return max(map(len, best_schedule(distances, rows, columns).wavefronts.values()))


def is_interchangeable(found: Dependences) -> str:
    return LEGAL[0] if interchange(found, 0, 1) else LEGAL[1]


def is_permutable(found: Dependences) -> str:
    return LEGAL[0] if tiling(found) else LEGAL[1]


def distances_text(distances: Sequence[Distance]) -> str:
    return ", ".join(map(str, distances))


# --- Judges -----------------------------------------------------------------------------------------------------------


def judge_forbidding(answer: tuple, distances: tuple[Distance, ...]) -> Verdict:
    """A distance of the nest whose image under interchange is not lexicographically positive."""
    vector = tuple(answer)
    image = vector[::-1]
    facts = (("yours", _text(vector)), ("interchanged", _text(image)))
    if vector not in distances:
        return wrong("That is none of the distances.", *facts, mistake="no-distance")
    if next((x for x in image if x), 0) > 0:
        return wrong("That distance stays lexicographically positive.", *facts, mistake="harmless-distance")
    return right("Its first entry is negative after interchange.", *facts)


def judge_matrix(answer: tuple, distances: tuple[Distance, ...], rows: int, columns: int) -> Verdict:
    """Unimodular, legal, fully permutable, nearest to the identity; and the tiled nest run against the original."""
    if any(entry != int(entry) for row in answer for entry in row):
        return wrong("Iterations are whole: so are the entries of the matrix.", mistake="not-whole")
    square = tuple(tuple(int(entry) for entry in row) for row in answer)
    facts: tuple[tuple[str, Any], ...] = (("yours", matrix_text(square)),)
    found = found_in(distances, rows, columns)
    if not is_unimodular(square):
        reason = transformation(found, square).reason
        return wrong("This matrix does not map the iterations one to one.", *facts, ("because", reason),
                     mistake="not-unimodular")  # fmt: skip
    legal, permutable = transformation(found, square), tiling(found, rows=square)
    if not legal:
        return wrong("Running the nest so is not legal.", *facts, ("because", legal.reason), mistake="not-legal")
    if not permutable:
        message = "Legal, but the band is still not fully permutable."
        return wrong(message, *facts, ("because", permutable.reason), mistake="not-permutable")
    nest = found.nest
    for sizes in TILES:
        assert transformed(nest, square, sizes).keeps_values(), (square, sizes)
    facts += (("run in tiles of", ", ".join(map(str, TILES))),)
    if _cost(square) > _cost(best_matrix(distances, rows, columns).rows):
        message = (
            "The band is fully permutable, and tiles give the same values. A matrix nearer to the identity does too."
        )
        return nearly(message, *facts, mistake="not-the-nearest")
    return right("Fully permutable, and every tiling that was run leaves the same values in memory.", *facts)


def _cost(square: Sequence[Sequence[int]]) -> int:
    unit = identity(len(square))
    return sum(abs(a - b) for row, other in zip(square, unit, strict=True) for a, b in zip(row, other, strict=True))


def judge_schedule(answer: tuple, distances: tuple[Distance, ...], rows: int, columns: int) -> Verdict:
    """A step of one at least for every distance, on as few dates as can be; and the wavefronts run."""
    c = tuple(Fraction(x) for x in answer)
    facts: tuple[tuple[str, Any], ...] = (("yours", _text(c)),)
    found = found_in(distances, rows, columns)
    verdict = check_schedule(found, c)
    if not verdict:
        return wrong("Some iteration would run too early.", *facts, ("because", verdict.reason), mistake="too-early")
    points = found.nest.points()
    date = {point: floor(dot(c, point)) for point in points}  # type: ignore[arg-type]
    order = sorted(points, key=lambda x: (date[x], *(-v for v in x)))  # backwards within a date: any order will do
    assert found.nest.same_values(order), c
    dates, fewest = len(set(date.values())), len(best_schedule(distances, rows, columns).dates)
    facts += (("dates in your space", dates),)
    if dates > fewest:
        return nearly("Every dependence is kept. Fewer dates are enough.", *facts, mistake="too-many-dates")
    return right("Every dependence is kept, and the wavefronts, run backwards inside, give the same values.", *facts)


def distance_lists(seed: int | None) -> list[tuple[Distance, ...]]:
    """Lexicographically positive distances, one at least with a positive first entry; short lists first."""
    rng = generator(seed, "distances")
    found: list[tuple[Distance, ...]] = [
        ((1, 0),), ((1, -1),), ((2, -1),), ((1, 1),), ((3, 7),), ((1, 0), (0, 1), (1, -1)), ((2, -3), (0, 1)),
        ((3, -4), (1, 0)), ((1, -5), (2, -9)), ((0, 2), (4, -1)), ((2, 5), (3, 4)),
    ]  # fmt: skip
    for _ in range(40):
        some = {(rng.randint(1, 4), rng.randint(-6, 6)) for _ in range(rng.randint(1, 3))}
        some |= {(0, rng.randint(1, 4)) for _ in range(rng.randint(0, 1))}
        found.append(tuple(sorted(some)))
    return sorted(dict.fromkeys(found), key=len)


def smallest_skew(distances: Sequence[Distance]) -> int:
    """Tried one after the other: the smallest s for which no distance becomes negative in the second loop."""
    return next(s for s in range(-50, 51) if all(s * a + b >= 0 for a, b in distances))


def smallest_slope(distances: Sequence[Distance]) -> int:
    """The smallest c_1 with which c = (c_1, 1) takes a step of one at least."""
    return next(c for c in range(-50, 51) if all(c * a + b >= 1 for a, b in distances))


def judge_smallest(callee: Callee, seed: int | None, least: int, what: str) -> Verdict:
    """The student's function against all whole numbers: with ``least`` 0 the skew, with 1 the schedule."""
    tried = []
    for distances in distance_lists(seed):
        outcome = callee.call(list(distances))
        if outcome.failed:
            return call_failed(callee, (list(distances),), outcome)
        value = outcome.value
        if isinstance(value, bool) or not isinstance(value, int | float | Fraction) or value != int(value):
            problem = f"{result_text(value)} is no whole number"
            return unexpected_result(callee, (list(distances),), problem)
        tried.append((distances, int(value)))
    truths = [next(s for s in range(-50, 51) if all(s * a + b >= least for a, b in ds)) for ds, _ in tried]
    for (distances, mine), truth in zip(tried, truths, strict=True):
        if mine == truth:
            continue
        facts = (("distances", distances_text(distances)), ("yours", mine))
        if mine < truth:
            a, b = next((a, b) for a, b in distances if mine * a + b < least)
            facts += (("distance", (a, b)), (f"gives {what}", mine * a + b))
            if all(given == max(0, other) for (_, given), other in zip(tried, truths, strict=True)):
                return wrong("Not for these.", *facts, mistake="too-small")
            return wrong(f"With that, a distance gives less than {least}.", *facts, mistake="too-small")
        if all(given == max(0, other) for (_, given), other in zip(tried, truths, strict=True)):
            message = "Right where it is not negative; a negative number may do as well."
            return nearly(message, *facts, mistake="never-negative")
        return wrong("A smaller number does, too.", *facts, mistake="too-large")
    return right("The smallest that does, for every list.", ("tried", f"{len(tried)} lists"))


def _text(vector: Sequence[Any]) -> str:
    return "(" + ", ".join(map(str, vector)) + ")"


def drawn(rng: random.Random) -> tuple[tuple[Distance, ...], int, int]:
    """Three distances, one of which forbids interchange, and a space in which all of them occur."""
    steep = rng.choice(((1, -1), (1, -2), (1, -3), (2, -1), (2, -3)))
    distances = ((1, rng.randint(0, 2)), (0, 1), steep)
    return distances, rng.randint(4, 7), rng.randint(5, 9)
