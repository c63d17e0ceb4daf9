"""What Exercise 14 runs: triples merged exactly, on fractions, and two ways to a variance in float32, step by step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy
import torch

from ...measure.rounding import unit_roundoff
from ..answers import Callee
from ..claims import integers, lists
from ..feedback import Verdict, nearly, right, wrong
from ..judges import call_failed, number_text, result_text, unexpected_result

HALF = Fraction(1, 2)
Triple = tuple[Any, Any, Any]

#: Segments of a few small integers, the empty one included.
SEGMENTS = {"first": lists(integers(0, 9), 0, 5), "second": lists(integers(0, 9), 0, 5)}


def triple(values: Sequence[Any]) -> Triple:
    """Count, mean and second central moment, by definition; (0, 0, 0) of no values."""
    if not values:
        return Fraction(0), Fraction(0), Fraction(0)
    mean = Fraction(sum(map(Fraction, values)), len(values))
    return Fraction(len(values)), mean, sum(((value - mean) ** 2 for value in map(Fraction, values)), Fraction(0))


def merged(a: Triple, b: Triple) -> Triple:
    """Chan, Golub and LeVeque (1983), "Algorithms for computing the sample variance"; in the arithmetic of what it is
    given. ``m2_a + m2_b + n_a n_b / n * (mean_b - mean_a)**2``."""
    (n_a, mean_a, m2_a), (n_b, mean_b, m2_b) = a, b
    n = n_a + n_b
    if not n:
        return a
    apart = mean_b - mean_a
    return n, mean_a + apart * n_b / n, m2_a + m2_b + apart * apart * n_a * n_b / n


def _triple_of(callee: Callee, arguments: tuple[Any, ...], shown: tuple[Any, ...]) -> Triple | Verdict:
    outcome = callee.call(*arguments)
    if isinstance(outcome.error, ZeroDivisionError) and any(not one[0] for one in arguments):
        message = "It divides by zero where there are no elements; an empty segment must change nothing."
        return wrong(message, ("call", callee.call_text(*shown)), mistake="empty-segment")
    if outcome.failed:
        return call_failed(callee, shown, outcome)
    value = outcome.value
    if not isinstance(value, list | tuple) or len(value) != 3 or not all(isinstance(x, int | Fraction) for x in value):
        problem = f"{result_text(value)} are not three exact numbers (the arguments are fractions: no float is needed)"
        return unexpected_result(callee, shown, problem)
    return tuple(map(Fraction, value))


def _text(one: Triple) -> str:
    return "(" + ", ".join(str(x) if abs(x) < 10**30 else number_text(x) for x in one) + ")"


def against_merge(callee: Callee, first: list[int], second: list[int]) -> Verdict | None:
    """The merge of two segments' triples against the triple of all their elements."""
    a, b = triple(first), triple(second)
    yours = _triple_of(callee, (a, b), (_text(a), _text(b)))
    if isinstance(yours, Verdict):
        return yours
    n, mean, m2 = triple([*first, *second])
    if yours == (n, mean, m2):
        return None
    facts = (("triples", f"{_text(a)} and {_text(b)}"), ("yours", _text(yours)))
    if yours[0] != n:
        return wrong("That is not how many elements there are.", *facts, mistake="wrong-count")
    if yours[1] != mean:
        if yours[1] == (a[1] + b[1]) / 2:
            message = "The mean of the two means forgets how many elements each of them stands for."
            return wrong(message, *facts, mistake="unweighted-mean")
        return wrong("That is not the mean of all elements.", *facts, mistake="wrong-mean")
    if yours[2] == a[2] + b[2]:
        message = (
            "The moments are about two different means. What do the elements of a segment contribute beyond its own "
            "moment, when the mean moves away from theirs?"
        )
        return wrong(message, *facts, mistake="no-cross-term")
    return wrong("That is not the moment of all elements about their mean.", *facts, mistake="wrong-moment")


