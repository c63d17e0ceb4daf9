"""Answers to Exercise 41: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex41 import Variant


def covers(K, j, k):
    return j <= K < k


def coverage(n, j, k):
    from math import comb

    return sum(comb(n, i) for i in range(j, k)) * 0.5**n


def overall_interval(rounds, confidence):
    from math import comb

    medians = sorted(sorted(readings)[len(readings) // 2] for readings in rounds)
    r = len(medians)
    for j in range(r // 2, 0, -1):
        inside = sum(comb(r, i) for i in range(j, r + 1 - j))
        if inside * 0.5**r >= confidence:
            return medians[j - 1], medians[r - j]
    return None


POOLING = """Proposition 13.2 needs readings that are independent and identically distributed. Readings of one round
share the load of the machine, its clock and where its memory lies, so they go up and down together, and those of
another round have another distribution. The ranks are chosen from the spread of a binomial of rn, which is sqrt(rn)/2
readings: that is what K would vary by if every reading were tossed for itself. If whole rounds fall on one side, K is
n times a binomial of r, whose spread is n sqrt(r)/2, sqrt(n) times as much, and the interval is too narrow by about
that. More readings in each round only make it narrower, around a value about which the rounds do not agree. What
helps is more rounds, since their medians are what is independent, or not to need the overall median at all: sides
that are timed in alternation are compared within each round, and what they share cancels."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex41_runs import exact_coverage, pooled_truth

    return {
        "covers": covers,
        "coverage": coverage,
        "coverage_41": str(exact_coverage(variant.n, variant.j, variant.k)),
        "range_coverage": "1 - 2/2**n",
        "fewest_readings": variant.fewest,
        "overall_interval": overall_interval,
        "fewest_rounds": 6,
        "pooled_41": str(pooled_truth(variant.rounds)),
        "why_not_pooled": POOLING,
    }


# A function that ends returns None; there is a median for every round; no interval begins above its end.
HARMLESS = {
    "overall_interval": (
        "return None -> pass",
        "r = len(medians) -> r = len(rounds)",
        "for j in range(r // 2, 0, -1): -> for j in range(r, 0, -1):",
        "for j in range(r // 2, 0, -1): -> for j in range(r // 1, 0, -1):",
    )
}


def _closed(K, j, k):
    return j <= K <= k


def _open(K, j, k):
    return j < K < k


def _shifted(K, j, k):
    return j < K <= k


def _at_least(K, j, k):
    return K >= j


def _sum_closed(n, j, k):
    from math import comb

    return sum(comb(n, i) for i in range(j, k + 1)) / 2**n


def _sum_open(n, j, k):
    from math import comb

    return sum(comb(n, i) for i in range(j + 1, k)) / 2**n


def _evenly(n, j, k):
    return (k - j) / (n + 1)


def _a_count(n, j, k):
    return "many"


def _pooled(rounds, confidence):
    from math import comb

    readings = sorted(reading for each in rounds for reading in each)
    n = len(readings)
    for j in range(n // 2, 0, -1):
        inside = sum(comb(n, i) for i in range(j, n + 1 - j))
        if inside * 0.5**n >= confidence:
            return readings[j - 1], readings[n - j]
    return None


def _range_of_medians(rounds, confidence):
    medians = sorted(sorted(readings)[len(readings) // 2] for readings in rounds)
    if 1 - 2 / 2 ** len(medians) < confidence:
        return None
    return medians[0], medians[-1]


def _never_none(rounds, confidence):
    from math import comb

    medians = sorted(sorted(readings)[len(readings) // 2] for readings in rounds)
    r = len(medians)
    for j in range(r // 2, 0, -1):
        inside = sum(comb(r, i) for i in range(j, r + 1 - j))
        if inside * 0.5**r >= confidence:
            return medians[j - 1], medians[r - j]
    return medians[0], medians[-1]


def _means(rounds, confidence):
    from math import comb

    centres = sorted(sum(readings) / len(readings) for readings in rounds)
    r = len(centres)
    for j in range(r // 2, 0, -1):
        inside = sum(comb(r, i) for i in range(j, r + 1 - j))
        if inside * 0.5**r >= confidence:
            return centres[j - 1], centres[r - j]
    return None


def _one_number(rounds, confidence):
    return 0.5


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex41_runs import coverage_slips, fewest_slips, pooled_slips, rounds_slips

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    return (
        slip("last-rank-included", covers=_closed),
        slip("first-rank-excluded", covers=_open),
        slip("one-too-many", covers=_shifted),
        slip("one-side", covers=_at_least),
        slip("last-rank-included", coverage=_sum_closed),
        slip("first-rank-excluded", coverage=_sum_open),
        slip("uniform", coverage=_evenly),
        slip("wrong-form", coverage=_a_count),
        *(slip(s.name, coverage_41=s.answer) for s in coverage_slips(variant.n, variant.j, variant.k)),
        slip("one-side", range_coverage="1 - 1/2**n"),
        slip("all-inside", range_coverage="1/2**n"),
        *(slip(s.name, fewest_readings=s.answer) for s in fewest_slips(variant)),
        slip("pooled", overall_interval=_pooled),
        slip("too-wide", overall_interval=_range_of_medians),
        slip("falls-short", overall_interval=_never_none),
        slip("means", overall_interval=_means),
        slip("wrong-form", overall_interval=_one_number),
        *(slip(s.name, fewest_rounds=s.answer) for s in rounds_slips()),
        *(slip(s.name, pooled_41=s.answer) for s in pooled_slips(variant.rounds)),
    )
