"""What Exercise 41 counts: coverage by counting readings below the median, and intervals over rounds with drift."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ...runtime.order_statistics import median, median_interval, median_ranks, readings_for_range
from ..algebra import values_agree
from ..answers import Callee, Malformed, as_number
from ..feedback import Verdict, right, wrong
from ..judges import Slip, call_failed, result_text, unexpected_result
from ..variants import generator

if TYPE_CHECKING:
    from .ex41 import Variant

READINGS = 15  # of a round, in the question about pooling
CONFIDENCE = 0.95


def exact_coverage(n: int, j: int, k: int) -> Fraction:
    """How many of the 2**n ways of falling on either side of the median have it from the ``j``-th to below the ``k``-th
    smallest reading: counted by K."""
    inside = sum(math.comb(n, below) for below in range(n + 1) if _inside(below, n, j, k))
    return Fraction(inside, 2**n)


def _inside(below: int, n: int, j: int, k: int) -> bool:
    """``X_(j) <= m < X_(k)`` for the readings 1, ..., n and a median that ``below`` of them do not exceed."""
    readings, middle = range(1, n + 1), below + 0.5
    return readings[j - 1] <= middle < readings[k - 1]


def _sum(n: int, first: int, last: int) -> Fraction:
    return Fraction(sum(math.comb(n, i) for i in range(first, last + 1)), 2**n)


def distinct(truth: Fraction, slips: Iterable[Slip]) -> tuple[Slip, ...]:
    """The slips that lead somewhere else than to the truth, each value under its first name."""
    found: dict[Fraction, Slip] = {}
    for slip in slips:
        if Fraction(slip.answer) != truth:
            found.setdefault(Fraction(slip.answer), slip)
    return tuple(found.values())


LAST_RANK = "If k readings do not exceed the median, the k-th smallest does not either: the median is not below it."
FIRST_RANK = "If exactly j readings do not exceed the median, the j-th smallest does not: that is inside."


def coverage_slips(n: int, j: int, k: int) -> tuple[Slip, ...]:
    """Other sums one may write down."""
    return distinct(exact_coverage(n, j, k), (
        Slip("last-rank-included", _sum(n, j, k), LAST_RANK),
        Slip("first-rank-excluded", _sum(n, j + 1, k - 1), FIRST_RANK),
        Slip("one-too-many", _sum(n, j - 1, k - 1), "With j - 1 readings below it, the median is too low."),
        Slip("one-side", _sum(n, 0, k - 1), "The median may lie below the interval, too."),
        Slip("missed", 1 - exact_coverage(n, j, k), "That is the probability of missing it."),
    ))  # fmt: skip


def range_slips() -> tuple[Slip, ...]:
    return (
        Slip("one-side", lambda n: 1 - Fraction(1, 2**n), "All readings may lie above it, or all below: two ways."),
        Slip("all-inside", lambda n: Fraction(1, 2**n), "That is how often all readings lie on one given side."),
        Slip("missed", lambda n: Fraction(2, 2**n), "That is the probability of missing it."),
    )


def fewest_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other numbers of readings one may arrive at."""
    fewest = variant.fewest
    return distinct(
        Fraction(fewest),
        (
            Slip("one-too-few", Fraction(fewest - 1), "With so many the range covers less. Are both sides counted?"),
            Slip("one-too-many", Fraction(fewest + 1), "One fewer would do."),
        ),
    )


def rounds_slips() -> tuple[Slip, ...]:
    fewest = readings_for_range(CONFIDENCE)
    return (
        Slip("one-too-few", Fraction(fewest - 1), "The range of so many medians covers less than 95%."),
        Slip("two-rounds", Fraction(2), "The two medians enclose it with probability 1/2 only."),
        Slip("pooled", Fraction(1), "One round says nothing about how rounds differ: readings are not rounds."),
    )


def pooled_truth(rounds: int) -> Fraction:
    """What the pooled interval covers if each round falls on one side as a whole: every outcome, tried."""
    n = rounds * READINGS
    j, k = median_ranks(n, CONFIDENCE)
    inside = 0
    for sides in range(2**rounds):
        below = READINGS * sides.bit_count()
        inside += _inside(below, n, j, k)
    return Fraction(inside, 2**rounds)