def against_sums(callee: Callee, first: list[int], second: list[int]) -> Verdict | None:
    """Count, sum and sum of squares of a triple: by definition, and adding up when segments are merged."""
    for values in (first, [*first, *second]):
        one = triple(values)
        yours = _triple_of(callee, (one,), (_text(one),))
        if isinstance(yours, Verdict):
            return yours
        truth = (Fraction(len(values)), Fraction(sum(values)), Fraction(sum(value * value for value in values)))
        if yours == truth:
            continue
        facts = (("triple", _text(one)), ("yours", _text(yours)))
        if yours[:2] != truth[:2]:
            return wrong("Count and sum are not those of the elements.", *facts, mistake="wrong-sum")
        if yours[2] == one[2]:
            message = "That is the moment about the mean; the sum of squares is the moment about zero."
            return wrong(message, *facts, mistake="central-moment")
        return wrong("That is not the sum of the squares.", *facts, mistake="wrong-squares")
    return None


# --- In float32 -------------------------------------------------------------------------------------------------------


def by_sums(numbers: Sequence[float]) -> float:
    """The second central moment from the sums of x and of x squared, in float32, from left to right."""
    single = numpy.float32
    total, squares = single(0), single(0)
    for number in map(single, numbers):
        total, squares = total + number, squares + number * number
    return float(squares - total * total / single(len(numbers)))


def by_merging(numbers: Sequence[float]) -> float:
    """The same by merging triples in a tree of pairs, in float32."""
    single = numpy.float32
    level: list[Triple] = [(single(1), single(number), single(0)) for number in numbers]
    while len(level) > 1:
        pairs = [merged(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(pairs) * 2 :]
    return float(level[0][2])


def float32_numbers(value: Any) -> list[float] | None:
    """The finite float32 numbers of a list, tuple, array or tensor; None for anything else."""
    value = value.tolist() if isinstance(value, numpy.ndarray | torch.Tensor) else value
    if not isinstance(value, list | tuple):
        return None
    try:
        with numpy.errstate(over="ignore"):
            numbers = [float(numpy.float32(one)) for one in value]
    except (TypeError, ValueError, OverflowError):
        return None
    return numbers if all(map(math.isfinite, numbers)) else None


def judge_cancelling(callee: Callee) -> Verdict:
    """Numbers of a moderate variance, of which the difference of sums keeps nothing and merging everything."""
    for n in (8, 64, 256):
        outcome = callee.call(n)
        if outcome.failed:
            return call_failed(callee, (n,), outcome)
        numbers = float32_numbers(outcome.value)
        if numbers is None or len(numbers) != n:
            return unexpected_result(callee, (n,), f"that is no list of {n} finite float32 numbers")
        exact = triple(numbers)[2]
        facts = (("n", n), ("variance of your numbers in float32", number_text(float(exact) / n)))
        if not Fraction(1, 4) <= exact / n <= 4:
            message = "Their variance, once they are float32 numbers, is not between 1/4 and 4."
            return wrong(message, *facts, mistake="other-variance")
        with numpy.errstate(all="ignore"):
            sums, tree = by_sums(numbers), by_merging(numbers)
        off, kept = abs(Fraction(sums) - exact) / exact, abs(Fraction(tree) - exact) / exact
        facts += (("by sums", number_text(sums / n)), ("by merging", number_text(tree / n)))
        if off <= HALF:
            message = "The difference of sums is not off by more than half: more digits of it must cancel."
            return wrong(message, *facts, mistake="no-cancellation")
        if kept > Fraction(1, 1000):
            return nearly("Merging is off as well.", *facts, credit=HALF, mistake="both-fail")
    return right("Nothing is left of the difference of sums; merging is right.", *facts)


def first_failing_mean(variance: Fraction) -> int:
    """The smallest power of two as a mean, for which one float32 rounding becomes as large as the whole result."""
    mean = 1
    while Fraction(unit_roundoff()) * (1 + mean * mean / variance) < 1:
        mean *= 2
    return mean