def pooled_slips(rounds: int) -> tuple[Slip, ...]:
    n = rounds * READINGS
    j, k = median_ranks(n, CONFIDENCE)
    return distinct(pooled_truth(rounds), (
        Slip("as-claimed", exact_coverage(n, j, k), "That is what it would cover if all readings were independent."),
        Slip("missed", 1 - pooled_truth(rounds), "That is the probability of missing it."),
        Slip("range-of-rounds", exact_coverage(rounds, 1, rounds), "That is for the range of the medians of rounds."),
    ))  # fmt: skip


# --- Functions --------------------------------------------------------------------------------------------------------


def judge_covers(callee: Callee) -> Verdict:
    """The equivalence of the proof, for every K, j < k and n up to 6, on sorted readings; also where the median is one
    of the readings."""
    tried = []
    for n in range(2, 7):
        for j in range(1, n):
            for k in range(j + 1, n + 1):
                for below in range(n + 1):
                    outcome = callee.call(below, j, k)
                    if outcome.failed:
                        return call_failed(callee, (below, j, k), outcome)
                    if not isinstance(outcome.value, bool):
                        return unexpected_result(callee, (below, j, k), f"{result_text(outcome.value)} is no bool")
                    tried.append((below, j, k, n, outcome.value))
    wrongs = [case for case in tried if case[4] != _inside(case[0], case[3], case[1], case[2])]
    if not wrongs:
        return right("So it is, for every number of readings below the median.", ("tried", f"{len(tried)} cases"))
    below, j, k, n, value = wrongs[0]
    facts = (("readings", f"1, ..., {n}"), ("m", below + 0.5), ("K", below), ("j", j), ("k", k), ("yours", value))
    alternatives: tuple[tuple[str, str, Callable[[int, int, int], bool]], ...] = (
        ("last-rank-included", LAST_RANK, lambda K, j, k: j <= K <= k),
        ("first-rank-excluded", FIRST_RANK, lambda K, j, k: j < K < k),
        ("one-too-many", f"{FIRST_RANK} And at the other end: {LAST_RANK}", lambda K, j, k: j < K <= k),
        ("one-side", "There is another end.", lambda K, j, k: K >= j),
        ("one-side", "There is another end.", lambda K, j, k: K < k),
    )
    for name, message, rule in alternatives:
        if all(given == rule(K, a, b) for K, a, b, _, given in tried):
            return wrong(message, *facts, mistake=name)
    return wrong("Compare the j-th and the k-th smallest reading with m.", *facts)


def judge_coverage(callee: Callee) -> Verdict:
    """The student's probability against counting, for small and for large n."""
    cases = [(n, j, k) for n in range(2, 7) for j in range(1, n) for k in range(j + 1, n + 1)]
    cases += [(15, 4, 12), (40, 14, 27), (101, 41, 61), (200, 1, 200)]
    tried = []
    for case in cases:
        outcome = callee.call(*case)
        if outcome.failed:
            return call_failed(callee, case, outcome)
        try:
            value = as_number(outcome.value)
        except Malformed as problem:
            return unexpected_result(callee, case, str(problem))
        tried.append((case, value))
    wrongs = [(case, value) for case, value in tried if not values_agree(value, exact_coverage(*case))]
    if not wrongs:
        return right("The probability, each time.", ("tried", f"{len(tried)} cases"))
    (n, j, k), value = wrongs[0]
    facts = (("n", n), ("j", j), ("k", k), ("yours", f"{float(value):.6g}"))
    alternatives: tuple[tuple[str, str, Callable[[int, int, int], Fraction]], ...] = (
        ("last-rank-included", LAST_RANK, lambda n, j, k: _sum(n, j, k)),
        ("first-rank-excluded", FIRST_RANK, lambda n, j, k: _sum(n, j + 1, k - 1)),
        ("uniform", "Readings are not spread evenly around their median: K is binomial.",
         lambda n, j, k: Fraction(k - j, n + 1)),
        ("missed", "That is the probability of missing it.", lambda n, j, k: 1 - exact_coverage(n, j, k)),
    )  # fmt: skip
    for name, message, rule in alternatives:
        if all(values_agree(given, rule(*case)) for case, given in tried):
            return wrong(message, *facts, mistake=name)
    return wrong("Not this probability.", *facts)


def drifting_rounds(rng: random.Random, rounds: int, readings: int, drift: float) -> list[list[float]]:
    """Rounds around medians of their own: what they share is normal with deviation ``drift``, what they do not is
    exponential noise with mean 1, shifted to the median 0. The overall median is 0."""
    found = []
    for _ in range(rounds):
        shared = rng.gauss(0, drift)
        found.append([shared + rng.expovariate(1) - math.log(2) for _ in range(readings)])
    return found


def judge_overall_interval(callee: Callee, seed: int | None) -> Verdict:
    """The student's interval against Proposition 13.2 on the medians of rounds, on drawn rounds; what pooling comes to
    is measured on the same rounds."""
    rng = generator(seed, "rounds")
    tried = []
    for rounds in (1, 2, 5, 6, 9, 12, 17):
        for confidence in (0.5, 0.9, 0.95, 0.99):
            given = drifting_rounds(rng, rounds, rng.choice((3, 7, 15)), 1.0)
            outcome = callee.call([list(each) for each in given], confidence)
            shown = (f"{rounds} rounds", confidence)
            if outcome.failed:
                return call_failed(callee, shown, outcome)
            value = outcome.value
            if value is not None and not _is_pair(value):
                return unexpected_result(callee, shown, f"{result_text(value)} is neither a pair of numbers nor None")
            tried.append((given, confidence, value))
    wrongs = [case for case in tried if not _same(case[2], of_medians(case[0], case[1]))]
    if not wrongs:
        return right("Proposition 13.2, applied to what is independent.", *_measured(seed))
    given, confidence, value = wrongs[0]
    facts = (("rounds", len(given)), ("confidence", confidence), ("yours", result_text(value)))
    alternatives: tuple[tuple[str, str, Callable[..., Any]], ...] = (
        ("pooled", "That is for readings that are all alike. Those of one round share its drift.", of_pooled),
        ("too-wide", "The range covers it, and more than was asked: there is a narrower one.", of_range),
        ("falls-short", "With so few rounds even the range of their medians covers less than that.", never_none),
        ("means", "The mean of a round is not its median: delays are one-sided.", of_means),
    )
    for name, message, rule in alternatives:
        if all(_same(found, rule(rounds, level)) for rounds, level, found in tried):
            return wrong(message, *facts, mistake=name)
    expected = of_medians(given, confidence)
    if value is None or expected is None:
        message = "There are rounds enough." if value is None else alternatives[2][1]
        return wrong(message, *facts, mistake="gives-up" if value is None else "falls-short")
    return wrong("Not the ends that Proposition 13.2 gives for the medians of the rounds.", *facts)


def _is_pair(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and len(value) == 2 and all(
        isinstance(end, (int, float)) and not isinstance(end, bool) for end in value
    )  # fmt: skip


def _same(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return all(math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-12) for a, b in zip(one, other, strict=True))


Ends = tuple[float, float] | None


def _ends(values: Sequence[float], confidence: float) -> Ends:
    found = median_interval(values, confidence)
    assert found is not None
    return (found.low, found.high) if found.coverage >= confidence else None


def of_medians(rounds: Sequence[Sequence[float]], confidence: float) -> Ends:
    """The interval of the overall median, from the medians of the rounds; None where there are too few."""
    return _ends([median(readings) for readings in rounds], confidence)


def of_pooled(rounds: Sequence[Sequence[float]], confidence: float) -> Ends:
    return _ends([reading for readings in rounds for reading in readings], confidence)


def of_range(rounds: Sequence[Sequence[float]], confidence: float) -> Ends:
    medians = [median(readings) for readings in rounds]
    return (min(medians), max(medians)) if exact_coverage(len(rounds), 1, len(rounds)) >= confidence else None


def of_means(rounds: Sequence[Sequence[float]], confidence: float) -> Ends:
    return _ends([sum(readings) / len(readings) for readings in rounds], confidence)


def never_none(rounds: Sequence[Sequence[float]], confidence: float) -> Ends:
    medians = [median(readings) for readings in rounds]
    return of_medians(rounds, confidence) or (min(medians), max(medians))


def _measured(seed: int | None, trials: int = 150) -> tuple[tuple[str, Any], ...]:
    """How often both intervals cover the overall median of rounds with planted drift."""
    rng = generator(seed, "planted drift")
    hits = dict.fromkeys(("medians of rounds", "all readings pooled"), 0)
    for _ in range(trials):
        rounds = drifting_rounds(rng, 8, READINGS, 2.0)
        for name, ends in zip(hits, (of_medians(rounds, 0.9), of_pooled(rounds, 0.9)), strict=True):
            hits[name] += ends is not None and ends[0] <= 0 < ends[1]
    return tuple((f"90% by {name}, planted drift", f"covers in {hits[name] / trials:.0%}") for name in hits)
